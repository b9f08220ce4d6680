"""BERT, RoBERTa and DistilBERT for classification as one function of its weights, in PyTorch.

Mixed precision is spelled out where it happens, as in autocast: matrix products and what lies between two of them in the
compute type; residual sums, LayerNorm and the loss in float32. On a CPU what lies between the products is one fused kernel
each, where those could be built. Knows no optimizer and no batch source.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import Function, once_differentiable
from torch.utils.checkpoint import checkpoint

from bert.engines import kernels

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
_ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}


class Weights:
    """The float32 master weights, the same numbers in the compute type for the matrix products, and the gradients.

    `masters` maps canonical names to leaf tensors. Query, key and value of a layer lie one below the other in memory, so
    that the three are one product. Whoever changes the masters calls `changed`, or keeps `low` in step.
    """

    def __init__(self, shapes, *, dtype, device):
        self.masters = {}
        self._products = {}  # layer's name -> kind -> (stacked masters, the same in `dtype`)
        self._home = {}  # master's name -> (layer's name in `_products`, first row, last row)
        self._gradients = {}  # master's name -> gradient of a product's weight or bias
        self.dtype = dtype
        for name, shape in shapes.items():
            if name in self.masters:
                continue
            names = [name]
            if ".attention.self.query." in name:
                names += [name.replace(".query.", f".{other}.") for other in ("key", "value")]
            stack = torch.zeros(len(names) * shape[0], *shape[1:], device=device)
            for number, member in enumerate(names):
                self.masters[member] = stack[number * shape[0] : (number + 1) * shape[0]]
            layer, kind = name.rsplit(".", 1)
            if f"{layer}.bias" in shapes and not layer.endswith("LayerNorm"):
                low = stack if dtype == torch.float32 else torch.zeros_like(stack, dtype=dtype)
                for number, member in enumerate(names):
                    self._home[member] = layer, number * shape[0], (number + 1) * shape[0]
                self._products.setdefault(layer, {})[kind] = stack, low
            else:
                self.masters[name].requires_grad_()  # autograd keeps its gradient

    def changed(self):
        """Round the masters to the compute type: once per update, whatever number of products read them."""
        for kinds in self._products.values():
            for stack, low in kinds.values():
                if low is not stack:
                    low.copy_(stack)

    def low(self, name):
        """The copy in the compute type of one master; None where there is none apart."""
        if name not in self._home or self.dtype == torch.float32:
            return None
        layer, first, last = self._home[name]
        return self._products[layer][name.rsplit(".", 1)[1]][1][first:last]

    def product(self, *names):
        """Weight and bias in the compute type of layers that lie one below the other."""
        first, last = self._home[f"{names[0]}.weight"], self._home[f"{names[-1]}.weight"]
        return [self._products[first[0]][kind][1][first[1] : last[2]] for kind in ("weight", "bias")]

    def add_gradients(self, names, weight, bias):
        """Add the gradients of `product(*names)`: the weight's in the compute type, the bias's in float32.

        The first of an update is kept as it is: half as much to move in 16 bits, and float32 would hold the same numbers.
        """
        heights = [len(self.masters[f"{name}.bias"]) for name in names]
        for kind, gradient in (("weight", weight), ("bias", bias)):
            for name, part in zip(names, gradient.split(heights)):
                name = f"{name}.{kind}"
                earlier = self._gradients.get(name)
                self._gradients[name] = part if earlier is None else earlier.float().add_(part)

    def take_gradients(self):
        """Master's name -> gradient in float32 or the compute type, the word embeddings' may be sparse; none is kept."""
        gradients, self._gradients = self._gradients, {}
        for name, master in self.masters.items():
            if master.requires_grad:
                gradients[name], master.grad = master.grad, None
        return gradients


class Tokens(NamedTuple):
    """A batch without its padding: the tokens of all rows, one row after the other. Only attention knows of rows."""

    input_ids: torch.Tensor  # (tokens,) int64, as the next two
    token_type_ids: torch.Tensor
    places: torch.Tensor  # of each token in its row, from 0
    offsets: torch.Tensor  # (rows + 1,) int64: row r holds tokens offsets[r] to offsets[r + 1]
    longest: int  # row, in tokens


class Dropout:
    """Draws a key for each place where something is dropped; on a GPU torch's own random numbers are used instead."""

    def __init__(self, seed):
        self.random = np.random.SFC64(seed)

    def key(self, probability):
        """A key to drop with this probability, exact to 2**-16; None where nothing is to be dropped."""
        threshold = round(probability * 2**16)
        if threshold == 0:
            return None
        number = int(self.random.random_raw())
        kept = 2**16 - threshold
        return kernels.DropoutKey(number >> 32, number & 0xFFFFFFFF, threshold, 2**16 / kept if kept else 0.0)


