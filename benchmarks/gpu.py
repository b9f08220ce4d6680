#!/usr/bin/env python3
"""The PyTorch engine on a CUDA GPU, in under five minutes: speed, memory, and the engine's contract in every precision.

    python benchmarks/gpu.py --gpu 0 --output runs/gpu.json

Random weights and ids at the shapes of MiniLM-L6 and BERT-base. Where transformers is installed, a loop with its BERT,
fused AdamW and autocast runs in turn with ours at every point. Exit codes: 0 done; 1 a check failed; 2 no GPU.
"""

import argparse
import functools
import gc
import itertools
import math
import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

try:
    import torch
except ImportError:  # told in one line by refusal()
    torch = None

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.step import (
    NUM_LABELS,
    create_engine,
    make_architecture,
    model_flops,
    product_rate,
    random_batch,
    torch_products,
    update_once,
)
from bert import RunError
from bert.architecture import has_weight_decay
from bert.engines import load_engine
from bert.logs import table, write_json
from bert.precision import DTYPES, LossScaler

SHAPES = {"MiniLM-L6": "6,384,12", "BERT-base": "12,768,12"}
LENGTHS = (32, 64, 128, 512)  # ascending: what does not fit ends a row of points
ROUNDS = 3  # of ours, peer
SECONDS_PER_ROUND = 0.3

# Largest difference of logits, relative to the largest logit, that padding may make: other kernels round differently.
PADDING_TOLERANCE = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}


# --- speed -----------------------------------------------------------------------------------------------------------


def our_step(engine, scaler, batch):
    """One update as the training loop does it: only a dynamic loss scale asks for the verdict before the next one."""
    _, update = update_once(engine, batch, loss_scale=scaler.scale)
    if scaler.dynamic:
        scaler.update(update.finite)


def make_peer(architecture, dtype, device):
    """A function that makes one update of the same model from a Batch with transformers' BERT under autocast."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = BertConfig(**{name: getattr(architecture, name) for name in sizes}, num_labels=NUM_LABELS)
    model = BertForSequenceClassification(config).to(device).train()
    decayed = [weight for name, weight in model.named_parameters() if has_weight_decay(name)]
    others = [weight for name, weight in model.named_parameters() if not has_weight_decay(name)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-5, eps=1e-6, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "float16")
    half = None if dtype == "float32" else getattr(torch, dtype)

    def step(batch):
        arrays = {
            "input_ids": batch.input_ids,
            "token_type_ids": batch.token_type_ids,
            "attention_mask": np.ones_like(batch.input_ids),
            "labels": batch.label_ids,
        }
        inputs = {
            name: torch.from_numpy(array.astype(np.int64)).pin_memory().to(device, non_blocking=True)
            for name, array in arrays.items()
        }
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            loss = model(**inputs).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds_per_step(step):
    """Seconds of one call of step(), waited for only before the first and after the last, as in training."""

    def timed(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    return timed(max(1, min(50, int(SECONDS_PER_ROUND / timed(1)))))


def step_memory(step):
    """Bytes that one call of step() takes at its peak beyond what is there already."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def kept_memory(build):
    """(what build() returns, bytes that it keeps on the device)."""
    before = torch.cuda.memory_allocated()
    built = build()
    torch.cuda.synchronize()
    return built, torch.cuda.memory_allocated() - before


def measure_point(sides, kept):
    """Side -> {"seconds": of each round, "memory": bytes} of the sides (name -> step function) that fit into memory.

    `kept` is side -> bytes between two steps.
    """
    found = {}
    for side, step in sides.items():
        try:
            for _ in range(2):  # kernels are chosen and compiled, memory is taken
                step()
            found[side] = {"seconds": [], "memory": kept[side] + step_memory(step)}
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    for _ in range(ROUNDS):
        for side in found:
            found[side]["seconds"].append(seconds_per_step(sides[side]))
    return found


def measure_model(module, shape, dtype, *, gpu, device, batch_size, in_time):
    """One record per length of LENGTHS that fits, as long as in_time() holds."""
    architecture = make_architecture(SHAPES[shape])
    # First, so that the workspaces of the product library are not counted as the engine's memory.
    rate = product_rate(torch_products(dtype, device), architecture, batch_size * 128)
    warm = random_batch(architecture, [16] * batch_size)
    scaler = LossScaler() if dtype == "float16" else LossScaler(1.0, dynamic=False)

    def build_ours():
        engine = create_engine(module, architecture, dtype=dtype, gpu=gpu)
        our_step(engine, scaler, warm)
        return functools.partial(our_step, engine, scaler)

    def build_peer():
        step = make_peer(architecture, dtype, device)
        step(warm)  # its optimizer makes the moments in the first update
        return step

    builders = {"ours": build_ours}
    if find_spec("transformers"):
        builders["peer"] = build_peer
    built = {side: kept_memory(build) for side, build in builders.items()}
    records = []
    for length in LENGTHS:
        if not in_time():
            break
        batch = random_batch(architecture, [length] * batch_size)
        sides = {side: functools.partial(step, batch) for side, (step, _) in built.items()}
        found = measure_point(sides, {side: kept for side, (_, kept) in built.items()})
        if "ours" not in found:
            break
        records.append(point_record(shape, dtype, length, batch_size, architecture, rate, found))
    return records


