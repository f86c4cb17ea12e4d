"""Speed over plain decoding by counted passes at fixed costs: what a bundle's drafts are worth, without a clock.

Clocks of a shared machine move by more than most changes of a drafting table are worth, and a plan that measures other
costs makes other choices. Here the costs are given, so that the passes of two bundles can be compared to the last one.

    python tools/counted_speed.py build/demo --data spec_bench/question.jsonl --limit 30

What constrained text gains over constrained plain decoding (the tasks of `streamfuse bench structured`):

    python tools/counted_speed.py build/demo --task function-calling --data function_calling --limit 40

What an n-gram table of each size is worth instead of the bundle's:

    python tools/counted_speed.py build/demo --data spec_bench/question.jsonl --limit 30 \\
        --ngram-table mine.safetensors --ngram-table-mb 0 1 4 8 24 --costs "Zen 4, AVX-512, by rows"

What a bundle is worth whose streams cost more, in plain passes:

    python tools/counted_speed.py build/l16 --data spec_bench/question.jsonl --cost streams=0.76 --cost verify_1=1.48

What it is worth on an accelerator, at costs that are computed from the bundle and a published figure:

    python tools/counted_speed.py build/demo --data spec_bench/question.jsonl --costs "flat by bytes" --costs "Hexagon"

What a memory of the answers to earlier prompts is worth, at one device's costs:

    python tools/counted_speed.py build/demo --data e2e_nlg/test.jsonl --limit 40 --memory --costs "Zen 4, AVX-512" \\
        --template "Write one sentence about a restaurant with these attributes: {prompt}"
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse import engines
from streamfuse.adapters import find
from streamfuse.api import Model, load
from streamfuse.bench.shared.systems import emitted_tokens
from streamfuse.bench.shared.work import rows_per_layer, work_of
from streamfuse.bench.structured.tasks import TASKS, encode_questions
from streamfuse.bundle.manifest import DECODE, Manifest
from streamfuse.cli.shared.options import data_template
from streamfuse.model.checkpoint import read_adapter
from streamfuse.model.ngrams import ARRAYS, bytes_of, pruned
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.core import CoreModel
from streamfuse.runtime.reference.watch import Pass
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.formats import Sample
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
    "Xeon, AVX-512, by rows": (1.0, 1.3, (1.09, 1.35), (1.58, 2.1), (2.4, 3.8), 0.21),
    "Xeon, AVX-512, cold caches, by rows": (1.0, 1.2, (1.02, 1.15), (1.25, 1.45), (1.55, 2.25), 0.15),
    "wide passes nearly free": (1.0, 1.08, 1.05, 1.1, 1.2, 0.27),
    "Zen 4, AVX-512, by rows": (1.0, 1.47, (0.98, 1.055), (1.14, 1.40), (1.72, 2.2), 0.68),
    "Zen 4 held to AVX2, by rows": (1.0, 1.5, (1.0, 1.235), (1.58, 2.16), (2.61, 3.21), 0.8),
    "flat": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
}

# Computed, never timed here: what one more row adds to a pass, in plain passes. A pass costs the share of plain
# decoding's weights that it reads, times 1 and this for every further row of the layers that it reads. The slopes are
# lines through two published points each; docs/figures.md has the addresses.
CURVES: dict[str, float] = {
    "flat by bytes": 0.0,
    # Qualcomm AI Hub, Llama 3.2 1B, w4a16, Snapdragon 8 Elite: 128 rows in 37.0651 ms, 53.6399 tokens/s one by one.
    "Hexagon": (37.0651e-3 * 53.6399 - 1) / (128 - 1),
    # ExecuTorch's Vulkan delegate, Qwen3 0.6B, 4 bits, Adreno 840: 41 rows at 1,568 tokens/s, 98.0 one by one.
    "Adreno": (41 / 1568 * 98.0 - 1) / (41 - 1),
}


Tables = dict[str, npt.NDArray[Any]]  # of draft.safetensors


@dataclass(frozen=True)
class Prompt:
    ids: Sequence[int]
    constraint: Mapping[str, str] = field(default_factory=dict)  # an option of `Tokenizer.constraint`, or none


def speed(
    session: Session, prompts: Sequence[Prompt], config: GenerationConfig, costs: Mapping[str, Cost],
    tokenizer: Tokenizer,
) -> dict[str, Any]:  # fmt: skip
    """Tokens per cost over those of plain decoding, tokens per decode or verify pass, the accepted drafts by source, a
    hash of the texts, which no draft may change."""
    widths = {"decode": 1, **{name: rows for name, (rows, _) in session.backend.spec.widths.items()}}
    methods = {*widths, "streams"} if session.backend.spec.deferred else {*widths}
    costs = {name: cost for name, cost in costs.items() if name in methods}
    session.core.set_costs(costs, frozen=True)
    least = {
        name: min(rows, before + 1) for (name, rows), before in zip(widths.items(), (0, *widths.values()), strict=False)
    }

    def cost_of(name: str, rows: int) -> float:
        few, all_rows = np.broadcast_to(costs[name], 2)
        return float(few + (all_rows - few) * max(0, rows - least[name]) / max(1, widths[name] - least[name]))

    spent, tokens, count, sources, texts = 0.0, 0, 0, Counter[str](), hashlib.sha256()
    for prompt in prompts:
        session.reset()
        passes: list[Pass] = []
        constraint = tokenizer.constraint(**prompt.constraint) if prompt.constraint else None
        generation = session.generate(prompt.ids, config, passes.append, constraint=constraint)
        generation.finish()
        texts.update(str(generation.token_ids).encode())
        found = generation.statistics
        spent += sum(cost_of(one.method, max(1, len(one.tokens))) for one in passes)
        spent += found.streams_passes * float(np.broadcast_to(costs.get("streams", 0.0), 2)[0])
        # A token that ends the text takes a pass of plain decoding too.
        tokens += emitted_tokens(found.to_dict())
        count += len(passes)
        sources.update(found.accepted_by_source)
    over_plain = tokens * cost_of("decode", 1) / spent
    return {
        "over_plain": round(over_plain, 3),
        "tokens_per_pass": round(tokens / count, 3),
        "passes": count,
        "accepted": sources,
        "texts": texts.hexdigest()[:8],
    }


def with_ngrams(tables: Mapping[str, npt.NDArray[Any]], adapter: Path, megabytes: float, vocab_size: int) -> Tables:
    """These drafting tables, with their n-gram table replaced by the best part of an adapter's."""
    ngrams = {name[7:]: one for name, one in read_adapter(adapter)[1].items() if name.startswith("ngrams.")}
    if not ngrams:
        raise SystemExit(f"--ngram-table {adapter}: has no n-gram table; `streamfuse adapter ngrams` counts one")
    taken = pruned(ngrams, vocab_size, round(megabytes * 1e6))
    print(json.dumps({"ngram_table_mb": megabytes, "bytes": bytes_of(taken), "contexts": len(taken.get("keys", ()))}))
    others = {name: one for name, one in tables.items() if not name.startswith("ngram_")}
    return {**others, **{f"ngram_{name}": taken[name].numpy() for name in ARRAYS if name in taken}}


