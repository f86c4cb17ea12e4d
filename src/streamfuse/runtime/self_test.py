"""The report of a bundle's self-test: the recorded passes, repeated on this device. The comparison is the core's."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parity:
    """One method's outputs, compared with the recorded ones.

    Attributes:
        passed: `snr_db` is at least `expected_snr_db` minus 6 dB, twice the noise.
        equal: all outputs have the recorded bits.
        snr_db: ratio of the outputs to their difference from the recorded ones, in dB.
        expected_snr_db: the exporter's measurement of `snr_db`, from the manifest.
        max_abs_difference: the largest difference of a logit or log-probability from the recorded one.
        nodes: how many are recorded.
        kept_agreement: share of these that the pruner kept here too; only they are compared.
        top1_agreement: share of the compared nodes with the recorded best token.
        stream_top1_agreement: share of the streams with the recorded best token.
    """

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
    """The report.

    Attributes:
        passed: no method is noisier than the exporter measured.
        equal: all outputs have the recorded bits.
        tokens_equal: the best token of every node is the recorded one.
        ms: duration.
        methods: by name, all but `prefill`, whose cache the others read.
        differences: a sentence for each figure that differs.
    """

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
