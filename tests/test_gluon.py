"""The MXNet engine in float32 on the CPU, its refusals, and, in processes of their own, float16 and bfloat16 under AMP."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert import InputError
from bert.architecture import has_weight_decay
from bert.engines import gluon

usable = gluon.capabilities(None)["float32"]
if not usable.available:
    pytest.skip(usable.note, allow_module_level=True)

import mxnet as mx
from gluon_cases import assert_same, batch, engine, rows, step, tiny, weights
from test_engines import transformers_model

from bert.engines import gluon_engine


@pytest.mark.parametrize("checks", ["amp_float16.py", "amp_bfloat16.py"])
def test_under_amp(checks):
    """amp.init is once per process."""
    path = Path(__file__).with_name(checks)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", str(path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=path.parent.parent)
    assert result.returncode == 0, result.stdout + result.stderr


# --------------------------------------------------------------------------------------------------- model


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_logits_equal_transformers(model_type, hidden_act):
    torch = pytest.importorskip("torch")
    architecture = tiny(model_type, hidden_act=hidden_act)
    ours, data = engine(architecture), batch(architecture=architecture)
    model = transformers_model(architecture, ours.get_weights(), 3).eval()
    with torch.no_grad():
        theirs = model(
            input_ids=torch.from_numpy(data.input_ids).long(),
            attention_mask=torch.from_numpy(data.input_ids != architecture.pad_token_id).long(),
            token_type_ids=torch.from_numpy(data.token_type_ids).long(),
        ).logits.numpy()
    logits = ours.predict(data)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, theirs, atol=1e-5)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_adamw_equals_torch(model_type):
    """Same losses and weights as transformers' model with torch.optim.AdamW, over several clipped updates."""
    torch = pytest.importorskip("torch")
    architecture = tiny(model_type)
    ours, data = engine(architecture, weight_decay=0.1), batch(architecture=architecture)
    model = transformers_model(architecture, ours.get_weights(), 3).train()
    decayed = [p for name, p in model.named_parameters() if has_weight_decay(name)]
    others = [p for name, p in model.named_parameters() if not has_weight_decay(name)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, eps=1e-6)
    for learning_rate in (1e-3, 5e-3, 2e-3, 1e-3):
        (loss,), update = step(ours, [data], learning_rate=learning_rate)
        theirs = model(
            input_ids=torch.from_numpy(data.input_ids).long(),
            attention_mask=torch.from_numpy(data.input_ids != architecture.pad_token_id).long(),
            token_type_ids=torch.from_numpy(data.token_type_ids).long(),
            labels=torch.from_numpy(data.label_ids).long(),
        ).loss
        theirs.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
        optimizer.zero_grad()
        assert loss == pytest.approx(theirs.item(), rel=1e-5)
        assert update.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    np.testing.assert_allclose(
        ours.get_weights()["bert.encoder.layer.0.intermediate.dense.weight"],
        dict(model.named_parameters())[f"{model_type}.encoder.layer.0.intermediate.dense.weight"].detach().numpy(),
        atol=1e-5,
    )


def test_bertadam_has_no_bias_correction():
    """A first update of rate * (1-beta1)g / sqrt((1-beta2)g**2): 3.1623 times the corrected one."""
    before = weights(tiny())
    for optimizer, factor in (("adamw", 1.0), ("bertadam", 0.1 / 0.001**0.5)):
        tested = engine(optimizer=optimizer, epsilon=1e-12, weight_decay=0.0)
        step(tested, [batch()], learning_rate=1e-3)
        moved = tested.get_weights()["classifier.bias"] - before["classifier.bias"]
        np.testing.assert_allclose(abs(moved), 1e-3 * factor, rtol=1e-2)


