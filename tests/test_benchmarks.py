"""The measuring tools of benchmarks/: their arithmetic and tables, and that each runs at toy size."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

from benchmarks import bench, gpu, step, text
from bert.engines import installed, load_engine
from bert.precision import DTYPES

needs_torch = pytest.mark.skipif(not installed("pytorch"), reason="torch is not installed")


def result(ours, peer=None, *, what="a task", target=2.0, score=0.8):
    """A comparison's entry of bench.json from made-up seconds."""
    pairs = []
    for number, seconds in enumerate(ours):
        report = {"tokens_per_second": 900.0, "scores": {"last": {"dev": {"accuracy": score}}}}
        pair = {"ours": bench.figures(report, seconds, 100)}
        if peer is not None:
            pair["peer"] = bench.figures({"real_tokens_per_second": 300.0, "accuracy": 0.75, "mcc": 0.5}, peer[number], 200)
        pairs.append(pair)
    summary = bench.summarize(pairs, "wall_seconds")
    entry = {"what": what, "compared": "wall_seconds", "target": target, "pairs": pairs, "summary": summary}
    return {**entry, "date": "2020-01-02T03:04:05Z", "minutes": 2.25}


# --- bench.py --------------------------------------------------------------------------------------------------------


def test_ratios_are_taken_pair_by_pair():
    summary = result([1.0, 2.0, 4.0], [3.0, 4.0, 20.0])["summary"]
    assert summary["ratio"] == {"median": 3.0, "min": 2.0, "max": 5.0}  # of 3, 2, 5; the ratio of medians would be 2
    assert summary["ours"]["wall_seconds"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert summary["ours"]["tokens_per_second"]["median"] == 900 and summary["peer"]["tokens_per_second"]["median"] == 300
    assert summary["ours"]["scores"] == {"accuracy": 0.8} and summary["peer"]["scores"] == {"accuracy": 0.75}


def test_our_scores_are_those_of_the_last_epoch_or_of_the_saved_model():
    scores = {"best": {"dev": {"accuracy": 0.9}}, "last": {"dev": {"accuracy": 0.7, "loss": 1.0}}}
    assert bench.figures({"scores": scores}, 1.0, 1)["scores"] == {"accuracy": 0.7}
    assert bench.figures({"scores": {"saved": {"dev": {"accuracy": 0.6}}}}, 1.0, 1)["scores"] == {"accuracy": 0.6}


def test_the_start_is_the_process_without_its_evaluation():
    assert bench.figures({"eval_seconds": 0.5}, 3.0, 1)["start_seconds"] == 2.5
    assert "start_seconds" not in bench.figures({}, 3.0, 1)


def test_the_share_of_bare_products_counts_real_tokens():
    """Ours and the Trainer name their tokens differently; ten rows of 5 tokens in a second."""
    flops = 10 * step.model_flops(step.make_architecture("1,2,1"), rows=1, length=5)
    for name in ("tokens_per_second", "real_tokens_per_second"):
        assert bench.product_share({"examples_per_second": 10.0, name: 50.0}, "1,2,1", 2 * flops) == 0.5


def test_earlier_rows_are_kept_on_the_same_machine_only(tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert bench.earlier_results(path, {"cpu": "one"}) == {}
    path.write_text(json.dumps({"machine": {"cpu": "one"}, "results": {"a": {"minutes": 1}}}))
    assert bench.earlier_results(path, {"cpu": "one"}) == {"a": {"minutes": 1}}
    assert bench.earlier_results(path, {"cpu": "two"}) == {}
    assert (tmp_path / "bench-old.json").is_file() and "bench-old.json" in capsys.readouterr().out


def test_the_table_holds_every_figure():
    machine = {"cpu": "A CPU", "cores": 2, "memory_gib": 16.0, "versions": {"torch": "2.0"}}
    results = {"a": result([1.0, 2.0, 4.0], [3.0, 4.0, 20.0]), "b": result([7.0], what="alone", target=30.0)}
    lines = bench.markdown(machine, results)
    assert lines[0] == "A CPU, 2 core(s), 16 GiB; torch 2.0"
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert lines[-4] == (
        "| a task | 3 | 2 (1 to 4) | 4 (3 to 20) | 3 (2 to 5) | 2 | 900 / 300 | - / - | 100 / 200 "
        "| accuracy 0.8000 / 0.7500 | 2.2 min, 2020-01-02 |"
    )
    assert lines[-3] == "| alone | 1 | 7 |  |  | 30 s | 900 | - | 100 | accuracy 0.8000 | 2.2 min, 2020-01-02 |"
    assert lines[-1] == "4 minutes in all."


def test_every_comparison_can_be_filled_in_at_both_sizes():
    places = ("data", "tiny", "long", "base", "tuned", "mnli", "model", "peers", "python", "seed", "run")
    values = dict.fromkeys(places, "a folder/with spaces")
    for comparison in bench.COMPARISONS:
        for size in (bench.SIZES, bench.QUICK):
            for command in filter(None, (comparison.ours, comparison.peer)):
                assert bench.fill(command, {**size, **values})[0] == "a folder/with spaces"
            assert "{" not in comparison.what.format(**size)
    assert len({comparison.name for comparison in bench.COMPARISONS}) == len(bench.COMPARISONS)


def test_rows_are_copied_with_their_header(tmp_path):
    source, target = tmp_path / "train.tsv", tmp_path / "new" / "train.tsv"
    source.write_bytes(b"sentence\tlabel\r\none\t0\r\ntwo\t1\r\n")
    bench.copy_rows(source, target, 1)
    assert target.read_bytes() == b"sentence\tlabel\r\none\t0\r\n"
    bench.copy_rows(source, target)
    assert target.read_bytes() == source.read_bytes()


def test_a_process_is_timed_and_its_failure_is_one_line(tmp_path):
    wall, peak = bench.run_process([sys.executable, "-c", "print('x')"], tmp_path)
    assert wall > 0 and peak > 1 and (tmp_path / "stdout.txt").read_text() == "x\n"
    with pytest.raises(bench.InputError, match="ended with 1: ValueError: no"):
        bench.run_process([sys.executable, "-c", "raise ValueError('no')"], tmp_path)


@pytest.mark.parametrize(
    "arguments, found",
    [(["--only", "nothing"], "--only nothing"), (["--peers", "none"], "holds no hf_trainer.py")],
)
def test_what_cannot_be_compared_is_one_line(arguments, found, capsys):
    assert bench.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and found in captured.err


# --- text.py ---------------------------------------------------------------------------------------------------------


def test_generated_pairs_have_the_lengths_of_mnli(bert_folder):
    examples = list(text.make_pairs(text.load_tokenizer(bert_folder, text.read_config(bert_folder)[1]), 2000))
    words = [(len(example.text_a.split()), len(example.text_b.split())) for example in examples]
    premise, hypothesis = (sum(column) / len(words) for column in zip(*words))  # noqa: B905
    assert [example.index for example in examples] == list(range(2000))
    assert 18 < premise < 22 and 9 < hypothesis < 11


def test_a_generated_file_is_read_as_mnli(bert_folder, tmp_path, capsys):
    text.main(["--write", str(tmp_path / "new" / "train.tsv"), "--rows", "30", "--model", str(bert_folder)])
    text.main(["--read", str(tmp_path / "new" / "train.tsv"), "--model", str(bert_folder)])
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 30 and found["read_seconds"] <= found["text_seconds"]
    assert found["peak_rss_mib"] >= found["peak_rss_before_mib"] > 10


# --- step.py ---------------------------------------------------------------------------------------------------------


def test_flops_by_hand():
    """One layer, 2 wide, 8 in its middle, 3 rows of 5 tokens, 2 labels."""
    encoder = 4 * 2 * 2 + 2 * 2 * 8  # query, key, value, output; the two of the feed-forward part
    head = 2 * 2 + 2 * 2  # pooler, classifier: one token of each row
    attention = 2 * 3 * (2 * 5 * 2)  # two products of 5 x 2 for each query, forward and twice that backward
    expected = 3 * 5 * (6 * encoder + attention) + 3 * 6 * head
    assert step.model_flops(step.make_architecture("1,2,1"), rows=3, length=5) == expected == 6264


def test_flops_of_bert_base():
    """85 million matrix parameters: 6 x 85e6 x 2048 tokens, and 1.4 % for attention at length 64."""
    assert step.model_flops(step.make_architecture("12,768,12"), rows=32, length=64) == pytest.approx(1.058e12, rel=0.002)


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_is_measured(dtype, capsys):
    flags = ["--dtype", dtype, "--shape", "2,32,2", "--batch_size", "2", "--length", "8", "--steps", "2"]
    assert step.main(flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["step_seconds_min"] <= found["step_seconds"] <= found["step_seconds_max"]
    assert found["real_tokens_per_second"] == pytest.approx(16 / found["step_seconds"], rel=0.01)
    assert found["share_of_product_rate"] == pytest.approx(
        found["model_gflops_per_second"] / found["product_gflops_per_second"], rel=0.05, abs=1e-3
    )
    assert found["peak_rss_mib"] > 10 and 0.3 < found["loss"] < 1.2  # ln 2 at random weights


def test_the_memory_estimate_grows_with_everything():
    small = step.memory_estimate(step.make_architecture("2,128,2"), 1, 16)
    assert small < step.memory_estimate(step.make_architecture("2,128,2"), 2, 16)
    assert small < step.memory_estimate(step.make_architecture("2,128,2"), 1, 32)
    large = step.memory_estimate(step.make_architecture("24,1024,16"), 1, 16)
    assert 6 * 4 * 335e6 < large < 10 * 2**30


# --- gpu.py and hf_predict.py ----------------------------------------------------------------------------------------


@needs_torch
def test_without_a_gpu_there_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "error: no CUDA GPU is visible to PyTorch\n"


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_checks_for_a_gpu_pass_on_the_cpu(dtype):
    checks = gpu.run_checks(load_engine("pytorch"), dtype, None)
    assert len(checks) == (4 if dtype == "float16" else 3)
    assert all(check["passed"] for check in checks), checks


@needs_torch
def test_the_checks_see_an_engine_that_keeps_no_promise(monkeypatch):
    module = load_engine("pytorch")
    apply = module.PyTorchEngine.apply_gradients

    def careless(self, *, learning_rate, max_grad_norm, loss_scale):
        """Leaves the loss scale in, and steps whatever the gradients are."""
        update = apply(self, learning_rate=learning_rate, max_grad_norm=0.0, loss_scale=1.0)
        with gpu.torch.no_grad():
            self.weights["classifier.bias"] += 1
        return update

    monkeypatch.setattr(module.PyTorchEngine, "apply_gradients", careless)
    passed = {check["check"]: check["passed"] for check in gpu.run_checks(module, "float16", None)}
    assert not passed["the scale cancels"]
    assert not passed["not finite changes nothing"]
    assert not passed["a huge scale backs off"]


def test_the_table_of_points():
    found = {"ours": {"seconds": [0.1, 0.2, 0.1], "memory": 2**20}, "peer": {"seconds": [0.2, 0.6, 0.3], "memory": 2**21}}
    architecture = step.make_architecture("6,384,12")
    with_peer = gpu.point_record("MiniLM-L6", "float16", 64, 32, architecture, 1e15, found)
    assert with_peer["ratio"] == pytest.approx(3.0) and with_peer["ratio_min"] == pytest.approx(2.0)
    assert with_peer["tokens_per_second"] == pytest.approx(20480) and with_peer["peak_mib"] == 1
    alone = gpu.point_record("MiniLM-L6", "float16", 64, 32, architecture, 1e15, {"ours": found["ours"]})
    lines = gpu.point_lines([with_peer, alone])
    assert len(lines) == 3 and lines[1].split()[-1] == "3" and lines[2].split()[-1] == "-"


@pytest.mark.parametrize("script", ["bench.py", "step.py", "text.py", "gpu.py", "hf_predict.py"])
def test_each_script_says_how_it_is_used(script, tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    assert f"python benchmarks/{script} " in done.stdout
