"""One training run, resumable at any checkpoint, in one of three modes.

lossless: the base is frozen, and streams learn to draft its text. shared: low-rank adapters of the base apply to main
rows and streams, and are merged at export. base: those adapters only, without streams (the baseline of shared mode).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from streamfuse.durable import write_text
from streamfuse.model.checkpoint import (
    adapter_digest,
    adapter_end_token,
    adapter_misfit,
    base_facts,
    ending_as,
    load_base,
    load_stream_fused,
    read_adapter,
)
from streamfuse.model.config import ModelConfig, StreamConfig
from streamfuse.model.fields import CheckpointError, read_object
from streamfuse.model.shards import checkpoint_digest, read_header
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer
from streamfuse.options import AUTO, OptionError
from streamfuse.paths import own_name

from .config import Dtype, TrainConfig
from .data import (
    FrozenStates,
    Share,
    Stopped,
    StreamDataset,
    choose_stream_vocab,
    collate,
    digest_of,
    split_held_out,
    without_prompts_of,
)
from .dtype import NAMES, choose_dtype, name_of
from .evaluate import own_text
from .formats import DataError, Example, Sample
from .ngram_counts import count_ngrams
from .objective import NGramObjective
from .prompts import open_text
from .readers import merged, read_samples, spread, to_examples
from .report import (
    AdapterFile,
    LastCheckpoints,
    MetricsFile,
    OwnIntervals,
    PlotFile,
    ProgressBar,
    StopAfterStep,
    checkpoints,
)
from .templates import TEMPLATES
from .trainer import StreamTrainer, examples_per_step

# A run resumes only with the settings it began with; paths, epochs and intervals of logging and saving may change.
_FIXED = (
    "base",
    "mode",
    "streams",
    "alpha_main",
    "alpha_streams",
    "stream_decay",
    "next_token_dropout",
    "anchors",
    "soft_targets",
    "dtype",
    "global_batch_size",
    "optimizer",
    "learning_rate",
    "embedding_learning_rate",
    "max_tokens",
    "held_out",
    "seed",
)
# Files, compared by content, and their names in error messages.
_CONTENTS = {
    "examples": "set of examples",
    "model_digest": "base model",
    "base_adapter_digest": "--base-adapter",
    "init_adapter_digest": "--init-adapter",
}

_START_OVER = "add --no-resume to start over, or give another --output-dir"
_PROMPTS, _PROMPT_TOKENS = 8, 200  # maximum number and length of held-out prompts stored in an adapter file


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The state of a run: `metrics` are the last held-out ones (empty if it was interrupted before)."""

    step: int
    max_steps: int
    metrics: dict[str, float]

    @property
    def finished(self) -> bool:
        return self.step >= self.max_steps


