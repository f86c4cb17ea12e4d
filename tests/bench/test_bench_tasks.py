"""The task bench over scripted systems, the arithmetic model and a fake llama.cpp: turns, ratios, equality, the JSON.

Run: python -m pytest tests/bench/test_bench_tasks.py
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import CAPACITY, edit_manifest, fake_engines, write_bundle
from engine_fixtures import made_engines
from equality_engines import latencies
from fake_llama import FakeLlama
from typer.testing import CliRunner

from streamfuse import engines
from streamfuse.api import Model, load
from streamfuse.bench.external import llama_cpp
from streamfuse.bench.external.opening import trial
from streamfuse.bench.shared import cold_caches
from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.systems import (
    LLAMA_CPP,
    MEMORY,
    ONNX_GENAI,
    PLAIN,
    SPECULATIVE,
    WITHOUT,
    Answer,
    ExternalSystemError,
    OwnRuntime,
    Request,
    accept_lengths,
)
from streamfuse.bench.tasks import measure
from streamfuse.bench.tasks import prompts as bench_prompts
from streamfuse.bench.tasks.measure import TaskError, TaskResult, compare
from streamfuse.bench.tasks.report import gain_rows, summary, system_rows, tasks_report
from streamfuse.cli import app
from streamfuse.options import OptionError
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.readers import read_samples

PROMPTS = [[1, 2, 3], [4, 5]]


class Scripted:
    """A system with a speed; it writes down when it was asked."""

    def __init__(self, name: str, ms_per_token: float, log: list[str], token: int = 7) -> None:
        self.name, self.ms_per_token, self.log, self.token = name, ms_per_token, log, token
        self.requests: list[Request] = []

    def answer(self, request: Request) -> Answer:
        self.log.append(self.name)
        self.requests.append(request)
        tokens = (self.token,) * request.max_new_tokens
        return Answer(tokens, self.ms_per_token * len(tokens))


def run(*systems: Scripted, **settings: Any) -> TaskResult:
    asked = TaskSettings(**{"max_new_tokens": 10, "repetitions": 3, **settings})
    return compare(systems, PROMPTS, asked, lambda: 20.0, weight_bytes=100_000_000)


def three(log: list[str], wrong: int = 7) -> list[Scripted]:
    return [
        Scripted(PLAIN, 6.0, log),
        Scripted(SPECULATIVE, 2.0, log, token=wrong),
        Scripted(LLAMA_CPP, 8.0, log, token=9),
    ]


def test_ratios_are_those_of_the_rates() -> None:
    facts = json.loads(json.dumps(run(*three([])).to_dict()))
    assert facts["systems"][PLAIN]["decode_token_per_sec"] == pytest.approx(1000 / 6)
    assert facts["systems"][PLAIN]["decode_token_per_sec_interval"] == pytest.approx([1000 / 6] * 2)
    assert facts["speedup"] == pytest.approx(3.0)
    assert facts["over"]["llama.cpp"][SPECULATIVE]["speedup"] == pytest.approx(4.0)
    assert facts["over"]["llama.cpp"][PLAIN]["interval"] == pytest.approx([4 / 3] * 2)
    assert facts["roofline_token_per_sec"] == pytest.approx(200.0)
    assert facts["speculative_over_roofline"] == pytest.approx(2.5)
    assert facts["equal"] is True


def test_of_other_programs_only_the_speed_is_reported() -> None:
    class Program(Scripted):
        def answer(self, request: Request) -> Answer:
            return replace(super().answer(request), statistics={"first_token_ms": 3.0, "target_forward_passes": 10})

    facts = run(Scripted(PLAIN, 6.0, []), Program(ONNX_GENAI, 9.0, [], token=9)).to_dict()
    assert facts["over"] == {ONNX_GENAI: {PLAIN: {"speedup": pytest.approx(1.5), "interval": pytest.approx([1.5] * 2)}}}
    assert set(facts["systems"][ONNX_GENAI]) == {
        "decode_token_per_sec", "decode_token_per_sec_interval", "generated_tokens"
    }  # fmt: skip


def test_systems_take_turns_after_a_warm_up_each() -> None:
    log: list[str] = []
    systems = three(log)
    run(*systems)
    warm_up, rest = log[:3], [log[i : i + 3] for i in range(3, len(log), 3)]
    assert set(warm_up) == {PLAIN, SPECULATIVE, LLAMA_CPP}
    assert len(rest) == 3 * len(PROMPTS)
    assert all(len(set(turn)) == 3 for turn in rest)
    assert {turn[0] for turn in rest} == {PLAIN, SPECULATIVE}, "not always the same one begins"


def test_no_system_of_ours_follows_another_program_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: log.append("rest") if seconds >= 0.3 else None)
    run(*three(log), Scripted(ONNX_GENAI, 9.0, log), Scripted(WITHOUT["streams"], 3.0, log))
    assert log[5] == "rest", "after a warm-up of each"
    turns = [log[i : i + 6] for i in range(6, len(log), 6)]
    assert len(turns) == 3 * len(PROMPTS)
    for turn in turns:
        assert set(turn[:3]) == {PLAIN, SPECULATIVE, WITHOUT["streams"]}
        assert set(turn[3:5]) == {LLAMA_CPP, ONNX_GENAI}
        assert turn[5] == "rest"
    log.clear()
    run(*three(log)[:2])
    assert "rest" not in log


def test_repetitions_ask_the_same_and_prompts_have_seeds_of_their_own() -> None:
    plain = Scripted(PLAIN, 6.0, [])
    run(plain, temperature=0.8, seed=100)
    asked = {(tuple(request.prompt_ids), request.temperature, request.seed) for request in plain.requests}
    assert asked == {((1, 2, 3), 0.8, 100), ((4, 5), 0.8, 101)}


def test_one_different_token_breaks_equality() -> None:
    result = run(*three([], wrong=8))
    assert result.equal is False
    assert "THE OUTPUTS DIFFER" in summary(result)


def test_a_source_of_drafts_brings_what_is_lost_without_it() -> None:
    systems = [
        Scripted(PLAIN, 6.0, []),
        Scripted(SPECULATIVE, 2.0, []),
        Scripted(WITHOUT["streams"], 2.2, []),
        Scripted(WITHOUT["lookup"], 5.0, []),
    ]
    settings = TaskSettings(max_new_tokens=10, repetitions=2)
    result = compare(systems, PROMPTS, settings, lambda: 20.0, 100_000_000, kinds=["qa", "writing"])
    gains = json.loads(json.dumps(result.to_dict()))["gains"]
    assert list(gains) == ["all", "qa", "writing"]
    assert gains["qa"][PLAIN]["speedup"] == pytest.approx(3.0)
    assert gains["all"]["without streams"]["speedup"] == pytest.approx(1.1)
    assert gains["writing"]["without lookup"]["interval"] == pytest.approx([2.5, 2.5])
    columns, rows = gain_rows(result)
    assert columns == ["prompts", "over plain", "over without streams", "over without lookup"]
    assert rows[0] == ["all", "3.00x (3.00 to 3.00)", "1.10x (1.10 to 1.10)", "2.50x (2.50 to 2.50)"]
    assert result.equal is True
    systems[2].token = 8
    assert compare(systems, PROMPTS, settings, lambda: 20.0, 100_000_000).equal is False
    alone = run(*three([]))
    assert (list(alone.gains), list(alone.gains["all"]), gain_rows(alone)[1]) == (["all"], [PLAIN], [])
    assert run(Scripted(PLAIN, 6.0, [])).gains == {}


def test_what_did_not_run_is_null() -> None:
    facts = run(Scripted(PLAIN, 6.0, [])).to_dict()
    for key in ("speedup", "speculative_over_roofline", "equal"):
        assert facts[key] is None
    assert facts["over"] == {}


def test_counted_passes_do_not_hear_the_clock() -> None:
    """The ratio of passes times their cost, loops included, whatever the answers took."""

    class Counted(Scripted):
        def answer(self, request: Request) -> Answer:
            plain = self.name == PLAIN
            time_ms = {"prefill": 0.0, "draft": 1.0, "verify": 0.0, "accept": 0.0, "commit": 0.0, "sample": 0.0}
            by = {"streams": 0 if plain else 3, "lookup": 0 if plain else 2, "table": 0}
            drafted = {"widths": {"decode": 1, "verify_8": 4}, "streams_passes": 4, "accepted_by_source": by}
            of_plain = {"widths": {"decode": 10}, "streams_passes": 0, "accepted_by_source": by}
            statistics = {
                **(of_plain if plain else drafted),
                "target_forward_passes": 10 if plain else 5,
                "mean_accepted_tokens": 1.0 if plain else 2.0,
                "draft_tokens_accepted": 0 if plain else 5,
                "cost_ms": {"decode": 4.0, "verify_8": 6.0, "streams": 1.0},
                "time_ms": time_ms,
                "fallback_reason": None,
                "finish_reason": "stop" if plain else "length",
                "first_token_ms": 8.0,
                "prefill_ms": 5.0,
                "prefilled_tokens": 10,
                "accept_lengths": [2, 4, 4],
            }
            return Answer((7,) * 10, self.ms_per_token * 10, statistics, cpu_ms=16.0, joules=0.4 if plain else 0.32)

    result = run(Counted(PLAIN, 1.0, []), Counted(SPECULATIVE, 9.0, []))
    assert result.counted_speedup == pytest.approx((10 * 4 + 1) / (4 + 4 * 6 + 4 * 1 + 1))
    drafted = result.to_dict()["systems"][SPECULATIVE]
    assert drafted["accepted_by_source"] == {"streams": 6, "lookup": 4, "table": 0}  # of two prompts
    assert (drafted["ended"], result.to_dict()["systems"][PLAIN]["ended"]) == (0, 2)
    times = [drafted[name] for name in ("first_token_ms", "prefill_token_per_sec", "cpu_ms_per_token")]
    assert times == pytest.approx([8.0, 2000.0, 2.0])
    assert drafted["joules_per_token"] == pytest.approx(0.04)
    assert "accepted drafts came from streams 60%, lookup 40%" in summary(result)
    assert "energy per token: plain 0.050 J, speculative 0.040 J" in summary(result)


def test_a_folder_of_one_file_is_data(tmp_path: Path) -> None:
    """Spec-Bench is such a folder; a file that is named for a split is not read in another's place."""
    row = json.dumps({"turns": ["Why?"], "category": "writing", "question_id": 1}) + "\n"
    (tmp_path / "question.jsonl").write_text(row)
    assert [sample.turns for sample in read_samples(tmp_path, split="test")] == [("Why?",)]


