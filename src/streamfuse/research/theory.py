"""When streams beat a draft model, by cost: the analysis of Speculative Streaming (arXiv 2402.11131), with own points.

A round of draft-target speculation costs t + gamma * c: a pass of the target, and gamma passes of a draft model that
cost c each; it advances beta_dt tokens. A round of streaming is one pass of the target of cost t', its streams
included, and advances beta_ss tokens. All costs are in passes of plain decoding. Tokens per time, one over the other:

    speed-up = (beta_ss / t') / (beta_dt / (t + gamma * c))

The paper takes t = t' = 1, where reading the weights is all that counts, and draws it over the cost ratio r = 1 / c for
several ratios beta_dt / beta_ss, with gamma = 4 (figure 1b): (gamma + r) / r over that ratio. Reading the prompt and
keeping caches in step are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamfuse.bench.shared.report import Report, ReportError

from .compare.tables import HERE, Result, at, decode_ms, items, number, place

GAMMA = 4
COST_RATIOS = (2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)  # r = target over draft
TOKEN_RATIOS = (0.6, 0.8, 1.0, 1.2, 1.4)  # the draft model's tokens per round over those of the streams
DRAFT_TARGET, STREAMING = "draft model, chain", "streams, ours"
_DRAFT_PASS = "draft"  # how the names of a draft model's passes begin


def speedup(
    cost_ratio: float, token_ratio: float, gamma: float = GAMMA, target: float = 1.0, streaming: float = 1.0
) -> float:
    """How many times as fast streaming is as draft-target speculation.

    Args:
        cost_ratio: what a pass of plain decoding costs, in passes of the draft model.
        token_ratio: tokens that a draft-target round advances, over those of a streaming one.
        gamma: draft passes per round.
        target: cost of the pass that verifies the draft model's tokens, in passes of plain decoding.
        streaming: cost of the pass that verifies and streams, likewise.

    Raises:
        ValueError: a ratio or a cost is not above 0, or gamma is below 0.
    """
    if min(cost_ratio, token_ratio, target, streaming) <= 0 or gamma < 0:
        raise ValueError("ratios and costs must be above 0, and gamma at least 0")
    return (target + gamma / cost_ratio) / (streaming * token_ratio)


def curves(
    cost_ratios: Sequence[float] = COST_RATIOS, token_ratios: Sequence[float] = TOKEN_RATIOS, gamma: float = GAMMA
) -> dict[float, list[float]]:
    """By token ratio, the speed-up at every cost ratio, both passes of the target as cheap as plain decoding's."""
    return {token: [speedup(cost, token, gamma) for cost in cost_ratios] for token in token_ratios}


@dataclass(frozen=True, slots=True)
class Point:
    """One data set on one device.

    Attributes:
        gamma: draft passes per pass of the target, as counted.
        target, streaming: mean cost of a round's passes over the target, in passes of plain decoding.
        paper: the speed-up where both of these cost 1.
        expected: with the costs as they are.
        measured: by the clock; None for other devices than the one that measured.
    """

    data: str
    device: str
    cost_ratio: float
    token_ratio: float
    gamma: float
    target: float
    streaming: float
    paper: float
    expected: float
    measured: float | None


