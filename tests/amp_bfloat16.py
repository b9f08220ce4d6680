"""bfloat16 under AMP on the CPU; test_gluon.py runs this file in a process of its own."""

import functools

import gluon_cases
import numpy as np
import pytest
from gluon_cases import assert_same, batch, rows, step, tiny

from bert.engines import gluon
from bert.numerics import node_types

usable = gluon.capabilities(None)["bfloat16"]
pytestmark = pytest.mark.skipif(not usable.available, reason=usable.note)

engine = functools.partial(gluon_cases.engine, dtype="bfloat16")


def test_products_are_bfloat16_and_the_rest_is_not():
    arguments, symbol = engine()._model._cached_graph
    types = {}
    for _, operator, dtype in node_types(symbol, {arguments[0].name: "int32", arguments[1].name: "int32"}):
        types.setdefault(operator, set()).add(dtype)
    assert types["FullyConnected"] == {"bfloat16"}
    assert types["LayerNorm"] == types["softmax"] == types["Embedding"] == {"float32"}
    assert types["_contrib_interleaved_matmul_selfatt_qk"] == {"float32"}  # MXNet has no other on the CPU


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_training_lowers_the_loss(model_type):
    architecture = tiny(model_type)
    tested, data = engine(architecture), batch(architecture=architecture)
    losses = [step(tested, [data])[0][0] for _ in range(20)]
    assert losses[-1] < losses[0] * 0.6
    logits = tested.predict(data)
    assert logits.dtype == np.float32 and np.isfinite(logits).all()
    assert all(array.dtype == np.float32 for array in tested.get_weights().values())


def test_micro_batches_add_up():
    """MXNet's grad_req "add" gives zeros here."""
    whole = batch(lengths=(7, 7, 7, 7), labels=(0, 1, 2, 1))
    _, one = step(engine(), [whole])
    _, two = step(engine(), [rows(whole, [0, 1, 2]), rows(whole, [3])])
    assert one.grad_norm > 0.1
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=0.05)


def test_overflow_is_skipped():
    tested = engine()
    before = tested.get_weights()
    _, update = step(tested, [batch()], loss_scale=float("inf"))
    assert not update.finite
    assert_same(tested.get_weights(), before)
    assert step(tested, [batch()])[1].finite
