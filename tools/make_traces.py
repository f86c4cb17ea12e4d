"""Write the golden traces of tests/traces/README.md: `make traces`.

Run: PYTHONPATH=tests/helpers python tools/make_traces.py FOLDER

They are reviewed like code: a change of a trace is a change of the contract with Kotlin and Swift.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from automata import Automaton
from fakes import ArithmeticBackend, spec

from streamfuse.runtime.backend import ModelSpec, PassOutput
from streamfuse.runtime.config import CONSTRAINTS, GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.coupling import Coupling
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter, grow
from streamfuse.runtime.reference.lookup import LookUpDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.runtime.reference.ngram_table import NgramTable
from streamfuse.runtime.reference.noise import gumbel
from streamfuse.runtime.reference.random import philox4x32
from streamfuse.runtime.reference.sampling import Sampler
from streamfuse.runtime.reference.tree import Tree
from streamfuse.runtime.reference.watch import Pass
from streamfuse.runtime.session import Session

FORMAT = 1


def floats(values: Any) -> Any:
    """Nested lists of the shortest decimals that give the same float32."""
    return [floats(value) for value in values] if np.ndim(values) else float(str(np.float32(values)))


def tree_of(tree: Tree) -> dict[str, Any]:
    return {
        "tokens": tree.tokens.tolist(),
        "parents": tree.parents.tolist(),
        "log_probs": [round(float(value), 6) + 0.0 for value in tree.log_probs],
    }


def step_of(one: Round) -> dict[str, Any]:
    return {
        "method": one.method,
        "tree": tree_of(one.tree),
        "kept": one.output.kept.tolist(),
        "stream_ids": one.output.stream_ids.tolist(),
        "stream_log_probs": floats(one.output.stream_log_probs),
        "chosen": one.walk.tokens,
        "path": one.walk.rows,
        "emitted": one.walk.tokens[: one.delivered],
        "length": one.length,
    }


class StoppedBackend(ArithmeticBackend):
    """Somebody presses stop while its n-th run is on; passes over the prompt count."""

    def __init__(self, model: ModelSpec, accuracy: int, run: int, stop: Callable[[], None], mixed: bool) -> None:
        super().__init__(model, accuracy, mixed=mixed)
        self._left, self._stop = run, stop

    def run(self, *arguments: Any) -> PassOutput:
        self._left -= 1
        if self._left == 0:
            self._stop()
        return super().run(*arguments)


LOOP_FIELDS = {
    "": "format about spec accuracy sampling config prompt steps generated finish_reason",
    "spec": "capacity vocab_size num_streams top_k prefill_rows widths eos_token_ids default_width",
    "sampling": "temperature top_k top_p min_p repetition_penalty seed",
    "config": "max_new_tokens stop_token_ids stop_strings ignore_eos speculative width",
}  # of a loop's trace and its objects; OPTIONAL_FIELDS may be missing, each line together
OPTIONAL_FIELDS = {"": ("constraint", "stop cached"), "spec": ("deferred stream_nodes",), "sampling": (), "config": ()}
STEP_FIELDS = "method tree kept stream_ids stream_log_probs chosen path emitted length"


def read_loop(path: Path) -> dict[str, Any]:
    """A loop's trace. ValueError if a field is unknown or missing."""
    trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for name, fields in LOOP_FIELDS.items():
        found = trace if not name else trace[name]
        known = fields.split()
        for together in (words.split() for words in OPTIONAL_FIELDS[name]):
            known += together if any(field in found for field in together) else ()
        _need(path, name or "trace", found, known)
    for step in trace["steps"]:
        _need(path, "step", step, STEP_FIELDS.split())
    if "stop" in trace and list(trace["stop"]) not in (["run"], ["tokens"]):
        raise ValueError(f"{path}: stop must have run or tokens")
    if trace["format"] != FORMAT:
        raise ValueError(f"{path}: format {trace['format']}, this reader knows {FORMAT}")
    return trace


