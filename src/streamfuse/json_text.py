"""JSON that every reader takes."""

from __future__ import annotations

import json
import math
from typing import Any


def dump_strict(data: Any, **settings: Any) -> str:
    """JSON text of `data`, `settings` as for json.dumps. What is no number there (NaN, infinity) is null."""
    return json.dumps(_finite(data), allow_nan=False, **settings)


def integer(digits: str) -> int:
    """An integer of JSON text, for the `parse_int` of json.loads. ValueError, in words for whoever wrote the text, if
    it has more digits than Python reads (4,300)."""
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number of {len(digits.lstrip('-'))} digits; integers have at most 64 bits") from None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
