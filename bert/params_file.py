"""MXNet `.params` files without MXNet: a bounded reader, and GluonNLP's tensor names.

Format: `NDArray::Save` and `NDArray::Load` of MXNet 1.9.1, a list of arrays and a list of their names, little-endian.
Knows nothing of engines; tensors are NumPy arrays, and names become the canonical ones of architecture.py.
"""

import math
import os
import re
import struct

import numpy as np

from bert import InputError
from bert.architecture import HEAD, POOLER
from bert.files import file_size

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # V2 added a storage type, V3 allows zero dimensions and sizes
DENSE = 0  # storage type
TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?"}  # mshadow's type flags
BFLOAT16 = 12
MAX_DIMENSIONS = 32
MAX_NAME = 4096  # bytes; far above any parameter's


# ---------------------------------------------------------------------------------------------------- files


def read_params(path):
    """Tensor name -> read-only array, in the file's order; bfloat16 becomes float32, other types stay.

    Every size that the file declares is checked against its length before anything is allocated. InputError names the
    file and what is wrong with it.
    """
    file_size(path)
    try:
        with open(path, "rb") as file:
            return _read_list(_Reader(file, path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


class _Reader:
    """Reads a file from front to back and never asks for more than it has left."""

    def __init__(self, file, path):
        self.file, self.path = file, path
        self.left = os.fstat(file.fileno()).st_size

    def bytes(self, count, what):
        if count > self.left:
            raise self.damaged(f"{what} needs {count} bytes and {self.left} are left")
        self.left -= count
        return self.file.read(count)

    def numbers(self, form, what):
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}"), what))

    def damaged(self, reason):
        return InputError(f"{self.path}: not a whole .params file: {reason}")


def _read_list(reader):
    magic, _ = reader.numbers("QQ", "the file's header")
    if magic != LIST_MAGIC:
        raise reader.damaged(f"it begins with {magic:#x}, expected {LIST_MAGIC:#x}")
    (count,) = reader.numbers("Q", "the number of tensors")
    if count * 8 > reader.left:  # a tensor and its name take far more
        raise reader.damaged(f"{count} tensors cannot fit into {reader.left} bytes")
    arrays = [_read_array(reader, f"tensor {number}") for number in range(count)]
    (names,) = reader.numbers("Q", "the number of names")
    if names != count:
        raise reader.damaged(f"{count} tensors but {names} names")
    tensors = dict(zip((_read_name(reader, number) for number in range(count)), arrays))
    if len(tensors) != count:
        raise reader.damaged("two tensors have the same name")
    if reader.left:
        raise reader.damaged(f"{reader.left} bytes follow its end")
    return tensors


def _read_array(reader, what):
    (magic,) = reader.numbers("I", what)
    if magic not in (V1, V2, V3):
        raise reader.damaged(f"{what} begins with {magic:#x}, expected {V1:#x} to {V3:#x}")
    if magic != V1:
        (storage,) = reader.numbers("i", what)
        if storage != DENSE:
            raise reader.damaged(f"{what} has storage type {storage}, expected {DENSE} (dense)")
    (dimensions,) = reader.numbers("i", what)
    if not (magic != V3) <= dimensions <= MAX_DIMENSIONS:
        raise reader.damaged(f"{what} has {dimensions} dimensions")
    shape = reader.numbers(f"{dimensions}q", what)
    if any(size < (magic != V3) for size in shape):
        raise reader.damaged(f"{what} has shape {shape}")
    _, _, flag = reader.numbers("iii", what)  # the device it was saved from does not matter
    if flag != BFLOAT16 and flag not in TYPES:
        raise reader.damaged(f"{what} has type number {flag}")
    dtype = np.dtype("<u2" if flag == BFLOAT16 else TYPES[flag])
    data = reader.bytes(math.prod(shape) * dtype.itemsize, f"{what} of shape {shape}")
    try:
        array = np.frombuffer(data, dtype).reshape(shape)
    except ValueError:  # no values, and sizes beyond what an array can have
        raise reader.damaged(f"{what} has shape {shape}") from None
    if flag == BFLOAT16:  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _read_name(reader, number):
    (length,) = reader.numbers("Q", f"name {number}")
    if length > MAX_NAME:
        raise reader.damaged(f"name {number} is {length} bytes long")
    try:
        return reader.bytes(length, f"name {number}").decode()
    except UnicodeDecodeError:
        raise reader.damaged(f"name {number} is not UTF-8") from None


# ---------------------------------------------------------------------------------------------------- names

TOKEN_TYPES = "bert.embeddings.token_type_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"

# GluonNLP's block for each of ours, inside BERTModel and inside one transformer cell.
_BLOCKS = {
    "word_embed.0": "bert.embeddings.word_embeddings",
    "token_type_embed.0": "bert.embeddings.token_type_embeddings",
    "encoder.layer_norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
}
_CELL_BLOCKS = {
    "attention_cell.proj_query": "attention.self.query",
    "attention_cell.proj_key": "attention.self.key",
    "attention_cell.proj_value": "attention.self.value",
    "proj": "attention.output.dense",
    "layer_norm": "attention.output.LayerNorm",
    "ffn.ffn_1": "intermediate.dense",
    "ffn.ffn_2": "output.dense",
    "ffn.layer_norm": "output.LayerNorm",
}
_KINDS = {"gamma": "weight", "beta": "bias"}  # LayerNorm's
# Heads of pretraining: next sentence prediction and the masked language model.
_PRETRAINING = re.compile(r"decoder\.|classifier\.(weight|bias)$")


def canonical_names(names):
    """GluonNLP name -> canonical name, or None for a tensor of a pretraining head; InputError names an unknown one.

    `names` are those of one model as `save_parameters` of GluonNLP's BERTModel, BERTClassifier, RoBERTaModel or
    RoBERTaClassifier writes them (`nlp.utils.save_parameters` writes the same).
    """
    head = _head_names(names)
    return {name: head[name] if name in head else _encoder_name(name) for name in names}


def _head_names(names):
    """The classifier is a sequence of blocks, numbered with its dropouts: the last is the output, one before the pooler."""
    numbers = sorted({int(match[1]) for match in (re.match(r"classifier\.(\d+)\.", name) for name in names) if match})
    blocks = dict(zip(reversed(numbers), (HEAD, POOLER)))
    return {
        f"classifier.{number}.{kind}": name
        for number, pair in blocks.items()
        for kind, name in zip(("weight", "bias"), pair)
    }


def _encoder_name(name):
    inner = re.sub(r"^(bert|roberta)\.", "", name)
    if _PRETRAINING.match(inner):
        return None
    if inner == "encoder.position_weight":
        return POSITIONS
    block, _, kind = inner.rpartition(".")
    kind = _KINDS.get(kind, kind)
    cell = re.match(r"encoder\.transformer_cells\.(\d+)\.(.+)$", block)
    if cell and cell[2] in _CELL_BLOCKS:
        return f"bert.encoder.layer.{cell[1]}.{_CELL_BLOCKS[cell[2]]}.{kind}"
    if block in _BLOCKS:
        return f"{_BLOCKS[block]}.{kind}"
    raise InputError(f"weights: {name} is not a tensor of GluonNLP's BERT or RoBERTa")


def from_gluon(tensors, architecture):
    """Canonical name -> float32 array from GluonNLP's tensors; those of pretraining heads are left out.

    The pooler and the classifier are there if the file had them. GluonNLP's RoBERTa has neither the position rows
    before the first token's nor the token type that Hugging Face's adds everywhere: both come out as zeros.
    """
    weights = {}
    for name, canonical in canonical_names(tensors).items():
        if canonical in weights:
            raise InputError(f"weights: {name} is there a second time under another spelling; which one is meant?")
        if canonical is not None:
            with np.errstate(over="ignore"):
                weights[canonical] = tensors[name].astype(np.float32)
    if architecture.model_type == "roberta" and np.shape(weights.get(POSITIONS))[1:] == (architecture.hidden_size,):
        unused = np.zeros((architecture.position_offset, architecture.hidden_size), np.float32)
        weights[POSITIONS] = np.concatenate([unused, weights[POSITIONS]])
        weights[TOKEN_TYPES] = np.zeros((architecture.type_vocab_size, architecture.hidden_size), np.float32)
    return weights


def gluon_config(tensors, bert_model, path):
    """A Hugging Face configuration (dict) for GluonNLP's tensors: sizes from their shapes, heads from the model's name.

    `bert_model` is a name such as bert_12_768_12 (layers, units, heads). Constants are those of GluonNLP v0.10's models.
    """
    named = re.fullmatch(r"(bert|roberta)_\d+_\d+_(\d{1,6})", bert_model)
    if not named:
        raise InputError(f"{path}: --bert_model must name its shape, as bert_12_768_12 does, not {bert_model}")
    bare = {re.sub(r"^(bert|roberta)\.", "", name): tensor.shape for name, tensor in tensors.items()}
    ffn = "encoder.transformer_cells.0.ffn.ffn_1.weight"
    for name in ("word_embed.0.weight", "encoder.position_weight", ffn):
        if len(bare.get(name, ())) != 2:
            raise InputError(f"{path}: tensor {name} is missing or is no matrix")
    roberta = named[1] == "roberta"
    cells = (re.match(r"encoder\.transformer_cells\.(\d+)\.", name) for name in bare)
    return {
        "model_type": named[1],
        "vocab_size": bare["word_embed.0.weight"][0],
        "hidden_size": bare["word_embed.0.weight"][1],
        "num_hidden_layers": 1 + max(int(cell[1]) for cell in cells if cell),
        "num_attention_heads": int(named[2]),
        "intermediate_size": bare[ffn][0],
        "max_position_embeddings": bare["encoder.position_weight"][0] + (2 if roberta else 0),
        "type_vocab_size": 1 if roberta else bare.get("token_type_embed.0.weight", (2,))[0],
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
        "pad_token_id": 1 if roberta else 0,
        "hidden_act": "gelu",
    }
