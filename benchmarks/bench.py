#!/usr/bin/env python3
"""This program against its peers: whole processes in turn (ours, peer, ours, peer, ...), on the same data, in one go.

    python benchmarks/bench.py --glue data/glue --peers ../shared/peers --pairs 5 --output runs/bench
    python benchmarks/bench.py --only mrpc-minilm startup

Writes bench.json (every figure of every run), bench.md (the table) and bench.png; rows measured earlier on the same
machine stay in all three, each with its date. Both sides get the same seed, another one in every pair. A row whose
packages are not installed is skipped, and said so.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.step import make_architecture, model_flops, parse_shape, random_weights
from bert import InputError
from bert.logs import write_json
from bert.weights import MINILM, TOKENIZER_FILES, find_pretrained, read_config, read_json

ROOT = Path(__file__).resolve().parents[1]
OURS = "{python} finetune_classifier.py --lr 5e-5 --epsilon 1e-8 --seed {seed} --output_dir {run} "
TRAINER = "{python} {peers}/hf_trainer.py --lr 5e-5 --seed {seed} --group --fused --model {model} "
STEP = "{python} benchmarks/step.py --batch_size 32 --length 64 --shape {shape} --steps {steps} "
GLUONNLP = "{python} {peers}/gluonnlp_step.py --batch_size 32 --length 64 --shape {shape} --steps {steps}"
OUR_MRPC, THEIR_MRPC = OURS + "--task_name MRPC --data_dir {data} ", TRAINER + "--task MRPC --data {data} "
HUGGING_FACE = ("torch", "transformers", "accelerate")
MXNET = ("mxnet", "gluonnlp")


class Comparison(NamedTuple):
    name: str
    what: str
    compared: str  # the figure, in seconds
    target: float  # the peer's seconds over ours, at least; without a peer: seconds at most
    needs: tuple  # packages
    ours: str  # commands, with the places of SIZES and of `prepare`
    peer: str = ""
    products: str = ""  # step.py's flags for the rate of bare products that the model's operations are a share of


COMPARISONS = (
    Comparison(
        "mrpc-minilm-bfloat16",
        "MRPC, {epochs} epoch(s), MiniLM-L6, bfloat16, shell to result (ours scores dev every epoch, saves the best)",
        "wall_seconds",
        2.5,
        HUGGING_FACE,
        OUR_MRPC + "--bert_model {model} --dtype bfloat16 --epochs {epochs}",
        THEIR_MRPC + "--bf16 --epochs {epochs}",
        "--dtype bfloat16 --shape {minilm}",
    ),
    Comparison(
        "mrpc-minilm-float32",
        "MRPC, {float_steps} updates, MiniLM-L6, float32, training time",
        "train_seconds",
        1.2,
        HUGGING_FACE,
        OUR_MRPC + "--bert_model {model} --dtype float32 --training_steps {float_steps}",
        THEIR_MRPC + "--max_steps {float_steps}",
        "--dtype float32 --shape {minilm}",
    ),
    Comparison(
        "mrpc-base-bfloat16",
        "MRPC, {base_steps} updates, BERT-base shape, random weights, bfloat16, training time",
        "train_seconds",
        1.8,
        HUGGING_FACE,
        OUR_MRPC + "--bert_model {base} --dtype bfloat16 --training_steps {base_steps}",
        THEIR_MRPC + "--random {shape} --bf16 --max_steps {base_steps}",
        "--dtype bfloat16 --shape {shape}",
    ),
    Comparison(
        "mrpc-base-float32",
        "the same in float32",
        "train_seconds",
        1.2,
        HUGGING_FACE,
        OUR_MRPC + "--bert_model {base} --dtype float32 --training_steps {base_steps}",
        THEIR_MRPC + "--random {shape} --max_steps {base_steps}",
        "--dtype float32 --shape {shape}",
    ),
    Comparison(
        "sst2-minilm-bfloat16",
        "SST-2 (short rows), {sst2_steps} updates, MiniLM-L6, bfloat16, training time",
        "train_seconds",
        2.5,
        HUGGING_FACE,
        OURS + "--task_name SST-2 --data_dir {data} --bert_model {model} --dtype bfloat16 --training_steps {sst2_steps}",
        TRAINER + "--task SST-2 --data {data} --bf16 --max_steps {sst2_steps}",
        "--dtype bfloat16 --shape {minilm}",
    ),
    Comparison(
        "predict-sst2",
        "predicting SST-2's training rows, fine-tuned MiniLM-L6, bfloat16, shell to result",
        "wall_seconds",
        2.0,
        HUGGING_FACE,
        OURS + "--task_name SST-2 --data_dir {long} --model_parameters {tuned} --dtype bfloat16 --only_inference",
        "{python} benchmarks/hf_predict.py --file {long}/SST-2/dev.tsv --model {tuned} --bf16 --batch_size 256",
    ),
    Comparison(
        "startup",
        "from the shell to the end of the first update, 32 rows of MRPC, MiniLM-L6, bfloat16 (the process less evaluation)",
        "start_seconds",
        2.0,
        HUGGING_FACE,
        OURS + "--task_name MRPC --data_dir {tiny} --bert_model {model} --dtype bfloat16 --training_steps 1",
        TRAINER + "--task MRPC --data {tiny} --limit 32 --bf16 --max_steps 1",
    ),
    Comparison(
        "gluonnlp-pytorch-float32",
        "update of 32 x 64 tokens, BERT-base, PyTorch float32 against GluonNLP's float32",
        "step_seconds",
        2.5,
        ("torch", *MXNET),
        STEP + "--engine pytorch --dtype float32",
        GLUONNLP,
    ),
    Comparison(
        "gluonnlp-pytorch-bfloat16",
        "update of 32 x 64 tokens, BERT-base, PyTorch bfloat16 against GluonNLP's float32",
        "step_seconds",
        8.0,
        ("torch", *MXNET),
        STEP + "--engine pytorch --dtype bfloat16",
        GLUONNLP,
    ),
    Comparison(
        "gluonnlp-mxnet",
        "update of 32 x 64 tokens, BERT-base, MXNet float32 against GluonNLP's float32",
        "step_seconds",
        1.0,
        MXNET,
        STEP + "--engine mxnet --dtype float32",
        GLUONNLP,
    ),
    Comparison(
        "tokenize-mnli",
        "reading and tokenizing {texts} pairs of MNLI's lengths",
        "text_seconds",
        30.0,
        (),
        "{python} benchmarks/text.py --read {mnli} --model {model}",
    ),
)
SIZES = {"rows": None, "shape": "12,768,12", "minilm": "6,384,12", "epochs": 3, "base_steps": 30, "float_steps": 60}
SIZES.update(sst2_steps=500, steps=4, texts=393_000)
QUICK = {"rows": 64, "shape": "2,128,2", "minilm": "2,128,2", "epochs": 1, "base_steps": 2, "float_steps": 2}
QUICK.update(sst2_steps=2, steps=2, texts=2_000)


# --- the inputs of both sides ----------------------------------------------------------------------------------------


def prepare(folder, args, comparisons, size):
    """Write what the runs read; returns the places to fill into their commands.

    No test files: the Trainer script predicts none, so ours must not either.
    """
    model = Path(args.model).resolve() if args.model else find_pretrained(MINILM)[0]
    read_config(model)  # an error here is clearer than one in every run
    places = {name: folder / name for name in ("data", "tiny", "long", "base", "tuned")}
    places.update(model=model, peers=args.peers, python=sys.executable, mnli=folder / "MNLI" / "train.tsv")
    commands = " ".join(comparison.ours for comparison in comparisons)
    if "{data}" in commands or "{tuned}" in commands:
        for task in ("MRPC", "SST-2"):
            for split in ("train", "dev"):
                copy_rows(args.glue / task / f"{split}.tsv", places["data"] / task / f"{split}.tsv", size["rows"])
    if "{tiny}" in commands:
        copy_rows(args.glue / "MRPC" / "train.tsv", places["tiny"] / "MRPC" / "train.tsv", 32)
        copy_rows(args.glue / "MRPC" / "dev.tsv", places["tiny"] / "MRPC" / "dev.tsv", 8)
    if "{base}" in commands:
        # In a process of its own: Linux counts a parent's peak memory into that of the processes it starts.
        process = multiprocessing.get_context("spawn").Process(
            target=write_random_model, args=(places["base"], model, size["shape"])
        )
        process.start()
        process.join()
        if process.exitcode:
            raise InputError(f"{places['base']}: the random model could not be written")
    if "{tuned}" in commands:
        copy_rows(args.glue / "SST-2" / "train.tsv", places["long"] / "SST-2" / "dev.tsv", size["rows"])
        command = OURS + "--task_name SST-2 --data_dir {data} --bert_model {model} --dtype bfloat16 --training_steps {steps}"
        values = {**places, "seed": 0, "run": folder / "tuning", "steps": min(100, size["sst2_steps"])}
        run_process(fill(command, values), folder / "tuning-log")
        places["tuned"] = folder / "tuning" / "model"
    if "{mnli}" in commands:
        command = "{python} benchmarks/text.py --write {mnli} --rows {texts} --model {model}"
        run_process(fill(command, {**places, **size}), folder / "mnli-log")
    return places


def copy_rows(source, target, rows=None):
    """Copy the header and the first `rows` rows of a TSV file; all without a number."""
    try:
        lines = source.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"--glue: {source} cannot be read: {error.strerror}") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"\n".join(lines if rows is None else lines[: rows + 1]).rstrip(b"\n") + b"\n")


def write_random_model(folder, model, shape):
    """Write a BERT of `shape` with random weights and the tokenizer of another model's folder, in Hugging Face layout."""
    from safetensors.numpy import save_file

    layers, hidden, heads = parse_shape(shape)
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    config = {**read_json(model / "config.json"), **sizes, "intermediate_size": 4 * hidden}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    for name in TOKENIZER_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)
    _, architecture = read_config(folder)
    weights = random_weights(architecture)
    encoder = {name: array for name, array in weights.items() if not name.startswith("classifier.")}
    save_file(encoder, str(folder / "model.safetensors"), metadata={"format": "pt"})


