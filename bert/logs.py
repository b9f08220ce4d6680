"""A run's record: lines for the person, log.jsonl for programs, JSON files that are whole or absent.

Knows what to write where, not what it means.
"""

import json
import math
import os
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from bert import InputError

#: Everything that a run writes into its folder; --overwrite clears these and nothing else.
RUN_FILES = ("config.json", "log.jsonl", "results.json", "predictions", "model", "model.partial", "model.old")


class RunLog:
    """Console and log.jsonl behind one object; before `open`, and in a dry run, nothing is written to disk."""

    def __init__(self):
        self._file = None

    def open(self, path):
        self._file = open(path, "w", encoding="utf-8")

    def say(self, text):
        """One line for the person, above any progress bar."""
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()

    def write(self, records):
        """Append records to log.jsonl, one line each; a number that is not finite becomes null."""
        if self._file is not None:
            self._file.writelines(json.dumps(_finite(record)) + "\n" for record in records)
            self._file.flush()

    def close(self):
        self._file.close()
        self._file = None


def check_folder(path, *, overwrite, sources=()):
    """InputError where a run's folder holds something and --overwrite was not given, or holds one of `sources`, the
    files that the run is going to read."""
    folder = Path(path)
    for source in filter(None, sources):
        real = Path(os.path.realpath(source))  # (unlike Path.resolve it takes any name, and links that go in circles)
        if Path(os.path.realpath(folder)) in (real, *real.parents):
            raise InputError(f"--output_dir {path}: holds {source}, which this run reads; name another folder")
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--output_dir {path}: is a file, expected a folder")
        if folder.exists() and any(folder.iterdir()) and not overwrite:
            raise InputError(f"--output_dir {path}: not empty; name another folder, or add --overwrite to replace that run")
    except OSError as error:
        raise InputError(f"--output_dir {path}: cannot be read: {error.strerror}") from None


def claim_folder(path):
    """The run's folder, made, and rid of an earlier run's files but of nothing else."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target in (folder / name for name in RUN_FILES):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir {path}: cannot be written: {error.strerror}") from None
    return folder


def write_json(path, content):
    """Write a JSON file whole or not at all."""
    aside = f"{path}.partial"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(_finite(content), file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


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
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
