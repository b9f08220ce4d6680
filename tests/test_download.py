"""From the hub's parquet rows to official TSV files, without a network."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert import InputError
from bert.data import read_examples
from bert.download import download_task, write_tsv
from bert.tasks import TASKS, find_task

# The hub's columns and, where it has any, its label order (nyu-mll/glue).
HUB = {
    "CoLA": (("sentence",), ("0", "1")),
    "SST-2": (("sentence",), ("0", "1")),
    "MRPC": (("sentence1", "sentence2"), ("0", "1")),
    "STS-B": (("sentence1", "sentence2"), None),
    "QQP": (("question1", "question2"), ("0", "1")),
    "MNLI": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "QNLI": (("question", "sentence"), ("entailment", "not_entailment")),
    "RTE": (("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "WNLI": (("sentence1", "sentence2"), ("0", "1")),
    "AX": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
}
FILES = {
    "CoLA": "cola",
    "SST-2": "sst2",
    "MRPC": "mrpc",
    "STS-B": "stsb",
    "QQP": "qqp",
    "MNLI": "mnli",
    "QNLI": "qnli",
    "RTE": "rte",
    "WNLI": "wnli",
    "AX": "ax",
}
TEXTS = [
    ("It's \"odd\" , isn't it ?", "naïve — 漢"),
    ("second", "x"),
    ("third", ""),
    (" padded ", "\u2028in the middle\u2028"),
]


class Log:
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def hub_rows(name, texts=TEXTS, *, labelled=True):
    """(rows as the hub gives them, the texts and label texts they stand for)."""
    columns, names = HUB[name]
    rows, expected = [], []
    for number, pair in enumerate(texts):
        row = dict(zip(columns, pair))
        if names is None:
            label, text = (float(number) + 0.25, f"{number + 0.25:.3f}")
        else:
            label, text = number % len(names), names[number % len(names)]
        row["label"] = label if labelled else -1
        row["idx"] = 1000 + number
        rows.append(row)
        expected.append((pair[0], pair[1] if len(columns) == 2 else None, text if labelled else None))
    return rows, expected


def read(path, task, split):
    return [(e.text_a, e.text_b, e.label) for e in read_examples(path, task, split)[0]]


@pytest.mark.parametrize(
    "name, split", [(name, split) for name in HUB for split in TASKS[name].splits if split != "test_ax"]
)
def test_hub_rows_come_back_from_the_official_layout(name, split, tmp_path):
    task = find_task(name)
    rows, expected = hub_rows(name, labelled=not split.startswith("test"))
    path = tmp_path / "new" / "file.tsv"
    write_tsv(path, name, task.splits[split], rows)
    assert read(path, task, split) == expected
    assert [entry.name for entry in path.parent.iterdir()] == ["file.tsv"]


@pytest.mark.parametrize(
    "name, split, header",
    [
        ("CoLA", "test", "index sentence"),
        ("SST-2", "train", "sentence label"),
        ("MRPC", "train", "Quality,#1 ID,#2 ID,#1 String,#2 String"),
        ("QQP", "train", "id qid1 qid2 question1 question2 is_duplicate"),
        ("QQP", "test", "id question1 question2"),
        ("QNLI", "dev", "index question sentence label"),
        ("RTE", "test", "index sentence1 sentence2"),
        ("WNLI", "dev", "index sentence1 sentence2 label"),
        ("STS-B", "dev", "index genre filename year old_index source1 source2 sentence1 sentence2 score"),
    ],
)
def test_headers_are_the_official_ones(name, split, header, tmp_path):
    write_tsv(tmp_path / "x.tsv", name, find_task(name).splits[split], hub_rows(name)[0])
    expected = header.split(",") if "," in header else header.split()
    assert (tmp_path / "x.tsv").read_text(encoding="utf-8").split("\n")[0].split("\t") == expected


def test_cola_is_written_without_a_header(tmp_path):
    write_tsv(tmp_path / "x.tsv", "CoLA", find_task("CoLA").splits["train"], hub_rows("CoLA")[0])
    lines = (tmp_path / "x.tsv").read_text(encoding="utf-8").split("\n")
    assert len(lines) == len(TEXTS) + 1 and lines[1] == "\t1\t\tsecond"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    texts=st.lists(st.tuples(*[st.text(st.characters(exclude_categories=("Cs",)), max_size=12)] * 2), min_size=1, max_size=5)
)
@pytest.mark.parametrize("name", ["CoLA", "SST-2", "RTE"])
def test_any_text_keeps_its_row_and_its_words(name, texts, tmp_path_factory):
    """Tabs and line ends inside a text become spaces; nothing else changes and no row is lost."""
    task = find_task(name)
    rows, expected = hub_rows(name, texts)
    path = tmp_path_factory.mktemp("any") / "x.tsv"
    write_tsv(path, name, task.splits["train"], rows)
    found = read(path, task, "train")
    assert len(found) == len(expected)
    for (a, b, label), (wanted_a, wanted_b, wanted_label) in zip(found, expected):
        assert label == wanted_label
        for text, wanted in ((a, wanted_a), (b, wanted_b)):
            if wanted is not None:
                assert text == wanted.translate(str.maketrans("\t\r\n", "   "))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub as a folder of parquet files; yields the list of files asked for."""
    import huggingface_hub
    import polars

    asked = []

    def download(repository, file, repo_type):
        assert (repository, repo_type) == ("nyu-mll/glue", "dataset")
        asked.append(file)
        config, split = file.split("/")
        name = next(name for name, folder in FILES.items() if folder == config)
        path = tmp_path / "hub" / config / split
        path.parent.mkdir(parents=True, exist_ok=True)
        polars.DataFrame(hub_rows(name, labelled=not split.startswith("test"))[0]).write_parquet(path)
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


