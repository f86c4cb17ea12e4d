"""The results of `streamfuse research compare` as rows of text, for both Markdown and the HTML page.

All functions here and in the other reports take the object that `streamfuse research compare --json` prints.
Unknown keys are ignored, and null or missing values become a dash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from .methods import SAME_DISTRIBUTION

Result: TypeAlias = Mapping[str, Any]
Table: TypeAlias = tuple[list[str], list[list[str]]]

PLAIN, HERE = "plain", "here"
BASELINES = (PLAIN, "plain, core")
NOTHING = "-"
COLUMNS = [
    "method",
    "tokens per pass",
    "mean accepted tokens",
    "tokens/s (95 % interval)",
    "over plain (95 % interval)",
    "first token, ms",
    "extra parameters",
    "extra memory, MB",
    "peak memory, MB",
    "lossless",
]


def number(value: Any) -> float | None:
    """A finite number, as a float; None for everything else."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def at(found: Any, *names: str) -> Any:
    """The value at this path of nested keys; None if one of them is missing or null."""
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def items(found: Any, *names: str) -> dict[str, Any]:
    """The non-null entries of the object at this path; empty if there is no object."""
    inside = at(found, *names)
    return {name: value for name, value in inside.items() if value is not None} if isinstance(inside, Mapping) else {}


def data_sets(result: Result) -> list[str]:
    """Names of the data sets, including those that only a method has."""
    named = [data for method in items(result, "methods").values() for data in items(method, "results")]
    return list(dict.fromkeys([*items(result, "data"), *named]))


def devices(result: Result) -> list[str]:
    """The devices for which speed-ups are computed."""
    methods = items(result, "methods").values()
    return list(dict.fromkeys(device for method in methods for device in items(method, "computed")))


def interval(value: Any) -> tuple[float, float] | None:
    """Low and high end; None if either is unknown."""
    ends = [number(end) for end in value] if isinstance(value, (list, tuple)) else []
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]


def text_of(value: Any, form: str = ".2f") -> str:
    """The number in a format, or a dash."""
    found = number(value)
    return NOTHING if found is None else format(found, form)


def megabytes(value: Any, form: str) -> str:
    """Bytes as megabytes, or a dash."""
    found = number(value)
    return NOTHING if found is None else format(found / 1e6, form)


def with_interval(value: Any, ends: Any, form: str) -> str:
    """For example `1.43 (1.32 to 1.61)`; without the interval if it is unknown or empty."""
    known = interval(ends)
    text = text_of(value, form)
    return (
        text
        if known is None or known[0] == known[1] or text == NOTHING
        else f"{text} ({known[0]:{form}} to {known[1]:{form}})"
    )


def is_lossy(method: Result) -> bool:
    """Whether a method declares that it changes the distribution of the text."""
    return method.get("lossless") is False


def loss(result: Result, name: str, data: str) -> str:
    """Whether a method is lossless, and if not, how much of the text and quality of plain decoding remains.

    If a method promises the tokens of plain decoding, they are compared. The sampled texts of other methods differ from
    these by chance, so no share of equal tokens is reported for them.
    """
    method, found = at(result, "methods", name), at(result, "methods", name, "results", data)
    sampled = bool(number(at(result, "settings", "temperature")))
    if not is_lossy(method):
        if at(method, "promises") == SAME_DISTRIBUTION:
            return "yes, in distribution"
        if at(found, "equal_texts") is False:
            return "OUTPUTS DIFFER"
        return "yes, same text" if at(found, "equal_texts") and name not in BASELINES else "yes"
    words = ["LOSSY"]
    if (share := number(at(found, "share_of_equal_tokens"))) is not None and not sampled:
        words.append(f"{100 * share:.0f} % of plain's tokens")
    before = items(result, "methods", PLAIN, "results", data, "quality")
    for measure, value in items(found, "quality").items():
        own = f"{measure} {text_of(value, '.1f')}"
        words.append(f"{own} (plain {before[measure]:.1f})" if number(before.get(measure)) is not None else own)
    return f"{words[0]}: {', '.join(words[1:])}" if words[1:] else words[0]