def test_nothing_to_run_is_refused() -> None:
    with pytest.raises(TaskError, match="no prompt"):
        compare([Scripted(PLAIN, 1.0, [])], [], TaskSettings(), lambda: 1.0, 1)
    with pytest.raises(OptionError, match=r"^repetitions must be at least 1, not 0$"):
        TaskSettings(repetitions=0)
    with pytest.raises(OptionError, match=r"^temperature must be at least 0, not -1$"):
        TaskSettings(temperature=-1)


def test_the_trial_rates_candidates_without_their_first_run() -> None:
    rates = trial({"A": Scripted("A", 5.0, []), "B": Scripted("B", 4.0, [])}, [1], TaskSettings())
    assert rates == pytest.approx({"A": 200.0, "B": 250.0})


def test_the_own_runtime_speculates_without_changing_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "engines_of", fake_engines()[1])
    model = load(write_bundle(tmp_path / "demo"), cost_cache=False)
    for temperature in (0.0, 0.9):
        request = Request([1, 2, 3, 4], 20, temperature, seed=5)
        plain = OwnRuntime(model, PLAIN).answer(request)
        speculative = OwnRuntime(model, SPECULATIVE).answer(request)
        assert plain.token_ids == speculative.token_ids
        assert speculative.statistics is not None
        assert speculative.statistics["speculative"] is True
        assert plain.decode_ms > 0
        assert plain.cpu_ms is not None
        for answer in (plain, speculative):
            assert answer.statistics is not None
            assert sum(answer.statistics["accept_lengths"]) == len(answer.token_ids)
            assert len(answer.statistics["accept_lengths"]) == answer.statistics["target_forward_passes"]


