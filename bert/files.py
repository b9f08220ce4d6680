"""Reading what a person names, and writing what is whole or absent. Knows no format but lines of UTF-8 text and JSON.

Read are regular files only, and never more of one than its purpose can need: a pipe would hang a run, a device or a damaged
size would fill the memory. Written is aside, onto the disk, then renamed.
"""

import json
import os
import stat
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from bert import InputError, RunError

MAX_LINE = 4 * 2**20  # bytes of a row in a file of texts
MAX_JSON = 16 * 2**20  # bytes of a configuration; as Python objects it may take thirty times as much

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def is_there(path):
    """Whether something of this name exists, usable or not: a broken link is there, and reading it says what is wrong."""
    return os.path.lexists(path)


def file_size(path, *, limit=None):
    """Size in bytes of a regular file; InputError for anything else, and for more than `limit` bytes."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: {_KINDS.get(stat.S_IFMT(status.st_mode), 'no ordinary file')}, expected a file")
    if limit is not None and status.st_size > limit:
        raise InputError(f"{path}: {status.st_size} bytes, expected at most {limit}")
    return status.st_size


def read_bytes(path, *, limit):
    """The content of a regular file of at most `limit` bytes."""
    file_size(path, limit=limit)
    try:
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > limit:  # it grew, or is one of /proc's, which say 0
        raise InputError(f"{path}: more than {limit} bytes")
    return content


def read_tail(path, *, start=0, size=4096):
    """The last `size` bytes at most of a file that may be growing, none before `start`; b"" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(start, os.path.getsize(path) - size))
            return file.read()
    except OSError:
        return b""


def read_text(path, *, limit):
    """The UTF-8 text of a file of at most `limit` bytes, without a byte-order mark."""
    content = read_bytes(path, limit=limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _not_utf8(path, line, content[error.start]) from None


def read_lines(path):
    """Yield (number from 1, text without its \\n) of each line; lines end at \\n only. One line is in memory at a time."""
    file_size(path)
    number = 0
    try:
        with open(path, "rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if number == 1:
                    if line.startswith(b"\x1f\x8b"):
                        raise InputError(f"{path}: gzip data, expected text; unpack it first")
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if not line:
                        continue
                if len(line) > MAX_LINE:
                    raise InputError(f"{path}:{number}: found a line of more than {MAX_LINE} bytes, expected rows of text")
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise _not_utf8(path, number, line[error.start]) from None
                yield number, text.removesuffix("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def read_json(path):
    """The JSON object in a file; InputError that names the file where there is none."""
    try:
        content = json.loads(read_text(path, limit=MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: found {type(content).__name__}, expected a JSON object")
    return content


def _not_utf8(path, line, byte):
    return InputError(f"{path}:{line}: found byte 0x{byte:02x}, expected UTF-8 text")


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
def whole_file(path, *, binary=False):
    """A file of text, or of bytes, open for writing that takes its place under `path` only once it is complete.

    RunError where it cannot.
    """
    path = Path(path)
    aside = path.with_name(path.name + ".partial")
    with writing(path):
        try:
            with open(aside, "wb") if binary else open(aside, "w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            sync(path.parent)
        except OSError:
            aside.unlink(missing_ok=True)  # on a full disk it is in the way
            raise
