"""What a run will do, worked out and told with its reasons before the first update. Knows no engine and no disk."""

from dataclasses import dataclass

import numpy as np

from bert import InputError
from bert.data import evaluation_order, padding_share, training_order
from bert.recipes import RECIPES
from bert.schedule import warmup_steps


@dataclass(frozen=True)
class Batching:
    """How rows become batches, in training and evaluation alike."""

    pad_id: int
    round_to: int
    max_len: int


@dataclass(frozen=True)
class Plan:
    """The arithmetic of a training run, from real counts."""

    rows: int
    batch_size: int
    accumulate: int
    updates_per_epoch: int
    epochs: int  # begun; the last one may be cut short by --training_steps
    total_updates: int
    warmup_updates: int


def make_batching(config, architecture):
    """The Batching of a run; InputError where --max_len goes beyond the model's positions."""
    if config.max_len > architecture.max_length:
        raise InputError(f"--max_len is {config.max_len}, but the model has positions for {architecture.max_length} tokens")
    # Matrix units want multiples of 8, and few different shapes are few sets of buffers and kernels.
    round_to = config.max_len if config.pad else config.round_to or 8
    return Batching(pad_id=architecture.pad_token_id, round_to=round_to, max_len=config.max_len)


def make_plan(rows, config):
    """The Plan for `rows` training rows; --training_steps (updates) takes the place of --epochs where it is given."""
    micro_batches = -(-rows // config.batch_size)
    updates_per_epoch = -(-micro_batches // config.accumulate)  # left-over micro-batches make an update of their own
    total = config.training_steps or updates_per_epoch * config.epochs
    return Plan(
        rows=rows,
        batch_size=config.batch_size,
        accumulate=config.accumulate,
        updates_per_epoch=updates_per_epoch,
        epochs=-(-total // updates_per_epoch),
        total_updates=total,
        warmup_updates=warmup_steps(total, config.warmup_ratio),
    )


def describe_model(pretrained, head, tokenizer):
    """Lines on where the weights come from and what of them is fresh."""
    architecture = pretrained.architecture
    lines = [
        f"model:     {pretrained.source}: {architecture.model_type}, {architecture.num_hidden_layers} layers, "
        f"{architecture.hidden_size} wide, {len(pretrained.tensors)} tensors loaded, {pretrained.unused} not needed",
        f"           classification head: {head}",
        f"           tokenizer: {tokenizer.description}",
    ]
    if not pretrained.has_pooler:
        lines.insert(2, "           dense layer before the head: fresh (the checkpoint has none)")
    return lines


def describe_plan(plan, config):
    """Lines on the updates of a run; none where `plan` is None."""
    if plan is None:
        return []
    effective = plan.batch_size * plan.accumulate
    recipe = [f"recipe:    {config.recipe}: {RECIPES[config.recipe].source}"] if config.recipe else []
    return [
        *recipe,
        f"batches:   {plan.rows} rows, micro-batch {plan.batch_size} x accumulate {plan.accumulate} = {effective} rows "
        f"per update, {plan.updates_per_epoch} updates per epoch",
        f"updates:   {plan.total_updates} in {plan.epochs} epoch(s)"
        + (
            f", from --training_steps {config.training_steps}"
            if config.training_steps
            else f", from --epochs {config.epochs}"
        )
        + (" (less than one epoch)" if plan.total_updates < plan.updates_per_epoch else ""),
        f"rate:      {config.lr:g} after {plan.warmup_updates} updates of warm-up "
        f"({config.warmup_ratio:g} of all), then linearly to 0",
        f"optimizer: {config.optimizer}"
        + (" (bias-corrected)" if config.optimizer == "adamw" else " (no bias correction)")
        + f", epsilon {config.epsilon:g}, weight decay {config.weight_decay:g} but not on biases and LayerNorm, "
        + (f"gradient clipped to norm {config.max_grad_norm:g}" if config.max_grad_norm else "no clipping"),
    ]


def describe_data(splits, task, tokenizer, plan, batching, config):
    """Lines on every split (name -> LoadedSplit), and three examples of the first one raw and as tokens."""
    lines = []
    measured = measure_lengths(splits, plan, batching, config)
    for name, split in splits.items():  # train comes first
        lines += _describe_split(name, split.features, task.labels, measured[name]["padding"], batching)
    return lines + _describe_examples(next(iter(splits.values())), tokenizer)


def measure_lengths(splits, plan, batching, config):
    """Split name -> its rows' lengths in tokens: mean, max, a histogram in steps of 8, and the share of padding in the
    batches of its first epoch or evaluation."""
    measured = {}
    for name, split in splits.items():
        lengths = split.features.lengths
        if name == "train":
            batches = training_order(lengths, batch_size=plan.batch_size, seed=config.seed, epoch=0)
        else:
            batches = evaluation_order(lengths, batch_size=config.dev_batch_size)
        measured[name] = {
            "rows": len(lengths),
            "mean": round(float(lengths.mean()), 2),
            "max": int(lengths.max()),
            "histogram": np.bincount((lengths - 1) // 8).tolist(),  # rows of 1 to 8 tokens, 9 to 16, ...
            "padding": padding_share(split.features, batches, round_to=batching.round_to, max_len=batching.max_len),
        }
    return measured


def _describe_split(name, features, labels, share, batching):
    lengths = features.lengths
    lines = [
        f"{name + ':':<10} {len(features)} rows, {lengths.mean():.1f} tokens on average, {lengths.max()} at most; "
        f"{features.truncated} ({features.truncated / len(features):.1%}) cut to --max_len {batching.max_len}; "
        f"{share:.1%} padding"
    ]
    if features.label_ids is not None and labels:
        counts = np.bincount(features.label_ids, minlength=len(labels))
        spread = ", ".join(f"{label} {count / len(features):.1%}" for label, count in zip(labels[:8], counts))
        lines.append(f"           labels: {spread}" + (", ..." if len(labels) > 8 else ""))
        if (counts > 0).sum() == 1:
            lines.append("WARNING: only one label occurs here, there is nothing to learn from it")
    elif features.label_ids is not None:
        scores = features.label_ids
        lines.append(f"           scores: mean {scores.mean():.2f}, from {scores.min():g} to {scores.max():g}")
    return lines


def _describe_examples(split, tokenizer, count=3):
    lines = []
    for example in split.examples[:count]:
        texts = [text for text in (example.text_a, example.text_b) if text is not None]
        label = "" if example.label is None else f" -> {example.label}"
        lines.append(f"{'example ' + str(example.index) + ':':<10} " + " | ".join(_shorten(text) for text in texts) + label)
        offsets = split.features.offsets
        ids = split.features.input_ids[offsets[example.index] : offsets[example.index + 1]]
        lines.append("           " + _shorten(" ".join(tokenizer.tokens(ids))))
    return lines


def _shorten(text, width=110):
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= width else text[: width - 3] + "..."