def _need(path: Path, place: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    if different := sorted(set(found) ^ set(known)):
        raise ValueError(f"{path}: {place} has unknown or missing fields: {', '.join(different)}")


def spec_of(trace: dict[str, Any]) -> ModelSpec:
    """The facts of a loop's trace."""
    facts = {"stream_nodes": {}, **trace["spec"]}
    facts["widths"] = {name: tuple(shape) for name, shape in facts["widths"].items()}
    return ModelSpec(**{**facts, "eos_token_ids": tuple(facts["eos_token_ids"])})


def engine_of(trace: dict[str, Any], model: ModelSpec, stop: Callable[[], None]) -> ArithmeticBackend:
    """The engine of a loop's trace, which calls `stop` where the trace says so."""
    return StoppedBackend(model, trace["accuracy"], trace.get("stop", {}).get("run", 0), stop, model.deferred)


def constraint_of(trace: dict[str, Any]) -> Automaton | None:
    """The constraint of a loop's trace, None if it has none."""
    if "constraint" not in trace:
        return None
    given = trace["constraint"]
    return Automaton([dict(edges) for edges in given["edges"]], given["may_end"], trace["spec"]["vocab_size"])


def loop_trace(
    about: str,
    backend: ArithmeticBackend,
    prompt: list[int],
    config: GenerationConfig,
    stop: dict[str, int] | None = None,
    constraint: Automaton | None = None,
) -> dict[str, Any]:
    """`stop`: {"run": n}, while the engine's n-th run is on, or {"tokens": n}, once so many were delivered."""
    steps: list[dict[str, Any]] = []
    restricted: dict[str, Any] = {}
    if constraint is not None:
        edges = [[list(edge) for edge in of_state.items()] for of_state in constraint.edges]
        restricted = {"constraint": {"edges": edges, "may_end": list(constraint.may_end)}}
    tokens = list(prompt)
    ending = {} if stop is None else {"stop": stop}
    stopped = threading.Event()
    if stop is not None:
        backend = engine_of({"accuracy": backend.accuracy, **ending}, backend.spec, stopped.set)
    drafter = StreamDrafter() if backend.spec.num_streams else LookUpDrafter()
    loop = Loop(
        backend, tokens, config, drafter, constraint=constraint, stop=stopped,
        observe=lambda one: steps.append(step_of(one)),
    )  # fmt: skip
    for count, _ in enumerate(loop.run(), start=1):
        if stop is not None and count == stop.get("tokens"):
            stopped.set()
    sampling = asdict(config.sampling)
    left_out = {"sampling", "sources", "log_probs", "top_log_probs", *CONSTRAINTS}
    sampling["seed"] = str(sampling["seed"])
    return {
        "format": FORMAT,
        "about": about,
        "spec": spec_facts(backend.spec),
        "accuracy": backend.accuracy,
        "sampling": sampling,
        "config": {key: value for key, value in asdict(config).items() if key not in left_out},
        "prompt": prompt,
        **restricted,
        **ending,
        "steps": steps,
        "generated": tokens[len(prompt) :],
        "finish_reason": loop.counts.finish_reason,
        **({} if stop is None else {"cached": backend.length}),
    }


def spec_facts(model: ModelSpec) -> dict[str, Any]:
    """The spec; of the schedule only where it is the deferred one. Streams propose any token."""
    left_out = {"stream_vocab_size"} if model.deferred else {"stream_vocab_size", "stream_nodes", "deferred"}
    return {key: value for key, value in asdict(model).items() if key not in left_out}


def loop_traces() -> dict[str, dict[str, Any]]:
    hot = SamplingConfig(temperature=0.8, top_k=12, top_p=0.95, min_p=0.01, repetition_penalty=1.1, seed=2**63 + 5)
    small, long = spec(capacity=24), [5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 38, 32, 7, 9, 50]
    return {
        "loop_deferred": loop_trace(
            "the deferred schedule: streams in a pass of their own after the commit",
            ArithmeticBackend(deferred_spec(), mixed=True),
            [3, 1, 4],
            GenerationConfig(16, width=8),
        ),
        "loop_greedy": loop_trace(
            "greedy, pruned wide trees", ArithmeticBackend(spec()), [3, 1, 4], GenerationConfig(16, width=8)
        ),
        "loop_sampled": loop_trace(
            "every filter of the sampler", ArithmeticBackend(spec()), [9, 2, 6, 5], GenerationConfig(12, hot)
        ),
        "loop_plain": loop_trace(
            "speculation off", ArithmeticBackend(spec()), [3, 1, 4], GenerationConfig(4, speculative=False)
        ),
        "loop_stop": loop_trace(
            "a stop token inside an accepted block",
            ArithmeticBackend(spec(), 16),
            [3, 1, 4],
            GenerationConfig(16, stop_token_ids=(greedy_token(spec(), [3, 1, 4], 6),)),
        ),
        "loop_context": loop_trace(
            "the context ends the text",
            ArithmeticBackend(small, 16),
            [5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3],
            GenerationConfig(64),
        ),
        "loop_stopped_in_prompt": loop_trace(
            "stopped while the prompt is read: no token, and the pass that ran counts",
            ArithmeticBackend(spec(), 16),
            long,
            GenerationConfig(16, width=8),
            {"run": 2},
        ),
        "loop_stopped_first": loop_trace(
            "stopped in the first pass after the prompt: no token, and no row of that pass",
            ArithmeticBackend(spec(), 16),
            long,
            GenerationConfig(16, width=8),
            {"run": 4},
        ),
        "loop_stopped_middle": loop_trace(
            "stopped inside a block of tokens: those that were delivered are the text",
            ArithmeticBackend(spec(), 16),
            long,
            GenerationConfig(16, width=8),
            {"tokens": 6},
        ),
        "loop_constrained": loop_trace(
            "a constraint forces tokens, refuses candidates, and ends the text",
            ArithmeticBackend(spec(), 16),
            [3, 1, 4],
            GenerationConfig(60, width=8),
            constraint=records(),
        ),
        "loop_constrained_lookup": loop_trace(
            "a constraint on a sampled text without streams; the length ends it inside the grammar",
            ArithmeticBackend(spec(num_streams=0, top_k=0)),
            [3, 1, 4, 5, 6, 7, 10, 13, 8, 5],
            GenerationConfig(19, hot, width=8),
            constraint=records(),
        ),
    }


def records() -> Automaton:
    """Texts (5 6 7 word+ (8 | 9))*, which end after a 9: 5 6 7 is forced, and a word is 2, 4, 10, 13, 16, ... 61."""
    words = dict.fromkeys((2, 4, *range(10, 64, 3)), 4)
    return Automaton([{5: 1}, {6: 2}, {7: 3}, words, {8: 0, 9: 5, **words}, {}], [5])


def deferred_spec() -> ModelSpec:
    """The schedule that ships: no verify pass carries streams."""
    return spec(deferred=True, stream_nodes=dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0))