def test_decay_spares_biases_and_layer_norm():
    """The rows of tokens that are not in the batch have no gradient, so decay alone moves them."""
    tested = engine(weight_decay=0.5)
    before = tested.get_weights()
    step(tested, [batch()], learning_rate=0.01)
    words = "bert.embeddings.word_embeddings.weight"
    absent = np.setdiff1d(np.arange(50), batch().input_ids)
    np.testing.assert_allclose(tested.get_weights()[words][absent], before[words][absent] * (1 - 0.01 * 0.5), rtol=1e-6)
    multipliers = {name: parameter.wd_mult for name, parameter in tested._parameters.items()}
    assert multipliers == {name: float(has_weight_decay(name)) for name in before}


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_padding_changes_nothing(model_type):
    architecture = tiny(model_type)
    tested = engine(architecture)
    wide = batch(width=14, architecture=architecture)
    for row, length in enumerate(wide.valid_length):
        alone = rows(wide, [row])
        alone = type(alone)(alone.input_ids[:, :length], alone.token_type_ids[:, :length], *list(vars(alone).values())[2:])
        np.testing.assert_allclose(tested.predict(alone)[0], tested.predict(wide)[row], atol=1e-5)


def test_regression():
    """Mean squared error of (B, 1) logits and (B,) labels."""
    tested = engine(num_labels=1)
    data = batch(labels=(0.4, 2.75, 4.6, 0.0))
    expected = np.mean((tested.predict(data)[:, 0] - data.label_ids) ** 2)
    assert step(tested, [data])[0][0] == pytest.approx(expected, rel=1e-5)


def test_dropouts_have_their_own_rates():
    model = gluon_engine.build_model(tiny("roberta", hidden_dropout=0.1, attention_dropout=0.2, classifier_dropout=0.3), 2)
    cell = model.roberta.encoder.transformer_cells[0]
    assert cell.dropout_layer._rate == cell.ffn.dropout_layer._rate == 0.1
    assert cell.attention_cell.dropout_layer._rate == 0.2
    assert [block._rate for block in model.classifier if isinstance(block, mx.gluon.nn.Dropout)] == [0.3, 0.3]


# --------------------------------------------------------------------------------------------------- updates


@pytest.mark.parametrize("loss_scale", [2.0**4, 2.0**16])
def test_the_loss_scale_cancels(loss_scale):
    """The clip sees the unscaled norm: the update is the same for every scale."""
    plain, scaled = engine(), engine()
    for _ in range(3):
        losses, update = step(plain, [batch()], max_grad_norm=0.1)
        scaled_losses, scaled_update = step(scaled, [batch()], max_grad_norm=0.1, loss_scale=loss_scale)
        assert scaled_losses == losses
        assert scaled_update.grad_norm == pytest.approx(update.grad_norm, rel=1e-5)
    for name, array in plain.get_weights().items():
        np.testing.assert_allclose(scaled.get_weights()[name], array, atol=1e-6)


def test_weighted_micro_batches_equal_one_batch():
    whole = batch(lengths=(7, 7, 7, 7, 7), labels=(0, 1, 2, 1, 0))
    one, several = engine(), engine()
    for _ in range(2):
        _, update = step(one, [whole], loss_scale=1024.0)
        _, accumulated = step(several, [rows(whole, [0, 1]), rows(whole, [2, 3]), rows(whole, [4])], loss_scale=1024.0)
        assert accumulated.grad_norm == pytest.approx(update.grad_norm, rel=1e-5)
    for name, array in one.get_weights().items():
        np.testing.assert_allclose(several.get_weights()[name], array, atol=1e-5)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_overflow_changes_nothing_and_leaves_nothing(micro_batches):
    tested, undisturbed = engine(), engine()
    step(tested, [batch()]), step(undisturbed, [batch()])
    state, before = tested.state_dict(), tested.get_weights()
    _, update = step(tested, [batch()] * micro_batches, loss_scale=float("inf"))
    assert not update.finite
    assert_same(tested.get_weights(), before)
    assert_same(tested.state_dict(), state)
    _, update = step(tested, [batch()] * micro_batches)
    step(undisturbed, [batch()] * micro_batches)
    assert update.finite
    assert_same(tested.get_weights(), undisturbed.get_weights())


