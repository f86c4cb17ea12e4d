"""Chooses the adapter of an export: the named one, the shipped one if it fits, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from streamfuse.adapters import DEFAULT, DEFAULT_ELSEWHERE, find
from streamfuse.bundle.manifest import MOST_ADAPTERS, PLAIN_NAME, PLAIN_NAME_RULE
from streamfuse.model.checkpoint import adapter_end_token, adapter_misfit, read_adapter
from streamfuse.model.config import ModelConfig
from streamfuse.model.pull import resolve_model
from streamfuse.options import AUTO, OptionError

from .config import NO_ADAPTER, ExportConfig, without_streams
from .resolve import resolve
from .sizes import LayerWidths, merging_pays


@dataclass(frozen=True, slots=True)
class Choice:
    """An adapter's file or None, its name in the report, and an optional note for the user."""

    path: Path | None
    word: str
    note: str | None = None


def resolve_for_adapter(config: ExportConfig) -> ExportConfig:
    """The configuration with the defaults that suit its target and the streams in its adapter's file.

    Raises:
        OptionError: an option is out of range.
        CheckpointError: the adapter's file, or that of a task, cannot be read.
    """
    if not config.task:
        return _resolved(config)
    if len(config.task) > MOST_ADAPTERS:
        raise OptionError(f"--task: a bundle has at most {MOST_ADAPTERS} adapters, not {len(config.task)}")
    base = config
    if config.adapter is None:  # the base has no streams; their options are for the tasks
        base = replace(_without_stream_options(config), widths=tuple(width for width in config.widths if width > 1))
    own = _resolved(base)
    if (file := own.adapter_file) is not None:
        streams = read_adapter(file)[0]
        if streams.base_rank and own.merges(streams):
            raise OptionError(
                f"--task needs the base model's own weights, which --adapter {file.stem} changes; name another "
                "adapter, or none, and make this one a task too"
            )
    tasks = {name: _of_task(config, name, Path(file)) for name, file in config.task.items()}
    return replace(own, tasks=tasks, asked=config)


def _of_task(config: ExportConfig, name: str, file: Path) -> ExportConfig:
    """The configuration of a task adapter: the options that `config` asks for, resolved for this file."""
    if not PLAIN_NAME.fullmatch(name):
        raise OptionError(f"--task {name}: the name {PLAIN_NAME_RULE}")
    if config.merge_adapter == "on":
        raise OptionError("--merge-adapter on does not go with --task, whose adapters share the base model's weights")
    streams = read_adapter(file)[0]
    if streams.base_rank and streams.adapter_rank and config.schedule != "deferred":
        raise OptionError(
            f"--task {name}={file.stem} needs --schedule deferred, not {config.schedule}: it has low-rank weights "
            "for its streams and others that tune the base, and a task merges neither"
        )
    own = replace(config, adapter=file, task={}, extra_methods={}, merge_adapter="off")
    # A plain pass cannot carry streams whose weights differ from those of its own rows.
    alone = streams.num_streams and own.carries_alone(streams)
    own = replace(own, widths=tuple(width for width in config.widths if width > 1 or alone))
    return _resolved(own if streams.num_streams else _without_stream_options(own))


def _without_stream_options(config: ExportConfig) -> ExportConfig:
    """`config` with the defaults of all options that have no effect without streams; tasks may have their own."""
    usual: dict[str, Any] = {f.name: f.default for f in fields(ExportConfig)}
    scheme = {part: scheme for part, scheme in config.scheme.items() if part != "streams"}
    return replace(config, scheme=scheme, **{name: usual[name] for name in without_streams(config.adapter_file)})


def _resolved(config: ExportConfig) -> ExportConfig:
    if (file := config.adapter) is None:
        return resolve(config)
    config = replace(config, eos_token_id=adapter_end_token(file))
    streams, state, _ = read_adapter(file)
    if not streams.num_streams:
        return resolve(replace(config, adapter=None, ngrams=file))
    found, widths = resolve(config, streams), LayerWidths.of_adapter(state)
    settled = found.merge_streams != AUTO or 1 in config.widths
    if settled or not widths or not found.keeps_two_kinds or not merging_pays(found, streams, widths):
        return found
    return resolve(replace(config, merge_streams="on"), streams)


def configure(
    output_dir: Path, model: str, adapter: str, options: Mapping[str, Any], offline: bool = False, dry_run: bool = False
) -> tuple[ExportConfig, Choice]:
    """The resolved configuration of an export, and its adapter. A wrong option is refused before a download.

    Args:
        model: a Hub name, a checkpoint folder or a .gguf file.
        adapter: as of `choose_adapter`.
        options: fields of ExportConfig.
        dry_run: the model may lack its weights, and those of a hub model are not downloaded.

    Raises:
        OptionError, CheckpointError, FileNotFoundError: as `resolve_for_adapter` and `choose_adapter`.
    """
    usual = usual_adapter(options)
    first = None if adapter == NO_ADAPTER else find(adapter if is_named(adapter) else usual)
    tasks = {name: find(str(file)) for name, file in options.get("task", {}).items()}
    config = ExportConfig(Path(model), first, output_dir, **{**options, "task": tasks})
    resolve_for_adapter(config)
    folder = resolve_model(model, offline=offline, weights=not dry_run)
    chosen = choose_adapter(adapter, folder, model, usual)
    return resolve_for_adapter(replace(config, model=folder, adapter=chosen.path)), chosen


def usual_adapter(options: Mapping[str, Any]) -> str:
    """The shipped adapter that suits these options: small streams if they have a pass of their own on a CPU."""
    kernels = options.get("target", "executorch") == "executorch" and options.get("backend", AUTO) in (AUTO, "kernels")
    return DEFAULT if kernels and options.get("schedule", "deferred") == "deferred" else DEFAULT_ELSEWHERE


def is_named(requested: str) -> bool:
    """Whether the option names an adapter: it is neither `auto` nor `none`."""
    return requested not in (AUTO, NO_ADAPTER)


def choose_adapter(requested: str, model: Path, model_word: str, usual: str = DEFAULT) -> Choice:
    """The adapter of a model. A named adapter is not checked here: loading it reports a mismatch.

    Args:
        requested: a name, a file, `none`, or `auto`: the shipped adapter if it fits the model, else none.
        model: the checkpoint's folder.
        model_word: the model as the user gave it, for the note.
        usual: the shipped adapter that `auto` takes.

    Raises:
        FileNotFoundError: neither a file nor a shipped adapter has this name.
        CheckpointError: the model's configuration cannot be read.
    """
    if is_named(requested):
        return Choice(find(requested), requested)
    if requested == NO_ADAPTER:
        return Choice(None, requested)
    shipped = find(usual)
    misfit = adapter_misfit(ModelConfig.load(model), shipped)
    if misfit is None:
        return Choice(shipped, usual)
    note = (
        f"no streams: the shipped adapter {usual} does not fit {model_word} ({misfit}); drafts will be look-ups in "
        f"the text. To train streams: streamfuse train --model {model_word} --data answers.jsonl -o build/train/mine, "
        "then export with --adapter build/train/mine/adapter.safetensors"
    )
    return Choice(None, NO_ADAPTER, note)