# --- running ---------------------------------------------------------------------------------------------------------


def fill(command, values):
    """The words of a command, places filled; a path with spaces stays one word."""
    return [word.format(**values) for word in command.split()]


def run_process(command, folder):
    """Run a command from the repository's root, its output into `folder`; (wall seconds, peak RSS in MiB)."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "stdout.txt", "wb") as out, open(folder / "stderr.txt", "wb") as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # stopped by the keyboard
            process.kill()
            raise
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = (folder / "stderr.txt").read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else "no message"
        raise InputError(f"{' '.join(command[1:2])} ended with {process.returncode}: {reason} (see {folder})")
    return wall, usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def run_pairs(comparison, places, size, pairs, folder):
    """The figures of `pairs` interleaved pairs: a list of {"seed": ..., "ours": figures, "peer": figures}."""
    found = []
    for number in range(pairs):
        pair = {"seed": number}
        for side in ("ours", "peer"):
            command = getattr(comparison, side)
            if not command:
                continue
            where = folder / f"{number}-{side}"
            run = where / "run"
            words = fill(command, {**size, **places, "seed": number, "run": run})
            wall, peak = run_process(words, where)
            if (run / "results.json").is_file():
                report = read_json(run / "results.json")
                shutil.rmtree(run)  # a model for every run would fill the disk
            else:
                report = last_line(where)
            pair[side] = {**figures(report, wall, peak), "command": words}
            say(f"  {number + 1}/{pairs} {side}: {pair[side][comparison.compared]:.2f} s")
            if comparison.products and side == "ours":  # between the two: a machine's speed may move by a third in minutes
                rate = product_rate(comparison.products, {**size, **places}, folder / f"{number}-products")
        if comparison.products:
            for run in (pair["ours"], pair["peer"]):
                run["share_of_product_rate"] = product_share(run["report"], *rate)
        found.append(pair)
    return found


def last_line(folder):
    """What a script said of its run: the JSON line at the end of its output."""
    return json.loads((folder / "stdout.txt").read_text().splitlines()[-1])


def product_rate(flags, values, folder):
    """(shape, operations per second of bare matrix products of that shape), measured now."""
    words = fill("{python} benchmarks/step.py --batch_size 32 --length 64 --steps 1 " + flags, values)
    run_process(words, folder)
    return words[words.index("--shape") + 1], last_line(folder)["product_gflops_per_second"] * 1e9


def product_share(report, shape, rate):
    """The model's operations per second, those of real tokens only, as a share of the rate of bare matrix products."""
    rows = report["examples_per_second"]
    tokens = report.get("tokens_per_second", report.get("real_tokens_per_second"))
    return round(model_flops(make_architecture(shape), rows, tokens / rows) / rate, 4)


