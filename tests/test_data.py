"""Reading files, encoding rows, making batches."""

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert import InputError
from bert.data import (
    EVALUATION_TOKENS,
    Example,
    Features,
    encode,
    evaluation_order,
    load_splits,
    make_batch,
    padding_share,
    read_examples,
    read_labels,
    read_rows,
    training_order,
    truncated_lengths,
)
from bert.tasks import find_task, own_task

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, task, split="train"):
    return read_examples(path, find_task(task) if isinstance(task, str) else task, split)


def refusal(*arguments, **options):
    with pytest.raises(InputError) as caught:
        read(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- every cell is text ----------------------------------------------------------------------------------------------


def test_quotes_are_text(tmp_path):
    path = write(tmp_path, "train.tsv", 'sentence\tlabel\n"open\t1\nb\t0\nsay "hi" now\t1\n')
    examples, _ = read(path, "SST-2")
    assert [(e.text_a, e.label) for e in examples] == [('"open', "1"), ("b", "0"), ('say "hi" now', "1")]


def test_quotes_that_never_close_do_not_swallow_rows(tmp_path):
    texts = ["plain"] * 10
    texts[1], texts[8] = 'an "unclosed quote', '"another'
    path = write(tmp_path, "train.tsv", "sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))
    assert [example.text_a for example in read(path, "SST-2")[0]] == texts


def test_mrpc_with_unbalanced_quotes_and_byte_order_mark(tmp_path):
    content = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t"He said .\tHe said , " no " "\n0\t1\t2\tx\t"y\n'
    examples, _ = read(write(tmp_path, "train.tsv", content), "MRPC")
    assert examples == [Example(0, '"He said .', 'He said , " no " "', "1"), Example(1, "x", '"y', "0")]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_no_part_of_the_first_cell(tmp_path, mark):
    path = write(tmp_path, "train.tsv", mark + b"label\ttext_a\n1\tgood\n0\tbad\n")
    assert [example.label for example in read(path, "ChnSentiCorp")[0]] == ["1", "0"]
    path = write(tmp_path, "cola.tsv", mark + b"gj04\t1\t\tgood\n")
    assert read(path, "CoLA")[0] == [Example(0, "good", None, "1")]


@pytest.mark.parametrize(
    "character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\u00a0", "\ufeff"]
)
def test_rows_end_at_newlines_only(tmp_path, character):
    texts = [f"one{character}two", f"{character}three", "four"]
    path = write(tmp_path, "train.tsv", "sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))
    assert [example.text_a for example in read(path, "SST-2")[0]] == texts


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_and_a_missing_last_one(tmp_path, end, last):
    content = end.join(["index\tsentence", "0\tfirst", "1\tlast"]) + (end if last else "")
    examples, _ = read(write(tmp_path, "test.tsv", content), "SST-2", "test")
    assert [example.text_a for example in examples] == ["first", "last"]


def test_words_that_mean_nothing_to_a_table_reader_stay_text(tmp_path):
    texts = ["NA", "null", "nan", "None", "1e5", "007", "#", " padded ", "", "-inf"]
    path = write(tmp_path, "train.tsv", "sentence\tlabel\n" + "".join(f"{text}\t0\n" for text in texts))
    assert [example.text_a for example in read(path, "SST-2")[0]] == texts


CELL = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=("Cs",)), max_size=12)


@QUICK
@given(
    cells=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6), mark=st.booleans(), end=st.sampled_from(["\n", "\r\n"])
)
def test_tsv_round_trip(cells, mark, end, tmp_path_factory):
    lines = ["text_a\ttext_b\tlabel", *(f"{a}\t{b}\t1" for a, b in cells)]
    path = write(tmp_path_factory.mktemp("tsv"), "train.tsv", ("\ufeff" if mark else "") + end.join(lines) + end)
    assert [(e.text_a, e.text_b) for e in read(path, "LCQMC")[0]] == cells


# --- headers ---------------------------------------------------------------------------------------------------------


