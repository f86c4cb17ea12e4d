"""One answer of each method, token by token: lanes of time next to plain decoding's, and who drafted what."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from .charts import ticks
from .tables import Result, at, items, number

TARGET = "target"
# The words of drafters, each with its colour's place in the style sheet. Words that are not here take places in turn.
_SOURCES = {"streams": 0, "lookup": 1, "text": 1, "ngram": 2, "table": 2, "draft": 3, "model": 3, "heads": 4,
            "self": 5, "itself": 5}  # fmt: skip
_PLACES = 6
_SAME_PASS = 0.05  # tokens closer than this share of a plain token's time came from one pass
_VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "→"})


@dataclass(slots=True)
class Token:
    """A token with its place in time.

    Attributes:
        source: `TARGET`, or the drafter's word.
        colour: place of the source's colour in the style sheet; None: the target's own.
        start, span: where its block begins and how long it is, in milliseconds; tokens of a pass share its time.
        leads: whether it is its pass's first.
        rejected: (depth, visible text) of the drafts that the pass of this token refused.
    """

    text: str
    ms: float
    source: str = TARGET
    colour: int | None = None
    start: float = 0.0
    span: float = 0.0
    leads: bool = True
    rejected: list[tuple[int, str]] = field(default_factory=list)

    @property
    def visible(self) -> str:
        return self.text.translate(_VISIBLE)


@dataclass(frozen=True, slots=True)
class Lane:
    """All tokens of one answer; `passes` counts the blocks of time, `counts` the tokens by source."""

    method: str
    tokens: list[Token]

    @property
    def ms(self) -> float:
        return self.tokens[-1].ms

    @property
    def passes(self) -> int:
        return sum(token.leads for token in self.tokens)

    @property
    def counts(self) -> dict[str, int]:
        sources = [token.source for token in self.tokens]
        return {source: sources.count(source) for source in dict.fromkeys([TARGET, *sources])}


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt, plain decoding's lane, and one lane per method; `departs` is the first token that is not plain's."""

    data: str
    prompt: str
    plain: Lane
    lanes: list[Lane]
    colours: dict[str, int | None]

    @property
    def longest(self) -> float:
        """Milliseconds of the slowest lane."""
        return max(one.ms for one in (self.plain, *self.lanes))

    def end(self, lane: Lane) -> float:
        """Where the axis of a lane and plain decoding's ends."""
        return max(lane.ms, self.plain.ms)

    def ticks(self, lane: Lane) -> list[float]:
        return ticks(0, self.end(lane), 8)

    def departs(self, lane: Lane) -> int | None:
        for index, (own, plain) in enumerate(zip(lane.tokens, self.plain.tokens, strict=False)):
            if own.text != plain.text:
                return index
        same = len(lane.tokens) == len(self.plain.tokens)
        return None if same else min(len(lane.tokens), len(self.plain.tokens))


def sample_views(result: Result) -> Sample | None:
    """None where the result has no sample with a plain answer and another one."""
    sample = items(result, "sample")
    plain = _tokens(at(sample, "plain", "tokens"))
    answers = {name: one for name, one in items(sample, "methods").items() if _tokens(at(one, "tokens"))}
    if not plain or not answers:
        return None
    gaps = [after.ms - before.ms for before, after in pairwise(plain)]
    same = _SAME_PASS * median(gaps) if gaps else 0.0
    colours: dict[str, int | None] = {TARGET: None}
    lanes = []
    for name, answer in answers.items():
        tokens = _tokens(at(answer, "tokens"))
        for token in tokens:
            colours.setdefault(token.source, _SOURCES.get(token.source, len(colours) % _PLACES))
            token.colour = colours[token.source]
        _refuse(tokens, at(answer, "rejected"))
        lanes.append(Lane(name, _placed(tokens, same)))
    lane = Lane("plain", _placed(plain, same))
    words = (str(sample.get("data") or ""), str(sample.get("prompt") or ""))
    return Sample(*words, lane, lanes, colours)


def _tokens(rows: Any) -> list[Token]:
    """Those with a text and a time, times never falling."""
    found: list[Token] = []
    for row in rows if isinstance(rows, list) else []:
        ms = number(at(row, "ms"))
        if ms is not None and at(row, "text") is not None:
            source = str(at(row, "source") or TARGET)
            found.append(Token(str(row["text"]), max(ms, found[-1].ms if found else 0.0), source))
    return found


def _refuse(tokens: list[Token], rows: Any) -> None:
    for row in rows if isinstance(rows, list) else []:
        index = number(at(row, "at"))
        if index is not None and 0 <= index < len(tokens):
            text = str(at(row, "text") or "").translate(_VISIBLE)
            tokens[int(index)].rejected.append((int(number(at(row, "depth")) or 1), text))
    for token in tokens:
        token.rejected.sort(key=lambda one: one[0])


def _placed(tokens: list[Token], same: float) -> list[Token]:
    """Give each pass the time since the one before, and each of its tokens an equal part of it."""
    passes: list[list[Token]] = []
    for token in tokens:
        if passes and token.ms - passes[-1][-1].ms <= same:
            passes[-1].append(token)
        else:
            passes.append([token])
    before = 0.0
    for one in passes:
        end = one[-1].ms
        for index, token in enumerate(one):
            token.span = (end - before) / len(one)
            token.start, token.leads = before + index * token.span, index == 0
        before = end
    return tokens
