"""The measured answers as one HTML page, which loads nothing: text, SVG, and a script that replays the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from streamfuse.bench.shared.report import render
from streamfuse.bundle.manifest import DECODE, STREAMS

from .measure import Answer, Lane, acceptance, accepted_by_source, costs, speedup, speedups

SOURCES: Final = {
    "model": "not drafted", "streams": "streams", "lookup": "look-up", "table": "n-gram table", "grammar": "grammar",
    "memory": "earlier answers",
}  # fmt: skip
_SQUARE = 7  # height of a token
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 450, 20, 215  # of the curve of costs


def page_of(answers: Sequence[Answer], title: str, facts: str, command: str) -> str:
    """HTML. `facts` says what was measured on which machine; `command` gives the page again."""
    tokens = sum(one.speculative.tokens for one in answers)
    passes = sum(len(one.speculative.passes) for one in answers)
    equal = sum(one.equal for one in answers)
    return render(
        files(__package__).joinpath("page.html").read_text(encoding="utf-8"),
        title=title,
        facts=facts,
        command=command,
        tiles=[
            (f"{speedup(answers):.2f}x", "as fast as plain decoding"),
            (f"{tokens / max(passes, 1):.2f}", "tokens per pass"),
            (f"{passes:,}", f"passes for {tokens:,} tokens"),
            (f"{equal} of {len(answers)}", "outputs equal to plain decoding"),
        ],
        sources=SOURCES.items(),
        answers=[_answer(one) for one in answers],
        kinds=_bars({kind: (value, f"{value:.2f}x") for kind, value in speedups(answers).items()}, 130, even=True),
        depths=_bars(
            {str(depth): (share, f"{100 * share:.0f} %") for depth, share in enumerate(acceptance(answers), 1)}, 30
        ),
        costs=_costs(costs(answers)),
        accepted=[
            {"name": SOURCES[source], "tokens": f"{count:,}", "share": f"{100 * count / max(tokens, 1):.0f} %"}
            for source, count in accepted_by_source(answers).items()
        ],
    )


def _answer(one: Answer) -> dict[str, Any]:
    scale = 1000 / max(one.plain.ms, one.speculative.ms, 1e-9)
    lanes = []
    for name, lane in (("plain", one.plain), ("speculative", one.speculative)):
        base = _SQUARE * max((len(each.tokens) for each in lane.passes), default=1)
        label = f"{name}: {lane.tokens} tokens in {len(lane.passes)} passes, {lane.ms:.0f} ms"
        lanes.append({"name": name, "label": label, "base": base, **_lane(lane, scale, base)})
    differ = "" if one.equal else ", THE OUTPUTS DIFFER"
    per_pass = one.speculative.tokens / max(len(one.speculative.passes), 1)
    line = f"{one.speedup:.2f}x, {per_pass:.2f} tokens per pass{differ}"
    return {"kind": one.kind, "prompt": one.prompt, "line": line, "lanes": lanes}


def _lane(lane: Lane, scale: float, base: int) -> dict[str, Any]:
    """Its squares from the bottom up, and its text; `scale` is in units of the drawing per millisecond."""
    blocks, spans, start = [], [], 0.0
    for each in lane.passes:
        width = max(0.5, scale * (each.end_ms - start) - 0.8)
        for place, token in enumerate(each.tokens):
            blocks.append({
                "source": token.source, "x": f"{scale * start:.1f}", "width": f"{width:.1f}",
                "y": base - _SQUARE * (place + 1), "height": _SQUARE - 1,
            })  # fmt: skip
            spans.append({"source": token.source, "text": token.text, "at": f"{each.end_ms:.1f}"})
        start = each.end_ms
    return {"blocks": blocks, "spans": spans}


def _bars(values: Mapping[str, tuple[float, str]], left: int, even: bool = False) -> dict[str, Any]:
    """Horizontal bars to the right of names that are `left` wide; `even` is where 1 is."""
    scale = (400 - left) / max((value for value, _ in values.values()), default=1.0)
    bars = [
        {"name": name, "y": 24 * place, "width": round(scale * value, 1), "value": text}
        for place, (name, (value, text)) in enumerate(values.items())
    ]
    return {"bars": bars, "height": 24 * max(len(bars), 1), "even": round(left + scale, 1) if even else 0}


def _costs(ms: Mapping[str, float]) -> dict[str, Any] | None:
    """The curve of costs over the number of verified tokens; None without one."""
    widths = {int(name.rpartition("_")[2]): name for name in ms if name.startswith("verify_")}
    widths[1] = DECODE  # verify_1 also computes streams
    found = {rows: ms[name] / ms[DECODE] for rows, name in sorted(widths.items()) if ms.get(DECODE) and name in ms}
    if len(found) < 2:
        return None
    most_rows, most = max(found), max(2.0, *found.values())

    def place(rows: float, cost: float) -> tuple[float, float]:
        return (
            round(_LEFT + (_RIGHT - _LEFT - 20) * (rows - 1) / (most_rows - 1) + 10, 1),
            round(_BOTTOM - (_BOTTOM - _TOP) * cost / most, 1),
        )

    dots = [
        {"name": DECODE, "rows": rows, "value": f"{cost:.2f}", **dict(zip("xy", place(rows, cost), strict=True))}
        for rows, cost in found.items()
    ]
    return {
        "grid": [{"y": place(1, level)[1], "value": level} for level in range(int(most) + 1)],
        "points": " ".join(f"{dot['x']},{dot['y']}" for dot in dots),
        "dots": dots,
        "even": " ".join("{},{}".format(*place(rows, rows)) for rows in (1, min(most, most_rows))),
        "streams": f"{ms[STREAMS] / ms[DECODE]:.2f}" if STREAMS in ms else None,
    }