def test_cola_has_no_header_but_in_its_test_file(tmp_path):
    rows = [f"gj04\t{number % 2}\t*\tsentence {number}" for number in range(4)]
    path = write(tmp_path, "train.tsv", "\n".join(rows) + "\n")
    for split in ("train", "dev"):
        assert [e.text_a for e in read(path, "CoLA", split)[0]] == [f"sentence {number}" for number in range(4)]
    path = write(
        tmp_path, "test.tsv", "index\tsentence\n" + "".join(f"{number}\tsentence {number}\n" for number in range(4))
    )
    examples, _ = read(path, "CoLA", "test")
    assert [(e.index, e.text_a, e.label) for e in examples] == [(number, f"sentence {number}", None) for number in range(4)]


def test_columns_are_found_by_name_wherever_they_are(tmp_path):
    path = write(tmp_path, "train.tsv", "label\textra\tsentence2\tindex\tsentence1\nentailment\tx\thypothesis\t0\tpremise\n")
    assert read(path, "RTE")[0] == [Example(0, "premise", "hypothesis", "entailment")]


@pytest.mark.parametrize(
    "wanted, given",
    [
        (wanted, given)
        for wanted, given in [
            ("CoLA", "MRPC"),
            ("CoLA", "SST-2"),
            ("CoLA", "STS-B"),
            ("QQP", "STS-B"),
            ("STS-B", "QQP"),
            ("SST-2", "CoLA"),
            ("MRPC", "QQP"),
            ("QNLI", "RTE"),
            ("MNLI", "RTE"),
            ("RTE", "STS-B"),
        ]
    ],
)
def test_files_of_another_task_are_recognised(wanted, given, glue_folder):
    """Never a model trained on the wrong data: the message says what was found and which task it looks like."""
    message = refusal(glue_folder / given / "train.tsv", wanted)
    assert "train.tsv:1" in message and "expected" in message
    assert given in message.partition("this looks like")[2]


def test_wnli_in_the_folder_of_rte_is_refused_at_its_first_label(glue_folder):
    assert "'0'" in refusal(glue_folder / "WNLI" / "train.tsv", "RTE")


# --- rows that do not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", ["SST-2", "MRPC", "STS-B", "MNLI", "QNLI", "RTE", "WNLI", "CoLA", "XNLI", "LCQMC", "ChnSentiCorp"]
)
@pytest.mark.parametrize("extra", [-1, 1])
def test_a_row_with_another_number_of_columns_is_named(task, extra, glue_folder, tmp_path):
    lines = (glue_folder / task / "train.tsv").read_bytes().split(b"\n")
    columns = lines[2].count(b"\t") + 1
    lines[2] = lines[2].rpartition(b"\t")[0] if extra < 0 else lines[2] + b"\tmore"
    message = refusal(write(tmp_path, "train.tsv", b"\n".join(lines)), task)
    assert "train.tsv:3:" in message and f"found {columns + extra} columns" in message and f"expected {columns}" in message


def test_a_row_far_down_is_named_by_its_line(tmp_path):
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *["1\t0\t0\ta\tb"] * 50000]
    lines[31337 - 1] = "1\t0\t0\ta b"
    assert "train.tsv:31337:" in refusal(write(tmp_path, "train.tsv", "\n".join(lines)), "MRPC")


QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def test_short_rows_of_qqp_are_skipped_in_train_and_counted(tmp_path):
    rows = [f"{number}\t1\t2\tq{number}\tr{number}\t{number % 2}\n" for number in range(5)]
    rows.insert(2, "77\t1\tonly three\n")
    path = write(tmp_path, "train.tsv", QQP + "".join(rows))
    examples, warnings = read(path, "QQP")
    assert [(e.index, e.text_a) for e in examples] == [(number, f"q{number}") for number in range(5)]
    assert len(warnings) == 1 and "train.tsv" in warnings[0] and "1 row" in warnings[0] and "line 4" in warnings[0]


