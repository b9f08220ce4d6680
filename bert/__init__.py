"""Fine-tune a pretrained BERT on GLUE in mixed precision, on MXNet or PyTorch.

This file holds the version and the three ways in which a run ends early; the script turns them into exit codes.
"""

__version__ = "0.1.0"


class InputError(Exception):
    """Wrong usage or unusable input: one clear line on stderr, exit code 2."""


class RunError(Exception):
    """A run that started and cannot go on: one clear line on stderr, exit code 1."""


class Stopped(Exception):
    """A run that was asked to stop, by what its text says; it has saved what --resume needs: exit code 3."""
