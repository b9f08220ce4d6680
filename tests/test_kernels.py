"""The CPU kernels against PyTorch's own operators in float64, and the whole model with and without them.

Dropout is compared to the element: kernels.cpp and dropout_factors draw the same numbers from a key.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_engines import WITH_DROPOUT, make_engine, make_rows, step  # noqa: E402

from bert.engines import kernels, pytorch_model  # noqa: E402
from bert.engines.pytorch_model import (  # noqa: E402
    Dropout,
    Tokens,
    _Attention,
    _linear,
    _LongAttention,
    _PaddedAttention,
    _product,
    _transposed_product,
    dropout_factors,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not kernels.available(CPU), reason="the CPU kernels are not built: no C++ compiler when the package was installed"
)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NO_DROPOUT = kernels.DropoutKey(0, 0, 0, 1.0)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # a rounding or two to the type


def some(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(ours, theirs, dtype=torch.float32, scale=1.0):
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_keeps_the_right_share_and_no_place_is_special(probability):
    factors = dropout_factors((400, 1001), Dropout(0).key(probability))
    kept = (factors != 0).double()
    deviation = math.sqrt(probability * (1 - probability))
    assert kept.mean().item() == pytest.approx(1 - probability, abs=5 * deviation / math.sqrt(kept.numel()))
    assert factors.max().item() == pytest.approx(1 / (1 - probability), rel=1e-4)
    assert kept.mean(0).std().item() == pytest.approx(deviation / math.sqrt(400), rel=0.15)  # as of independent columns
    assert kept.mean(1).std().item() == pytest.approx(deviation / math.sqrt(1001), rel=0.15)
    for shift in (1, 2, 7):  # neighbours, in a row and from row to row, know nothing of each other
        for left, right in ((kept[:, shift:], kept[:, :-shift]), (kept[shift:], kept[:-shift])):
            both = ((1 - left) * (1 - right)).mean().item()
            assert both == pytest.approx(probability**2, abs=5 * probability / math.sqrt(left.numel()))


def test_each_key_drops_other_elements():
    dropout = Dropout(3)
    first, second = (dropout_factors((100, 100), dropout.key(0.5)) for _ in range(2))
    assert (first == second).float().mean().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (3, 8), (70, 33), (33, 384)])
@pytest.mark.parametrize("dropped", [False, True])
def test_add_norm(dtype, shape, dropped, threads):
    key = Dropout(1).key(0.3) if dropped else NO_DROPOUT
    x, y = some(*shape), some(*shape, dtype=dtype, seed=1)
    weight, bias = some(shape[1], seed=2), some(shape[1], seed=3)
    out, low, mean, rstd = kernels.add_norm(x.float(), y, weight.float(), bias.float(), 1e-5, key)
    factors = dropout_factors(shape, key).double() if dropped else 1.0
    leaves = [tensor.double().requires_grad_() for tensor in (x, y, weight, bias)]
    expected = F.layer_norm(leaves[0] + leaves[1] * factors, shape[1:], leaves[2], leaves[3], 1e-5)
    close(out, expected, scale=10)
    close(low, expected, dtype, scale=10)
    assert torch.equal(low, out.to(dtype))
    grad, grad_low = some(*shape, seed=4), some(*shape, dtype=dtype, seed=5)
    expected.backward(grad + grad_low.double())
    ours = kernels.add_norm_backward(grad.float(), grad_low, x.float(), y, weight.float(), key, mean, rstd)
    for number, (mine, leaf) in enumerate(zip(ours, leaves)):
        close(mine, leaf.grad, dtype if number == 1 else torch.float32, scale=50)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (70, 33)])
def test_dropout(dtype, shape, threads):
    key = Dropout(1).key(0.3)
    x, factors = some(*shape, dtype=torch.float32), dropout_factors(shape, key)
    out, low = kernels.dropout(x, dtype, key)
    assert torch.equal(out, x * factors)
    assert torch.equal(low, out.to(dtype))
    grad, grad_low = some(*shape, dtype=torch.float32, seed=1), some(*shape, dtype=dtype, seed=2)
    torch.testing.assert_close(kernels.dropout_backward(grad, grad_low, key), (grad + grad_low.float()) * factors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (300, 64)])
def test_gelu_backward(dtype, shape, threads):
    x, grad = (some(*shape) * 3).to(dtype), some(*shape, dtype=dtype, seed=1)
    leaf = x.double().requires_grad_()
    F.gelu(leaf).backward(grad.double())
    ours, sums = kernels.gelu_backward(grad.clone(), x)
    close(ours, leaf.grad, dtype, scale=2)
    close(sums, leaf.grad.sum(0), dtype, scale=4 * math.sqrt(shape[0]))


def test_gelu_backward_far_out():
    x = torch.tensor([[0.0, -0.0, 1e-30, -5.0, 5.0, -40.0, 40.0, 1e30, -3e38, math.inf, -math.inf, math.nan]])
    ours, _ = kernels.gelu_backward(torch.ones_like(x), x)
    leaf = x[0, :9].double().requires_grad_()
    F.gelu(leaf).sum().backward()
    close(ours[0, :9], leaf.grad)
    assert ours[0, -1].isnan()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (3, 8), (70, 33), (33, 384)])
def test_column_sums(dtype, shape, threads):
    x = some(*shape, dtype=dtype)
    close(kernels.column_sums(x), x.double().sum(0), scale=30)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (16, 128), (17, 130), (200, 7), (64, 64)])
def test_transposed(dtype, shape, threads):
    x = some(*shape, dtype=dtype)
    assert torch.equal(kernels.transposed(x), x.t())
    for columns in (3, 40):
        other = some(shape[0], columns, dtype=dtype, seed=1)
        close(_transposed_product(x, other), x.double().t() @ other.double(), dtype, scale=20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_pytorchs(dtype):
    """Every class of float32: subnormal there or here, ties, the largest, infinite, NaN."""
    bits = torch.randint(-(2**31), 2**31, (1, 200_000), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    ties = torch.arange(0, 2**16, dtype=torch.int32).view(1, -1) << 16 | 0x8000
    special = torch.tensor([[0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e-8, 2.0**-24, 2.0**-25, 3.4e38, math.inf, math.nan]])
    x = torch.cat([bits.view(torch.float32), ties.view(torch.float32), special], dim=1)
    _, low = kernels.dropout(x, dtype, NO_DROPOUT)
    expected = x.to(dtype)
    assert torch.equal(low.isnan(), expected.isnan())
    assert torch.equal(low.nan_to_num(1.5, 2.5, 3.5), expected.nan_to_num(1.5, 2.5, 3.5))
    zero = torch.zeros_like(x)
    back = kernels.dropout_backward(zero, expected, NO_DROPOUT)  # reads what was rounded
    assert torch.equal(back.nan_to_num(1.5, 2.5, 3.5), expected.float().nan_to_num(1.5, 2.5, 3.5))


def exact_attention(parts, lengths, heads, factors):
    """Row by row in float64: softmax(q k^T / sqrt(size)) * factors, times v; factors (queries, heads, longest)."""
    out, begin = [], 0
    for number, length in enumerate(lengths):
        tokens = slice(begin, begin + length)
        queries = tokens if len(parts[0]) == len(parts[1]) else slice(number, number + 1)
        q, k, v = (part[at].unflatten(-1, (heads, -1)).transpose(0, 1) for part, at in zip(parts, (queries, tokens, tokens)))
        shares = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1)
        kept = shares if factors is None else shares * factors[queries, :, :length].transpose(0, 1)
        out.append((kept @ v).transpose(0, 1).flatten(1))
        begin += length
    return torch.cat(out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["fused", "alone", "by products", "plain", "plain, alone"])
@pytest.mark.parametrize("probability", [0.0, 0.25])
@pytest.mark.parametrize("lengths", [[1], [9, 4, 1], [16, 16], [33, 50, 7], [70, 2]])
@pytest.mark.parametrize("size", [12, 32, 64])
def test_attention(dtype, how, probability, lengths, size, threads):
    heads, key, rows = 2, Dropout(5).key(probability), len(lengths)
    hidden, alone = heads * size, how.endswith("alone")
    if how == "by products" and key is None:
        pytest.skip("used in training only, with dropout")
    packed = some(sum(lengths), (2 if alone else 3) * hidden, dtype=dtype)
    inputs = [some(rows, hidden, dtype=dtype, seed=1), packed] if alone else [packed]
    offsets, longest = torch.tensor([0, *lengths]).cumsum(0), max(lengths)

    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    q = leaves[0] if alone else None
    if how.startswith("plain"):
        tokens = Tokens(*[torch.zeros(sum(lengths), dtype=torch.int64)] * 3, offsets, longest)
        ours = _PaddedAttention(tokens, dtype)(q, leaves[-1], tokens, heads, key)
    elif how == "by products":
        ours = _LongAttention.apply(leaves[-1], offsets, longest, heads, key)
    else:
        ours = _Attention.apply(q, leaves[-1], offsets, longest, heads, key)

    exact = [tensor.double().requires_grad_() for tensor in inputs]
    parts = (exact[0], *exact[1].chunk(2, -1)) if alone else exact[0].chunk(3, -1)
    factors = None
    if key is not None:  # drawn for whole vectors of 32
        factors = dropout_factors((len(parts[0]), heads, -(-longest // 32) * 32), key).double()
    expected = exact_attention(parts, lengths, heads, factors)
    close(ours, expected, dtype, scale=6)
    grad = some(*ours.shape, dtype=dtype, seed=2)
    for mine, theirs in zip(
        torch.autograd.grad(ours, leaves, grad), torch.autograd.grad(expected, exact, grad.double()), strict=True
    ):
        close(mine, theirs, dtype, scale=12)


@pytest.mark.parametrize("scores", [[-1e30, 1e30, 0.0], [math.inf, 0.0, 1.0], [math.nan, 0.0, 1.0], [-300.0, 0.0, -90.0]])
def test_attention_with_extreme_scores_is_pytorchs(scores):
    """One query against three keys whose values tell how much of each was taken."""
    q, k, v = torch.ones(1, 3), torch.diag(torch.tensor(scores)) * math.sqrt(3), torch.eye(3)
    ours = kernels.attention(q, k, v, kernels.Heads(q, k, torch.tensor([0, 3]), 3, 1), NO_DROPOUT)
    sums = (q @ k.t()) / math.sqrt(3)  # an infinite number times 0 is none, in both
    torch.testing.assert_close(ours, torch.softmax(sums, -1) @ v, equal_nan=True, rtol=1e-6, atol=1e-30)


def test_scores_that_float16_could_not_hold():
    """Before they are scaled: 64 products of 1225 are beyond 65504."""
    packed = torch.full((4, 3 * 64), 35.0, dtype=torch.float16)
    out = _Attention.apply(None, packed, torch.tensor([0, 4]), 4, 1, Dropout(0).key(0.1))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("bias_corrected", [True, False])
def test_adamw_is_pytorchs(decay, bias_corrected, threads):
    """Over updates in which rows of a table appear one by one, some of them again and some never."""
    table, vector = some(40, 6).float(), some(20_000, seed=1).float()
    ours = [[tensor.clone(), torch.zeros_like(tensor), torch.zeros_like(tensor)] for tensor in (table, vector)]
    low = vector.to(torch.bfloat16)
    parameters = [tensor.clone().requires_grad_() for tensor in (table, vector)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=decay, eps=1e-6)
    start = 0 if bias_corrected else 2**20
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.tensor(float(start)),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    rows_of_table = kernels.TableAdamW(*ours[0])
    for update in range(1, 9):
        rows = torch.tensor([update, 2 * update, 30])
        gradient = some(3, 6, seed=update).float()
        dense = torch.zeros(40, 6).index_copy_(0, rows, gradient)
        other = some(20_000, seed=10 + update).float()
        parameters[0].grad, parameters[1].grad = dense / 4, other / 4
        optimizer.step()
        step = start + update
        adam = kernels.Adam(
            scale=0.25,
            decay=1 - 1e-2 * decay,
            beta2=0.999,
            rest1=1 - 0.9,
            rest2=1 - 0.999,
            step_size=1e-2 / (1 - 0.9**step),
            correction=(1 - 0.999**step) ** -0.5,
            epsilon=1e-6,
        )
        rows_of_table.update(adam, rows, gradient)
        kernels.adamw(adam, ours[1][0], other, *ours[1][1:], low)
    rows_of_table.wake_all()
    for mine, parameter in zip(ours, parameters):
        torch.testing.assert_close(mine[0], parameter.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mine[1], optimizer.state[parameter]["exp_avg"], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(mine[2], optimizer.state[parameter]["exp_avg_sq"], rtol=1e-5, atol=1e-8)
    assert torch.equal(low, ours[1][0].to(torch.bfloat16))


def adam_of(update, decay=0.99):
    return kernels.Adam(
        scale=0.5, decay=decay, beta2=0.999, rest1=0.1, rest2=0.001, step_size=0.01 / update, correction=1.5, epsilon=1e-6
    )


@pytest.mark.parametrize("decay", [0.99, 1.0])
@pytest.mark.parametrize("longest_sleep", [3, 1024])
def test_rows_that_slept_are_those_that_did_not(decay, longest_sleep, monkeypatch):
    """Bit for bit, whichever rows are woken when, and however often the list of updates is full."""
    monkeypatch.setattr(kernels.TableAdamW, "LONGEST_SLEEP", longest_sleep)
    weight = some(50, 9).float()
    sleepy, awake = ([weight.clone(), torch.zeros_like(weight), torch.zeros_like(weight)] for _ in range(2))
    tables = [kernels.TableAdamW(*tensors) for tensors in (sleepy, awake)]
    generator = torch.Generator().manual_seed(0)
    for update in range(1, 21):
        rows = torch.randperm(30, generator=generator)[:4]  # 20 rows never have a gradient
        for table in tables:
            table.wake(rows.sort().values)
            table.update(adam_of(update, decay), rows, some(4, 9, seed=update).float())
        tables[1].wake_all()
        assert torch.equal(sleepy[0][rows], awake[0][rows])
    assert not torch.equal(sleepy[0], awake[0])  # some do sleep
    for table in tables:
        table.wake_all()
        table.wake_all()  # nothing is done twice
    assert all(map(torch.equal, sleepy, awake))


def test_a_finished_engine_has_nothing_left_to_do():
    engine = make_engine(architecture=WITH_DROPOUT)
    for update in range(3):
        step(engine, [make_rows([9, 5], seed=update)])
    engine.finish()
    finished = engine.weights[pytorch_model.WORD_EMBEDDINGS].clone()
    assert np.array_equal(engine.get_weights()[pytorch_model.WORD_EMBEDDINGS], finished.detach().numpy())


@pytest.mark.parametrize("rows", [[0, 50], [-1, 3]])
def test_a_row_outside_the_table_is_an_error(rows):
    table = kernels.TableAdamW(some(50, 9).float(), torch.zeros(50, 9), torch.zeros(50, 9))
    table.update(adam_of(1), torch.tensor([3]), some(1, 9).float())
    with pytest.raises(IndexError, match="table of 50"):
        table.wake(torch.tensor(rows))


def test_a_pytorch_without_onednn_multiplies_nothing_in_16_bits(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)  # nor has it the operators
    assert not pytorch_model._multiplies.__wrapped__(torch.bfloat16)


@pytest.mark.parametrize("low_type", [torch.float16, torch.bfloat16])
def test_a_gradient_in_16_bits_is_the_same_one_in_float32(low_type):
    gradient = some(20_000, seed=3).to(low_type)
    results = []
    for each in (gradient, gradient.float()):
        weight = some(20_000).float()
        tensors = [weight, torch.zeros_like(weight), torch.zeros_like(weight), weight.to(low_type)]
        kernels.adamw(adam_of(1), weight, each, *tensors[1:])
        results.append(tensors)
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 1000, 100_003])
def test_sum_of_squares(dtype, size):
    """At most 1024 numbers are added in float32, then float64 takes over: so many roundings of half a unit each."""
    x = some(size).to(dtype)
    assert kernels.sum_squares(x) == pytest.approx(float(x.double().square().sum()), rel=1025 * 2**-24)


def test_sum_of_squares_is_not_finite_where_a_number_is_not():
    x = some(20_000).to(torch.float16)
    for bad in (math.inf, math.nan):
        x[12_345] = bad
        assert not math.isfinite(kernels.sum_squares(x))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("lengths", [[9, 5, 7, 12], [8, 8], [1, 1]])
def test_the_whole_model_learns_the_same_without_kernels(dtype, lengths, monkeypatch):
    """Several updates with dropout on: the same elements are dropped, so only rounding differs."""
    fused = make_engine(architecture=WITH_DROPOUT, dtype=dtype)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "available", lambda device: False)
        plain = make_engine(architecture=WITH_DROPOUT, dtype=dtype)
    for update in range(3):
        batches = [make_rows(lengths, seed=2 * update), make_rows(lengths, seed=2 * update + 1)]
        loss, result = step(fused, batches)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "available", lambda device: False)
            plain_loss, plain_result = step(plain, batches)
        relative = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
        assert loss == pytest.approx(plain_loss, rel=relative)
        assert float(result.grad_norm) == pytest.approx(float(plain_result.grad_norm), rel=relative)
    assert np.array_equal(fused.dropout.random.random_raw(4), plain.dropout.random.random_raw(4))


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("with_kernels", [True, False])
def test_products_on_a_cpu_that_cannot_multiply_the_type(dtype, with_kernels, monkeypatch):
    """Sums in float32 rounded once; what the type cannot hold is infinite."""
    monkeypatch.setattr(pytorch_model, "_multiplies", lambda dtype: False)
    if not with_kernels:
        monkeypatch.setattr(kernels, "available", lambda device: False)
    a, b, bias = (some(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate([(40, 24), (24, 40), (40,)]))
    results = [
        (_product(a, b), a.double() @ b.double()),
        (_product(a.view(4, 10, 24), b.view(4, 24, 10)), a.double().view(4, 10, 24) @ b.double().view(4, 24, 10)),
        (_linear(a, b.t(), bias), a.double() @ b.double() + bias.double()),
        (_transposed_product(a, b.t()), a.double().t() @ b.double().t()),
        (_transposed_product(b.t()[:, :9], a), b.double()[:9] @ a.double()),
    ]
    for result, expected in results:
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=torch.finfo(dtype).eps / 2, atol=1e-5)
    large = torch.full((2, 2), torch.finfo(dtype).max, dtype=dtype)
    assert torch.isinf(_product(large, large)).all()


@pytest.mark.skipif(not pytorch_model._multiplies(torch.bfloat16), reason="this CPU cannot multiply bfloat16")
def test_the_whole_model_learns_the_same_where_the_cpu_cannot_multiply_the_type(monkeypatch):
    native, rounded = (make_engine(architecture=WITH_DROPOUT, dtype="bfloat16") for _ in range(2))
    for update in range(3):
        batch = make_rows([9, 5, 7, 12], seed=update)
        loss, result = step(native, [batch])
        with monkeypatch.context() as patch:
            patch.setattr(pytorch_model, "_multiplies", lambda dtype: False)
            other_loss, other_result = step(rounded, [batch])
            logits = rounded.predict(batch)
        assert loss == pytest.approx(other_loss, rel=4e-2)
        assert float(result.grad_norm) == pytest.approx(float(other_result.grad_norm), rel=4e-2)
        np.testing.assert_allclose(native.predict(batch), logits, atol=4e-2)


def test_results_do_not_depend_on_the_number_of_threads():
    batch = make_rows([40] * 8)
    before, results = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            key = Dropout(0).key(0.1)
            x, y = some(640, 96).float(), some(640, 96, seed=1).bfloat16()
            out = kernels.add_norm(x, y, torch.ones(96), torch.zeros(96), 1e-5, key)
            results.append([*out, *kernels.add_norm_backward(x, y, x.clone(), y.clone(), torch.ones(96), key, *out[2:])])
    finally:
        torch.set_num_threads(before)
    assert len(batch) == 8
    assert all(torch.equal(left, right) for left, right in zip(*results))


def test_a_library_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(kernels, "sha256", lambda data: type("Digest", (), {"hexdigest": lambda self: "0" * 64})())
    kernels._load.cache_clear()
    try:
        assert not kernels.available(CPU) and "another version" in kernels.why_not()
    finally:
        monkeypatch.undo()
        kernels._load.cache_clear()
    assert kernels.available(CPU)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cpu_without_low_precision_units_trains_all_the_same(dtype):
    """As on a processor with AVX2 only, where oneDNN multiplies no 16-bit numbers."""
    script = f"""
from test_engines import WITH_DROPOUT, make_engine, make_rows, step
engine = make_engine(architecture=WITH_DROPOUT, dtype="{dtype}")
print(*(step(engine, [make_rows([9, 5])])[0] for _ in range(3)), engine.predict(make_rows([9, 5])).sum())
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    here = Path(__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent)])
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert all(math.isfinite(float(number)) for number in result.stdout.split())