def point_record(shape, dtype, length, batch_size, architecture, rate, found):
    """The figures of one point; `found` as measure_point gives it, `rate` that of bare products."""
    ours = statistics.median(found["ours"]["seconds"])
    flops = model_flops(architecture, batch_size, length) / ours
    record = {
        "model": shape,
        "dtype": dtype,
        "length": length,
        "batch_size": batch_size,
        "step_ms": 1000 * ours,
        "tokens_per_second": batch_size * length / ours,
        "model_tflops_per_second": flops / 1e12,
        "product_tflops_per_second": rate / 1e12,
        "share_of_product_rate": flops / rate,
        "peak_mib": round(found["ours"]["memory"] / 2**20),
        "rounds": found,
    }
    if "peer" in found:
        peer = found["peer"]["seconds"]
        ratios = [peer[number] / seconds for number, seconds in enumerate(found["ours"]["seconds"])]
        record.update(
            peer_step_ms=1000 * statistics.median(peer),
            peer_peak_mib=round(found["peer"]["memory"] / 2**20),
            ratio=statistics.median(ratios),
            ratio_min=min(ratios),
            ratio_max=max(ratios),
        )
    return record


# --- the contract ----------------------------------------------------------------------------------------------------


def run_checks(module, dtype, gpu):
    """[{"check", "dtype", "passed", "detail"}] of the promises that a device can break."""
    checks = [the_scale_cancels, not_finite_changes_nothing, padding_changes_nothing]
    if dtype == "float16":
        checks.append(a_huge_scale_backs_off)
    found = []
    for check in checks:
        passed, detail = check(dtype, functools.partial(make_small_engine, module, dtype, gpu))
        found.append({"check": check.__name__.replace("_", " "), "dtype": dtype, "passed": bool(passed), "detail": detail})
    return found


def make_small_engine(module, dtype, gpu):
    """A small engine without dropout. Its epsilon is large, so that an update is not the sign of rounding errors."""
    return create_engine(module, small_architecture(), dtype=dtype, gpu=gpu, epsilon=1e-4)


def small_architecture():
    return make_architecture("2,128,4", vocab_size=1000, hidden_dropout=0.0, attention_dropout=0.0, classifier_dropout=0.0)


def the_scale_cancels(dtype, make_engine):
    """An update with a larger loss scale is the same update. Both scales are out of float16's underflow."""
    batch = random_batch(small_architecture(), [5, 9, 17, 30])
    engines = [make_engine(), make_engine()]
    before = engines[0].get_weights()
    for scale, engine in zip((2.0**6, 2.0**10), engines):  # noqa: B905  strict= is newer than Python 3.9
        update_once(engine, batch, learning_rate=1e-3, loss_scale=scale)
    low, high = (engine.get_weights() for engine in engines)
    off = _distance(low, high) / _distance(low, before)
    return off < (1e-3 if dtype == "float32" else 1e-2), f"updates differ by {off:.1e} of their size"


def not_finite_changes_nothing(dtype, make_engine):
    """A gradient that is not finite leaves weights and moments bit-identical, and the next update is applied again."""
    batch = random_batch(small_architecture(), [5, 9, 17, 30])
    engine = make_engine()
    update_once(engine, batch, learning_rate=1e-3)
    weights, state = engine.get_weights(), _moments(engine)
    _, update = update_once(engine, batch, learning_rate=1e-3, loss_scale=math.inf)
    seen = not update.finite
    same = _same(weights, engine.get_weights()) and _same(state, _moments(engine))
    _, update = update_once(engine, batch, learning_rate=1e-3)
    goes_on = update.finite and not _same(weights, engine.get_weights())
    return seen and same and goes_on, f"seen: {seen}, unchanged: {same}, goes on: {goes_on}"


def padding_changes_nothing(dtype, make_engine):
    """The logits of a row are the same alone, in a batch, and in a wider batch."""
    architecture, lengths = small_architecture(), [5, 9, 17, 30]
    engine = make_engine()
    narrow, wide = (engine.predict(random_batch(architecture, lengths, width=width)) for width in (30, 64))
    alone = engine.predict(random_batch(architecture, lengths[:1]))
    largest = np.abs(narrow).max()
    off = max(np.abs(wide - narrow).max(), np.abs(alone - narrow[:1]).max()) / largest
    return off <= PADDING_TOLERANCE[dtype], f"logits differ by {off:.1e} of the largest"


