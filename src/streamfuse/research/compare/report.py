"""A comparison of methods as Markdown for the docs, and as one HTML page that needs nothing but itself.

The object is the one that `streamfuse research compare --json` prints.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from streamfuse.bench.shared import report

from .charts import costs, online, over_time
from .peer_rows import peers_table, programs
from .sample import sample_views
from .tables import (
    PLAIN,
    Result,
    Table,
    at,
    computed_table,
    data_sets,
    devices,
    items,
    number,
    online_table,
    passes_table,
    results_table,
)
from .views import acceptance, best_lossless, speedups

_TEMPLATE = "page.html"  # its style sheet and script are in the same folder, all in the wheel


def to_markdown(result: Result) -> str:
    """Where and how it was measured, then per data set a table of what was measured and one of what was computed."""
    lines = [f"{_title(result)}. {'; '.join(facts(result))}.", ""]
    if command := at(result, "command"):
        lines += ["```text", str(command), "```", ""]
    for data in data_sets(result):
        prompts = number(at(result, "data", data, "prompts"))
        lines += [f"### {data}" + (f" ({prompts:.0f} prompts)" if prompts else ""), ""]
        lines += [*_markdown(results_table(result, data)), ""]
        peers = peers_table(result, data)
        if peers[1]:
            named = "; ".join(programs(result))
            lines += [f"Other programs with the same weights, in the same turns ({named}):", "", *_markdown(peers), ""]
        computed = computed_table(result, data)
        if computed[1]:
            lines += [
                "Computed, not measured: times as fast as plain decoding, by the passes counted here and what a pass "
                "costs on each device.",
                "",
                *_markdown(computed),
                "",
            ]
    learnt = online_table(result)
    if learnt[1]:
        lines += ["### Learning online, tokens per pass", "", *_markdown(learnt), ""]
    return "\n".join(lines)


def to_page(result: Result) -> str:
    """The page: tables, charts and one answer, token by token; no address in it is loaded from elsewhere."""
    view: dict[str, Any] = {
        "title": _title(result),
        "facts": facts(result),
        "command": at(result, "command"),
        "data": {data: number(at(result, "data", data, "prompts")) for data in data_sets(result)},
        "methods": items(result, "methods"),
        "devices": devices(result),
        "baseline": PLAIN,
        "best": best_lossless(result),
        "speedups": speedups(result),
        "acceptance": acceptance(result),
        "costs": costs(result),
        "over_time": over_time(result),
        "online": online(result),
        "online_table": online_table(result),
        "sample": sample_views(result),
        "tables": {data: results_table(result, data) for data in data_sets(result)},
        "computed": {data: computed_table(result, data) for data in data_sets(result)},
        "peers": {data: peers_table(result, data) for data in data_sets(result)},
        "about_peers": items(result, "peers"),
        "passes": passes_table(result),
    }
    return str(_template().render(view))


def write_page(result: Result, path: Path) -> None:
    """`to_page` as a file. ReportError where it cannot be written."""
    report.write_page(path, to_page(result))


@cache
def _template() -> Any:
    """Compiled once per process."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(_TEMPLATE)


def facts(result: Result) -> list[str]:
    """Machine and settings, as far as they are known."""
    found = []
    cores = number(at(result, "machine", "cores"))
    machine = [f"{cores:.0f} cores" if cores else "", str(at(result, "machine", "processor") or "")]
    if any(machine):
        found.append(" of ".join(filter(None, machine)))
    for name, value in items(result, "machine").items():
        if name not in ("processor", "cores") and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            found.append(f"{name.replace('_', ' ')} {value}")
    found += [f"{name.replace('_', ' ')} {value}" for name, value in items(result, "settings").items()]
    return found


def _title(result: Result) -> str:
    return f"Methods of speculative decoding: {at(result, 'model') or 'unknown model'}"


def _markdown(table: Table) -> list[str]:
    columns, rows = table
    marks = ["---", *("---:" for _ in columns[1:])]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (columns, marks, *rows)]
