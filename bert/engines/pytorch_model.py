"""BERT, RoBERTa and DistilBERT for classification as one function of its weights, in PyTorch.

The weights are a plain dict: canonical name -> float32 tensor. Mixed precision is spelled out where it happens, as in
autocast: matrix products and what lies between two of them in the compute type; residual sums, LayerNorm and the loss in
float32. Knows no optimizer and no batch source.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
_ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}


def classify(weights, architecture, input_ids, token_type_ids, valid_length, *, dtype, dropout):
    """Logits (batch, num_labels) float32.

    `input_ids`, `token_type_ids` are (batch, length) int64, `valid_length` (batch,) int64, or None where no row is padded.
    `dtype` is the torch type of the matrix products; `dropout` a Dropout in training, else None.
    """
    a = architecture
    heads = a.num_attention_heads

    def dense(x, *names):
        """x (..., inputs) in `dtype` through one layer, or through several side by side as one product."""
        weight, bias = (
            torch.cat([weights[f"{name}.{kind}"] for name in names]) if len(names) > 1 else weights[f"{names[0]}.{kind}"]
            for kind in ("weight", "bias")
        )
        return F.linear(x, weight.to(dtype), bias.to(dtype))

    def layer_norm(x, name):
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, a.layer_norm_eps)

    def drop(x, probability):
        return x if dropout is None or probability == 0 else dropout(x, probability)

    def attention(x, layer, queries):
        """Every token of x (batch, length, hidden) attends; only the first `queries` of them are computed."""
        part = f"{layer}.attention.self"
        if queries == x.shape[1]:
            q, k, v = dense(x, f"{part}.query", f"{part}.key", f"{part}.value").chunk(3, dim=-1)
        else:
            q = dense(x[:, :queries], f"{part}.query")
            k, v = dense(x, f"{part}.key", f"{part}.value").chunk(2, dim=-1)
        probability = 0.0 if dropout is None else a.attention_dropout
        if probability and x.device.type == "cpu":
            return _CpuAttention.apply(q, k, v, mask, heads, dropout, probability)
        q, k, v = (_split_heads(tensor, heads) for tensor in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=probability)
        return _join_heads(context)  # (batch, queries, hidden)

    length = input_ids.shape[1]
    mask = None  # (batch, 1, 1, length) in `dtype`, added to the scores: 0 where there is a token, else -inf
    if valid_length is not None:
        padding = (torch.arange(length, device=input_ids.device) >= valid_length[:, None])[:, None, None]
        mask = torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill_(padding, -math.inf)

    # On a CPU the gradient comes as the rows that occur, not as a table of zeros with a few rows filled in.
    sparse = input_ids.device.type == "cpu" and dropout is not None
    x = F.embedding(input_ids, weights[WORD_EMBEDDINGS], sparse=sparse)  # (batch, length, hidden) float32
    first = a.position_offset
    x = x + weights["bert.embeddings.position_embeddings.weight"][first : first + length]
    if a.type_vocab_size:
        x = x + F.embedding(token_type_ids, weights["bert.embeddings.token_type_embeddings.weight"])
    x = drop(layer_norm(x, "bert.embeddings.LayerNorm"), a.hidden_dropout)

    act = _ACTIVATIONS[a.hidden_act]
    for number in range(a.num_hidden_layers):
        layer = f"bert.encoder.layer.{number}"
        # Only [CLS] is read from the last layer, so only [CLS] is computed there: the same logits for less work.
        queries = 1 if number == a.num_hidden_layers - 1 else length
        y = dense(attention(x.to(dtype), layer, queries), f"{layer}.attention.output.dense")
        x = layer_norm(x[:, :queries] + drop(y, a.attention_output_dropout), f"{layer}.attention.output.LayerNorm")
        y = dense(act(dense(x.to(dtype), f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = layer_norm(x + drop(y, a.hidden_dropout), f"{layer}.output.LayerNorm")

    before, after = a.head_dropouts
    x = drop(x[:, 0], before).to(dtype)  # (batch, hidden)
    pooled = _ACTIVATIONS[a.pooler_act](dense(x, "bert.pooler.dense"))
    return dense(drop(pooled, after), "classifier").float()


def _split_heads(x, heads):
    """(batch, tokens, hidden) -> (batch, heads, tokens, size)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join_heads(x):
    """(batch, heads, tokens, size) -> (batch, tokens, hidden)."""
    return x.transpose(1, 2).flatten(2)


