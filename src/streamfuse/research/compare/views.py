"""What the page of the methods shows as bars and shades: speed-ups, and acceptance by depth and rank, as numbers.

The template turns them into lengths and shades.
"""

from __future__ import annotations

from dataclasses import dataclass

from .tables import BASELINES, HERE, Result, at, data_sets, devices, interval, is_lossy, items, number


@dataclass(frozen=True, slots=True)
class Bar:
    """A method's speed-up. `ends` is its interval and `rate` its tokens per second, where it was measured."""

    method: str
    kind: str
    value: float
    ends: tuple[float, float] | None
    rate: float | None


@dataclass(frozen=True, slots=True)
class Bars:
    """The methods on one data set and device, fastest first; `top` is the end of the axis, the same for all."""

    data: str
    device: str
    bars: list[Bar]
    top: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares accepted, [rank][depth], None where nothing is known; `depths` sums each depth over its ranks."""

    method: str
    data: str
    ranks: list[list[float | None]]
    depths: list[float]


def speedups(result: Result) -> list[Bars]:
    """Measured ones of every data set, then the computed ones of every device."""
    found = []
    for device in (HERE, *devices(result)):
        for data in data_sets(result):
            bars = []
            for name, method in items(result, "methods").items():
                row = items(method, "results", data) if device == HERE else {}
                value = number(row.get("speedup") if device == HERE else at(method, "computed", device, data))
                kind = "plain" if name in BASELINES else "lossy" if is_lossy(method) else "lossless"
                if value is not None:
                    ends = interval(row.get("speedup_interval"))
                    bars.append(Bar(name, kind, value, ends, number(row.get("tokens_per_second"))))
            if bars:
                found.append(Bars(data, device, sorted(bars, key=lambda bar: -bar.value), 0.0))
    reach = [max(bar.value, bar.ends[1] if bar.ends else 0.0) for one in found for bar in one.bars]
    top = 1.02 * max(reach, default=1.0)
    return [Bars(one.data, one.device, one.bars, max(top, 1.1)) for one in found]


def best_lossless(result: Result) -> list[tuple[str, Bar]]:
    """By data set, the fastest measured method that leaves the text as it is."""
    measured = [one for one in speedups(result) if one.device == HERE]
    best = [(one.data, next((bar for bar in one.bars if bar.kind == "lossless"), None)) for one in measured]
    return [(data, bar) for data, bar in best if bar is not None]


def acceptance(result: Result) -> list[Shares]:
    """By data set and method, where anything was accepted; ranks and depths beyond that are left out."""
    found = []
    for data in data_sets(result):
        for name, method in items(result, "methods").items():
            rows = at(method, "results", data, "acceptance") or []
            depths = [[number(share) for share in row] if isinstance(row, list) else [] for row in rows]
            while depths and not any(depths[-1]):
                depths.pop()
            n_ranks = max((rank + 1 for row in depths for rank, share in enumerate(row) if share), default=0)
            ranks = [[row[rank] if rank < len(row) else None for row in depths] for rank in range(n_ranks)]
            if n_ranks:
                sums = [sum(share for share in row if share is not None) for row in depths]
                found.append(Shares(name, data, ranks, sums))
    return found
