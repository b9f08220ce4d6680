"""Loads kernels.cpp, the fused CPU code between two matrix products and for AdamW, and calls it with tensors.

Installing the package builds one library for each instruction set, where there is a C++ compiler. Without one `available`
says no, and the model uses PyTorch's own operators. Knows nothing of autograd or of the model.
"""

import ctypes
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import torch

_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class DropoutKey(ctypes.Structure):
    """Which elements of one tensor are dropped: the same key gives the same ones again."""

    _fields_ = [
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),  # of 2**16: an element whose 16 random bits are below is dropped
        ("scale", ctypes.c_float),
    ]


class Adam(ctypes.Structure):
    """What one update of AdamW needs beside the tensors; see kernels.cpp."""

    _fields_ = [
        (name, ctypes.c_float)
        for name in ("scale", "decay", "beta2", "rest1", "rest2", "step_size", "correction", "epsilon")
    ]


@cache
def _load():
    """(the library for this CPU or None, why there is none)."""
    # PyTorch's own choice of instructions: its AVX512 and AVX2 mean what x86-64-v4 and v3 mean to the compiler.
    instructions = torch.backends.cpu.get_cpu_capability().lower()
    specs = [find_spec(f"bert.engines._kernels_{name}") for name in (instructions, "default")]
    spec = next(filter(None, specs), None)
    if spec is None:
        return None, "not built: no C++ compiler at installation, or not installed by pip"
    try:
        library = ctypes.CDLL(spec.origin)
        library.source_digest.restype = ctypes.c_char_p
        source = Path(__file__).with_suffix(".cpp").read_bytes()
        if library.source_digest().decode() != sha256(source).hexdigest():
            return None, "built from another version: install again"  # its functions may want other arguments
        # Any function of the library also finds those of the libraries it is linked with: here PyTorch's OpenMP.
        openmp = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"))))
        team = ctypes.cast(openmp.GOMP_parallel, ctypes.c_void_p)
    except (OSError, AttributeError, StopIteration) as error:
        return None, f"cannot be loaded: {error}"
    library.set_team(team)
    library.grain.restype = ctypes.c_int64
    for name in _TYPES.values():
        getattr(library, f"sum_squares_{name}").restype = ctypes.c_double
    return library, ""


def _library():
    return _load()[0]


def available(device):
    """Whether the kernels can be used for tensors on `device`."""
    return device.type == "cpu" and _library() is not None


def why_not():
    """Why they cannot be used on the CPU; empty where they can."""
    return _load()[1]


def _call(name, dtype, *arguments):
    """Tensors go as pointers, ints as int64, floats as float32; the number of threads comes last."""
    converted = [
        _pointer(argument)
        if isinstance(argument, torch.Tensor)
        else ctypes.byref(argument)
        if isinstance(argument, (ctypes.Structure, ctypes.Array))
        else ctypes.c_int64(argument)
        if isinstance(argument, int)
        else ctypes.c_float(argument)
        if isinstance(argument, float)
        else argument  # None: a null pointer
        for argument in arguments
    ]
    function = getattr(_library(), f"{name}_{_TYPES[dtype]}" if dtype else name)
    return function(*converted, ctypes.c_int(torch.get_num_threads()))


def _pointer(tensor):
    assert tensor.is_contiguous() and tensor.device.type == "cpu"  # a kernel would read past what is not
    return ctypes.c_void_p(tensor.data_ptr())


def _gapped(tensor):
    """The same where rows may lie apart: the kernel is told how far."""
    assert tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    return ctypes.c_void_p(tensor.data_ptr())


