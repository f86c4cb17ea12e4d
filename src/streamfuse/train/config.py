"""The settings of a training run: they check themselves, and they travel into the run's config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamfuse.model.config import WIDENS, StreamConfig

from .dtype import check_dtype
from .templates import TEMPLATES

MODES = ("lossless", "shared", "base")


def default_streams(mode: str) -> StreamConfig:
    """The streams of a new adapter. Where the base is tuned, its adapters serve the stream rows too."""
    if mode == "lossless":
        return StreamConfig(stream_vocab_size=8192)
    tuned: dict[str, Any] = {"adapter_rank": 0, "base_rank": 24, "base_layers": 12}
    if mode == "shared":
        return StreamConfig(stream_vocab_size=8192, **tuned)
    return StreamConfig(num_streams=1, parent_rank=0, pruner_rank=0, **tuned)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Defaults are those of the shipped chat adapter.

    Attributes:
        model: checkpoint folder of the base.
        data: files, folders or data sets of the hub (`readers.read_samples`). Lossless mode learns to draft the base's
            own text, so it should be that (`streamfuse data distill`).
        format: of the data, one of `formats.NAMES`; None tells it from the first row.
        limit: rows to take of each source, evenly from all of it; 0 takes all.
        out_dir: checkpoints, metrics.jsonl, TensorBoard events (runs/), and the cached frozen states.
        adapter: the adapter file, written at each evaluation.
        mode: "lossless", "shared" or "base".
        streams: settings of the streams; ignored with init_adapter.
        alpha_main: weight of the next-token loss (alpha_0); not in lossless mode.
        alpha_streams: weight of each stream's loss (alpha_j); not in base mode.
        learning_rate: peak rate of the low-rank adapters (AdamW, 30 warm-up steps, then linear to 0).
        embedding_learning_rate: the same of stream embeddings, parent term and pruner.
        next_token_dropout: part of the tokens whose streams are not told the next one, drawn anew in each step, from 0
            to 1; with next_token_rank. A pass that verifies cannot tell it, so a part serves both schedules.
        stream_decay: each stream's weight over that of the one before, above 0 and at most 1; 1 is the paper's.
        soft_targets: part of a stream's target that is the base's own distribution of the token, from 0 to 1; the rest
            is the token that the text has.
        anchors: part of an answer's tokens whose streams a step trains, drawn anew each time, above 0 and at most 1;
            the whole text is read in any case. In lossless mode without soft targets.
        epochs: passes over the data; max_steps, where positive, is used instead.
        max_tokens: examples are cut there.
        valid: held-out data in the same form; None takes every n-th example of `data`.
        held_out: how many examples are measured and not trained on.
        log_every: in steps.
        evaluate_every: in steps; a checkpoint is saved with each evaluation.
        init_adapter: continue from the weights of this adapter instead of new ones.
        widen: with init_adapter, larger sizes (`model.config.WIDENS`); what the adapter has already stays as it is.
        base_adapter: begin with the tuned base of this adapter (of base or shared mode), and new streams.
        dtype: of the frozen base and the activations: "float32", "bfloat16", or "auto", the faster on this machine.
            What is trained is float32 in any case.
        task: whose prompts these are, one of `templates.TEMPLATES`; its chat template goes into the adapter file, for
            the bundles made of it.
    """

    model: Path
    data: tuple[str, ...]
    out_dir: Path
    adapter: Path
    mode: str = "lossless"
    streams: StreamConfig = field(default_factory=lambda: default_streams("lossless"))
    alpha_main: float = 1.0
    alpha_streams: float = 0.3
    epochs: float = 3.0
    max_steps: int = 0
    batch_size: int = 8
    learning_rate: float = 1e-3
    embedding_learning_rate: float = 1e-2
    max_tokens: int = 320
    format: str | None = None
    limit: int = 0
    valid: str | None = None
    held_out: int = 40
    log_every: int = 10
    evaluate_every: int = 60
    seed: int = 0
    init_adapter: Path | None = None
    base_adapter: Path | None = None
    task: str = "chat"
    dtype: str = "auto"
    stream_decay: float = 1.0
    next_token_dropout: float = 0.0
    soft_targets: float = 0.0
    anchors: float = 1.0
    widen: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.task not in TEMPLATES:
            raise ValueError(f"task must be one of {', '.join(TEMPLATES)}, not {self.task!r}")
        check_dtype(self.dtype)
        if not self.streams.num_streams:
            raise ValueError("num_streams must be 1 to 8, not 0")
        if self.mode != "lossless" and not (self.streams.base_rank or self.init_adapter or self.base_adapter):
            raise ValueError(f"{self.mode} mode tunes the base, so base_rank and base_layers must be positive")
        if self.init_adapter and self.base_adapter:
            raise ValueError("init_adapter brings its own base, so base_adapter does not go with it")
        if self.widen and not self.init_adapter:
            raise ValueError("widen goes with init_adapter; a new adapter has the sizes of its settings")
        if self.init_adapter and (other := sorted(self.widen.keys() - set(WIDENS))):
            raise ValueError(f"init_adapter brings its own stream settings, so {other[0]} does not go with it")
        for name in ("epochs", "learning_rate", "embedding_learning_rate", "alpha_main", "alpha_streams"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number, it is {getattr(self, name)}")
        if not 0 < self.stream_decay <= 1:
            raise ValueError(f"stream_decay must be above 0 and at most 1, it is {self.stream_decay}")
        for name in ("soft_targets", "next_token_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, it is {getattr(self, name)}")
        if not 0 < self.anchors <= 1:
            raise ValueError(f"anchors must be above 0 and at most 1, it is {self.anchors}")
        if self.anchors < 1 and (self.mode != "lossless" or self.soft_targets):
            raise ValueError("anchors below 1 go with lossless mode without soft targets, which need every token's row")
        for name in ("batch_size", "max_tokens", "held_out", "log_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, most in (("limit", 1 << 62), ("max_steps", 1 << 62), ("seed", (1 << 32) - 1)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 0 to {most}, not {getattr(self, name)}")
