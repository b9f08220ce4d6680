"""The learning rate as a pure function of the update's number. Knows no optimizer and no engine."""


def warmup_steps(total_steps, warmup_ratio):
    """Number of updates over which the rate rises; BERT's recipe: a tenth of all (Devlin et al. 2019, A.2)."""
    return int(total_steps * warmup_ratio)


def learning_rate(step, *, peak, total_steps, warmup_ratio):
    """Rate of update number `step` (0-based, attempted updates): linear rise to `peak`, then linear fall to 0.

    The rise starts at peak / warmup rather than at 0, so that no update is spent on a rate of 0, and the rate is
    never negative, whatever `step` is.
    """
    warmup = warmup_steps(total_steps, warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * max(0.0, (total_steps - step) / max(1, total_steps - warmup))
