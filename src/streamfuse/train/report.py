"""Callbacks of a training run: metrics, adapter file, progress bar, intervals, old checkpoints, stopping early."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from streamfuse.durable import write_text
from streamfuse.json_text import dump_strict
from streamfuse.model.checkpoint import save_adapter
from streamfuse.model.streams import StreamFused

from .formats import DataError
from .plot import plot_metrics


class MetricsFile(TrainerCallback):
    """Appends one JSON object per log, with its step. A resumed run drops rows after its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        kept = [line for line in lines if _step(line) <= state.global_step]
        write_text(self.path, "".join(line + "\n" for line in kept if state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(dump_strict({"step": state.global_step, **(logs or {})}) + "\n")


def _step(line: str) -> float:
    """The step of a row; an unfinished line counts as after every checkpoint."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def check_finite(step: int, values: Mapping[str, float]) -> None:
    """DataError if a run has diverged: a value, by its name, is not finite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise DataError(
                f"step {step}: the {name} is {value}, so the run has diverged; start over with a lower --learning-rate "
                "and --no-resume, or keep the adapter of the last evaluation, if there was one"
            )


class AdapterFile(TrainerCallback):
    """Writes the adapter after each evaluation, so that a recent one always exists.

    Place it after the callbacks that ask for a checkpoint: a diverged run then writes neither checkpoint nor adapter.
    """

    def __init__(self, model: StreamFused, path: Path, facts: dict[str, str]) -> None:
        self.model, self.path, self.facts = model, path, facts

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._check(state.global_step)

    def _check(self, step: int) -> None:
        """Runs in every process, so that none waits for another. Between two logs, a loss that is not finite shows only
        in the weights."""
        trained = (parameter for parameter in self.model.parameters() if parameter.requires_grad)
        means = torch.stack([parameter.detach().float().mean() for parameter in trained])
        check_finite(step, {"mean of trained weights": float(means.mean())})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self._check(state.global_step)
        if state.is_world_process_zero:
            held_out = dump_strict(metrics)
            save_adapter(self.model, self.path, {**self.facts, "steps": str(state.global_step), "held_out": held_out})


class PlotFile(TrainerCallback):
    """Plots the run's metrics if matplotlib is installed: after the last evaluation, and before it after evaluations
    that are at least `SECONDS` apart, since a plot takes as long as many steps of a small model."""

    SECONDS = 30.0

    def __init__(self, metrics: Path, path: Path) -> None:
        self.metrics, self.path = metrics, path
        self._plotted = time.monotonic()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = state.global_step >= state.max_steps or time.monotonic() - self._plotted >= self.SECONDS
        if state.is_world_process_zero and due and find_spec("matplotlib"):
            plot_metrics(self.metrics, self.path)
            self._plotted = time.monotonic()


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; `checkpoint-best` is none of them."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*") if path.is_dir()}
    return sorted((path for path, step in steps.items() if step.isdecimal()), key=lambda path: int(steps[path]))


class LastCheckpoints(TrainerCallback):
    """Keeps the last two. The Trainer's `save_total_limit` could delete other folders named `checkpoint-*` too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            for old in checkpoints(self.folder)[:-2]:
                shutil.rmtree(old, ignore_errors=True)


class StopAfterStep(TrainerCallback):
    """Ends a run after the current step, with a checkpoint, once `event` is set (for example by a signal handler).

    `any_of` is a collective call that returns whether any process passed true: if one stopped alone, the others would
    wait for its gradients forever.
    """

    def __init__(self, event: threading.Event, any_of: Callable[[bool], bool] = lambda value: value) -> None:
        self.event, self._any_of = event, any_of

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._any_of(self.event.is_set()):
            control.should_training_stop = control.should_save = True


class OwnIntervals(TrainerCallback):
    """Logs, evaluates and saves at the intervals of this call; a resumed run would keep those of its checkpoint."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)


class ProgressBar(TrainerCallback):
    """Steps, loss, held-out call-reduction ratio and trained tokens per second, on a console."""

    def __init__(self, console: Console) -> None:
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        steps = (TextColumn("Training"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*steps, *times, TextColumn("{task.description}"), console=console)
        self._console = console
        self._shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._task = self._progress.add_task("", total=state.max_steps, completed=state.global_step)
        self._progress.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            self._shown["loss"] = f"{logs['loss']:.3f}"
            self._shown["tokens/s"] = f"{logs.get('trained_tokens_per_second', 0):.0f}"
        if "eval_call_reduction_ratio" in logs:
            self._shown["tokens/pass"] = f"{logs['eval_call_reduction_ratio']:.2f}"
            self._console.print(_held_out_line(state.global_step, logs), soft_wrap=True)
        self._progress.update(self._task, description="  ".join(f"{k} {v}" for k, v in self._shown.items()))

    def close(self) -> None:
        """Restore the terminal, also after an error."""
        self._progress.stop()


def _held_out_line(step: int, metrics: dict[str, Any]) -> str:
    """Ratios per width, acceptance per depth, and per rank of the first depth."""
    ratios = {name.split("_")[-2]: value for name, value in metrics.items() if name.endswith("_nodes")}
    ranks = [value for name, value in metrics.items() if "_rank_" in name]
    depths = [
        value for name, value in metrics.items() if name.startswith("eval_acceptance_depth_") and "_rank_" not in name
    ]
    return (
        f"step {step}: held-out call-reduction ratio {_listed(ratios.values())} with {'/'.join(ratios)} nodes; "
        f"acceptance per depth {_listed(depths)}, per rank at depth 1 {_listed(ranks)}"
    )


def _listed(values: Iterable[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
