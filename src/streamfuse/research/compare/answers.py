"""The answers of a comparison in Spec-Bench's own format, so that its scripts can read them (Xia et al., 2024, arXiv
2401.07851): a file of JSON lines per method and data set, a line per question, with a list entry per turn.

Times are those of decoding, as everywhere in the comparison; Spec-Bench's own include reading the prompt.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamfuse.bench.shared.turns import questions
from streamfuse.durable import write_text

from .measure import MethodsResult


def write_answers(result: MethodsResult, folder: Path) -> list[Path]:
    """Write `folder/DATA/METHOD.jsonl`; the paths."""
    written = []
    for data in result.data:
        (folder / data.name).mkdir(parents=True, exist_ok=True)
        for name in result.tasks[data.name].systems:
            asked = enumerate(questions(data.samples))
            rows = [_row(result, name, data.name, number, turns) for number, turns in asked]
            path = folder / data.name / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.jsonl"
            write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
            written.append(path)
    return written


def _row(result: MethodsResult, name: str, data: str, number: int, turns: Sequence[int]) -> dict[str, Any]:
    """One question; `turns` are the places of its prompts in the data set. Other programs do not tell of passes."""
    answers = [result.answers(name, data)[place] for place in turns]
    statistics = [answer.statistics or {} for answer in answers]
    sample = next(one for one in result.data if one.name == data).samples[turns[0]]
    question = number if sample.number is None else sample.number
    return {
        "question_id": question,
        "category": sample.source,
        "answer_id": f"{name}-{data}-{question}",
        "model_id": name,
        "choices": [
            {
                "index": 0,
                "turns": [result.text.decode(list(answer.token_ids)) for answer in answers],
                "decoding_steps": [one.get("target_forward_passes") for one in statistics],
                "new_tokens": [len(answer.token_ids) for answer in answers],
                "wall_time": [answer.decode_ms / 1000 for answer in answers],
                "accept_lengths": [length for one in statistics for length in one.get("accept_lengths", ())],
            }
        ],
        "tstamp": time.time(),
    }
