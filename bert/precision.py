"""The whole mixed-precision policy: which number type a run computes in, why, and how its loss is scaled.

Plain Python, written once for both engines. It knows no framework: an engine tells what its device can do
(`capabilities`) and whether an update's gradients were finite; everything decided from that is decided here.
"""

from dataclasses import dataclass
from typing import NamedTuple

from bert import InputError, RunError

DTYPES = ("float32", "float16", "bfloat16")


class Capability(NamedTuple):
    """What one device can do in one number type: whether at all, and a remark for the person (why not, how fast)."""

    available: bool
    note: str = ""


@dataclass(frozen=True)
class Precision:
    """The number type of the matrix products, and why. Master weights, gradients, losses and metrics are float32."""

    dtype: str
    reason: str


def resolve_precision(dtype, capabilities, *, engine, gpu):
    """The Precision to run in, or InputError naming what would work: never a silent fall-back.

    `capabilities` maps each of DTYPES to the engine's Capability on this device.
    """
    capability = capabilities[dtype]
    if not capability.available:
        possible = [other for other in DTYPES if capabilities[other].available]
        if not possible:  # the note says what to use instead
            raise InputError(f"--engine {engine}{'' if gpu is None else f' --gpu {gpu}'}: {capability.note}")
        device = "the CPU" if gpu is None else f"GPU {gpu}"
        raise InputError(
            f"--dtype {dtype} cannot run on {device} with the {engine} engine: {capability.note}; "
            f"use --dtype {' or '.join(possible)}"
        )
    what = {
        "float32": "everything in float32",
        "float16": "matrix products in float16; master weights, LayerNorm, loss and norms in float32",
        "bfloat16": "matrix products in bfloat16; master weights, LayerNorm, loss and norms in float32",
    }[dtype]
    return Precision(dtype, f"{what} ({capability.note})" if capability.note else what)


class LossScaler:
    """The factor on the loss that keeps float16 gradients above underflow; dynamic, static, or 1 for ever.

    Defaults and method: Micikevicius et al. 2018 (arXiv 1710.03740), with the constants that PyTorch's GradScaler
    and MXNet's AMP share (2**16, x2 after 2000 good updates, x0.5 on overflow). Unlike those it has a floor and a
    cap, and it stops a run that cannot recover.

    `update(finite)` takes the verdict on the update just attempted and returns an event for the log, or None.
    """

    #: A static scale skips an overflowing update like a dynamic one; so many in a row mean that nothing will cure it.
    PATIENCE = 10

    def __init__(
        self,
        scale=2.0**16,
        *,
        dynamic=True,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        minimum=1.0,
        maximum=2.0**24,
    ):
        self.scale = float(scale)
        self.dynamic = dynamic
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.minimum = minimum
        self.maximum = maximum
        self.good_updates = 0  # in a row, since the last change of scale
        self.bad_updates = 0  # in a row
        self.skipped_updates = 0  # in all

    def describe(self):
        """One line for the plan."""
        if self.dynamic:
            return (
                f"loss scale {self.scale:.15g}, dynamic: x{self.growth_factor:g} after {self.growth_interval} good updates, "
                f"x{self.backoff_factor:g} on overflow, from {self.minimum:.15g} to {self.maximum:.15g}"
            )
        return f"loss scale {self.scale:.15g}, fixed" if self.scale != 1 else "no loss scaling"

    def update(self, finite):
        """Adjust the scale after one attempted update; RunError where going on is pointless."""
        if finite:
            self.bad_updates = 0
            self.good_updates += 1
            return self._grow() if self.dynamic and self.good_updates >= self.growth_interval else None
        self.good_updates = 0
        self.bad_updates += 1
        self.skipped_updates += 1
        return self._back_off() if self.dynamic else self._skip()

    def _grow(self):
        old, self.scale = self.scale, min(self.scale * self.growth_factor, self.maximum)
        self.good_updates = 0
        if self.scale > old:
            return f"{self.growth_interval} updates without overflow: loss scale {old:.15g} -> {self.scale:.15g}"
        return None

    def _back_off(self):
        if self.scale <= self.minimum:
            raise RunError(
                f"gradients overflow even at the smallest loss scale, {self.minimum:g}: the loss or the weights are no "
                "longer finite; lower --lr, raise --warmup_ratio, or use --dtype bfloat16 or float32"
            )
        old, self.scale = self.scale, max(self.scale * self.backoff_factor, self.minimum)
        return f"overflow: update skipped, loss scale {old:.15g} -> {self.scale:.15g} (normal now and then)"

    def _skip(self):
        if self.bad_updates >= self.PATIENCE:
            advice = "use --loss_scale dynamic" if self.scale > 1 else "lower --lr or raise --warmup_ratio"
            raise RunError(
                f"{self.bad_updates} updates in a row had gradients that are not finite: the run has diverged; {advice}"
            )
        return f"gradients not finite: update skipped ({self.bad_updates} in a row, loss scale {self.scale:.15g})"

    def state_dict(self):
        """The numbers that an exact resume needs; the settings come from the configuration."""
        return {
            "scale": self.scale,
            "good_updates": self.good_updates,
            "bad_updates": self.bad_updates,
            "skipped_updates": self.skipped_updates,
        }

    def load_state_dict(self, state):
        for name in self.state_dict():
            setattr(self, name, state[name])


def make_loss_scaler(config):
    """The LossScaler of a FinetuneConfig: float32 and bfloat16 run through the same code with a scale that stays at 1."""
    if config.dtype != "float16":
        return LossScaler(1.0, dynamic=False)
    if config.loss_scale not in (None, "dynamic"):
        return LossScaler(config.loss_scale, dynamic=False)
    return LossScaler(
        config.init_loss_scale,
        growth_factor=config.loss_scale_growth_factor,
        backoff_factor=config.loss_scale_backoff_factor,
        growth_interval=config.loss_scale_growth_interval,
        minimum=config.min_loss_scale,
        maximum=config.max_loss_scale,
    )
