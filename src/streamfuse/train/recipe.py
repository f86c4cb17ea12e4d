"""Recipes: a few stages (tune the base, let it answer, train the streams) in a small TOML file, run by one command.

A stage's output is the input of a later one by name (`@base`, `@own`). Every stage resumes: the same command continues
after an interruption, and finished stages are not run again.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_origin

from streamfuse.adapters import find
from streamfuse.model.config import StreamConfig
from streamfuse.options import converted, shown, types_of

from .config import BASE_SIZES, SYNTHESIZE, DistillConfig, TrainConfig, streams_of, with_preset

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FOLDER = Path(__file__).parent / "recipes"
_STREAMS = {field.name for field in fields(StreamConfig)}
_TRAIN = {field.name for field in fields(TrainConfig)} - {"model", "out_dir", "adapter", "streams", "widen"}
_DISTILL = {field.name for field in fields(DistillConfig)} | {
    "data",
    "format",
    "adapter",
    "variations",
    "limit",
    "bundle",
}
_SYNTHESIZE = {field.name for field in fields(DistillConfig)} | {"count", "begin", "system", "after", "bundle"}
_KINDS = {"train": _TRAIN | _STREAMS | {"preset"}, "distill": _DISTILL, "synthesize": _SYNTHESIZE}
_NEEDED = {"train": "data", "distill": "data", "synthesize": "count"}
_OF_PYTORCH = ("dtype", "batch_size")  # settings of a distillation that a bundle does not have
_ADAPTERS = ("adapter", "base_adapter", "init_adapter")


class RecipeError(ValueError):
    """A recipe, or a change to one, cannot be used; the message names the key."""


@dataclass(frozen=True, slots=True)
class DistillStage:
    """Settings of distillation: the model answers the prompts of `data`, and `variations` of them for E2E.

    With `bundle`, the model is exported as a bundle without streams, which answers faster than PyTorch does on a CPU.
    """

    data: str
    out: Path
    config: DistillConfig
    format: str | None = None
    adapter: Path | None = None
    limit: int = 0
    variations: int = 0
    bundle: bool = False


@dataclass(frozen=True, slots=True)
class SynthesizeStage:
    """Settings of synthesis: number of prompts, their beginnings, and the answers that they follow (synthesize.py).
    `bundle`: as in `DistillStage`."""

    out: Path
    config: DistillConfig
    count: int
    begin: tuple[str, ...] = ()
    system: str | None = None
    after: Path | None = None
    bundle: bool = False


Stage: TypeAlias = TrainConfig | DistillStage | SynthesizeStage
_TYPES = {
    "train": types_of(StreamConfig) | types_of(TrainConfig) | {"preset": str},
    "distill": types_of(DistillConfig) | types_of(DistillStage),
    "synthesize": types_of(DistillConfig) | types_of(SynthesizeStage),
}


def names() -> list[str]:
    """The shipped recipes."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(name_or_path: str) -> dict[str, Any]:
    """A shipped recipe by name, or one of the user's by path: `about` and the list `stage`.

    Raises:
        RecipeError: it does not exist, or is damaged.
    """
    path = _FOLDER / f"{name_or_path}.toml" if name_or_path in names() else Path(name_or_path)
    if not path.is_file():
        raise RecipeError(f"--recipe {name_or_path}: no such file, and not one of {', '.join(names())}")
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(f"{path}: not valid TOML ({error})") from None
    if not isinstance(recipe.get("about"), str):
        raise RecipeError(f"{path}: needs the key 'about', a sentence that says what the recipe does")
    if not isinstance(recipe.get("stage"), list) or not recipe["stage"]:
        raise RecipeError(f"{path}: has no stage; each begins with [[stage]]")
    for stage in recipe["stage"]:
        if (
            not isinstance(stage, dict)
            or not isinstance(stage.get("name"), str)
            or str(stage.get("kind")) not in _KINDS
        ):
            raise RecipeError(f"{path}: a stage needs a name, and a kind out of {', '.join(_KINDS)}")
        for key in (key for key in stage if key not in {"name", "kind"} | _KINDS[stage["kind"]]):
            raise RecipeError(f"{path}: stage {stage['name']!r} has the unknown key {key!r}")
    for name, count in Counter(stage["name"] for stage in recipe["stage"]).items():
        if count > 1:  # they would write the same file
            raise RecipeError(f"{path}: {count} stages have the name {name!r}; give each its own")
    return recipe


def change(recipe: dict[str, Any], settings: Mapping[str, str]) -> None:
    """Set `key` in the last stage, or `stage.key`; values have TOML syntax, and words need no quotes.

    Raises:
        RecipeError: the stage or key does not exist, or the value is not TOML.
    """
    stages = {stage["name"]: stage for stage in recipe["stage"]}
    for path, value in settings.items():
        name, _, key = path.rpartition(".")
        stage = stages.get(name) if name else recipe["stage"][-1]
        if stage is None:
            raise RecipeError(f"--set {path}: the stages are {', '.join(stages)}")
        if key not in _KINDS[stage["kind"]]:
            raise RecipeError(f"--set {path}: stage {stage['name']!r} has no setting {key!r}")
        try:
            stage[key] = tomllib.loads(f"value = {value}")["value"]
        except ValueError:
            stage[key] = value


