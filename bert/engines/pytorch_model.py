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


class _Dropout(torch.autograd.Function):
    """Dropout for the CPU: four mask elements from each 64-bit random number, where F.dropout draws one double for each.

    An element is kept when its 16 bits, taken as a signed number, are not below a threshold, so the probability is
    exact to 2**-16, and what is kept is divided by that very share.
    """

    @staticmethod
    def forward(ctx, x, probability):
        dropped = round(probability * 2**16)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)  # all 64 bits
        keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
        mask = keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * mask, None


def classify(weights, architecture, input_ids, token_type_ids, valid_length, *, dtype, training):
    """Logits (batch, num_labels) float32.

    `input_ids`, `token_type_ids` are (batch, length) int64, `valid_length` (batch,) int64, or None where no row is padded.
    `dtype` is the torch type of the matrix products; `training` switches dropout on.
    """

    def dense(x, name):
        return F.linear(x.to(dtype), weights[f"{name}.weight"].to(dtype), weights[f"{name}.bias"].to(dtype))

    def layer_norm(x, name):
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, architecture.layer_norm_eps)

    def dropout(x, probability):
        if training and 0 < probability < 1 and x.device.type == "cpu":
            return _Dropout.apply(x, probability)
        return F.dropout(x, probability, training)

    def attention(x, layer, queries):
        """Every token of x (batch, length, hidden) attends; only the first `queries` of them are computed."""
        part = f"{layer}.attention.self"
        heads = (architecture.num_attention_heads, architecture.hidden_size // architecture.num_attention_heads)
        q = dense(x[:, :queries], f"{part}.query").unflatten(-1, heads).transpose(1, 2)  # (batch, heads, queries, size)
        k = dense(x, f"{part}.key").unflatten(-1, heads).transpose(1, 2)  # (batch, heads, length, size)
        v = dense(x, f"{part}.value").unflatten(-1, heads).transpose(1, 2)
        probability = architecture.attention_dropout if training else 0.0
        if probability and x.device.type == "cpu":
            # The CPU's fused kernel knows no dropout, and its fall-back is slower than these four lines.
            scores = torch.matmul(q * (1 / math.sqrt(heads[1])), k.transpose(2, 3))  # (batch, heads, queries, length)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            scores = F.softmax(scores, dim=-1, dtype=torch.float32)
            context = torch.matmul(dropout(scores, probability).to(dtype), v)
        else:
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=probability)
        return context.transpose(1, 2).flatten(2)  # (batch, queries, hidden)

    batch, length = input_ids.shape
    mask = None  # (batch, 1, 1, length): True where there is a token
    if valid_length is not None:
        mask = (torch.arange(length, device=input_ids.device) < valid_length[:, None])[:, None, None]

    x = F.embedding(input_ids, weights["bert.embeddings.word_embeddings.weight"])  # (batch, length, hidden) float32
    first = architecture.position_offset
    x = x + weights["bert.embeddings.position_embeddings.weight"][first : first + length]
    if architecture.type_vocab_size:
        x = x + F.embedding(token_type_ids, weights["bert.embeddings.token_type_embeddings.weight"])
    x = dropout(layer_norm(x, "bert.embeddings.LayerNorm"), architecture.hidden_dropout)

    act = _ACTIVATIONS[architecture.hidden_act]
    for number in range(architecture.num_hidden_layers):
        layer = f"bert.encoder.layer.{number}"
        # Only [CLS] is read from the last layer, so only [CLS] is computed there: the same logits for less work.
        queries = 1 if number == architecture.num_hidden_layers - 1 else length
        y = dropout(dense(attention(x, layer, queries), f"{layer}.attention.output.dense"), architecture.hidden_dropout)
        x = layer_norm(x[:, :queries] + y, f"{layer}.attention.output.LayerNorm")
        y = dense(act(dense(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = layer_norm(x + dropout(y, architecture.hidden_dropout), f"{layer}.output.LayerNorm")

    before, after = architecture.head_dropouts
    pooled = _ACTIVATIONS[architecture.pooler_act](dense(dropout(x[:, 0], before), "bert.pooler.dense"))  # (batch, hidden)
    return dense(dropout(pooled, after), "classifier").float()
