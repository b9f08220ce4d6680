"""The training loop, over an engine that only counts and over the real one: updates, rates, scales, selection, stops."""

import json
import math

import numpy as np
import pytest

from bert import RunError
from bert.config import parse
from bert.data import Features
from bert.engines import Update, installed
from bert.logs import RunLog
from bert.plan import Batching, make_plan
from bert.precision import LossScaler, make_loss_scaler
from bert.tasks import TASKS
from bert.training import evaluate_splits, predict_logits, train

BATCHING = Batching(pad_id=0, round_to=1, max_len=16)
RTE = TASKS["RTE"]


class Number:
    """A value that lives on a device: counts how often somebody waits for it."""

    reads = 0

    def __init__(self, value):
        self.value = value

    def __float__(self):
        Number.reads += 1
        return float(self.value)


class CountingEngine:
    """Records what it is asked; each evaluation predicts as many dev rows rightly as `dev_scores` says."""

    name, device = "counting", "none"

    def __init__(self, norms=(), dev_scores=()):
        self.norms, self.dev_scores = list(norms), list(dev_scores)
        self.groups, self.group, self.rates, self.scales, self.evaluations = [], [], [], [], 0
        self.finished = []  # after how many updates
        Number.reads = 0

    def forward_backward(self, batch, *, loss_scale, weight):
        self.group.append((batch.index.tolist(), weight, loss_scale))
        return Number(0.5)

    def apply_gradients(self, *, learning_rate, max_grad_norm, loss_scale):
        self.groups.append(self.group)
        self.group = []
        self.rates.append(learning_rate)
        self.scales.append(loss_scale)
        norm = self.norms[len(self.rates) - 1] if len(self.rates) <= len(self.norms) else 1.0
        return Update(Number(norm))

    def finish(self):
        self.finished.append(len(self.rates))

    def predict(self, batch):
        right = self.dev_scores[self.evaluations] if self.evaluations < len(self.dev_scores) else 5
        label = np.where(batch.index < right, batch.label_ids, 1 - batch.label_ids)
        if batch.index.max() == 9:  # the last rows of a pass over ten rows
            self.evaluations += 1
        return np.eye(2, dtype=np.float32)[label]


def make_features(rows, labels=None):
    lengths = np.full(rows, 4)
    return Features(
        input_ids=np.tile(np.array([2, 7, 8, 3], np.int32), rows),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        segment_starts=lengths.astype(np.int32),
        label_ids=(np.arange(rows) % 2).astype(np.int32) if labels is None else labels,
        truncated=0,
    )


def run(engine, rows=9, scaler=None, log=None, **flags):
    argv = ["--task_name", "RTE", "--dev_batch_size", "16"]
    for flag, value in flags.items():
        argv += [f"--{flag}", str(value)]
    config = parse(argv)
    features = make_features(rows)
    plan = make_plan(rows, config)
    kept = []
    result = train(
        engine,
        features,
        {"dev": make_features(10)},
        task=RTE,
        config=config,
        plan=plan,
        batching=BATCHING,
        scaler=scaler or make_loss_scaler(config),
        log=log or RunLog(),
        keep_best=lambda evaluation: kept.append(evaluation["epoch"]),
    )
    return result, kept


@pytest.mark.parametrize(
    ("rows", "batch_size", "accumulate", "epochs", "updates"),
    [(9, 2, 2, 3, 9), (6, 2, 4, 2, 2), (8, 4, 1, 2, 4), (1, 32, 8, 1, 1), (3668, 32, 1, 3, 345)],
)
def test_left_over_micro_batches_make_an_update(rows, batch_size, accumulate, epochs, updates):
    engine = CountingEngine()
    result, _ = run(engine, rows, batch_size=batch_size, accumulate=accumulate, epochs=epochs)
    assert result.updates == len(engine.groups) == updates
    assert result.examples == rows * epochs
    assert result.tokens == 4 * rows * epochs
    per_epoch = updates // epochs
    assert engine.finished == [per_epoch * epoch for epoch in range(1, epochs + 1)]  # before a clock is read
    for epoch in range(epochs):
        seen = [
            row for group in engine.groups[epoch * per_epoch : (epoch + 1) * per_epoch] for part in group for row in part[0]
        ]
        assert sorted(seen) == list(range(rows))  # every row once per epoch


def test_micro_batches_weigh_as_many_rows_as_they_have():
    engine = CountingEngine()
    run(engine, rows=4, batch_size=3, accumulate=2, epochs=1)
    (group,) = engine.groups
    assert {(len(rows), weight) for rows, weight, _ in group} == {(3, 0.75), (1, 0.25)}


