"""Hugging Face Trainer for stream adapters: order of the data, learning rates, and what is measured while training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer
from transformers.trainer_pt_utils import get_length_grouped_indices

from .data import StreamDataset
from .evaluate import replay
from .objective import NGramObjective


class LengthGrouped(Sampler[int]):
    """Batches of similar lengths (padding would be computed like any token), in an order of each epoch's own.

    The order follows from seed and epoch alone, so a run that was stopped in any epoch continues with the same batches.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer's data loader."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epoch):  # as if the epochs before had drawn theirs
            torch.randperm(len(self.lengths), generator=generator)
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class StreamTrainer(Trainer):
    """Trains an `NGramObjective`; "evaluation" is the exact replay of held-out texts."""

    model: NGramObjective
    train_dataset: StreamDataset
    eval_dataset: StreamDataset

    def __init__(self, *args: Any, embedding_learning_rate: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.embedding_learning_rate = embedding_learning_rate
        self._metrics: Tensor | None = None  # sums since the last log
        self._since = time.perf_counter()

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = [len(example.input_ids) for example in self.train_dataset.examples]
        return LengthGrouped(lengths, self.args.train_batch_size * self.args.world_size, self.args.seed)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """AdamW; matrices that act on rows learn slowly, embeddings, parent term and pruner fast."""
        if self.optimizer is None:
            slow: list[nn.Parameter] = []
            fast: list[nn.Parameter] = []
            for name, parameter in self.model.model.named_parameters():
                if parameter.requires_grad:
                    (slow if name.startswith(("adapters.", "eta.")) else fast).append(parameter)
            rates = ((slow, self.args.learning_rate), (fast, self.embedding_learning_rate))
            groups = [{"params": parameters, "lr": rate} for parameters, rate in rates if parameters]
            self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.99))
        return self.optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        out = model(**inputs)
        self._metrics = out["metrics"] if self._metrics is None else self._metrics + out["metrics"]
        return out["loss"]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self._metrics is not None and "loss" in logs:
            hits, plain_hits, count = self._metrics.tolist()
            now = time.perf_counter()
            for j, predictions in enumerate(count):
                logs[f"accuracy_given_parent_stream_{j + 1}"] = round(hits[j] / max(predictions, 1), 4)
                logs[f"accuracy_stream_{j + 1}"] = round(plain_hits[j] / max(predictions, 1), 4)
            logs["trained_tokens_per_second"] = round(count[0] / (now - self._since), 1)
            self._metrics, self._since = None, now
        super().log(logs, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Held-out call-reduction ratio and acceptance per depth; trees of 8 nodes, 16 candidates per stream."""
        started = time.perf_counter()
        result = replay(self.model.model, self.eval_dataset)
        self._since += time.perf_counter() - started
        metrics = {"eval_call_reduction_ratio": round(result.call_reduction_ratio, 4)}
        for depth, rate in enumerate(result.acceptance_per_depth, 1):
            metrics[f"eval_acceptance_depth_{depth}"] = round(rate, 4)
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics
