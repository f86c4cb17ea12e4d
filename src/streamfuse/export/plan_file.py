"""Export plans as files, read by `--config` and written into the report of an export. The keys are the flags."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from .plan import STREAM_OPTIONS, ExportPlan
from .schemes import PlanError

NO_ADAPTER = "none"
_SWITCHES = ("overwrite", "dry_run", "offline")
_LISTS, _MAPS = ("widths", "scheme", "allow_parity_below"), ("prune_keep", "stream_nodes", "scheme")
_REPEATED = ("scheme", "allow_parity_below")  # flags that may be repeated


def to_config(plan: ExportPlan) -> dict[str, Any]:
    """The plan by flag name, with values that `read_config` accepts and that JSON and YAML can represent.

    The output folder and `overwrite` are left out.
    """
    left_out = (
        "output_dir",
        "overwrite",
        "streams",
        "schemes",
        "extra_methods",
        *(STREAM_OPTIONS if plan.adapter is None else ()),
    )
    found = {f.name: getattr(plan, f.name) for f in fields(plan) if f.name not in left_out}
    found["scheme"] = dict(plan.schemes)
    found["adapter"] = plan.adapter or NO_ADAPTER
    return {name: _plain(value) for name, value in found.items() if value is not None}


def read_config(path: Path, known: Collection[str]) -> dict[str, Any]:
    """The flags of a YAML file as on the command line; `known` are their names, with underscores.

    A list of numbers is joined by commas, a map of widths becomes 8:4,16:8, a map of schemes PART=SCHEME.

    Raises:
        PlanError: the file cannot be read, has an unknown key, or has a value that no flag takes.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise PlanError(f"--config {path} cannot be read ({' '.join(str(error).split())})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise PlanError(f"--config {path} must hold keys and values, for example `target: onnx`")
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    for key in values:
        if key not in known:
            raise PlanError(f"--config {path}: {key} is not a flag of `streamfuse export`")
    return {key: _as_flag(path, key, value) for key, value in values.items() if value is not None}


def _as_flag(path: Path, key: str, value: Any) -> Any:
    """The command-line form of a value: `_LISTS` take several values, `_MAPS` values by name, all others one value."""
    if key in _MAPS and isinstance(value, dict):
        sign = "=" if key == "scheme" else ":"
        words = [f"{_word(path, key, name)}{sign}{_word(path, key, item)}" for name, item in value.items()]
    elif key in _LISTS and isinstance(value, list):
        words = [_word(path, key, item) for item in value]
    elif isinstance(value, bool):
        return (
            value if key in _SWITCHES else "on" if value else "off"
        )  # since YAML reads the words on and off as booleans
    else:
        words = [_word(path, key, value)]
    return words if key in _REPEATED else ",".join(words)


def _word(path: Path, key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise PlanError(f"--config {path}: {key} has a value that no flag takes, {value!r:.40}")
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else dict(value) if isinstance(value, dict) else value
