"""GluonNLP's own files and commands: its .params with the vocabulary beside them on both engines, its published commands."""

import json
import shlex

import numpy as np
import pytest
from conftest import PIECES, write_task

from bert import InputError, weights
from bert.data import Example, encode, make_batch
from bert.engines import installed, load_engine
from bert.tasks import find_task
from bert.tokenization import load_tokenizer
from bert.weights import initial_weights, load_pretrained

needs_mxnet = pytest.mark.skipif(not installed("mxnet"), reason="mxnet is not installed")
UNITS, LAYERS, HEADS = 16, 2, 2
NAME = f"bert_{LAYERS}_{UNITS}_{HEADS}"


def gluon_classifier():
    """GluonNLP's own BERT classifier with random weights, built without the engine under test."""
    import gluonnlp as nlp
    import mxnet as mx

    encoder = nlp.model.BERTEncoder(
        num_layers=LAYERS, units=UNITS, hidden_size=32, max_length=64, num_heads=HEADS, dropout=0.1, layer_norm_eps=1e-12
    )
    bert = nlp.model.BERTModel(
        encoder,
        vocab_size=len(PIECES),
        token_type_vocab_size=2,
        units=UNITS,
        embed_size=UNITS,
        use_decoder=False,
        use_classifier=False,
    )
    model = nlp.model.BERTClassifier(bert, num_classes=2, dropout=0.1)
    model.initialize(mx.init.Normal(0.3))
    return model


@pytest.fixture(scope="module")
def gluon_files(tmp_path_factory):
    """A model saved in both of GluonNLP's ways, the vocabulary as its JSON, and the logits that GluonNLP itself computes."""
    if not installed("mxnet"):
        pytest.skip("mxnet is not installed")
    import gluonnlp as nlp
    import mxnet as mx

    folder = tmp_path_factory.mktemp("gluon")
    model = gluon_classifier()
    ids = np.array([[2, 8, 9, 10, 3, 11, 12, 3], [2, 20, 21, 3, 22, 3, 0, 0]], np.int32)
    types = np.array([[0] * 5 + [1] * 3, [0] * 4 + [1] * 2 + [0] * 2], np.int32)
    logits = model(mx.nd.array(ids), mx.nd.array(types), mx.nd.array([8, 6])).asnumpy()
    model.save_parameters(str(folder / "model.params"))
    nlp.utils.save_parameters(model, str(folder / "other.params"))
    vocabulary = nlp.vocab.BERTVocab(dict.fromkeys(PIECES, 1), reserved_tokens=None)
    content = json.loads(vocabulary.to_json())
    content["idx_to_token"] = PIECES  # in this model's order
    content["token_to_idx"] = {piece: number for number, piece in enumerate(PIECES)}
    (folder / "book_corpus_wiki_en_uncased-0.vocab").write_text(json.dumps(content), encoding="utf-8")
    return folder, ids, types, logits


@needs_mxnet
@pytest.mark.parametrize("engine_name", ["pytorch", "mxnet"])
@pytest.mark.parametrize("file", ["model.params", "other.params"])
def test_gluonnlps_files_give_gluonnlps_logits_on_both_engines(engine_name, file, gluon_files):
    if not installed(engine_name):
        pytest.skip(f"{engine_name} is not installed")
    folder, ids, types, expected = gluon_files
    pretrained = load_pretrained(bert_model=NAME, model_parameters=str(folder / file))
    tensors, head = initial_weights(pretrained, find_task("MRPC"), seed=0)
    assert not head.startswith("fresh")
    options = {"dtype": "float32", "gpu": None, "seed": 0, "optimizer": "adamw", "epsilon": 1e-6, "weight_decay": 0.01}
    engine = load_engine(engine_name).create(pretrained.architecture, 2, **options)
    engine.set_weights(tensors)
    from bert.engines import Batch

    batch = Batch(ids, types, np.array([8, 6], np.int32), None, np.arange(2))
    np.testing.assert_allclose(engine.predict(batch), expected, atol=1e-5)


@needs_mxnet
def test_the_vocabulary_beside_a_file_is_the_tokenizer(gluon_files):
    folder = gluon_files[0]
    pretrained = load_pretrained(bert_model=NAME, pretrained_bert_parameters=str(folder / "model.params"))
    tokenizer = load_tokenizer(pretrained.folder, pretrained.architecture)
    features = encode([Example(0, "The film [SEP]", "a cat", None)], tokenizer, labels=(), max_len=16)
    batch = make_batch(features, np.array([0]), pad_id=0, round_to=1, max_len=16)
    expected = ["[CLS]", "the", "film", "[", "sep", "]", "[SEP]", "a", "cat", "[SEP]"]
    assert tokenizer.tokens(batch.input_ids[0]) == expected
    assert batch.token_type_ids[0].tolist() == [0] * 7 + [1] * 3


