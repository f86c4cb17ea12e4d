"""Hugging Face Trainer for stream adapters: order of the data, learning rates, and metrics during training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_pt_utils import get_length_grouped_indices

from .data import Example, StreamDataset, draw_anchors
from .evaluate import replay
from .objective import NGramObjective
from .optimizer import make_optimizer
from .report import check_finite

EVALUATION_WIDTHS = (8, 16, 64)  # nodes, including the root; the second is the main metric


def examples_per_step(arguments: TrainingArguments) -> int:
    """Examples per step over all processes, on which the length of an epoch and the order of its batches depend."""
    return int(arguments.train_batch_size * arguments.world_size)


class LengthGrouped(Sampler[int]):
    """Batches of similar lengths (padding would be computed like any token), in a different order in each epoch.

    The order depends on seed and epoch only, so a run that was interrupted in any epoch resumes with the same batches.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epoch):  # advances the generator past earlier epochs
            torch.randperm(len(self.lengths), generator=generator)
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class SetsEpoch(TrainerCallback):
    """Tells the sampler the epoch: with several processes, the Trainer does not reach it through the loader of a
    resumed epoch."""

    def __init__(self, trainer: StreamTrainer) -> None:
        self._trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if (sampler := self._trainer.sampler) is not None:
            sampler.set_epoch(state.global_step // math.ceil(len(sampler) / sampler.batch_size))


class StreamTrainer(Trainer):
    """Trains an `NGramObjective`; "evaluation" is the exact replay of held-out texts."""

    model: NGramObjective
    train_dataset: StreamDataset

    def __init__(
        self,
        *args: Any,
        optimizer_name: str,
        embedding_learning_rate: float,
        held_out_text: Callable[[], list[Example]],
        anchors: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sampler: LengthGrouped | None = None
        self.add_callback(SetsEpoch(self))
        self.anchors = anchors
        self.optimizer_name = optimizer_name
        self.embedding_learning_rate = embedding_learning_rate
        self.held_out_text = held_out_text
        self._sums: dict[str, Tensor] = {}  # since the last log
        self._since = time.perf_counter()

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = [len(example.input_ids) for example in self.train_dataset.examples]
        self.sampler = LengthGrouped(lengths, examples_per_step(self.args), self.args.seed)
        return self.sampler

    def take_checkpoint(self, checkpoint: str) -> None:
        """The weights and state of a finished run's checkpoint, as `train` would have them at its beginning."""
        self._load_from_checkpoint(checkpoint)
        self.state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            parameters = self.model.model.named_parameters()
            rates = self.args.learning_rate, self.embedding_learning_rate
            self.optimizer = make_optimizer(self.optimizer_name, parameters, *rates)
        return self.optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss per completion token of the global batch: processes with more tokens have more weight."""
        out = model(**(inputs if self.anchors == 1 else draw_anchors(inputs, self.anchors)))
        # Accelerate averages the processes' gradients, so their sums are divided by the mean count.
        mean_tokens = self.accelerator.reduce(out["tokens"].float(), "mean")
        loss = out["loss"] * (out["tokens"] / mean_tokens)
        sums = {name: out[name].float() for name in ("tokens", "main", "streams")}
        self._sums = {name: value + self._sums.get(name, 0.0) for name, value in sums.items()}
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        check_finite(self.state.global_step, {name: logs[name] for name in ("loss", "grad_norm") if name in logs})
        if self._sums and "loss" in logs:
            sums = {name: self.accelerator.reduce(value, "sum") for name, value in self._sums.items()}
            now, tokens = time.perf_counter(), float(sums["tokens"])
            if self.model.alpha_main:
                main_loss, main_hits = sums["main"].tolist()
                logs["main_loss"], logs["main_accuracy"] = round(main_loss / tokens, 4), round(main_hits / tokens, 4)
            if self.model.alpha_streams:
                for j, (hits, plain_hits, count) in enumerate(zip(*sums["streams"].tolist(), strict=True), 1):
                    logs[f"accuracy_given_parent_stream_{j}"] = round(hits / max(count, 1), 4)
                    logs[f"accuracy_stream_{j}"] = round(plain_hits / max(count, 1), 4)
            logs["trained_tokens_per_second"] = round(tokens / (now - self._since), 1)
            self._sums, self._since = {}, now
        super().log(logs, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Held-out call-reduction ratio, acceptance per depth and per rank; 32 candidates per stream."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        if self.model.alpha_streams:
            results = replay(self.model.model, self.held_out_text(), EVALUATION_WIDTHS)
            result = results[EVALUATION_WIDTHS[1]]
            metrics["eval_call_reduction_ratio"] = round(result.call_reduction_ratio, 4)
            for width, other in results.items():
                metrics[f"eval_call_reduction_ratio_{width}_nodes"] = round(other.call_reduction_ratio, 4)
            for depth, rate in enumerate(result.acceptance_per_depth, 1):
                metrics[f"eval_acceptance_depth_{depth}"] = round(rate, 4)
            for rank, rate in enumerate(result.acceptance_per_rank[0], 1):
                metrics[f"eval_acceptance_depth_1_rank_{rank}"] = round(rate, 4)
        self._since += time.perf_counter() - started
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics
