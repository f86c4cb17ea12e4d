"""The trained adapters and the recipes of other methods. A clone of the repository has both, a wheel the recipes."""

from __future__ import annotations

import json
from pathlib import Path

ADAPTERS, RECIPES = (Path(__file__).parent / name for name in ("adapters", "recipes"))


def adapter(name: str) -> Path:
    """The adapter's file. FileNotFoundError where streamfuse is not run from a clone."""
    return _shipped(f"{name}.safetensors")


def sublayers_left_out() -> list[str]:
    """What SmolLM2-135M leaves out when it drafts for itself, as `streamfuse research layer-skip` found it.

    FileNotFoundError as of `adapter`.
    """
    skip: list[str] = json.loads(_shipped("self.json").read_text(encoding="utf-8"))["skip"]
    return skip


def trained() -> list[Path]:
    """All files of the adapters that are here, in the order of their names."""
    return sorted(path for path in ADAPTERS.glob("*") if path.suffix in (".safetensors", ".json"))


def recipe(name_or_path: str) -> str:
    """The path of a recipe of this folder, or the path itself."""
    own = RECIPES / f"{name_or_path}.toml"
    return str(own) if own.is_file() else name_or_path


def recipes() -> list[str]:
    """Names of the recipes of this folder."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _shipped(name: str) -> Path:
    file = ADAPTERS / name
    if not file.is_file():
        raise FileNotFoundError(
            f"{file}: the adapters of other methods are in a clone of the repository only, in "
            "src/streamfuse/research/adapters; run this command from a clone (pip install -e .)"
        )
    return file
