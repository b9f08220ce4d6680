#!/usr/bin/env python3
"""Seconds per update of one of this program's engines at one shape, and its share of the rate of bare matrix products.

    python benchmarks/step.py --engine pytorch --dtype bfloat16 --shape 12,768,12 --batch_size 32 --length 64
    python benchmarks/step.py --sweep --dtype bfloat16 --shape 6,384,12 --steps 3

Random weights, random token ids, no padding, no files: only the engine is measured. Prints one JSON line; with --sweep a
table of how the cost grows with length, batch, model and threads, every point in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bert import InputError
from bert.architecture import Architecture, parameter_shapes
from bert.engines import ENGINES, Batch, load_engine
from bert.precision import DTYPES, resolve_precision

NUM_LABELS = 2
WARM_UP = 2  # updates that are not timed: first allocations, primitives made for a shape
SWEEP = {
    "length": (16, 32, 64, 128, 256, 512),
    "batch_size": (1, 4, 16, 32, 64),
    "shape": ("2,128,2", "6,384,12", "12,768,12", "24,1024,16"),  # BERT-tiny, MiniLM-L6, BERT-base, BERT-large
    "threads": (1, 2),
}


# --- what is computed ------------------------------------------------------------------------------------------------


def make_architecture(shape, **changes):
    """BERT of "layers,hidden,heads" with the sizes that all published English BERTs share."""
    layers, hidden, heads = parse_shape(shape)
    sizes = {
        "vocab_size": 30522,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }
    return Architecture("bert", **{**sizes, **changes})


def parse_shape(text):
    """(layers, hidden, heads) of "12,768,12"; ValueError for anything else."""
    layers, hidden, heads = map(int, text.split(","))
    if min(layers, hidden, heads) < 1 or hidden % heads:
        raise ValueError(f"{text}: expected layers,hidden,heads with hidden a multiple of heads")
    return layers, hidden, heads


def random_weights(architecture, num_labels=NUM_LABELS, seed=0):
    """Canonical name -> float32 array, as BERT is initialized: matrices Normal(0, 0.02), biases 0, LayerNorm 1."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in parameter_shapes(architecture, num_labels).items():
        if name.endswith("LayerNorm.weight"):
            weights[name] = np.ones(shape, np.float32)
        elif name.endswith(".bias"):
            weights[name] = np.zeros(shape, np.float32)
        else:
            weights[name] = random.standard_normal(shape, np.float32) * np.float32(architecture.initializer_range)
    return weights


def random_batch(architecture, lengths, *, width=None, seed=0):
    """A labelled Batch of random ids, one row per entry of `lengths`, padded to `width` (default: the longest)."""
    lengths = np.array(lengths, np.int32)
    width = width or int(lengths.max())
    random = np.random.default_rng(seed)
    ids = np.full((len(lengths), width), architecture.pad_token_id, np.int32)
    for row, length in enumerate(lengths):  # row by row, so that a row's ids do not depend on the width
        ids[row, :length] = random.integers(1, architecture.vocab_size, length)
    labels = random.integers(0, NUM_LABELS, len(lengths)).astype(np.int32)
    return Batch(ids, np.zeros_like(ids), lengths, labels, np.arange(len(lengths)))


def model_flops(architecture, rows, length, num_labels=NUM_LABELS):
    """Floating-point operations of one update of `rows` rows of `length` tokens, forward and backward.

    Per token 6 x the encoder's matrix parameters (Kaplan et al. 2020, arXiv 2001.08361, section 2.1: two operations per
    parameter forward, four backward) and 12 x layers x hidden x length for attention (Chowdhery et al. 2022, arXiv
    2204.02311, appendix B); the pooler and the classifier see one token of each row. Embeddings are lookups and do not
    count, nor do softmax, LayerNorm and the optimizer. It counts the model, not what an engine executes: one that leaves
    out what nobody reads gains by it.
    """
    a = architecture
    encoder = a.num_hidden_layers * (4 * a.hidden_size**2 + 2 * a.hidden_size * a.intermediate_size)
    head = a.hidden_size**2 + a.hidden_size * num_labels
    attention = 12 * a.num_hidden_layers * a.hidden_size * length
    return rows * length * (6 * encoder + attention) + rows * 6 * head


