"""What the loop costs outside the graph: drafting, accepting and choosing tokens, per pass of each method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamfuse.api import Model
from streamfuse.bench.shared.systems import LOOP_PHASES, NO_DEFAULTS
from streamfuse.bundle.manifest import DECODE

from .measure import LatencySettings

_MOST_TOKENS = 64
_TIMES = 3

Progress = Callable[[str], None]


def loop_costs(model: Model, settings: LatencySettings, progress: Progress = lambda line: None) -> dict[str, float]:
    """Milliseconds per pass and method, medians over whole generations on random prompts; methods take turns.

    A generation at width T ends with a few narrower trees and passes of `decode`; they count as what they stand among.
    The model's sequence is empty afterwards.
    """
    manifest = model.manifest
    settings.check(manifest)
    random = np.random.default_rng(settings.seed)
    prompt = random.integers(manifest.model.vocab_size, size=settings.context).tolist()
    tokens = min(_MOST_TOKENS, manifest.cache.capacity - settings.context)
    options: dict[str, Any] = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0, **NO_DEFAULTS}
    ways: dict[str, dict[str, Any]] = {DECODE: {"speculative": False}}
    if manifest.speculation.num_streams:
        for name, method in manifest.verify_methods.items():
            if method.rows > 1:  # `verify_1` takes no tree; what the plan does with it is no width
                ways[name] = {"width": method.rows}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for time in range(-1, _TIMES):
        progress("the loop")
        for name, way in ways.items():
            model.reset()
            statistics = model.generate(prompt, **options, **way).statistics
            if time >= 0:
                spent = sum(statistics.time_ms[phase] for phase in LOOP_PHASES)
                found[name].append(spent / max(1, statistics.target_forward_passes))
    model.reset()
    return {name: float(np.median(values)) for name, values in found.items()}
