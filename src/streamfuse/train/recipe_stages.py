"""Run the stages of a recipe that write files of answers or prompts (recipe.py). What a file has already is skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from streamfuse.model.config import ModelConfig
from streamfuse.options import OptionError

from .distill import (
    ANSWER,
    Answering,
    Written,
    check_context,
    distill,
    in_batches,
    load_writer,
    pending,
    provenance_of,
    rows_written,
    summary,
)
from .formats import DataError, Sample
from .prompts import open_text, prompt_items
from .readers import read_samples
from .recipe import DistillStage, SynthesizeStage
from .synthesize import check_prompts, for_bundle, openings, prompt_provenance, synthesize
from .variations import vary_e2e

T = TypeVar("T")


ByBundle = Callable[[DistillStage | SynthesizeStage, Path], Answering]  # exports the model; the bundle then answers


def synthesized(
    stage: SynthesizeStage, model: Path, resume: bool = True, by_bundle: ByBundle | None = None
) -> Iterator[int]:
    """Generate the prompts that the file does not have yet; yields the number of prompts per batch. `resume` and
    `by_bundle`: as in `Answers`."""
    text = open_text(model)
    places, end = openings(text, stage.begin, stage.system, stage.after)
    own = {"bundle": "exported"} if stage.bundle else {}
    provenance = prompt_provenance(stage.config, model, stage.begin, stage.system, stage.after, **own)
    rows = _checked(stage.out, lambda: check_prompts(stage.out, stage.count, provenance, stage.out.stem), resume)
    if len(rows) >= stage.count:
        yield len(rows)
        return
    _check_one_process(stage.out)
    config, context = stage.config, None
    if stage.bundle and by_bundle:
        answering, config = by_bundle(stage, model), for_bundle(config)
    else:
        answering, context = (
            in_batches(load_writer(model, None, config)),
            ModelConfig.load(model).max_position_embeddings,
        )
    with _named(stage):
        yield from synthesize(answering, text, stage.out, stage.count, config, places, end, provenance, context)


class Answers:
    """The remaining work of a distillation stage; answers that are in its file are skipped.

    Args:
        resume: as in `_checked`.
        by_bundle: called if there is something to answer and the stage has `bundle`; exports the model and returns what
            answers.
    """

    def __init__(
        self,
        stage: DistillStage,
        model: Path,
        resume: bool = True,
        by_bundle: ByBundle | None = None,
    ) -> None:
        self.stage, self.model, self._by_bundle = stage, model, by_bundle
        samples = read_samples(stage.data, stage.format)
        if stage.variations:
            prompts = vary_e2e([sample.turns[0] for sample in samples], stage.variations, stage.config.seed)
            samples += [Sample((prompt,)) for prompt in prompts]
        items = prompt_items(samples, open_text(model, stage.adapter), None, stage.config.seed, stage.limit or None)
        # The bundle is the stage's own, so its model says what it is, whatever file it is exported to.
        own = {"bundle": "exported"} if stage.bundle else {}
        self.provenance = provenance_of(stage.config, model, stage.adapter, **own)
        self.todo = _checked(
            stage.out, lambda: pending(items, stage.out, stage.config, self.provenance, stage.out.stem), resume
        )
        self.summary = summary(items, self.todo, stage.config)
        if not self.todo and next(rows_written(stage.out, ANSWER), None) is None:
            raise DataError(
                f"stage {stage.out.stem!r}: all {len(items)} prompts are longer than max_prompt_tokens "
                f"{stage.config.max_prompt_tokens}, so there is nothing to answer; raise it with --set "
                f"{stage.out.stem}.max_prompt_tokens={min(len(item['input_ids']) for item in items)} or more"
            )

    def write(self) -> Iterator[Written]:
        """Generate the rest; yields after each batch."""
        if self.todo:
            _check_one_process(self.stage.out)
            if not self.stage.bundle:
                self._check_context()
            answering = (
                self._by_bundle(self.stage, self.model)
                if self.stage.bundle and self._by_bundle
                else in_batches(load_writer(self.model, self.stage.adapter, self.stage.config))
            )
            yield from distill(answering, self.todo, self.stage.out, self.stage.config, self.provenance)

    def _check_context(self) -> None:
        prompts = [item["input_ids"] for item in self.todo]
        with _named(self.stage):
            check_context(prompts, self.stage.config, ModelConfig.load(self.model).max_position_embeddings)


@contextmanager
def _named(stage: DistillStage | SynthesizeStage) -> Iterator[None]:
    """Names the stage in an OptionError."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"stage {stage.out.stem!r}: {error}") from None


def _check_one_process(out: Path) -> None:
    """Raises OptionError if there are several processes: only one of them could lock and write the file."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise OptionError(
            f"several processes cannot write {out}: start the recipe without a launcher such as `accelerate launch`, "
            "stop it when training begins, and start it with the launcher and --no-resume"
        )


def _checked(out: Path, check: Callable[[], T], resume: bool) -> T:
    """Returns `check()`. Without `resume`, the first process deletes a stage's file that `check` refuses, so that it is
    written again, unless another program wrote it."""
    if resume:
        return check()
    from accelerate import PartialState

    with PartialState().main_process_first():
        try:
            return check()
        except DataError:
            if not _is_own(out):
                raise DataError(
                    f"{out}: not written by a stage of a recipe, so --no-resume does not delete it; move it away, or "
                    "give another --output-dir"
                ) from None
            out.unlink(missing_ok=True)
            return check()


def _is_own(out: Path) -> bool:
    """Whether the first row records how a stage wrote it."""
    try:
        row = next(rows_written(out, ANSWER), {})
    except DataError:
        return False
    return isinstance(row.get("provenance"), dict)
