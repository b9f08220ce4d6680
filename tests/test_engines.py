"""The contract of bert.engines.Engine, run over every installed engine, and parity with Hugging Face transformers.

MXNet fixes its precision once per process, so only float32 runs on it here.
"""

import dataclasses
import math

import numpy as np
import pytest

from bert import InputError
from bert.architecture import Architecture, parameter_shapes
from bert.engines import ENGINES, Batch, installed, load_engine
from bert.weights import from_canonical

ENGINE_NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"{framework} is not installed"))
    for name, (_, framework, _) in ENGINES.items()
]
LOW = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # spacing of the numbers next to 1

TINY = Architecture(
    model_type="bert",
    vocab_size=60,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=40,
    type_vocab_size=2,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    classifier_dropout=0.0,
)
WITH_DROPOUT = dataclasses.replace(TINY, hidden_dropout=0.2, attention_dropout=0.2, classifier_dropout=0.2)


def make_weights(architecture=TINY, num_labels=3, seed=0, scale=0.1):
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in parameter_shapes(architecture, num_labels).items():
        center = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        weights[name] = (center + random.normal(0, scale, shape)).astype(np.float32)
    return weights


def make_engine(name="pytorch", architecture=TINY, num_labels=3, weights=None, **options):
    settings = {"dtype": "float32", "gpu": None, "seed": 7, "optimizer": "adamw", "epsilon": 1e-6, "weight_decay": 0.01}
    engine = load_engine(name).create(architecture, num_labels, **{**settings, **options})
    engine.set_weights(make_weights(architecture, num_labels) if weights is None else weights)
    return engine


def make_rows(lengths, seed=0, num_labels=3, width=None):
    random = np.random.default_rng(seed)
    width = width or max(lengths)
    rows = len(lengths)
    input_ids, token_type_ids = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.int32)
    for row, length in enumerate(lengths):
        input_ids[row, :length] = random.integers(5, 60, length)
        token_type_ids[row, length // 2 : length] = 1
    labels = random.normal(2, 1, rows).astype(np.float32) if num_labels == 1 else random.integers(0, num_labels, rows)
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        valid_length=np.array(lengths, np.int32),
        label_ids=labels.astype(np.float32 if num_labels == 1 else np.int32),
        index=np.arange(rows),
    )


def part(batch, rows):
    return Batch(*(getattr(batch, field.name)[rows] for field in dataclasses.fields(batch)))


def step(engine, batches, *, rate=1e-3, max_grad_norm=1.0, loss_scale=1.0):
    """One update from micro-batches, each weighted by its share of the rows; (mean loss, Update)."""
    rows = sum(map(len, batches))
    loss = 0.0
    for batch in batches:
        weight = len(batch) / rows
        loss += weight * float(engine.forward_backward(batch, loss_scale=loss_scale, weight=weight))
    return loss, engine.apply_gradients(learning_rate=rate, max_grad_norm=max_grad_norm, loss_scale=loss_scale)


