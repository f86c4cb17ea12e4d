"""The tasks of the structured bench by name, and their questions as token ids of a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamfuse.bundle import Manifest
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.readers import spread

from . import extraction, function_calling, objects, sql
from .questions import Question


@dataclass(frozen=True, slots=True)
class Task:
    """`read_questions` takes a source of data and a split; a task without data ignores both."""

    name: str
    read_questions: Callable[[str, str], list[Question]]
    needs_data: bool = True


TASKS = {
    task.name: task
    for task in (
        Task("function-calling", function_calling.read_questions),
        Task("extraction", extraction.read_questions),
        Task("sql", sql.read_questions),
        Task("objects", objects.read_questions, needs_data=False),
    )
}


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """A question with the token ids of its prompt."""

    question: Question
    prompt_ids: Sequence[int]


def encode_questions(
    questions: Sequence[Question], tokenizer: Tokenizer, manifest: Manifest, max_new_tokens: int, limit: int | None
) -> tuple[list[EncodedQuestion], int]:
    """`limit` of the questions that leave room for an answer, evenly from all of them, and how many are too long."""
    room = manifest.cache.capacity - max_new_tokens
    encoded = [EncodedQuestion(question, tokenizer.encode_chat(question.messages)) for question in questions]
    fitting = [one for one in encoded if len(one.prompt_ids) <= room]
    return spread(fitting, limit), len(encoded) - len(fitting)
