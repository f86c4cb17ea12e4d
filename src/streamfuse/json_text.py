"""JSON that every reader takes."""

from __future__ import annotations

import json
import math
from typing import Any


def dump_strict(data: Any, **settings: Any) -> str:
    """JSON text of `data`, `settings` as for json.dumps. What is no number there (NaN, infinity) is null."""
    return json.dumps(_finite(data), allow_nan=False, **settings)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