def results_table(result: Result, data: str) -> Table:
    """One row per method with answers to this data set; the columns are `COLUMNS`."""
    rows = []
    for name, method in items(result, "methods").items():
        found = items(method, "results", data)
        if found:
            rows.append(
                [
                    name,
                    text_of(found.get("call_reduction_ratio")),
                    text_of(found.get("mean_accepted_tokens")),
                    with_interval(found.get("tokens_per_second"), found.get("tokens_per_second_interval"), ".1f"),
                    with_interval(found.get("speedup"), found.get("speedup_interval"), ".2f"),
                    text_of(found.get("first_token_ms"), ".1f"),
                    text_of(method.get("extra_parameters"), ",.0f"),
                    megabytes(method.get("extra_bytes"), ".1f"),
                    megabytes(method.get("peak_memory_bytes"), ",.0f"),
                    loss(result, name, data),
                ]
            )
    return list(COLUMNS), rows


def computed_table(result: Result, data: str) -> Table:
    """One row per method with a computed speed-up on this data set, one column per device."""
    names = [name for name in devices(result) if any(_computed(one, name, data) for one in _methods(result))]
    rows = [
        [name, *(text_of(_computed(method, device, data)) for device in names)]
        for name, method in items(result, "methods").items()
        if any(_computed(method, device, data) is not None for device in names)
    ]
    return ["method", *(f"{name} (computed)" for name in names)], rows


def passes_table(result: Result) -> Table:
    """One row per kind of pass: milliseconds on this machine, and per device multiples of its plain pass.

    The costs of other devices may be in any unit, since they are computed.
    """
    costs = items(result, "costs")
    columns = ["pass"]
    for device in costs:
        columns += ["this machine, ms", "in decodes"] if device == HERE else [f"{device}, in decodes"]
    rows = []
    for name in dict.fromkeys(name for device in costs for name in items(costs, device)):
        cells = [name]
        for device in costs:
            ms, decode = number(at(costs, device, name)), decode_ms(costs[device])
            cells += [text_of(ms)] if device == HERE else []
            cells.append(NOTHING if ms is None or not decode else f"{ms / decode:.2f}")
        rows.append(cells)
    return columns, rows


def decode_ms(passes: Any) -> float | None:
    """The cost of a plain pass of the target; `passes` are the costs of one device by name."""
    return number(at(passes, "target: decode")) or number(at(passes, "decode"))


def place(device: str) -> str:
    """A device's name for readers."""
    return "this machine" if device == HERE else device


def _methods(result: Result) -> list[Any]:
    return list(items(result, "methods").values())


def _computed(method: Any, device: str, data: str) -> float | None:
    return number(at(method, "computed", device, data))


def visit_name(visit: Any) -> str:
    """The data set of a visit's prompts, marked if it is visited again."""
    return f"{at(visit, 'data')}{', again' if at(visit, 'again') else ''}"


def visit_answers(visit: Any) -> list[tuple[float, float, float]]:
    """Per complete answer: tokens, target passes while learning, and target passes with the frozen drafter."""
    found = [[number(value) for value in one] for one in at(visit, "answers") or [] if isinstance(one, list)]
    return [(one[0], one[1], one[2]) for one in found if len(one) == 3 and None not in one]  # type: ignore[misc]


def online_table(result: Result) -> Table:
    """Per online method and visit: tokens per pass, of all answers and of the second half, learning and frozen."""
    columns = ["method", "prompts of", "answers", "learning", "frozen", "learning, second half", "frozen, second half"]
    rows = []
    for name, method in items(result, "methods").items():
        for visit in at(method, "online", "visits") or []:
            answers = visit_answers(visit)
            parts = (answers, answers[len(answers) // 2 :])
            per_pass = [
                f"{sum(one[0] for one in part) / passes:.2f}"
                if (passes := sum(one[which] for one in part))
                else NOTHING
                for part in parts
                for which in (1, 2)
            ]
            rows.append([name, visit_name(visit), str(len(answers)), *per_pass])
    return columns, rows
