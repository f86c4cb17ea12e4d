"""Which streams an export has: those of an adapter that somebody names, of the shipped one where it fits, or none; and
the plan that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamfuse.adapters import DEFAULT, find
from streamfuse.model.checkpoint import adapter_misfit, read_adapter
from streamfuse.model.config import ModelConfig

from .choices import AUTO
from .plan import ExportPlan
from .plan_file import NO_ADAPTER


@dataclass(frozen=True, slots=True)
class Choice:
    """An adapter's file or None, the word for it in a report, and where there is one a line for the user."""

    path: Path | None
    word: str
    note: str | None = None


def load_plan(model: Path, adapter: Path | None, output_dir: Path, **options: Any) -> ExportPlan:
    """The plan of these options, with the defaults that suit the adapter's streams.

    Raises:
        PlanError: an option is out of range.
        CheckpointError: the adapter's file cannot be read.
    """
    streams = None if adapter is None else read_adapter(adapter)[0]
    return ExportPlan(model, adapter, output_dir, streams, **options)


def is_named(said: str) -> bool:
    """Whether somebody names an adapter: neither `auto` nor `none`."""
    return said not in (AUTO, NO_ADAPTER)


def choose_adapter(said: str, model: Path, model_word: str) -> Choice:
    """The adapter of a model. One that is named is taken as it is: where it does not fit, loading it says so.

    Args:
        said: a name, a file, `none`, or `auto`: the shipped one where it fits the model, else none.
        model: the checkpoint's folder.
        model_word: what the user called it, for the note.

    Raises:
        FileNotFoundError: there is no such file, and none of this name ships.
        CheckpointError: the model's configuration cannot be read.
    """
    if is_named(said):
        return Choice(find(said), said)
    if said == NO_ADAPTER:
        return Choice(None, said)
    shipped = find(DEFAULT)
    misfit = adapter_misfit(ModelConfig.load(model), shipped)
    if misfit is None:
        return Choice(shipped, DEFAULT)
    note = (
        f"no streams: the shipped adapter {DEFAULT} does not fit {model_word} ({misfit}); drafts will be look-ups in "
        f"the text. To train streams: streamfuse train --model {model_word} --data answers.jsonl -o build/train/mine, "
        "then export with --adapter build/train/mine/adapter.safetensors"
    )
    return Choice(None, NO_ADAPTER, note)