class _CpuAttention(torch.autograd.Function):
    """Softmax attention with dropout for the CPU, whose fused kernel knows none.

    q (batch, queries, hidden) and k, v (batch, length, hidden) give (batch, queries, hidden). Scores and shares are kept in
    the type of q, half the memory traffic in low precision; softmax computes in float32 inside.
    """

    @staticmethod
    def forward(ctx, q, k, v, mask, heads, dropout, probability):
        batch = len(q)
        scale = (q.shape[-1] // heads) ** -0.5
        q, k, v = (_split_heads(tensor, heads).flatten(0, 1) for tensor in (q, k, v))  # (batch * heads, tokens, size)
        q = q * scale
        scores = torch.bmm(q, k.transpose(1, 2))
        if mask is not None:
            scores.unflatten(0, (batch, heads)).add_(mask)
        shares = torch.softmax(scores, dim=-1)
        factors = dropout.factors(shares, probability)
        context = torch.bmm(shares * factors, v)
        ctx.save_for_backward(q, k, v, shares, factors)
        ctx.shape = batch, heads, scale
        return _join_heads(context.unflatten(0, (batch, heads)))

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, shares, factors = ctx.saved_tensors
        batch, heads, scale = ctx.shape
        gradient = _split_heads(gradient, heads).flatten(0, 1)
        grad_v = torch.bmm((shares * factors).transpose(1, 2), gradient)
        grad_shares = torch.bmm(gradient, v.transpose(1, 2)).mul_(factors)
        grad_scores = torch._softmax_backward_data(grad_shares, shares, -1, shares.dtype)
        grad_q = torch.bmm(grad_scores, k).mul_(scale)
        grad_k = torch.bmm(grad_scores.transpose(1, 2), q)
        return *(_join_heads(tensor.unflatten(0, (batch, heads))) for tensor in (grad_q, grad_k, grad_v)), *[None] * 4


class Dropout:
    """Dropout with a random stream of its own on the CPU, and torch's on any other device."""

    def __init__(self, seed):
        self.bits = np.random.SFC64(seed)

    def __call__(self, x, probability):
        if x.device.type != "cpu":
            return F.dropout(x, probability)
        return x * self.factors(x, probability)

    def factors(self, x, probability):
        """A tensor like x: 0 with the given probability, else 1 / (1 - probability), rounded to the type of x.

        Each 64-bit random number serves four elements, where F.dropout draws a double for one. An element is kept when
        its 16 bits, taken as a signed number, reach a threshold: the probability is exact to 2**-16.
        """
        dropped = round(probability * 2**16)
        if dropped in (0, 2**16):  # then there is nothing to draw, and nothing to divide by
            return torch.full_like(x, dropped == 0)
        threshold = dropped - 2**15
        numbers = torch.from_numpy(self.bits.random_raw(-(-x.numel() // 4)).view(np.int16))[: x.numel()].view(x.shape)
        keep = numbers.clamp_(threshold - 1, threshold).sub_(threshold - 1)  # 0 or 1; in place, as integers: fast
        factor = torch.tensor(2**16 / (2**16 - dropped), dtype=x.dtype)
        if x.element_size() == 2:  # the factor's own bit pattern, times 0 or 1
            return keep.mul_(factor.view(torch.int16).item()).view(x.dtype)
        return keep.to(x.dtype).mul_(factor)