def test_an_update_waits_for_the_device_once(monkeypatch):
    tested, waits = engine(), []
    copy_to_host = mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: waits.append(array.shape) or copy_to_host(array))
    loss = tested.forward_backward(batch(), loss_scale=1.0, weight=1.0)
    assert waits == []
    float(loss)
    assert waits.pop() == (1,)
    update = tested.apply_gradients(learning_rate=1e-3, max_grad_norm=1.0, loss_scale=1.0)
    assert update.finite and waits == [(1,)]


def test_the_norm_is_exact_for_large_tensors():
    """MXNet's own sums of squares lose 7 % here."""
    norm = gluon_engine._norm([mx.nd.full((30522, 384), 0.1)]).asscalar()
    assert norm == pytest.approx(0.1 * (30522 * 384) ** 0.5, rel=1e-4)


# --------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_weights_round_trip(model_type):
    architecture = tiny(model_type)
    assert_same(engine(architecture).get_weights(), weights(architecture))


def test_wrong_weights_are_named():
    tested = engine()
    for change, complaint in [
        (lambda w: w.pop("classifier.bias"), "classifier.bias .* is missing"),
        (lambda w: w.update(extra=np.ones(1)), "unknown tensor extra"),
        (lambda w: w.update({"classifier.bias": np.ones(4)}), r"classifier.bias has shape \(4,\)"),
    ]:
        wrong = tested.get_weights()
        change(wrong)
        with pytest.raises(InputError, match=complaint):
            tested.set_weights(wrong)


def test_resume_is_exact_with_dropout():
    """The dropout of a micro-batch follows from the seed and its number, so an unbroken run and a resumed one agree."""
    straight = engine(tiny(dropout=0.3))
    step(straight, [batch(), batch(seed=2)])
    state, saved = straight.state_dict(), straight.get_weights()
    assert all(isinstance(value, np.ndarray) for value in state.values())
    resumed = engine(tiny(dropout=0.3), seed=99)
    step(resumed, [batch(seed=3)])
    resumed.set_weights(saved)
    resumed.load_state_dict(state)
    losses = [[step(run, [batch(seed=4)])[0] for _ in range(3)] for run in (straight, resumed)]
    assert losses[0] == losses[1]
    assert_same(straight.get_weights(), resumed.get_weights())
    assert_same(straight.state_dict(), resumed.state_dict())


def test_state_before_the_first_update():
    tested, fresh = engine(), engine()
    state = fresh.state_dict()
    step(tested, [batch()])
    tested.set_weights(fresh.get_weights())
    tested.load_state_dict(state)
    step(tested, [batch()]), step(fresh, [batch()])
    assert_same(tested.get_weights(), fresh.get_weights())


def test_a_seed_decides_the_initial_weights():
    made = [
        gluon.create(tiny(), 2, dtype="float32", gpu=None, seed=seed, optimizer="adamw", epsilon=1e-6, weight_decay=0.0)
        for seed in (1, 1, 2)
    ]
    first, same, other = (tested.get_weights() for tested in made)
    assert_same(first, same)
    assert (first["classifier.weight"] != other["classifier.weight"]).any()
    assert first["bert.encoder.layer.1.output.dense.weight"].std() == pytest.approx(0.02, rel=0.2)
    assert (first["bert.embeddings.LayerNorm.weight"] == 1).all() and (first["classifier.bias"] == 0).all()


def test_peak_memory():
    assert 10**7 < engine().peak_memory() < 10**11


# --------------------------------------------------------------------------------------------------- refusals


def test_float16_on_the_cpu_is_refused():
    assert gluon.capabilities(None)["float16"] == (False, "MXNet's float16 matrix products need a GPU")


def test_bfloat16_needs_avx512(monkeypatch):
    monkeypatch.setattr(gluon, "_processor_flags", lambda: {"avx2", "avx512f"})
    assert gluon.capabilities(None)["bfloat16"] == (False, "MXNet's bfloat16 matrix products need a processor with AVX-512")
    assert gluon.capabilities(None)["float32"].available


def test_safe_accumulation_is_on():
    assert os.environ["MXNET_SAFE_ACCUMULATION"] == "1"