def figures(report, wall, peak):
    """What one run came to, under the same names for every program; `report` is what it said of itself."""
    found = {"wall_seconds": round(wall, 3), "peak_rss_mib": round(peak)}
    for figure in ("train_seconds", "step_seconds", "text_seconds", "share_of_product_rate"):
        if figure in report:
            found[figure] = report[figure]
    if "eval_seconds" in report:  # of a run of one update: ours saves its model within that time too
        found["start_seconds"] = round(wall - report["eval_seconds"], 3)
    tokens = report.get("tokens_per_second", report.get("real_tokens_per_second"))
    if tokens is not None:
        found["tokens_per_second"] = tokens
    scores = report
    if "scores" in report:  # ours; the Trainer scores the last epoch, so that is what compares
        scores = report["scores"].get("last") or report["scores"]["saved"]
        scores = scores["dev"]
    found["scores"] = {metric: scores[metric] for metric in ("accuracy", "f1") if metric in scores}
    return {**found, "report": report}


# --- what it comes to ------------------------------------------------------------------------------------------------


#: Of every run that has them, beside the seconds that are compared.
FIGURES = ("wall_seconds", "peak_rss_mib", "tokens_per_second", "share_of_product_rate")


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarize(pairs, compared):
    """Median, min and max of each side's figures, the mean of its scores, and of the ratios pair by pair (peer / ours)."""
    summary = {}
    for side in ("ours", "peer"):
        runs = [pair[side] for pair in pairs if side in pair]
        if not runs:
            continue
        summary[side] = {
            figure: spread([run[figure] for run in runs])
            for figure in dict.fromkeys((compared, *FIGURES))
            if figure in runs[0]
        }
        summary[side]["scores"] = {
            metric: statistics.mean(run["scores"][metric] for run in runs) for metric in runs[0]["scores"]
        }
    if "peer" in summary:
        summary["ratio"] = spread([pair["peer"][compared] / pair["ours"][compared] for pair in pairs])
    return summary


