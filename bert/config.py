"""The command line: every flag, the config it becomes (a run's, a suite's, a report's), and the checks that need no file.

Flags keep GluonNLP v0.10's names and meanings; the field's other common names are aliases. Knows neither data nor engine.
"""

import argparse
import os
import shlex
import sys
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Optional, Union

from bert import InputError, __version__
from bert.precision import DTYPES
from bert.recipes import RECIPES, recipe_values
from bert.tasks import FROM_MNLI, GLUE, TASKS, find_task, known_task

_LARGEST_COUNT = 10**9
_COUNTS = {  # flag -> its smallest value
    "epochs": 1,
    "training_steps": 1,
    "batch_size": 1,
    "dev_batch_size": 1,
    "accumulate": 1,
    "log_interval": 1,
    "early_stop": 1,
    "round_to": 1,
    "loss_scale_growth_interval": 1,
    "max_len": 4,
    "gpu": 0,
    "save_steps": 0,
}
#: Flags whose values are, or may be, paths of what a run reads; --data_dir names a folder of such.
PATHS = ("bert_model", "pretrained_bert_parameters", "model_parameters", "train_file", "dev_file", "test_file")
_SMALLEST_SCALE = 2.0**-24  # below float16's smallest number a scale leaves nothing to divide


@dataclass(frozen=True)
class FinetuneConfig:
    """What the person asked for, as parsed; help texts are in build_parser."""

    task_name: Optional[str]
    data_dir: str
    download: bool
    train_file: Optional[str]
    dev_file: Optional[str]
    test_file: Optional[str]
    regression: bool
    bert_model: str
    bert_dataset: Optional[str]
    pretrained_bert_parameters: Optional[str]
    model_parameters: Optional[str]
    engine: str
    gpu: Optional[int]
    dtype: str
    checkpoint_activations: bool
    loss_scale: Union[str, float, None]
    init_loss_scale: float
    loss_scale_growth_factor: float
    loss_scale_backoff_factor: float
    loss_scale_growth_interval: int
    min_loss_scale: float
    max_loss_scale: float
    recipe: Optional[str]
    epochs: int
    training_steps: Optional[int]
    batch_size: int
    accumulate: int
    lr: float
    optimizer: str
    epsilon: float
    weight_decay: float
    warmup_ratio: float
    max_grad_norm: float
    early_stop: Optional[int]
    seed: int
    dev_batch_size: Optional[int]
    max_len: int
    round_to: Optional[int]
    pad: bool
    output_dir: str
    overwrite: bool
    resume: bool
    save_steps: int
    tensorboard: bool
    max_minutes: Optional[float]
    log_interval: int
    only_inference: bool
    dry_run: bool
    only_calibration: bool
    deploy: bool
    model_prefix: Optional[str]
    num_calib_batches: int
    quantized_dtype: str
    calib_mode: str

    @property
    def own_files(self):
        """Split name -> path of the person's own files."""
        files = {"train": self.train_file, "dev": self.dev_file, "test": self.test_file}
        return {name: path for name, path in files.items() if path}


@dataclass(frozen=True)
class SuiteConfig:
    """Several runs: every task with every precision and every seed."""

    runs: tuple[FinetuneConfig, ...]  # in the order in which they begin; one may start from an earlier one's model
    output_dir: str
    overwrite: bool
    resume: bool
    retry_failed: bool
    from_mnli: bool
    jobs: int
    max_minutes: Optional[float]
    print_commands: bool


@dataclass(frozen=True)
class ReportConfig:
    """A report on runs that are done."""

    folders: tuple[str, ...]
    output_dir: str


@dataclass(frozen=True)
class LeaderboardConfig:
    """A leaderboard's zip of the predictions of runs that are done."""

    folders: tuple[str, ...]
    output_dir: str


@dataclass(frozen=True)
class CompareConfig:
    """Two files of dev predictions to compare."""

    files: tuple[str, str]


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(f"{message} (see --help)")


def _loss_scale(text):
    """Type of --loss_scale: "dynamic", or a positive number."""
    if text == "dynamic":
        return text
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not _SMALLEST_SCALE <= scale <= 2.0**100:
        raise argparse.ArgumentTypeError(f"{text} is neither dynamic nor a number from {_SMALLEST_SCALE:g} to 2**100")
    return scale


