"""float16 under AMP, as far as a CPU can show it; test_gluon.py runs this file in a process of its own.

The graph is what a GPU would run. To execute an update on the CPU, where MXNet has no float16 products, the three
operators that are products run as they were before amp.init, in float32; everything else runs under AMP.
"""

import functools
import inspect
import math

import gluon_cases
import mxnet as mx
import numpy as np
import pytest
from gluon_cases import assert_same, batch, step, tiny

from bert import InputError, RunError
from bert.numerics import guard_block, node_types
from bert.precision import LossScaler

half_engine = functools.partial(gluon_cases.engine, dtype="float16")


PRODUCTS = [
    (mx.nd, "FullyConnected"),
    (mx.nd.contrib, "interleaved_matmul_selfatt_qk"),
    (mx.nd.contrib, "interleaved_matmul_selfatt_valatt"),
]


@pytest.fixture
def make_engine(monkeypatch):
    def make():
        made = half_engine()
        made._model.hybridize(False)  # operator by operator, so that the patches below take effect
        return made

    half_engine()
    for module, name in PRODUCTS:
        before_amp = inspect.getclosurevars(getattr(module, name)).nonlocals["f"]
        monkeypatch.setattr(module, name, before_amp)
    return make


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_types_of_the_graph(model_type):
    arguments, symbol = half_engine(tiny(model_type))._model._cached_graph
    inputs = {argument.name: "int32" for argument in arguments[:-1]}
    types = {}
    for _, operator, dtype in node_types(symbol, inputs):
        types.setdefault(operator, set()).add(dtype)
    assert types["FullyConnected"] == {"float16"}
    assert types["_contrib_interleaved_matmul_selfatt_qk"] == {"float16"}
    assert types["_contrib_interleaved_matmul_selfatt_valatt"] == {"float16"}
    assert types["LayerNorm"] == types["softmax"] == types["Embedding"] == types["null"] - {"int32"} == {"float32"}


def test_the_loss_is_float32(make_engine):
    engine, data = make_engine(), batch()
    logits = engine._logits(data)
    assert logits.dtype == engine._loss(logits, mx.nd.array(data.label_ids)).dtype == np.float32


def test_scale_skip_halve_clear(make_engine):
    """The policy's scaler halves at once after each overflow until gradients are finite, and nothing is left behind."""
    engine, undisturbed = make_engine(), make_engine()
    # In float32 the squares of gradients of norm 1 overflow from a scale of 2**64 on.
    scaler, tried = LossScaler(2.0**70, maximum=2.0**70), []
    for _ in range(20):
        before = engine.get_weights()
        tried.append(scaler.scale)
        _, update = step(engine, [batch(), batch(seed=2)], loss_scale=scaler.scale)
        scaler.update(update.finite)
        if update.finite:
            break
        assert_same(engine.get_weights(), before)
    assert scaler.skipped_updates > 0
    assert tried == [2.0 ** (70 - skipped) for skipped in range(scaler.skipped_updates + 1)]
    _, expected = step(undisturbed, [batch(), batch(seed=2)])
    assert update.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    for name, array in undisturbed.get_weights().items():
        np.testing.assert_allclose(engine.get_weights()[name], array, atol=1e-5)


def test_a_hopeless_run_stops_at_the_floor(make_engine):
    engine = make_engine()
    broken = engine.get_weights()
    broken["classifier.bias"][:] = math.nan
    engine.set_weights(broken)
    scaler = LossScaler(4.0)
    with pytest.raises(RunError, match="smallest loss scale"):
        for _ in range(10):
            scaler.update(step(engine, [batch()], loss_scale=scaler.scale)[1].finite)
    assert scaler.scale == 1.0


def test_another_precision_in_the_same_process():
    half_engine()
    for dtype in ("bfloat16", "float32"):
        with pytest.raises(InputError, match="it is float16"):
            half_engine(dtype=dtype)


def test_guard_on_a_block_under_amp():
    """AMP casts what enters Dense; the constants behind it are then float16, those behind LayerNorm are not."""

    class Block(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = mx.gluon.nn.Dense(4, in_units=4)
            self.norm = mx.gluon.nn.LayerNorm(epsilon=1e-12, in_channels=4)

        def hybrid_forward(self, F, x, mask):
            scores = self.dense(x) * -1e18 + 1e-12
            return self.norm(scores) * -1e18 + 1e-12

    block = Block()
    block.initialize()
    block.hybridize()
    changes = guard_block(block, "float16", mx.nd.ones((2, 4)), mx.nd.ones((2, 4)))
    assert [(change.old, change.new) for change in changes] == [(-1e18, -65504.0), (1e-12, 2.0**-24)]


def test_the_engine_has_nothing_to_guard():
    assert half_engine().range_changes == []
