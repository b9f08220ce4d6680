"""The range guard: the truncation rule alone, and on MXNet graphs and blocks."""

import math

import numpy as np
import pytest

from bert.engines import gluon
from bert.numerics import Change, guard_block, guard_range, node_types, representable

usable = gluon.capabilities(None)["float32"]
needs_mxnet = pytest.mark.skipif(not usable.available, reason=usable.note)


@pytest.mark.parametrize(
    "value, dtype, expected",
    [
        (-1e18, "float16", -65504.0),
        (65504.5, "float16", 65504.0),
        (1e-12, "float16", 2.0**-24),
        (-1e-12, "float16", -(2.0**-24)),
        (2.0**-25, "float16", 2.0**-24),  # a tie would round to zero
        (3.1e-8, "float16", 3.1e-8),  # rounds to 2**-24 by itself
        (1e-5, "float16", 1e-5),
        (0.0, "float16", 0.0),
        (-1e18, "bfloat16", -1e18),
        (1e-12, "bfloat16", 1e-12),
        (3.4e38, "bfloat16", 3.3895313892515355e38),
        (1e-41, "bfloat16", 2.0**-133),
    ],
)
def test_representable(value, dtype, expected):
    assert representable(value, dtype) == expected


def test_representable_agrees_with_numpy_on_what_float16_holds():
    for value in np.logspace(-12, 12, 500):
        with np.errstate(over="ignore"):
            kept = representable(value, "float16") == value
            assert kept == (0 < np.float16(value) <= 65504 and value <= 65504)
        assert 0 < np.float16(representable(value, "float16")) <= 65504


def test_what_is_not_finite_is_meant():
    assert representable(-math.inf, "float16") == -math.inf
    assert math.isnan(representable(math.nan, "float16"))


@needs_mxnet
def test_only_constants_of_low_precision_operators_change():
    import mxnet as mx

    x = mx.sym.var("x")
    low = mx.sym.amp_cast(x, dtype="float16")
    masked = mx.sym._internal._mul_scalar(low, scalar=-1e18, name="low_mask")
    clipped = mx.sym.clip(masked, a_min=-1e9, a_max=1e-12, name="low_clip")
    normed = mx.sym.L2Normalization(clipped, eps=1e-12, name="low_norm")
    wide = mx.sym._internal._mul_scalar(mx.sym.amp_cast(normed, dtype="float32"), scalar=-1e18, name="wide_mask")
    wide = mx.sym.L2Normalization(wide, eps=1e-12, name="wide_norm")

    guarded, changes = guard_range(wide, "float16", {})
    assert changes == [
        Change("low_mask", "scalar", -1e18, -65504.0),
        Change("low_clip", "a_min", -1e9, -65504.0),
        Change("low_clip", "a_max", 1e-12, 2.0**-24),
        Change("low_norm", "eps", 1e-12, 2.0**-24),
    ]
    attributes = guarded.attr_dict()
    assert float(attributes["low_mask"]["scalar"]) == -65504
    assert float(attributes["wide_mask"]["scalar"]) == -1e18
    assert float(attributes["wide_norm"]["eps"]) == 1e-12
    # The casts survive: without them nothing would run in float16.
    assert [t for _, _, t in node_types(guarded, {})] == [t for _, _, t in node_types(wide, {})]
    assert guard_range(guarded, "float16", {})[1] == []


@needs_mxnet
def test_a_graph_in_float32_is_returned_as_it_is():
    import mxnet as mx

    symbol = mx.sym.var("x") * -1e18 + 1e-12
    assert guard_range(symbol, "float16", {}) == (symbol, [])


@needs_mxnet
def test_any_block_computes_finite_numbers_after_the_guard():
    import mxnet as mx

    class Masked(mx.gluon.HybridBlock):
        """A user's block: masks in float16, where -1e18 is -inf and 0 * -inf is NaN, and divides by a float16 epsilon."""

        def hybrid_forward(self, F, scores, mask):
            scores = F.cast(scores, "float16") + F.cast(1 - mask, "float16") * -1e18
            return F.softmax(F.cast(scores, "float32")) / F.cast(F.cast(mask, "float16") * 0 + 1e-12, "float32")

    block = Masked()
    block.hybridize(static_alloc=True)
    scores, mask = mx.nd.array([[1.0, 2.0, 3.0]]), mx.nd.array([[1.0, 1.0, 0.0]])
    assert not np.isfinite(block(scores, mask).asnumpy()).any()
    changes = guard_block(block, "float16", scores, mask)
    assert sorted((change.old, change.new) for change in changes) == [(-1e18, -65504.0), (1e-12, 2.0**-24)]
    weights = block(scores, mask).asnumpy() * 2.0**-24
    assert weights[0] == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e), 0.0], abs=1e-6)


@needs_mxnet
def test_older_attention_cells_of_gluonnlp():
    import gluonnlp as nlp
    import mxnet as mx

    cell = nlp.model.DotProductAttentionCell(scaled=True)
    cell.hybridize()
    ones = mx.nd.ones((2, 3, 4), dtype="float16")
    (change,) = guard_block(cell, "float16", ones, ones, ones, mx.nd.ones((2, 3, 3), dtype="float16"))
    assert (change.attribute, change.old, change.new) == ("scalar", -1e18, -65504.0)


@needs_mxnet
def test_parameters_and_nested_inputs():
    import mxnet as mx

    class Block(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm = mx.gluon.nn.LayerNorm(epsilon=1e-12, in_channels=4)

        def hybrid_forward(self, F, pair, factor):
            return self.norm(pair[0] + pair[1]) * factor

    half = [mx.nd.ones((2, 4), dtype="float16")] * 2
    block = Block()
    block.cast("float16")
    block.hybridize()
    (change,) = guard_block(block, "float16", half, mx.nd.ones((2, 4), dtype="float16"))
    assert (change.attribute, change.old, change.new) == ("eps", 1e-12, 2.0**-24)
