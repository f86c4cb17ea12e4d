"""Answers in Spec-Bench's format, of programs that tell of no passes. Those of methods: test_compare.py.

Run: python -m pytest tests/research/test_compare_answers.py
"""

from __future__ import annotations

import json
from pathlib import Path

from fakes import decode_letters

from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.statistics import Spread
from streamfuse.bench.shared.systems import Answer
from streamfuse.bench.tasks.measure import SystemResult, TaskResult
from streamfuse.research.compare.answers import write_answers
from streamfuse.research.compare.measure import DataSet, MethodsResult
from streamfuse.train.formats import Sample


class Letters:
    """Decodes; nothing else is asked of a text."""

    decode = staticmethod(decode_letters)


def test_answers_of_programs_that_tell_of_no_passes_are_written_too(tmp_path: Path) -> None:
    systems = {"other": SystemResult([[Answer((1, 2, 3), 20.0)]])}
    task = TaskResult(TaskSettings(8, 1), systems, Spread.of([10.0]), 1000)
    data = DataSet("letters", [[3, 1, 4]], [Sample(("say",), source="qa", number=9)])
    result = MethodsResult([], [data], {"letters": task}, {}, Letters(), {})  # type: ignore[arg-type]
    (path,) = write_answers(result, tmp_path)
    row = json.loads(path.read_text())
    (choice,) = row["choices"]
    assert (row["model_id"], row["question_id"], choice["wall_time"]) == ("other", 9, [0.02])
    assert (choice["decoding_steps"], choice["new_tokens"], choice["accept_lengths"]) == ([None], [3], [])
