"""Text to token ids, against Hugging Face's own tokenizers and the written rules of BERT."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert import InputError
from bert.data import Example, encode
from bert.tokenization import load_tokenizer
from bert.weights import read_config

VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] hello left right note book naive cafe hacia café Naïve Café naïve a b ##a ##b ##llo he "
    "sep cls mask hello ##book [ ] - – “ ” … 、 . , ! ' 漢 字 notebook i̇"
)
TOKENS = VOCABULARY.split()


def build(folder, make_model, *, words=TOKENS, settings=None, model_type="bert"):
    make_model(folder, model_type, words=list(dict.fromkeys(words)), settings=settings)
    return load(folder)


def load(folder, **changes):
    return load_tokenizer(folder, dataclasses.replace(read_config(folder)[1], **changes))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory, make_model):
    """Lower-casing BERT."""
    return build(tmp_path_factory.mktemp("lower") / "model", make_model, settings={"do_lower_case": True})


@pytest.fixture
def cased(tmp_path, make_model):
    return build(tmp_path / "cased", make_model, settings={"do_lower_case": False})


def pieces(tokenizer, text):
    return tokenizer.tokens(tokenizer.encode([text])[0])


def row_ids(tokenizer, text_a, text_b=None, max_len=128):
    features = encode([Example(0, text_a, text_b, None)], tokenizer, labels=(), max_len=max_len)
    return features.input_ids.tolist()


# --- casing and accents ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, expected", [("Naïve Café", ["naive", "cafe"]), ("hacía", ["hacia"]), ("HELLO", ["hello"])])
def test_uncased_models_lower_and_strip_accents(tokenizer, text, expected):
    assert pieces(tokenizer, text) == expected


@pytest.mark.parametrize(
    "text, expected", [("café", ["café"]), ("Café", ["Café"]), ("Naïve", ["Naïve"]), ("HELLO", ["[UNK]"])]
)
def test_cased_models_keep_case_and_accents(cased, text, expected):
    assert pieces(cased, text) == expected


def test_accents_may_be_kept_by_setting(tmp_path, make_model):
    tokenizer = build(tmp_path / "m", make_model, settings={"do_lower_case": True, "strip_accents": False})
    assert pieces(tokenizer, "CAFÉ") == ["café"]


@pytest.mark.parametrize("words, expected", [(["hello", "cafe"], ["hello"]), (["hello", "Cafe"], ["[UNK]"])])
def test_without_a_setting_the_vocabulary_tells_the_casing(tmp_path, make_model, words, expected):
    tokenizer = build(tmp_path / "m", make_model, words=[*TOKENS[:5], *words])
    assert pieces(tokenizer, "Hello") == expected


# --- cleaning and splitting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["–", "“", "…", "、", "-", "!"])
def test_punctuation_of_any_script_splits(tokenizer, mark):
    assert pieces(tokenizer, f"left{mark}right") == ["left", mark, "right"]


@pytest.mark.parametrize("character", ["\x07", "\u00ad", "\ufffd", "\0", "\u200b", "\u200d", "\x7f", "\ufeff"])
def test_control_and_format_characters_vanish(tokenizer, character):
    assert pieces(tokenizer, f"he{character}llo") == ["hello"]
    assert pieces(tokenizer, f"note{character}book") == ["notebook"]


@pytest.mark.parametrize("character", ["\t", "\n", "\r", " ", "\u00a0", "\u3000", "\u2003"])
def test_white_space_splits(tokenizer, character):
    assert pieces(tokenizer, f"note{character}book") == ["note", "book"]


def test_chinese_characters_stand_alone(tokenizer):
    assert pieces(tokenizer, "漢字hello") == ["漢", "字", "hello"]


@pytest.mark.parametrize("text", ["😀😀😀", "hello😀", "😀hello"])
def test_a_word_with_an_unknown_piece_is_one_unk(tokenizer, text):
    assert pieces(tokenizer, text) == ["[UNK]"]


@pytest.mark.parametrize("length, count", [(99, 99), (100, 100), (101, 1), (200, 1), (201, 1)])
def test_words_above_100_characters_are_one_unk(tokenizer, length, count):
    found = pieces(tokenizer, "a" * length)
    assert found == (["a"] + ["##a"] * (length - 1) if count > 1 else ["[UNK]"])


@pytest.mark.parametrize("text", ["", " ", "\t", "\u200b"])
def test_nothing_gives_no_pieces(tokenizer, text):
    assert tokenizer.encode([text]) == [[]]


# --- special tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("text", ["a [SEP] b", "[CLS]", "[MASK]", "[SEP][SEP]", "[PAD] a", "a [sep] [CLS] b [MASK]"])
def test_text_never_makes_a_special_token(tmp_path, make_model, source, text):
    tokenizer = build(tmp_path / "m", make_model, settings={"do_lower_case": True})
    if source == "tokenizer.json":
        tokenizer.backend.save(str(tmp_path / "m" / "tokenizer.json"))
        tokenizer = load(tmp_path / "m")
    ids = row_ids(tokenizer, text)
    assert ids[0] == tokenizer.cls_id and ids[-1] == tokenizer.sep_id
    special = {TOKENS.index(token) for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")}
    assert not special & set(ids[1:-1])


def test_the_word_sep_in_brackets_is_three_pieces(tokenizer):
    assert pieces(tokenizer, "a [SEP] b") == ["a", "[", "sep", "]", "b"]


@pytest.mark.parametrize("text", ["<s>", "</s>", "a</s></s>b", "<mask>", "<pad>"])
def test_text_never_makes_a_special_token_in_roberta(tmp_path, make_model, text):
    tokenizer = build(tmp_path / "m", make_model, model_type="roberta")
    ids = row_ids(tokenizer, text)
    assert (ids[0], ids[-1]) == (tokenizer.cls_id, tokenizer.sep_id) == (0, 2)
    assert pieces(tokenizer, text) == list(text)


def test_rows_of_each_model(tmp_path, make_model):
    bert = build(tmp_path / "b", make_model)
    distilbert = build(tmp_path / "d", make_model, model_type="distilbert")
    roberta = build(tmp_path / "r", make_model, model_type="roberta")
    a, b = TOKENS.index("a"), TOKENS.index("b")
    assert row_ids(bert, "a", "b") == row_ids(distilbert, "a", "b") == [2, a, 3, b, 3]
    byte_a, byte_b = roberta.encode(["a", "b"])
    assert row_ids(roberta, "a", "b") == [0, *byte_a, 2, 2, *byte_b, 2]
    segments = {
        name: encode([Example(0, "a", "b", None)], tokenizer, labels=(), max_len=16).segment_starts[0]
        for name, tokenizer in {"bert": bert, "distilbert": distilbert, "roberta": roberta}.items()
    }
    assert segments == {"bert": 3, "distilbert": 5, "roberta": 6}  # the last two have no second segment


# --- against Hugging Face --------------------------------------------------------------------------------------------

SOME_TEXT = st.text(
    st.one_of(
        st.sampled_from("ab hello -–“…、.,!'[]漢字éÉïİ\t\u00a0\u3000\u00ad\u200b\u2028\u2029😀"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def both(tmp_path_factory, make_model):
    """{do_lower_case: (ours, Hugging Face's)} from the same vocab.txt."""
    from transformers import BertTokenizerFast

    found = {}
    for lower in (True, False):
        folder = tmp_path_factory.mktemp("both") / "model"
        make_model(folder, words=list(dict.fromkeys(TOKENS)), settings={"do_lower_case": lower})
        found[lower] = load(folder), BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=lower)
    return found


@pytest.mark.parametrize("lower", [True, False])
def test_same_ids_as_transformers(both, lower):
    ours, theirs = both[lower]

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(SOME_TEXT, SOME_TEXT)
    def check(text_a, text_b):
        if any(token in text_a + text_b for token in TOKENS[:5]):  # where a data text does make special tokens
            return
        expected = {name: rows[0] for name, rows in theirs([text_a], [text_b]).items()}  # alone, '' would count as none
        features = encode([Example(0, text_a, text_b, None)], ours, labels=(), max_len=128)
        assert features.input_ids.tolist() == expected["input_ids"]
        assert features.segment_starts[0] == expected["token_type_ids"].count(0)
        assert row_ids(ours, text_a) == theirs(text_a)["input_ids"]

    check()


@pytest.mark.parametrize("max_len", [5, 8, 9, 16])
@pytest.mark.parametrize("text_a, text_b", [("a " * 30, "b"), ("a", "b " * 30), ("a " * 5, None), ("a " * 30, None)])
def test_same_cut_as_transformers_where_one_text_is_too_long(both, text_a, text_b, max_len):
    ours, theirs = both[True]
    assert row_ids(ours, text_a, text_b, max_len) == theirs(text_a, text_b, truncation=True, max_length=max_len)["input_ids"]


def test_official_sentences_give_the_same_ids_as_transformers(official_glue):
    """The vocabulary of a real model on real sentences."""
    from transformers import BertTokenizerFast

    from bert.data import read_examples
    from bert.tasks import find_task
    from bert.weights import find_pretrained

    try:
        folder, _ = find_pretrained("minilm_6_384_12")
    except InputError as error:
        pytest.skip(str(error))
    ours, theirs = load(folder), BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    for name in ("MRPC", "STS-B"):
        examples, _ = read_examples(official_glue / name / "dev.tsv", find_task(name), "dev")
        features = encode(examples, ours, labels=find_task(name).labels, max_len=512)
        expected = theirs([e.text_a for e in examples], [e.text_b for e in examples])["input_ids"]
        assert features.input_ids.tolist() == np.concatenate(expected).tolist()


def test_roberta_gives_the_same_ids_as_transformers(tmp_path, make_model):
    from transformers import PreTrainedTokenizerFast

    ours = build(tmp_path / "m", make_model, model_type="roberta")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "m" / "tokenizer.json"))
    for text_a, text_b in [("good", None), ("naïve 漢", "a b"), ("", ""), ("x" * 9, "y")]:
        expected = theirs(*[[text] for text in (text_a, text_b) if text is not None])["input_ids"][0]
        assert row_ids(ours, text_a, text_b) == expected


