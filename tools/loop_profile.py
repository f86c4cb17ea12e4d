"""What a step of the loop costs outside the graph: `python tools/loop_profile.py` (no engine runs).

A pass of an engine reads all weights and leaves cold caches to the loop, so a pass here reads a large array. What
Python adds to the core's loop, per pass, is the difference of `whole` and the phases.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import DECODE, PREFILL, BoolArray, IntArray, ModelSpec, PassOutput
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.session import Session

VOCAB, SLOTS, STREAMS, TOP_K, RANK = 49152, 7500, 4, 16, 32
SPEC = ModelSpec(2048, VOCAB, STREAMS, TOP_K, 64, {f"verify_{n}": (n, min(n, 8)) for n in (4, 8, 16)}, stream_nodes={})
# As in the default bundles: streams have a pass of their own, and the n-gram table drafts where they are not bought.
DEFERRED = replace(SPEC, stream_nodes=dict.fromkeys(SPEC.widths, 0), deferred=True)
COSTS = {DECODE: 2.5, "verify_4": 2.6, "verify_8": 3.1, "verify_16": 5.0, "streams": 0.7}


class InstantBackend:
    """Outputs made beforehand; the model's choice is the first drafted child in about half of the cases."""

    def __init__(self, spec: ModelSpec = SPEC) -> None:
        random = np.random.default_rng(0)
        self.spec, self.length = spec, 0
        self._ids = random.integers(0, SLOTS, (32, 8, STREAMS, TOP_K))
        probs = np.sort(random.dirichlet(np.full(TOP_K, 0.3), (32, 8, STREAMS)))[..., ::-1]
        self._log_probs = np.log(probs * 0.9 + 1e-6).astype(np.float32)
        self._logits = (random.normal(size=(8, VOCAB)) * 3).astype(np.float32)
        self._turn = 0
        self._weights = np.ones(10_000_000, np.float64)

    def run(
        self, method: str, input_ids: IntArray, position_ids: IntArray, ancestors: BoolArray, want_logits: bool = False
    ) -> PassOutput:
        if method == PREFILL:
            return PassOutput.of_prefill()
        self._turn = (self._turn + 1) % 32
        self._weights.max()
        n = min(len(input_ids), 8)
        best = np.roll(input_ids, -1)[:n] if self._turn % 2 else input_ids[:n] + 1
        logits = self._logits[:n] if want_logits else None
        if method == DECODE:
            return PassOutput.of_decode(logits, best)
        carrying = 0 if self.spec.deferred else n
        streams = self._ids[self._turn, :carrying], self._log_probs[self._turn, :carrying]
        return PassOutput(logits, best, np.arange(n), *streams)

    def streams(self, index: int, next_token: int) -> PassOutput:
        return PassOutput(
            None,
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            self._ids[self._turn, :1],
            self._log_probs[self._turn, :1],
        )

    def commit(self, rows: list[int]) -> None:
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None:
        pass


def tables() -> dict[str, npt.NDArray[Any]]:
    """The arrays of a draft.safetensors (docs/contracts.md, section 4), with eight continuations of each token."""
    random, count = np.random.default_rng(1), 8
    return {
        "parent_left": (random.normal(size=(VOCAB, RANK)) * 0.2).astype(np.float16),
        "parent_right": (random.normal(size=(SLOTS, RANK)) * 0.2).astype(np.float16),
        "gate": random.normal(size=(STREAMS, RANK)).astype(np.float32),
        "stream_vocab": np.arange(SLOTS, dtype=np.int32),
        "ngram_keys": np.arange(VOCAB) * (VOCAB + 1),
        "ngram_starts": (np.arange(VOCAB + 1) * count).astype(np.int32),
        "ngram_ids": random.integers(0, VOCAB, VOCAB * count).astype(np.int32),
        "ngram_log_probs": np.tile(np.log(0.4 / np.arange(1, count + 1)), VOCAB).astype(np.float16),
    }


def microseconds(config: GenerationConfig, spec: ModelSpec = SPEC, repeats: int = 3) -> dict[str, float]:
    """Per pass and phase, the least of a few generations."""
    drafting, costs = tables(), {name: ms for name, ms in COSTS.items() if spec.deferred or name != "streams"}
    found: dict[str, float] = {}
    for _ in range(repeats):
        with Session(InstantBackend(spec), drafting, costs=costs) as session:
            started = time.perf_counter()
            generation = session.generate(list(range(100, 200)), config)
            generation.finish()
            whole = time.perf_counter() - started
        statistics = generation.statistics
        passes = max(1, statistics.target_forward_passes)
        per_pass = {phase: 1000 * ms / passes for phase, ms in statistics.time_ms.items() if phase != "prefill"}
        per_pass["whole"] = 1e6 * whole / passes
        if not found or per_pass["whole"] < found["whole"]:
            found = per_pass
    return found


if __name__ == "__main__":
    hot = SamplingConfig(temperature=0.8)
    for name, (config, spec) in {
        "plain": (GenerationConfig(200, speculative=False), SPEC),
        "width 8": (GenerationConfig(200, width=8), SPEC),
        "plan, fused": (GenerationConfig(200), SPEC),
        "plan, deferred": (GenerationConfig(200), DEFERRED),
        "plain, sampled": (GenerationConfig(200, hot, speculative=False), SPEC),
        "plan, sampled": (GenerationConfig(200, hot), DEFERRED),
        "plan, top-p": (GenerationConfig(200, SamplingConfig(temperature=0.8, top_p=0.95)), DEFERRED),
    }.items():
        spent = " ".join(f"{phase} {us:6.1f}" for phase, us in microseconds(config, spec).items())
        print(f"{name:16} {spent} us")