def plan_trace() -> dict[str, Any]:
    """What the core's plan chooses where passes have fixed costs: two texts that it can draft, then one it cannot."""
    costs = {"decode": 2.0, "verify_2": [2.1, 2.2], "verify_4": [2.2, 2.6], "verify_8": [2.4, 4.0], "streams": 0.5}
    table = {
        "ngram_keys": [7 * 65, 32 * 65, 32 * 65 + 8],
        "ngram_starts": [0, 1, 2, 4],
        "ngram_ids": [32, 20, 20, 5],
        "ngram_log_probs": [-0.125, -0.5, -0.25, -2.0],
    }
    tables = {name: np.array(table[name], dtype) for name, dtype in NGRAM_DTYPES.items()}
    texts = []
    backend = ArithmeticBackend(deferred_spec(), 12, mixed=True)
    with Session(backend, tables, costs={name: np.broadcast_to(ms, 2) for name, ms in costs.items()}) as session:
        for accuracy, prompt, count in ((12, [3, 1, 4], 40), (16, [9, 7, 32], 30), (0, [5], 40)):
            backend.accuracy = accuracy
            steps: list[dict[str, Any]] = []
            session.reset()
            generation = session.generate(
                prompt, GenerationConfig(count), lambda one, to=steps: to.append(plan_step(one))
            )
            generation.finish()
            texts.append({
                "accuracy": accuracy, "prompt": prompt, "max_new_tokens": count, "steps": steps,
                "generated": generation.token_ids, "streams_passes": generation.statistics.streams_passes,
            })  # fmt: skip
    return {
        "format": FORMAT, "about": "the plan at fixed costs, written by the core", "spec": spec_facts(backend.spec),
        "cost_ms": costs, **table, "texts": texts,
    }  # fmt: skip