def variants(recipe: dict[str, Any], key: str, values: str) -> dict[str, dict[str, Any]]:
    """The recipe once per value of `values` ("1,2,4,8"), set in the last stage as by `change`.

    Raises:
        RecipeError: as `change`; or the last stage does not train; or the key is of another stage.
    """
    if "." in key or recipe["stage"][-1]["kind"] != "train":
        raise RecipeError(f"--sweep {key}: only a setting of the last stage, which trains, can be swept")
    result = {}
    for value in values.split(","):
        result[value.strip()] = copy.deepcopy(recipe)
        change(result[value.strip()], {key: value.strip()})
    return result


def stages(recipe: dict[str, Any], model: Path, data_root: Path, out_dir: Path, adapter: Path) -> list[Stage]:
    """The stages of a recipe as configurations; the last one writes `adapter`, the others write into `out_dir`.

    Raises:
        RecipeError: a stage refers to one that is not before it or to an adapter that does not exist, lacks a key, or
            has a value of the wrong type.
        ValueError: a setting is out of range.
    """
    made: dict[str, Path] = {}
    result: list[Stage] = []
    for i, stage in enumerate(recipe["stage"]):
        _check(stage)
        settings = {key: value for key, value in stage.items() if key not in ("name", "kind")}
        for key in ("data", "valid", "after", *_ADAPTERS):
            if key not in settings:
                continue
            settings[key] = _resolved(settings[key], made, data_root, stage["name"])
            if key in _ADAPTERS and not stage[key].startswith("@"):
                settings[key] = _adapter_file(f"stage {stage['name']!r}: {key}", settings[key])
        if stage["kind"] != "train":
            made[stage["name"]] = out = out_dir / f"{stage['name']}.jsonl"
            result.append((_distill_stage if stage["kind"] == "distill" else _synthesize_stage)(settings, out))
        else:
            last = i + 1 == len(recipe["stage"])
            made[stage["name"]] = adapter if last else out_dir / stage["name"] / "adapter.safetensors"
            settings = {"task": recipe.get("task", "chat"), **settings}
            result.append(_train_stage(settings, model, out_dir / stage["name"], made[stage["name"]]))
    return result


def _check(stage: Mapping[str, Any]) -> None:
    """RecipeError if a key is missing, or its value has the wrong type. Numbers and words of a choice have their own
    check (`options.check`)."""
    place, kind = f"stage {stage['name']!r}", stage["kind"]
    if _NEEDED[kind] not in stage:
        raise RecipeError(f"{place}: a stage of kind {kind} needs the key {_NEEDED[kind]!r}")
    for key, value in stage.items():
        if key in ("name", "kind"):
            continue
        wanted = _TYPES[kind][key]
        parts = get_args(wanted) or (wanted,)
        if get_origin(wanted) is tuple:
            several = value if isinstance(value, list) else [value]
            fits = all(isinstance(one, str) for one in several) and (bool(several) or key != "data")
            words = "a string, or a list of strings"
        elif str in parts or Path in parts:
            fits, words = isinstance(value, str), "a string"
        elif wanted is bool:
            fits, words = isinstance(value, bool), "true or false"
        else:
            fits, words = wanted is not int or type(value) is int, "an integer"
        if stage.get("bundle") is True and key in _OF_PYTORCH:
            raise RecipeError(f"{place}: {key} has no effect with bundle = true; leave one of them out")
        if not fits:
            raise RecipeError(f"{place}: {key} must be {words}, not {shown(value)}")


def _adapter_file(place: str, name: str) -> str:
    """The file of a shipped adapter, by name, or the path itself."""
    try:
        return str(find(name))
    except FileNotFoundError as error:
        raise RecipeError(f"{place} {error}") from None


def _resolved(value: Any, made: Mapping[str, Path], data_root: Path, stage: str) -> Any:
    """`@name` is the output of an earlier stage; a relative path to a file is below `data_root`."""
    if isinstance(value, list):
        return [_resolved(one, made, data_root, stage) for one in value]
    if value.startswith("@"):
        if value[1:] not in made:
            raise RecipeError(f"stage {stage!r} refers to {value}, which is not an earlier stage")
        return str(made[value[1:]])
    return str(data_root / value) if value.endswith((".jsonl", ".json", ".safetensors")) else value


def _distill_stage(settings: dict[str, Any], out: Path) -> DistillStage:
    own = _taken(DistillStage, settings)
    return DistillStage(out=out, config=DistillConfig(**settings), **own)


def _synthesize_stage(settings: dict[str, Any], out: Path) -> SynthesizeStage:
    own = _taken(SynthesizeStage, settings)
    return SynthesizeStage(out=out, config=replace(SYNTHESIZE, **settings), **own)


def _taken(stage: type, settings: dict[str, Any]) -> dict[str, Any]:
    """The stage's own settings, which are removed from `settings`."""
    return converted(stage, {name: settings.pop(name) for name in types_of(stage) if name in settings})


def _train_stage(settings: dict[str, Any], model: Path, out_dir: Path, adapter: Path) -> TrainConfig:
    if (preset := settings.pop("preset", None)) is not None:
        settings = with_preset(preset, settings)
    own = {key: value for key, value in settings.items() if key in _TRAIN}
    of_streams = {key: value for key, value in settings.items() if key in _STREAMS}
    try:
        if "init_adapter" in own:
            own["widen"], of_streams = of_streams, {}
        if "base_adapter" in own and (sized := BASE_SIZES & of_streams.keys()):
            raise RecipeError(f"base_adapter brings its own tuned base, so {min(sized)} does not go with it")
        streams = streams_of(own.get("mode", "lossless"), of_streams)
        own = converted(TrainConfig, own)
        return TrainConfig(model=model, out_dir=out_dir, adapter=adapter, streams=streams, **own)
    except TypeError as error:
        raise RecipeError(f"a setting is of the wrong type ({error})") from None