@pytest.mark.parametrize("lower", [True, False])
def test_word_by_word_gives_what_the_library_gives_for_whole_texts(tmp_path, make_model, monkeypatch, lower):
    """Also when the words are forgotten in between."""
    monkeypatch.setattr("bert.tokenization._REMEMBERED_WORDS", 50)
    tokenizer = build(tmp_path / "m", make_model, settings={"do_lower_case": lower})
    random = np.random.default_rng(0)
    pool = list("  aAbÀéßİΣςǅﬁ漢字,.!'-\u0301\u0308\u00a0\u2003\u200d\u3000\t\r\x00\x07\ufffd\U0001f600\u0345")
    pool += ["[SEP]", "##b"]
    for _ in range(20):
        texts = ["".join(random.choice(pool, random.integers(20))) for _ in range(100)]
        assert tokenizer.encode(texts) == tokenizer._encode(texts)
    assert len(tokenizer.words) > 50


def test_an_added_token_with_a_space_is_found(tmp_path, make_model):
    tokenizer = build(tmp_path / "m", make_model)
    tokenizer.backend.add_tokens(["a b"])
    tokenizer.backend.save(str(tmp_path / "m" / "tokenizer.json"))
    added = load(tmp_path / "m", vocab_size=100)
    assert added.words is None and added.tokens(added.encode(["hello a b"])[0])[-1] == "a b"


