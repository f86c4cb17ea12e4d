"""Golden traces, as Kotlin and Swift replay them (tests/traces/README.md).

Run: pytest tests/runtime/test_runtime_traces.py
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import make_traces
from make_traces import spec_of
from streamfuse.runtime.backend import DECODE, PassOutput
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.accept import MatchAcceptor
from streamfuse.runtime.reference.coupling import Coupling
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter, grow
from streamfuse.runtime.reference.guide import Guide
from streamfuse.runtime.reference.lookup import LookUpDrafter
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.reference.ngram_table import NgramTable
from streamfuse.runtime.reference.tree import Tree
from streamfuse.runtime.session import Session

FOLDER = Path(__file__).parents[1] / "traces"
LOOPS = sorted(path.stem for path in FOLDER.glob("loop_*.json"))


def read(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    found: dict[str, Any] = (
        make_traces.read_loop(path) if name in LOOPS else json.loads(path.read_text(encoding="utf-8"))
    )
    return found


def config_of(trace: dict[str, Any]) -> GenerationConfig:
    sampling = SamplingConfig(**{**trace["sampling"], "seed": int(trace["sampling"]["seed"])})
    config = {key: tuple(value) if isinstance(value, list) else value for key, value in trace["config"].items()}
    return GenerationConfig(sampling=sampling, **config)


@pytest.mark.parametrize("place", ["", "spec", "sampling", "config", "step"])
def test_a_trace_with_an_unknown_or_a_missing_field_is_refused(place: str, tmp_path: Path) -> None:
    whole, changed = read("loop_deferred"), tmp_path / "changed.json"
    part = whole["steps"][-1] if place == "step" else whole[place] if place else whole
    for field in [*part, "other"]:
        before = part.pop(field, None)
        if field == "other":
            part[field] = 1
        changed.write_text(json.dumps(whole), encoding="utf-8")
        with pytest.raises(ValueError, match=field):
            make_traces.read_loop(changed)
        part[field] = before


def assert_same_tree(tree: Tree, expected: dict[str, Any]) -> None:
    assert tree.tokens.tolist() == expected["tokens"]
    assert tree.parents.tolist() == expected["parents"]
    np.testing.assert_allclose(tree.log_probs, expected["log_probs"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "loop_deferred"])  # its streams are not recorded
def test_the_five_verbs_replay_a_trace_from_its_recorded_outputs(name: str) -> None:
    trace = read(name)
    drafter, tokens = StreamDrafter() if trace["spec"]["num_streams"] else LookUpDrafter(), list(trace["prompt"])
    guide = Guide(make_traces.constraint_of(trace), config_of(trace).stop_ids(spec_of(trace)), 8)
    drafter.guide = guide
    drafter.coupling = Coupling.of(config_of(trace).sampling, trace["spec"]["vocab_size"])
    width = config_of(trace).width_for(spec_of(trace))
    length = len(tokens) - 1
    room = min(trace["config"]["max_new_tokens"], trace["spec"]["capacity"] - len(tokens))
    for step in trace["steps"]:
        plain = step["method"] == DECODE
        tree = Tree.root(tokens[-1]) if plain else drafter.draft(tokens, width, room - 1)
        assert_same_tree(tree, step["tree"])
        kept = np.array(step["kept"])
        output = PassOutput(
            None,
            np.zeros(len(kept), np.int64),
            kept,
            np.array(step["stream_ids"], np.int64),
            np.array(step["stream_log_probs"], np.float32),
        )
        chosen = iter(step["chosen"])
        walk = MatchAcceptor().accept(tree, output, tokens, lambda *_, chosen=chosen: next(chosen))
        assert (walk.rows, walk.tokens) == (step["path"], step["chosen"])
        assert step["emitted"] == walk.tokens[: len(step["emitted"])]
        tokens += step["emitted"]
        room -= len(step["emitted"])
        length += len(step["emitted"])
        assert length == step["length"]
        guide.take(tuple(step["emitted"]))
        if not plain:
            drafter.learn(output, walk.last)
    assert tokens == trace["prompt"] + trace["generated"]


@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_replays_a_trace_on_the_arithmetic_model(name: str) -> None:
    trace = read(name)
    tokens, steps = list(trace["prompt"]), []
    model = spec_of(trace)
    stop = threading.Event()
    backend = make_traces.engine_of(trace, model, stop.set)
    loop = Loop(
        backend, tokens, config_of(trace), StreamDrafter() if model.num_streams else LookUpDrafter(),
        constraint=make_traces.constraint_of(trace), stop=stop,
        observe=lambda one: steps.append(make_traces.step_of(one)),
    )  # fmt: skip
    for count, _ in enumerate(loop.run(), start=1):
        if count == trace.get("stop", {}).get("tokens"):
            stop.set()
    assert backend.length == trace.get("cached", backend.length)
    assert tokens == trace["prompt"] + trace["generated"]
    assert loop.counts.finish_reason == trace["finish_reason"]
    for step, expected in zip(steps, trace["steps"], strict=True):
        trees = step.pop("tree"), expected.pop("tree")
        assert step == expected
        assert trees[0]["tokens"] == trees[1]["tokens"]


@pytest.mark.parametrize("name", LOOPS)
def test_the_core_replays_a_trace_on_the_arithmetic_model(name: str) -> None:
    trace, passes = read(name), []
    model, config = spec_of(trace), config_of(trace)
    with Session(make_traces.engine_of(trace, model, lambda: session.stop())) as session:
        config = replace(config, width=config.width_for(model) if config.speculative else None)
        constraint = make_traces.constraint_of(trace)
        generation = session.generate(trace["prompt"], config, passes.append, constraint=constraint)
        for count, _ in enumerate(generation, start=1):
            if count == trace.get("stop", {}).get("tokens"):
                generation.stop()
        assert session.core.cached == trace.get("cached", session.core.cached)
    assert generation.token_ids == trace["generated"]
    assert generation.statistics.finish_reason == trace["finish_reason"]
    for one, expected in zip(passes, trace["steps"], strict=True):
        assert (one.method, one.tokens, one.parents) == (
            expected["method"], expected["tree"]["tokens"], expected["tree"]["parents"],
        )  # fmt: skip
        np.testing.assert_allclose(one.log_probs, expected["tree"]["log_probs"], rtol=0, atol=2e-6)
        assert (one.kept, one.walk_tokens, one.walk_rows, one.walk_tokens[: one.delivered], one.cached) == tuple(
            expected[key] for key in ("kept", "chosen", "path", "emitted", "length")
        )


def test_the_plan_s_trace_shows_all_of_its_sources() -> None:
    texts = read("plan")["texts"]
    sources = {source for text in texts for step in text["steps"] for source in step["sources"]}
    assert sources == {"model", "streams", "lookup", "table"}
    assert {step["reason"] for step in texts[-1]["steps"]} > {None}
    assert all(text["streams_passes"] for text in texts)


def test_the_traces_show_what_their_titles_promise() -> None:
    pruned = [step for step in read("loop_greedy")["steps"] if len(step["kept"]) < len(step["tree"]["tokens"])]
    assert pruned
    assert any(step["kept"] != sorted(step["kept"]) for step in pruned)
    last = read("loop_stop")["steps"][-1]
    assert 0 < len(last["emitted"]) < len(last["chosen"])
    prompt, first, middle = (read(f"loop_stopped_{name}") for name in ("in_prompt", "first", "middle"))
    assert (prompt["steps"], prompt["generated"], prompt["cached"]) == ([], [], 2 * prompt["spec"]["prefill_rows"])
    assert (len(first["steps"]), first["generated"], first["cached"]) == (1, [], len(first["prompt"]) - 1)
    assert 0 < len(middle["steps"][-1]["emitted"]) < len(middle["steps"][-1]["chosen"])
    assert len(middle["generated"]) == middle["stop"]["tokens"]
    constrained, lookup = read("loop_constrained"), read("loop_constrained_lookup")
    assert constrained["finish_reason"] == "stop"
    assert constrained["generated"][-1] == 9
    assert [5, 6, 7] in [step["tree"]["tokens"][1:4] for step in constrained["steps"]], "forced tokens are drafted"
    assert lookup["finish_reason"] == "incomplete"
    assert any(len(step["emitted"]) > 1 for step in lookup["steps"])
    context = read("loop_context")
    assert len(context["prompt"]) + len(context["generated"]) == context["spec"]["capacity"]


@pytest.mark.parametrize("number", range(12))
def test_growth_replays_the_trace(number: int) -> None:
    trace = read("growth")
    tables = DraftTables.of(
        np.array(trace["parent_left"], np.float16),
        np.array(trace["parent_right"], np.float16),
        np.array(trace["gate"], np.float32),
        np.array(trace["stream_vocab"], np.int32),
    )
    step = trace["steps"][number]
    ids, log_probs = np.array(step["stream_ids"]), np.array(step["stream_log_probs"], np.float32)
    chosen = tables if step["parent_term"] else None
    noise = make_traces.noise_of(step, len(tables.parent_left))
    assert_same_tree(grow(step["root"], ids, log_probs, step["width"], len(ids), chosen, *noise), step["tree"])


@pytest.mark.parametrize("number", range(18))
def test_the_n_gram_table_replays_the_trace(number: int) -> None:
    trace = read("ngrams")
    arrays = (np.array(trace[f"ngram_{name}"]) for name in ("keys", "starts", "ids"))
    table = NgramTable.of(trace["vocab_size"], *arrays, np.array(trace["ngram_log_probs"], np.float16))
    step = trace["steps"][number]
    coupling, _ = make_traces.noise_of(step, trace["vocab_size"])
    assert_same_tree(table.grow(step["tokens"], step["width"], step["depth"], coupling=coupling), step["tree"])


@pytest.mark.parametrize("name", ["loop_constrained", "loop_constrained_lookup"])
def test_every_path_of_a_constrained_draft_is_in_the_grammar(name: str) -> None:
    trace, text = read(name), []
    for step in trace["steps"]:
        tokens, parents = step["tree"]["tokens"], step["tree"]["parents"]
        paths: list[list[int]] = [[]]
        for token, parent in zip(tokens[1:], parents[1:], strict=True):
            paths.append([*paths[parent], token])
        for path in paths:
            automaton = make_traces.constraint_of(trace)
            assert automaton is not None
            for token in [*text, *path]:
                automaton.accept(token)  # which asserts that it may follow
        text += step["emitted"]


def test_the_files_are_what_make_traces_writes() -> None:
    written = {name: make_traces.text_of(trace) for name, trace in make_traces.traces().items()}
    assert {path.stem for path in FOLDER.glob("*.json")} == set(written)
    for name, text in written.items():
        assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text, f"{name}: run `make traces` and review"