# --- how it is measured ----------------------------------------------------------------------------------------------


def create_engine(module, architecture, *, dtype, gpu=None, seed=0, epsilon=1e-6):
    """The module's engine with random weights and this program's default recipe."""
    engine = module.create(
        architecture,
        NUM_LABELS,
        dtype=dtype,
        gpu=gpu,
        seed=seed,
        optimizer="adamw",
        epsilon=epsilon,
        weight_decay=0.01,
    )
    engine.set_weights(random_weights(architecture, seed=seed))
    return engine


def update_once(engine, batch, *, learning_rate=2e-5, loss_scale=1.0):
    """One update from one batch; (loss, Update), neither of them waited for."""
    loss = engine.forward_backward(batch, loss_scale=loss_scale, weight=1.0)
    return loss, engine.apply_gradients(learning_rate=learning_rate, max_grad_norm=1.0, loss_scale=loss_scale)


def time_updates(engine, batch, steps):
    """(seconds of each of `steps` updates, last loss).

    The norm is waited for, not the weights: where an engine steps in the background, that falls into the next interval,
    so that every interval still holds one whole update. What the timed ones together leave to do is shared among them.
    """
    seconds = []
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            engine.finish()
        start = time.perf_counter()
        loss, update = update_once(engine, batch)
        loss, _ = float(loss), float(update.grad_norm)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    engine.finish()
    left = (time.perf_counter() - start) / steps
    return [each + left for each in seconds[WARM_UP:]], loss


def product_rate(prepare, architecture, tokens):
    """Operations per second of bare products of the model's own shapes, each at its best time.

    `prepare(rows, inputs, outputs)` gives a function that runs that product `count` times and waits for the results.
    """
    hidden, wide = architecture.hidden_size, architecture.intermediate_size
    operations = seconds = 0
    for inputs, outputs in ((hidden, 3 * hidden), (hidden, wide), (wide, hidden)):
        run = prepare(tokens, inputs, outputs)
        run(3)
        count = max(1, min(1000, int(0.05 / _seconds(run, 1))))
        operations += 2 * tokens * inputs * outputs
        seconds += min(_seconds(run, count) for _ in range(5)) / count
    return operations / seconds


def _seconds(run, count):
    start = time.perf_counter()
    run(count)
    return time.perf_counter() - start


def torch_products(dtype, device="cpu"):
    """`prepare` of product_rate on PyTorch; `dtype` is one of DTYPES."""
    import torch

    def prepare(rows, inputs, outputs):
        options = {"dtype": getattr(torch, dtype), "device": device}
        x, weight = torch.randn(rows, inputs, **options), torch.randn(outputs, inputs, **options)
        y = torch.empty(rows, outputs, **options)

        def run(count):
            for _ in range(count):
                torch.mm(x, weight.t(), out=y)
            if y.is_cuda:
                torch.cuda.synchronize(y.device)

        return run

    return prepare


def mxnet_products(dtype):
    """`prepare` of product_rate on MXNet's CPU."""
    import mxnet as mx
    from mxnet.contrib.amp import amp

    kind = amp.bfloat16 if dtype == "bfloat16" else dtype  # MXNet's own: NumPy has no such type

    def prepare(rows, inputs, outputs):
        x, weight = (
            mx.nd.amp_cast(mx.nd.random.normal(shape=shape), dtype=kind) for shape in ((rows, inputs), (outputs, inputs))
        )

        def run(count):
            for _ in range(count):
                mx.nd.FullyConnected(x, weight, num_hidden=outputs, no_bias=True, flatten=False)
            mx.nd.waitall()

        return run

    return prepare