@needs_mxnet
def test_a_file_without_a_model_name_that_tells_its_heads_is_refused(gluon_files):
    with pytest.raises(InputError, match="bert_12_768_12"):
        load_pretrained(bert_model="some/model", model_parameters=str(gluon_files[0] / "model.params"))


def test_names_come_from_the_zoo_where_the_hub_is_out_of_reach(monkeypatch, tmp_path):
    def no_hub(hub_id):
        raise InputError(f"{hub_id} cannot be fetched")

    monkeypatch.setattr(weights, "_download", no_hub)
    monkeypatch.setattr(weights, "_fetch_from_zoo", lambda name, dataset: tmp_path / f"{name}.{dataset}.params")
    path, source = weights.find_pretrained("bert_12_768_12", "openwebtext_book_corpus_wiki_en_uncased")
    assert "zoo" in source and path.name == "bert_12_768_12.openwebtext_book_corpus_wiki_en_uncased.params"
    assert "zoo" in weights.find_pretrained("bert_24_1024_16")[1]
    monkeypatch.setattr(weights, "_fetch_from_zoo", lambda name, dataset: None)
    with pytest.raises(InputError, match="google-bert/bert-large-uncased cannot be fetched"):
        weights.find_pretrained("bert_24_1024_16")
    with pytest.raises(InputError, match="GluonNLP's model zoo"):
        weights.find_pretrained("bert_12_768_12", "openwebtext_book_corpus_wiki_en_uncased")
    with pytest.raises(InputError, match="choose from"):
        weights.find_pretrained("bert_24_1024_16", "wiki_cn_cased")


PUBLISHED = [
    "--task_name CoLA --batch_size 32 --gpu 0 --lr 2e-5 --epochs 10 --optimizer bertadam",
    "--gpu 0 --task_name SST --batch_size 32 --seed 2 --lr 2e-5 --warmup_ratio 0.1 --epochs 5 --log_interval 400",
    "--batch_size 32 --lr 2e-5 --epochs 5 --gpu 0 --seed 27 --task_name MRPC --warmup_ratio 0.1",
    "--batch_size 32 --lr 2e-5 --epochs 5 --gpu 0 --seed 24 --task_name STS-B --warmup_ratio 0.1",
    "--task_name QQP --batch_size 32 --lr 2e-5 --epochs 5 --warmup_ratio 0.1 --gpu 0 --seed 0",
    "--gpu 0 --task_name MNLI --batch_size 48 --lr 2e-5 --warmup_ratio 0.1 --epochs 4 --seed 2 --log_interval 500",
    "--gpu 0 --task_name RTE --batch_size 32 --lr 2e-5 --seed 33 --warmup_ratio 0.1 --epochs 5",
    "--seed 6 --task_name XNLI --batch_size 32 --epochs 4 --lr 2e-5 --bert_dataset wiki_cn_cased --gpu 0",
    "--task_name MNLI --max_len 80 --log_interval 100 --epsilon 1e-8 --gpu 0",
    "--task_name MRPC --batch_size 32 --epochs 3 --gpu 0 --lr 2e-5",
    "--task_name RTE --batch_size 32 --epochs 3 --gpu 0 --lr 2e-5",
    "--task_name SST --epochs 4 --batch_size 16 --gpu 0 --lr 2e-5 --log_interval 500",
    "--task_name MRPC --batch_size 32 --optimizer bertadam --epochs 3 --lr 2e-5 --gpu 0 --dtype float16",
    "--task_name MRPC --batch_size 32 --gpu 0 --pad",
]


@pytest.mark.parametrize("command", PUBLISHED)
def test_published_commands_plan_and_start(command, run_cli, bert_folder, tmp_path, monkeypatch):
    """As published, but with a tiny model for BERT-base, files of our own, and the CPU for the GPU."""
    if not installed("pytorch"):
        pytest.skip("torch is not installed")
    asked = []
    monkeypatch.setattr(weights, "_download", lambda hub_id: asked.append(hub_id) or bert_folder)
    arguments = shlex.split(command.replace("--gpu 0", ""))
    write_task(tmp_path, find_task(arguments[arguments.index("--task_name") + 1]).name)
    result = run_cli(*arguments, "--engine", "pytorch", "--data_dir", tmp_path, "--dry_run")
    assert result.code == 0, result.err
    assert asked == ["google-bert/bert-base-chinese" if "wiki_cn" in command else "google-bert/bert-base-uncased"]
    assert "updates per epoch" in result.out
    if "--pad" in command:
        assert "cut to --max_len 128" in result.out
    for flag in ("--epochs", "--batch_size"):
        if flag in arguments:
            assert arguments[arguments.index(flag) + 1] in result.out


@pytest.mark.parametrize(
    "flags", ["--only_calibration --model_parameters F.params", "--only_inference --model_prefix P --deploy"]
)
def test_int8_commands_are_refused_with_a_reason(flags, refused):
    assert "INT8" in refused("--task_name", "MRPC", *flags.split())