def a_huge_scale_backs_off(dtype, make_engine):
    """From a scale that must overflow: skipped updates change nothing, the scale halves until one is applied."""
    batch = random_batch(small_architecture(), [30] * 4)
    engine, scaler = make_engine(), LossScaler(2.0**40, maximum=2.0**40)
    before, first_unchanged, applied = engine.get_weights(), None, False
    try:
        while not applied:
            _, update = update_once(engine, batch, learning_rate=1e-3, loss_scale=scaler.scale)
            applied = update.finite
            scaler.update(applied)
            if first_unchanged is None:
                first_unchanged = not applied and _same(before, engine.get_weights())
    except RunError:  # the scale reached its floor
        applied = False
    moved = not _same(before, engine.get_weights())
    halved = scaler.scale == 2.0 ** (40 - scaler.skipped_updates)
    return (
        first_unchanged and applied and moved and halved,
        f"{scaler.skipped_updates} skipped, scale 2**40 -> 2**{math.log2(scaler.scale):.0f}, then applied: {applied}",
    )


def _distance(left, right):
    return math.sqrt(sum(float(np.square(left[name] - right[name], dtype=np.float64).sum()) for name in left))


def _same(left, right):
    return all(np.array_equal(left[name], right[name]) for name in left)


def _moments(engine):
    return {name: array for name, array in engine.state_dict().items() if not name.startswith("random/")}


# --- the command -----------------------------------------------------------------------------------------------------


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--gpu", type=int, default=0, help="number of the GPU (default: %(default)s)")
    add("--batch_size", type=int, default=32, help="default: %(default)s")
    add("--seconds", type=float, default=240, help="begin no further model after this time (default: %(default)s)")
    add("--output", type=Path, default=Path("runs/gpu.json"), help="default: %(default)s")
    return parser.parse_args(argv)


def refusal(gpu):
    """Why nothing can be measured here, in one line; None where it can."""
    if torch is None:
        return "PyTorch is not installed, so no CUDA GPU is visible"
    if not torch.cuda.is_available():
        return "no CUDA GPU is visible to PyTorch"
    if not 0 <= gpu < torch.cuda.device_count():
        return f"--gpu {gpu}: PyTorch sees {torch.cuda.device_count()} GPU(s), counted from 0"
    return None


def describe_gpu(gpu):
    properties = torch.cuda.get_device_properties(gpu)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "float32_products": torch.get_float32_matmul_precision(),  # "highest": no TF32, on neither side
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def measure(args, start):
    """The whole record: machine, checks, points, and what was left out and why."""
    torch.cuda.set_device(args.gpu)
    module, machine = load_engine("pytorch"), describe_gpu(args.gpu)
    print(", ".join(f"{name}: {value}" for name, value in machine.items()), flush=True)
    capabilities = module.capabilities(args.gpu)
    left_out = [f"{dtype}: {capabilities[dtype].note}" for dtype in DTYPES if not capabilities[dtype].available]
    possible = [dtype for dtype in DTYPES if capabilities[dtype].available]
    if find_spec("transformers") is None:
        left_out.append("the peer: transformers is not installed")
    checks, points = [], []
    for dtype in possible:
        checks += run_checks(module, dtype, args.gpu)
    for check in checks:
        verdict = "ok" if check["passed"] else "FAILED"
        print(f"{verdict:<6} {check['dtype']}: {check['check']}: {check['detail']}", flush=True)
    options = {"gpu": args.gpu, "device": torch.device(f"cuda:{args.gpu}"), "batch_size": args.batch_size}
    for shape, dtype in itertools.product(SHAPES, reversed(possible)):  # float32, the slowest, last
        try:
            done = measure_model(module, shape, dtype, in_time=lambda: time.perf_counter() - start < args.seconds, **options)
        except torch.cuda.OutOfMemoryError:
            done = []
        gc.collect()  # engine and peer hold cycles; what they leave behind would blur the memory of the next ones
        torch.cuda.empty_cache()
        points += done
        if len(done) < len(LENGTHS):
            rest = ", ".join(map(str, LENGTHS[len(done) :]))
            left_out.append(f"{shape} in {dtype}, length {rest}: out of memory or of time")
        print(f"{shape} in {dtype}: {len(done)} lengths, {time.perf_counter() - start:.0f} s so far", flush=True)
    return {"machine": machine, "checks": checks, "points": points, "left_out": left_out}


def point_lines(points):
    """The table of the points, for the screen."""
    columns = {
        "model": "model",
        "dtype": "dtype",
        "length": "length",
        "step_ms": "ms/step",
        "tokens_per_second": "tokens/s",
        "model_tflops_per_second": "TFLOP/s",
        "share_of_product_rate": "of products",
        "peak_mib": "MiB",
        "peer_step_ms": "peer ms/step",
        "peer_peak_mib": "peer MiB",
        "ratio": "ratio",
    }
    rows = [[_cell(point.get(key, "-")) for key in columns] for point in points]
    return table([list(columns.values()), *rows])


def _cell(value):
    if not isinstance(value, float):
        return value
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def main(argv=None):
    start = time.perf_counter()
    args = parse(argv)
    problem = refusal(args.gpu)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    record = measure(args, start)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.output, record)
    print("\n".join(["", *point_lines(record["points"]), "", *record["left_out"], f"wrote {args.output}"]))
    return 0 if all(check["passed"] for check in record["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