def changes(engine, before):
    return np.concatenate([(after - before[name]).ravel() for name, after in engine.get_weights().items()])


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.fixture(params=["kernels", "plain"], autouse=True)
def operators(request, monkeypatch):
    """Everything here holds with the CPU kernels, and with PyTorch's own operators where those could not be built."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("name") == "mxnet":
        if request.param == "plain":
            pytest.skip("the kernels are the PyTorch engine's")
    elif installed("pytorch"):
        import torch

        from bert.engines import kernels

        if request.param == "plain":
            monkeypatch.setattr(kernels, "available", lambda device: False)
        elif not kernels.available(torch.device("cpu")):
            pytest.skip("the CPU kernels are not built: no C++ compiler when the package was installed")


# --- the contract ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("scale", [2.0**4, 2.0**10, 2.0**16])
def test_loss_scale_does_not_change_the_update(name, scale):
    batch = make_rows([9, 5, 7, 12])
    plain, scaled = make_engine(name), make_engine(name)
    for _ in range(3):
        loss, update = step(plain, [batch], max_grad_norm=0.5)
        scaled_loss, scaled_update = step(scaled, [batch], max_grad_norm=0.5, loss_scale=scale)
        assert scaled_loss == pytest.approx(loss, rel=1e-5)
        assert float(scaled_update.grad_norm) == pytest.approx(float(update.grad_norm), rel=1e-4)
    for tensor, values in plain.get_weights().items():
        np.testing.assert_allclose(scaled.get_weights()[tensor], values, atol=2e-5, err_msg=tensor)


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_clip_sees_the_unscaled_averaged_norm(name, scale):
    """With a huge epsilon Adam's first update is proportional to the gradient, so its length shows the clip."""
    batch, before = make_rows([9, 5, 7, 12]), make_weights(scale=0.5)
    options = {"weights": before, "epsilon": 1e3, "weight_decay": 0.0}
    free, clipped, halves = (make_engine(name, **options) for _ in range(3))
    _, update = step(free, [batch], rate=1e3, max_grad_norm=0.0, loss_scale=scale)
    norm = float(update.grad_norm)
    _, clipped_update = step(clipped, [batch], rate=1e3, max_grad_norm=norm / 3, loss_scale=scale)
    parts = [part(batch, slice(0, 1)), part(batch, slice(1, 4))]
    _, halves_update = step(halves, parts, rate=1e3, max_grad_norm=norm / 3, loss_scale=scale)
    assert float(clipped_update.grad_norm) == pytest.approx(norm, rel=1e-4)  # reported before clipping
    assert float(halves_update.grad_norm) == pytest.approx(norm, rel=1e-4)
    assert np.linalg.norm(changes(free, before)) == pytest.approx(norm, rel=2e-2)  # epsilon dominates, not alone
    for engine in (clipped, halves):
        ratio = np.linalg.norm(changes(engine, before)) / np.linalg.norm(changes(free, before))
        assert ratio == pytest.approx(1 / 3, rel=2e-2)


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("scale", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_changes_nothing(name, scale):
    batch = make_rows([9, 5, 7, 12])
    engine, undisturbed = make_engine(name), make_engine(name)
    for one in (engine, undisturbed):
        step(one, [batch])
    weights, state = engine.get_weights(), engine.state_dict()
    _, update = step(engine, [batch], loss_scale=scale)
    assert not update.finite
    assert_same(engine.get_weights(), weights)
    assert_same(engine.state_dict(), state)
    for one in (engine, undisturbed):  # and the gradients are gone: the next update is an ordinary one
        _, update = step(one, [batch])
        assert update.finite
    assert_same(engine.get_weights(), undisturbed.get_weights())


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_one_bad_micro_batch_spoils_only_its_own_update(name):
    batch = make_rows([9, 5, 7, 12])
    engine = make_engine(name)
    before = engine.get_weights()
    engine.forward_backward(batch, loss_scale=math.inf, weight=0.5)
    engine.forward_backward(batch, loss_scale=1.0, weight=0.5)
    assert not engine.apply_gradients(learning_rate=1e-3, max_grad_norm=1.0, loss_scale=1.0).finite
    assert_same(engine.get_weights(), before)
    assert step(engine, [batch, batch])[1].finite
    assert np.abs(changes(engine, before)).max() > 0


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("sizes", [[3, 1], [1, 1, 2], [2, 2]])
def test_weighted_micro_batches_equal_one_batch(name, num_labels, sizes):
    batch = make_rows([9, 5, 7, 12], num_labels=num_labels)
    ends = np.cumsum(sizes)
    parts = [part(batch, slice(end - size, end)) for size, end in zip(sizes, ends)]
    whole, split = make_engine(name, num_labels=num_labels), make_engine(name, num_labels=num_labels)
    for _ in range(2):
        loss, update = step(whole, [batch])
        split_loss, split_update = step(split, parts)
        assert split_loss == pytest.approx(loss, rel=1e-5)
        assert float(split_update.grad_norm) == pytest.approx(float(update.grad_norm), rel=1e-4)
    for tensor, values in whole.get_weights().items():
        np.testing.assert_allclose(split.get_weights()[tensor], values, atol=2e-5, err_msg=tensor)


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_padding_does_not_change_logits(name):
    engine = make_engine(name)
    batch, wide = make_rows([9, 5, 1, 12]), make_rows([9, 5, 1, 12], width=30)
    logits = engine.predict(batch)
    assert logits.dtype == np.float32
    assert logits.shape == (4, 3)
    np.testing.assert_allclose(engine.predict(wide), logits, atol=1e-5)
    for row, length in enumerate(batch.valid_length):
        alone = part(batch, slice(row, row + 1))
        alone = dataclasses.replace(
            alone, input_ids=alone.input_ids[:, :length], token_type_ids=alone.token_type_ids[:, :length]
        )
        np.testing.assert_allclose(engine.predict(alone)[0], logits[row], atol=1e-5)


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_state_round_trips_to_an_identical_next_step(name):
    batch = make_rows([9, 5, 7, 12])
    straight = make_engine(name)
    for _ in range(2):
        step(straight, [batch])
    resumed = make_engine(name, weights=straight.get_weights(), seed=99)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(2):
        assert step(resumed, [batch])[0] == step(straight, [batch])[0]
    assert_same(resumed.get_weights(), straight.get_weights())
    assert_same(resumed.state_dict(), straight.state_dict())
    weights, state = straight.get_weights(), straight.state_dict()
    assert_same(straight.get_weights(copy=False), weights)
    assert_same(straight.state_dict(copy=False), state)
    step(straight, [batch])
    assert_same(weights, resumed.get_weights())  # copies stay as they were
    assert_same(state, resumed.state_dict())


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_weights_round_trip(name):
    weights = make_weights(seed=5)
    engine = make_engine(name, weights=weights)
    assert_same(engine.get_weights(), weights)
    assert all(values.dtype == np.float32 for values in engine.get_weights().values())


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_only_matrices_decay(name):
    engine = make_engine(name, weight_decay=0.01)
    before = engine.get_weights()
    engine.forward_backward(make_rows([9, 5]), loss_scale=1.0, weight=0.0)  # gradient 0: what is left is the decay
    engine.apply_gradients(learning_rate=0.1, max_grad_norm=1.0, loss_scale=1.0)
    for tensor, values in engine.get_weights().items():
        factor = 1.0 if tensor.endswith(".bias") or "LayerNorm" in tensor else 1 - 0.1 * 0.01
        np.testing.assert_allclose(values, before[tensor] * factor, rtol=1e-6, err_msg=tensor)


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize(("optimizer", "first"), [("adamw", 1.0), ("bertadam", 0.1 / math.sqrt(0.001))])
def test_size_of_the_first_update(name, optimizer, first):
    """Betas 0.9 and 0.999: the first update is the rate times 1 with bias correction, times 3.1623 without."""
    engine = make_engine(name, optimizer=optimizer, epsilon=1e-12, weight_decay=0.0)
    before = engine.get_weights()
    step(engine, [make_rows([9, 5])], rate=1e-3, max_grad_norm=0.0)
    change = np.abs(engine.get_weights()["classifier.bias"] - before["classifier.bias"])
    np.testing.assert_allclose(change, 1e-3 * first, rtol=1e-3)


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_dropout_is_on_in_training_only_and_follows_the_seed(name):
    batch = make_rows([12] * 8)
    first, second, other = (make_engine(name, WITH_DROPOUT, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.predict(batch), first.predict(batch))

    def losses(engine, seed):
        fresh = make_engine(name, WITH_DROPOUT, seed=seed)  # seeds are global to a framework: make and use at once
        return [float(fresh.forward_backward(batch, loss_scale=1.0, weight=1.0)) for _ in range(2)]

    once, again, different = losses(first, 3), losses(second, 3), losses(other, 4)
    assert once[0] != once[1]
    assert once == again
    assert once != different


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_set_weights_names_what_is_wrong(name):
    engine, weights = make_engine(name), make_weights()
    lost = "bert.encoder.layer.1.output.dense.weight"
    with pytest.raises(InputError, match=lost):
        engine.set_weights({key: value for key, value in weights.items() if key != lost})
    with pytest.raises(InputError, match="bert.decoder.weight"):
        engine.set_weights({**weights, "bert.decoder.weight": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match=r"classifier\.weight.*\(2, 32\).*\(3, 32\)"):
        engine.set_weights({**weights, "classifier.weight": np.zeros((2, 32), np.float32)})


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_regression_compares_rows_with_rows(name):
    """Outputs (N, 1) against scores (N,) must not broadcast to N x N: with all weights 0 the output is the bias."""
    weights = {key: np.zeros_like(value) for key, value in make_weights(num_labels=1).items()}
    weights["classifier.bias"] = np.array([2.0], np.float32)
    engine = make_engine(name, num_labels=1, weights=weights)
    batch = dataclasses.replace(make_rows([4, 4, 4], num_labels=1), label_ids=np.array([1, 2, 4.5], np.float32))
    loss = float(engine.forward_backward(batch, loss_scale=1.0, weight=1.0))
    assert loss == pytest.approx((1 + 0 + 2.5**2) / 3, rel=1e-6)


# --- parity with transformers ------------------------------------------------------------------------------------

FAMILIES = {
    "bert": TINY,
    "bert-no-dropout-gelu-tanh": dataclasses.replace(TINY, hidden_act="gelu_tanh", layer_norm_eps=1e-5),
    "roberta": dataclasses.replace(TINY, model_type="roberta", pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5),
    "distilbert": dataclasses.replace(TINY, model_type="distilbert", type_vocab_size=0),
}


def transformers_model(architecture, weights, num_labels, **options):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    a = architecture
    common = {
        "vocab_size": a.vocab_size,
        "max_position_embeddings": a.max_position_embeddings,
        "num_labels": num_labels,
        **options,
    }
    if a.model_type == "distilbert":
        config = transformers.DistilBertConfig(
            **common,
            dim=a.hidden_size,
            n_layers=a.num_hidden_layers,
            n_heads=a.num_attention_heads,
            hidden_dim=a.intermediate_size,
            dropout=a.hidden_dropout,
            attention_dropout=a.attention_dropout,
            seq_classif_dropout=a.classifier_dropout,
        )
        model = transformers.DistilBertForSequenceClassification(config)
    else:
        family = transformers.BertConfig if a.model_type == "bert" else transformers.RobertaConfig
        config = family(
            **common,
            hidden_size=a.hidden_size,
            num_hidden_layers=a.num_hidden_layers,
            num_attention_heads=a.num_attention_heads,
            intermediate_size=a.intermediate_size,
            type_vocab_size=a.type_vocab_size,
            hidden_act={"gelu_tanh": "gelu_new"}.get(a.hidden_act, a.hidden_act),
            layer_norm_eps=a.layer_norm_eps,
            pad_token_id=a.pad_token_id,
            hidden_dropout_prob=a.hidden_dropout,
            attention_probs_dropout_prob=a.attention_dropout,
            classifier_dropout=a.classifier_dropout,
        )
        kind = "Bert" if a.model_type == "bert" else "Roberta"
        model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    state = {from_canonical(name, a.model_type): torch.from_numpy(values) for name, values in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not [name for name in missing if "position_ids" not in name]
    assert not unexpected
    return model


def transformers_inputs(architecture, batch):
    import torch

    width = batch.input_ids.shape[1]
    mask = torch.arange(width) < torch.from_numpy(batch.valid_length)[:, None]
    input_ids = torch.from_numpy(batch.input_ids).long()
    # RoBERTa counts positions by comparing with its padding id, so padding must carry it
    inputs = {"input_ids": input_ids.masked_fill(~mask, architecture.pad_token_id), "attention_mask": mask.long()}
    if architecture.model_type == "bert":
        inputs["token_type_ids"] = torch.from_numpy(batch.token_type_ids).long()
    return inputs


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(name, family):
    torch = pytest.importorskip("torch")
    architecture = FAMILIES[family]
    if name == "mxnet" and family not in ("bert", "roberta"):
        pytest.skip("GluonNLP has no block for this model")
    weights = make_weights(architecture, scale=0.3)
    batch = make_rows([9, 5, 30, 1])
    if architecture.type_vocab_size < 2:
        batch = dataclasses.replace(batch, token_type_ids=np.zeros_like(batch.token_type_ids))
    model = transformers_model(architecture, weights, 3).eval()
    with torch.no_grad():
        expected = model(**transformers_inputs(architecture, batch)).logits.numpy()
    logits = make_engine(name, architecture, weights=weights).predict(batch)
    np.testing.assert_allclose(logits, expected, atol=1e-5 if name == "pytorch" else 1e-4)


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_ten_updates_equal_those_of_transformers_and_torch(name, num_labels):
    torch = pytest.importorskip("torch")
    weights = make_weights(num_labels=num_labels)
    engine = make_engine(name, num_labels=num_labels, weights=weights)
    model = transformers_model(TINY, weights, num_labels).train()
    model.config.problem_type = "regression" if num_labels == 1 else "single_label_classification"
    decayed = [p for key, p in model.named_parameters() if not key.endswith("bias") and "LayerNorm" not in key]
    others = [p for key, p in model.named_parameters() if key.endswith("bias") or "LayerNorm" in key]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, eps=1e-6)
    for number in range(10):
        batch = make_rows([9, 5, 7, 12], seed=number, num_labels=num_labels)
        labels = torch.from_numpy(batch.label_ids)
        output = model(**transformers_inputs(TINY, batch), labels=labels.float() if num_labels == 1 else labels.long())
        output.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss, update = step(engine, [batch])
        assert loss == pytest.approx(output.loss.item(), rel=1e-4)
        assert float(update.grad_norm) == pytest.approx(norm.item(), rel=1e-3)


# --- low precision, PyTorch --------------------------------------------------------------------------------------

needs_pytorch = pytest.mark.skipif(not installed("pytorch"), reason="torch is not installed")


@needs_pytorch
@pytest.mark.parametrize("scale", [2.0**4, 2.0**10, 2.0**16])
def test_a_float16_update_is_float32s_within_its_own_error(scale):
    """Gradients relative to their largest value, read off Adam's linear regime (a huge epsilon)."""
    before = make_weights(scale=0.3)
    options = {"weights": before, "epsilon": 1e3, "weight_decay": 0.0}
    batch = make_rows([9, 5, 7, 12])
    moved = {}
    for dtype in ("float32", "float16"):
        engine = make_engine(dtype=dtype, **options)
        _, update = step(engine, [batch], rate=1e3, max_grad_norm=1.0, loss_scale=scale if dtype == "float16" else 1.0)
        assert update.finite
        moved[dtype] = changes(engine, before)
    error = np.abs(moved["float16"] - moved["float32"]).max() / np.abs(moved["float32"]).max()
    assert error < 8 * LOW["float16"]
    assert error > 0  # float16 really ran


@needs_pytorch
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 0.02), ("bfloat16", 0.1)])
def test_low_precision_logits_stay_close_and_are_not_float32s(dtype, bound):
    batch, weights = make_rows([1, 5, 30, 12]), make_weights(scale=0.3)
    exact = make_engine(weights=weights).predict(batch)
    low = make_engine(weights=weights, dtype=dtype).predict(batch)
    assert low.dtype == np.float32
    assert 0 < np.abs(low - exact).max() < bound


