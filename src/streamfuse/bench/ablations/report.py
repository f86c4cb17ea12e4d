"""The ablations' rows as a table in Markdown and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamfuse.bench.shared.marked_text import END, update
from streamfuse.durable import write_text

_BEGIN = "<!-- table: streamfuse bench ablations -->"
_WIDTHS = ("8", "16", "64")

Found = dict[str, Any]


def table(rows: list[Found], groups: list[str]) -> str:
    """Markdown: tokens per target call of greedy and sampled answers, change against the first row at 16 nodes."""
    widths = " / ".join(_WIDTHS)
    lines = [
        f"| varied | value | greedy, {widths} nodes | sampled, {widths} nodes | against base | per depth, greedy |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    base = rows[0]["greedy"]["ratio"]["16"]
    for group in groups:
        for row in (row for row in rows if row["group"] == group):
            change = 100 * (row["greedy"]["ratio"]["16"] / base - 1)
            depths = " ".join(f"{share:.2f}" for share in row["greedy"]["acceptance"])
            cells = (group, row["label"], _ratios(row, "greedy"), _ratios(row, "sampled"), f"{change:+.1f} %", depths)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ratios(row: Found, kind: str) -> str:
    ratio = row[kind]["ratio"]
    return " / ".join(f"{ratio[width]:.2f}" if width in ratio else "-" for width in _WIDTHS)


def write_table(path: Path, text: str) -> None:
    """Replace the table of a document; a new document is the table alone. ValueError if it has no marks for it."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, f"{_BEGIN}\n{END}\n")
    update(path, {_BEGIN: f"\n{text}"})


def plot(rows: list[Found], groups: list[str], path: Path) -> None:
    """A bar per row, tokens per target call at 16 nodes, greedy and sampled, as PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # not pyplot: no display and no global state

    ordered = [row for group in groups for row in rows if row["group"] == group]
    figure = Figure(figsize=(10, 0.28 * len(ordered) + 1.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(ordered))
    for offset, kind in ((-0.2, "greedy"), (0.2, "sampled")):
        axes.barh([y + offset for y in places], [row[kind]["ratio"]["16"] for row in ordered], 0.4, label=kind)
    for kind, colour in (("greedy", "C0"), ("sampled", "C1")):
        axes.axvline(rows[0][kind]["ratio"]["16"], color=colour, linewidth=0.8, linestyle=":")
    axes.set_yticks(places, [f"{row['group']}: {row['label']}" for row in ordered], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=1)
    axes.set_xlabel("tokens per target call, 16 nodes (dotted: base setting)")
    axes.legend()
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=110)
