"""One tokenizer for both engines: the Hugging Face `tokenizers` library, read from a model's folder.

Turns texts into plain token ids; which ids stand around them, and where a row is cut, is decided in bert.data. Text
never makes a special token: the word [SEP] in a sentence is three ordinary pieces.
"""

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Optional

from tokenizers import Tokenizer as _Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert import InputError
from bert.files import MAX_JSON, file_size, is_there, read_json, read_text
from bert.weights import find_vocabulary

#: A longer word is one [UNK], as in Hugging Face's BERT; GluonNLP's own tokenizer has 200.
MAX_CHARACTERS_PER_WORD = 100
_REMEMBERED_WORDS = 2**17  # about 50 MB; then all are forgotten, so that memory stays flat


_MAX_TOKENIZER = 2**26  # bytes of a tokenizer.json; BERT's largest takes three million
_PARTS = {
    "normalizer": {"BertNormalizer", "Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt"},
    "pre_tokenizer": {"BertPreTokenizer", "ByteLevel", "Sequence", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits"},
}


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids, and the ids that frame a row: cls a sep, or cls a sep [sep] b sep."""

    backend: _Tokenizer
    cls_id: int
    sep_id: int
    separators: int  # between the two texts of a pair: 1 in BERT, 2 in RoBERTa
    segments: bool  # whether the second text has token type 1
    description: str  # for the plan: "WordPiece, 30522 pieces, lower case"
    path: Path  # the file it was read from
    words: Optional[dict]  # word -> its ids, filled as texts are encoded; None where a space does not part two words

    def encode(self, texts):
        """List of arrays-to-be: one list of token ids per text, nothing added and nothing cut.

        The library, on all cores, sees each distinct word once: a few words make up most of any text.
        """
        if self.words is None:
            return self._encode(texts)
        if len(self.words) > _REMEMBERED_WORDS:
            self.words.clear()
        texts = [text.split(" ") for text in texts]
        unseen = list(set(chain.from_iterable(texts)) - self.words.keys())
        self.words.update(zip(unseen, self._encode(unseen)))
        return [list(chain.from_iterable(map(self.words.__getitem__, words))) for words in texts]

    def _encode(self, texts):
        try:
            return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]
        except Exception as error:  # bare, of the library: a vocabulary without its own unknown token, for one
            raise InputError(f"{self.path}: this tokenizer cannot encode the texts: {error}") from None

    def tokens(self, ids):
        """The pieces behind token ids, for showing to a person."""
        return [self.backend.id_to_token(int(token_id)) for token_id in ids]

    @property
    def casing(self):
        """The settings of `tokenizer_config.json` that transformers reads instead of the tokenizer's own."""
        normalizer = self.backend.normalizer
        if not isinstance(normalizer, BertNormalizer):
            return {}
        return {"do_lower_case": normalizer.lowercase, "strip_accents": normalizer.strip_accents}

    def special_tokens(self, pair):
        """How many tokens frame a row."""
        return 2 + self.separators if pair else 2


def load_tokenizer(folder, architecture):
    """The Tokenizer of a model's folder, from `tokenizer.json` or else `vocab.txt`; InputError where there is none or it
    does not fit the model. Casing and accents are the files' own: a lower-casing model also strips accents."""
    folder = Path(folder)
    settings = read_json(folder / "tokenizer_config.json") if is_there(folder / "tokenizer_config.json") else {}
    path = folder / "tokenizer.json"
    if is_there(path):
        file_size(path, limit=_MAX_TOKENIZER)
        try:
            backend = _Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"{path}: not a tokenizer file: {error}") from None
        _check_parts(path, backend)
    elif is_there(folder / "vocab.txt"):
        path = folder / "vocab.txt"
        backend = _word_piece(path, _read_words(path))
    elif find_vocabulary(folder):
        path = find_vocabulary(folder)
        words = read_json(path).get("idx_to_token")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError(f"{path}: idx_to_token is no list of texts: not a vocabulary of GluonNLP")
        backend = _word_piece(path, words)
    else:
        raise InputError(f"{folder}: neither tokenizer.json nor vocab.txt is there")
    if isinstance(backend.normalizer, BertNormalizer):
        backend.normalizer = _as_configured(backend.normalizer, settings, folder / "tokenizer_config.json")
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    roberta = architecture.model_type == "roberta"

    def special(role, default):
        token = settings.get(role) or default
        token = token.get("content") if isinstance(token, dict) else token
        number = backend.token_to_id(token) if isinstance(token, str) else None
        if number is None:
            raise InputError(f"{path}: the {role} {token!r} is not in the vocabulary")
        return number

    size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if size > architecture.vocab_size:
        raise InputError(f"{path}: numbers {size} tokens, but the model has embeddings for {architecture.vocab_size}")
    # BERT cleans character by character and splits at every space, so a text's ids are those of its words in a row. A token
    # that someone has added may hold a space.
    splits_at_spaces = (
        isinstance(backend.normalizer, BertNormalizer)
        and isinstance(backend.pre_tokenizer, BertPreTokenizer)
        and all(token.special for token in backend.get_added_tokens_decoder().values())
    )
    kind = type(backend.model).__name__
    casing = " lower case," if getattr(backend.normalizer, "lowercase", False) else ""
    return Tokenizer(
        backend=backend,
        cls_id=special("cls_token", "<s>" if roberta else "[CLS]"),
        sep_id=special("sep_token", "</s>" if roberta else "[SEP]"),
        separators=2 if roberta else 1,
        segments=architecture.model_type == "bert" and architecture.type_vocab_size > 1,
        path=path,
        description=f"{kind},{casing} {size} pieces, from {path.name}",
        words={} if splits_at_spaces else None,
    )