def test_rates_rise_and_fall_and_never_go_below_zero():
    engine = CountingEngine()
    run(engine, rows=3668, batch_size=32, epochs=3, lr=5e-5)
    assert len(engine.rates) == 345
    assert engine.rates[0] == pytest.approx(5e-5 / 34)
    assert max(engine.rates) == pytest.approx(5e-5)
    assert min(engine.rates) > 0
    assert engine.rates[-1] == pytest.approx(5e-5 / 311)


def test_training_steps_count_updates_and_cut_the_last_epoch():
    engine = CountingEngine()
    result, _ = run(engine, rows=9, batch_size=2, accumulate=2, training_steps=4)
    assert result.updates == 4
    assert [evaluation["step"] for evaluation in result.evaluations] == [3, 4]


def test_epochs_differ_in_order_and_a_seed_repeats_it():
    first, again, other = CountingEngine(), CountingEngine(), CountingEngine()
    run(first, rows=40, batch_size=4, epochs=2, seed=5)
    run(again, rows=40, batch_size=4, epochs=2, seed=5)
    run(other, rows=40, batch_size=4, epochs=2, seed=6)
    assert first.groups == again.groups
    assert first.groups != other.groups
    assert first.groups[:10] != first.groups[10:]


def test_overflows_skip_and_halve_and_leave_rates_and_batches_alone():
    clean, shaken = CountingEngine(), CountingEngine(norms=[math.inf, math.nan, math.inf])
    run(clean, rows=20, batch_size=2, epochs=1, dtype="float16")
    scaler = LossScaler(2.0**10)
    result, _ = run(shaken, rows=20, scaler=scaler, batch_size=2, epochs=1, dtype="float16")
    assert shaken.scales == [1024.0, 512.0, 256.0] + [128.0] * 7
    assert scaler.skipped_updates == 3
    assert shaken.rates == clean.rates
    assert [[part[0] for part in group] for group in shaken.groups] == [
        [part[0] for part in group] for group in clean.groups
    ]
    assert result.updates == 10


def test_a_run_whose_every_update_was_skipped_fails():
    with pytest.raises(RunError, match="every update was skipped"):
        run(CountingEngine(norms=[math.inf] * 6), rows=12, batch_size=2, epochs=1, dtype="float16")


def test_many_skipped_updates_are_warned_about(capsys):
    run(CountingEngine(norms=[math.inf] * 3), rows=20, batch_size=2, epochs=1, dtype="float16")
    assert "WARNING: 3 of 10 updates were skipped" in capsys.readouterr().out


def test_the_scale_is_one_value_within_an_update_and_survives_epochs():
    engine = CountingEngine(norms=[1.0, math.inf])
    run(engine, rows=12, scaler=LossScaler(64.0), batch_size=2, accumulate=3, epochs=2, dtype="float16")
    assert [{part[2] for part in group} for group in engine.groups] == [{64.0}, {64.0}, {32.0}, {32.0}]


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 17), ("float32", 20), ("bfloat16", 20)])
def test_a_run_that_is_always_nan_stops_soon_and_is_logged(tmp_path, dtype, bound):
    engine = CountingEngine(norms=[math.nan] * 500)
    log = RunLog()
    log.open(tmp_path / "log.jsonl")
    with pytest.raises(RunError, match="--lr"):
        run(engine, rows=200, log=log, batch_size=2, epochs=1, dtype=dtype)
    log.close()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(engine.rates) <= bound
    assert records
    assert all(record["skipped"] and record["grad_norm"] is None for record in records)


@pytest.mark.parametrize(("dtype", "reads"), [("float32", 0), ("bfloat16", 0), ("float16", 1)])
def test_nothing_waits_for_the_device_between_log_lines(dtype, reads):
    """Off the log interval only float16's scaler asks, once per update, whether the gradients were finite."""
    engine = CountingEngine()
    waits = []
    forward = engine.forward_backward

    def watch(batch, **options):
        waits.append(Number.reads)
        return forward(batch, **options)

    engine.forward_backward = watch
    run(engine, rows=18, batch_size=2, epochs=1, dtype=dtype, log_interval=100)
    assert np.diff(waits).tolist() == [reads] * 8