def test_the_passes_of_a_system_do_not_depend_on_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "engines_of", fake_engines()[1])
    bundle, new_session = write_bundle(tmp_path / "demo"), Model.session

    def with_fixed_costs(model: Model, **options: Any) -> Session:
        session = new_session(model, **options)
        session.core.set_costs(latencies(model.bundle.spec(), variant=3), frozen=True)
        return session

    monkeypatch.setattr(Model, "session", with_fixed_costs)

    def passes_beside(*others: str) -> list[Any]:
        with load(bundle, cost_cache=False) as model:
            systems = [OwnRuntime(model, name) for name in (*others, SPECULATIVE)]
            settings = TaskSettings(max_new_tokens=40, repetitions=2)
            result = compare(systems, [[place, 3, 1] for place in range(1, 9)], settings, lambda: 20.0, 1)
        answers = [answer for repeated in result.systems[SPECULATIVE].answers for answer in repeated]
        names = ("widths", "streams_passes", "accepted_by_source")
        return [[answer.statistics[name] for name in names] for answer in answers if answer.statistics]

    assert passes_beside() == passes_beside(PLAIN, *WITHOUT.values())


def test_a_pass_ends_with_a_token_of_the_models_own() -> None:
    assert accept_lengths([False, True, True, False, False, True], 4) == [1, 3, 1, 1]
    assert accept_lengths([True, False], 2) == [2, 0], "the second pass ended the text"
    assert accept_lengths([], 0) == []


