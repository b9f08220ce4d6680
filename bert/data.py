"""TSV line -> Example -> token ids -> padded Batch. NumPy only: knows no framework and no model but its token limit.

Rows end at \\n or \\r\\n only, cells are split at tabs only and every cell is text: quotes, U+2028 and other oddities of
the official files are content.
"""

import csv
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np
from tqdm import tqdm

from bert import InputError
from bert.engines import Batch
from bert.files import MAX_LINE, is_there, read_lines
from bert.tasks import TASKS, find_task, own_task

#: Rows that are shuffled, then sorted by length together: enough for little padding, few enough to stay well mixed.
BATCHES_PER_BUCKET_POOL = 50
#: Enough for products to run at their full rate, few enough for what lies between them to stay in a CPU's cache.
EVALUATION_TOKENS = 2048
_SHOWN = 60  # characters of a cell that a message quotes
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # float() would take 1_0 for ten, too

# Rows that are tokenized at once, and characters: the library holds a hundred bytes and more for each token.
_ROWS_AT_ONCE, _CHARACTERS_AT_ONCE = 10_000, 2_000_000
_CHARACTERS_PER_TOKEN = 64  # so many are read first for each token that can be kept; in English a token has about five


class Example(NamedTuple):
    """One row of a file: `index` counts from 0 without the header, as the leaderboard does."""

    index: int
    text_a: str
    text_b: Optional[str]
    label: Optional[str]


@dataclass(frozen=True)
class Features:
    """A split as token ids, kept flat: row i is input_ids[offsets[i]:offsets[i + 1]]."""

    input_ids: np.ndarray  # (tokens of all rows,) int32
    offsets: np.ndarray  # (rows + 1,) int64
    segment_starts: np.ndarray  # (rows,) int32: the place in the row from which the token type is 1
    label_ids: Optional[np.ndarray]  # (rows,) int32 classes or float32 scores, None without labels
    truncated: int  # rows that were cut to max_len

    def __len__(self):
        return len(self.offsets) - 1

    @property
    def lengths(self):
        return np.diff(self.offsets)


@dataclass(frozen=True)
class LoadedSplit:
    """A split of a task, read and encoded."""

    path: Path
    examples: list
    features: Features


def choose_task(config, *, saved_labels):
    """The Task a run is about: a GLUE one by its name, or one made from the person's own files.

    Own classes are those found in the labelled files, or, to predict only, those that the saved model names.
    """
    if config.task_name is not None:
        return find_task(config.task_name)
    for name, path in config.own_files.items():
        if not is_there(path):
            raise InputError(f"--{name}_file {path}: no such file")
    if config.regression or (config.only_inference and saved_labels is not None and len(saved_labels) == 1):
        labels = ()
    elif config.only_inference and saved_labels:
        labels = saved_labels
    elif config.only_inference:
        raise InputError("--only_inference: the model names no labels, so its predictions would have no names")
    else:
        labels = read_labels([Path(config.train_file), Path(config.dev_file)])
    first = Path(next(iter(config.own_files.values())))  # names the columns of text that all files must have
    return own_task(config.own_files, labels=labels, text=_own_text_columns(first, read_rows(first)[0]))


def split_path(split, data_dir):
    """The first of a split's files that is there, below `data_dir`; None where none is."""
    return next(filter(is_there, (Path(data_dir) / file for file in split.files)), None)


def load_splits(task, data_dir, *, train, tokenizer, max_len):
    """(split name -> LoadedSplit, lines for the person) of the task's files below `data_dir`.

    To train, the train and dev files must be there; to predict only, any one file is enough.
    """

    def missing(path):
        return InputError(f"{path}: no such file; put {task.name}'s files there, or name their folder by --data_dir")

    loaded, lines = {}, []
    required = task.split_names("train") + task.split_names("dev") if train else []
    for name in required + [name for name in task.splits if name not in required and name != "train"]:
        path = split_path(task.splits[name], data_dir)
        if path is None:
            usual = Path(data_dir) / task.splits[name].files[0]
            if name in required:
                raise missing(usual)
            if not task.splits[name].optional:
                lines.append(f"{usual}: not there, so nothing is done for {name}")
            continue
        examples, warnings = read_examples(path, task, name)
        lines += [f"WARNING: {warning}" for warning in warnings]
        features = encode(examples, tokenizer, labels=task.labels, max_len=max_len, description=f"tokenize {name}")
        loaded[name] = LoadedSplit(path, examples, features)
    if not loaded:
        raise missing(Path(data_dir) / next(iter(task.splits.values())).files[0])
    return loaded, lines


