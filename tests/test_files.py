"""What a path may turn out to be, and what each reader says of it."""

import os

import pytest

from bert import InputError
from bert.files import MAX_LINE, file_size, is_there, read_bytes, read_json, read_lines, read_text

READERS = {
    "file_size": file_size,
    "read_bytes": lambda path: read_bytes(path, limit=100),
    "read_text": lambda path: read_text(path, limit=100),
    "read_lines": lambda path: list(read_lines(path)),
    "read_json": read_json,
}


@pytest.fixture(params=["folder", "pipe", "device", "link to itself", "link to nothing", "no such file", "name too long"])
def unreadable(request, tmp_path):
    path = tmp_path / "file"
    if request.param == "folder":
        path.mkdir()
    elif request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "name too long":
        path = tmp_path / ("x" * 300)
    elif request.param != "no such file":
        path.symlink_to({"device": "/dev/zero", "link to itself": path, "link to nothing": "nothing"}[request.param])
    assert is_there(path) == (request.param not in ("no such file", "name too long"))
    return path


@pytest.mark.parametrize("reader", READERS)
def test_only_regular_files_are_read(reader, unreadable):
    with pytest.raises(InputError) as caught:
        READERS[reader](unreadable)
    assert str(caught.value).startswith(f"{unreadable}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", ["read_bytes", "read_text"])
def test_no_more_is_read_than_allowed(reader, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert len(READERS[reader](path)) == 100
    with open(path, "r+b") as file:
        file.truncate(2**40)  # sparse: takes no disk
    with pytest.raises(InputError, match="1099511627776 bytes, expected at most 100"):
        READERS[reader](path)


def test_a_file_that_hides_its_size_is_bounded_too(monkeypatch, tmp_path):
    """/proc has files that say 0 bytes and go on."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 101)
    monkeypatch.setattr("bert.files.file_size", lambda path, limit: 0)
    with pytest.raises(InputError, match="more than 100 bytes"):
        read_bytes(path, limit=100)


def test_lines_end_at_newlines_and_have_a_longest_length(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfa\r\n\n" + b"x" * (MAX_LINE - 1) + b"\nlast")
    assert [(number, len(line)) for number, line in read_lines(path)] == [(1, 2), (2, 0), (3, MAX_LINE - 1), (4, 4)]
    path.write_bytes(b"a\n" + b"x" * (MAX_LINE + 1))
    with pytest.raises(InputError, match=f"file:2: .*{MAX_LINE} bytes"):
        list(read_lines(path))


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred\r", "bell\x07", "\u2028", "half \ud83d"])
def test_messages_are_one_printable_line_whatever_they_quote(text):
    message = str(InputError(f"{text}: found"))
    assert message.isprintable() and message.endswith(": found")


def test_messages_do_not_fill_the_screen():
    message = str(InputError("begin " + "x" * 10**6 + " end"))
    assert len(message) < 2100 and message.startswith("begin") and message.endswith("end")
    assert str(InputError("naïve — 漢")) == "naïve — 漢"
