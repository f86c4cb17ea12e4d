"""`streamfuse train`: stream adapters on a frozen base (lossless mode), with Hugging Face Trainer.

Resumable at any checkpoint, the metrics go to the trainer's log (JSON in each checkpoint), the held-out call-reduction ratio is
measured while training, and the adapter is written atomically with its facts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import get_last_checkpoint

from streamfuse.model.checkpoint import load_base, load_stream_fused, save_adapter
from streamfuse.model.config import StreamConfig
from streamfuse.model.streams import StreamFused

from .data import LowerStates, StreamDataset, choose_stream_vocab, collate, read_examples
from .evaluate import replay
from .objective import NGramObjective


@dataclass(frozen=True)
class TrainConfig:
    """Paths, sizes in examples or tokens, learning rates per step of AdamW. Defaults are those of the shipped chat adapter."""

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
    log_every: int = 20
    evaluate_every: int = 200
    seed: int = 0
    init_adapter: Path | None = None


class StreamTrainer(Trainer):
    """Trainer with two learning rates and the objective's own metrics in the log."""

    def __init__(self, *args: Any, embedding_learning_rate: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.embedding_learning_rate = embedding_learning_rate
        self.running: torch.Tensor | None = None

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler:
        # Batches of similar lengths: padding would be computed like any token.
        lengths = [len(example.input_ids) for example in self.train_dataset.examples]
        generator = torch.Generator().manual_seed(self.args.seed)
        return LengthGroupedSampler(self.args.train_batch_size, lengths=lengths, generator=generator)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            fast, slow = [], []
            for name, parameter in self.model.model.named_parameters():
                if parameter.requires_grad:
                    (slow if name.startswith(("adapters.", "eta.")) else fast).append(parameter)
            groups = [{"params": slow, "lr": self.args.learning_rate}, {"params": fast, "lr": self.embedding_learning_rate}]
            self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=0.0, betas=(0.9, 0.99))
        return self.optimizer

    def compute_loss(self, model: torch.nn.Module, inputs: dict, *args: Any, **kwargs: Any) -> Any:
        out = model(**inputs)
        self.running = out["metrics"] if self.running is None else self.running + out["metrics"]
        return out["loss"]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.running is not None and "loss" in logs:
            loss, plain, hits, plain_hits, count = (self.running / self.running[-1].clamp(min=1)).tolist()
            del loss, plain, count
            logs["accuracy_given_parent"] = [round(x, 3) for x in hits]  # type: ignore[assignment]
            logs["accuracy"] = [round(x, 3) for x in plain_hits]  # type: ignore[assignment]
            logs["tokens"] = int(self.running[-1, 0])
            self.running = None
        super().log(logs, *args, **kwargs)


class HeldOut(TrainerCallback):
    """Prints and records the held-out call-reduction ratio, and keeps the adapter file current."""

    def __init__(self, model: StreamFused, data: StreamDataset, config: TrainConfig) -> None:
        self.model, self.data, self.config = model, data, config

    def measure(self, step: int) -> dict[str, Any]:
        self.model.eval()
        result = replay(self.model, self.data)
        self.model.train()
        row = {"step": step, "call_reduction_ratio": round(result.call_reduction_ratio, 3)}
        row["acceptance_per_depth"] = [round(x, 3) for x in result.acceptance_per_depth]
        print(json.dumps(row), flush=True)
        with (self.config.out_dir / "held_out.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        facts = {"data": self.config.data.name, "steps": str(step), "held_out": json.dumps(row)}
        save_adapter(self.model, self.config.adapter, facts)
        return row

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.config.evaluate_every == 0:
            self.measure(state.global_step)


def run(config: TrainConfig, resume: bool = True) -> dict[str, Any]:
    """Train and write `config.adapter`; returns the last held-out row. A run that was stopped continues at its last checkpoint."""
    torch.manual_seed(config.seed)
    examples = read_examples(config.data, config.max_tokens)
    if len(examples) <= config.held_out:
        raise ValueError(f"{config.data}: {len(examples)} examples, but held_out asks for {config.held_out}")
    base = load_base(config.model)
    if config.init_adapter:
        model = load_stream_fused(base, config.init_adapter)
    else:
        size = config.streams.stream_vocab_size
        vocab = choose_stream_vocab(examples[config.held_out :], size, base.config.vocab_size) if size else None
        model = StreamFused(base, config.streams, vocab)
    config.out_dir.mkdir(parents=True, exist_ok=True)
    settings = asdict(config)
    (config.out_dir / "config.json").write_text(json.dumps(settings, default=str, indent=2) + "\n")
    with Progress() as progress:
        task = progress.add_task("hidden states below the streams", total=sum(len(e.input_ids) for e in examples))
        lower = LowerStates(model, examples, config.out_dir / "lower", lambda n: progress.advance(task, n))
    callback = HeldOut(model, StreamDataset(examples, lower, 0, config.held_out), config)
    arguments = TrainingArguments(
        output_dir=str(config.out_dir),
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=30,
        max_grad_norm=1.0,
        logging_steps=config.log_every,
        save_steps=config.evaluate_every,
        save_total_limit=2,
        report_to=[],
        seed=config.seed,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = StreamTrainer(
        model=NGramObjective(model).train(),
        args=arguments,
        train_dataset=StreamDataset(examples, lower, config.held_out, len(examples)),
        data_collator=collate,
        callbacks=[callback],
        embedding_learning_rate=config.embedding_learning_rate,
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(config.out_dir)) if resume else None)
    return callback.measure(trainer.state.global_step)
