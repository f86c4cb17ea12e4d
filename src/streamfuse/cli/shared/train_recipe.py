"""`streamfuse train --recipe`: the stages of a recipe, one after another."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from streamfuse.cli.shared.console import err, say
from streamfuse.cli.shared.training import import_main, report, run_config
from streamfuse.durable import write_text
from streamfuse.json_text import dump_strict
from streamfuse.options import OptionError

if TYPE_CHECKING:
    from streamfuse.train.config import TrainConfig
    from streamfuse.train.distill import Answering
    from streamfuse.train.recipe import DistillStage, SynthesizeStage

_CONTEXT_STEP, _LEAST_STEPS = 32, 4  # the exported context is a multiple of the step, and at least so many


def run_recipe(
    name: str,
    changes: list[str],
    sweep: str | None,
    data_root: Path,
    out_dir: Path,
    adapter: Path,
    model: str,
    resume: bool,
    offline: bool,
) -> None:
    """Run what is not done yet; prints the path of the last stage's adapter, or of a sweep's table."""
    import_main()
    from streamfuse.model.pull import resolve_model
    from streamfuse.train import recipe as recipes

    try:
        recipe = recipes.load(name)
        recipes.change(recipe, dict(_pair(change) for change in changes))
        variants = recipes.variants(recipe, *_pair(sweep)) if sweep else {}
        for one in (recipe, *variants.values()):  # a wrong setting is told before a download
            recipes.stages(one, Path(model), data_root, out_dir, adapter)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    folder = resolve_model(model, offline=offline)
    stages = recipes.stages(recipe, folder, data_root, out_dir, adapter)
    say(f"{name}: {recipe['about']}")
    for number, stage in enumerate(stages[:-1] if sweep else stages, 1):
        say(f"Stage {number} of {len(stages)}.")
        if isinstance(stage, recipes.SynthesizeStage):
            _synthesize(stage, folder, resume)
        elif isinstance(stage, recipes.DistillStage):
            _answer(stage, folder, resume)
        else:
            result = run_config(stage, resume, more=stage is not stages[-1])
            if not result.finished or stage is stages[-1]:
                report(result, stage.adapter)
    if sweep:
        last = {value: recipes.stages(one, folder, data_root, out_dir, adapter)[-1] for value, one in variants.items()}
        _sweep(cast("dict[str, TrainConfig]", last), out_dir, _pair(sweep)[0], resume)


def _sweep(stages: dict[str, TrainConfig], out_dir: Path, key: str, resume: bool) -> None:
    """The last stage once per value, in folders of their own; a JSON table of what each came to."""
    rows = []
    for number, (value, stage) in enumerate(stages.items(), 1):
        here = out_dir / f"{key}={value}"
        say(f"{key} = {value}")
        own = replace(stage, out_dir=here, adapter=here / "adapter.safetensors")
        result = run_config(own, resume, more=number < len(stages))
        if not result.finished:
            report(result, here / "adapter.safetensors")
        rows.append({key: value, "steps": result.step, **result.metrics})
    table = out_dir / f"sweep-{key}.json"
    write_text(table, dump_strict(rows, indent=2) + "\n")
    for row in rows:
        ratios = [f"{row[name]:.2f}" for name in row if name.endswith("_nodes")]
        say(f"{key} = {row[key]}: held-out call-reduction ratio {' / '.join(ratios)}")
    print(table)


def _answer(stage: DistillStage, model: Path, resume: bool) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.train.recipe_stages import Answers

    answers = Answers(stage, model, resume, _by_bundle)
    say(answers.summary)
    columns = (TextColumn("Distilling"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=len(answers.todo))
        for written in answers.write():
            progress.advance(task, written.answers)


def _by_bundle(stage: DistillStage | SynthesizeStage, model: Path) -> Answering:
    """What answers for a stage with `bundle`: a bundle of its model, which is exported once, beside the answers."""
    from streamfuse.bundle import BundleError, open_bundle
    from streamfuse.cli.shared.bundle_answers import by_bundle
    from streamfuse.cli.shared.exporting import run_with_progress
    from streamfuse.export.adapter import configure
    from streamfuse.export.preview import preview
    from streamfuse.model.checkpoint import adapter_digest, load_config
    from streamfuse.model.shards import checkpoint_digest
    from streamfuse.train.recipe import DistillStage

    tuned = stage.adapter if isinstance(stage, DistillStage) else None
    tokens = stage.config.max_prompt_tokens + stage.config.max_new_tokens
    most = load_config(model).max_position_embeddings
    context = max(-(-tokens // _CONTEXT_STEP), _LEAST_STEPS) * _CONTEXT_STEP
    if context > most:
        raise OptionError(
            f"stage {stage.out.stem!r}: max_prompt_tokens and max_new_tokens must be at most {most} together, which is "
            f"the model's context, not {tokens}"
        )
    parts = checkpoint_digest(model), tuned and adapter_digest(tuned), context
    folder = stage.out.with_name(f"bundle-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}")
    try:
        bundle = open_bundle(folder)
    except BundleError:
        say(
            f"Exporting a bundle to {folder}; it will generate the text. With --set {stage.out.stem}.bundle=false "
            "PyTorch does."
        )
        adapter = str(tuned) if tuned else "none"
        config, _ = configure(folder, str(model), adapter, {"max_context_len": context, "overwrite": True})
        run_with_progress(config, preview(config), {"model": str(model), "adapter": adapter})
        bundle = open_bundle(folder)
    return by_bundle(bundle)


def _synthesize(stage: SynthesizeStage, model: Path, resume: bool) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.train.recipe_stages import synthesized

    columns = (TextColumn("Prompts"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=stage.count)
        for added in synthesized(stage, model, resume, _by_bundle):
            progress.advance(task, added)


def _pair(change: str) -> tuple[str, str]:
    key, equals, value = change.partition("=")
    if not equals:
        raise ValueError(f"--set and --sweep: expected KEY=VALUE, for example epochs=2, not {change}")
    return key.strip(), value.strip()
