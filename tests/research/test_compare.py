"""The comparison of methods: what is counted, what is computed, and the files that come of it, on arithmetic models.

Run: python -m pytest tests/research/test_compare.py
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from fakes import ArithmeticBackend, decode_letters, greedy_after
from tokenizer_samples import opened
from tokenizers import decoders, models

from streamfuse.bench.external.answers import answer_of
from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.systems import Answer, ExternalSystemDied, Request
from streamfuse.bench.shared.turns import all_turns, questions
from streamfuse.bench.tasks import measure as tasks_measure
from streamfuse.research.acceptors import Match
from streamfuse.research.compare.answers import write_answers
from streamfuse.research.compare.calibrate import accuracy, shapes
from streamfuse.research.compare.core import CORE_OURS, CoreSystem
from streamfuse.research.compare.costs import DEVICES, computed_speedup, measured, table
from streamfuse.research.compare.measure import DataSet, MethodsResult, measure
from streamfuse.research.compare.methods import BASELINE, DRAFT, MEDUSA, METHODS, STREAMS, Method, Parts, chosen
from streamfuse.research.compare.online import Pair, plain_answers, shifting
from streamfuse.research.compare.online import row as online_row
from streamfuse.research.compare.peer_rows import peer_rows
from streamfuse.research.compare.peers import Peer
from streamfuse.research.compare.system import LoopSystem, plain_system, system_of
from streamfuse.research.drafters.model import DraftModel
from streamfuse.research.online import Noted
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.reference.draft import DraftTables
from streamfuse.runtime.reference.loop import Round
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.formats import Sample

VOCAB = 64
SPEC = ModelSpec(
    256, VOCAB, 4, 8, 16, {"verify_4": (4, 4), "verify_8": (8, 8)}, deferred=True,
    stream_nodes={"verify_4": 0, "verify_8": 0},
)  # fmt: skip
PROMPTS = [[3, 1, 4], [2, 7, 1, 8], [5, 9]]
COSTS = {
    "target: decode": 1.0, "target: verify_4": 1.5, "target: verify_8": 1.6, "target: streams": 0.4,
    "Medusa heads: streams": 0.1,
    "draft model: decode": 0.5, "draft model: verify_4": 0.6, "draft model: verify_8": 0.7,
}  # fmt: skip


class Letters:
    """Decodes; the comparison asks nothing else of a text."""

    decode = staticmethod(decode_letters)


def parts(accuracy: int = 12) -> Parts:
    backends: dict[str, Any] = {STREAMS: ArithmeticBackend(SPEC, accuracy), MEDUSA: ArithmeticBackend(SPEC, 0)}
    none = np.zeros((VOCAB, 0), np.float16)
    tables = DraftTables.of(
        none, none.astype(np.float32), np.zeros((4, 0), np.float32), np.arange(VOCAB, dtype=np.int32)
    )
    own = replace(SPEC, num_streams=0, top_k=0, deferred=False)
    return Parts(backends, tables, DraftModel(ArithmeticBackend(own)))


class Other:
    """Another program: the same arithmetic, a text that goes another way after `same` tokens, its own clock."""

    def __init__(self, name: str, ms: float, same: int) -> None:
        self.name, self._ms, self._same = name, ms, same

    def answer(self, request: Request) -> Answer:
        text = list(request.prompt_ids)
        while len(text) < len(request.prompt_ids) + request.max_new_tokens:
            text.append(greedy_after(text, VOCAB))
        tokens = text[len(request.prompt_ids) :]
        tokens[self._same :] = [VOCAB - 1] * len(tokens[self._same :])
        return answer_of(tokens, (), len(tokens), 12, self._ms, 1.5)


def compared(
    temperature: float = 0.0,
    names: tuple[str, ...] | None = None,
    accuracy: int = 12,
    peers: tuple[Other, ...] = (),
) -> MethodsResult:
    made = parts(accuracy)
    samples = [Sample(("say",), source="letters")] * len(PROMPTS)
    return measure(
        chosen(made, temperature, names), made, [DataSet("letters", PROMPTS, samples)],
        TaskSettings(24, 1, temperature), Letters(),  # type: ignore[arg-type]
        peers=peers, costs=COSTS, bandwidth=lambda: 10.0, weight_bytes=1000, facts={"model": "arithmetic"},
    )  # fmt: skip


def test_peers_of_any_name_run_after_our_systems_and_before_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Logged(Other):
        def answer(self, request: Request) -> Answer:
            log.append("peer")
            return super().answer(request)

    monkeypatch.setattr(tasks_measure.time, "sleep", lambda seconds: log.append("rest") if seconds >= 0.3 else None)
    compared(names=(), peers=(Logged("own", 12.0, 6), Logged("lone", 12.0, 0)))
    assert log == ["peer", "peer", "rest"] * (1 + len(PROMPTS))


def test_methods_that_share_a_draft_model_all_read_the_prompt_with_it() -> None:
    made = parts()
    request = Request([3, 1, 4, 1, 5], 12)
    shared = [method for method in METHODS if DRAFT in method.needs and not method.sampled]
    alone = [system_of(method, parts()).answer(request).statistics for method in shared]
    after_others = [system_of(method, made).answer(request).statistics for method in shared]
    assert len(shared) > 1
    for before, after in zip(alone, after_others, strict=True):
        assert before is not None
        assert after is not None
        assert before["passes"] == after["passes"]
        assert after["passes"]["draft model: prefill"] > 0


class Failing(Other):
    """Another program that raises `error` at the answer of this number, warm-ups counted."""

    def __init__(self, name: str, at: int, error: BaseException) -> None:
        super().__init__(name, 40.0, 24)
        self._left, self._error = at, error

    def answer(self, request: Request) -> Answer:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return super().answer(request)


def over_two_sets(peer: Failing, notices: list[str]) -> MethodsResult:
    made = parts()
    samples = [Sample(("say",), source="letters")] * len(PROMPTS)
    return measure(
        chosen(made, 0.0, ("prompt look-up",)), made,
        [DataSet("first", PROMPTS, samples), DataSet("second", PROMPTS, samples)],
        TaskSettings(24, 1), Letters(),  # type: ignore[arg-type]
        peers=[peer, Other("steady", 20.0, 24)], costs=COSTS, bandwidth=lambda: 10.0, weight_bytes=1000,
        without=notices.append,
    )  # fmt: skip


def test_a_peer_that_dies_keeps_the_sets_that_it_had_answered() -> None:
    notices: list[str] = []
    # A warm-up and three prompts of the first set, a warm-up and one prompt of the second.
    found = over_two_sets(Failing("crashing", 6, ExternalSystemDied("crashing was ended by SIGSEGV")), notices)
    unused = Other("unused", 1.0, 1)
    rows = peer_rows(found, [Peer(name, name, "", lambda shop: unused) for name in ("crashing", "steady")])
    assert {name: list(row["results"]) for name, row in rows.items()} == {
        "crashing": ["first"], "steady": ["first", "second"],
    }  # fmt: skip
    facts = found.to_dict()
    assert notices == ["Without crashing: crashing was ended by SIGSEGV"]
    assert facts["left_out"] == {"second": {"crashing": "crashing was ended by SIGSEGV"}}
    assert facts["complete"] is True
    assert facts["data"]["second"]["prompts"] == 3


@pytest.mark.parametrize("at", [4, 6])
def test_a_comparison_that_is_interrupted_reports_what_was_complete(at: int) -> None:
    """In the warm-up of the second set, and at its second prompt."""
    stop = KeyboardInterrupt()
    found = over_two_sets(Failing("slow", at, stop), [])
    assert found.stopped_by is stop
    facts = found.to_dict()
    assert facts["complete"] is False
    assert {name: one["prompts"] for name, one in facts["data"].items()} == (
        {"first": 3} if at == 4 else {"first": 3, "second": 1}
    )
    assert facts["methods"]["prompt look-up"]["results"].keys() == facts["data"].keys()


def named(name: str) -> Method:
    return next(method for method in METHODS if method.name == name)


@pytest.fixture(scope="module")
def greedy() -> dict[str, Any]:
    return compared().to_dict()


def test_every_lossless_method_writes_plain_decodings_text(greedy: dict[str, Any]) -> None:
    tokens = {name: row["results"]["letters"]["generated_tokens"] for name, row in greedy["methods"].items()}
    assert len(tokens) >= 7
    for name, row in greedy["methods"].items():
        if row["lossless"]:
            assert row["results"]["letters"]["equal_texts"], name
            assert tokens[name] == tokens[BASELINE]


def test_passes_and_tokens_are_those_of_the_run(greedy: dict[str, Any]) -> None:
    plain = greedy["methods"][BASELINE]["results"]["letters"]
    assert plain["mean_accepted_tokens"] == 1
    assert plain["passes"] == {"target: decode": plain["generated_tokens"]}
    assert plain["speedup"] == 1
    chain = greedy["methods"]["draft model, chain"]["results"]["letters"]
    assert chain["mean_accepted_tokens"] > 4, "the same arithmetic drafts what the target says"
    assert chain["passes"]["draft model: decode"] > chain["passes"].get("target: verify_8", 0)
    assert chain["acceptance"][0][0] == 1
    streams = greedy["methods"]["streams, ours"]["results"]["letters"]
    assert 1 < streams["mean_accepted_tokens"] < 5
    assert streams["passes"]["target: streams"]
    assert "target: streams" not in greedy["methods"]["prompt look-up"]["results"]["letters"]["passes"]


def test_heads_that_are_always_wrong_bring_one_token_per_pass(greedy: dict[str, Any]) -> None:
    # Accuracy 0 still proposes the right token at a later rank now and then, where the tree is wide enough.
    chain = compared(names=("Medusa heads",)).to_dict()["methods"]["Medusa heads"]["results"]["letters"]
    best = greedy["methods"]["streams, ours"]["results"]["letters"]
    assert chain["mean_accepted_tokens"] < best["mean_accepted_tokens"]
    assert set(chain["passes"]) <= {"target: decode", "target: verify_4", "target: verify_8", "Medusa heads: streams"}


def test_the_costs_of_all_passes_are_measured() -> None:
    assert measured(parts(), PROMPTS[0]).keys() == COSTS.keys()


def test_a_computed_speedup_is_tokens_over_what_the_passes_cost() -> None:
    costs = {"target: decode": 1.0, "target: verify_8": 2.0, "draft model: decode": 0.5}
    passes = {"target: verify_8": 10, "draft model: decode": 20, "draft model: prefill": 7}
    assert computed_speedup(passes, 60, costs) == pytest.approx(60 / (10 * 2 + 20 * 0.5))


def test_another_device_has_its_own_curve_and_the_shares_of_this_one() -> None:
    here = {"target: decode": 4.0, "target: verify_8": 9.0, "target: streams": 1.0, "draft model: decode": 2.0,
            "draft model: verify_4": 3.0}  # fmt: skip
    found = table(DEVICES["flat (NPU)"], here)
    assert found["target: decode"] == 1
    assert found["target: verify_8"] == pytest.approx(1.075)
    assert found["target: streams"] == pytest.approx(0.25)
    assert found["draft model: verify_4"] == pytest.approx(0.5 * 1.05)


def test_lossy_methods_are_named_so_and_their_loss_is_measured(greedy: dict[str, Any]) -> None:
    lossy = compared(1.0, ("Medusa heads, typical acceptance",)).to_dict()["methods"][
        "Medusa heads, typical acceptance"
    ]
    assert lossy["lossless"] is False
    assert 0 <= lossy["results"]["letters"]["share_of_equal_tokens"] <= 1
    assert greedy["methods"]["streams, ours"]["results"]["letters"]["share_of_equal_tokens"] is None


def test_sampled_texts_are_equal_where_tokens_are_promised() -> None:
    rows = compared(0.8, ("streams, ours", "prompt look-up", "draft model, chain", "draft model, tree")).to_dict()[
        "methods"
    ]
    assert {name: row["promises"] for name, row in rows.items()} == {
        "plain": "tokens", "streams, ours": "tokens", "prompt look-up": "tokens",
        "draft model, chain": "distribution", "draft model, tree": "distribution",
    }  # fmt: skip
    for name, row in rows.items():
        equal = row["results"]["letters"]["equal_texts"]
        assert equal == (row["promises"] == "tokens"), name
    assert {method.promises(0.0) for method in METHODS if method.lossless} == {"tokens"}
    assert {method.promises(0.8) for method in METHODS if not method.lossless} == {None}


def test_calibration_finds_how_often_each_stream_and_rank_is_right() -> None:
    """Streams that know the text are right at rank 0; those of accuracy 0 propose it at no rank of the best few."""
    backend = ArithmeticBackend(SPEC, accuracy=16)
    known = accuracy(backend, PROMPTS, given_parent=True, new_tokens=20)
    assert known.shape == (4, 8)
    np.testing.assert_array_equal(known[:, 0], 1)
    assert not known[:, 1:].any()
    wrong = accuracy(ArithmeticBackend(SPEC, accuracy=0), PROMPTS, given_parent=False, new_tokens=20)
    assert not wrong[:, 0].any()
    with pytest.raises(ValueError, match="no answer to calibrate with is longer than 4 tokens"):
        accuracy(backend, PROMPTS, given_parent=True, new_tokens=4)


def test_calibrated_trees_are_chains_where_the_first_rank_is_always_right() -> None:
    made = parts(accuracy=16)
    made.shapes = shapes(made, PROMPTS, 8, COSTS)
    assert made.shapes[STREAMS] == ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))
    assert {"streams, Sequoia's tree", "Medusa heads, calibrated tree"} <= {one.name for one in chosen(made, 0.0)}


def test_sequoias_tree_is_as_large_as_the_measured_passes_make_it_pay() -> None:
    """A chain of 4 in verify_8 brings 5 tokens, one of 3 in verify_4 brings 4 at 1.5, both for 0.4 of streams."""
    made = parts(accuracy=16)
    for verify_8, drafted in ((1.9, 4), (2.1, 3)):
        found = shapes(made, PROMPTS, 8, {**COSTS, "target: verify_8": verify_8})
        assert len(found[STREAMS]) == drafted
    assert len(shapes(made, PROMPTS, 4, COSTS)[STREAMS]) == 3
    pruning = replace(SPEC, widths={"verify_4": (4, 4), "verify_8": (8, 6)})
    made.backends = {STREAMS: ArithmeticBackend(pruning, 16)}
    assert len(shapes(made, PROMPTS, 8, COSTS)[STREAMS]) == 3


def test_what_cannot_run_here_is_left_out_and_unknown_names_are_refused() -> None:
    made = parts()
    names = [method.name for method in chosen(made, 0.0)]
    assert "self-speculation" not in names
    assert "n-gram table" not in names
    assert "draft model, SpecTr" not in names
    assert "draft model, SpecTr" in [method.name for method in chosen(made, 0.7)]
    with pytest.raises(ValueError, match="--methods: 'eagle' is none of plain; streams"):
        chosen(made, 0.0, ("eagle",))


def test_a_sample_has_every_token_with_its_source_and_what_was_drafted_in_vain(greedy: dict[str, Any]) -> None:
    sample = greedy["sample"]
    text = "".join(token["text"] for token in sample["plain"]["tokens"])
    first = greedy_after(PROMPTS[0], VOCAB)
    assert text[0] == decode_letters([first])
    ours = sample["methods"]["streams, ours"]
    assert "".join(token["text"] for token in ours["tokens"]) == text
    assert {token["source"] for token in ours["tokens"]} == {"target", "streams"}
    assert ours["rejected"]
    assert all(0 <= one["at"] <= len(ours["tokens"]) and one["depth"] >= 1 for one in ours["rejected"])
    times = [token["ms"] for token in ours["tokens"]]
    assert times == sorted(times)


def test_what_learns_answers_a_shifting_mix_beside_its_frozen_twin() -> None:
    made, noted, seen = parts(), list[Noted](), []
    first = DataSet("letters", [*PROMPTS, [6, 6]], [Sample(("say",), source="letters")] * 4)
    second = DataSet("more", [[8, 3], [1, 2, 3]], first.samples[:2])
    visits = shifting([first, second])
    assert [(visit.data.name, visit.again, len(visit.data.prompts)) for visit in visits] == [
        ("letters", False, 2), ("more", False, 2), ("letters", True, 2)
    ]  # fmt: skip
    assert [*visits[0].data.prompts, *visits[2].data.prompts] == first.prompts
    learned = parts(accuracy=16)  # of the same texts, which the streams of these know by heart
    method, settings = named("streams, ours"), TaskSettings(24, 1, 0.0)

    def learning(see: Callable[[Round], None]) -> LoopSystem:
        seen.append(len(noted))
        return system_of(method, learned if noted else made, acceptor=WithLogits(), observe=see)

    pair = Pair("streams, online", method, learning, system_of(method, made), noted.append, lambda: 1)
    plain = plain_answers(plain_system(made), visits, settings, lambda line: None)
    costs = {device: Counter({"target: decode": 1.0, "target: verify_8": 1.5}) for device in DEVICES}
    found = online_row(pair, visits, plain, settings, Letters(), costs, {})  # type: ignore[arg-type]
    assert all(result["equal_texts"] for result in found["results"].values())
    assert seen == [0, 1, 2, 3, 4, 5], "each answer is noted before the next one"
    assert [one.tokens[one.start :] for one in noted] == [list(answer.token_ids) for answer in plain]
    course = found["online"]["visits"]
    assert [(one["data"], one["again"], one["equal_texts"]) for one in course] == [
        ("letters", False, True), ("more", False, True), ("letters", True, True)
    ]  # fmt: skip
    assert all(tokens == 24 for one in course for tokens, _, _ in one["answers"])
    passes = [(own, frozen) for one in course for _, own, frozen in one["answers"]]
    assert passes[0][0] == passes[0][1]
    assert sum(own for own, _ in passes[1:]) < sum(frozen for _, frozen in passes[1:])
    assert found["results"]["letters"]["generated_tokens"] == 4 * 24


class WithLogits(Match):
    needs_logits = True


def chat() -> Tokenizer:
    """Every message is its text, then a dot; a token per letter."""
    letters = tokenizers.Tokenizer(
        models.BPE({letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz.")}, [])
    )
    letters.decoder = decoders.Fuse()
    return opened(letters, "{% for message in messages %}{{ message.content }}.{% endfor %}")


def asked(room: int = 200) -> tuple[list[tuple[list[int], Sample]], list[list[int]]]:
    """Turns of two questions, and the prompts that an answer was written to."""
    samples = [Sample(("one", "two", "three"), ("right",), "chat", number=81), Sample(("four",), source="qa", number=7)]
    written: list[list[int]] = []

    def write(number: int, prompt: Sequence[int]) -> list[int]:
        assert number == len(written)
        written.append(list(prompt))
        return [5, 6, 7]

    return all_turns(samples, chat(), room, write), written


def test_a_later_turn_is_asked_with_the_answers_to_those_before_it() -> None:
    found, written = asked()
    prompts = [prompt for prompt, _ in found]
    assert written == prompts[:2], "nobody reads the answer to a last turn"
    encode, answer = chat().encode_rendered, [5, 6, 7]
    assert prompts[1] == encode("one.") + answer + encode(".two.")
    assert prompts[2] == prompts[1] + answer + encode(".three.")
    assert [(sample.turns[-1], sample.references) for _, sample in found] == [
        ("one", ()), ("two", ()), ("three", ("right",)), ("four", ())
    ]  # fmt: skip
    assert questions([sample for _, sample in found]) == [[0, 1, 2], [3]]


def test_a_question_ends_before_a_turn_that_has_no_room() -> None:
    found, _ = asked(room=14)
    assert [sample.turns[-1] for _, sample in found] == ["one", "two", "four"]
    assert asked(room=2)[0] == []


def spec_bench_speed(path: Path, category: str) -> tuple[float, float]:
    """Tokens per second and mean accepted tokens as evaluation/speed.py of Spec-Bench takes them from a file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    choices = [row["choices"][0] for row in rows if row["category"] == category]
    speeds = [sum(choice["new_tokens"]) / sum(choice["wall_time"]) for choice in choices]
    return float(np.mean(speeds)), float(np.mean([n for choice in choices for n in choice["accept_lengths"]]))