def computed(manifest: Manifest, slope: float) -> dict[str, Cost]:
    """Costs by method in plain passes, from what the bundle's passes read and how many rows they compute."""
    read = {name: sum(part.bytes for part in work_of(manifest, name, context=0).values()) for name in manifest.methods}
    return {
        name: read[name] / read[DECODE] * (1 + slope * (rows_per_layer(manifest, name) - 1))
        for name in _METHODS
        if name in manifest.methods
    }


def costs_of(device: str, manifest: Manifest, changes: Mapping[str, float]) -> dict[str, Cost]:
    """A device's costs by method, some of them changed; the changes are in plain passes."""
    costs = computed(manifest, CURVES[device]) if device in CURVES else dict(zip(_METHODS, COSTS[device], strict=True))
    plain = float(np.max(costs["decode"]))
    return {**costs, **{method: plain * passes for method, passes in changes.items()}}


def prompts_of(model: Model, samples: Sequence[Sample], max_new_tokens: int) -> list[Prompt]:
    """Those that leave room for an answer."""
    longest = model.manifest.cache.capacity - max_new_tokens
    return [Prompt(ids) for sample in samples if len(ids := encode_prompt(sample, model.tokenizer)) < longest]


def questions_of(model: Model, task: str, data: str, limit: int, max_new_tokens: int) -> list[Prompt]:
    """The same of a task of `bench structured`, with its constraints."""
    questions = TASKS[task].read_questions(data, "test")
    asked, _ = encode_questions(questions, model.tokenizer, model.manifest, max_new_tokens, limit)
    return [Prompt(one.prompt_ids, one.question.constraint.option) for one in asked]


def change(argument: str) -> tuple[str, float]:
    """METHOD=PASSES of the command line."""
    method, _, passes = argument.partition("=")
    if method not in _METHODS:
        raise argparse.ArgumentTypeError(f"{argument}: the methods are {', '.join(_METHODS)}")
    return method, float(passes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", default="")
    parser.add_argument("--task", choices=list(TASKS), help="a task of `bench structured`; its data is --data")
    parser.add_argument("--limit", type=int, default=30)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    devices = [*COSTS, *CURVES]
    parser.add_argument("--costs", choices=devices, action="append", help="a device; several times for several")
    parser.add_argument(
        "--cost", type=change, action="append", default=[], metavar="METHOD=PASSES", help="another cost"
    )
    parser.add_argument("--memory", action="store_true", help="draft from the answers to earlier prompts too")
    parser.add_argument("--template", type=data_template, help="the prompt of a row, as in `streamfuse bench tasks`")
    parser.add_argument("--ngram-table", type=find, metavar="ADAPTER", help="whose n-gram table drafts")
    parser.add_argument("--ngram-table-mb", type=float, nargs="+", default=[24.0], help="megabytes of it to take")
    given = parser.parse_args()
    if not given.data and (given.task is None or TASKS[given.task].needs_data):
        parser.error("--data is missing")
    sampling = SamplingConfig(temperature=given.temperature, seed=1)
    config = GenerationConfig(max_new_tokens=given.max_new_tokens, sampling=sampling)
    with load(given.bundle, cost_cache=False) as model:
        if given.task is None:
            samples = spread(read_samples(given.data, template=given.template, split="test"), given.limit)
            prompts = prompts_of(model, samples, given.max_new_tokens)
        else:
            prompts = questions_of(model, given.task, given.data, given.limit, given.max_new_tokens)
        new_engine = engines.engines_of(model.bundle, None)
        tables = model.bundle.tables or {}
        for megabytes in given.ngram_table_mb if given.ngram_table else [None]:
            if megabytes is not None:
                tables = with_ngrams(tables, given.ngram_table, megabytes, model.manifest.model.vocab_size)
            for name in given.costs or devices:
                costs = costs_of(name, model.manifest, dict(given.cost))
                # a session of its own, since a plan learns from what it did
                engine = new_engine()
                drafts = CoreModel(engine.spec, tables)
                if given.memory:
                    drafts.remember()
                session = Session(engine, model=drafts)
                try:
                    print(
                        json.dumps({"costs": name, **speed(session, prompts, config, costs, model.tokenizer)}),
                        flush=True,
                    )
                finally:
                    session.close()
                    drafts.close()


if __name__ == "__main__":
    main()