def _read_words(path):
    return [word.rstrip("\r") for word in read_text(path, limit=MAX_JSON).split("\n")]


def _check_parts(path, backend):
    """InputError for parts that no BERT has: some take all time or memory on a short text."""

    def names(part):
        if isinstance(part, dict):
            yield part.get("type")
            for value in part.values():
                yield from names(value)
        elif isinstance(part, list):
            for value in part:
                yield from names(value)

    content = json.loads(backend.to_str())
    for role, allowed in _PARTS.items():
        for name in names({"type": None, "": content[role]} if content[role] else None):
            if name is not None and name not in allowed:
                raise InputError(f"{path}: {role} {name}, expected one of {', '.join(sorted(allowed))}")


def _as_configured(normalizer, settings, path):
    """The normalizer with what the settings say of it: where two files disagree, transformers follows these."""

    def setting(name, default):
        value = default if settings.get(name) is None else settings[name]
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{path}: {name} is {value!r}, expected true or false")
        return value

    return BertNormalizer(
        clean_text=normalizer.clean_text,
        handle_chinese_chars=setting("tokenize_chinese_chars", normalizer.handle_chinese_chars),
        strip_accents=setting("strip_accents", normalizer.strip_accents),
        lowercase=setting("do_lower_case", normalizer.lowercase),
    )


def _word_piece(path, words):
    """BERT's WordPiece with BERT's cleaning; lower case unless the vocabulary itself has upper-case pieces."""
    vocabulary = {word: number for number, word in enumerate(words) if word}
    if "[UNK]" not in vocabulary:
        raise InputError(f"{path}: no [UNK] in the vocabulary: not a BERT vocabulary")
    has_upper_case = any(word != word.lower() for word in vocabulary if not word.startswith("["))
    backend = _Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=MAX_CHARACTERS_PER_WORD))
    backend.normalizer = BertNormalizer(lowercase=not has_upper_case)
    backend.pre_tokenizer = BertPreTokenizer()
    backend.add_special_tokens([word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary])
    return backend