@pytest.mark.parametrize("split, header, row", [("dev", QQP, "1\t2\t3\n"), ("test", "id\tquestion1\tquestion2\n", "1\tq\n")])
def test_short_rows_of_qqp_are_never_dropped_from_dev_and_test(tmp_path, split, header, row):
    good = "\t".join(["0"] * (header.count("\t") + 1)) + "\n"
    assert f"{split}.tsv:3:" in refusal(write(tmp_path, f"{split}.tsv", header + good + row + good), "QQP", split)


def test_a_qqp_file_of_short_rows_only_is_refused(tmp_path):
    assert "no rows" in refusal(write(tmp_path, "train.tsv", QQP + "1\t2\t3\n"), "QQP")


@pytest.mark.parametrize("content", [b"", b"sentence\tlabel\n", b"\xef\xbb\xbf"])
def test_files_without_rows_are_refused(tmp_path, content):
    assert "train.tsv" in refusal(write(tmp_path, "train.tsv", content), "SST-2")


def test_an_empty_line_in_the_middle_is_named(tmp_path):
    assert "train.tsv:3:" in refusal(write(tmp_path, "train.tsv", "sentence\tlabel\na\t1\n\nb\t0\n"), "SST-2")


@pytest.mark.parametrize("label", ["maybe", "", "2", "Entailment", "entailment ", "1"])
def test_an_unknown_label_is_named_with_the_known_ones(tmp_path, label):
    path = write(tmp_path, "dev.tsv", f"index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\td\t{label}\n")
    message = refusal(path, "RTE", "dev")
    assert "dev.tsv:3:" in message and repr(label) in message
    assert "not_entailment" in message and "entailment" in message.replace("not_entailment", "")


@pytest.mark.parametrize("score", ["", "high", "nan", "inf", "-inf", "3,5"])
def test_a_score_that_is_no_number_is_named(tmp_path, score):
    path = write(tmp_path, "train.csv", f'text,label\na,1.0\nb,"{score}"\n')
    task = own_task({"train": path}, labels=())
    assert "train.csv:3:" in refusal(path, task) and repr(score) in refusal(path, task)


@pytest.mark.parametrize("content, line", [(b"sentence\tlabel\nna\xefve\t1\n", 2), (b"\xff\xfes\x00", 1)])
def test_bytes_that_are_not_utf8_are_named(tmp_path, content, line):
    message = refusal(write(tmp_path, "train.tsv", content), "SST-2")
    assert f"train.tsv:{line}:" in message and "UTF-8" in message


def test_a_compressed_file_or_a_folder_is_refused(tmp_path):
    import gzip

    assert "gzip" in refusal(write(tmp_path, "train.tsv", gzip.compress(b"sentence\tlabel\n")), "SST-2")
    (tmp_path / "dev.tsv").mkdir()
    assert "folder" in refusal(tmp_path / "dev.tsv", "SST-2", "dev")


def test_official_label_texts_and_their_other_spellings(tmp_path):
    path = write(tmp_path, "train.tsv", "premise\thypo\tlabel\na\tb\tcontradictory\nc\td\tcontradiction\n")
    assert [example.label for example in read(path, "XNLI")[0]] == ["contradiction", "contradiction"]


# --- own files -------------------------------------------------------------------------------------------------------

OWN_ROWS = [("a film, good", "yes"), ('a "bad" book', "no"), ("naïve — 漢", "yes"), ("", "no")]


def own_file(folder, suffix, rows=OWN_ROWS, columns=("text", "label")):
    if suffix == ".csv":
        stream = io.StringIO()
        csv.writer(stream).writerows([columns, *rows])
        content = stream.getvalue()
    elif suffix in (".jsonl", ".json"):
        content = "".join(json.dumps(dict(zip(columns, row))) + "\n" for row in rows)
    else:
        content = "".join("\t".join(row) + "\n" for row in [columns, *rows])
    return write(folder, f"own{suffix}", content)


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".csv", ".jsonl", ".json"])
def test_own_files_of_every_kind_hold_the_same_rows(tmp_path, suffix):
    path = own_file(tmp_path, suffix)
    task = own_task({"train": path}, labels=read_labels([path]))
    assert task.labels == ("no", "yes")
    assert [(e.text_a, e.label) for e in read(path, task)[0]] == OWN_ROWS