def spec_bench_equal(one: Path, other: Path) -> bool:
    """Whether two files hold the same texts for evaluation/equal.py of Spec-Bench: it compares lists of turns."""
    texts = [
        [json.loads(line)["choices"][0]["turns"] for line in path.read_text().splitlines()] for path in (one, other)
    ]
    return texts[0] == texts[1]


def test_answers_are_written_as_spec_bench_reads_them(tmp_path: Path) -> None:
    made, found = parts(), asked()[0]
    data = DataSet("chat", [prompt for prompt, _ in found], [sample for _, sample in found])
    result = measure(
        chosen(made, 0.0, ("streams, ours",)), made, [data], TaskSettings(24, 1), Letters(),  # type: ignore[arg-type]
        costs=COSTS, bandwidth=lambda: 10.0, weight_bytes=1000,
    )  # fmt: skip
    paths = write_answers(result, tmp_path)
    assert [path.name for path in paths] == ["plain.jsonl", "streams-ours.jsonl"]
    rows = [json.loads(line) for line in paths[1].read_text().splitlines()]
    assert [(row["question_id"], row["category"]) for row in rows] == [(81, "chat"), (7, "qa")]
    assert result.to_dict()["data"]["chat"] == {"prompts": 4, "questions": 2}
    answers = result.answers("streams, ours", "chat")
    for row, own in zip(rows, (answers[:3], answers[3:]), strict=True):
        (choice,) = row["choices"]
        assert choice["turns"] == [decode_letters(answer.token_ids) for answer in own]
        assert choice["new_tokens"] == [len(answer.token_ids) for answer in own]
        assert choice["wall_time"] == pytest.approx([answer.decode_ms / 1000 for answer in own])
        assert sum(choice["accept_lengths"]) == sum(choice["new_tokens"])
        assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
    tokens, seconds = sum(len(a.token_ids) for a in answers[:3]), sum(a.decode_ms for a in answers[:3]) / 1000
    speed, accepted = spec_bench_speed(paths[1], "chat")
    assert speed == pytest.approx(tokens / seconds)
    assert accepted > spec_bench_speed(paths[0], "chat")[1] == 1
    assert spec_bench_equal(*paths)