def test_the_report_is_one_page_with_a_chart() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'streamfuse[bench]'")
    result = run(*three([]))
    page = tasks_report(result, "some model", "streamfuse bench tasks build/demo --data valid.jsonl").html()
    assert "<svg" in page
    assert "streamfuse bench tasks build/demo --data valid.jsonl" in page
    assert [row[0] for row in system_rows(result)[1]] == [PLAIN, SPECULATIVE, LLAMA_CPP]


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> FakeLlama:
    fake = FakeLlama()
    monkeypatch.setattr(llama_cpp, "library", lambda: fake)
    return fake


def test_llama_reads_the_prompt_first_and_decodes_from_its_last_token(llama: FakeLlama) -> None:
    system = llama_cpp.LlamaCpp(Path("some.gguf"), threads=2, capacity=64, stop_ids=[49])
    answer = system.answer(Request([1, 2, 3], 3))
    assert answer.token_ids == (6, 12, 24)
    assert llama.batches == [2, 1, 1, 1]
    assert (llama.settings.n_ctx, llama.settings.n_threads) == (64, 2)
    assert system.answer(Request([1, 2, 3], 3)).token_ids == answer.token_ids, "every answer begins anew"
    assert system.answer(Request([7], 2)).token_ids == (7, 14), "a prompt of one token has nothing to read"
    system.close()
    assert "llama_model_free" in llama.freed


def test_llama_ends_where_the_bundle_ends(llama: FakeLlama) -> None:
    system = llama_cpp.LlamaCpp(Path("some.gguf"), threads=1, capacity=64, stop_ids=[24])
    assert system.answer(Request([1, 2, 3], 9)).token_ids == (6, 12)


def test_llama_samples_at_a_temperature(llama: FakeLlama) -> None:
    llama_cpp.LlamaCpp(Path("some.gguf"), threads=1, capacity=64, stop_ids=[]).answer(Request([1], 1, 0.5, seed=3))
    assert llama.samplers == [("temperature", 0.5), ("seed", 3)]


def test_a_file_that_llama_refuses_is_named(llama: FakeLlama) -> None:
    with pytest.raises(ExternalSystemError, match=r"missing\.gguf"):
        llama_cpp.LlamaCpp(Path("missing.gguf"), threads=1, capacity=64, stop_ids=[])


