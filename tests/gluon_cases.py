"""Tiny models and batches for the tests of the MXNet engine."""

import numpy as np

from bert.architecture import Architecture, parameter_shapes
from bert.engines import Batch, gluon


def tiny(model_type="bert", dropout=0.0, **changes):
    roberta = model_type == "roberta"
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 20,
        "type_vocab_size": 1 if roberta else 2,
        "pad_token_id": 1 if roberta else 0,
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "classifier_dropout": dropout,
    }
    return Architecture(model_type, **{**sizes, **changes})


def weights(architecture, num_labels=3, seed=0):
    random = np.random.default_rng(seed)
    shapes = parameter_shapes(architecture, num_labels)
    return {name: (random.normal(size=shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}


def batch(lengths=(9, 3, 5, 1), labels=(0, 1, 2, 1), width=None, architecture=None, seed=1):
    random = np.random.default_rng(seed)
    architecture = architecture or tiny()
    shape = (len(lengths), width or max(lengths))
    real = np.arange(shape[1]) < np.array(lengths)[:, None]
    ids = np.where(real, random.integers(3, architecture.vocab_size, shape), architecture.pad_token_id)
    types = real * random.integers(0, architecture.type_vocab_size, shape)
    labels = np.array(labels, np.float32 if isinstance(labels[0], float) else np.int32)
    return Batch(ids.astype(np.int32), types.astype(np.int32), np.array(lengths, np.int32), labels, np.arange(len(lengths)))


def rows(whole, chosen):
    """Some rows of a batch."""
    fields = (whole.input_ids, whole.token_type_ids, whole.valid_length, whole.label_ids, whole.index)
    return Batch(*(field[chosen] for field in fields))


def engine(architecture=None, num_labels=3, *, dtype="float32", optimizer="adamw", seed=1, **changes):
    """An engine on the CPU with random weights."""
    architecture = architecture or tiny()
    arguments = {"epsilon": 1e-6, "weight_decay": 0.01, **changes}
    made = gluon.create(architecture, num_labels, dtype=dtype, gpu=None, seed=seed, optimizer=optimizer, **arguments)
    made.set_weights(weights(architecture, num_labels))
    return made


def step(engine, batches, *, loss_scale=1.0, learning_rate=1e-2, max_grad_norm=1.0):
    """One update from several micro-batches, each weighted by its share of the examples; (losses, Update)."""
    examples = sum(len(batch) for batch in batches)
    losses = [
        float(engine.forward_backward(batch, loss_scale=loss_scale, weight=len(batch) / examples)) for batch in batches
    ]
    return losses, engine.apply_gradients(learning_rate=learning_rate, max_grad_norm=max_grad_norm, loss_scale=loss_scale)


def assert_same(left, right):
    """Two dicts of arrays, bit by bit."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