def _seeds(text):
    """Type of --seeds: one number, or a range with both ends, as 0-4."""
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else True)):
        raise argparse.ArgumentTypeError(f"{text[:60]} is neither a number nor a range like 0-4")
    numbers = range(int(first[:12]), int((last or first)[:12]) + 1)
    if not 1 <= len(numbers) <= 1000:
        raise argparse.ArgumentTypeError(f"{text[:60]} is {len(numbers)} seeds, expected 1 to 1000")
    return numbers


def build_parser(description=None):
    """The argparse parser, one group of flags per concern."""
    parser = _Parser(
        prog="finetune_classifier.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)

    group = parser.add_argument_group("task and data")
    add = group.add_argument
    add(
        "--task_name",
        nargs="+",
        metavar="TASK",
        help=f"GLUE task, in any usual spelling: {', '.join(TASKS)}; several, or GLUE for all nine, make a suite",
    )
    add(
        "--data_dir",
        default="data/glue",
        help="folder with one folder of official TSV files per task (default: %(default)s)",
    )
    add("--download", action="store_true", help="fetch the task's files from the hub when they are not in --data_dir")
    add("--train_file", help="your own .tsv, .csv or .jsonl file with a header: label, and one or two columns of text")
    add("--dev_file", "--validation_file", help="the same for evaluation")
    add("--test_file", help="the same for prediction, without label")
    add("--regression", action="store_true", help="the labels of your own files are scores, not classes")
    add(
        "--max_len",
        "--max_seq_length",
        type=int,
        default=128,
        help="longest row in tokens, special ones included (default: %(default)s)",
    )
    add("--round_to", type=int, help="round batch widths up to a multiple of this (default: 8); PyTorch computes no padding")
    add(
        "--pad", "--pad_to_max_length", action="store_true", help="pad every row to --max_len instead of the batch's longest"
    )

    group = parser.add_argument_group("model")
    add = group.add_argument
    add(
        "--bert_model",
        "--model_name_or_path",
        default="bert_12_768_12",
        help="a folder in Hugging Face layout, a hub id, minilm_6_384_12, or GluonNLP's bert_12_768_12, bert_24_1024_16, "
        "roberta_12_768_12, roberta_24_1024_16 (default: %(default)s); a lower-casing one also strips accents",
    )
    add("--bert_dataset", help="what a GluonNLP model was pretrained on (default: book_corpus_wiki_en_uncased for BERT)")
    add("--pretrained_bert_parameters", help="file of encoder weights to start from instead of the model's own")
    add("--model_parameters", help="fine-tuned model to start or predict from: a run's model/ folder or a weight file")

    group = parser.add_argument_group("engine and precision")
    add = group.add_argument
    add(
        "--engine",
        choices=("auto", "mxnet", "pytorch"),
        default="auto",
        help="default: %(default)s; the run says which and why",
    )
    add("--gpu", type=int, help="number of the GPU (default: the CPU)")
    add(
        "--dtype",
        nargs="+",
        choices=DTYPES,
        default="float32",
        help="type of the matrix products (default: %(default)s); several make a suite",
    )
    add(
        "--checkpoint_activations",
        action="store_true",
        help="keep only each layer's input and compute the layer again for its gradient: less memory, about a third slower",
    )
    add("--loss_scale", type=_loss_scale, help="float16 only: dynamic (default), or a fixed number")
    add("--init_loss_scale", type=float, default=2.0**16, help="first dynamic loss scale (default: %(default)g)")
    add("--loss_scale_growth_factor", type=float, default=2.0, help="default: %(default)g")
    add("--loss_scale_backoff_factor", type=float, default=0.5, help="on overflow (default: %(default)g)")
    add("--loss_scale_growth_interval", type=int, default=2000, help="good updates before it grows (default: %(default)s)")
    add("--min_loss_scale", type=float, default=1.0, help="an overflow at this scale stops the run (default: %(default)g)")
    add("--max_loss_scale", type=float, default=2.0**24, help="default: %(default)g")

    group = parser.add_argument_group("training")
    add = group.add_argument
    add(
        "--recipe",
        choices=tuple(RECIPES),
        help="published hyperparameters for the task; flags that are given win (sources: bert/recipes.py)",
    )
    add("--epochs", "--num_train_epochs", type=int, default=3, help="default: %(default)s")
    add("--training_steps", "--max_steps", type=int, help="number of updates; if given, --epochs is ignored")
    add(
        "--batch_size",
        "--per_device_train_batch_size",
        type=int,
        default=32,
        help="rows per micro-batch (default: %(default)s)",
    )
    add(
        "--accumulate",
        "--gradient_accumulation_steps",
        type=int,
        default=1,
        help="micro-batches per update (default: %(default)s)",
    )
    add("--lr", "--learning_rate", type=float, default=3e-5, help="peak learning rate (default: %(default)g)")
    add(
        "--optimizer",
        choices=("adamw", "bertadam"),
        default="adamw",
        help="adamw corrects the moments' bias, bertadam (GluonNLP's default) does not (default: %(default)s)",
    )
    add("--epsilon", "--adam_epsilon", type=float, default=1e-6, help="Adam's epsilon (default: %(default)g)")
    add("--weight_decay", type=float, default=0.01, help="not on biases and LayerNorm (default: %(default)g)")
    add(
        "--warmup_ratio",
        type=float,
        default=0.1,
        help="share of the updates over which the rate rises (default: %(default)g)",
    )
    add(
        "--max_grad_norm",
        type=float,
        default=1.0,
        help="clip the gradient's global norm to this; 0: never (default: %(default)g)",
    )
    add("--early_stop", type=int, help="stop after this many epochs without a better dev score")
    seeds = group.add_mutually_exclusive_group()  # without a default, so that --seeds beside any --seed is noticed
    seeds.add_argument("--seed", type=int, help="of the head, the batches and dropout (default: 2)")
    seeds.add_argument("--seeds", nargs="+", type=_seeds, metavar="SEED", help="several, as 0 1 2 or 0-4: a suite")

    group = parser.add_argument_group("evaluation and output")
    add = group.add_argument
    add(
        "--dev_batch_size",
        "--per_device_eval_batch_size",
        type=int,
        help="rows per batch (default: 64, more of short ones)",
    )
    add("--output_dir", default="./output_dir", help="the run's folder, a suite's or a report's (default: %(default)s)")
    add("--overwrite", "--overwrite_output_dir", action="store_true", help="use --output_dir though it holds another run")
    add(
        "--resume", action="store_true", help="continue the run in --output_dir exactly, or begin it where there is none yet"
    )
    add("--save_steps", type=int, default=0, help="updates between checkpoints; 0: only epochs end in one (default: 0)")
    add("--max_minutes", type=float, help="stop after about this time, a suite's as a whole, with exit code 3")
    add(
        "--tensorboard",
        action="store_true",
        help="also write what log.jsonl holds as scalars for TensorBoard, to --output_dir/tensorboard",
    )
    add("--log_interval", "--logging_steps", type=int, default=10, help="updates between log lines (default: %(default)s)")
    add("--only_inference", action="store_true", help="evaluate and predict with --model_parameters, without training")
    add("--dry_run", action="store_true", help="print the plan and stop before the first update")

    group = parser.add_argument_group(
        "suites and reports",
        "Several tasks, precisions or seeds: each combination is a run in a folder of its own\n"
        "below --output_dir, and at the end there is a report on all. Interrupted, it goes on\n"
        "with --resume; finished runs are skipped.",
    )
    add = group.add_argument
    add("--jobs", type=int, default=1, help="runs at a time, the CPU's threads shared out among them (default: 1)")
    add("--retry_failed", action="store_true", help="with --resume: try the failed runs again")
    add(
        "--from_mnli",
        action="store_true",
        help="MNLI first; RTE, MRPC and STS-B start from its best model of the same precision and seed",
    )
    add("--print_commands", action="store_true", help="print the runs, one command per line, and start none")
    add = group.add_mutually_exclusive_group().add_argument
    add(
        "--report",
        nargs="+",
        metavar="FOLDER",
        help="write report.html, report.md, results.csv to --output_dir: of the runs in these folders",
    )
    add(
        "--leaderboard",
        nargs="+",
        metavar="FOLDER",
        help="write submission.zip, checked, to --output_dir: of these folders' runs the best on dev for each task",
    )
    add(
        "--compare",
        nargs=2,
        metavar="FILE",
        help="compare two runs' predictions/dev.last.tsv row by row: scores, intervals, a paired test",
    )

    group = parser.add_argument_group(
        "GluonNLP's INT8 flags (accepted, and refused with a reason: INT8 is not part of this program)"
    )
    add = group.add_argument
    add("--only_calibration", action="store_true")
    add("--deploy", action="store_true")
    add("--model_prefix")
    add("--num_calib_batches", type=int, default=5)
    add("--quantized_dtype", default="auto", choices=("auto", "int8", "uint8"))
    add("--calib_mode", default="customize", choices=("none", "naive", "entropy", "customize"))
    return parser


def parse(argv, description=None):
    """What a command line asks for: a FinetuneConfig or another config; InputError lists every problem at once."""
    parser = build_parser(description)
    given = parser.parse_args(argv)
    for flag, config in (("report", ReportConfig), ("leaderboard", LeaderboardConfig), ("compare", CompareConfig)):
        named = getattr(given, flag)
        if named:
            allowed = {flag} if flag == "compare" else {flag, "output_dir"}
            others = [
                name for name, value in vars(given).items() if value != parser.get_default(name) and name not in allowed
            ]
            if others:
                raise InputError(f"--{flag} is about runs that are done: --{', --'.join(others)} has no place beside it")
            return config(tuple(named)) if config is CompareConfig else config(tuple(named), given.output_dir)

    tasks = _task_names(given.task_name)
    dtypes = list(dict.fromkeys(_as_list(given.dtype)))
    seeds = list(dict.fromkeys(seed for part in given.seeds or [[2 if given.seed is None else given.seed]] for seed in part))
    is_suite = len(tasks) * len(dtypes) * len(seeds) > 1 or bool(given.seeds) or given.print_commands
    problems = []
    if not is_suite:
        for flag, default in (("retry_failed", False), ("from_mnli", False), ("jobs", 1)):
            if getattr(given, flag) != default:
                problems.append(f"--{flag} is for a suite: several --task_name, --dtype or --seeds")
    elif given.only_inference:
        problems.append("--only_inference is for one run")
    elif given.from_mnli and "MNLI" not in tasks:
        problems.append("--from_mnli needs MNLI among --task_name")
    if not 1 <= given.jobs <= 1024:
        problems.append(f"--jobs is {given.jobs}, expected 1 to 1024")
    for flag in ("overwrite", "dry_run"):
        if given.print_commands and getattr(given, flag):
            problems.append(f"--print_commands and --{flag} exclude each other")

    names = [field.name for field in fields(FinetuneConfig)]
    values = {}  # by task: a recipe's defaults depend on it
    for task in sorted(tasks, key=lambda name: given.from_mnli and name != "MNLI"):
        if given.recipe:
            parser.set_defaults(**recipe_values(given.recipe, task))
        values[task] = vars(parser.parse_args(argv))
    runs = []
    for seed, dtype, task in product(seeds, dtypes, values):  # whole rounds: a part is fair
        run = {**values[task], "task_name": task, "dtype": dtype, "seed": seed}
        runs.append(FinetuneConfig(**{name: run[name] for name in names}))
    problems += dict.fromkeys(problem for run in runs for problem in _problems(run))
    if problems:
        raise InputError("; ".join(problems))
    if not is_suite:
        return runs[0]
    suite = SuiteConfig((), **{field.name: getattr(given, field.name) for field in fields(SuiteConfig)[1:]})
    return replace(suite, runs=tuple(_in_suite(run, suite) for run in runs))


def _as_list(value):
    return value if isinstance(value, list) else [value]


def _task_names(given):
    """The tasks named, once each; those that the benchmark knows in its spelling."""
    names = []
    for name in given or [None]:
        names += GLUE if name is not None and name.lower() == "glue" else [name and (known_task(name) or name)]
    return list(dict.fromkeys(names))


def _in_suite(run, suite):
    """The run as part of a suite: it has a folder of its own, and an order to go on with what is there."""
    source = mnli_run(run, suite)
    if source is not None:
        only = dict.fromkeys(("bert_dataset", "pretrained_bert_parameters", "model_parameters"))
        run = replace(run, bert_model=os.path.join(suite.output_dir, source, "model"), **only)
    minutes = run.max_minutes if suite.print_commands else None  # else they are the suite's
    path = os.path.join(suite.output_dir, run_name(run))
    return replace(run, output_dir=path, resume=True, overwrite=False, max_minutes=minutes)


def mnli_run(run, suite):
    """Name of the MNLI run whose model a run of the suite starts from; None for one that starts from --bert_model."""
    return run_name(replace(run, task_name="MNLI")) if suite.from_mnli and run.task_name in FROM_MNLI else None


def run_name(run):
    """What a suite calls a run, and its folder."""
    return f"{run.task_name or 'own'}-{run.dtype}-seed{run.seed}"


def command_line(config):
    """The words of the command that leads to `config`, a FinetuneConfig or its dict: the flags that differ from defaults."""
    values = config if isinstance(config, dict) else vars(config)
    parser = build_parser()
    if values.get("recipe"):
        parser.set_defaults(**recipe_values(values["recipe"], values["task_name"]))
    words = []
    for name, value in values.items():
        if value is not None and value != parser.get_default(name):
            flag, text = f"--{name}", str(value)
            words += [flag] if value is True else [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words


def resume_command(script, argv):
    """The shell command that continues the run of `script` with these arguments."""
    kept = [word for word in argv if not (word.startswith("--ov") and "--overwrite_output_dir".startswith(word))]
    return shlex.join([sys.executable, script, *kept, *([] if "--resume" in kept else ["--resume"])])


def _problems(config):
    """Every problem that can be seen in the flags alone."""
    c, found = config, []

    def require(condition, text):
        if not condition:
            found.append(text)

    if c.own_files:
        require(c.task_name is None, "--task_name and --train_file/--dev_file/--test_file exclude each other")
        require(
            c.only_inference or (c.train_file and c.dev_file), "training on your own file needs --train_file and --dev_file"
        )
    elif c.task_name is None:
        found.append("--task_name is missing, or --train_file and --dev_file for your own data")
    else:
        try:
            task = find_task(c.task_name)
            require(
                "train" in task.splits or c.only_inference,
                f"--task_name {task.name} has no training data: add --only_inference "
                "and the --model_parameters of an MNLI run",
            )
        except InputError as error:
            found.append(str(error))
        require(not c.regression, "--regression is for your own files; a GLUE task knows its kind")
    for flag, value in vars(c).items():  # an unset variable in a shell script must not choose another model or file
        require(value != "", f"--{flag} is empty")
    require(
        not (c.pretrained_bert_parameters and c.model_parameters),
        "--pretrained_bert_parameters and --model_parameters exclude each other",
    )
    for flag, low in _COUNTS.items():
        value = getattr(c, flag)
        require(value is None or low <= value <= _LARGEST_COUNT, f"--{flag} is {value}, expected {low} to {_LARGEST_COUNT}")
    # What float32 can hold and add: a rate that is merely too high is the run's to find out, and it says so.
    require(1e-12 <= c.lr <= 3e38, f"--lr is {c.lr:g}, expected 1e-12 to 3e38; usual are 1e-5 to 1e-4")
    require(
        c.max_minutes is None or 0 < c.max_minutes < float("inf"),
        f"--max_minutes is {c.max_minutes}, expected a number above 0",
    )
    require(not (c.resume and c.overwrite), "--resume and --overwrite exclude each other")
    require(1e-30 <= c.epsilon < 1, f"--epsilon is {c.epsilon:g}, expected 1e-30 to 1; usual are 1e-8 to 1e-6")
    require(0 <= c.weight_decay < 1, f"--weight_decay is {c.weight_decay:g}, expected 0 to 1")
    require(0 <= c.warmup_ratio <= 1, f"--warmup_ratio is {c.warmup_ratio:g}, expected 0 to 1")
    require(0 <= c.max_grad_norm < float("inf"), f"--max_grad_norm is {c.max_grad_norm:g}, expected 0 or more")
    require(0 <= c.seed < 2**32, f"--seed is {c.seed}, expected 0 to 2**32 - 1")
    require(
        1 < c.loss_scale_growth_factor < float("inf"),
        f"--loss_scale_growth_factor is {c.loss_scale_growth_factor:g}, expected above 1",
    )
    require(
        0 < c.loss_scale_backoff_factor < 1,
        f"--loss_scale_backoff_factor is {c.loss_scale_backoff_factor:g}, expected 0 to 1",
    )
    require(
        _SMALLEST_SCALE <= c.min_loss_scale <= c.init_loss_scale <= c.max_loss_scale <= 2.0**100,
        f"--min_loss_scale {c.min_loss_scale:g}, --init_loss_scale {c.init_loss_scale:g} and --max_loss_scale "
        f"{c.max_loss_scale:g}: expected from {_SMALLEST_SCALE:g} on and in this order",
    )
    require(
        c.loss_scale is None or c.dtype == "float16",
        f"--loss_scale is for --dtype float16; {c.dtype} has float32's range and needs none",
    )
    if c.only_calibration or c.deploy or c.model_prefix:
        found.append(
            "--only_calibration, --deploy and --model_prefix: INT8 is not part of this program; use --only_inference"
        )
    return found