# --- reading ---------------------------------------------------------------------------------------------------------


def read_examples(path, task, split_name):
    """(examples, warnings) of a split's file. InputError names file, line, what was found and what was expected."""
    split = task.splits[split_name]
    header, rows = read_rows(path, has_header=split.width is None)
    first = next(rows, None)
    if first is None and header is None:
        raise InputError(f"{path}: no rows, expected at least one")
    texts, label_column, width = _find_columns(path, header, first and first[1], task, split_name)
    known = {label: label for label in task.labels} | task.aliases
    examples, skipped, skipped_lines = [], 0, []
    for line, cells in itertools.chain(filter(None, [first]), rows):
        if len(cells) != width:
            if task.skip_short_rows and split_name == "train":
                skipped += 1
                if skipped <= 5:
                    skipped_lines.append(str(line))
                continue
            raise InputError(f"{path}:{line}: found {len(cells)} columns, expected {width}")
        label = None
        if label_column is not None:
            label = _read_label(cells[label_column], known, f"{path}:{line}")
        text_b = cells[texts[1]] if len(texts) == 2 else None
        examples.append(Example(len(examples), cells[texts[0]], text_b, label))
    if not examples:
        raise InputError(f"{path}: no rows, expected at least one")
    warnings = []
    if skipped:
        shown = ", ".join(skipped_lines) + (", ..." if skipped > 5 else "")
        warnings.append(f"{path}: {skipped} row(s) skipped, columns missing: line {shown}")
    return examples, warnings


def read_labels(paths):
    """The sorted label texts found in the `label` column of a person's own files."""
    found = set()
    for path in paths:
        header, rows = read_rows(path)
        if "label" not in header:
            raise InputError(f"{path}:1: columns found: {_list(header)}; expected one named label")
        place = header.index("label")
        for line, cells in rows:
            if len(cells) != len(header):
                raise InputError(f"{path}:{line}: found {len(cells)} columns, expected {len(header)}")
            if not cells[place]:
                raise InputError(f"{path}:{line}: empty label")
            found.add(cells[place])
    if len(found) < 2:
        raise InputError(f"{paths[0]}: column label holds {len(found)} different value(s), expected at least 2")
    if len(found) > 1000:
        raise InputError(f"{paths[0]}: column label holds {len(found)} different values; for scores add --regression")
    return tuple(sorted(found))


def read_rows(path, *, has_header=True):
    """(header or None, iterator of (line number, cells)) of a .tsv (also .txt), .csv or .jsonl file.

    Rows are read as they are asked for, so what is wrong in a row is raised when its turn comes.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonl"):
        records = _jsonl_records(path)
        first = next(records, None)
        if first is None:
            raise InputError(f"{path}: empty file, expected one JSON object per line")
        header = list(first[1])
        return header, _jsonl_rows(path, header, itertools.chain([first], records))
    rows = _csv_rows(path) if suffix == ".csv" else _tsv_rows(path)
    if not has_header:
        return None, rows
    header = next(rows, None)
    if header is None:
        raise InputError(f"{path}: empty file, expected a header row")
    return header[1], rows


def _tsv_rows(path):
    for number, line in read_lines(path):
        yield number, line.removesuffix("\r").split("\t")


def _csv_rows(path):
    csv.field_size_limit(MAX_LINE)  # the library's own limit is below a long document
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            reason = "a carriage return inside an unquoted cell" if "new-line" in str(error) else error
            raise InputError(f"{path}:{begin}: not CSV: {reason}") from None
        if cells is None:
            return
        if cells:
            yield reader.line_num, cells


def _jsonl_records(path):
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON: {error}; expected one object per line") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: found {type(record).__name__}, expected one JSON object per line")
        yield number, record


def _unique_keys(pairs):
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice")
    return record


def _no_constant(name):
    raise ValueError(f"{name} is no JSON number")


def _jsonl_rows(path, header, records):
    for number, record in records:
        if record.keys() != set(header):
            raise InputError(f"{path}:{number}: keys found: {_list(record)}; expected as in the first row: {_list(header)}")
        yield number, [_json_text(record[key], f"{path}:{number}: {key}") for key in header]


def _json_text(value, where):
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(f"{where} is {json.dumps(value)[:_SHOWN]}, expected a text or a number")
    try:
        value.encode()
    except UnicodeEncodeError:  # "\\ud800" is JSON, but no text
        raise InputError(f"{where} holds half a surrogate pair, expected text") from None
    return value


def _find_columns(path, header, first, task, split_name):
    """(places of the texts, place of the label or None, number of columns) of a file; checks that it is the task's."""
    split = task.splits[split_name]
    if header is None:
        if len(first) == split.width and first[split.label] not in (*task.labels, *task.aliases):
            raise InputError(
                f"{path}:1: label {first[split.label][:_SHOWN]!r}, expected {_list(task.labels)} and no header"
                + _looks_like(first, task)
            )
        if len(first) != split.width:
            raise InputError(
                f"{path}:1: found {len(first)} columns, expected {split.width} and no header" + _looks_like(first, task)
            )
        return split.text, split.label, split.width
    text = split.text or _own_text_columns(path, header)
    wanted = [*text] + ([split.label] if split.label is not None else [])
    if any(name not in header for name in wanted):
        raise InputError(
            f"{path}:1: columns found: {_list(header)}; expected among them for {task.name}: {_list(wanted)}"
            + _looks_like(header, task)
        )
    for name in wanted:
        if header.count(name) > 1:
            raise InputError(f"{path}:1: column {name[:_SHOWN]} is there {header.count(name)} times, expected once")
    label = header.index(split.label) if split.label is not None else None
    return [header.index(name) for name in text], label, len(header)


