"""Untrusted JSON: what readers understand differently is refused, so that every language reads the same; and
JSON that every reader takes.

text/src/json.rs is the same in Rust.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def load_strict(text: str) -> Any:
    """The value that `text` holds.

    Raises:
        ValueError: it is not JSON, is nested too deeply, holds a name twice in one object, or a number that is no
            number (NaN), beyond a double, or a zero with a sign.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_without_twins, parse_int=_whole, parse_float=_real, parse_constant=_no_number
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump_strict(data: Any, **settings: Any) -> str:
    """JSON text of `data`, `settings` as for json.dumps. What is no number there (NaN, infinity) is null."""
    return json.dumps(_finite(data), allow_nan=False, **settings)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r:.80} stands there twice")
        found[name] = value
    return found


def _whole(digits: str) -> int:
    _real(digits)
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        _no_number(digits)
    if value == 0 and digits.startswith("-"):
        raise ValueError("a zero with a sign")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text:.40} is not a JSON number")