def test_a_question_without_a_number_gets_its_place(tmp_path: Path) -> None:
    path = write_answers(compared(names=("streams, ours",)), tmp_path)[0]
    assert [json.loads(line)["question_id"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_a_peer_is_held_against_its_own_plain_decoding_and_its_text_against_ours() -> None:
    """Also if its name is that of a program of `bench tasks`."""
    result = compared(
        names=(), peers=(Other("llama.cpp", 12.0, 6), Other("llama.cpp, draft model", 4.0, 6), Other("lone", 12.0, 0))
    )
    about = [
        Peer(name, plain, "another program", lambda shop: Other("", 0, 0))
        for name, plain in (
            ("llama.cpp", "llama.cpp"),
            ("llama.cpp, draft model", "llama.cpp"),
            ("lone", "gone"),
            ("missing", "llama.cpp"),
        )
    ]
    rows = peer_rows(result, about)
    assert list(rows) == ["llama.cpp", "llama.cpp, draft model", "lone"]
    drafted, lone = (rows[name]["results"]["letters"] for name in ("llama.cpp, draft model", "lone"))
    assert drafted["speedup"] == pytest.approx(3)
    assert drafted["equal_texts"] is True
    assert drafted["share_of_equal_tokens"] == pytest.approx(6 / 24)
    assert drafted["mean_accepted_tokens"] == 2
    assert drafted["tokens_per_second"] == pytest.approx(6000)
    assert drafted["over_core_plain"] is None, "the core did not run"
    assert lone["speedup"] is lone["equal_texts"] is None
    assert "llama.cpp, draft model" not in result.to_dict()["methods"]


def test_the_lane_of_the_core_names_who_drafted_each_token() -> None:
    costs = {"decode": 2.0, "verify_4": 2.2, "verify_8": 2.4, "streams": 0.1}
    with Session(ArithmeticBackend(SPEC, 12), costs=costs) as session:
        ours = CoreSystem(CORE_OURS, session, True)
        request = Request([3, 1, 4], 40)
        answer, lane = ours.answer(request), ours.lane(request, Letters())  # type: ignore[arg-type]
        assert "".join(one["text"] for one in lane["tokens"]) == decode_letters(answer.token_ids)
        assert {"target", "streams"} <= {one["source"] for one in lane["tokens"]} <= {"target", "streams", "text"}
        times = [one["ms"] for one in lane["tokens"]]
        assert times == sorted(times)
        assert times[0] > 0
        assert all(0 <= one["at"] < len(lane["tokens"]) and one["depth"] > 0 for one in lane["rejected"])
