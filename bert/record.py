"""What a finished run says of itself: its results as data, as a table, and as the model's card. Knows no engine."""

import hashlib
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from bert import __version__
from bert.logs import table
from bert.plan import measure_lengths
from bert.weights import file_digest


def versions(engine):
    """Name -> version of all that a run's numbers may depend on."""
    found = {"finetune_classifier": __version__, "python": platform.python_version()}
    frameworks = {"pytorch": ("torch",), "mxnet": ("mxnet", "mxnet-cu102", "mxnet-cu117", "gluonnlp")}[engine]
    for package in ("numpy", "tokenizers", "scikit-learn", "scipy", *frameworks):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass  # one of several builds of the same framework
    return found


def run_record(config, task, engine, why, precision, pretrained, splits, batching, plan):
    """The content of config.json: everything as it was resolved, with reasons, versions and digests."""
    return {
        "config": asdict(config),
        "task": task.name,
        "labels": task.labels,
        "engine": {
            "name": engine.name,
            "why": why,
            "device": engine.device,
            "range_changes": [str(change) for change in engine.range_changes],
        },
        "precision": asdict(precision),
        "model": {
            "source": pretrained.source,
            "sha256": file_digest(pretrained.weight_file),
            "architecture": asdict(pretrained.architecture),
        },
        "data_sha256": {name: file_digest(split.path) for name, split in splits.items()},
        "tokens_sha256": {name: _features_digest(split.features) for name, split in splits.items()},
        "lengths": measure_lengths(splits, plan, batching, config),
        "batching": asdict(batching),
        "plan": plan and asdict(plan),
        "versions": versions(engine.name),
    }


def _features_digest(features):
    """sha256 of what an engine is fed from a split: the same file reads differently with another tokenizer or --max_len."""
    digest = hashlib.sha256()
    for array in (features.input_ids, features.offsets, features.segment_starts, features.label_ids):
        digest.update(b"none" if array is None else np.ascontiguousarray(array))
    return digest.hexdigest()


def training_results(result, scaler, task):
    """The part of results.json that training fills: scores of the best and the last epoch, and the numbers of the run."""
    return {
        "primary_metric": f"{task.metrics[0]}, mean over the dev files",
        "best_epoch": result.best["epoch"],
        "scores": {"best": result.best["scores"], "last": result.last["scores"]},
        "epochs": len(result.evaluations),
        "stopped_early": result.stopped_early,
        "updates": result.updates,
        "skipped_updates": scaler.skipped_updates,
        "final_loss_scale": scaler.scale,
        "train_seconds": round(result.train_seconds, 3),
        "eval_seconds": round(result.eval_seconds, 3),
        "examples_per_second": round(result.examples / result.train_seconds, 2),
        "tokens_per_second": round(result.tokens / result.train_seconds, 1),
    }


def result_lines(results):
    """The closing table of results.json's content: scores, then the numbers that people compare."""
    scores = results["scores"]
    title = {"best": f"epoch {results.get('best_epoch')} (best)", "last": f"epoch {results.get('epochs')} (last)"}
    rows = [["split", "metric", *(title.get(kind, kind) for kind in scores)]]
    for split, values in next(iter(scores.values())).items():
        rows += [[split, metric, *(kind[split][metric] for kind in scores.values())] for metric in values]
    lines = table(rows) if len(rows) > 1 else []
    if "train_seconds" in results:
        lines.append(
            f"{results['updates']} updates ({results['skipped_updates']} skipped, final loss scale "
            f"{results['final_loss_scale']:g}) in {results['train_seconds']:.1f} s: "
            f"{results['examples_per_second']:.1f} examples/s, {results['tokens_per_second']:.0f} real tokens/s"
        )
    lines.append(f"peak memory {results['peak_memory_mib']} MiB, {results['wall_seconds']:.1f} s in all")
    return lines


def model_card(task, config, pretrained, precision, evaluation):
    """README.md of a saved model: what it is, from what, how, and how good on the dev split."""
    lines = [
        f"# {task.name} classifier",
        "",
        f"Fine-tuned on {task.name} with `finetune_classifier.py` {__version__} from {pretrained.source.split(' (')[0]}.",
        "",
        f"Recipe: learning rate {config.lr:g}, {config.batch_size} x {config.accumulate} rows per update, "
        f"{config.optimizer}, seed {config.seed}, matrix products in {precision.dtype}.",
        f"Labels: {', '.join(task.labels) if task.labels else 'a score'}.",
        "",
        f"Scores on the development split after epoch {evaluation['epoch']}:",
        "",
        "| split | metric | score |",
        "|---|---|---|",
    ]
    for split, values in evaluation["scores"].items():
        lines += [f"| {split} | {metric} | {value:.4f} |" for metric, value in values.items()]
    return "\n".join(lines) + "\n"