# --- files -----------------------------------------------------------------------------------------------------------


def test_settings_of_tokenizer_json_do_not_cut_or_pad(tmp_path, make_model):
    tokenizer = build(tmp_path / "m", make_model)
    tokenizer.backend.enable_truncation(5)
    tokenizer.backend.enable_padding(length=20)
    tokenizer.backend.save(str(tmp_path / "m" / "tokenizer.json"))
    ids = load(tmp_path / "m").encode(["a b a b a b a b", "a"])
    assert [len(row) for row in ids] == [8, 1]


def test_tokenizer_json_and_vocab_txt_agree(tmp_path, make_model):
    from_vocabulary = build(tmp_path / "m", make_model, settings={"do_lower_case": True})
    from_vocabulary.backend.save(str(tmp_path / "m" / "tokenizer.json"))
    from_json = load(tmp_path / "m")
    texts = ["Naïve Café", "a [SEP] b", "left–right 漢字", "aab", "zzz"]
    assert from_json.encode(texts) == from_vocabulary.encode(texts)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocabularies_with_any_line_end(tmp_path, make_model, end):
    expected = build(tmp_path / "m", make_model).encode(["a b hello"])
    (tmp_path / "m" / "vocab.txt").write_bytes(end.join(dict.fromkeys(TOKENS)).encode())
    assert load(tmp_path / "m").encode(["a b hello"]) == expected


def test_tokens_of_the_vocabulary_may_hold_other_line_separators(tmp_path, make_model):
    words = [*TOKENS[:5], "\u2028", "a", "b"]
    tokenizer = build(tmp_path / "m", make_model, words=words)
    assert tokenizer.encode(["a b"]) == [[6, 7]]


def test_special_tokens_by_the_settings_names(tmp_path, make_model):
    words = ["<p>", "[UNK]", "<c>", "<e>", "[MASK]", "a"]
    settings = {"cls_token": "<c>", "sep_token": {"content": "<e>"}, "pad_token": "<p>"}
    tokenizer = build(tmp_path / "m", make_model, words=words, settings=settings)
    assert (tokenizer.cls_id, tokenizer.sep_id) == (2, 3)


def refusal(folder, **changes):
    with pytest.raises(InputError) as caught:
        load(folder, **changes)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def test_a_folder_without_tokenizer_is_refused(tmp_path, bert_folder):
    shutil.copyfile(bert_folder / "config.json", tmp_path / "config.json")
    message = refusal(tmp_path)
    assert "tokenizer.json" in message and "vocab.txt" in message


