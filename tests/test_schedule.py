"""The learning rate: bounds, shape, and the recipe's own numbers; and the number of updates it is planned over."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert.config import build_parser, parse
from bert.plan import describe_plan, make_batching, make_plan
from bert.schedule import learning_rate, warmup_steps

QUICK = settings(max_examples=100, deadline=None, derandomize=True)


def rates(total, *, peak=1.0, ratio=0.1, past=0):
    return [learning_rate(step, peak=peak, total_steps=total, warmup_ratio=ratio) for step in range(total + past)]


def plan(rows, **flags):
    argv = ["--task_name", "RTE"]
    for flag, value in flags.items():
        argv += [f"--{flag}", str(value)]
    config = parse(argv)
    return make_plan(rows, config), config


@QUICK
@given(total=st.integers(1, 3000), ratio=st.floats(0, 1), peak=st.floats(1e-7, 1), data=st.data())
def test_bounds(total, ratio, peak, data):
    """Above 0 and at most the peak at every planned update, 0 ever after, rising before the top and falling behind it."""
    steps = sorted(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=20)))
    values = [learning_rate(step, peak=peak, total_steps=total, warmup_ratio=ratio) for step in steps]
    assert all(0 < value <= peak * (1 + 1e-12) for value in values)
    warmup = warmup_steps(total, ratio)
    assert 0 <= warmup <= total
    for (step, value), (later_step, later) in zip(zip(steps, values), zip(steps[1:], values[1:])):
        assert (later >= value) if later_step < warmup else (step < warmup or later <= value)
    assert learning_rate(total + data.draw(st.integers(0, 100)), peak=peak, total_steps=total, warmup_ratio=ratio) == 0


def test_shape_by_hand():
    assert rates(10, peak=10.0, ratio=0.2, past=2) == pytest.approx([5, 10, 10, 8.75, 7.5, 6.25, 5, 3.75, 2.5, 1.25, 0, 0])


def test_the_peak_is_reached():
    assert max(rates(345, peak=2e-5)) == pytest.approx(2e-5)
    assert max(rates(7, peak=2e-5, ratio=0.0)) == pytest.approx(2e-5)


def test_without_warmup_the_rate_only_falls():
    values = rates(5, ratio=0.0)
    assert values == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_no_update_is_spent_on_a_rate_of_zero():
    """A run of one update moves the weights, whatever the warm-up."""
    for ratio in (0.0, 0.1, 1.0):
        assert rates(1, ratio=ratio)[0] > 0
        assert min(rates(50, ratio=ratio)) > 0


def test_mrpc_at_batch_32_for_3_epochs():
    """3668 rows make 115 batches, so 345 updates; a plan of 343 would end in rates below zero."""
    made, config = plan(3668, batch_size=32, epochs=3)
    assert (made.updates_per_epoch, made.total_updates, made.warmup_updates) == (115, 345, 34)
    values = rates(made.total_updates, peak=config.lr, ratio=config.warmup_ratio)
    assert min(values) > 0 and values[-1] == min(values)
    assert values[-1] == pytest.approx(config.lr / (345 - 34))


@pytest.mark.parametrize(
    "rows, flags, per_epoch, total, epochs",
    [
        (9, {"batch_size": 2, "accumulate": 2, "epochs": 3}, 3, 9, 3),  # rounding down would give 6
        (6, {"batch_size": 2, "accumulate": 4, "epochs": 5}, 1, 5, 5),  # 3 micro-batches never make a group of 4
        (1, {"batch_size": 32}, 1, 3, 3),
        (64, {"batch_size": 32, "epochs": 1}, 2, 2, 1),
        (65, {"batch_size": 32, "epochs": 1}, 3, 3, 1),
        (100, {"batch_size": 10, "training_steps": 25}, 10, 25, 3),
        (100, {"batch_size": 10, "training_steps": 7, "epochs": 50}, 10, 7, 1),
        (100, {"batch_size": 10, "training_steps": 20}, 10, 20, 2),
    ],
)
def test_the_plan_counts_real_updates(rows, flags, per_epoch, total, epochs):
    made, _ = plan(rows, **flags)
    assert (made.updates_per_epoch, made.total_updates, made.epochs) == (per_epoch, total, epochs)


@QUICK
@given(rows=st.integers(1, 5000), batch_size=st.integers(1, 64), accumulate=st.integers(1, 8), epochs=st.integers(1, 5))
def test_every_micro_batch_belongs_to_an_update(rows, batch_size, accumulate, epochs):
    made, _ = plan(rows, batch_size=batch_size, accumulate=accumulate, epochs=epochs)
    assert (made.updates_per_epoch - 1) * batch_size * accumulate < rows <= made.updates_per_epoch * batch_size * accumulate
    assert made.total_updates == made.updates_per_epoch * epochs and made.epochs == epochs
    assert 0 <= made.warmup_updates <= made.total_updates


def test_the_plan_tells_each_number_once_and_the_product_right():
    text = "\n".join(describe_plan(*plan(100, batch_size=4, accumulate=3, epochs=2)))
    assert "micro-batch 4" in text and "accumulate 3" in text and "12 rows per update" in text
    assert "9 updates per epoch" in text and "18 in 2 epoch" in text


def test_warmup_is_on_unless_switched_off():
    assert plan(3668)[1].warmup_ratio == 0.1
    assert plan(3668, warmup_ratio=0)[0].warmup_updates == 0


def test_help_says_that_steps_are_updates():
    text = " ".join(build_parser().format_help().split())
    assert "number of updates" in text and "share of the updates" in text


@pytest.mark.parametrize(
    "flags, round_to", [("", 8), ("--gpu 0", 8), ("--gpu 0 --round_to 3", 3), ("--round_to 16", 16), ("--gpu 0 --pad", 60)]
)
def test_batches_are_as_wide_as_matrix_units_want(flags, round_to):
    config = parse(["--task_name", "MRPC", "--max_len", "60", *flags.split()])
    batching = make_batching(config, SimpleNamespace(max_length=64, pad_token_id=0))
    assert (batching.round_to, batching.max_len) == (round_to, 60)


def test_help_says_what_lower_case_does_to_accents():
    assert "strips accents" in " ".join(build_parser().format_help().split())