def test_another_precision_in_the_same_process():
    engine()
    with pytest.raises(InputError, match="fixed for a process: it is float32, so bfloat16 needs"):
        engine(dtype="bfloat16")


def test_distilbert():
    with pytest.raises(InputError, match="--engine pytorch"):
        engine(tiny("distilbert", type_vocab_size=0))


def all_refuse(gpu, message):
    for capability in gluon.capabilities(gpu).values():
        assert not capability.available
        assert message in capability.note and "\n" not in capability.note


def test_what_is_installed(monkeypatch):
    installed = {"numpy": "1.23.5", "gluonnlp": "0.10.0"}
    monkeypatch.setattr(gluon, "_version", installed.get)
    all_refuse(None, "MXNet is not installed: pip install '.[mxnet]'")
    installed["mxnet"] = "1.9.1"
    all_refuse(0, "built for CPUs: pip install '.[mxnet-cu117]'")
    installed["numpy"] = "2.1.0"
    all_refuse(None, "numpy < 1.24, found 2.1.0")
    del installed["gluonnlp"]
    installed["numpy"] = "1.23.5"
    all_refuse(None, "gluonnlp is not installed")
    monkeypatch.setattr(sys, "version_info", (3, 12, 0))
    all_refuse(None, "Python 3.11 or older")


@pytest.mark.parametrize(
    "wheel, capability, fits",
    [
        ("mxnet-cu102", (7, 5), True),
        ("mxnet-cu102", (6, 1), True),
        ("mxnet-cu102", (8, 0), False),
        ("mxnet-cu117", (7, 5), True),
        ("mxnet-cu117", (8, 9), True),
        ("mxnet-cu117", (3, 7), False),
        ("mxnet-cu117", (9, 0), False),
    ],
)
def test_compute_capabilities(monkeypatch, wheel, capability, fits):
    installed = {"numpy": "1.23.5", "gluonnlp": "0.10.0", wheel: "1.9.1"}
    monkeypatch.setattr(gluon, "_version", installed.get)
    monkeypatch.setattr(gluon, "_cuda_device", lambda gpu: ("Some GPU", capability))
    if fits:  # then the installed CPU build of MXNet has the last word
        all_refuse(1, f"{wheel} sees 0 GPUs, and --gpu 1")
    else:
        all_refuse(1, f"no code for Some GPU (compute capability {capability[0]}.{capability[1]}; it has")


def test_no_driver(monkeypatch):
    monkeypatch.setattr(gluon, "_installed_wheel", lambda: "mxnet-cu117")
    monkeypatch.setattr(gluon.ctypes, "CDLL", lambda *_, **__: (_ for _ in ()).throw(OSError("libcuda.so.1: no such file")))
    all_refuse(0, "no NVIDIA driver (libcuda.so.1)")


@pytest.mark.parametrize(
    "wheel, error, message",
    [
        ("mxnet-cu102", OSError("libcudart.so.10.2: not found"), "libcudart.so.10.2: install CUDA 10.2"),
        ("mxnet-cu117", OSError("libcudnn.so.8: not found"), "libcudnn.so.8: pip install '.[mxnet-cu117]'"),
        ("mxnet-cu117", OSError("libcuda.so.1: not found"), "libcuda.so.1: install the NVIDIA driver"),
        ("mxnet", OSError("libgfortran.so.3: not found"), "libgfortran.so.3: install the system package"),
        (
            "mxnet",
            AttributeError("module 'numpy' has no attribute 'bool'"),
            "MXNet or GluonNLP failed to import (AttributeError",
        ),
    ],
)
def test_failed_imports(monkeypatch, wheel, error, message):
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "mxnet":
                raise error

    monkeypatch.setattr(gluon, "_installed_wheel", lambda: wheel)
    monkeypatch.delitem(sys.modules, "mxnet")
    monkeypatch.delitem(sys.modules, "gluonnlp")
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    all_refuse(None, message)
    with pytest.raises(InputError, match="--engine mxnet: "):
        gluon.create(tiny(), 2, dtype="float32", gpu=None, seed=1, optimizer="adamw", epsilon=1e-6, weight_decay=0.0)