_NO_DROPOUT = kernels.DropoutKey(0, 0, 0, 1.0)


def drop(x, key):
    """x with the elements of `key` set to 0 and the others scaled up; None drops nothing."""
    if key is None:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, key.threshold / 2**16)
    return x * dropout_factors(x.shape, key).to(x.dtype)


def dropout_factors(shape, key):
    """0 or key.scale for every element, float32, as kernels.cpp draws them: a 32-bit hash for two neighbours in a row."""
    rows, n = math.prod(shape[:-1]), shape[-1]
    words = -(-n // 2)

    def signed(number):
        return number - 2**32 if number >= 2**31 else number

    x = torch.arange(rows * words, dtype=torch.int64).to(torch.int32) ^ signed(key.key0)
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D  # int32 wraps around; the mask makes the shift a logical one
    x = ((x ^ (x >> 15 & 0x1FFFF)) + signed(key.key1)) * signed(0x846CA68B)
    x = x ^ (x >> 16 & 0xFFFF)
    halves = torch.stack([x & 0xFFFF, x >> 16 & 0xFFFF], dim=-1).view(rows, 2 * words)[:, :n]
    return torch.where(halves >= key.threshold, key.scale, 0.0).view(shape)


def classify(weights, architecture, tokens, *, dropout, checkpoint_activations=False):
    """Logits (rows, num_labels) float32 of Tokens.

    `dropout` is a Dropout in training, else None. `checkpoint_activations` keeps of each layer only what goes in, and
    computes the layer again on the way back.
    """
    a = architecture
    masters = weights.masters
    low_dtype = weights.dtype
    device = tokens.input_ids.device
    fused = kernels.available(device)
    attend = _fused_attention if fused else _PaddedAttention(tokens, low_dtype)

    def dense(x, *names, act=None):
        """x (tokens, inputs) in the compute type through one layer, or through several side by side as one product."""
        fused_gelu = act == "gelu" and fused
        y = _Dense.apply(x, weights, names, fused_gelu)
        return y if act is None or fused_gelu else _ACTIVATIONS[act](y)

    def layer_norm(x, name):
        weight, bias = masters[f"{name}.weight"], masters[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, a.layer_norm_eps)

    def add_norm(x, y, key, name):
        """LayerNorm(x + dropout(y)) for x in float32 and y in the compute type: in both types."""
        if fused:
            return _AddNorm.apply(x, y, masters[f"{name}.weight"], masters[f"{name}.bias"], a.layer_norm_eps, key)
        x = layer_norm(x + drop(y, key), name)
        return x, x.to(low_dtype)

    def key(probability):
        return None if dropout is None else dropout.key(probability)

    def encoder_layer(x, low, layer, keys, last):
        part = f"{layer}.attention.self"
        if last:  # only [CLS] is read from it, so only [CLS] is computed: the same logits for less work
            packed = dense(low, f"{part}.key", f"{part}.value")
            x, low = (tensor.index_select(0, tokens.offsets[:-1]) for tensor in (x, low))
            q = dense(low, f"{part}.query")
        else:
            q, packed = None, dense(low, f"{part}.query", f"{part}.key", f"{part}.value")
        y = dense(attend(q, packed, tokens, a.num_attention_heads, keys[0]), f"{layer}.attention.output.dense")
        x, low = add_norm(x, y, keys[1], f"{layer}.attention.output.LayerNorm")
        y = dense(dense(low, f"{layer}.intermediate.dense", act=a.hidden_act), f"{layer}.output.dense")
        return add_norm(x, y, keys[2], f"{layer}.output.LayerNorm")

    # On a CPU the gradient comes as the rows that occur, not as a table of zeros with a few rows filled in.
    sparse = device.type == "cpu" and dropout is not None
    x = F.embedding(tokens.input_ids, masters[WORD_EMBEDDINGS], sparse=sparse)  # (tokens, hidden) float32
    x = x + F.embedding(tokens.places + a.position_offset, masters["bert.embeddings.position_embeddings.weight"])
    if a.type_vocab_size:
        x = x + F.embedding(tokens.token_type_ids, masters["bert.embeddings.token_type_embeddings.weight"])
    x = layer_norm(x, "bert.embeddings.LayerNorm")
    embedding_key = key(a.hidden_dropout)
    if fused and embedding_key is not None:
        x, low = _Drop.apply(x, low_dtype, embedding_key)
    else:
        x = drop(x, embedding_key)
        low = x.to(low_dtype)
    for number in range(a.num_hidden_layers):
        keys = [key(p) for p in (a.attention_dropout, a.attention_output_dropout, a.hidden_dropout)]
        arguments = x, low, f"bert.encoder.layer.{number}", keys, number == a.num_hidden_layers - 1
        if checkpoint_activations:
            x, low = checkpoint(encoder_layer, *arguments, use_reentrant=False)
        else:
            x, low = encoder_layer(*arguments)

    before, after = a.head_dropouts
    low = drop(x, key(before)).to(low_dtype)  # (rows, hidden)
    pooled = dense(low, "bert.pooler.dense", act=a.pooler_act)
    return dense(drop(pooled, key(after)), "classifier").float()


# Up to this length attention in one kernel, in float32, takes less time than matrix products in bfloat16 with the steps
# between them (AVX512-BF16: at 56 tokens both take the same; AMX multiplies faster, but has the steps between too).
_SHORT = 48


def _fused_attention(q, packed, tokens, heads, key):
    """On a CPU; see _Attention. In float16 never by products: scores before they are scaled may be too large for it."""
    if (
        q is None
        and key is not None
        and tokens.longest > _SHORT
        and packed.dtype == torch.bfloat16
        and _multiplies(packed.dtype)
    ):
        return _LongAttention.apply(packed, tokens.offsets, tokens.longest, heads, key)
    return _Attention.apply(q, packed, tokens.offsets, tokens.longest, heads, key)


class _PaddedAttention:
    """_Attention of PyTorch's own operators, which want all rows of one length."""

    def __init__(self, tokens, dtype):
        self._rows, longest = len(tokens.offsets) - 1, tokens.longest
        self._places = self._mask = None  # where no row needs padding
        count, device = len(tokens.input_ids), tokens.offsets.device
        if count < self._rows * longest:
            number = torch.arange(count, device=device)
            row = torch.searchsorted(tokens.offsets, number, right=True) - 1
            self._places = row * longest + number - tokens.offsets[row]  # (tokens,) among the padded ones
            padding = torch.arange(longest, device=device) >= tokens.offsets.diff()[:, None]
            mask = torch.zeros(padding.shape, dtype=dtype, device=device).masked_fill_(padding, -math.inf)
            self._mask = mask[:, None, None]  # (rows, 1, 1, longest), added to the scores

    def _pad(self, x, alone):
        """(tokens, ...) -> (rows, longest, ...); (rows, 1, ...) of one token for each row."""
        if self._places is not None and not alone:
            x = x.new_zeros(self._rows * self._mask.shape[-1], *x.shape[1:]).index_copy(0, self._places, x)
        return x.unflatten(0, (self._rows, -1))

    def __call__(self, q, packed, tokens, heads, key):
        alone = q is not None
        q, k, v = _parts(q, packed)
        queries = len(q)
        q, k, v = (self._pad(x.unflatten(1, (heads, -1)), x is q and alone).transpose(1, 2) for x in (q, k, v))
        if key is not None and packed.device.type == "cpu":  # where torch's fused attention knows no dropout
            scores = _product(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
            shares = torch.softmax(scores if self._mask is None else scores + self._mask, dim=-1)
            factors = dropout_factors((queries, heads, -(-tokens.longest // 32) * 32), key)[..., : tokens.longest]
            context = _product(shares * self._pad(factors, alone).transpose(1, 2).to(shares.dtype), v)
        else:
            probability = 0.0 if key is None else key.threshold / 2**16
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=self._mask, dropout_p=probability)
        context = context.transpose(1, 2).flatten(2).flatten(0, 1)  # (rows * queries of a row, hidden)
        return context if self._places is None or alone else context.index_select(0, self._places)


def _parts(q, packed):
    """Queries, keys and values (.., hidden) from what _Attention is given."""
    return packed.chunk(3, dim=-1) if q is None else (q, *packed.chunk(2, dim=-1))


# The backward passes below write into the gradients that they are given: each result has one consumer, another of these
# functions or a slice, so nobody else holds its gradient.


class _Dense(Function):
    """x (tokens, inputs) through weights.product(*names) and, if asked, GELU; weights.add_gradients takes the gradients."""

    @staticmethod
    def forward(ctx, x, weights, names, gelu):
        weight, bias = weights.product(*names)
        y = _linear(x, weight, bias)
        ctx.save_for_backward(x, weight, y if gelu else None)
        ctx.weights, ctx.names = weights, names
        return F.gelu(y) if gelu else y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, y = ctx.saved_tensors
        if y is not None:
            grad, grad_bias = kernels.gelu_backward(grad.contiguous(), y)
        elif kernels.available(grad.device):
            grad_bias = kernels.column_sums(grad.contiguous())
        else:
            grad_bias = grad.sum(0, dtype=torch.float32)
        ctx.weights.add_gradients(ctx.names, _transposed_product(grad, x), grad_bias)
        return _product(grad, weight), None, None, None


def _linear(x, weight, bias):
    """x @ weight.T + bias for x (rows, inputs)."""
    if x.device.type != "cpu" or x.dtype == torch.float32:
        return F.linear(x, weight, bias)
    if not _multiplies(x.dtype):
        return F.linear(x.float(), weight.float(), bias.float()).to(x.dtype)
    # adds the bias in passing; F.linear first fills the result with copies of it
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _product(a, b):
    """a @ b, for matrices or batches of them.

    Where the CPU's library cannot multiply their 16-bit type, PyTorch would fall back on loops that take ten to sixty times
    as long as its float32 product. There it is that product, rounded once: sums are kept in float32 either way.
    """
    if a.device.type == "cpu" and a.dtype != torch.float32 and not _multiplies(a.dtype):
        return (a.float() @ b.float()).to(a.dtype)
    return a @ b


@cache
def _multiplies(dtype):
    """Whether oneDNN multiplies this 16-bit type on this CPU."""
    if not torch.backends.mkldnn.is_available():  # nor has such a build the operators that tell
        return False
    supported = {
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
    }
    return supported[dtype]()


def _transposed_product(a, b):
    """a.T @ b for a (rows, m) and b (rows, n)."""
    if a.element_size() == 2 and kernels.available(a.device) and _multiplies(a.dtype):
        # On a CPU such a product in 16 bits takes half as long again as a plain one; to transpose the narrower is cheap.
        if a.shape[1] <= b.shape[1]:
            return kernels.transposed(a.contiguous()) @ b
        return kernels.transposed(kernels.transposed(b.contiguous()) @ a)
    return _product(a.t(), b)


class _Drop(Function):
    """Dropout of x (tokens, hidden) float32 on a CPU. Gives float32 and the compute type."""

    @staticmethod
    def forward(ctx, x, dtype, key):
        ctx.key = key
        return kernels.dropout(x, dtype, key)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, grad_low):
        return kernels.dropout_backward(grad.contiguous(), grad_low.contiguous(), ctx.key), None, None


class _AddNorm(Function):
    """LayerNorm(x + dropout(y)) on a CPU: x (tokens, hidden) float32; y in the compute type. Gives both types."""

    @staticmethod
    def forward(ctx, x, y, weight, bias, eps, key):
        ctx.key = key or _NO_DROPOUT
        out, low, mean, rstd = kernels.add_norm(x, y, weight, bias, eps, ctx.key)
        ctx.save_for_backward(x, y, weight, mean, rstd)
        return out, low

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, grad_low):
        x, y, weight, mean, rstd = ctx.saved_tensors
        gradients = kernels.add_norm_backward(grad.contiguous(), grad_low.contiguous(), x, y, weight, ctx.key, mean, rstd)
        return *gradients, None, None


class _Attention(Function):
    """Softmax attention with dropout on a CPU, of every row's tokens to each other: see kernels.attention.

    `packed` (tokens, 3 hidden) holds queries, keys and values side by side; or only keys and values, then `q` holds the only
    query of each row (rows, hidden). Gives (queries, hidden).
    """

    @staticmethod
    def forward(ctx, q, packed, offsets, longest, heads, key):
        parts = _parts(q, packed)
        ctx.at, ctx.key = kernels.Heads(*parts[:2], offsets, longest, heads), key or _NO_DROPOUT
        ctx.save_for_backward(q, packed)
        return kernels.attention(*parts, ctx.at, ctx.key)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, packed = ctx.saved_tensors
        grad_q, grad_packed = None if q is None else torch.empty_like(q), torch.empty_like(packed)
        into = _parts(grad_q, grad_packed)
        kernels.attention_backward(grad.contiguous(), *_parts(q, packed), ctx.at, ctx.key, *into)
        return grad_q, grad_packed, None, None, None, None


class _LongAttention(Function):
    """The same for packed queries, keys and values, by matrix products in the compute type."""

    @staticmethod
    def forward(ctx, packed, offsets, longest, heads, key):
        parts = packed.chunk(3, dim=-1)
        ctx.at, ctx.key = kernels.Heads(*parts[:2], offsets, longest, heads), key
        width = -(-longest // 8) * 8  # few shapes, for each of which the products need their own code
        q, k, v = (kernels.split_heads(part, ctx.at, width) for part in parts)  # (rows * heads, width, size)
        shares, dropped = kernels.softmax_dropout(_product(q, k.transpose(1, 2)), ctx.at, key)
        ctx.save_for_backward(q, k, v, shares, dropped)
        return kernels.join_heads(_product(dropped, v), ctx.at, torch.empty(parts[0].shape, dtype=packed.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, shares, dropped = ctx.saved_tensors
        packed = torch.empty(len(grad), 3 * grad.shape[1], dtype=grad.dtype)
        grad_q, grad_k, grad_v = packed.chunk(3, dim=-1)
        grad = kernels.split_heads(grad.contiguous(), ctx.at, q.shape[1])
        kernels.join_heads(_product(dropped.transpose(1, 2), grad), ctx.at, grad_v)
        grad_scores = kernels.softmax_dropout_backward(_product(grad, v.transpose(1, 2)), shares, ctx.at, ctx.key)
        kernels.join_heads(_product(grad_scores, k), ctx.at, grad_q)
        kernels.join_heads(_product(grad_scores.transpose(1, 2), q), ctx.at, grad_k)
        return packed, None, None, None, None
