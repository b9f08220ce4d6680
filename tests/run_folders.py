"""Finished runs' folders made up from random numbers, for tests of what reads them: no engine, no data set."""

import json

import numpy as np

from bert.config import parse
from bert.metrics import compute_metrics, mean_loss
from bert.submission import write_dev_predictions, write_mistakes
from bert.tasks import TASKS


class _Example:
    def __init__(self, number):
        self.text_a, self.text_b = f"text {number} <b>", None


def write_run(folder, task_name, *, dtype="float32", seed=0, rows=60, updates=80, skill=1.0, flags=(), finished=True):
    """Write one run into `folder`; `skill` is how far logits lean to the label (0: not at all)."""
    task = TASKS[task_name]
    random = np.random.default_rng([seed, *map(ord, dtype + task_name)])
    words = ["--task_name", task_name, "--bert_model", "minilm_6_384_12", "--dtype", dtype, "--seed", str(seed), *flags]
    config = vars(parse([*words, "--output_dir", str(folder), "--resume"]))
    splits = task.split_names("dev")
    folder.mkdir(parents=True)
    lengths = {"rows": rows, "mean": 20.5, "max": 41, "histogram": [3, 9, 20, 14, 8, 6], "padding": 0.125}
    record = {
        "config": config,
        "task": task.name,
        "labels": task.labels,
        "engine": {"name": "pytorch", "why": "made up", "device": "cpu, 1 threads", "range_changes": []},
        "precision": {"dtype": dtype, "reason": "made up"},
        "model": {"source": "minilm_6_384_12 (made up)", "sha256": "5" * 64, "architecture": {}},
        "data_sha256": {name: f"{number:064x}" for number, name in enumerate(["train", *splits])},
        "lengths": dict.fromkeys(("train", *splits), lengths),
        "plan": {"rows": rows, "total_updates": updates},
        "versions": {"finetune_classifier": "0.1.0", "numpy": np.__version__},
    }
    (folder / "config.json").write_text(json.dumps(record))
    if not finished:
        return
    evaluations, epochs = [], 3
    for epoch in range(1, epochs + 1):
        scores = {}
        for number, name in enumerate(splits):
            labels, logits = _outputs(task, np.random.default_rng(number), random, rows, skill * epoch / epochs)
            scores[name] = compute_metrics(task.metrics, logits, labels, regression=task.regression)[0]
            scores[name]["loss"] = mean_loss(logits, labels, regression=task.regression)
            for kind in ("last", "best") if epoch == epochs else ():
                write_dev_predictions(folder / "predictions", task, name, kind, logits, labels)
                write_mistakes(folder / "predictions", task, name, logits, labels, [_Example(i) for i in range(rows)])
        primary = float(np.mean([values[task.metrics[0]] for values in scores.values()]))
        evaluations.append({"epoch": epoch, "step": updates * epoch // epochs, "primary": primary, "scores": scores})
    skipped = _write_log(folder / "log.jsonl", random, updates, evaluations, scaled=dtype == "float16")
    best = max(evaluations, key=lambda evaluation: evaluation["primary"])
    results = {"task": task.name, "engine": "pytorch", "device": "cpu, 1 threads", "dtype": dtype, "seed": seed}
    results |= {"primary_metric": task.metrics[0], "best_epoch": best["epoch"], "epochs": epochs, "stopped_early": False}
    results |= {"scores": {"best": best["scores"], "last": evaluations[-1]["scores"]}}
    results |= {"updates": updates, "skipped_updates": skipped, "train_seconds": 60.0 + seed, "eval_seconds": 3.0}
    results |= {"final_loss_scale": 2.0 ** (16 - skipped) if dtype == "float16" else 1.0, "wall_seconds": 70.0}
    results |= {"examples_per_second": 100.0, "tokens_per_second": 5000.0 + seed, "peak_memory_mib": 1500}
    (folder / "results.json").write_text(json.dumps(results))


def _outputs(task, fixed, random, rows, skill):
    """Labels that are the same for every run, and logits that lean to them."""
    if task.regression:
        labels = (fixed.random(rows) * 5).astype(np.float32)
        return labels, (skill * labels + random.normal(size=rows)).astype(np.float32)[:, None]
    labels = (fixed.random(rows) ** 0.7 * task.num_labels).astype(int)
    logits = random.normal(size=(rows, task.num_labels))
    logits[np.arange(rows), labels] += 1.6 * skill
    return labels, logits.astype(np.float32)


def _write_log(path, random, updates, evaluations, *, scaled):
    """Returns the number of skipped updates."""
    lines, scale, skipped = [], 2.0**16 if scaled else 1.0, 0
    for step in range(1, updates + 1):
        overflow = scaled and step in (2, updates // 2)
        rate = 5e-5 * min(step / (updates / 10), (updates - step) / (0.9 * updates))
        record = {"step": step, "epoch": 1, "learning_rate": rate, "loss_scale": scale, "tokens": 1500, "skipped": overflow}
        record |= {"loss": 0.2 + 0.5 * np.exp(-3 * step / updates) + 0.03 * random.normal(), "tokens_per_second": 5000.0}
        lines.append(record | {"grad_norm": None if overflow else float(np.exp(0.5 + 0.4 * random.normal()))})
        lines += [{"evaluation": evaluation} for evaluation in evaluations if evaluation["step"] == step]
        if overflow:
            scale, skipped = scale / 2, skipped + 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return skipped