@QUICK
@given(cells=st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12), min_size=1, max_size=5))
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_quoting_formats_round_trip_any_text(suffix, cells, tmp_path_factory):
    if suffix == ".csv":  # csv.writer refuses a NUL before Python 3.11, and ends quoted rows of its own accord
        cells = [cell.replace("\0", "") for cell in cells]
    rows = [(cell, "x") for cell in cells]
    path = own_file(tmp_path_factory.mktemp("own"), suffix, rows)
    assert [example.text_a for example in read(path, own_task({"train": path}, labels=("x",)))[0]] == cells


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_own_columns(tmp_path, suffix):
    """One or two columns of text in file order; id, idx and index are none; a test file needs no label."""
    path = own_file(tmp_path, suffix, [("7", "p", "x", "q"), ("8", "r", "y", "s")], ("id", "premise", "label", "hypothesis"))
    task = own_task({"train": path, "test": path}, labels=("x", "y"))
    expected = [Example(0, "p", "q", "x"), Example(1, "r", "s", "y")]
    assert read(path, task)[0] == expected
    assert read(path, task, "test")[0] == [example._replace(label=None) for example in expected]


@pytest.mark.parametrize(
    "columns, message",
    [
        (("text", "target"), "label"),
        (("label", "idx"), "text"),
        (("label", "a", "b", "c"), "text"),
        (("text,label",), "text,label"),
    ],
)
def test_own_columns_that_do_not_fit_are_listed(tmp_path, columns, message):
    path = own_file(tmp_path, ".tsv", [("1",) * len(columns)], columns)
    refused = refusal(path, own_task({"train": path}, labels=("0", "1")))
    assert ":1:" in refused and ", ".join(columns) in refused and message in refused


def test_labels_in_jsonl_may_be_numbers(tmp_path):
    path = own_file(tmp_path, ".jsonl", [("a", 1), ("b", 0)])
    assert read_labels([path]) == ("0", "1")
    assert [example.label for example in read(path, own_task({"train": path}, labels=("0", "1")))[0]] == ["1", "0"]
    path = own_file(tmp_path, ".jsonl", [("a", 1.5), ("b", -2)])
    features = encode(read(path, own_task({"train": path}, labels=()))[0], stub_tokenizer(), labels=(), max_len=8)
    assert features.label_ids.tolist() == [1.5, -2.0]


def test_labels_come_from_all_labelled_files(tmp_path):
    first = write(tmp_path, "train.csv", "text,label\na,x\nb,y\n")
    second = write(tmp_path, "dev.csv", "text,label\nc,z\n")
    assert read_labels([first, second]) == ("x", "y", "z")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.csv", 'text,label\n"open,1\n', ["a.csv:", "CSV"]),
        ("a.csv", "text,label\na,1\nb,c,0\n", ["a.csv:3:", "3 columns"]),
        ("a.jsonl", '{"text": "a", "label": "1"}\n{"text": "b"\n', ["a.jsonl:2:", "JSON"]),
        ("a.jsonl", '{"text": "a", "label": "1"}\n{"text": "b"}\n', ["a.jsonl:2:", "text"]),
        ("a.jsonl", '["a", "1"]\n', ["a.jsonl:1:", "object"]),
        ("a.jsonl", "\n\n", ["a.jsonl", "empty"]),
        ("a.jsonl", "[" * 100000 + "\n", ["a.jsonl:1:", "JSON"]),
        ("a.tsv", "text,label\na, b,1\n", ["a.tsv:1:", "text,label"]),
        ("a.tsv", "text\tlabel\na\t1\n", ["1 different"]),
        ("a.tsv", "text\tlabel\n" + "".join(f"a\t{number}\n" for number in range(1500)), ["1500", "--regression"]),
    ],
)
def test_own_files_that_cannot_be_read_say_why(tmp_path, name, content, words):
    with pytest.raises(InputError) as caught:
        read_labels([write(tmp_path, name, content)])
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message and len(message) < 500


