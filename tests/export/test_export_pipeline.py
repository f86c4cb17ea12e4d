"""The list of an export's stages: what each takes is there when it runs, and what each gives is taken.

Run: python -m pytest tests/export/test_export_pipeline.py
"""

from __future__ import annotations

import inspect

from streamfuse.export import pipeline
from streamfuse.export.pipeline import GIVEN, STAGES, Stage


def test_every_stage_takes_what_earlier_ones_gave() -> None:
    there, taken = set(GIVEN), set()
    for stage in STAGES:
        assert set(stage.takes) <= there, stage.name
        taken |= set(stage.takes)
        assert not there & set(stage.gives), f"{stage.name} gives a name anew"
        there |= set(stage.gives)
    assert taken == there


def test_a_stage_gives_as_many_values_as_it_names() -> None:
    for stage in STAGES:
        returned = inspect.get_annotations(stage.function, eval_str=True, globals=vars(pipeline))["return"]
        arguments = getattr(returned, "__args__", ()) if getattr(returned, "__origin__", None) is tuple else (returned,)
        assert len(stage.gives) == (0 if returned is None else len(arguments)), stage.name


def test_a_stage_puts_what_it_returns_under_its_names() -> None:
    def halves(number: int) -> tuple[int, int]:
        return number // 2, number - number // 2

    values = {"number": 7, "other": 1}
    Stage(halves, ("low", "high")).run(values)
    assert values == {"number": 7, "other": 1, "low": 3, "high": 4}
    Stage(lambda low: low + 1, ("next",)).run(values)
    assert values["next"] == 4
