"""The seam between the program and a framework: the Engine protocol, what crosses it, and which engine a run uses.

Only NumPy arrays, Python numbers, strings and dicts of them cross it. Imports no framework: an engine's module is
imported when it has been chosen.
"""

import importlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple, Optional, Protocol, SupportsFloat

import numpy as np

from bert import InputError

#: name -> (module of the engine, import name of its framework, the extra that installs it)
ENGINES = {
    "mxnet": ("bert.engines.gluon", "mxnet", "mxnet"),
    "pytorch": ("bert.engines.pytorch", "torch", "torch"),
}


@dataclass(frozen=True)
class Batch:
    """Rows padded at the end to one length L; B rows."""

    input_ids: np.ndarray  # (B, L) int32
    token_type_ids: np.ndarray  # (B, L) int32
    valid_length: np.ndarray  # (B,) int32: tokens of the row that are not padding
    label_ids: Optional[np.ndarray]  # (B,) int32 classes, float32 scores, or None where labels are unknown
    index: np.ndarray  # (B,) int64: the rows' places in their file

    def __len__(self):
        return len(self.input_ids)

    @property
    def tokens(self):
        """Real tokens, padding not counted."""
        return int(self.valid_length.sum())


class Update(NamedTuple):
    """What one call of apply_gradients found. Turning `grad_norm` into a float may wait for the device."""

    grad_norm: SupportsFloat  # global L2 norm of the unscaled, averaged gradient, before clipping

    @property
    def finite(self):
        """Whether the update was applied: a single inf or NaN among the gradients makes their norm inf or NaN."""
        return math.isfinite(float(self.grad_norm))


class Engine(Protocol):
    """A classifier with its optimizer on one device.

    Built by its module's `create(architecture, num_labels, *, dtype, gpu, seed, optimizer, epsilon, weight_decay,
    checkpoint_activations)`: `dtype` of the matrix products, `gpu` a device number or None for the CPU,
    `optimizer` "adamw" (with bias correction) or "bertadam" (without). One label means regression: squared error instead
    of cross-entropy. `checkpoint_activations` keeps only each layer's input for the backward pass.
    """

    name: str  # "mxnet" | "pytorch"
    device: str  # for the log: "cuda:0 Tesla T4", "cpu, 2 threads"
    range_changes: Sequence  # constants that were made to fit the low precision, each with a str() for the log

    def forward_backward(self, batch: Batch, *, loss_scale: float, weight: float) -> SupportsFloat:
        """Add the gradient of loss_scale * weight * (mean loss of the batch); dropout is on.

        Returns the unscaled mean loss; turning it into a float is the only wait for the device.
        """

    def apply_gradients(self, *, learning_rate: float, max_grad_norm: float, loss_scale: float) -> Update:
        """Unscale, check, clip, step and clear the gradients: one pass.

        With a gradient that is not finite, weights and optimizer state stay bit-identical and the gradients are
        cleared. `max_grad_norm` 0 means no clipping.
        """

    def finish(self) -> None:
        """Do, or wait for, all that the updates so far have left to do: a clock that is read then has seen them whole."""

    def predict(self, batch: Batch) -> np.ndarray:
        """Logits (B, num_labels) float32, without dropout."""

    def get_weights(self, *, copy: bool = True) -> dict:
        """Canonical name -> float32 array.

        Without `copy`, for whoever only writes them out, they may be the engine's own memory: valid until its next update.
        """

    def set_weights(self, weights: dict) -> None:
        """Takes canonical names; InputError that names a tensor which is missing, unknown or of the wrong shape."""

    def state_dict(self, *, copy: bool = True) -> dict:
        """Optimizer moments and the framework's random state, flat: name -> array; `copy` as for get_weights."""

    def load_state_dict(self, state: dict) -> None: ...

    def peak_memory(self) -> int:
        """Bytes: the device's peak allocation, or the process's peak resident size on a CPU."""


def peak_resident_memory():
    """Bytes: the largest this process has been in memory; 0 where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def out_of_memory(error):
    """Whether an exception says that memory ran out: Python's own, PyTorch's or MXNet's, on a CPU or a GPU."""
    said = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(words in said for words in _OUT_OF_MEMORY))
    )


_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "memory allocation", "failed to allocate")


def installed(name):
    """Whether the engine's framework can be imported; looks without importing it."""
    module, framework, _ = ENGINES[name]
    return find_spec(framework) is not None and find_spec(module) is not None


def load_engine(name):
    """The engine's module, with `capabilities(gpu)` and `create(...)`; InputError where its framework is not installed."""
    if not installed(name):
        raise InputError(f"--engine {name}: {ENGINES[name][1]} is not installed; pip install '.[{ENGINES[name][2]}]'")
    return importlib.import_module(ENGINES[name][0])


def choose_engine(requested, *, gpu):
    """(name, why) of the engine. auto: MXNet where its CUDA build sees the GPU asked for, else PyTorch, else MXNet."""
    if requested != "auto":
        return requested, "as asked by --engine"
    if gpu is not None and installed("mxnet"):
        capability = load_engine("mxnet").capabilities(gpu)["float32"]
        if capability.available:
            return "mxnet", f"MXNet's CUDA build sees GPU {gpu}"
        if not installed("pytorch"):
            return "mxnet", "PyTorch is not installed"
        return "pytorch", f"MXNet cannot use GPU {gpu}: {capability.note}"
    if installed("pytorch"):
        return "pytorch", "the engine for any CPU and any current GPU"
    if installed("mxnet"):
        return "mxnet", "PyTorch is not installed"
    raise InputError("no engine is installed; pip install '.[torch]' for PyTorch or '.[mxnet]' for MXNet")