@needs_pytorch
@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_training_keeps_everything_it_stores_in_float32(dtype):
    engine = make_engine(dtype=dtype)
    step(engine, [make_rows([9, 5])], loss_scale=1024.0 if dtype == "float16" else 1.0)
    assert {value.dtype for value in engine.get_weights().values()} == {np.dtype(np.float32)}
    kinds = {value.dtype for key, value in engine.state_dict().items() if not key.startswith("random/")}
    assert kinds == {np.dtype(np.float32)}


@needs_pytorch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("training", [False, True])
def test_padding_is_invisible_in_every_precision(dtype, training):
    """Whatever stands at the padded places, logits and gradients are the same to the bit."""
    batch = make_rows([1, 30])
    other = dataclasses.replace(batch, input_ids=batch.input_ids.copy())
    other.input_ids[0, 1:] = 17
    if training:
        moved = []
        for one in (batch, other):
            engine = make_engine(dtype=dtype)
            step(engine, [one])
            moved.append(engine.get_weights())
        assert_same(*moved)
    else:
        engine = make_engine(dtype=dtype)
        assert np.isfinite(engine.predict(batch)).all()
        np.testing.assert_array_equal(engine.predict(batch), engine.predict(other))


@needs_pytorch
def test_the_copies_that_round_a_batch_up_teach_nothing(monkeypatch):
    """Nor does the loss see them, whose row would have no label."""
    import bert.engines.pytorch

    batch = make_rows([9, 5, 7, 12])
    rounded, exact = make_engine(), make_engine()
    loss, result = step(rounded, [batch])
    with monkeypatch.context() as patch:
        patch.setattr(bert.engines.pytorch, "_round_up", lambda tokens: tokens)
        exact_loss, exact_result = step(exact, [batch])
        logits = exact.predict(batch)
    assert loss == pytest.approx(exact_loss, rel=1e-6)
    assert float(result.grad_norm) == pytest.approx(float(exact_result.grad_norm), rel=1e-5)
    np.testing.assert_allclose(rounded.predict(batch), logits, atol=1e-6)


