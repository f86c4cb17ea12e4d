"""Prompts of `streamfuse demo` and of benchmarks."""

from __future__ import annotations

from typing import Any, Final

from streamfuse.bundle import Manifest
from streamfuse.cli.shared.console import say

_SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "city": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["name", "city", "year"],
    "additionalProperties": False,
}
# Of `demo`, and of `bench report` without --data. By kind: the prompt, and its restriction as options of
# `Model.generate`. None of them is in a training set or among the prompts that a constant was tuned on.
PROMPTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "chat": ("What are three benefits of walking every day?", {}),
    "code": ("Write a Python function that reverses a string.", {}),
    "JSON": (
        "The Eiffel Tower in Paris was finished in 1889. Write its name, city and year as JSON.",
        {"schema": _SCHEMA},
    ),
}


def fitting(prompts: list[list[int]], manifest: Manifest, max_new_tokens: int) -> list[int]:
    """The places of the prompts that leave room for their answers in the context; says how many do not.

    PromptsError if none does.
    """
    from streamfuse.bench.tasks import prompts as of_bench

    places = of_bench.fitting(prompts, manifest, max_new_tokens)
    if skipped := len(prompts) - len(places):
        say(f"{skipped} prompts with their answers are longer than the context of {manifest.cache.capacity} tokens.")
    return places
