"""A latency measurement as tables and as an HTML page; the same rows for both."""

from __future__ import annotations

from streamfuse.bench.shared.machine import distance_text
from streamfuse.bench.shared.report import Report, stacked_bars
from streamfuse.bundle.manifest import PREFILL

from .measure import OUTSIDE, WAITS, Latency, MethodLatency, Part

Table = tuple[list[str], list[list[str]]]


def method_rows(measured: Latency) -> Table:
    """One row per method. `spread` is half the distance of the quartiles, `share` that of the read bandwidth."""
    columns = ["method", "ms", "spread", "GB/s", "share", "GMAC/s", "commit", "loop"]
    rows = []
    for name, method in measured.methods.items():
        whole = Part(method.pass_ms.median, method.work).to_dict()
        share = whole["gb_s"] / measured.read_bandwidth_gb_s.median
        quartiles = f"±{(method.pass_ms.high - method.pass_ms.low) / 2:.2f}"
        cells = [
            name,
            f"{whole['ms']:.2f}",
            quartiles,
            f"{whole['gb_s']:.1f}",
            f"{share:.0%}",
            f"{whole['gmac_s']:.0f}",
        ]
        rows.append(cells + [f"{method.parts[part].ms:.3f}" if part in method.parts else "-" for part in OUTSIDE])
    return columns, rows


def part_tables(measured: Latency) -> list[Table]:
    """Per unit one row per part and one column per method: milliseconds, then GB/s and GMAC/s of parts with work."""
    names = list(dict.fromkeys(part for method in measured.methods.values() for part in _inside(method)))
    tables = []
    for unit, key, form in (("ms", "ms", ".3f"), ("GB/s", "gb_s", ".1f"), ("GMAC/s", "gmac_s", ".0f")):
        rows = [
            [name, *(_cell(method.parts.get(name), key, form) for method in measured.methods.values())]
            for name in names
        ]
        rows = [row for row in rows if set(row[1:]) != {"-"}]
        if rows:
            tables.append(([unit, *measured.methods], rows))
    return tables


def summary(measured: Latency) -> list[str]:
    """The figures that a reader looks for first."""
    bandwidth, cost = measured.read_bandwidth_gb_s, measured.verify_8_cost
    lines = [
        f"read bandwidth {bandwidth.median:.1f} GB/s ({bandwidth.low:.1f} to {bandwidth.high:.1f}); "
        f"{measured.weight_bytes / 1e6:.1f} MB of weights per token: roofline {measured.roofline_ms:.2f} ms",
        f"decode at {measured.decode_roofline_fraction:.2f} of the roofline",
    ]
    if cost is not None:
        lines.append(f"verify_8 costs {cost:.2f} passes of decode")
    facts = ", ".join(
        distance_text(value) if name == "core_distance_ns" else f"{name.replace('_', ' ')} {value}"
        for name, value in measured.engine.items()
        if value != []
    )
    return [*lines, f"{measured.settings.context} tokens in the cache{', ' + facts if facts else ''}"]


def latency_report(measured: Latency, model: str, command: str) -> Report:
    """Tables and a bar chart of the parts. ReportError without matplotlib."""
    report = Report(f"Latency: {model}")
    for line in summary(measured):
        report.text(line)
    parts = {
        name: {part: method.parts[part].ms for part in method.parts if part != WAITS}
        if _inside(method)
        else {"pass": method.pass_ms.median}
        for name, method in measured.methods.items()
        if name != PREFILL  # of many rows: the others would shrink to nothing beside it
    }
    report.figure(stacked_bars(parts, "ms per step", ("roofline", measured.roofline_ms)))
    report.heading("Methods")
    report.table(*method_rows(measured))
    report.heading("Parts")
    for table in part_tables(measured):
        report.table(*table)
    report.code(command)
    return report


def _inside(method: MethodLatency) -> list[str]:
    """The parts of the pass itself; none where the engine gave no profile."""
    return [part for part in method.parts if part not in OUTSIDE]


def _cell(part: Part | None, key: str, form: str) -> str:
    value = part.to_dict().get(key) if part is not None else None
    return format(value, form) if value else "-"