def test_jsonl_keys_may_come_in_another_order(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": "a", "label": "x"}\n{"label": "y", "text": "b"}\n')
    assert [(e.text_a, e.label) for e in read(path, own_task({"train": path}, labels=("x", "y")))[0]] == [
        ("a", "x"),
        ("b", "y"),
    ]


@pytest.mark.parametrize("value", ["null", "[1, 2]", '{"a": 1}'])
def test_jsonl_texts_that_are_no_texts_are_named(tmp_path, value):
    """A missing text must not be learned as the word null."""
    path = write(tmp_path, "a.jsonl", f'{{"text": "a", "label": "x"}}\n{{"text": {value}, "label": "y"}}\n')
    assert "a.jsonl:2:" in refusal(path, own_task({"train": path}, labels=("x", "y")))


def test_jsonl_text_that_is_no_unicode_is_named(tmp_path):
    """Half of an emoji, as JSON can hold it, is no text that a tokenizer takes or a file can be written with."""
    path = write(tmp_path, "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b \\ud83d", "label": "y"}\n')
    assert "a.jsonl:2:" in refusal(path, own_task({"train": path}, labels=("x", "y")))


@pytest.mark.parametrize("name, text", [("a.tsv", "text\tlabel\nx\t1\n"), ("a.jsonl", '{"text": "x", "label": "1"}\n')])
def test_only_what_is_asked_for_is_read(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode() + b"\xff\n")
    header, rows = read_rows(tmp_path / name)
    assert header == ["text", "label"] and next(rows)[1] == ["x", "1"]
    with pytest.raises(InputError, match="found byte 0xff"):
        next(rows)


def test_read_rows_counts_the_lines_of_the_file(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"two\nlines",1\n\nb,0\n')
    assert list(read_rows(path)[1]) == [(3, ["two\nlines", "1"]), (5, ["b", "0"])]


# --- loading the splits of a task ------------------------------------------------------------------------------------


def load(task, folder, *, train=True):
    return load_splits(find_task(task), folder, train=train, tokenizer=stub_tokenizer(), max_len=32)


@pytest.mark.parametrize("missing", ["train.tsv", "dev.tsv"])
def test_a_missing_file_is_named_by_its_path(missing, tmp_path, glue_writer):
    glue_writer.task(tmp_path, "RTE")
    (tmp_path / "RTE" / missing).unlink()
    with pytest.raises(InputError) as caught:
        load("RTE", tmp_path)
    assert str(tmp_path / "RTE" / missing) in str(caught.value)


def test_without_test_files_a_model_can_still_be_trained(tmp_path, glue_writer):
    glue_writer.task(tmp_path, "MNLI")
    for path in (tmp_path / "MNLI").glob("test*"):
        path.unlink()
    splits, lines = load("MNLI", tmp_path)
    assert list(splits) == ["train", "dev_matched", "dev_mismatched"]
    assert [line.split(":")[0] for line in lines] == [
        str(tmp_path / "MNLI" / f"test_{kind}.tsv") for kind in ("matched", "mismatched")
    ]


def test_the_diagnostic_set_is_used_where_it_is_there(tmp_path, glue_writer):
    glue_writer.task(tmp_path, "MNLI")
    assert "test_ax" not in load("MNLI", tmp_path)[0]
    glue_writer.task(tmp_path, "AX")
    assert len(load("MNLI", tmp_path)[0]["test_ax"].examples) == 5


def test_to_predict_only_any_one_file_is_enough(tmp_path, glue_writer):
    glue_writer.task(tmp_path, "RTE")
    (tmp_path / "RTE" / "train.tsv").unlink()
    assert list(load("RTE", tmp_path, train=False)[0]) == ["dev", "test"]
    (tmp_path / "RTE" / "dev.tsv").unlink()
    assert list(load("RTE", tmp_path, train=False)[0]) == ["test"]
    (tmp_path / "RTE" / "test.tsv").unlink()
    with pytest.raises(InputError, match="RTE"):
        load("RTE", tmp_path, train=False)


# --- encoding --------------------------------------------------------------------------------------------------------

CLS, SEP, PAD = 900, 901, 999


def stub_tokenizer(separators=1, segments=True):
    """One token for each character: "abc" is 97, 98, 99."""
    return SimpleNamespace(
        cls_id=CLS,
        sep_id=SEP,
        pad_id=PAD,
        separators=separators,
        segments=segments,
        encode=lambda texts: [[ord(character) for character in text] for text in texts],
        special_tokens=lambda pair: 2 + separators if pair else 2,
    )


def trimmed_one_by_one(length_a, length_b, room):
    while length_a + length_b > room:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


@pytest.mark.parametrize(
    "lengths, room, kept", [((9, 2), 5, (3, 2)), ((3, 4), 5, (3, 2)), ((4, 4), 7, (4, 3)), ((1, 9), 4, (1, 3))]
)
def test_pairs_are_cut_longest_first(lengths, room, kept):
    assert truncated_lengths(*lengths, room) == kept


@QUICK
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_truncation_equals_taking_tokens_one_by_one(length_a, length_b, room):
    assert truncated_lengths(length_a, length_b, room) == trimmed_one_by_one(length_a, length_b, room)


def row(features, number):
    return features.input_ids[features.offsets[number] : features.offsets[number + 1]].tolist()


LETTERS = st.text("abcdefgh", max_size=30)


@QUICK
@given(
    pairs=st.lists(st.tuples(LETTERS, LETTERS), min_size=1, max_size=5),
    pair=st.booleans(),
    separators=st.sampled_from([1, 2]),
    max_len=st.integers(4, 40),
)
def test_encoded_rows(pairs, pair, separators, max_len):
    """[CLS] a [SEP], or [CLS] a [SEP]... b [SEP]; never longer than max_len, never shorter than it need be."""
    tokenizer = stub_tokenizer(separators)
    examples = [Example(number, a, b if pair else None, None) for number, (a, b) in enumerate(pairs)]
    features = encode(examples, tokenizer, labels=("0", "1"), max_len=max_len)
    assert len(features) == len(pairs) and features.label_ids is None
    cut = 0
    for number, (a, b) in enumerate(pairs):
        b = b if pair else ""
        room = max_len - (2 + separators if pair else 2)
        kept_a, kept_b = trimmed_one_by_one(len(a), len(b), room) if pair else (min(len(a), room), 0)
        cut += kept_a < len(a) or kept_b < len(b)
        expected = [CLS, *map(ord, a[:kept_a]), SEP]
        second = len(expected)
        if pair:
            expected += [SEP] * (separators - 1) + [*map(ord, b[:kept_b]), SEP]
        assert row(features, number) == expected
        assert len(expected) <= max_len
        assert features.segment_starts[number] == second
    assert features.truncated == cut


def test_an_empty_second_sentence_keeps_its_separator():
    features = encode([Example(0, "a", "", None)], stub_tokenizer(), labels=(), max_len=8)
    batch = make_batch(features, np.array([0]), pad_id=PAD, round_to=1, max_len=8)
    assert batch.input_ids.tolist() == [[CLS, ord("a"), SEP, SEP]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 1]]


def test_the_premise_is_segment_0(glue_folder):
    example = read(glue_folder / "RTE" / "train.tsv", "RTE")[0][1]
    features = encode([example], stub_tokenizer(), labels=("not_entailment", "entailment"), max_len=100)
    batch = make_batch(features, np.array([0]), pad_id=PAD, round_to=1, max_len=100)
    first = batch.input_ids[0][batch.token_type_ids[0] == 0].tolist()
    assert first == [CLS, *map(ord, example.text_a), SEP]


def test_scores_stay_what_they_are():
    examples = [Example(number, "a", "b", label) for number, label in enumerate(["0.4", "2.75", "4.600"])]
    features = encode(examples, stub_tokenizer(), labels=(), max_len=8)
    labels = make_batch(features, np.arange(3), pad_id=0, round_to=1, max_len=8).label_ids
    assert labels.dtype == np.float32 and labels.tolist() == np.array([0.4, 2.75, 4.6], np.float32).tolist()


def test_labels_are_numbered_in_the_tasks_order():
    examples = [Example(number, "a", None, label) for number, label in enumerate(["c", "a", "b", "a"])]
    features = encode(examples, stub_tokenizer(), labels=("b", "c", "a"), max_len=8)
    assert features.label_ids.dtype == np.int32 and features.label_ids.tolist() == [1, 2, 0, 2]


def test_more_rows_than_are_tokenized_at_once():
    examples = [Example(number, "x" * (number % 7), None, str(number % 2)) for number in range(20003)]
    features = encode(examples, stub_tokenizer(), labels=("0", "1"), max_len=16)
    assert features.lengths.tolist() == [number % 7 + 2 for number in range(20003)]
    assert features.label_ids.tolist() == [number % 2 for number in range(20003)]


# --- batches ---------------------------------------------------------------------------------------------------------

ROW_LENGTHS = st.lists(st.integers(2, 40), min_size=1, max_size=300).map(np.array)


def make_features(lengths, seed=0):
    random = np.random.default_rng(seed)
    return Features(
        input_ids=random.integers(1, 500, int(np.sum(lengths))).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        segment_starts=np.array([random.integers(1, length + 1) for length in lengths], np.int32),
        label_ids=random.integers(0, 3, len(lengths)).astype(np.int32),
        truncated=0,
    )


@QUICK
@given(lengths=ROW_LENGTHS, batch_size=st.integers(1, 9), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 50))
def test_every_row_once_per_epoch(lengths, batch_size, seed, epoch):
    batches = training_order(lengths, batch_size=batch_size, seed=seed, epoch=epoch)
    assert len(batches) == -(-len(lengths) // batch_size)
    assert all(1 <= len(batch) <= batch_size for batch in batches)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    again = training_order(lengths, batch_size=batch_size, seed=seed, epoch=epoch)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in again]


