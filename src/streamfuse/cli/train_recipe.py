"""`streamfuse train --recipe`: the stages of a recipe, one after another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .console import err, say
from .train import import_main, report, run_config

if TYPE_CHECKING:
    from streamfuse.train.recipe import DistillStage


def run_recipe(
    name: str,
    changes: list[str],
    data_root: Path,
    out_dir: Path,
    adapter: Path,
    model: str,
    resume: bool,
    offline: bool,
) -> None:
    """Run what is not done yet; prints the path of the last stage's adapter."""
    import_main()
    from streamfuse.model.pull import resolve_model
    from streamfuse.train import recipe as recipes

    try:
        recipe = recipes.load(name)
        recipes.change(recipe, dict(_pair(change) for change in changes))
        recipes.stages(recipe, Path(model), data_root, out_dir, adapter)  # a wrong setting is told before a download
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    folder = resolve_model(model, offline=offline)
    stages = recipes.stages(recipe, folder, data_root, out_dir, adapter)
    say(f"{name}: {recipe['about']}")
    for number, stage in enumerate(stages, 1):
        if isinstance(stage, recipes.DistillStage):
            say(f"Stage {number} of {len(stages)}: the model answers {stage.data}.")
            _answer(stage, folder)
        else:
            say(f"Stage {number} of {len(stages)}: training, {stage.mode} mode, {', '.join(stage.data)}.")
            result = run_config(stage, resume)
            if not result.finished or stage is stages[-1]:
                report(result, stage.adapter)


def _answer(stage: DistillStage, model: Path) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.train.dtype import fastest_dtype
    from streamfuse.train.recipe import Answers

    answers = Answers(stage, model)
    columns = (TextColumn("Distilling"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=len(answers.todo))
        for written in answers.write(fastest_dtype()):
            progress.advance(task, written.answers)


def _pair(change: str) -> tuple[str, str]:
    key, equals, value = change.partition("=")
    if not equals:
        raise ValueError(f"--set {change}: expected KEY=VALUE")
    return key.strip(), value.strip()