def _own_text_columns(path, header):
    """Names of the one or two columns of text: all but `label`, `id`, `idx` and `index`."""
    if "" in header or len(set(header)) < len(header):
        raise InputError(f"{path}:1: columns found: {_list(header)}; expected a different name for each")
    texts = tuple(name for name in header if name not in ("label", "id", "idx", "index"))
    if not 1 <= len(texts) <= 2:
        raise InputError(f"{path}:1: columns found: {_list(header)}; expected label and one or two of text")
    return texts


def _looks_like(cells, task):
    """A hint naming the tasks whose header (or headerless first row) these cells could be."""
    fitting = [
        other.name
        for other in TASKS.values()
        for split in [other.splits.get("train")]
        if other is not task
        and split is not None
        and (
            {*split.text, split.label} <= set(cells)
            if split.width is None
            else len(cells) == split.width and cells[split.label] in other.labels
        )
    ]
    return f"; this looks like {' or '.join(fitting)}" if fitting else ""


def _read_label(text, known, where):
    if known:
        if text not in known:
            raise InputError(f"{where}: label {text[:_SHOWN]!r}, expected {_list(dict.fromkeys(known.values()))}")
        return known[text]
    if not _NUMBER.fullmatch(text.strip(" ")) or not abs(float(text)) <= np.finfo(np.float32).max:
        raise InputError(f"{where}: score {text[:_SHOWN]!r}, expected a finite number")
    return text


def _list(names):
    shown = [name[:_SHOWN] for name in names]
    return ", ".join(shown[:20]) + (f", ... ({len(shown)} in all)" if len(shown) > 20 else "")


# --- encoding --------------------------------------------------------------------------------------------------------