def _pieces(rows):
    return -(-rows // _library().grain())


def add_norm(x, y, weight, bias, eps, key):
    """LayerNorm(x + dropout(y)) as float32 and in the type of y, and the rows' mean and 1 / standard deviation.

    x (rows, n) float32, y (rows, n).
    """
    rows, n = y.shape
    out, low = torch.empty(rows, n), torch.empty_like(y)
    mean, rstd = torch.empty(rows), torch.empty(rows)
    _call("add_norm", y.dtype, x, y, weight, bias, eps, key, out, low, mean, rstd, rows, n)
    return out, low, mean, rstd


def add_norm_backward(grad, grad_low, x, y, weight, key, mean, rstd):
    """From the gradients of add_norm's results, in place, those of x (float32) and y; and those of weight and bias."""
    rows, n = y.shape
    partials = torch.empty(_pieces(rows), 2, n)
    _call("add_norm_backward", y.dtype, grad, grad_low, x, y, weight, key, mean, rstd, partials, rows, n)
    return grad, grad_low, *partials.sum(0)


def dropout(x, dtype, key):
    """dropout(x) of x (rows, n) float32, as float32 and in `dtype`."""
    out, low = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    _call("drop", dtype, x, None, key, out, low, *x.shape)
    return out, low


def dropout_backward(grad, grad_low, key):
    """The gradient of x (float32), from those of both results of dropout."""
    grad_x = torch.empty_like(grad)
    _call("drop", grad_low.dtype, grad, grad_low, key, grad_x, None, *grad.shape)
    return grad_x


class Heads(ctypes.Structure):
    """Where attention finds rows and heads in its tensors of (tokens, hidden); see kernels.cpp.

    Each token's `heads` heads lie side by side. Row r holds tokens offsets[r] to offsets[r + 1] (int64), at most `longest`.
    Tokens of `q`, and of keys and values like `k`, may lie apart. As many queries as tokens, or one for each row.
    """

    _fields_ = [
        ("offsets", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "size", "q_stride", "kv_stride", "longest", "alone")),
    ]

    def __init__(self, q, k, offsets, longest, heads):
        rows, size, alone = len(offsets) - 1, q.shape[1] // heads, len(q) != len(k)
        super().__init__(offsets.data_ptr(), rows, heads, size, q.stride(0), k.stride(0), longest, alone)
        self._kept = offsets  # while somebody knows its place

    @property
    def scale(self):
        """What the scores are multiplied by."""
        return self.size**-0.5


def attention(q, k, v, at, key):
    """dropout(softmax(q k^T / sqrt(size))) v of each head of each row, (queries, hidden) in the type of all three.

    All sums are float32, and so are the shares.
    """
    out = torch.empty(q.shape, dtype=q.dtype)
    _call("attention", q.dtype, _gapped(q), _gapped(k), _gapped(v), at, at.scale, key, out)
    return out


def attention_backward(grad, q, k, v, at, key, grad_q, grad_k, grad_v):
    """From the gradient of attention's result those of q, k and v, into tensors that lie as these do."""
    assert (grad_q.stride(), grad_k.stride(), grad_v.stride()) == (q.stride(), k.stride(), v.stride())
    into = (_gapped(tensor) for tensor in (grad_q, grad_k, grad_v))
    _call("attention_backward", q.dtype, grad, _gapped(q), _gapped(k), _gapped(v), at, at.scale, key, *into)


def split_heads(joined, at, width):
    """(tokens, hidden), whose tokens may lie apart, -> (rows * heads, width, size), zero where a row has no token."""
    split = torch.empty(at.rows * at.heads, width, at.size, dtype=joined.dtype)
    _call("split_heads", joined.dtype, _gapped(joined), joined.stride(0), split, at, width)
    return split


def join_heads(split, at, joined):
    """The other way, into `joined`."""
    _call("join_heads", joined.dtype, _gapped(joined), joined.stride(0), split, at, split.shape[1])
    return joined


def softmax_dropout(scores, at, key):
    """Softmax of the scaled scores (rows * heads, width, width) over a row's tokens, in place; and dropout of that."""
    dropped = torch.empty_like(scores)
    _call("softmax_dropout", scores.dtype, scores, at, scores.shape[1], at.scale, key, dropped)
    return scores, dropped


