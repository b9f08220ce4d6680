"""Writing what bert.params_file reads: MXNet's format and GluonNLP's names, for the tests alone."""

import re
import struct

import numpy as np

from bert.architecture import HEAD, POOLER
from bert.params_file import _BLOCKS, _CELL_BLOCKS, _KINDS, DENSE, LIST_MAGIC, POSITIONS, TOKEN_TYPES, TYPES, V2

CPU = 1  # the device type that a written array names

_GLUON_BLOCKS, _GLUON_CELL_BLOCKS, _GLUON_KINDS = (
    {ours: theirs for theirs, ours in names.items()} for names in (_BLOCKS, _CELL_BLOCKS, _KINDS)
)


def write_params(path, tensors):
    """Write name -> array (any of the types above) as a `.params` file that MXNet loads."""
    flags = {np.dtype(code): flag for flag, code in TYPES.items()}
    with open(path, "wb") as file:
        file.write(struct.pack("<QQQ", LIST_MAGIC, 0, len(tensors)))
        for tensor in tensors.values():
            array = np.ascontiguousarray(tensor)
            header = struct.pack(f"<Iii{array.ndim}q", V2, DENSE, array.ndim, *array.shape)
            file.write(header + struct.pack("<iii", CPU, 0, flags[array.dtype.newbyteorder("<")]))
            file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
        file.write(struct.pack("<Q", len(tensors)))
        for name in tensors:
            encoded = name.encode()
            file.write(struct.pack("<Q", len(encoded)) + encoded)


def to_gluon(weights, architecture):
    """GluonNLP's tensors, named as BERTClassifier or RoBERTaClassifier with a dropout saves them.

    For RoBERTa the token type, which GluonNLP lacks, is added to every position: the same sums, so the same logits.
    """
    roberta = architecture.model_type == "roberta"
    weights = dict(weights)
    weights[POSITIONS] = weights[POSITIONS][architecture.position_offset :]
    if roberta:
        weights[POSITIONS] = weights[POSITIONS] + weights.pop(TOKEN_TYPES)[0]
    return {gluon_name(name, roberta): tensor for name, tensor in weights.items()}


def gluon_name(name, roberta):
    """The name of a canonical tensor in GluonNLP's BERTClassifier or RoBERTaClassifier, built with a dropout."""
    if name in HEAD:
        return name.replace("classifier", "classifier.3" if roberta else "classifier.1")
    if name in POOLER and roberta:
        return name.replace("bert.pooler.dense", "classifier.1")
    model = "roberta." if roberta else "bert."
    if name == POSITIONS:
        return model + "encoder.position_weight"
    block, _, kind = name.rpartition(".")
    if block.endswith("LayerNorm"):
        kind = _GLUON_KINDS[kind]
    layer = re.match(r"bert\.encoder\.layer\.(\d+)\.(.+)$", block)
    if layer:
        return f"{model}encoder.transformer_cells.{layer[1]}.{_GLUON_CELL_BLOCKS[layer[2]]}.{kind}"
    return f"{model}{_GLUON_BLOCKS[block]}.{kind}"
