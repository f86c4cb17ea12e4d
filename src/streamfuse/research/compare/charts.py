"""The line charts of the methods' page: cost by width, and acceptance over time, with their places in a drawing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .tables import (
    Result,
    at,
    data_sets,
    decode_ms,
    interval,
    items,
    number,
    place,
    visit_answers,
    visit_name,
)

WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 920, 250, 150, 16, 36
_HEIGHT, _ROW, _LABEL = 280, 22, 15
_LEARNING, _FROZEN, _RECENT = "learning", "frozen", 8  # answers of a visit that a point is the mean of
_WIDTH_OF = re.compile(r"(?:target: )?(?:verify_(\d+)|decode)")


@dataclass(frozen=True, slots=True)
class Point:
    """Place in the drawing, and what it stands for."""

    x: float
    y: float
    across: float
    up: float


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: list[Point]
    label_y: float


@dataclass(frozen=True, slots=True)
class Dots:
    """For one method: (place across, nodes, share of the target's passes)."""

    method: str
    y: float
    dots: list[tuple[float, int, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over two axes, in a drawing of WIDTH x `height`; ticks are (place, text), `rows` stand below the axis.

    `data` is the data set's name, or the row's whose course it shows. `borders` are upright lines, each
    with what begins there.
    """

    data: str | None
    height: float
    floor: float
    left: float
    right: float
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]
    lines: list[Line]
    rows: list[Dots]
    borders: list[tuple[float, str]] = field(default_factory=list)


def costs(result: Result) -> list[Chart]:
    """Per data set: a pass's cost by its width, in decodes, a line per device; below, the widths that methods took."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for device, passes in items(result, "costs").items():
        decode = decode_ms(passes)
        found = [(_width(name), number(ms)) for name, ms in items(passes).items()]
        if decode:
            curves[place(device)] = sorted((width, ms / decode) for width, ms in found if width and ms is not None)
    widths = sorted({int(width) for curve in curves.values() for width, _ in curve})
    if len(widths) < 2:
        return []
    x = _scale(0, math.log2(widths[-1]), _LEFT, WIDTH - _RIGHT)
    across = [(x(math.log2(width)), str(width)) for width in widths]
    named = {name: [(math.log2(width), cost) for width, cost in curve] for name, curve in curves.items()}
    charts = []
    for data in data_sets(result):
        floor = _TOP + _HEIGHT
        rows: list[Dots] = []
        for method, one in items(result, "methods").items():
            counts: dict[int, float] = {}
            for name, count in items(one, "results", data, "passes").items():
                width = _width(name)
                if width in widths:
                    counts[width] = counts.get(width, 0.0) + (number(count) or 0.0)
            if total := sum(counts.values()):
                y = floor + _BOTTOM + 18 + _ROW * len(rows)
                dots = [(x(math.log2(width)), width, count / total) for width, count in sorted(counts.items())]
                rows.append(Dots(method, y, dots))
        lines, up = _lines(named, x, 0.0)
        lines = [
            Line(line.name, [Point(p.x, p.y, round(2**p.across), p.up) for p in line.points], line.label_y)
            for line in lines
        ]
        height = floor + _BOTTOM + 24 + _ROW * len(rows)
        charts.append(Chart(data, height, floor, _LEFT, WIDTH - _RIGHT, across, up, lines, rows))
    return charts


def over_time(result: Result) -> list[Chart]:
    """Per data set with a series: mean accepted tokens by tokens generated so far, a line per method."""
    charts = []
    for data in data_sets(result):
        series: dict[str, list[tuple[float, float]]] = {}
        for name, method in items(result, "methods").items():
            pairs = [interval(pair) for pair in at(method, "results", data, "over_time") or []]
            if known := [pair for pair in pairs if pair is not None]:
                series[name] = known
        if series:
            last = max(across for points in series.values() for across, _ in points)
            x = _scale(0, last, _LEFT, WIDTH - _RIGHT)
            lines, up = _lines(series, x, 1.0)
            across = [(x(tick), f"{tick:,g}") for tick in ticks(0, last)]
            floor = _TOP + _HEIGHT
            charts.append(Chart(data, floor + _BOTTOM, floor, _LEFT, WIDTH - _RIGHT, across, up, lines, []))
    return charts


def online(result: Result) -> list[Chart]:
    """Per row that learns: tokens per pass over the tokens written, with its frozen twin's; borders are visits'."""
    charts = []
    for name, method in items(result, "methods").items():
        series: dict[str, list[tuple[float, float]]] = {_LEARNING: [], _FROZEN: []}
        begins: list[tuple[float, str]] = []
        written = 0.0
        for visit in at(method, "online", "visits") or []:
            begins.append((written, visit_name(visit)))
            answers = visit_answers(visit)
            for last, (tokens, _, _) in enumerate(answers, 1):
                written += tokens
                recent = answers[max(0, last - _RECENT) : last]
                for line, which in ((_LEARNING, 1), (_FROZEN, 2)):
                    passes = sum(answer[which] for answer in recent)
                    series[line].append((written, sum(answer[0] for answer in recent) / max(passes, 1)))
        if written:
            x = _scale(0, written, _LEFT, WIDTH - _RIGHT)
            lines, up = _lines(series, x, 1.0)
            across = [(x(tick), f"{tick:,g}") for tick in ticks(0, written)]
            floor, borders = _TOP + _HEIGHT, [(x(place), label) for place, label in begins]
            charts.append(Chart(name, floor + _BOTTOM, floor, _LEFT, WIDTH - _RIGHT, across, up, lines, [], borders))
    return charts


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, `about` as many as asked."""
    span = (high - low) / about
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= span * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(step * (first + index), 10) for index in range(int((high - first * step) / step + 1e-9) + 1)]


def _width(name: str) -> int | None:
    """Rows of a pass of the target; None for passes of others, and for streams."""
    match = _WIDTH_OF.fullmatch(name)
    return None if match is None else int(match[1] or 1)


@dataclass(frozen=True, slots=True)
class _scale:
    """From values to places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 2)


def _lines(
    series: dict[str, list[tuple[float, float]]], x: _scale, low: float
) -> tuple[list[Line], list[tuple[float, str]]]:
    """The lines with labels that do not cover each other, and the ticks of the upright axis."""
    high = 1.05 * max(up for points in series.values() for _, up in points)
    low = min(low, *(up for points in series.values() for _, up in points))
    y = _scale(low, high, _TOP + _HEIGHT, _TOP)
    ends = {name: y(points[-1][1]) for name, points in series.items() if points}
    labels = dict(zip(sorted(ends, key=lambda name: ends[name]), _apart(sorted(ends.values())), strict=True))
    lines = [
        Line(name, [Point(x(across), y(up), across, up) for across, up in points], labels[name])
        for name, points in series.items()
        if points
    ]
    return lines, [(y(tick), f"{tick:g}") for tick in ticks(low, high)]


def _apart(places: Iterable[float]) -> Sequence[float]:
    """Ascending places, moved down where two are closer than a line of text."""
    moved: list[float] = []
    for spot in places:
        moved.append(max(spot, moved[-1] + _LABEL) if moved else spot)
    return moved
