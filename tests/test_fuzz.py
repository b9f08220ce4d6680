"""The readers under fire for a bounded time: mutations that are the same every time, and by coverage where atheris is."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("the bounds on memory and time are Linux's", allow_module_level=True)

import fuzz

from bert import InputError
from bert.architecture import read_architecture


def run(*arguments):
    """Executions of tests/fuzz.py in a process of its own; fails where the property does."""
    command = [sys.executable, Path(fuzz.__file__), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return int(re.search(r"number_of_executed_units: (\d+)", done.stderr)[1])


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_mutations_of_the_corpus(target):
    assert run(target, "--executions", 3000) == 3000


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.parametrize("target", ["params", "tsv"])
def test_by_coverage(target):
    assert run(target, "--seconds", 4) > 100


def test_the_corpus_is_what_the_writers_write():
    files = {str(path.relative_to(fuzz.CORPUS)): path.read_bytes() for path in fuzz.CORPUS.rglob("*") if path.is_file()}
    assert files == fuzz.corpus_files()


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_fault_is_seen(target, monkeypatch, tmp_path):
    """What the fuzzer calls does raise where a reader raises something else."""
    path = tmp_path / ("file" + fuzz.TARGETS[target][1])
    path.write_bytes(next((fuzz.CORPUS / target).iterdir()).read_bytes())

    def broken(*_, **__):
        raise IndexError

    for name in ("bert.data.read_lines", "bert.params_file._read_list", "bert.weights._read_safetensors"):
        monkeypatch.setattr(name, broken)
    monkeypatch.setattr("bert.files.json.loads", broken)
    with pytest.raises(IndexError):
        fuzz.TARGETS[target][0](path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
SOUND = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(changes=st.dictionaries(st.sampled_from(sorted(SOUND)), JSON, min_size=1, max_size=3))
def test_any_value_in_a_configuration(changes):
    try:
        architecture = read_architecture({**SOUND, **changes}, "here/config.json")
    except InputError as error:
        assert str(error).startswith("here/config.json: ")
    else:
        assert 1 <= architecture.num_hidden_layers <= 1000 and 0 <= architecture.hidden_dropout <= 1
        assert 0 <= architecture.pad_token_id < architecture.vocab_size and architecture.max_length >= 4
