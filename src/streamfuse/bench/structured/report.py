"""A structured measurement as a table and as lines; the JSON has the same figures and more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfuse.bench.external.opening import trial_text

from .measure import PLAIN, SPECULATIVE, StructuredResult, TaskFigures

_SHOWN_PROBLEMS = 3


def task_rows(result: StructuredResult) -> tuple[list[str], list[list[str]]]:
    """One row per task."""
    columns = ["task", "answers", "over plain", "tokens per pass", "grammar", "valid", "exact", "plain over free"]
    return columns, [_row(name, figures) for name, figures in result.tasks.items()]


def system_rows(result: StructuredResult) -> tuple[list[str], list[list[str]]]:
    """One row per task and system, of all that constrain their answers."""
    columns = ["task", "system", "answers", "tokens/s", "over plain", "ms/answer", "valid", "exact"]
    rows = []
    for task, figures in result.tasks.items():
        facts = figures.to_dict()
        for name in (PLAIN, SPECULATIVE):
            own = {
                **facts,
                "decode_token_per_sec": facts["decode_token_per_sec"][name],
                "ms_per_answer": facts["ms_per_answer"][name],
                "over_plain": facts["speedup"] if name == SPECULATIVE else 1.0,
            }
            rows.append([task, name, *_system_row(own)])
        rows += [[task, name, *_system_row(one)] for name, one in facts["external"].items()]
    return columns, rows


def summary(result: StructuredResult) -> list[str]:
    """What the table leaves open: equality, invalid and unfinished answers, who drafted."""
    lines = []
    for name, figures in result.tasks.items():
        facts = figures.to_dict()
        speed = facts["decode_token_per_sec"]
        by = facts["accepted_by_source"]
        total = sum(by.values()) or 1
        shares = ", ".join(f"{source} {count / total:.0%}" for source, count in by.items() if count) or "nowhere"
        lines.append(
            f"{name}: {speed[PLAIN]:.0f} tokens/s plain, {speed[SPECULATIVE]:.0f} speculative, "
            f"{figures.speedup.low:.2f} to {figures.speedup.high:.2f} times as fast; accepted drafts came from {shares}"
        )
        lines.append(
            f"{name}: the constraint is compiled in {facts['compile_ms']:.1f} ms and asked for "
            f"{facts['mask_ms_per_token'][PLAIN]:.3f} ms per token of plain decoding"
        )
        for figure, value in facts["quality"].items():
            lines.append(f"{name}: {figure.replace('_', ' ')} {value:.1f} %")
        if cut := sum(not one.finished for one in figures.results):
            lines.append(f"{name}: {cut} answers reached --max-new-tokens before they were complete")
        if facts["skipped"]:
            lines.append(f"{name}: {facts['skipped']} questions are longer than the context")
        lines += [f"{name}: INVALID: {problem}" for problem in figures.problems[:_SHOWN_PROBLEMS]]
        for system, external in figures.external.items():
            lines += [
                f"{name}: {system} has no answer to {count} of {len(external.replies)} questions: {reason}"
                for reason, count in external.refused.items()
            ]
        if not figures.equal:
            lines.append(f"{name}: THE OUTPUTS DIFFER")
    if rates := result.facts.get("llama_cpp_trial_token_per_sec"):
        lines.append(trial_text(rates))
    if all(figures.equal for figures in result.tasks.values()):
        lines.append("constrained plain and constrained speculative text are equal, token for token")
    return lines


def _row(name: str, figures: TaskFigures) -> list[str]:
    facts = figures.to_dict()
    return [
        name,
        str(facts["answers"]),
        f"{figures.speedup.value:.2f}x",
        f"{facts['tokens_per_pass']:.2f}",
        f"{facts['grammar_share']:.0%}",
        *_worth(facts),
        f"{figures.over_free.value:.3f}",
    ]


def _system_row(facts: Mapping[str, Any]) -> list[str]:
    if not facts["answers"]:
        return ["0", "-", "-", "-", "-", "-"]
    return [
        str(facts["answers"]),
        f"{facts['decode_token_per_sec']:.0f}",
        f"{facts['over_plain']:.2f}x",
        f"{facts['ms_per_answer']:.0f}",
        *_worth(facts),
    ]


def _worth(facts: Mapping[str, Any]) -> list[str]:
    """Validity and exact match."""
    valid, exact = facts["valid"], facts["quality"].get("exact_match")
    return ["-" if valid is None else f"{valid:.0%}", "-" if exact is None else f"{exact:.0f} %"]
