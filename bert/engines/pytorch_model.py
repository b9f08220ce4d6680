"""BERT, RoBERTa and DistilBERT for classification as one function of its weights, in PyTorch.

Mixed precision is spelled out where it happens, as in autocast: matrix products and what lies between two of them in the
compute type; residual sums, LayerNorm and the loss in float32. On a CPU what lies between the products is one fused kernel
each, where those could be built. Knows no optimizer and no batch source.
"""

import math
from functools import cache

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


def classify(weights, architecture, input_ids, token_type_ids, valid_length, *, dropout, checkpoint_activations=False):
    """Logits (batch, num_labels) float32.

    `input_ids`, `token_type_ids` are (batch, length) int64, `valid_length` (batch,) int64, or None where no row is padded.
    `dropout` is a Dropout in training, else None. `checkpoint_activations` keeps of each layer only what goes in, and
    computes the layer again on the way back.
    """
    a = architecture
    masters = weights.masters
    low_dtype = weights.dtype
    fused = kernels.available(input_ids.device)

    def dense(x, *names, act=None):
        """x (..., inputs) in the compute type through one layer, or through several side by side as one product."""
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

    def attention(x, part, queries, key):
        """Every token of x (batch, length, hidden) attends; only the first `queries` of them are computed."""
        if queries == x.shape[1]:
            q, packed = None, dense(x, f"{part}.query", f"{part}.key", f"{part}.value")
        else:
            q, packed = dense(x[:, :queries], f"{part}.query"), dense(x, f"{part}.key", f"{part}.value")
        if fused and key is not None:
            return _Attention.apply(q, packed, valid_length, a.num_attention_heads, key)
        q, k, v = packed.chunk(3, dim=-1) if q is None else (q, *packed.chunk(2, dim=-1))
        q, k, v = (tensor.unflatten(-1, (a.num_attention_heads, -1)).transpose(1, 2) for tensor in (q, k, v))
        if key is not None and x.device.type == "cpu":  # where torch's fused attention knows no dropout
            scores = _product(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
            context = _product(drop(torch.softmax(scores if mask is None else scores + mask, dim=-1), key), v)
        else:
            probability = 0.0 if key is None else key.threshold / 2**16
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=probability)
        return context.transpose(1, 2).flatten(2)

    def encoder_layer(x, low, layer, queries, keys):
        y = dense(attention(low, f"{layer}.attention.self", queries, keys[0]), f"{layer}.attention.output.dense")
        x, low = add_norm(x if queries == length else x[:, :queries], y, keys[1], f"{layer}.attention.output.LayerNorm")
        y = dense(dense(low, f"{layer}.intermediate.dense", act=a.hidden_act), f"{layer}.output.dense")
        return add_norm(x, y, keys[2], f"{layer}.output.LayerNorm")

    length = input_ids.shape[1]
    mask = None  # (batch, 1, 1, length) in the compute type, added to the scores: 0 where there is a token, else -inf
    if valid_length is not None:
        padding = (torch.arange(length, device=input_ids.device) >= valid_length[:, None])[:, None, None]
        mask = torch.zeros(padding.shape, dtype=low_dtype, device=padding.device).masked_fill_(padding, -math.inf)

    # On a CPU the gradient comes as the rows that occur, not as a table of zeros with a few rows filled in.
    sparse = input_ids.device.type == "cpu" and dropout is not None
    x = F.embedding(input_ids, masters[WORD_EMBEDDINGS], sparse=sparse)  # (batch, length, hidden) float32
    first = a.position_offset
    x = x + masters["bert.embeddings.position_embeddings.weight"][first : first + length]
    if a.type_vocab_size:
        x = x + F.embedding(token_type_ids, masters["bert.embeddings.token_type_embeddings.weight"])
    x = layer_norm(x, "bert.embeddings.LayerNorm")
    embedding_key = key(a.hidden_dropout)
    if fused and embedding_key is not None:
        x, low = _Drop.apply(x, low_dtype, embedding_key)
    else:
        x = drop(x, embedding_key)
        low = x.to(low_dtype)
    for number in range(a.num_hidden_layers):
        # Only [CLS] is read from the last layer, so only [CLS] is computed there: the same logits for less work.
        queries = 1 if number == a.num_hidden_layers - 1 else length
        keys = [key(p) for p in (a.attention_dropout, a.attention_output_dropout, a.hidden_dropout)]
        arguments = x, low, f"bert.encoder.layer.{number}", queries, keys
        if checkpoint_activations:
            x, low = checkpoint(encoder_layer, *arguments, use_reentrant=False)
        else:
            x, low = encoder_layer(*arguments)

    before, after = a.head_dropouts
    low = drop(x[:, 0], key(before)).to(low_dtype)  # (batch, hidden)
    pooled = dense(low, "bert.pooler.dense", act=a.pooler_act)
    return dense(drop(pooled, key(after)), "classifier").float()


