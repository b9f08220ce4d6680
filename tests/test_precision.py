"""The mixed-precision policy: what is refused, and how the loss scale moves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert import InputError, RunError
from bert.config import parse
from bert.precision import DTYPES, Capability, LossScaler, make_loss_scaler, resolve_precision

QUICK = settings(max_examples=100, deadline=None, derandomize=True)


def resolve(dtype, available=DTYPES, gpu=None, note="no units for it"):
    capabilities = {name: Capability(name in available, "" if name in available else note) for name in DTYPES}
    return resolve_precision(dtype, capabilities, engine="mxnet", gpu=gpu)


def scaler_of(*flags):
    return make_loss_scaler(parse(["--task_name", "RTE", *flags]))


# --- choosing a precision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_there_is_taken_and_said(dtype):
    precision = resolve(dtype)
    assert precision.dtype == dtype and dtype in precision.reason and "float32" in precision.reason


def test_a_remark_on_speed_reaches_the_person():
    capabilities = dict.fromkeys(DTYPES, Capability(True, "slower than float32"))
    assert "slower than float32" in resolve_precision("float16", capabilities, engine="pytorch", gpu=0).reason


@pytest.mark.parametrize("gpu, device", [(None, "CPU"), (1, "GPU 1")])
def test_what_is_not_there_is_refused_never_replaced(gpu, device):
    with pytest.raises(InputError) as caught:
        resolve("float16", available=("float32", "bfloat16"), gpu=gpu)
    message = str(caught.value)
    for part in ("float16", device, "mxnet", "no units for it", "use --dtype float32 or bfloat16"):
        assert part in message
    assert "\n" not in message


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(InputError, match="--gpu 3: no such GPU"):
        resolve("float32", available=(), gpu=3, note="no such GPU")


# --- the scale -------------------------------------------------------------------------------------------------------


def trace(scaler, verdicts):
    scales = []
    for finite in verdicts:
        scales.append(scaler.scale)
        scaler.update(finite)
    return scales


def test_an_overflow_is_answered_at_once():
    """Each update is tried at the scale that the one before it led to: no lag."""
    assert trace(LossScaler(64), [False, False, False, True, True]) == [64, 32, 16, 8, 8]


def test_defaults():
    scaler = scaler_of("--dtype", "float16")
    assert scaler.dynamic and scaler.scale == 2**16
    assert trace(scaler, [True] * 2001)[-2:] == [2**16, 2**17]
    scaler = scaler_of("--dtype", "float16")
    assert trace(scaler, [False] * 16)[-1] == 2 and scaler.scale == 1


def test_growth_needs_good_updates_in_a_row():
    scaler = LossScaler(8, growth_interval=3)
    assert trace(scaler, [True, True, False, True, True, True, True]) == [8, 8, 8, 4, 4, 4, 8]


def test_growth_stops_at_the_cap():
    scaler = LossScaler(2.0**16, growth_interval=1)
    assert max(trace(scaler, [True] * 500)) == scaler.scale == 2.0**24


def test_backing_off_stops_at_the_floor_and_then_the_run():
    scaler = LossScaler(3, minimum=1.0)
    assert trace(scaler, [False, False]) == [3, 1.5] and scaler.scale == 1
    with pytest.raises(RunError) as caught:
        scaler.update(False)
    assert "--lr" in str(caught.value) and "\n" not in str(caught.value)
    assert scaler.skipped_updates == 3 and scaler.scale == 1


def test_a_good_update_at_the_floor_saves_the_run():
    scaler = LossScaler(2, minimum=1.0, growth_interval=2)
    assert trace(scaler, [False, True, True, False, True]) == [2, 1, 1, 2, 1]


@QUICK
@given(
    verdicts=st.lists(st.booleans(), max_size=200),
    start=st.floats(1, 2**24),
    growth=st.floats(1.1, 8),
    backoff=st.floats(0.1, 0.9),
    interval=st.integers(1, 5),
)
def test_bounds(verdicts, start, growth, backoff, interval):
    """Whatever happens: from floor to cap, counting every skip, falling on overflow only, and always with a word."""
    scaler = LossScaler(start, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    for number, finite in enumerate(verdicts):
        before = scaler.scale
        try:
            event = scaler.update(finite)
        except RunError:
            assert not finite and before == 1.0
            break
        assert 1.0 <= scaler.scale <= 2.0**24
        assert scaler.skipped_updates == verdicts[: number + 1].count(False)
        assert (scaler.scale < before) == (not finite)
        assert scaler.scale <= before or (finite and all(verdicts[number + 1 - interval : number + 1]))
        assert (event is not None) == (scaler.scale != before)
        if event:
            assert "\n" not in event and f"{before:.15g} -> {scaler.scale:.15g}" in event


def test_a_static_scale_never_moves_but_gives_up():
    scaler = scaler_of("--dtype", "float16", "--loss_scale", "128")
    assert not scaler.dynamic
    assert trace(scaler, [False] * 9 + [True] + [False] * 9 + [True] * 3000) == [128] * 3019
    assert scaler.skipped_updates == 18
    with pytest.raises(RunError) as caught:
        trace(scaler, [False] * 10)
    assert "--loss_scale dynamic" in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_need_the_scale_stays_one_and_nan_still_stops_the_run(dtype):
    scaler = scaler_of("--dtype", dtype)
    assert trace(scaler, [True] * 5000) == [1] * 5000
    assert "not finite" in scaler.update(False)
    with pytest.raises(RunError) as caught:
        trace(scaler, [False] * 10)
    assert "--lr" in str(caught.value) and "loss_scale" not in str(caught.value)


def test_every_setting_is_a_flag():
    flags = (
        "--dtype float16 --init_loss_scale 64 --loss_scale_growth_factor 4 --loss_scale_backoff_factor 0.25 "
        "--loss_scale_growth_interval 2 --min_loss_scale 8 --max_loss_scale 512"
    )
    scaler = scaler_of(*flags.split())
    assert trace(scaler, [True, True, True, True, False, False, False]) == [64, 64, 256, 256, 512, 128, 32]
    assert scaler.scale == 8


def test_events_are_calm():
    scaler = LossScaler(64, growth_interval=1)
    for event in (scaler.update(False), scaler.update(True)):
        assert event and not any(word in event.lower() for word in ("error", "fail", "!", "warning"))
    assert "skipped" in LossScaler(64).update(False)


@QUICK
@given(before=st.lists(st.booleans(), max_size=12), after=st.lists(st.booleans(), max_size=12))
def test_state_round_trips_to_the_same_trace(before, after):
    first, second = (LossScaler(2.0**20, growth_interval=3) for _ in range(2))
    trace(first, before)
    second.load_state_dict(first.state_dict())
    assert all(type(value) in (int, float) for value in first.state_dict().values())
    assert trace(first, after) == trace(second, after)
    assert first.state_dict() == second.state_dict()


@pytest.mark.parametrize(
    "flags, word",
    [
        ("--dtype float32 --loss_scale 128", "--loss_scale"),
        ("--dtype bfloat16 --loss_scale dynamic", "--loss_scale"),
        ("--dtype float16 --loss_scale fast", "fast"),
        ("--dtype float16 --loss_scale 0", "--loss_scale"),
        ("--dtype float16 --loss_scale -2", "--loss_scale"),
        ("--dtype float16 --loss_scale nan", "--loss_scale"),
        ("--dtype float16 --loss_scale inf", "--loss_scale"),
        ("--dtype float16 --init_loss_scale 0.5", "0.5"),
        ("--dtype float16 --init_loss_scale 1e30", "1e+30"),
        ("--dtype float16 --min_loss_scale 0", "min"),
        ("--dtype float16 --max_loss_scale inf", "max"),
        ("--dtype float16 --loss_scale_growth_factor 1", "growth_factor"),
        ("--dtype float16 --loss_scale_growth_factor nan", "growth_factor"),
        ("--dtype float16 --loss_scale_backoff_factor 1", "backoff_factor"),
        ("--dtype float16 --loss_scale_backoff_factor 0", "backoff_factor"),
        ("--dtype float16 --loss_scale_growth_interval 0", "growth_interval"),
    ],
)
def test_settings_that_make_no_sense_are_refused(flags, word):
    with pytest.raises(InputError) as caught:
        scaler_of(*flags.split())
    assert word in str(caught.value) and "\n" not in str(caught.value)