def test_log_lines_hold_the_fields_people_plot(tmp_path):
    log = RunLog()
    log.open(tmp_path / "log.jsonl")
    run(CountingEngine(norms=[1.0, math.inf, 2.0]), rows=6, log=log, batch_size=2, epochs=2, dtype="float16", log_interval=2)
    log.close()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    updates = [record for record in records if "step" in record]
    fields = {"step", "epoch", "loss", "learning_rate", "grad_norm", "loss_scale", "skipped", "tokens", "tokens_per_second"}
    assert all(fields <= record.keys() for record in updates)
    assert [record["step"] for record in updates] == [1, 2, 3, 4, 5, 6]
    assert [record["epoch"] for record in updates] == [1, 1, 1, 2, 2, 2]
    assert [record["skipped"] for record in updates] == [False, True, False, False, False, False]
    assert [record["loss_scale"] for record in updates] == [65536.0] * 2 + [32768.0] * 4
    assert updates[1]["grad_norm"] is None
    assert "65536 -> 32768" in updates[1]["event"]
    assert [record["evaluation"]["epoch"] for record in records if "evaluation" in record] == [1, 2]


@pytest.mark.parametrize(
    ("scores", "best", "kept"), [([6, 9, 7], 2, [1, 2]), ([9, 9, 9], 1, [1]), ([0, 0, 0], 1, [1]), ([5, 6, 7], 3, [1, 2, 3])]
)
def test_the_best_epoch_is_kept_and_ties_keep_the_earliest(scores, best, kept):
    result, epochs = run(CountingEngine(dev_scores=scores), epochs=3)
    assert result.best["epoch"] == best
    assert epochs == kept


@pytest.mark.parametrize(("patience", "epochs_run"), [(1, 3), (2, 4), (9, 6)])
def test_early_stopping_counts_epochs_without_a_better_score(patience, epochs_run):
    result, _ = run(CountingEngine(dev_scores=[6, 8, 7, 8, 9, 9]), epochs=6, early_stop=patience)
    assert len(result.evaluations) == epochs_run
    assert result.stopped_early == (epochs_run < 6)


def test_two_dev_files_are_one_criterion(capsys):
    """MNLI: the mean of matched and mismatched decides, and each keeps its own name."""
    scores = {"dev_matched": 10, "dev_mismatched": 0}

    class Engine(CountingEngine):
        def predict(self, batch):
            right = batch.label_ids if self.dev_scores.pop(0) else (batch.label_ids + 1) % 3
            return np.eye(3, dtype=np.float32)[right]

    features = make_features(4, labels=np.array([0, 1, 2, 0], np.int32))
    splits = dict.fromkeys(scores, features)
    engine = Engine(dev_scores=[10, 0])
    found = evaluate_splits(engine, splits, task=TASKS["MNLI"], batch_size=8, batching=BATCHING, log=RunLog())
    assert found["dev_matched"]["accuracy"] == 1.0
    assert found["dev_mismatched"]["accuracy"] == 0.0


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 64])
def test_logits_come_back_in_file_order_for_every_batch_size(batch_size):
    lengths = np.array([3, 9, 4, 4, 12, 3, 8])
    features = Features(
        input_ids=np.concatenate([np.full(length, row, np.int32) for row, length in enumerate(lengths)]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        segment_starts=lengths.astype(np.int32),
        label_ids=None,
        truncated=0,
    )

    class Echo:
        def predict(self, batch):
            return batch.input_ids[:, :1].astype(np.float32)

    logits = predict_logits(Echo(), features, batch_size=batch_size, batching=BATCHING, description="test")
    np.testing.assert_array_equal(logits[:, 0], np.arange(7))


@pytest.mark.skipif(not installed("pytorch"), reason="torch is not installed")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_separable_task_is_learned_in_every_precision(dtype):
    from test_engines import TINY, make_engine

    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 256).astype(np.int32)
    rows = np.stack([np.array([2, *(random.integers(5, 30, 6) + 25 * label), 3]) for label in labels]).astype(np.int32)
    features = Features(rows.ravel(), np.arange(257) * 8, np.full(256, 8, np.int32), labels, 0)
    config = parse(["--task_name", "RTE", "--epochs", "4", "--lr", "1e-3", "--dtype", dtype])
    plan = make_plan(256, config)
    engine = make_engine(architecture=TINY, num_labels=2, dtype=dtype)
    scaler = make_loss_scaler(config)
    options = {"task": RTE, "config": config, "plan": plan, "batching": BATCHING, "scaler": scaler, "log": RunLog()}
    result = train(engine, features, {"dev": features}, keep_best=lambda evaluation: None, **options)
    assert result.evaluations[-1]["scores"]["dev"]["accuracy"] >= 0.95
    assert scaler.skipped_updates < plan.total_updates / 4