# The backward passes below write into the gradients that they are given: each result has one consumer, another of these
# functions or a slice, so nobody else holds its gradient.


class _Dense(Function):
    """x (..., inputs) through weights.product(*names) and, where asked, GELU; weights.add_gradients takes the gradients."""

    @staticmethod
    def forward(ctx, x, weights, names, gelu):
        weight, bias = weights.product(*names)
        rows = x.reshape(-1, x.shape[-1])
        y = _linear(rows, weight, bias)
        ctx.save_for_backward(rows, weight, y if gelu else None)
        ctx.shape, ctx.weights, ctx.names = x.shape, weights, names
        return (F.gelu(y) if gelu else y).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, weight, y = ctx.saved_tensors
        grad = grad.reshape(-1, len(weight))
        if y is not None:
            grad, grad_bias = kernels.gelu_backward(grad.contiguous(), y)
        elif kernels.available(grad.device):
            grad_bias = kernels.column_sums(grad.contiguous())
        else:
            grad_bias = grad.sum(0, dtype=torch.float32)
        ctx.weights.add_gradients(ctx.names, _transposed_product(grad, rows), grad_bias)
        return _product(grad, weight).view(ctx.shape), None, None, None


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
    """Dropout of x (batch, tokens, hidden) float32 on a CPU. Gives float32 and the compute type."""

    @staticmethod
    def forward(ctx, x, dtype, key):
        ctx.key = key
        return tuple(tensor.view(x.shape) for tensor in kernels.dropout(x.flatten(0, 1), dtype, key))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, grad_low):
        gradients = (tensor.contiguous().flatten(0, 1) for tensor in (grad, grad_low))
        return kernels.dropout_backward(*gradients, ctx.key).view(grad.shape), None, None


class _AddNorm(Function):
    """LayerNorm(x + dropout(y)) on a CPU: x (batch, tokens, hidden) float32; y in the compute type. Gives both types."""

    @staticmethod
    def forward(ctx, x, y, weight, bias, eps, key):
        rows, ctx.key = x.reshape(-1, x.shape[-1]), key or _NO_DROPOUT
        out, low, mean, rstd = kernels.add_norm(rows, y.reshape(rows.shape), weight, bias, eps, ctx.key)
        ctx.save_for_backward(rows, y, weight, mean, rstd)
        return out.view(x.shape), low.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, grad_low):
        x, y, weight, mean, rstd = ctx.saved_tensors
        grad_x, grad_y, grad_weight, grad_bias = kernels.add_norm_backward(
            grad.contiguous(), grad_low.contiguous(), x, y.reshape(x.shape), weight, ctx.key, mean, rstd
        )
        return grad_x.view(grad.shape), grad_y.view(y.shape), grad_weight, grad_bias, None, None


class _Attention(Function):
    """Softmax attention with dropout on a CPU, for which torch's fused attention knows none.

    `packed` (batch, length, 3 hidden) holds queries, keys and values side by side; or only keys and values, then `q` holds
    the queries (batch, queries, hidden). Gives (batch, queries, hidden).
    """

    @staticmethod
    def forward(ctx, q, packed, valid_length, heads, key):
        parts = packed.chunk(3, dim=-1) if q is None else (q, *packed.chunk(2, dim=-1))
        ctx.scale = (parts[0].shape[-1] // heads) ** -0.5
        ctx.key, ctx.alone = key, q is not None
        q, k, v = (kernels.split_heads(part, heads) for part in parts)  # (batch * heads, tokens, size)
        scores = _product(q, k.transpose(1, 2))
        shares, dropped = kernels.softmax_dropout(
            scores.view(-1, scores.shape[-1]), valid_length, heads * q.shape[1], ctx.scale, key
        )
        context = _product(dropped.view(scores.shape), v)
        ctx.save_for_backward(q, k, v, shares, dropped.view(scores.shape))
        return kernels.join_heads(context, torch.empty(parts[0].shape, dtype=packed.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, shares, dropped = ctx.saved_tensors
        batch, queries, hidden = grad.shape
        length = k.shape[1]
        grad = kernels.split_heads(grad.contiguous(), len(k) // batch)
        packed = torch.empty(batch, length, (2 if ctx.alone else 3) * hidden, dtype=grad.dtype)
        grad_q = torch.empty(batch, queries, hidden, dtype=grad.dtype) if ctx.alone else packed[..., :hidden]
        grad_k, grad_v = packed[..., -2 * hidden : -hidden], packed[..., -hidden:]
        kernels.join_heads(_product(dropped.transpose(1, 2), grad), grad_v)
        grad_dropped = _product(grad, v.transpose(1, 2))
        grad_scores = kernels.softmax_dropout_backward(grad_dropped.view(shares.shape), shares, ctx.scale, ctx.key).view(
            dropped.shape
        )
        kernels.join_heads(_product(grad_scores, k), grad_q)
        kernels.join_heads(_product(grad_scores.transpose(1, 2), q), grad_k)
        return grad_q if ctx.alone else None, packed, None, None, None