def test_the_order_follows_seed_and_epoch_only():
    lengths = np.random.default_rng(0).integers(5, 60, 500)
    orders = {
        (seed, epoch): [batch.tolist() for batch in training_order(lengths, batch_size=8, seed=seed, epoch=epoch)]
        for seed in (0, 1, 2)
        for epoch in (0, 1, 2)
    }
    assert len({json.dumps(order) for order in orders.values()}) == 9
    np.random.seed(5)
    assert [b.tolist() for b in training_order(lengths, batch_size=8, seed=1, epoch=2)] == orders[1, 2]


def test_batches_hold_rows_of_like_length_but_not_the_same_rows_each_epoch():
    lengths = np.random.default_rng(0).integers(5, 100, 3200)
    batches = training_order(lengths, batch_size=32, seed=0, epoch=0)
    shuffled = np.random.default_rng(1).permutation(3200).reshape(100, 32)
    features = make_features(lengths)
    share = {
        name: padding_share(features, order, round_to=1, max_len=100)
        for name, order in [("ours", batches), ("shuffled", shuffled)]
    }
    assert share["ours"] < 0.05 < 0.3 < share["shuffled"]
    widths = [lengths[batch].max() for batch in batches]
    assert np.corrcoef(np.arange(len(widths)), widths)[0, 1] == pytest.approx(0, abs=0.35)  # not from short to long
    assert {frozenset(b.tolist()) for b in batches}.isdisjoint(
        {frozenset(b.tolist()) for b in training_order(lengths, batch_size=32, seed=0, epoch=1)}
    )


