"""Fine-tune a pretrained BERT on GLUE in mixed precision, on MXNet or PyTorch.

This file holds the version and the three ways in which a run ends early; the script turns them into exit codes.
"""

__version__ = "0.1.0"

_LONGEST = 2000  # characters of a message; what a person can read of a name that fills the screen


class _OneLine(Exception):
    """An error whose text is one printable line, whatever names and texts of other people's files it quotes."""

    def __str__(self):
        text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in super().__str__())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


class InputError(_OneLine):
    """Wrong usage or unusable input: one clear line on stderr, exit code 2."""


class RunError(_OneLine):
    """A run that started and cannot go on: one clear line on stderr, exit code 1."""


class Stopped(Exception):
    """A run that was asked to stop, by what its text says; it has saved what --resume needs: exit code 3."""
