"""What `streamfuse bench ablations` varies: models to train, and the ways in which each is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a trained model, measured in one way.

    Attributes:
        group: what is varied.
        label: its value here.
        model: one of `MODELS`.
        top_k: candidates per stream that the host is given.
        num_streams: of the model's, the first so many; 0: all.
        vocab_size: of the stream vocabulary, the tokens that the base writes most; 0: all.
        parent: whether trees are grown with the parent term.
        keep: nodes that the pruner leaves of 16; 0: nothing is pruned.
    """

    group: str
    label: str
    model: str = "base"
    top_k: int = 32
    num_streams: int = 0
    vocab_size: int = 0
    parent: bool = True
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """Of every training run, so that all models have seen the same."""

    steps: int = 80
    batch_size: int = 4
    examples: int = 320
    held_out: int = 40
    max_tokens: int = 256


# Settings that differ from the base model's (4 streams in the top 8 layers, parent term of rank 32), in the order in
# which they are trained. `alone` is the rank of a parent term without streams.
MODELS: dict[str, dict[str, Any]] = {
    "base": {},
    "soft-0.5": {"soft_targets": 0.5},
    "no-parent": {"parent_rank": 0},
    "Ns-4": {"num_msa_layers": 4},
    "Ns-2": {"num_msa_layers": 2},
    "Ns-1": {"num_msa_layers": 1},
    "alone-32": {"alone": 32},
    "alone-128": {"alone": 128},
    "rank-8": {"parent_rank": 8},
    "rotation": {"value_rotation": 0.1},
    "eta-16": {"eta_rank": 16},
    "rank-128": {"parent_rank": 128},
    "gamma-5": {"num_streams": 5},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is measured. A model's rows follow its training, so that a stopped run leaves whole rows."""

    models: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(MODELS))
    rows: tuple[Row, ...] = ()


def default_plan() -> Plan:
    rows = [
        Row("base setting", "Ns 8, 4 streams, parent term of rank 32"),
        Row("soft targets", "half of the target is the base's distribution", "soft-0.5"),
        *(Row("streams with layers of their own (Ns)", str(n), f"Ns-{n}") for n in (4, 2, 1)),
        *(Row("streams (gamma), of 4", str(n), num_streams=n) for n in (3, 2, 1)),
        *(Row("streams (gamma), of 5", str(n), "gamma-5", num_streams=n) for n in (5, 4, 3, 2, 1)),
        *(Row("candidates per stream (k)", str(k), top_k=k) for k in (16, 8, 4, 2, 1)),
        Row("parent term", "trained, not used to grow trees", parent=False),
        Row("parent term", "never there", "no-parent"),
        *(Row("parent term", f"rank {rank}", f"rank-{rank}") for rank in (8, 128)),
        *(Row("parent term alone, no streams", f"rank {rank}", f"alone-{rank}") for rank in (32, 128)),
        *(Row("pruner, of 16 nodes", f"{keep} kept", keep=keep) for keep in (8, 4)),
        Row("streams begin with", "value rotation, 0.1 radians", "rotation"),
        Row("streams begin with", "identity plus a map of rank 16", "eta-16"),
        *(Row("stream vocabulary, of 8192", str(size), vocab_size=size) for size in (4096, 2048, 1024, 512)),
    ]
    return Plan(rows=tuple(rows))