def test_without_llama_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llama_cpp", None)
    for use in (llama_cpp.library, llama_cpp.check_installed):
        with pytest.raises(ExternalSystemError, match="streamfuse\\[llama-cpp\\]"):
            use()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    def say_sizes(manifest: dict[str, Any]) -> None:
        for scheme in manifest["quantization"].values():
            scheme |= {"bytes": 1000, "parameters": 1000}

    path = write_bundle(tmp_path / "demo")
    edit_manifest(path, say_sizes)
    return path


fake_engine = made_engines()


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", "tasks", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def questions(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"turns": [text, "and then?"]}) + "\n" for text in texts))
    return path


def test_the_command_prints_one_json_object(
    bundle: Path, tmp_path: Path, fake_engine: list[fakes.ArithmeticBackend]
) -> None:
    data = questions(tmp_path / "q.jsonl", "hi", "yo", "x" * 100)
    flags = ["--max-new-tokens", 8, "--repetitions", 2, "--systems", "plain,speculative", "--json"]
    code, stdout, stderr = command(bundle, "--data", data, *flags)
    assert code == 0, stderr
    facts = json.loads(stdout)
    assert facts["equal"] is True
    assert facts["prompts"] == 2
    assert facts["skipped"] == 1
    assert facts["systems"]["speculative"]["mean_accepted_tokens"] >= 1
    assert facts["systems"]["plain"]["mean_accepted_tokens"] == 1
    low, high = facts["speedup_interval"]
    assert low <= high


def test_the_command_takes_each_source_away(
    bundle: Path, tmp_path: Path, fake_engine: list[fakes.ArithmeticBackend]
) -> None:
    data = questions(tmp_path / "q.jsonl", "hi", "yo")
    flags = ["--max-new-tokens", 8, "--repetitions", 1, "--sources"]
    code, stdout, stderr = command(bundle, "--data", data, *flags, "--systems", "plain,speculative", "--json")
    assert code == 0, stderr
    facts = json.loads(stdout)
    assert list(facts["systems"]) == ["plain", "speculative", *WITHOUT.values()]
    assert facts["systems"]["without streams"]["accepted_by_source"]["streams"] == 0
    assert set(facts["gains"]["all"]) == {"plain", *WITHOUT.values()}
    code, stdout, stderr = command(bundle, "--data", data, *flags)
    assert code == 0, stderr
    assert re.search(r"\ball\b.*\d\.\d\dx", stdout)
    code, _, stderr = command(bundle, "--data", data, "--systems", "plain", "--sources")
    assert (code, "--sources needs speculative" in stderr) == (2, True)


def test_a_memory_has_the_answers_of_this_repetition_alone(
    bundle: Path, tmp_path: Path, fake_engine: list[fakes.ArithmeticBackend]
) -> None:
    data = questions(tmp_path / "q.jsonl", "hi", "hi", "hi")
    flags = ["--max-new-tokens", 8, "--repetitions", 2, "--systems", "plain,speculative", "--memory", "--json"]
    code, stdout, stderr = command(bundle, "--data", data, *flags)
    assert code == 0, stderr
    facts = json.loads(stdout)
    assert facts["equal"] is True
    assert facts["memory_speedup"] is not None

    steps: list[str] = []

    class Watched(OwnRuntime):
        def forget(self) -> None:
            steps.append("forget")
            super().forget()

        def answer(self, request: Request) -> Answer:
            steps.append("answer")
            return super().answer(request)

    with load(bundle, cost_cache=False, memory="") as model:
        settings = TaskSettings(max_new_tokens=4, repetitions=2)
        compare([Watched(model, MEMORY)], PROMPTS, settings, lambda: 20.0, 1)
    assert steps == ["answer", *["forget", "answer", "answer"] * 2]  # the first one warms up