def truncated_lengths(length_a, length_b, room):
    """Lengths of a pair cut to `room` tokens by taking them one by one from the longer text, from the second at a tie."""
    if length_a + length_b <= room:
        return length_a, length_b
    kept_a = min(length_a, max(room - length_b, (room + 1) // 2))
    return kept_a, room - kept_a


def encode(examples, tokenizer, *, labels, max_len, description="tokenize"):
    """Features of `examples`; every row, its special tokens included, has at most `max_len` tokens.

    `labels` are the label texts in the order of their ids, empty for regression.
    """
    number_of = {label: number for number, label in enumerate(labels)}
    pair = examples[0].text_b is not None
    room = max_len - tokenizer.special_tokens(pair)
    pieces, lengths, segment_starts, truncated = [], [], [], 0
    with tqdm(total=len(examples), desc=description, unit=" rows", leave=False, disable=len(examples) < 20000) as bar:
        for chunk in _chunks(examples):
            firsts = _encode_openings([example.text_a for example in chunk], tokenizer, room)
            seconds = _encode_openings([example.text_b for example in chunk], tokenizer, room) if pair else [()] * len(chunk)
            tokens = []
            for a, b in zip(firsts, seconds):
                kept_a, kept_b = truncated_lengths(len(a), len(b), room)
                truncated += kept_a + kept_b < len(a) + len(b)
                row = [tokenizer.cls_id, *a[:kept_a], tokenizer.sep_id]
                segment_start = len(row)
                if pair:
                    row += [tokenizer.sep_id] * (tokenizer.separators - 1)
                    row += [*b[:kept_b], tokenizer.sep_id]
                lengths.append(len(row))
                segment_starts.append(segment_start if tokenizer.segments else len(row))
                tokens += row
            pieces.append(np.array(tokens, np.int32))
            bar.update(len(chunk))
    if examples[0].label is None:
        label_ids = None
    elif labels:
        label_ids = np.array([number_of[example.label] for example in examples], np.int32)
    else:
        label_ids = np.array([float(example.label) for example in examples], np.float32)
    return Features(
        input_ids=np.concatenate(pieces),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        segment_starts=np.array(segment_starts, np.int32),
        label_ids=label_ids,
        truncated=truncated,
    )


def _chunks(examples):
    """The examples in lists of few enough rows and characters to tokenize at once."""
    chunk, characters = [], 0
    for example in examples:
        chunk.append(example)
        characters += len(example.text_a) + len(example.text_b or "")
        if len(chunk) == _ROWS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _encode_openings(texts, tokenizer, room):
    """Token ids of each text; of a very long one only those of its opening, where they alone are more than `room`.

    An opening ends before a space, where words do too, so its tokens are the first ones of the whole text.
    """
    enough = _CHARACTERS_PER_TOKEN * (room + 1)
    ends = [text.find(" ", enough) if len(text) > enough else -1 for text in texts]
    encoded = tokenizer.encode([text if end < 0 else text[:end] for text, end in zip(texts, ends)])
    for number, end in enumerate(ends):
        if end >= 0 and len(encoded[number]) <= room:
            encoded[number] = tokenizer.encode([texts[number]])[0]
    return encoded


# --- batches ---------------------------------------------------------------------------------------------------------


def training_order(lengths, *, batch_size, seed, epoch):
    """The epoch's batches, each an array of row numbers: rows of like length together, every row once.

    A pure function of (seed, epoch); always ceil(rows / batch_size) batches, so that a run can be planned beforehand.
    """
    random = np.random.default_rng([seed, epoch])
    rows = random.permutation(len(lengths))
    pool = batch_size * BATCHES_PER_BUCKET_POOL
    batches = []
    for start in range(0, len(rows), pool):
        bucket = rows[start : start + pool]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[first : first + batch_size] for first in range(0, len(bucket), batch_size)]
    return [batches[number] for number in random.permutation(len(batches))]


def evaluation_order(lengths, *, batch_size=None):
    """Batches of row numbers, longest rows first: least padding, and memory runs out at once or never.

    Without a batch size of 64 rows, and of short ones as many as have EVALUATION_TOKENS together.
    """
    rows, batches, first = np.argsort(-lengths, kind="stable"), [], 0
    while first < len(rows):
        size = batch_size or max(64, EVALUATION_TOKENS // int(lengths[rows[first]]))
        batches.append(rows[first : first + size])
        first += size
    return batches


def padded_width(longest, *, round_to, max_len):
    """Width of a batch: its longest row rounded up to `round_to`, at most `max_len`."""
    return min(max_len, -(-int(longest) // round_to) * round_to)


def make_batch(features, rows, *, pad_id, round_to, max_len):
    """The Batch of these rows, padded at the end only."""
    starts, lengths = features.offsets[rows], features.lengths[rows]
    width = padded_width(lengths.max(), round_to=round_to, max_len=max_len)
    place = np.arange(width)  # (width,)
    real = place < lengths[:, None]  # (rows, width)
    input_ids = np.full(real.shape, pad_id, np.int32)
    input_ids[real] = features.input_ids[(starts[:, None] + place)[real]]
    token_type_ids = (real & (place >= features.segment_starts[rows][:, None])).astype(np.int32)
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        valid_length=lengths.astype(np.int32),
        label_ids=None if features.label_ids is None else features.label_ids[rows],
        index=np.asarray(rows, np.int64),
    )


def padding_share(features, batches, *, round_to, max_len):
    """Share of the positions of these batches that hold padding, 0 to 1."""
    lengths = features.lengths
    widths = [padded_width(lengths[rows].max(), round_to=round_to, max_len=max_len) * len(rows) for rows in batches]
    return 1 - sum(lengths[rows].sum() for rows in batches) / sum(widths)