@QUICK
@given(lengths=ROW_LENGTHS, batch_size=st.none() | st.integers(1, 9))
def test_evaluation_covers_every_row_from_long_to_short(lengths, batch_size):
    batches = evaluation_order(lengths, batch_size=batch_size)
    rows = np.concatenate(batches)
    assert sorted(rows.tolist()) == list(range(len(lengths)))
    assert (np.diff(lengths[rows]) <= 0).all()
    for batch in batches:
        assert len(batch) <= (batch_size or max(64, EVALUATION_TOKENS // lengths[batch].max()))


def test_evaluation_takes_more_of_short_rows_at_once():
    lengths = np.array([128] * 100 + [8] * 1000)
    assert [len(batch) for batch in evaluation_order(lengths)] == [64, 64, 256, 256, 256, 204]


@QUICK
@given(lengths=ROW_LENGTHS, round_to=st.integers(1, 17), more=st.integers(0, 20), data=st.data())
def test_batches_are_padded_at_the_end_only(lengths, round_to, more, data):
    features, max_len = make_features(lengths), int(lengths.max()) + more
    rows = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=6, unique=True)))
    batch = make_batch(features, rows, pad_id=PAD, round_to=round_to, max_len=max_len)
    width, longest = batch.input_ids.shape[1], lengths[rows].max()
    assert longest <= width <= max_len
    assert width == max_len or (width % round_to == 0 and width - longest < round_to)
    assert len(batch) == len(rows) and batch.index.tolist() == rows.tolist()
    assert batch.valid_length.tolist() == lengths[rows].tolist() and batch.tokens == lengths[rows].sum()
    assert batch.label_ids.tolist() == features.label_ids[rows].tolist()
    assert {batch.input_ids.dtype, batch.token_type_ids.dtype, batch.valid_length.dtype} == {np.dtype(np.int32)}
    for number, source in enumerate(rows):
        length, start = lengths[source], features.segment_starts[source]
        assert batch.input_ids[number, :length].tolist() == row(features, source)
        assert (batch.input_ids[number, length:] == PAD).all()
        assert batch.token_type_ids[number].tolist() == [int(start <= place < length) for place in range(width)]