def test_cold_caches_change_no_text_and_are_for_our_own_systems(
    bundle: Path, tmp_path: Path, fake_engine: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_caches, "largest_caches_bytes", lambda: 2**20)  # a server's take seconds to evict
    data = questions(tmp_path / "q.jsonl", "hi", "you")
    flags = ["--data", data, "--max-new-tokens", 8, "--repetitions", 1, "--cold-caches", "--json"]
    code, stdout, stderr = command(bundle, *flags, "--systems", "plain,speculative", "--memory")
    assert code == 0, stderr
    facts = json.loads(stdout)
    assert (facts["equal"], facts["cold_caches"]) == (True, True)
    assert facts["systems"]["plain"]["cpu_ms_per_token"] is None, "evictions take processor time too"
    assert facts["systems"]["plain"]["joules_per_token"] is None
    assert not engines.cost_folder().exists(), "what `run` reads there is of warm caches"
    assert len(fake_engine) == 3, "one of each system"
    code, _, stderr = command(bundle, *flags, "--systems", "plain,llama.cpp")
    assert (code, "--cold-caches" in stderr) == (2, True)


@pytest.mark.parametrize("streams", [True, False])
def test_a_source_is_left_out_by_name_where_there_is_one(
    bundle: Path, tmp_path: Path, fake_engine: list[fakes.ArithmeticBackend], streams: bool
) -> None:
    if not streams:
        edit_manifest(bundle, lambda found: found["speculation"].update(num_streams=0))
    flags = ["--data", questions(tmp_path / "q.jsonl", "hi"), "--max-new-tokens", 8, "--repetitions", 1, "--json"]
    code, stdout, stderr = command(bundle, *flags, "--systems", "plain,speculative,without streams")
    assert code == 0, stderr
    facts = json.loads(stdout)
    assert ("without streams" in facts["systems"]) is streams
    assert facts["left_out"] == ({} if streams else {"without streams": "the bundle has no streams"})
    if not streams:
        code, _, stderr = command(bundle, *flags, "--systems", "without streams")
        assert (code, "no streams to leave out" in stderr) == (2, True)


def test_adversarial_prompts_are_hot_and_repeatable(
    bundle: Path, fake_engine: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_prompts, "WORDS", 3)
    flags = ["--limit", 3, "--max-new-tokens", 8, "--repetitions", 1, "--systems", "plain,speculative", "--json"]
    code, stdout, stderr = command(bundle, "--data", "adversarial", *flags)
    assert code == 0, stderr
    facts = json.loads(stdout)
    assert (facts["temperature"], facts["prompts"], facts["equal"]) == (1.5, 3, True)
    text = Tokenizer(bundle / "tokenizer.json", None)
    assert bench_prompts.random_words(text, 200, 3, 1) == bench_prompts.random_words(text, 200, 3, 1)
    assert bench_prompts.random_words(text, 200, 3, 1) != bench_prompts.random_words(text, 200, 3, 2)


def test_a_limit_is_spread_over_the_file(
    bundle: Path, tmp_path: Path, fake_engine: list[fakes.ArithmeticBackend]
) -> None:
    # Only every fifth question fits into the context.
    data = questions(tmp_path / "q.jsonl", *(str(i) * (1 if i % 5 == 0 else CAPACITY) for i in range(10)))
    flags = ["--limit", 2, "--max-new-tokens", 4, "--repetitions", 1, "--systems", "plain", "--json"]
    code, stdout, stderr = command(bundle, "--data", data, *flags)
    assert code == 0, stderr
    assert (json.loads(stdout)["prompts"], json.loads(stdout)["skipped"]) == (2, 0)


def test_bad_use_is_one_line(bundle: Path, tmp_path: Path) -> None:
    data = questions(tmp_path / "q.jsonl", "x" * CAPACITY)
    code, _, stderr = command(bundle, "--data", data, "--systems", "plain,magic")
    assert code == 2
    assert "--systems" in stderr
    code, _, stderr = command(bundle, "--data", data, "--systems", "plain")
    assert code == 1
    assert "no prompt" in stderr
    code, _, stderr = command(bundle, "--data", tmp_path / "none.jsonl", "--systems", "plain")
    assert code == 1
    assert "none.jsonl" in stderr
