"""BERT, RoBERTa and DistilBERT for classification as one function of its weights, in PyTorch.

The weights are a plain dict: canonical name -> float32 tensor. Mixed precision is spelled out where it happens: matrix
products in the compute type, everything else in float32, as autocast does. Knows no optimizer and no batch source.
"""

import math

import torch
import torch.nn.functional as F

_ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}


def classify(weights, architecture, input_ids, token_type_ids, valid_length, *, dtype, training):
    """Logits (batch, num_labels) float32.

    `input_ids`, `token_type_ids` are (batch, length) int64, `valid_length` (batch,) int64, or None where no row is padded.
    `dtype` is the torch type of the matrix products; `training` switches dropout on.
    """
    a = architecture
    heads = (a.num_attention_heads, a.hidden_size // a.num_attention_heads)

    def dense(x, *names):
        """x (..., inputs) in `dtype` times one layer, or several side by side: one product for all of them."""
        weight, bias = (
            torch.cat([weights[f"{name}.{kind}"] for name in names]) if len(names) > 1 else weights[f"{names[0]}.{kind}"]
            for kind in ("weight", "bias")
        )
        return F.linear(x, weight.to(dtype), bias.to(dtype))

    def layer_norm(x, name):
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, a.layer_norm_eps)

    def dropout(x, probability):
        if not training or probability == 0:
            return x
        if x.device.type == "cpu" and probability < 1:
            return x * _dropout_mask(x, probability)
        return F.dropout(x, probability)

    def attention(x, layer, queries):
        """Every token of x (batch, length, hidden) attends; only the first `queries` of them are computed."""
        part = f"{layer}.attention.self"
        if queries == x.shape[1]:
            q, k, v = dense(x, f"{part}.query", f"{part}.key", f"{part}.value").chunk(3, dim=-1)
        else:
            q = dense(x[:, :queries], f"{part}.query")
            k, v = dense(x, f"{part}.key", f"{part}.value").chunk(2, dim=-1)
        q, k, v = (tensor.unflatten(-1, heads).transpose(1, 2) for tensor in (q, k, v))  # (batch, heads, tokens, size)
        probability = a.attention_dropout if training else 0.0
        if probability and x.device.type == "cpu":
            # The CPU's fused kernel knows no dropout, and its fall-back is slower than this.
            scores = torch.matmul(q * (1 / math.sqrt(heads[1])), k.transpose(2, 3))  # (batch, heads, queries, length)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            shares = F.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)
            context = torch.matmul(dropout(shares, probability), v)
        else:
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=probability)
        return context.transpose(1, 2).flatten(2)  # (batch, queries, hidden)

    length = input_ids.shape[1]
    mask = None  # (batch, 1, 1, length): True where there is a token
    if valid_length is not None:
        mask = (torch.arange(length, device=input_ids.device) < valid_length[:, None])[:, None, None]

    x = F.embedding(input_ids, weights["bert.embeddings.word_embeddings.weight"])  # (batch, length, hidden) float32
    first = a.position_offset
    x = x + weights["bert.embeddings.position_embeddings.weight"][first : first + length]
    if a.type_vocab_size:
        x = x + F.embedding(token_type_ids, weights["bert.embeddings.token_type_embeddings.weight"])
    x = dropout(layer_norm(x, "bert.embeddings.LayerNorm"), a.hidden_dropout)

    act = _ACTIVATIONS[a.hidden_act]
    for number in range(a.num_hidden_layers):
        layer = f"bert.encoder.layer.{number}"
        # Only [CLS] is read from the last layer, so only [CLS] is computed there: the same logits for less work.
        queries = 1 if number == a.num_hidden_layers - 1 else length
        y = dense(attention(x.to(dtype), layer, queries), f"{layer}.attention.output.dense")
        x = layer_norm(x[:, :queries] + dropout(y, a.hidden_dropout), f"{layer}.attention.output.LayerNorm")
        y = dense(act(dense(x.to(dtype), f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = layer_norm(x + dropout(y, a.hidden_dropout), f"{layer}.output.LayerNorm")

    before, after = a.head_dropouts
    x = dropout(x[:, 0], before).to(dtype)  # (batch, hidden)
    pooled = _ACTIVATIONS[a.pooler_act](dense(x, "bert.pooler.dense"))
    return dense(dropout(pooled, after), "classifier").float()


def _dropout_mask(x, probability):
    """Factors like x: 0 with the given probability, else 1 / (1 - probability). For the CPU.

    Four elements come from each 64-bit random number, where F.dropout draws a double for each. An element is kept when
    its 16 bits, taken as a signed number, reach a threshold: the probability is exact to 2**-16, and what is kept is
    divided by that very share.
    """
    dropped = round(probability * 2**16)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)  # from, to None: all 64 bits
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
    return keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))