def markdown(machine, results):
    """Lines of the table; `results` maps a comparison's name to its entry in bench.json."""
    software = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"{machine['cpu']}, {machine['cores']} core(s), {machine['memory_gib']:.0f} GiB; {software}",
        "",
        "Median (least to most). Ratio: the peer's time over ours, pair by pair. Share: the model's operations on real "
        "tokens, of the rate of bare matrix products of its shapes measured within the same pair.",
        "",
        "| ours / peer | pairs | ours, s | peer, s | ratio | target | tokens/s | share | peak MiB | dev scores | took |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results.values():
        summary, sides = result["summary"], [side for side in ("ours", "peer") if side in result["summary"]]
        seconds = {side: _range(summary[side][result["compared"]]) for side in sides}
        cells = [
            result["what"],
            str(len(result["pairs"])),
            seconds["ours"],
            seconds.get("peer", ""),
            _range(summary["ratio"]) if "ratio" in summary else "",
            f"{result['target']:g}" if "ratio" in summary else f"{result['target']:g} s",
            *(
                " / ".join(
                    format(summary[side][figure]["median"], form) if figure in summary[side] else "-" for side in sides
                )
                for figure, form in (("tokens_per_second", ".0f"), ("share_of_product_rate", ".0%"), ("peak_rss_mib", ".0f"))
            ),
            "; ".join(
                f"{metric} " + " / ".join(f"{summary[side]['scores'].get(metric, float('nan')):.4f}" for side in sides)
                for metric in summary["ours"]["scores"]
            ),
            f"{result['minutes']:.1f} min, {result['date'][:10]}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"{sum(result['minutes'] for result in results.values()):.0f} minutes in all."]


def _range(values):
    if values["min"] == values["max"]:
        return f"{values['median']:.3g}"
    return f"{values['median']:.3g} ({values['min']:.3g} to {values['max']:.3g})"


def plot(results, path):
    """Bars of the ratios with their ranges and targets; says so and does nothing where matplotlib is missing."""
    rows = [(name, result) for name, result in results.items() if "ratio" in result["summary"]]
    if not rows:
        return
    if find_spec("matplotlib") is None:
        say("no plot: matplotlib is not installed")
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.45 * len(rows)), layout="constrained")
    for row, (_, result) in enumerate(rows):
        ratio = result["summary"]["ratio"]
        middle = ratio["median"]
        error = [[middle - ratio["min"]], [ratio["max"] - middle]]
        axes.barh(row, middle, height=0.6, color="#4477aa", xerr=error, capsize=3)
        axes.plot([result["target"]] * 2, [row - 0.4, row + 0.4], color="#cc3311", label="" if row else "target")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("the peer's time / ours")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1))  # above the bars, which may reach anywhere
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def describe_machine():
    """The machine and the software that the figures belong to."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(known.get("flags", "").split())
    versions = {}
    for package in ("torch", "transformers", "accelerate", "mxnet", "gluonnlp"):
        with contextlib.suppress(PackageNotFoundError):  # what needs it is skipped
            versions[package] = version(package)
    return {
        "cpu": known.get("model name") or platform.processor() or platform.machine(),
        "cpu_features": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_fp16"}),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "python": platform.python_version(),
        "versions": versions,
    }


def earlier_results(path, machine):
    """The rows that bench.json holds of this machine; none where it tells of another, which is then put aside."""
    if not path.is_file():
        return {}
    content = read_json(path)
    if content.get("machine") == machine:
        return content["results"]
    path.replace(path.with_name("bench-old.json"))
    say(f"{path} is of another machine or other software: kept as bench-old.json")
    return {}


# --- the command -----------------------------------------------------------------------------------------------------


def say(text):
    print(text, flush=True)


def parse(argv=None):
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nrows: {', '.join(comparison.name for comparison in COMPARISONS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, beside = parser.add_argument, ROOT.parent / "shared"
    add("--glue", type=Path, default=beside / "glue", help="folder with MRPC and SST-2 (default: ../shared/glue)")
    add("--peers", type=Path, default=beside / "peers", help="folder with the peers' scripts (default: ../shared/peers)")
    add("--model", help="pretrained model in Hugging Face layout (default: the installed minilm_6_384_12)")
    add("--pairs", type=int, default=5, help="runs of each side (default: %(default)s)")
    add("--only", nargs="+", default=[""], metavar="NAME", help="only rows whose names begin so")
    add("--output", type=Path, default=Path("runs/bench"), help="default: %(default)s")
    add("--quick", action="store_true", help="one pair of everything at toy size, into OUTPUT/quick: measures nothing")
    args = parser.parse_args(argv)
    if args.pairs < 1:
        parser.error("--pairs starts at 1")
    return args


def run(args):
    chosen = [comparison for comparison in COMPARISONS if comparison.name.startswith(tuple(args.only))]
    if not chosen:
        raise InputError(f"--only {' '.join(args.only)}: expected the beginning of {', '.join(c.name for c in COMPARISONS)}")
    args.glue, args.peers, folder = args.glue.resolve(), args.peers.resolve(), args.output.resolve()
    for script in ("hf_trainer.py", "gluonnlp_step.py"):
        if not (args.peers / script).is_file():
            raise InputError(f"--peers {args.peers}: holds no {script}")
    size, pairs = (QUICK, 1) if args.quick else (SIZES, args.pairs)
    folder = folder / "quick" if args.quick else folder
    machine, load = describe_machine(), os.getloadavg()[0]
    say(", ".join(f"{name}: {value}" for name, value in machine.items()))
    if load > 0.5:
        say(f"WARNING: the machine is busy (load {load:.1f}): these figures will not be worth much")
    absent = {package for comparison in chosen for package in comparison.needs if find_spec(package) is None}
    for comparison in chosen:
        if absent & set(comparison.needs):
            say(f"{comparison.name}: skipped, not installed: {', '.join(sorted(absent & set(comparison.needs)))}")
    chosen = [comparison for comparison in chosen if not absent & set(comparison.needs)]
    shutil.rmtree(folder / "work", ignore_errors=True)
    places = prepare(folder / "work" / "inputs", args, chosen, size)
    results, failures, began = earlier_results(folder / "bench.json", machine), [], time.perf_counter()
    for comparison in chosen:
        say(f"{comparison.name}: {comparison.what.format(**size)}")
        date, start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
        try:
            found = run_pairs(comparison, places, size, pairs, folder / "work" / comparison.name)
        except InputError as error:  # the others may still run
            say(f"error: {error}")
            failures.append(comparison.name)
            continue
        results[comparison.name] = {
            "what": comparison.what.format(**size),
            "compared": comparison.compared,
            "target": comparison.target,
            "date": date,
            "load_before": load,
            "minutes": round((time.perf_counter() - start) / 60, 2),
            "pairs": found,
            "summary": summarize(found, comparison.compared),
        }
        # After each row: a run that is stopped keeps what it has.
        results = {c.name: results[c.name] for c in COMPARISONS if c.name in results}
        write_json(folder / "bench.json", {"machine": machine, "results": results})
        lines = ["Toy sizes, a trial of the script: no measurement.", ""] if args.quick else []
        lines += markdown(machine, results)
        (folder / "bench.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        plot(results, folder / "bench.png")
        say(f"  took {results[comparison.name]['minutes']:.1f} min")
    shutil.rmtree(folder / "work" / "inputs", ignore_errors=True)
    if len(failures) < len(chosen):
        say("\n".join(["", *lines, "", f"wrote {folder}/bench.json and what goes with it"]))
    say(
        f"{(time.perf_counter() - began) / 60:.1f} min in this run"
        + (f"; failed: {', '.join(failures)}" if failures else "")
    )
    return 1 if failures else 0


def main(argv=None):
    try:
        return run(parse(argv))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