@needs_pytorch
def test_rounding_up_costs_little_and_makes_few_numbers():
    from bert.engines.pytorch import _round_up

    rounded = {tokens: _round_up(tokens) for tokens in range(1, 10_000)}
    assert all(tokens <= many and many % 16 == 0 for tokens, many in rounded.items())
    assert all(many - tokens < max(16, tokens / 16) for tokens, many in rounded.items())
    assert len({many for tokens, many in rounded.items() if 1024 <= tokens < 2048}) <= 17


@needs_pytorch
@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_dropout_is_where_transformers_has_it(model_type, monkeypatch):
    """The probabilities in the order of the forward pass, each kind of dropout with one of its own."""
    import torch

    from bert.engines.pytorch_model import Dropout

    architecture = dataclasses.replace(
        FAMILIES[model_type], hidden_dropout=0.11, attention_dropout=0.22, classifier_dropout=0.33
    )
    ours, theirs = [], []
    key = Dropout.key
    monkeypatch.setattr(Dropout, "key", lambda self, p: key(self, p) and (ours.append(p) or key(self, p)))
    engine = make_engine(architecture=architecture)
    batch = make_rows([9, 5])
    if architecture.type_vocab_size < 2:
        batch = dataclasses.replace(batch, token_type_ids=np.zeros_like(batch.token_type_ids))
    engine.forward_backward(batch, loss_scale=1.0, weight=1.0)
    model = transformers_model(architecture, make_weights(architecture), 3, attn_implementation="eager").train()
    functional = torch.nn.functional.dropout

    def record(x, p=0.5, training=True, inplace=False):
        if training and p:
            theirs.append(p)
        return functional(x, p, training, inplace)

    monkeypatch.setattr(torch.nn.functional, "dropout", record)
    model(**transformers_inputs(architecture, batch))
    assert ours == theirs
    assert {0.11, 0.22, 0.33} == set(theirs)


