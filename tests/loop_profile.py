"""What a step of the loop costs outside the graph: `python tests/loop_profile.py [LIBRARY]` (no engine runs).

A pass of an engine reads all weights and leaves cold caches to the loop, so a pass here reads a large array.
LIBRARY is one with `sf_grow`; without it the engine's own is taken, and numpy where that has none.
"""

from __future__ import annotations

import ctypes
import sys
import time

import numpy as np

from streamfuse.runtime.backend import DECODE, PREFILL, BoolArray, IntArray, ModelSpec, PassOutput
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.costs import CostTable
from streamfuse.runtime.draft import DraftTables, StreamDrafter
from streamfuse.runtime.native_grow import NativeGrower, library_with_grow
from streamfuse.runtime.sampling import SamplingConfig
from streamfuse.runtime.session import Session
from streamfuse.runtime.stats import PHASES

VOCAB, SLOTS, STREAMS, TOP_K, RANK = 49152, 7500, 4, 16, 32
SPEC = ModelSpec(2048, VOCAB, STREAMS, TOP_K, 64, {f"verify_{n}": (n, min(n, 8)) for n in (4, 8, 16)}, stream_nodes={})
COSTS = {DECODE: 2.5, "verify_4": 2.8, "verify_8": 3.4, "verify_16": 5.0}


class InstantBackend:
    """Outputs made beforehand; the model's choice is the first drafted child in about half of the cases."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.spec, self.length = SPEC, 0
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
        return PassOutput(logits, best, np.arange(n), self._ids[self._turn, :n], self._log_probs[self._turn, :n])

    def streams(self, index: int) -> PassOutput:
        raise NotImplementedError

    def commit(self, rows: list[int]) -> None:
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None:
        pass


def tables() -> DraftTables:
    random = np.random.default_rng(1)
    return DraftTables.of(
        (random.normal(size=(VOCAB, RANK)) * 0.2).astype(np.float16),
        (random.normal(size=(SLOTS, RANK)) * 0.2).astype(np.float32),
        random.normal(size=(STREAMS, RANK)).astype(np.float32),
        np.arange(SLOTS, dtype=np.int32),
    )


def microseconds(config: GenerationConfig, library: ctypes.CDLL | None, repeats: int = 3) -> dict[str, float]:
    """Per pass and phase, the least of a few generations."""
    drafting = tables()
    found: dict[str, float] = {}
    for _ in range(repeats):
        drafter = StreamDrafter(drafting, NativeGrower(library, drafting) if library else None)
        session = Session(InstantBackend(), drafter=drafter, costs=CostTable.of(SPEC, COSTS, frozen=True))
        started = time.perf_counter()
        generation = session.generate(list(range(100, 200)), config)
        generation.finish()
        whole = time.perf_counter() - started
        statistics = generation.statistics
        passes = max(1, statistics.target_forward_passes)
        per_pass = {phase: 1000 * statistics.stopwatch.ms[phase] / passes for phase in PHASES if phase != "prefill"}
        per_pass["whole"] = 1e6 * whole / passes
        if not found or per_pass["whole"] < found["whole"]:
            found = per_pass
    return found


if __name__ == "__main__":
    native = ctypes.CDLL(sys.argv[1]) if len(sys.argv) > 1 else library_with_grow()
    hot = SamplingConfig(temperature=0.8)
    for name, config in {
        "plain": GenerationConfig(200, speculative=False),
        "width 8": GenerationConfig(200, width=8),
        "plan": GenerationConfig(200),
        "plain, sampled": GenerationConfig(200, hot, speculative=False),
        "plan, sampled": GenerationConfig(200, hot),
        "plan, top-p": GenerationConfig(200, SamplingConfig(temperature=0.8, top_p=0.95)),
    }.items():
        for library in (None, native) if native else (None,):
            spent = " ".join(f"{phase} {us:6.1f}" for phase, us in microseconds(config, library).items())
            print(f"{name:16} {'native' if library else 'numpy':6} {spent} us")
