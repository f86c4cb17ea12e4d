"""Fields of a configuration file, with error messages for invalid ones."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST = 2**31 - 1  # maximum of any size


PEFT = (
    "is a PEFT adapter (LoRA and the like): it tunes a base model and has no streams; `streamfuse adapter convert` "
    "makes an adapter of it for `streamfuse export --task`, or merge it (PEFT's merge_and_unload, then "
    "save_pretrained) and name the merged folder with --model"
)
ADD_A_FAMILY = "docs/architecture.md, Add a family, shows how to add a model family"


class CheckpointError(ValueError):
    """A checkpoint or adapter cannot be used; the message names the file and the field."""


class CheckpointWarning(UserWarning):
    """A checkpoint is used differently than one of its files specifies; the message names the file and the field."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Numbers of a configuration. CheckpointError names file and field."""

    values: dict[str, Any]
    source: str

    def size(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if not (isinstance(value, (int, float)) and 1 <= value <= _MOST and value == int(value)):
            raise CheckpointError(f"{self.source}: {name} must be an integer from 1 to {_MOST}, not {value!r:.40}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise CheckpointError(f"{self.source}: {name} must be a number above 0, not {value!r:.40}")
        return float(value)

    def _value(self, name: str, default: float | None) -> Any:
        value = default if self.values.get(name) is None else self.values[name]
        if value is None:
            raise CheckpointError(f"{self.source}: field {name!r} is missing")
        return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file does not exist. CheckpointError for anything else."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:  # ValueError includes invalid UTF-8
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: must be a JSON object, with names and values, not {type(found).__name__}")
    return found


def refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
