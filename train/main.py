"""One training run: stream adapters on a frozen base (lossless mode), resumable at any checkpoint."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from streamfuse.model.checkpoint import load_base, load_stream_fused
from streamfuse.model.config import StreamConfig
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer

from .data import DataError, Example, LowerStates, StreamDataset, choose_stream_vocab, collate, digest_of, read_examples
from .objective import NGramObjective
from .report import AdapterFile, MetricsFile, ProgressBar, StopAfterStep
from .trainer import StreamTrainer

# A run continues only with the settings it began with; paths, epochs and how often to log and save may change.
_FIXED = (
    "streams",
    "batch_size",
    "learning_rate",
    "embedding_learning_rate",
    "max_tokens",
    "held_out",
    "seed",
    "examples",
)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Defaults are those of the shipped chat adapter.

    Attributes:
        model: checkpoint folder of the base.
        data: JSON lines that `streamfuse distill` wrote.
        out_dir: checkpoints, metrics.jsonl, TensorBoard events (runs/), and the cached lower states.
        adapter: the adapter file, written at each evaluation.
        streams: settings of the streams; ignored with init_adapter.
        learning_rate: peak rate of the low-rank adapters (AdamW, 30 warm-up steps, then linear to 0).
        embedding_learning_rate: the same of stream embeddings, parent term and pruner.
        max_tokens: examples are cut there.
        held_out: examples, the first of the file, that are measured and not trained on.
        log_every: in steps.
        evaluate_every: in steps; a checkpoint is saved with each evaluation.
        init_adapter: continue from the weights of this adapter instead of new ones.
    """

    model: Path
    data: Path
    out_dir: Path
    adapter: Path
    streams: StreamConfig = field(default_factory=lambda: StreamConfig(stream_vocab_size=8192))
    epochs: float = 3.0
    batch_size: int = 8
    learning_rate: float = 1e-3
    embedding_learning_rate: float = 1e-2
    max_tokens: int = 320
    held_out: int = 40
    log_every: int = 10
    evaluate_every: int = 60
    seed: int = 0
    init_adapter: Path | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "embedding_learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, it is {getattr(self, name)}")
        for name in ("batch_size", "max_tokens", "held_out", "log_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Where a run stands: `metrics` are the last held-out ones (empty where it was stopped before)."""

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
        resume: continue at the last checkpoint in `config.out_dir`, if there is one; False removes them.
        stop: when set, the run ends after the step at hand with a checkpoint, and the same call continues it.
        console: where progress is drawn; None shows nothing.
        callbacks: more of the Trainer's.

    Raises:
        CheckpointError, DataError: a file cannot be used.
        ValueError: the settings do not fit the model, the data, or the run that would be continued.
    """
    console = console or Console(quiet=True)
    torch.manual_seed(config.seed)
    base = load_base(config.model)
    examples = read_examples(config.data, config.max_tokens, base.config.vocab_size)
    if len(examples) <= config.held_out:
        raise DataError(f"{config.data}: {len(examples)} examples, but held_out takes {config.held_out} of them")
    model = _model(config, base, examples)
    checkpoint = _prepare_folder(config, model, examples, resume)
    lower = _lower_states(config, model, examples, console)
    bar = ProgressBar(console)
    trainer = StreamTrainer(
        model=NGramObjective(model),
        args=_arguments(config),
        train_dataset=StreamDataset(examples, lower, config.held_out, len(examples)),
        eval_dataset=StreamDataset(examples, lower, 0, config.held_out),
        data_collator=collate,
        callbacks=[
            MetricsFile(config.out_dir / "metrics.jsonl"),
            AdapterFile(model, config.adapter, {"data": config.data.name, "examples": str(len(examples))}),
            *([StopAfterStep(stop)] if stop else []),
            bar,
            *callbacks,
        ],
        embedding_learning_rate=config.embedding_learning_rate,
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
        step, max_steps = trainer.state.global_step, trainer.state.max_steps
        return TrainResult(step, max_steps, _held_out(trainer) if step >= max_steps else {})
    finally:
        bar.close()


def _held_out(trainer: StreamTrainer) -> dict[str, float]:
    """The metrics of the last step, measured now where the run did not end with an evaluation."""
    for row in trainer.state.log_history:
        if row.get("step") == trainer.state.global_step and "eval_call_reduction_ratio" in row:
            return {name: value for name, value in row.items() if name.startswith("eval_")}
    return trainer.evaluate()


def _model(config: TrainConfig, base: Transformer, examples: list[Example]) -> StreamFused:
    if config.init_adapter:
        return load_stream_fused(base, config.init_adapter)
    size = config.streams.stream_vocab_size
    vocab = choose_stream_vocab(examples[config.held_out :], size, base.config.vocab_size) if size else None
    return StreamFused(base, config.streams, vocab)


def _prepare_folder(config: TrainConfig, model: StreamFused, examples: list[Example], resume: bool) -> str | None:
    """The checkpoint to continue at, after a check that it is the same run; config.json says what the run is."""
    path = config.out_dir / "config.json"
    config.out_dir.mkdir(parents=True, exist_ok=True)
    if not resume:
        for folder in config.out_dir.glob("checkpoint-*"):
            shutil.rmtree(folder)
    checkpoint: str | None = get_last_checkpoint(str(config.out_dir))
    settings = json.loads(
        json.dumps(
            {**asdict(config), "streams": asdict(model.streams_config), "examples": digest_of(examples)}, default=str
        )
    )
    if checkpoint and path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        for name in _FIXED:
            if name in before and before[name] != settings[name]:
                raise ValueError(
                    f"{config.out_dir}: holds a run with other {name} ({before[name]}, now {settings[name]}); "
                    "give another output folder, or --no-resume to start over"
                )
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return checkpoint


def _lower_states(config: TrainConfig, model: StreamFused, examples: list[Example], console: Console) -> LowerStates:
    columns = (TextColumn("Layers below the streams"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    total = sum(len(example.input_ids) for example in examples)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        return LowerStates(model, examples, config.out_dir / "lower", lambda n: progress.advance(task, n))


def _arguments(config: TrainConfig) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(config.out_dir),
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=30,
        max_grad_norm=1.0,
        logging_steps=config.log_every,
        eval_strategy="steps",
        eval_steps=config.evaluate_every,
        save_steps=config.evaluate_every,
        save_total_limit=2,
        report_to=["tensorboard"] if find_spec("tensorboard") else [],
        seed=config.seed,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
