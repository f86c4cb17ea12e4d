"""An answer in the JSON that commands print."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from streamfuse.api import ParsedError, Result


def answer(result: Result) -> dict[str, Any]:
    """The text; the object that it spells if there is a schema, null if the text is incomplete."""
    found: dict[str, Any] = {"text": result.text}
    if result.schema is not None:
        found["parsed"] = None
        with suppress(ParsedError):
            found["parsed"] = result.parsed
    return found