@QUICK
@given(lengths=ROW_LENGTHS, batch_size=st.integers(1, 9), round_to=st.sampled_from([1, 8]))
def test_the_padding_share_is_the_share_of_padding(lengths, batch_size, round_to):
    features = make_features(lengths)
    order = training_order(lengths, batch_size=batch_size, seed=0, epoch=0)
    batches = [make_batch(features, rows, pad_id=PAD, round_to=round_to, max_len=64) for rows in order]
    cells = sum(batch.input_ids.size for batch in batches)
    padding = sum(int((batch.input_ids == PAD).sum()) for batch in batches)
    assert padding_share(features, order, round_to=round_to, max_len=64) == pytest.approx(padding / cells)


def test_a_score_that_float32_cannot_hold_is_named_with_its_line(tmp_path):
    path = write(tmp_path, "own.tsv", "text\tlabel\na\t0.5\nb\t1e39\n")
    assert "own.tsv:3:" in refusal(path, own_task({"train": path}, labels=()))


@pytest.mark.parametrize(
    "score, value", [(" 4.5 ", 4.5), ("5", 5.0), ("-.5", -0.5), ("3.", 3.0), ("1E-3", 0.001), ("+2e0", 2.0)]
)
def test_scores_as_people_write_them(score, value, tmp_path):
    path = write(tmp_path, "own.csv", f'text,label\na,"{score}"\n')
    features = encode(read(path, own_task({"train": path}, labels=()))[0], stub_tokenizer(), labels=(), max_len=8)
    assert features.label_ids.tolist() == [np.float32(value)]


def test_few_enough_rows_and_characters_are_tokenized_at_once():
    """A thousand long texts must not be held as tokens at the same time."""
    tokenizer, held = stub_tokenizer(), []
    encode_texts = tokenizer.encode
    tokenizer.encode = lambda texts: held.append(sum(map(len, texts))) or encode_texts(texts)
    texts = ["word " * 20000] * 45 + ["x" * 100000] * 45
    features = encode([Example(n, text, None, None) for n, text in enumerate(texts)], tokenizer, labels=(), max_len=16)
    assert features.lengths.tolist() == [16] * 90 and features.truncated == 90
    assert max(held) <= 2_100_000
    assert sum(held) < 5_000_000  # of the texts with spaces only the openings
