"""Reads data: rows of JSON lines or of a Hugging Face data set -> `Sample`s -> `Example`s of token ids.

Does not import PyTorch, so that benchmarks of a bundle can read data without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from streamfuse.runtime.text import Message, Tokenizer

from .answers import AnswerEncoder
from .formats import NAMES, DataError, Example, Row, Sample, reader, recognise
from .templates import Template

T = TypeVar("T")
_MIN_COMPLETION_TOKENS = 4  # shorter answers do not help to train streams
_SPLITS = ("train", "valid", "validation", "dev", "test")
_PARQUET = "refs/convert/parquet"  # the hub's own conversion of data sets with a loading script


def read_samples(
    source: str | Path,
    format: str | None = None,
    template: Template | None = None,
    *,
    split: str = "train",
    limit: int | None = None,
) -> list[Sample]:
    """The first `limit` rows of `source`.

    Args:
        source: a file of JSON lines, a folder of data files, or a Hugging Face data set (`owner/name`, or
            `owner/name:config`).
        format: one of `NAMES`; None: detected from the fields of the first row.
        template: builds prompt and answer from the rows' own fields, in Jinja or as Python format strings.
        split: the split of a folder or data set; a file has only one.

    Raises:
        DataError: the source does not exist, a row lacks a field or has the wrong type in it, or there are no rows.
    """
    if format is not None and format not in NAMES:
        raise DataError(f"format {format!r} does not exist; the formats are {', '.join(NAMES)}")
    samples: list[Sample] = []
    read: Callable[[Row, str], Sample] | None = None
    for place, row in islice(rows(str(source), split), limit):
        read = read or reader(format or (None if template else recognise(row, place)), template)
        samples.append(read(row, place))
    if not samples:
        raise DataError(f"{source}: has no rows; give another file, or another split of it")
    return samples


def merged(samples: Iterable[Sample]) -> list[Sample]:
    """One sample for all rows with the same prompt, with all their references, in the order of the first rows. Its
    answer is calls if that of any of the rows is."""
    found: dict[object, Sample] = {}
    for sample in samples:
        chat = json.dumps([sample.before, sample.tools])
        key = (chat, sample.turns, sample.schema, tuple(sample.ids.input_ids) if sample.ids else ())
        same = found.get(key)
        if same:
            references = tuple(dict.fromkeys((*same.references, *sample.references)))
            sample = replace(same, references=references, calls=same.calls or sample.calls)
        found[key] = sample
    return list(found.values())


def spread(samples: Sequence[T], limit: int | None) -> list[T]:
    """`limit` of the samples, evenly spaced, since files are often sorted by kind. All of them where it is None."""
    count = min(limit or len(samples), len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]


def encode_prompt(sample: Sample, text: Tokenizer, system: str | None = None) -> list[int]:
    """Token ids of the chat up to the first turn, in the chat template of `text`; of the turn alone without a
    template. `system` is the system message of a chat that has none."""
    if sample.ids is not None:
        return sample.ids.input_ids[: sample.ids.start]
    if not text.can_chat:
        return text.encode(sample.turns[0])
    chat = [*with_system(system, sample.before), {"role": "user", "content": sample.turns[0]}]
    return text.encode_chat(chat, tools=sample.tools or None)


def with_system(system: str | None, chat: Sequence[Message]) -> list[Message]:
    """The chat, with the system message first if it has none of its own."""
    own = system is None or any(message["role"] == "system" for message in chat)
    return [*chat] if own else [{"role": "system", "content": system}, *chat]


def to_examples(
    samples: Iterable[Sample],
    text: Tokenizer | None,
    eos_token_id: int | None,
    max_tokens: int,
    vocab_size: int | None = None,
    source: str = "the data",
    tell: Callable[[str], None] = lambda line: None,
) -> list[Example]:
    """Prompts with each of their answers, end-of-sequence appended, truncated to `max_tokens`.

    Answers with fewer than four tokens (after truncation) are dropped. `text` and `eos_token_id` may be None if all
    samples are ids. `source` names the samples in messages. `tell` is called with a line if answers are dropped or cut.

    Raises:
        DataError: a distilled token is not below `vocab_size` (if given), the model has no end-of-sequence token or no
            usable chat template for answers in text, an answer is a tool call, or no example is left.
    """
    examples, n_answers, n_cut = [], 0, 0
    answers: AnswerEncoder | None = None
    for sample in samples:
        if sample.calls:
            raise DataError(
                f"{source}: the answer of a row has tool_calls, and only answers in text can be trained on; let the "
                "model write its own calls (`streamfuse data distill`), or leave such rows out"
            )
        if sample.ids is None and sample.references:
            answers = answers or _answer_encoder(text, eos_token_id, source)
        for example in _examples(sample, text, eos_token_id, answers):
            n_answers += 1
            top = max(example.input_ids)
            if vocab_size is not None and top >= vocab_size:
                raise DataError(
                    f"{source}: token id {top} is not below the model's vocab_size, {vocab_size}; another model wrote "
                    "these answers, so let this one write its own (`streamfuse data distill`)"
                )
            if min(len(example.input_ids), max_tokens) - example.start >= _MIN_COMPLETION_TOKENS:
                examples.append(Example(example.input_ids[:max_tokens], example.start))
                n_cut += len(example.input_ids) > max_tokens
    if not n_answers:
        raise DataError(
            f"{source}: its rows have prompts but no answers. Put the answers in the fields that docs/training.md, "
            "Formats, lists, or let the model write them (`streamfuse data distill`)"
        )
    if not examples:
        raise DataError(
            f"{source}: every answer is shorter than {_MIN_COMPLETION_TOKENS} tokens once prompt and answer are cut to "
            f"{max_tokens} tokens (--max-tokens); use longer answers or a larger limit"
        )
    if (n_dropped := n_answers - len(examples)) or n_cut:
        tell(
            f"{source}: of {n_answers} answers, {n_cut} are cut at --max-tokens {max_tokens}, and {n_dropped} are left "
            f"out because fewer than {_MIN_COMPLETION_TOKENS} tokens of them remain."
        )
    return examples


def _answer_encoder(text: Tokenizer | None, eos_token_id: int | None, source: str) -> AnswerEncoder:
    if text is None:
        raise DataError("rows of text need the model's tokenizer")
    if eos_token_id is None:
        raise DataError(
            f"{source}: text answers need an end-of-sequence token, and the model has none; set eos_token_id in its "
            "config.json, or generate answers with it (`streamfuse data distill`)"
        )
    return AnswerEncoder(text, eos_token_id, source)


def _examples(
    sample: Sample, text: Tokenizer | None, eos_token_id: int | None, answers: AnswerEncoder | None
) -> list[Example]:
    if sample.ids is not None:
        return [sample.ids]
    if text is None or eos_token_id is None or answers is None:
        return []  # a sample without an answer
    prompt = encode_prompt(sample, text)
    return [Example([*prompt, *answers.encode(answer), eos_token_id], len(prompt)) for answer in sample.references]


def rows(source: str, split: str) -> Iterator[tuple[str, Row]]:
    """Rows of `source`, as `read_samples` takes it, with their places. A last line that a stopped `distill` has not
    finished is left out."""
    path = Path(source)
    if path.is_dir() and len(files := list(path.glob("*.jsonl"))) == 1 and files[0].stem not in _SPLITS:
        path = files[0]  # a data set of one file, such as Spec-Bench
    if not path.is_file():
        local = path.suffix in (".json", ".jsonl", ".txt") or source.count("/") > 1 or source.startswith((".", "/"))
        if local and not path.is_dir():
            raise DataError(f"{source}: no such file; `streamfuse data fetch` downloads public data sets")
        yield from _data_set(source, split)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{source}, line {number}"
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError as error:
                if line.startswith(b'{"id": ') and not line.endswith(b"\n"):
                    return
                raise DataError(f"{place}: not valid JSON ({error}); each line is one JSON object") from None
            if row is None:
                continue
            if not isinstance(row, dict):
                raise DataError(f"{place}: must be a JSON object, not {type(row).__name__}")
            yield place, row


def _data_set(name: str, split: str) -> Iterator[tuple[str, Row]]:
    try:
        import datasets
    except ImportError:
        raise DataError(f"{name}: no such file; Hugging Face data sets need pip install 'streamfuse[train]'") from None
    from streamfuse.model.pull import quiet_hub

    path, _, configuration = name.partition(":")
    load = lambda **more: datasets.load_dataset(path, configuration or None, split=split, **more)  # noqa: E731
    try:
        with quiet_hub():  # the exception carries the message
            try:
                rows = load()
            except RuntimeError as error:
                if "scripts are no longer supported" not in str(error):
                    raise
                rows = load(revision=_PARQUET)
    except Exception as error:  # the library raises many types, its own and the network's
        raise DataError(
            f"{name}: no such file, and not a Hugging Face data set that can be read "
            f"({' '.join(str(error).split())[:200]})"
        ) from None
    for number, row in enumerate(rows, 1):
        yield f"{name}, {split}, row {number}", dict(row)
