"""The answers of a comparison in Spec-Bench's own format, so that its scripts can read them (Xia et al., 2024, arXiv
2401.07851): a file of JSON lines per method and data set."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from .methods import MethodsResult


def write_answers(result: MethodsResult, folder: Path) -> list[Path]:
    """Write `folder/DATA/METHOD.jsonl`; the paths."""
    written = []
    for data in result.data:
        (folder / data.name).mkdir(parents=True, exist_ok=True)
        for name in result.tasks[data.name].systems:
            rows = [_row(result, name, data.name, i) for i in range(len(data.prompts))]
            path = folder / data.name / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            written.append(path)
    return written


def _row(result: MethodsResult, name: str, data: str, number: int) -> dict[str, Any]:
    answer = result.answers(name, data)[number]
    said = answer.statistics or {}
    sample = next(one for one in result.data if one.name == data).samples[number]
    return {
        "question_id": number,
        "category": sample.source,
        "answer_id": f"{name}-{data}-{number}",
        "model_id": name,
        "choices": [
            {
                "index": 0,
                "turns": [result.text.decode(list(answer.token_ids))],
                "decoding_steps": [said["target_forward_passes"]],
                "new_tokens": [len(answer.token_ids)],
                "wall_time": [answer.decode_ms / 1000],
                "accept_lengths": [delivered for _, delivered, _, _ in said["rounds"]],
            }
        ],
        "tstamp": time.time(),
    }
