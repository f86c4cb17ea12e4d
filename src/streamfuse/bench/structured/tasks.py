"""The tasks of the structured bench by name, and their questions as token ids of a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamfuse.bundle import Manifest
from streamfuse.runtime.text import Tokenizer

from . import extraction, function_calling, objects, sql
from .questions import Question


@dataclass(frozen=True, slots=True)
class Task:
    """`read` takes a source of data and a split; a task without data ignores both."""

    name: str
    about: str
    read: Callable[[str, str], list[Question]]
    needs_data: bool = True


TASKS = {
    task.name: task
    for task in (
        Task("function-calling", "one call of a given function", function_calling.read),
        Task("extraction", "a text's attributes as JSON", extraction.read),
        Task("sql", "a query, by a grammar", sql.read),
        Task("objects", "objects of many shapes", objects.read, needs_data=False),
    )
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the token ids of its prompt."""

    question: Question
    prompt_ids: Sequence[int]


def asked(
    questions: Sequence[Question], text: Tokenizer, manifest: Manifest, max_new_tokens: int, limit: int | None
) -> tuple[list[Asked], int]:
    """`limit` of the questions that leave room for an answer, evenly from all of them, and how many are too long."""
    room = manifest.cache.capacity - max_new_tokens
    encoded = [Asked(question, text.encode_chat(question.messages)) for question in questions]
    fitting = [one for one in encoded if len(one.prompt_ids) <= room]
    count = min(limit or len(fitting), len(fitting))
    return [fitting[i * len(fitting) // count] for i in range(count)], len(encoded) - len(fitting)
