"""Speed over plain decoding by counted passes at fixed costs: what a bundle's drafts are worth, without a clock.

Clocks of a shared machine move by more than most changes of a drafting table are worth, and a plan that measures other
costs makes other choices. Here the costs are given, so that the passes of two bundles can be compared to the last one.

    python tests/counted_speed.py build/demo --data spec_bench/question.jsonl --limit 30
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from streamfuse.api import Model
from streamfuse.cli.engine import loaded
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.watch import Pass
from streamfuse.runtime.session import Session
from streamfuse.train.readers import encode_prompt, read_samples, spread

# Of any unit: only ratios count. After `streamfuse bench latency` on such machines, rounded; the last one is made up.
# The Zen 5's and the later Zen 4's are of streams in 12 layers, the others of 8. A pair is of the fewest rows that no
# narrower method takes and of all rows; one number is of an engine that computes all rows whatever they hold.
Cost = float | tuple[float, float]
_METHODS = ("decode", "verify_1", "verify_4", "verify_8", "verify_16", "streams")
COSTS: dict[str, tuple[Cost, ...]] = {
    "Zen 5, AVX-512": (2.29, 3.1, 2.4, 2.96, 4.9, 1.25),
    "Zen 5 held to AVX2": (2.48, 4.14, 3.27, 5.79, 8.96, 2.02),
    "Zen 4, AVX-512": (4.08, 4.79, 4.3, 5.95, 9.0, 1.3),
    "AVX2": (1.0, 1.2, 1.35, 1.95, 3.4, 0.4),
    "Xeon, AVX-512": (2.75, 3.43, 3.72, 5.29, 8.5, 1.06),
    "wide passes nearly free": (1.0, 1.08, 1.05, 1.1, 1.2, 0.27),
    "Zen 4, AVX-512, by rows": (1.0, 1.47, (0.98, 1.055), (1.14, 1.40), (1.72, 2.2), 0.68),
    "Zen 4 held to AVX2, by rows": (1.0, 1.5, (1.0, 1.235), (1.58, 2.16), (2.61, 3.21), 0.8),
}


def speed(
    session: Session, prompts: Sequence[Sequence[int]], config: GenerationConfig, costs: Mapping[str, Cost]
) -> tuple[float, Counter[str]]:
    """Tokens per cost over those of plain decoding, and the accepted drafts by source."""
    widths = {"decode": 1, **{name: rows for name, (rows, _) in session.backend.spec.widths.items()}}
    costs = {name: cost for name, cost in costs.items() if name in {"streams", *widths}}
    session.core.set_costs(costs, frozen=True)
    least = {
        name: min(rows, before + 1) for (name, rows), before in zip(widths.items(), (0, *widths.values()), strict=False)
    }

    def cost_of(name: str, rows: int) -> float:
        few, all_rows = np.broadcast_to(costs[name], 2)
        return float(few + (all_rows - few) * max(0, rows - least[name]) / max(1, widths[name] - least[name]))

    spent, tokens, sources = 0.0, 0, Counter[str]()
    for prompt in prompts:
        session.reset()
        passes: list[Pass] = []
        generation = session.generate(prompt, config, passes.append)
        generation.finish()
        found = generation.statistics
        spent += sum(cost_of(one.method, max(1, len(one.tokens))) for one in passes)
        spent += found["streams_passes"] * float(np.broadcast_to(costs.get("streams", 0.0), 2)[0])
        tokens += found["generated_tokens"]
        sources.update(found["accepted_by_source"])
    return tokens * cost_of("decode", 1) / spent, sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=30)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    given = parser.parse_args()
    sampling = SamplingConfig(temperature=given.temperature, seed=1)
    config = GenerationConfig(max_new_tokens=given.max_new_tokens, sampling=sampling)
    samples = spread(read_samples(given.data), given.limit)
    for name, milliseconds in COSTS.items():
        costs = dict(zip(_METHODS, milliseconds, strict=True))
        model = Model(given.bundle, cost_cache=False)
        longest = model.manifest.cache.capacity - given.max_new_tokens
        prompts = [ids for sample in samples if len(ids := encode_prompt(sample, model.text)) < longest]
        with loaded(model, plan=False) as session:  # a session of its own, since a plan learns from what it did
            found, sources = speed(session, prompts, config, costs)
        print(json.dumps({"costs": name, "over_plain": round(found, 3), "accepted": sources}), flush=True)


if __name__ == "__main__":
    main()
