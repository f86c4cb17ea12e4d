"""Recombined E2E prompts: new, in the shapes of the given ones, the same for a seed.

Run: python -m pytest tests/train/test_train_variations.py
"""

from __future__ import annotations

import re

import pytest

from streamfuse.train.variations import vary_e2e

PROMPTS = [
    "name[Aromi], eatType[coffee shop], food[Chinese], area[riverside]",
    "name[The Mill], area[city centre], near[Café Sicilia]",
]


def test_variations_are_new_and_keep_the_shape_of_a_prompt() -> None:
    made = vary_e2e(PROMPTS, 60, seed=3)
    assert len(set(made)) == 60
    assert not set(made) & set(PROMPTS)
    shapes = {tuple(re.findall(r"(\w+)\[", prompt)) for prompt in PROMPTS}
    assert {tuple(re.findall(r"(\w+)\[", prompt)) for prompt in made} == shapes
    areas = {area for prompt in made for area in re.findall(r"area\[([^\]]*)", prompt)}
    assert areas == {"riverside", "city centre"}  # a field without other known values keeps those seen
    assert any("food[Japanese]" in prompt for prompt in made)
    assert vary_e2e(PROMPTS, 60, seed=3) == made
    assert vary_e2e(PROMPTS, 60, seed=4) != made


def test_prompts_of_another_form_or_too_few_values_are_refused() -> None:
    with pytest.raises(ValueError, match="a list of fields"):
        vary_e2e(["Describe a restaurant."], 5, seed=0)
    with pytest.raises(ValueError, match="too few values for 5 variations"):
        vary_e2e(["area[riverside]", "area[city centre]"], 5, seed=0)