NGRAM_DTYPES = {
    "ngram_keys": np.int64, "ngram_starts": np.int32, "ngram_ids": np.int32, "ngram_log_probs": np.float16
}  # fmt: skip


def plan_step(one: Pass) -> dict[str, Any]:
    return {
        "method": one.method, "reason": one.reason, "tokens": one.tokens, "parents": one.parents,
        "sources": one.sources, "path": one.walk_rows, "emitted": one.walk_tokens[: one.delivered],
    }  # fmt: skip


def greedy_token(of: Any, prompt: list[int], place: int) -> int:
    """The `place`-th token (from 0) of the greedy text after the prompt."""
    tokens = list(prompt)
    for _ in Loop(ArithmeticBackend(of), tokens, GenerationConfig(place + 1, speculative=False)).run():
        pass
    return tokens[-1]


def random_trace() -> dict[str, Any]:
    ones, pi = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    inputs = [((0,) * 4, (0, 0)), ((ones,) * 4, (ones, ones)), (pi[:4], pi[4:])]
    words = [
        {"counter": hexes(counter), "key": hexes(key), "output": hexes(philox4x32(counter, key))}
        for counter, key in inputs
    ]
    pairs = [(0, 0), (0, 1), (1, 0), (42, 7), (2**32, 2**32), (2**63 + 5, 2047), (2**64 - 1, 2**64 - 1)]
    noise = []
    for place, (seed, position) in enumerate(pairs):
        vocab_size = (16, 256, 300, 49152)[place % 4]  # a part of a block, one, one and a part, many
        tokens = np.random.default_rng(place).integers(0, vocab_size, 3).tolist()
        values = gumbel(seed, position, tokens, vocab_size).tolist()
        noise.append({"seed": str(seed), "position": str(position), "vocab_size": vocab_size, "tokens": tokens,
                      "values": values})  # fmt: skip
    return {"format": FORMAT, "about": "Philox4x32-10 and the noise of tokens", "philox4x32": words, "noise": noise}


def hexes(words: tuple[int, ...]) -> list[str]:
    return [f"{word:08x}" for word in words]


def sampling_trace() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    settings: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.5},
        {"temperature": 1.0},
        {"temperature": 0.5, "top_k": 4},
        {"temperature": 1.5, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
    ]
    steps = []
    for setting in settings:
        for seed in (0, 7):
            logits = (rng.integers(-32, 64, 16) / 16).astype(np.float32)  # coarse, so that equal logits occur
            history, position = rng.integers(0, 16, 5).tolist(), int(rng.integers(5, 4096))
            token = Sampler(SamplingConfig(**setting, seed=seed)).pick(logits, history, position)
            steps.append(
                {**setting, "seed": str(seed), "history": history, "position": position,
                 "logits": floats(logits), "token": token}
            )  # fmt: skip
    return {"format": FORMAT, "about": "logits to tokens", "steps": steps}


def noise_of(step: Mapping[str, Any], vocab_size: int) -> tuple[Coupling, int]:
    """Of a step of `growth` or `ngrams`: the coupling and the position of the root's children."""
    sampling = SamplingConfig(temperature=step.get("temperature", 0.0), seed=int(step.get("seed", 0)))
    return Coupling.of(sampling, vocab_size), step.get("position", 0)


def growth_trace() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    vocab, slots, streams, k, rank = 24, 16, 3, 4, 2
    stream_vocab = np.sort(rng.permutation(vocab)[:slots]).astype(np.int32)
    left = (rng.integers(-8, 9, (vocab, rank)) / 8).astype(np.float16)
    right = (rng.integers(-8, 9, (slots, rank)) / 8).astype(np.float16)
    gate = (rng.integers(4, 9, (streams, rank)) / 4).astype(np.float32)
    tables = DraftTables.of(left, right, gate, stream_vocab)
    steps = []
    for width, with_term in ((1, True), (4, True), (4, False), (8, True), (8, False), (16, True)):
        ids = np.stack([rng.permutation(stream_vocab)[:k] for _ in range(streams)]).astype(np.int64)
        probs = np.sort(rng.dirichlet(np.full(k + 1, 0.7), streams)[:, :k])[:, ::-1]
        log_probs = np.log(probs).astype(np.float32)
        root = int(rng.integers(0, vocab))
        for sampling in ({}, {"temperature": 0.75, "seed": "5", "position": 100 + width}):
            tree = grow(root, ids, log_probs, width, streams, tables if with_term else None, *noise_of(sampling, vocab))
            steps.append(
                {"root": root, "width": width, **sampling, "parent_term": with_term, "stream_ids": ids.tolist(),
                 "stream_log_probs": floats(log_probs), "tree": tree_of(tree)}
            )  # fmt: skip
    return {
        "format": FORMAT,
        "about": "streams and the parent term to trees",
        "parent_left": floats(left),
        "parent_right": floats(right),
        "gate": floats(gate),
        "stream_vocab": stream_vocab.tolist(),
        "steps": steps,
    }