def run(
    config: TrainConfig,
    resume: bool = True,
    *,
    stop: threading.Event | None = None,
    console: Console | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> TrainResult:
    """Train and write `config.adapter`.

    Args:
        resume: continue from the last checkpoint in `config.out_dir`, if any; False deletes the checkpoints.
        stop: when set, the run ends after the current step with a checkpoint, or, if it is set in any process before
            the first step, after the current batch of the frozen layers. The same call resumes it.
        console: for progress output; None shows nothing.
        callbacks: additional callbacks of the Trainer.

    Raises:
        CheckpointError, DataError: a file cannot be used.
        ValueError: the settings do not fit the model, the data, or the run that would be resumed.
    """
    console = console or Console(quiet=True)
    torch.manual_seed(config.seed)
    arguments = _arguments(config)
    before = _settings_before(config.out_dir / "config.json", resume)
    config = replace(config, dtype=_dtype_name(config, arguments, before if resume else {}))
    base = load_base(config.model, choose_dtype(config.dtype, arguments.device))
    base.config = ending_as(base.config, _adapter_before(config))
    chat_template = _chat_template(config)
    examples, held_out = _examples(config, base.config, chat_template, _teller(arguments, console))
    model = _model(config, base, examples).to(arguments.device)  # before the Trainer, for the frozen layers
    failure = None
    if arguments.local_process_index == 0:
        try:
            _prepare_folder(config, model, examples, examples_per_step(arguments), before, resume)
        except Exception as error:
            failure = error
    for found in filter(None, gather_object([failure])):  # in every process, so that none waits for the first one
        raise found
    checkpoint = _last_whole_checkpoint(config.out_dir)
    n_done, max_steps = _step_of(checkpoint), _max_steps(config, examples, arguments)
    data, share = None, _share(arguments)
    if n_done < max_steps:
        try:
            data = StreamDataset(examples, _frozen_states(config, model, examples, console, share, stop))
        except Stopped:
            return TrainResult(n_done, max_steps, {})
    bar = ProgressBar(console)
    objective = NGramObjective(
        model,
        0.0 if config.mode == "lossless" else config.alpha_main,
        0.0 if config.mode == "base" else config.alpha_streams,
        config.soft_targets,
        config.stream_decay,
        config.next_token_dropout,
    )
    facts = {
        "prompts": json.dumps(_short_prompts(held_out)),  # for the exporter's calibration
        "mode": config.mode,
        "data": ", ".join(own_name(source) for source in config.data),
        "examples": str(len(examples)),
    }
    if chat_template:
        facts["chat_template"] = chat_template
    if (before_adapter := _adapter_before(config)) and (end := adapter_end_token(before_adapter)) is not None:
        facts["eos_token_id"] = str(end)
    adapter = AdapterFile(model, config.adapter, facts)
    trainer = StreamTrainer(
        model=objective,
        args=arguments,
        train_dataset=data,
        eval_dataset=held_out,
        data_collator=collate,
        callbacks=[
            OwnIntervals(),
            *([StopAfterStep(stop, share.any_of)] if stop else []),
            LastCheckpoints(config.out_dir),
            MetricsFile(config.out_dir / "metrics.jsonl"),
            adapter,
            PlotFile(config.out_dir / "metrics.jsonl", config.out_dir / "metrics.png"),
            bar,
            *callbacks,
        ],
        optimizer_name=config.optimizer,
        embedding_learning_rate=config.embedding_learning_rate,
        held_out_text=_held_out_text(model, held_out),
        anchors=config.anchors,
    )
    trainer.remove_callback(PrinterCallback)
    try:
        if checkpoint and data is None:
            trainer.take_checkpoint(checkpoint)
        else:
            trainer.train(resume_from_checkpoint=checkpoint)
        step = trainer.state.global_step
        metrics = _last_metrics(trainer) if step >= max_steps else {}
        if step >= max_steps and (data is None or not config.adapter.is_file()):  # its settings may have changed
            adapter.on_evaluate(arguments, trainer.state, trainer.control, metrics)
        return TrainResult(step, max_steps, metrics)
    finally:
        bar.close()


def _teller(arguments: TrainingArguments, console: Console) -> Callable[[str], None]:
    """Prints a line in the first process only, since all read the same data."""
    first = arguments.local_process_index == 0
    return partial(console.print, soft_wrap=True, markup=False) if first else lambda line: None


def _examples(
    config: TrainConfig, model: ModelConfig, chat_template: str | None, tell: Callable[[str], None]
) -> tuple[list[Example], list[Example]]:
    """Training examples and held-out ones; `tell` is called with what is left out of the answers, if anything."""
    names = ", ".join(config.data)
    encoded = partial(_encoded, config, model, chat_template, tell)
    samples = [
        sample for source in config.data for sample in spread(read_samples(source, config.format), config.limit or None)
    ]
    if config.valid:
        # One reference per prompt: with k, it would be counted k times and, in shared mode, answered k times.
        asked = spread(merged(read_samples(config.valid, config.format, split="validation")), config.held_out)
        first = [replace(sample, references=sample.references[:1]) for sample in asked]
        held_out = encoded(first, config.valid)
        trained = without_prompts_of(held_out, encoded(samples, names))
        if not trained:
            raise DataError(
                f"{names}: no examples are left to train on, because --valid {config.valid} has all of their prompts"
            )
        return trained, held_out
    examples = encoded(samples, names)
    if len(examples) <= config.held_out:
        raise DataError(
            f"{names}: no examples are left to train on: there are {len(examples)}, and --held-out takes "
            f"{config.held_out} of them; give more data or a smaller --held-out"
        )
    return split_held_out(examples, config.held_out)


def _short_prompts(examples: list[Example]) -> list[list[int]]:
    """A few prompts as token ids, evenly spaced over the examples."""
    prompts = [example.input_ids[: example.start] for example in examples if example.start <= _PROMPT_TOKENS]
    return prompts[:: max(1, len(prompts) // _PROMPTS)][:_PROMPTS]


def _encoded(
    config: TrainConfig,
    model: ModelConfig,
    chat_template: str | None,
    tell: Callable[[str], None],
    samples: list[Sample],
    source: str,
) -> list[Example]:
    """Distilled samples are token ids already; others need the tokenizer."""
    text = None
    if not all(sample.ids for sample in samples):
        text = open_text(config.model, _adapter_before(config), chat_template=chat_template)
    examples = to_examples(samples, text, model.eos_token_id, config.max_tokens, model.vocab_size, source, tell)
    longest, most = max(len(example.input_ids) for example in examples), model.max_position_embeddings
    if longest > most:
        raise OptionError(
            f"{source}: an example has {longest} tokens, more than the model's context of {most}; lower --max-tokens "
            f"({config.max_tokens})"
        )
    return examples


def _chat_template(config: TrainConfig) -> str | None:
    """The task's chat template, else that of the adapter which training starts from; None: the model's own."""
    if own := TEMPLATES[config.task].chat_template:
        return own
    before = _adapter_before(config)
    return read_adapter(before)[2].get("chat_template") if before else None


def _adapter_before(config: TrainConfig) -> Path | None:
    """The adapter that training starts from; None: the base alone."""
    return config.init_adapter or config.base_adapter


def _held_out_text(model: StreamFused, held_out: list[Example]) -> Callable[[], list[Example]]:
    """The texts to replay: the held-out completions or, while the base is being tuned, its current answers."""
    if not model.tunes_base:
        return lambda: held_out
    prompts = [example.input_ids[: example.start] for example in held_out]
    longest = max(len(example.input_ids) - example.start for example in held_out)
    return lambda: own_text(model, prompts, longest + longest // 4)


def _last_metrics(trainer: StreamTrainer) -> dict[str, float]:
    """The metrics of the last step, measured now if the run did not end with an evaluation."""
    for row in trainer.state.log_history:
        if row.get("step") == trainer.state.global_step and "eval_call_reduction_ratio" in row:
            return {name: value for name, value in row.items() if name.startswith("eval_")}
    return trainer.evaluate()


def _model(config: TrainConfig, base: Transformer, examples: list[Example]) -> StreamFused:
    if config.init_adapter:
        model = load_stream_fused(base, config.init_adapter, merge=False)
        _check_trained_parts(config, model.streams_config)
        if config.widen:
            size = config.widen.get("stream_vocab_size", len(model.stream_vocab)) or base.config.vocab_size
            wider = choose_stream_vocab(examples, size, base.config.vocab_size, model.stream_vocab)
            model = model.widened(wider, **config.widen)
    else:
        streams, tuned = config.streams, {}
        if config.base_adapter:
            before, state, _ = read_adapter(config.base_adapter)
            misfit = adapter_misfit(base.config, config.base_adapter)
            if misfit is None and not before.base_rank:
                misfit = "it does not tune the base"
            if misfit is not None:
                raise CheckpointError(f"--base-adapter {config.base_adapter}: {misfit}")
            streams = replace(
                streams, base_rank=before.base_rank, base_layers=before.base_layers, base_alpha=before.base_alpha
            )
            tuned = {name: value for name, value in state.items() if name.startswith("base_adapters.")}
        model = StreamFused(base, streams, _stream_vocab(streams, examples, base.config.vocab_size))
        model.load_state_dict(tuned, strict=False)
    for name, parameter in model.named_parameters():
        is_tuned = name.startswith("base_adapters.")
        frozen = name.startswith("base.") or (config.mode == "lossless" and is_tuned)
        parameter.requires_grad_(not (frozen or (config.mode == "base" and not is_tuned)))
    # Heads are evaluated as published; an adapter's existing table may know more text than these examples.
    if config.mode != "base" and not (model.streams_config.heads or model.ngrams):
        model.ngrams = count_ngrams(examples, base.config.vocab_size)
    return model


def _stream_vocab(streams: StreamConfig, examples: list[Example], vocab_size: int) -> Tensor | None:
    """The stream vocabulary of new streams; None: all tokens."""
    if not streams.num_streams:
        return torch.zeros(0, dtype=torch.int64)
    size = streams.stream_vocab_size
    return choose_stream_vocab(examples, size, vocab_size) if size else None


def _check_trained_parts(config: TrainConfig, streams: StreamConfig) -> None:
    """CheckpointError if `--init-adapter` lacks what the mode trains."""
    if config.mode != "lossless" and not streams.base_rank:
        raise CheckpointError(
            f"--init-adapter {config.init_adapter}: it does not tune the base, which --mode {config.mode} trains"
        )
    if config.mode != "base" and not streams.num_streams:
        raise CheckpointError(
            f"--init-adapter {config.init_adapter}: it has no streams, which --mode {config.mode} trains; for new "
            "streams on its tuned base, if it has one, give it as --base-adapter"
        )


def _prepare_folder(
    config: TrainConfig,
    model: StreamFused,
    examples: list[Example],
    global_batch_size: int,
    before: dict[str, Any],
    resume: bool,
) -> None:
    """Check that the checkpoint in the folder, if any, is of the same run; write config.json.

    `before` are the settings of the run in the folder.
    """
    path = config.out_dir / "config.json"
    config.out_dir.mkdir(parents=True, exist_ok=True)
    if not resume:
        for folder in checkpoints(config.out_dir):
            shutil.rmtree(folder)
    checkpoint = _last_whole_checkpoint(config.out_dir)
    own = {
        "base": base_facts(model.base.config),
        "streams": asdict(model.streams_config),
        "global_batch_size": global_batch_size,
        "learning_rate": config.peak_learning_rate,
    }
    contents = {
        "examples": digest_of(examples),
        "model_digest": checkpoint_digest(config.model),
        "base_adapter_digest": config.base_adapter and adapter_digest(config.base_adapter),
        "init_adapter_digest": config.init_adapter and adapter_digest(config.init_adapter),
    }
    settings = json.loads(json.dumps({**asdict(config), **own, **contents}, default=str))
    if checkpoint:
        for name in (*_FIXED, *_CONTENTS):
            if before.get(name) != settings[name]:
                raise ValueError(
                    f"{config.out_dir}: the run in it {_difference(name, before, settings)}, so it cannot be resumed; "
                    f"{_START_OVER}"
                )
        _check_checkpoint(Path(checkpoint))
    write_text(path, json.dumps(settings, indent=2) + "\n")


def _dtype_name(config: TrainConfig, arguments: TrainingArguments, before: dict[str, Any]) -> Dtype:
    """The dtype of the base. With `auto` it is that of the run to be resumed, else what the first process finds to be
    faster: it is measured, so two processes or two runs could disagree."""
    name = before["dtype"] if config.dtype == AUTO and before.get("dtype") in NAMES else config.dtype
    found: list[Dtype] = gather_object([name_of(choose_dtype(name, arguments.device))])
    return found[0]


def _settings_before(path: Path, resume: bool) -> dict[str, Any]:
    """The settings of the run in this folder; empty if there is none, or if it is damaged and not to be resumed.

    Raises:
        ValueError: the file is damaged, or not a run's: in a model's folder it would be overwritten; or it is missing
            beside checkpoints, which may be another program's.
    """
    try:
        found = read_object(path)
    except CheckpointError as error:
        if any(next(path.parent.glob(name), None) for name in ("tokenizer*", "model*.safetensors")):
            raise ValueError(f"{error}; it is in a model's folder, so give another --output-dir") from None
        if resume:
            raise ValueError(f"{error}, so the run cannot be resumed; {_START_OVER}") from None
        return {}
    if path.is_file() and not {"out_dir", "streams"} <= found.keys():
        raise ValueError(f"{path}: not written by a training run, and would be overwritten; give another --output-dir")
    if not found and checkpoints(path.parent):
        raise ValueError(
            f"{path}: missing, so the checkpoints beside it may be another program's; delete them yourself, or give "
            "another --output-dir"
        )
    return found


def _difference(name: str, before: dict[str, Any], settings: dict[str, Any]) -> str:
    """Describes how a run's setting differs from these settings; for a group, only the entries that differ."""
    if what := _CONTENTS.get(name):
        if name not in before:
            return f"does not record its {what}"
        return f"has no {what}" if before[name] is None else f"has another {what}"
    was, now = before.get(name), settings[name]
    if name == "global_batch_size":
        what = "examples per step (--batch-size times processes)"
        return f"does not record its {what}" if was is None else f"has {was} {what}, not {now}"
    if isinstance(was, dict):
        names = [entry for entry in now if was.get(entry) != now[entry]]
        was, now = {entry: was.get(entry) for entry in names}, {entry: now[entry] for entry in names}
    return f"has {name} {was}, not {now}"


def _check_checkpoint(folder: Path) -> None:
    """DataError if a file of a checkpoint is damaged; PyTorch's errors would not name it."""
    weights = folder / "model.safetensors"
    # Without these, the Trainer would resume with a fresh optimizer and schedule.
    required = {folder / name for name in ("optimizer.pt", "scheduler.pt")}
    archives = sorted({*required, *folder.glob("*.pt"), *folder.glob("*.pth")})
    try:
        read_header(weights)
        damaged = [path for path in archives if not is_zipfile(path) or ZipFile(path).testzip()]
        if not any(folder.glob("rng_state*.pth")):
            damaged.append(folder / "rng_state.pth")
    except CheckpointError:
        damaged = [weights]
    if damaged:
        raise DataError(
            f"{damaged[0]}: missing or damaged; delete the folder {folder.name} to resume from the checkpoint before "
            "it, or add --no-resume to start over"
        )


def _last_whole_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint. An incomplete newer one of a killed run is removed, so the folder must be a
    run's (`_settings_before`)."""
    while checkpoint := get_last_checkpoint(str(folder)):
        try:
            json.loads((Path(checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))  # written last
            return str(checkpoint)
        except (OSError, ValueError):
            shutil.rmtree(checkpoint)
    return None


def _share(arguments: TrainingArguments) -> Share:
    """This process's share of the work among the processes of this machine, as numbered by their launcher."""

    def any_of(value: bool) -> bool:
        return any(gather_object([value]))

    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if arguments.world_size > 1 else 1
    return Share(arguments.local_process_index, count, PartialState().wait_for_everyone, any_of)


def _frozen_states(
    config: TrainConfig,
    model: StreamFused,
    examples: list[Example],
    console: Console,
    share: Share,
    stop: threading.Event | None,
) -> FrozenStates:
    columns = (TextColumn("Frozen layers"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    total = sum(len(example.input_ids) for example in examples)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        advance = partial(progress.advance, task)
        asked = stop.is_set if stop else lambda: False
        states = FrozenStates(model, examples, config.out_dir / "frozen", advance, share, asked)
    if share.index == 0:  # the other processes of the run have the same file
        states.delete_others()
    return states


def _max_steps(config: TrainConfig, examples: list[Example], arguments: TrainingArguments) -> int:
    """The number of steps after which a run is finished, as the Trainer counts them."""
    steps_per_epoch = math.ceil(len(examples) / examples_per_step(arguments))
    return config.max_steps or math.ceil(config.epochs * steps_per_epoch)


def _step_of(checkpoint: str | None) -> int:
    return int(read_object(Path(checkpoint) / "trainer_state.json")["global_step"]) if checkpoint else 0


def _arguments(config: TrainConfig) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(config.out_dir),
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.peak_learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=30,
        max_grad_norm=1.0,
        logging_steps=config.log_every,
        eval_strategy="steps",
        eval_steps=config.evaluate_every,
        save_steps=config.evaluate_every,
        save_total_limit=None,  # LastCheckpoints deletes them
        report_to=["tensorboard"] if find_spec("tensorboard") else [],
        seed=config.seed,
        disable_tqdm=True,
        logging_nan_inf_filter=False,  # it would log the losses of a diverged run as 0
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    if arguments.n_gpu > 1:  # without a launcher, DataParallel would divide the batches, and packed ones cannot be
        arguments._n_gpu = 1
    return arguments
