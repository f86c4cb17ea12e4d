"""What the loop costs outside the graph: drafting, accepting and choosing tokens, per pass of each method."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamfuse.bench.shared.systems import LOOP_PHASES
from streamfuse.bundle.manifest import DECODE, Manifest
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session

from .measure import LatencySettings

_MOST_TOKENS = 64
_TIMES = 3

Progress = Callable[[str], None]


def loop_costs(
    session: Session, manifest: Manifest, settings: LatencySettings, progress: Progress = lambda line: None
) -> dict[str, float]:
    """Milliseconds per pass and method, medians over whole generations on random prompts; methods take turns.

    A generation at width T ends with a few narrower trees and passes of `decode`; they count as what they stand among.
    The session is empty afterwards.
    """
    settings.check(manifest)
    random = np.random.default_rng(settings.seed)
    prompt = random.integers(manifest.model.vocab_size, size=settings.context).tolist()
    tokens = min(_MOST_TOKENS, manifest.cache.capacity - settings.context)
    plain = GenerationConfig(max_new_tokens=tokens, ignore_eos=True, speculative=False)
    ways = {DECODE: plain}
    if manifest.speculation.num_streams:
        for name, method in manifest.verify_methods.items():
            if method.rows > 1:  # `verify_1` takes no tree; what the plan does with it is no width
                ways[name] = GenerationConfig(max_new_tokens=tokens, ignore_eos=True, width=method.rows)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for time in range(-1, _TIMES):
        progress("the loop")
        for name, config in ways.items():
            session.reset()
            generation = session.generate(prompt, config)
            generation.finish()
            statistics = generation.statistics
            if time >= 0:
                spent = sum(statistics.time_ms[phase] for phase in LOOP_PHASES)
                found[name].append(spent / max(1, statistics.target_forward_passes))
    session.reset()
    return {name: float(np.median(values)) for name, values in found.items()}
