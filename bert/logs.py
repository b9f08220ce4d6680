"""A run's record: lines for the person, log.jsonl and JSON files for programs. Knows where to write, not what it means.

A disk that is full must not end a run: what cannot be said is not said, what cannot be logged is counted.
"""

import json
import math
import os
import sys

from tqdm import tqdm
from tqdm.utils import ObjectWrapper

from bert.files import whole_file, why_not_written, writing


class RunLog:
    """Console and log.jsonl behind one object; before `open`, and in a dry run, nothing is written to disk."""

    def __init__(self):
        self._file = None
        self._size = 0  # bytes of whole lines
        self._lost = 0  # records that the disk did not take

    def open(self, path, *, keep=0):
        """Begin log.jsonl, or go on with it after its first `keep` bytes; RunError where it cannot be written."""
        with writing(path):
            self._file = open(path, "ab", buffering=0)
            self._size = min(keep, os.path.getsize(path))
            self._file.truncate(self._size)

    def say(self, text):
        """One line for the person, above any progress bar."""
        try:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()
        except OSError:  # a full disk, or nobody reads any more
            silence(sys.stdout)

    def write(self, records):
        """Append records to log.jsonl, one line each; a number that is not finite becomes null."""
        if self._file is None:
            return
        data = "".join(json.dumps(_finite(record)) + "\n" for record in records).encode()
        try:
            rest = data
            while rest:
                rest = rest[self._file.write(rest) :]
            self._size += len(data)
        except OSError as error:
            self._file.truncate(self._size)  # no half lines
            self._lose(len(records), error)

    def sync(self):
        """Wait until log.jsonl is on the disk; returns its size in bytes, 0 where there is none."""
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                self._lose(0, error)
        return self._size

    def close(self):
        if self._lost:
            self.say(f"WARNING: log.jsonl lacks {self._lost} lines that the disk did not take")
        self._file.close()
        self._file = None

    def _lose(self, count, error):
        if not self._lost:
            self.say(f"WARNING: log.jsonl cannot be written: {why_not_written(error)}; training goes on")
        self._lost += max(count, 1)


def progress_bar(iterable=None, **options):
    """A tqdm bar that a full disk under stderr does not stop."""
    return tqdm(iterable, file=_Patient(sys.stderr), dynamic_ncols=True, **options)


class _Patient(ObjectWrapper):
    """A stream whose failures are no news."""

    def __eq__(self, other):  # tqdm asks whether a bar and a line share the terminal
        return self._wrapped == getattr(other, "_wrapped", other)

    def write(self, text):
        try:
            self._wrapped.write(text)
        except OSError:
            silence(self._wrapped)

    def flush(self):
        try:
            self._wrapped.flush()
        except OSError:
            silence(self._wrapped)


def silence(stream):
    """Send whatever else goes to this stream to nowhere, its unwritten rest too: Python would fail on that at its end."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def write_json(path, content):
    """Write a JSON file, whole or not at all; a number that is not finite becomes null."""
    with whole_file(path) as file:
        json.dump(_finite(content), file, indent=2, ensure_ascii=False)
        file.write("\n")


def table(rows):
    """Lines of text with the cells of `rows` in aligned columns; numbers to the right."""
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    right = [all(isinstance(row[column], (int, float)) for row in rows[1:]) for column in range(len(cells[0]))]
    return [
        "  ".join(
            cell.rjust(width) if align else cell.ljust(width) for cell, width, align in zip(row, widths, right)
        ).rstrip()
        for row in cells
    ]


def _finite(value):
    """The value with null for each number in it that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
