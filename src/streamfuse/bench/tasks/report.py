"""A task measurement as a table and as an HTML page; the same rows for both."""

from __future__ import annotations

from streamfuse.bench.external.opening import trial_text
from streamfuse.bench.shared.comparison import equality_line
from streamfuse.bench.shared.machine import distance_text
from streamfuse.bench.shared.report import Report, interval_bars
from streamfuse.bench.shared.statistics import Estimate
from streamfuse.bench.shared.systems import MEMORY, PLAIN, SPECULATIVE

from .measure import TaskResult

_RATIOS = ((SPECULATIVE, PLAIN), (MEMORY, SPECULATIVE), (MEMORY, PLAIN))


def system_rows(result: TaskResult) -> tuple[list[str], list[list[str]]]:
    """One row per system."""
    columns = ["system", "tokens/s", "95 % interval", "of the roofline", "tokens per pass", "tokens"]
    rows = []
    for name, rate in result.rates.items():
        system = result.systems[name]
        accepted = system.statistics.get("mean_accepted_tokens")
        rows.append(
            [
                name,
                f"{rate.value:.1f}",
                f"{rate.low:.1f}-{rate.high:.1f}",
                f"{rate.value / result.roofline_token_per_sec:.2f}",
                "-" if accepted is None else f"{accepted:.2f}",
                f"{system.timings.tokens.sum():.0f}",
            ]
        )
    return columns, rows


def gain_rows(result: TaskResult) -> tuple[list[str], list[list[str]]]:
    """Columns and one row per kind of prompt: the speed of `speculative` over that of `plain` and of `speculative`
    without each source of drafts. No rows if this is the speed-up of all prompts alone, which `summary` has."""
    gains = result.gains
    if list(gains) == ["all"] and list(gains["all"]) == [PLAIN]:
        gains = {}
    columns = ["prompts", *(f"over {name}" for name in next(iter(gains.values()), {}))]
    return columns, [[kind, *map(_times, row.values())] for kind, row in gains.items()]


def summary(result: TaskResult) -> list[str]:
    """The figures that a reader looks for first."""
    lines = []
    for system, baseline in _RATIOS:
        ratio = result.ratio(system, baseline)
        if ratio is not None:
            lines.append(f"{system} over {baseline}: {_times(ratio)}")
    for program, ratios in result.over.items():
        lines += [f"{system} over {program}: {_times(ratio)}" for system, ratio in ratios.items()]
    bandwidth = result.read_bandwidth_gb_s
    lines.append(
        f"roofline of plain decoding {result.roofline_token_per_sec:.0f} tokens/s: "
        f"{result.weight_bytes / 1e6:.1f} MB per token at {bandwidth.median:.1f} GB/s"
    )
    joules = {name: system.statistics.get("joules_per_token") for name, system in result.systems.items()}
    if counted := [f"{name} {energy:.3f} J" for name, energy in joules.items() if energy is not None]:
        lines.append(f"energy per token: {', '.join(counted)}")
    if result.equal is not None:
        lines.append(equality_line(result.equal))
    drafting = result.systems[SPECULATIVE].statistics if SPECULATIVE in result.systems else {}
    if drafting:
        passes = ", ".join(f"{name} {count}" for name, count in sorted(drafting["widths"].items()))
        lines.append(f"speculative passes: {passes}; {drafting['loop_share']:.1%} of the time in the loop")
        by = drafting["accepted_by_source"]
        total = sum(by.values())
        if total:
            shares = ", ".join(f"{name} {count / total:.0%}" for name, count in by.items() if count)
            lines.append(f"accepted drafts came from {shares}")
        if result.counted_speedup is not None:
            lines.append(f"speculative over plain by counted passes and their cost: {result.counted_speedup:.3f}x")
        for reason, answers in drafting["fallback_reasons"].items():
            lines.append(f"plain passes in {answers} of {len(result.systems[SPECULATIVE].answers)} answers: {reason}")
    if distances := result.facts.get("core_distance_ns"):
        lines.append(distance_text(distances))
    if rates := result.facts.get("llama_cpp_trial_token_per_sec"):
        lines.append(trial_text(rates))
    return lines


def tasks_report(result: TaskResult, model: str, command: str) -> Report:
    """Tables, a bar chart, and the command that measured. ReportError without matplotlib."""
    report = Report(f"Tasks: {model}")
    for line in summary(result):
        report.text(line)
    for name, reason in result.left_out.items():
        report.text(f"Without {name}: {reason}")
    report.figure(
        interval_bars(result.rates, "tokens/s", ("roofline of plain decoding", result.roofline_token_per_sec))
    )
    report.heading("Systems")
    report.table(*system_rows(result))
    columns, rows = gain_rows(result)
    if rows:
        report.heading("Speed-up by kind of prompt, and gain from each drafter")
        report.table(columns, rows)
    report.code(command)
    return report


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