def softmax_dropout_backward(grad, shares, at, key):
    """The scores' gradient, in place of that of dropout(shares)."""
    _call("softmax_dropout_backward", shares.dtype, grad, shares, at, shares.shape[1], at.scale, key)
    return grad


def gelu_backward(grad, x):
    """The gradient of x, in place of that of gelu(x), both (rows, n), and its sums over the rows (float32)."""
    rows, n = x.shape
    partials = torch.empty(_pieces(rows), n)
    _call("gelu_backward", x.dtype, grad, x, partials, rows, n)
    return grad, partials.sum(0)


def column_sums(x):
    """Sums over the rows of x (rows, n), float32."""
    rows, n = x.shape
    partials = torch.empty(_pieces(rows), n)
    _call("column_sums", x.dtype, x, partials, rows, n)
    return partials.sum(0)


def sum_squares(x):
    """The sum of the squares of all numbers of x, as a float."""
    return _call("sum_squares", x.dtype, x, x.numel())


def adamw(adam, weight, gradient, exp_avg, exp_avg_sq, low):
    """One update of a float32 tensor in place, and of `low`, its copy in another type (None: there is none).

    `gradient` is float32, or of the type of `low`.
    """
    dtype = torch.float32 if low is None else low.dtype
    gradients = (gradient, None) if gradient.dtype == torch.float32 else (None, gradient)
    _call("adamw", dtype, adam, weight, *gradients, exp_avg, exp_avg_sq, low, weight.numel())


class TableAdamW:
    """AdamW for a table (rows, n) float32 in place, of which an update's gradient reaches few rows: a row sleeps.

    Before a row is read it must be woken; only then the updates it slept through are done, each as it would have been done
    at its time, bit for bit. The row stays in the nearest cache for all of them; done at their times, each would move the
    whole table through memory.
    """

    LONGEST_SLEEP = 1024  # updates that are remembered; then the whole table is woken

    def __init__(self, weight, exp_avg, exp_avg_sq):
        self.weight, self.moments = weight, (exp_avg, exp_avg_sq)
        self._adams = (Adam * self.LONGEST_SLEEP)()
        self._updates = 0  # filled in `_adams`
        self._done = torch.zeros(len(weight), dtype=torch.int64)  # how many of these each row has had
        self.moments_changed()

    def moments_changed(self):
        """To be called after the moments were written from elsewhere, while all rows were awake."""
        exp_avg, exp_avg_sq = self.moments
        self._seen = ((exp_avg != 0) | (exp_avg_sq != 0)).any(1)  # a row that has never had a gradient only decays

    def wake(self, rows):
        """Bring these rows (int64, ascending) up to date; IndexError where one is not in the table."""
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < len(self.weight):
            raise IndexError(f"row {int(rows[0])} to {int(rows[-1])} of a table of {len(self.weight)}")
        if self._updates:
            self._call(None, rows, len(rows))

    def wake_all(self):
        if self._updates:
            self._call(None, None, len(self.weight))
            self._updates = 0
            self._done.zero_()

    def update(self, adam, rows, gradient):
        """One update: row i of `gradient` (float32) is that of row rows[i] (each once); the other rows have none."""
        if self._updates == self.LONGEST_SLEEP:
            self.wake_all()
        self._adams[self._updates] = adam
        self._updates += 1
        self._call(gradient, rows, len(rows))

    def _call(self, gradient, rows, count):
        updates = self._adams, self._updates
        table = self._done, self._seen, *self.moments, self.weight.shape[1]
        _call("adamw_rows", None, *updates, self.weight, gradient, rows, count, *table)


def transposed(x):
    """x (rows, n) of 16-bit numbers as (n, rows), with no gaps."""
    rows, n = x.shape
    out = torch.empty(n, rows, dtype=x.dtype)
    _call("transpose", None, x, out, rows, n)
    return out