@pytest.mark.parametrize("content", [b"", b"{}", b"{", b"\xff\xfe", b"[1]", b'{"model": {"type": "WordPiece"}}'])
def test_a_damaged_tokenizer_json_is_refused(tmp_path, make_model, content):
    make_model(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_bytes(content)
    refusal(tmp_path / "m")


@pytest.mark.parametrize("content", [b"", b"a\nb\n", b"[UNK]\n\xff\n", b"[PAD]\n[UNK]\n[SEP]\n"])
def test_a_vocabulary_that_is_none_is_refused(tmp_path, make_model, content):
    make_model(tmp_path / "m")
    (tmp_path / "m" / "vocab.txt").write_bytes(content)
    refusal(tmp_path / "m")


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b'{"cls_token": 5}', b'{"sep_token": "[NONE]"}', b'{"do_lower_case": "yes"}']
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, make_model, content):
    make_model(tmp_path / "m")
    (tmp_path / "m" / "tokenizer_config.json").write_bytes(content)
    refusal(tmp_path / "m")


def test_a_null_in_the_settings_means_the_default(tmp_path, make_model):
    settings = {
        "cls_token": None,
        "sep_token": None,
        "pad_token": None,
        "do_lower_case": None,
        "tokenize_chinese_chars": None,
    }
    tokenizer = build(tmp_path / "m", make_model, settings=settings)
    assert (tokenizer.cls_id, tokenizer.sep_id) == (2, 3)


def test_more_tokens_than_embeddings_are_refused(tmp_path, make_model):
    make_model(tmp_path / "m", words=TOKENS[:20])
    assert "20 tokens" in refusal(tmp_path / "m", vocab_size=19)


def test_a_token_id_above_the_embeddings_is_refused(tmp_path, make_model):
    """Few tokens, but one with a number that the model has no row for."""
    build(tmp_path / "m", make_model, words=TOKENS[:20]).backend.save(str(tmp_path / "m" / "tokenizer.json"))
    content = json.loads((tmp_path / "m" / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"]["hello"] = 5000
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    refusal(tmp_path / "m")


def test_the_description_tells_kind_casing_and_size(tmp_path, make_model, tokenizer, cased):
    size = len(dict.fromkeys(TOKENS))
    for one, lower in [(tokenizer, True), (cased, False)]:
        assert str(size) in one.description and "vocab.txt" in one.description
        assert ("lower" in one.description) == lower


def test_where_two_files_disagree_on_casing_the_settings_win_as_in_transformers(tmp_path, make_model):
    from transformers import AutoTokenizer

    folder = tmp_path / "m"
    build(folder, make_model).backend.save(str(folder / "tokenizer.json"))
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"]["lowercase"] = True
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    for lower in (True, False):
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}), encoding="utf-8")
        tokenizer = load_tokenizer(folder, read_config(folder)[1])
        theirs = AutoTokenizer.from_pretrained(folder)("Hello", add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(["Hello"])[0] == theirs
        assert ("hello" in tokenizer.tokens(theirs)) == lower


# --- any text --------------------------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.text("a [SEP]#\u0301漢\u200b\t", max_size=40)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(pairs=st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=4), pair=st.booleans(), max_len=st.integers(4, 24))
def test_any_text_becomes_rows_that_the_model_can_take(tokenizer, pairs, pair, max_len):
    """One [CLS] at the front, a [SEP] behind each text and nowhere else, ids of the vocabulary, no row above max_len."""
    examples = [Example(number, a, b if pair else None, None) for number, (a, b) in enumerate(pairs)]
    features = encode(examples, tokenizer, labels=(), max_len=max_len)
    size = tokenizer.backend.get_vocab_size()
    for number in range(len(pairs)):
        ids = features.input_ids[features.offsets[number] : features.offsets[number + 1]].tolist()
        assert 2 + pair <= len(ids) <= max_len and all(0 <= one < size for one in ids)
        assert ids[0] == tokenizer.cls_id and ids.count(tokenizer.cls_id) == 1
        assert ids[-1] == tokenizer.sep_id and ids.count(tokenizer.sep_id) == 1 + pair
        assert ids[features.segment_starts[number] - 1] == tokenizer.sep_id


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text("ab \u0301漢.\u200b\n", max_size=400), filler=st.sampled_from(["", "\u200b" * 300, "b" * 300]))
def test_a_long_text_is_cut_as_if_it_had_been_read_whole(tokenizer, text, filler):
    """Only the opening of a long text is tokenized, and it must not show, even where much of it gives no token at all."""
    text, room = filler + text, 2
    (whole,) = tokenizer.encode([text])
    examples = [Example(0, text, None, None)]
    features = encode(examples, tokenizer, labels=(), max_len=room + 2)
    assert features.input_ids[1:-1].tolist() == whole[:room] and features.truncated == (len(whole) > room)