def points(result: Result) -> list[Point]:
    """Of an object that `streamfuse research compare --json` printed, where it holds both methods and their costs."""
    found = []
    chain, ours = (items(result, "methods", name, "results") for name in (DRAFT_TARGET, STREAMING))
    for device, costs in items(result, "costs").items():
        decode = decode_ms(costs)
        for data in chain:
            rounds, own = _rounds(chain[data], costs), _rounds(ours.get(data), costs)
            tokens = [number(at(one, "call_reduction_ratio")) for one in (chain[data], ours.get(data))]
            if not (decode and rounds and own and tokens[0] and tokens[1] and rounds.draft_passes):
                continue
            cost_ratio, token_ratio = decode * rounds.draft_passes / rounds.draft_ms, tokens[0] / tokens[1]
            gamma = rounds.draft_passes / rounds.count
            target, streaming = rounds.target_ms / rounds.count / decode, own.target_ms / own.count / decode
            rates = [number(at(one, "tokens_per_second")) for one in (ours[data], chain[data])]
            measured = rates[0] / rates[1] if device == HERE and rates[0] and rates[1] else None
            paper = speedup(cost_ratio, token_ratio, gamma)
            expected = speedup(cost_ratio, token_ratio, gamma, target, streaming)
            found.append(
                Point(data, place(device), cost_ratio, token_ratio, gamma, target, streaming, paper, expected, measured)
            )
    return found


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Passes over the target but for the streams', what they and the streams cost, and the draft model's."""

    count: float
    target_ms: float
    draft_passes: float
    draft_ms: float


def _rounds(found: Any, costs: Mapping[str, Any]) -> _Rounds | None:
    """None where nothing ran, or where some pass but those of prompts has no cost."""
    count = target_ms = draft_passes = draft_ms = 0.0
    for name, value in items(found, "passes").items():
        passes, ms = number(value) or 0.0, number(costs.get(name))
        if name.endswith("prefill"):  # reads the prompt
            continue
        if ms is None:
            return None
        if name.startswith(_DRAFT_PASS):
            draft_passes, draft_ms = draft_passes + passes, draft_ms + passes * ms
        else:
            count += 0.0 if name.endswith("streams") else passes
            target_ms += passes * ms
    return _Rounds(count, target_ms, draft_passes, draft_ms) if count and target_ms else None


def to_dict(found: Sequence[Point]) -> dict[str, Any]:
    """For `--json`."""
    by_ratio = {f"{ratio:g}": values for ratio, values in curves().items()}
    measured = [asdict(point) for point in found]
    return {"gamma": GAMMA, "cost_ratios": list(COST_RATIOS), "curves": by_ratio, "points": measured}


def curve_rows() -> tuple[list[str], list[list[str]]]:
    """One row per cost ratio, one column per token ratio."""
    columns = ["target / draft", *(f"tokens {ratio:g}" for ratio in TOKEN_RATIOS)]
    found = curves()
    rows = [
        [f"{cost:g}", *(f"{found[ratio][index]:.2f}" for ratio in TOKEN_RATIOS)]
        for index, cost in enumerate(COST_RATIOS)
    ]
    return columns, rows


def point_rows(found: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """One row per point."""
    columns = ["data", "device", "target / draft", "tokens", "gamma", "t", "t'", "paper", "with costs", "measured"]
    rows = [
        [
            point.data,
            point.device,
            *(f"{value:.2f}" for value in (point.cost_ratio, point.token_ratio, point.gamma, point.target)),
            *(f"{value:.2f}" for value in (point.streaming, point.paper, point.expected)),
            "-" if point.measured is None else f"{point.measured:.2f}",
        ]
        for point in found
    ]
    return columns, rows


def theory_report(found: Sequence[Point], model: str | None) -> Report:
    """Curves with the points in them, and the figures as tables. ReportError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("a report needs matplotlib: pip install 'streamfuse[bench]'") from None
    report = Report("Streaming over draft-target speculation" + (f": {model}" if model else ""))
    report.text(
        f"By cost (arXiv 2402.11131): curves for gamma = {GAMMA}, passes of the target at the cost of plain decoding, "
        "and by curve the tokens that a draft-target round advances over those of a streaming one. Filled marks were "
        "measured; hollow ones follow from counted passes and their cost."
    )
    figure = Figure(figsize=(9, 5))
    axes = figure.subplots()
    for ratio, values in curves().items():
        axes.plot(COST_RATIOS, values, label=f"tokens {ratio:g}")
    for index, point in enumerate(found):
        colour, name = f"C{(index + len(TOKEN_RATIOS)) % 10}", f"{point.data}, {point.device}"
        axes.plot([point.cost_ratio], [point.expected], "o", color=colour, mfc="none", ms=9, label=f"{name}: by cost")
        if point.measured is not None:
            axes.plot([point.cost_ratio], [point.measured], "o", color=colour, ms=7, label=f"{name}: measured")
    axes.axhline(1, linestyle="--", color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("cost of a pass, target over draft model")
    axes.set_ylabel("speed-up of streaming")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    report.figure(figure)
    if found:
        report.heading("Points")
        report.table(*point_rows(found))
    report.heading("Curves")
    report.table(*curve_rows())
    return report
