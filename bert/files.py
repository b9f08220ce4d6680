"""Files that are whole or absent, whatever happens while they are written: written aside, on the disk, then renamed.

Knows nothing of what is in them.
"""

import os
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from bert import RunError


@contextmanager
def writing(path):
    """Turns whatever a disk refuses (full, read-only, gone) into a RunError that names `path`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be written: {why_not_written(error)}") from None


def why_not_written(error):
    """The reason in an OSError or a SafetensorError, without the path."""
    return getattr(error, "strerror", None) or str(error).rpartition("I/O error: ")[2]


def sync(path):
    """Wait until a file or a folder (its list of names) is on the disk, so that not even a power cut takes it back."""
    if os.name == "nt":  # syncs neither a folder nor what is open for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path):
    """A text file open for writing that takes its place under `path` only once it is complete; RunError where it cannot."""
    path = Path(path)
    aside = path.with_name(path.name + ".partial")
    with writing(path):
        try:
            with open(aside, "w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            sync(path.parent)
        except OSError:
            aside.unlink(missing_ok=True)  # on a full disk it is in the way
            raise