@pytest.mark.parametrize("name", HUB)
def test_a_task_is_fetched_whole(name, hub, tmp_path):
    task, log = find_task(name), Log()
    download_task(task, tmp_path / "glue", log)
    for split in task.splits:
        path = tmp_path / "glue" / task.splits[split].files[0]
        expected = hub_rows("AX" if split == "test_ax" else name, labelled=not split.startswith("test"))[1]
        assert read(path, task, split) == expected
        assert any(str(path) in line and "4 rows" in line for line in log.lines)
    names = {file.split("/")[1].removesuffix("-00000-of-00001.parquet") for file in hub if not file.startswith("ax/")}
    if name == "MNLI":
        assert names == {"train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"}
        assert "ax/test-00000-of-00001.parquet" in hub
    elif name != "AX":
        assert names == {"train", "validation", "test"}
    assert all(file.endswith("-00000-of-00001.parquet") for file in hub)


def test_files_that_are_there_are_kept(hub, tmp_path):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").write_text("mine")
    download_task(find_task("RTE"), tmp_path, Log())
    assert (tmp_path / "RTE" / "train.tsv").read_text() == "mine"
    assert [file.split("/")[1].split("-")[0] for file in hub] == ["validation", "test"]
    download_task(find_task("RTE"), tmp_path, Log())
    assert len(hub) == 2


def refusal(*arguments):
    with pytest.raises(InputError) as caught:
        download_task(*arguments, Log())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("error", [OSError("offline"), ConnectionError("refused\nline two"), RuntimeError("x")])
def test_without_network_the_wanted_path_is_named(error, tmp_path, monkeypatch):
    import huggingface_hub

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    assert str(tmp_path / "MRPC" / "train.tsv") in refusal(find_task("MRPC"), tmp_path)
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.tsv").write_text("x")
    assert str(tmp_path / "MRPC" / "dev.tsv") in refusal(find_task("MRPC"), tmp_path)


def test_the_real_client_offline(tmp_path, monkeypatch):
    """The hub's own client fails in its own way, and the person sees one line."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert str(tmp_path / "RTE" / "train.tsv") in refusal(find_task("RTE"), tmp_path)


@pytest.mark.parametrize("name", ["XNLI", "LCQMC", "ChnSentiCorp"])
def test_tasks_that_the_hub_does_not_have(name, tmp_path):
    assert str(tmp_path / name / "train.tsv") in refusal(find_task(name), tmp_path)


def test_other_columns_on_the_hub_are_not_written(tmp_path):
    with pytest.raises(InputError, match="text, label"):
        write_tsv(tmp_path / "x.tsv", "RTE", find_task("RTE").splits["train"], [{"text": "a", "label": 0}])
    assert not (tmp_path / "x.tsv").exists()
