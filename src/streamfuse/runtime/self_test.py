"""The report of a bundle's self-test: the recorded passes, repeated on this device. The comparison is the core's."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parity:
    """One method's outputs, compared with the recorded ones (docs/bundle.md)."""

    passed: bool
    equal: bool
    snr_db: float
    expected_snr_db: float
    max_abs_difference: float
    nodes: int
    kept_agreement: float
    top1_agreement: float
    stream_top1_agreement: float


@dataclass(frozen=True, slots=True)
class SelfTest:
    """`passed`: no method is noisier than the exporter measured. `equal`: all outputs have the recorded bits.
    `tokens_equal`: the best token of every node is the recorded one. `ms`: duration. `methods`: by name.
    `differences`: a sentence for each figure that differs."""

    passed: bool
    equal: bool
    tokens_equal: bool
    ms: float
    methods: dict[str, Parity]
    differences: list[str]

    @classmethod
    def of(cls, report: str | bytes) -> SelfTest:
        data = json.loads(report)
        return cls(**{**data, "methods": {name: Parity(**figures) for name, figures in data["methods"].items()}})
