"""One HTML file per measurement: tables, plots as inline SVG, no scripts and nothing to load, so it can be mailed.

Needs jinja2 and matplotlib (the extra `bench`), imported when the page is written and the first plot is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamfuse.durable import write_text

from .statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: 0.2rem 0.8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
pre { background: #f5f5f5; padding: 0.8rem; overflow-x: auto; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for kind, content in blocks %}
{% if kind == "heading" %}<h2>{{ content }}</h2>
{% elif kind == "text" %}<p>{{ content }}</p>
{% elif kind == "code" %}<pre>{{ content }}</pre>
{% elif kind == "figure" %}{{ content | safe }}
{% elif kind == "table" %}<table>
<tr>{% for name in content[0] %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in content[1] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endif %}
{% endfor %}
</body>
</html>
"""


class ReportError(ValueError):
    """A report cannot be drawn or written; the message is one sentence."""


class Report:
    """A page that grows from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._blocks: list[tuple[str, Any]] = []

    def heading(self, text: str) -> None:
        self._blocks.append(("heading", text))

    def text(self, text: str) -> None:
        self._blocks.append(("text", text))

    def code(self, text: str) -> None:
        """Text as it is, for example the command that gives these figures again."""
        self._blocks.append(("code", text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._blocks.append(("table", (list(columns), [list(map(str, row)) for row in rows])))

    def figure(self, figure: Figure) -> None:
        """A matplotlib figure, kept as SVG."""
        text = io.StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
        svg = text.getvalue()
        self._blocks.append(("figure", svg[svg.index("<svg") :]))  # without the XML prologue

    def html(self) -> str:
        return render(_TEMPLATE, title=self.title, blocks=self._blocks)

    def write(self, path: Path) -> None:
        """ReportError where the file cannot be written."""
        write_page(path, self.html())


def render(template: str, **values: Any) -> str:
    """HTML by a template of Jinja, which escapes the values."""
    import jinja2

    return jinja2.Environment(autoescape=True, trim_blocks=True).from_string(template).render(**values)


def write_page(path: Path, html: str) -> None:
    """ReportError where the file cannot be written."""
    try:
        write_text(path, html)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None


def stacked_bars(bars: Mapping[str, Mapping[str, float]], unit: str, line: tuple[str, float] | None = None) -> Figure:
    """One bar per name, made of its parts; `line` is a labelled level across all of them."""
    figure = _figure(len(bars))
    axes = figure.subplots()
    bottom = dict.fromkeys(bars, 0.0)
    for part in dict.fromkeys(part for parts in bars.values() for part in parts):
        heights = [parts.get(part, 0.0) for parts in bars.values()]
        axes.bar(list(bars), heights, bottom=list(bottom.values()), label=part, width=0.6)
        bottom = {name: bottom[name] + height for name, height in zip(bars, heights, strict=True)}
    if line is not None:
        axes.axhline(line[1], linestyle="--", color="black", label=line[0])
    axes.set_ylabel(unit)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def interval_bars(bars: Mapping[str, Estimate], unit: str, line: tuple[str, float] | None = None) -> Figure:
    """One bar per name with its interval; `line` is a labelled level across all of them."""
    figure = _figure(len(bars))
    axes = figure.subplots()
    values = [estimate.value for estimate in bars.values()]
    # An interval of medians need not hold the median of all; a bar's arm then has length 0 on that side.
    below = [max(0.0, estimate.value - estimate.low) for estimate in bars.values()]
    above = [max(0.0, estimate.high - estimate.value) for estimate in bars.values()]
    axes.bar(list(bars), values, yerr=[below, above], capsize=6, width=0.6)
    if line is not None:
        axes.axhline(line[1], linestyle="--", color="black", label=line[0])
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axes.set_ylabel(unit)
    return figure


def _figure(bars: int) -> Figure:
    """A figure of its own, without pyplot's global state and without a display."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("a report needs matplotlib: pip install 'streamfuse[bench]'") from None
    return Figure(figsize=(3 + 1.2 * bars, 4))
