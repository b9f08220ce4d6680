"""A run's record: lines for the person, log.jsonl, JSON and TensorBoard's files for programs. Knows where to write, not what
it means.

A disk that is full must not end a run: what cannot be said is not said, what cannot be logged is counted.
"""

import io
import json
import math
import os
import sys
import time
from pathlib import Path

from tqdm import tqdm
from tqdm.utils import ObjectWrapper

from bert import InputError
from bert.files import read_lines, whole_file, why_not_written, writing


class RunLog:
    """Console, log.jsonl and TensorBoard behind one object; before `open`, and in a dry run, nothing is written to disk.

    With `tensorboard` what is numbers in log.jsonl also becomes scalars in the folder tensorboard/ beside it: train/loss
    and the like at each step, dev/accuracy and the like at the step of the evaluation. InputError without that package.
    """

    def __init__(self, *, tensorboard=False):
        self._log = self._events = None
        self._encode = _event_encoder() if tensorboard else None

    def open(self, path, *, keep=0):
        """Begin log.jsonl, or go on with it after its first `keep` bytes; RunError where it cannot be written.

        TensorBoard's file is made anew from what is kept: the updates after a checkpoint are in neither twice. (Its clock
        begins anew, too: log.jsonl knows no times of day.)
        """
        self._log = _Appended(path, "log.jsonl", self.say, keep=keep)
        if self._encode:
            try:
                kept = self._encode([json.loads(line) for _, line in read_lines(path)], begin=True)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise InputError(f"{path}: is not the log of a run, so --tensorboard cannot go on from it") from None
            folder = Path(path).parent / "tensorboard"
            with writing(folder):
                folder.mkdir(exist_ok=True)
                # Emptied, not deleted: a TensorBoard that is watching would look for a deleted one for ever.
                for earlier in folder.glob("events.out.tfevents.*"):
                    os.truncate(earlier, 0)
            self._events = _Appended(folder / f"events.out.tfevents.{time.time_ns()}", "tensorboard/", self.say)
            self._events.write(kept, 0)

    def say(self, text):
        """One line for the person, above any progress bar."""
        try:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()
        except OSError:  # a full disk, or nobody reads any more
            silence(sys.stdout)

    def write(self, records):
        """Append records to log.jsonl, one line each; a number that is not finite becomes null."""
        if self._log is None:
            return
        records = [_finite(record) for record in records]
        self._log.write("".join(json.dumps(record) + "\n" for record in records).encode(), len(records))
        if self._events is not None:
            self._events.write(self._encode(records), len(records))

    def sync(self):
        """Wait until log.jsonl is on the disk; returns its size in bytes, 0 where there is none."""
        return 0 if self._log is None else self._log.sync()

    def close(self):
        for file in filter(None, (self._log, self._events)):
            file.close()
        self._log = self._events = None


class _Appended:
    """A file that grows by whole records; those that the disk does not take are counted, and the first is news."""

    def __init__(self, path, name, say, *, keep=0):
        self._name, self._say = name, say
        self._lost = 0  # records
        with writing(path):
            self._file = open(path, "ab", buffering=0)
            self._size = min(keep, os.path.getsize(path))  # bytes of whole records
            self._file.truncate(self._size)

    def write(self, data, count):
        """Append `data`, which is `count` records; all of it or nothing."""
        try:
            rest = data
            while rest:
                rest = rest[self._file.write(rest) :]
            self._size += len(data)
        except OSError as error:
            self._file.truncate(self._size)
            self._lose(count, error)

    def sync(self):
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._lose(0, error)
        return self._size

    def close(self):
        if self._lost:
            self._say(f"WARNING: {self._name} lacks {self._lost} lines that the disk did not take")
        self._file.close()

    def _lose(self, count, error):
        if not self._lost:
            self._say(f"WARNING: {self._name} cannot be written: {why_not_written(error)}; training goes on")
        self._lost += max(count, 1)


_CURVES = ("loss", "learning_rate", "grad_norm", "loss_scale", "skipped", "tokens_per_second")


def _event_encoder():
    """A function: log records -> the bytes that they are in a file of TensorBoard's; InputError where it is not installed.

    Of TensorBoard only the format is used (tensorboard/compat/proto, Apache-2.0): no thread, and neither TensorFlow nor
    torch, which its writers, and tensorboardX, import where they are installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise InputError(f"--tensorboard: {error}; pip install '.[tensorboard]'") from None

    def events(records):
        for record in records:
            evaluation = record.get("evaluation")
            parts = evaluation["scores"] if evaluation else {"train": {name: record.get(name) for name in _CURVES}}
            event = Event(step=(evaluation or record)["step"])
            for part, values in parts.items():
                for name, value in values.items():
                    if value is not None:
                        event.summary.value.add(tag=f"{part}/{name}", simple_value=value)
            yield event

    def encode(records, *, begin=False):
        # The second event makes a TensorBoard that is watching forget what it has read of steps from 0 on.
        first = (Event(file_version="brain.Event:2"), Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        buffer = io.BytesIO()
        for event in (*(first if begin else ()), *events(records)):
            event.wall_time = time.time()
            RecordWriter(buffer).write(event.SerializeToString())
        return buffer.getvalue()

    return encode


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