@needs_pytorch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_checkpointed_activations_change_nothing(dtype):
    """With dropout: what is computed again drops the same elements, to the bit."""
    kept, again = (
        make_engine(architecture=WITH_DROPOUT, dtype=dtype, checkpoint_activations=flag) for flag in (False, True)
    )
    for number in range(3):
        batches = [make_rows([9, 5, 7, 12], seed=number), make_rows([4, 8], seed=10 + number)]
        assert step(kept, batches)[0] == step(again, batches)[0]
    assert_same(kept.get_weights(), again.get_weights())
    assert_same(kept.state_dict(), again.state_dict())


@pytest.mark.skipif(not installed("mxnet"), reason="mxnet is not installed")
def test_checkpointed_activations_are_refused_on_mxnet():
    with pytest.raises(InputError, match="--checkpoint_activations is the PyTorch engine's"):
        make_engine("mxnet", checkpoint_activations=True)


@needs_pytorch
def test_capabilities_of_this_machine():
    capabilities = load_engine("pytorch").capabilities(None)
    assert all(capabilities[dtype].available for dtype in ("float32", "float16", "bfloat16"))
    far = load_engine("pytorch").capabilities(99)
    assert not any(capability.available for capability in far.values())
    assert all(capability.note for capability in far.values())


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_layer_norm_epsilon_is_the_models_own(name):
    """A nearly constant hidden row (variance about 1e-8) shows which epsilon is used."""
    weights = {
        key: value * 1e-4 if "embeddings" in key and "LayerNorm" not in key else value
        for key, value in make_weights().items()
    }
    batch = make_rows([9, 5])
    small = make_engine(name, weights=weights).predict(batch)
    large = make_engine(name, dataclasses.replace(TINY, layer_norm_eps=1e-5), weights=weights).predict(batch)
    assert np.abs(small - large).max() > 1e-3


@needs_pytorch
def test_stored_model_gives_stored_logits():
    """Guards against a reordered weight: the numbers come from transformers 5.24 on the same weights."""
    logits = make_engine(weights=make_weights(scale=0.3)).predict(make_rows([9, 5]))
    np.testing.assert_allclose(logits, STORED_LOGITS, atol=1e-4)


STORED_LOGITS = [[0.44729, -0.65989, -2.15622], [0.10507, -0.85789, -1.26813]]