def ngrams_trace() -> dict[str, Any]:
    rng = np.random.default_rng(12)
    vocab = 12
    alone = np.arange(0, vocab, 2) * (vocab + 1)  # every other token has continuations of its own
    pairs = np.array([v * (vocab + 1) + u + 1 for u, v in ((3, 4), (4, 6), (6, 1), (0, 2), (2, 4))])
    keys = np.sort(np.concatenate([alone, pairs]))
    for shorter, before in ((keys.tolist().index(4 * (vocab + 1) + 3 + 1), 5), (len(keys), 7)):  # 5 3 4, and 7 5 3 4
        keys = np.append(keys, vocab * (vocab + 1) + shorter * vocab + before)
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 4, len(keys)))])
    ids = rng.integers(0, vocab, starts[-1])
    rows = [np.sort(rng.choice([0.75, 0.5, 0.25, 0.25, 0.125], n))[::-1] for n in np.diff(starts)]
    log_probs = np.log(np.concatenate(rows)).astype(np.float16)
    table = NgramTable.of(vocab, keys, starts, ids, log_probs)
    steps = []
    for tokens, width, depth in (
        ([4], 1, 4),
        ([3, 4], 4, 4),
        ([5, 3, 4], 4, 4),
        ([8, 5, 3, 4], 4, 4),
        ([7, 5, 3, 4], 8, 4),
        ([9, 4], 8, 4),
        ([0, 2], 8, 2),
        ([2, 4], 16, 9),
        ([1], 8, 4),
    ):
        for sampling in ({}, {"temperature": 0.75, "seed": "5"}):
            tree = table.grow(tokens, width, depth, coupling=noise_of(sampling, vocab)[0])
            steps.append({"tokens": tokens, "width": width, "depth": depth, **sampling, "tree": tree_of(tree)})
    return {
        "format": FORMAT,
        "about": "the n-gram table to trees",
        "vocab_size": vocab,
        "ngram_keys": keys.tolist(),
        "ngram_starts": starts.tolist(),
        "ngram_ids": ids.tolist(),
        "ngram_log_probs": floats(log_probs),
        "steps": steps,
    }


def traces() -> dict[str, dict[str, Any]]:
    return {
        **loop_traces(),
        "random": random_trace(),
        "sampling": sampling_trace(),
        "growth": growth_trace(),
        "ngrams": ngrams_trace(),
        "plan": plan_trace(),
    }


def text_of(trace: dict[str, Any]) -> str:
    """JSON with one line per key, also inside steps: small and diffable."""

    def lines(item: dict[str, Any], indent: str) -> str:
        return ",\n".join(f"{indent}{json.dumps(key)}: {value(entry, indent)}" for key, entry in item.items())

    def value(entry: Any, indent: str) -> str:
        if not (isinstance(entry, list) and entry and isinstance(entry[0], dict)):
            return json.dumps(entry)
        blocks = (f"{indent}  {{\n{lines(one, indent + '    ')}\n{indent}  }}" for one in entry)
        return "[\n" + ",\n".join(blocks) + f"\n{indent}]"

    return "{\n" + lines(trace, "  ") + "\n}\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, trace in traces().items():
        (folder / f"{name}.json").write_text(text_of(trace), encoding="utf-8")
        print(f"wrote {name}.json")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: PYTHONPATH=tests/helpers python tools/make_traces.py FOLDER")
    main(Path(sys.argv[1]))