def measure(args):
    """The figures of one point, as printed."""
    module = load_engine(args.engine)
    resolve_precision(args.dtype, module.capabilities(None), engine=args.engine, gpu=None)
    architecture = make_architecture(args.shape)
    engine = create_engine(module, architecture, dtype=args.dtype)
    seconds, loss = time_updates(engine, random_batch(architecture, [args.length] * args.batch_size), args.steps)
    peak = engine.peak_memory()
    step, tokens = statistics.median(seconds), args.batch_size * args.length
    flops = model_flops(architecture, args.batch_size, args.length) / step
    products = {"pytorch": torch_products, "mxnet": mxnet_products}[args.engine]
    rate = product_rate(products(args.dtype), architecture, tokens)
    return {
        "engine": engine.name,
        "device": engine.device,
        "dtype": args.dtype,
        "shape": args.shape,
        "batch_size": args.batch_size,
        "length": args.length,
        "steps": args.steps,
        "step_seconds": round(step, 5),
        "step_seconds_min": round(min(seconds), 5),
        "step_seconds_max": round(max(seconds), 5),
        "real_tokens_per_second": round(tokens / step, 1),
        "model_gflops_per_second": round(flops / 1e9, 2),
        "product_gflops_per_second": round(rate / 1e9, 2),
        "share_of_product_rate": round(flops / rate, 4),
        "peak_rss_mib": round(peak / 2**20),
        "loss": loss,
    }


# --- how cost grows --------------------------------------------------------------------------------------------------


def sweep(args):
    """Print a row for every point: one axis of SWEEP varies at a time, the others stay as given."""
    print("| | | s/update | tokens/s | model GFLOP/s | of the product rate | peak RSS, MiB |\n|---|---|---|---|---|---|---|")
    for axis, values in SWEEP.items():
        for value in values:
            point = {name: value if name == axis else getattr(args, name) for name in SWEEP}
            print(f"| {axis} | {value} | {_sweep_cells(args, point)} |", flush=True)


def _sweep_cells(args, point):
    if point["threads"] and point["threads"] > _cores():
        return f"only {_cores()} core(s) here | | | | "
    needed, free = memory_estimate(make_architecture(point["shape"]), point["batch_size"], point["length"]), _free_memory()
    if needed > free:
        return f"skipped: needs about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free | | | | "
    command = [sys.executable, __file__, "--engine", args.engine, "--dtype", args.dtype, "--steps", str(args.steps)]
    for name, value in point.items():
        command += [f"--{name}", str(value)] if value else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"failed ({done.returncode}): {lines[-1] if lines else 'killed'} | | | | "
    found = json.loads(done.stdout.splitlines()[-1])
    return (
        f"{found['step_seconds']:.4g} | {found['real_tokens_per_second']:.0f} | {found['model_gflops_per_second']:.1f} | "
        f"{found['share_of_product_rate']:.0%} | {found['peak_rss_mib']}"
    )


def memory_estimate(architecture, rows, length):
    """Bytes that training takes, on the high side.

    The weights count six times in float32 (given, own, gradient, two moments, casts). Activations: 34 x hidden + 5 x
    heads x length bytes per token and layer in 16 bit (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1), doubled
    for what is kept in float32.
    """
    a = architecture
    parameters = sum(int(np.prod(shape)) for shape in parameter_shapes(a, NUM_LABELS).values())
    kept = 2 * a.num_hidden_layers * (34 * a.hidden_size + 5 * a.num_attention_heads * length)
    return 6 * 4 * parameters + rows * length * kept + 2**29  # the framework itself


def _free_memory():
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: let the point run
        return float("inf")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--engine", choices=tuple(ENGINES), default="pytorch", help="default: %(default)s")
    add("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    add("--shape", default="12,768,12", help="layers,hidden,heads (default: %(default)s)")
    add("--batch_size", type=int, default=32, help="default: %(default)s")
    add("--length", type=int, default=64, help="tokens of every row, 1 to 512 (default: %(default)s)")
    add("--steps", type=int, default=6, help="timed updates, after warm-up (default: %(default)s)")
    add("--threads", type=int, help="default: all cores, or what OMP_NUM_THREADS says")
    add("--sweep", action="store_true", help="print the table of how cost grows from this point")
    args = parser.parse_args(argv)
    try:
        parse_shape(args.shape)
    except ValueError as error:
        parser.error(f"--shape {error}")
    if min(args.batch_size, args.steps, args.threads or 1) < 1 or not 1 <= args.length <= 512:
        parser.error("--batch_size, --steps and --threads start at 1; --length goes from 1 to 512")
    return args


def main(argv=None):
    args = parse(argv)
    if args.threads:  # read by both frameworks when they are imported, which is later
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    try:
        if args.sweep:
            sweep(args)
        else:
            print(json.dumps(measure(args)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
