"""The settings of a training run, validated on construction and saved in the run's config.json."""

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
    """The streams of a new adapter. If the base is tuned, its adapters are also used for the stream rows."""
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
        data: files, folders or data sets of the hub (`readers.read_samples`). In lossless mode, which learns to
            draft the base's own text, it should be that text (`streamfuse data distill`).
        format: row format, one of `formats.NAMES`; None: detected from the first row.
        limit: rows of each source, evenly spread; 0: all.
        out_dir: checkpoints, metrics.jsonl, TensorBoard events (runs/), and the cached frozen states.
        adapter: the adapter file, written at each evaluation.
        mode: "lossless", "shared" or "base".
        streams: settings of the streams; ignored with init_adapter.
        alpha_main: weight of the next-token loss (alpha_0); unused in lossless mode.
        alpha_streams: weight of each stream's loss (alpha_j); unused in base mode.
        learning_rate: peak learning rate of the low-rank adapters (AdamW, 30 warm-up steps, then linear to 0).
        embedding_learning_rate: peak learning rate of stream embeddings, parent term and pruner.
        next_token_dropout: share of tokens, 0 to 1, whose streams are not conditioned on the next token, sampled anew
            in each step; with next_token_rank. A verifying pass does not know that token, so a share between 0 and 1
            trains for both schedules.
        stream_decay: weight of each stream's loss relative to the stream before, above 0 and at most 1; 1 is the
            paper's.
        soft_targets: weight, 0 to 1, of the base's own distribution in a stream's target; the rest is the token of the
            text.
        anchors: share of an answer's tokens whose streams are trained, sampled anew in each step, above 0 and at most
            1; the model processes the whole text in any case. Only in lossless mode without soft targets.
        epochs: passes over the data; a positive max_steps overrides it.
        max_tokens: examples are truncated to this length.
        valid: held-out data in the same format; None: every n-th example of `data`.
        held_out: number of held-out examples, which are not trained on.
        log_every: steps between rows of metrics.
        evaluate_every: steps between evaluations; each saves a checkpoint.
        init_adapter: continue from the weights of this adapter instead of new ones.
        widen: with init_adapter, larger sizes (`model.config.WIDENS`); the existing weights are kept.
        base_adapter: train new streams on the tuned base of this adapter (of base or shared mode).
        dtype: of the frozen base and the activations: "float32", "bfloat16", or "auto", the faster on this machine.
            Trained weights are always float32.
        task: prompt template, one of `templates.TEMPLATES`; its chat template is stored in the adapter file and used
            by bundles exported with it.
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
