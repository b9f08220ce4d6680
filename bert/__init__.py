"""Fine-tune a pretrained BERT on GLUE in mixed precision, on MXNet or PyTorch.

This file holds the version and the two errors that end a run; the script turns them into exit codes.
"""

__version__ = "0.1.0"


class InputError(Exception):
    """Wrong usage or unusable input: one clear line on stderr, exit code 2."""


class RunError(Exception):
    """A run that started and cannot go on: one clear line on stderr, exit code 1."""
