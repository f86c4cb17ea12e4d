"""Acceptance of a bundle over the arithmetic model, and of an adapter over a tiny one: counts, equal texts, the JSON.

Run: python -m pytest tests/bench/test_bench_acceptance.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import CHAT_TEMPLATE, IM_END, byte_tokenizer, fake_engines, write_bundle
from tokenizer_samples import letters
from typer.testing import CliRunner

from streamfuse import engines
from streamfuse.bench.acceptance import AcceptanceSettings, measure_bundle
from streamfuse.cli import app
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.formats import Example, Sample

NEW = 12


@pytest.fixture
def text(tmp_path: Path) -> Tokenizer:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return Tokenizer(tmp_path / "tokenizer.json", CHAT_TEMPLATE, None, [IM_END])


def session_of(backend: fakes.ArithmeticBackend) -> Session:
    return Session(backend, None, letters())


def backend(accuracy: int = 12, script: Sequence[int] | None = None, capacity: int = 96) -> fakes.ArithmeticBackend:
    return fakes.ArithmeticBackend(fakes.spec(capacity=capacity, vocab_size=300), accuracy, script)


def measure(on: fakes.ArithmeticBackend, text: Tokenizer, *samples: Sample, **settings: Any) -> dict[str, Any]:
    asked = AcceptanceSettings(**{"width": 8, "max_new_tokens": NEW, **settings})
    return measure_bundle(session_of(on), text, samples, asked, lambda count: None).to_dict()


def plain_text(prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(NEW):
        tokens.append(fakes.greedy_after(tokens, 300))
    return tokens


def test_drafts_that_are_always_right_give_the_most_tokens_per_pass(text: Tokenizer) -> None:
    sample = Sample((), ids=Example([5, 6, 7], 3))
    found = measure(backend(script=plain_text([5, 6, 7])), text, sample)
    # The first pass gives one token; each of the others its three drafted ones and one more: 1 + 4 + 4 + 3.
    assert (found["samples"], found["answers"], found["tokens"], found["target_forward_passes"]) == (1, 1, NEW, 4)
    assert found["call_reduction_ratio"] == pytest.approx(11 / 3)
    assert found["mean_accepted_tokens"] == pytest.approx(3)
    assert found["acceptance_per_depth"][:2] == [1, 1]
    assert [ranks[0] for ranks in found["acceptance_per_rank"][:2]] == [1, 1]
    assert found["equal"] == 1


def test_drafts_that_are_always_wrong_give_one_token_per_pass(text: Tokenizer) -> None:
    on = backend(script=[(token + 9) % 300 for token in plain_text([5, 6, 7])])
    found = measure(on, text, Sample((), ids=Example([5, 6, 7], 3)))
    assert found["call_reduction_ratio"] == found["mean_accepted_tokens"] == 1
    assert found["acceptance_per_depth"] == [0, 0, 0]
    assert found["equal"] == 1


def test_counts_are_those_of_the_runtimes_statistics(text: Tokenizer) -> None:
    prompts = [[1, 2], [3, 4, 5], [7]]
    found = measure(backend(), text, *(Sample((), ids=Example(prompt, len(prompt))) for prompt in prompts))
    tokens = passes = 0.0
    for prompt in prompts:
        generation = session_of(backend()).generate(prompt, config(speculative=True))
        generation.finish()
        statistics = generation.statistics
        tokens += statistics.mean_accepted_tokens * statistics.target_forward_passes
        passes += statistics.target_forward_passes
        alone = measure(backend(), text, Sample((), ids=Example(prompt, len(prompt))))
        assert alone["acceptance_per_depth"] == pytest.approx(statistics.acceptance_per_depth)
    assert 0 < found["acceptance_per_depth"][0] < 1
    assert found["target_forward_passes"] == passes
    assert found["mean_accepted_tokens"] == pytest.approx(tokens / passes)
    for ranks, share in zip(found["acceptance_per_rank"], found["acceptance_per_depth"], strict=True):
        assert sum(ranks) == pytest.approx(share)


def config(speculative: bool) -> Any:
    from streamfuse.runtime.config import GenerationConfig

    return GenerationConfig(NEW, speculative=speculative, width=8 if speculative else None)


def test_every_turn_is_asked_after_the_models_own_answer(text: Tokenizer) -> None:
    asked: list[list[int]] = []

    class Listening(fakes.ArithmeticBackend):
        def truncate(self, length: int) -> None:
            asked.append(list(self.cache))
            super().truncate(length)

    on = Listening(fakes.spec(capacity=400, vocab_size=258))
    session = Session(on, None, text)
    settings = AcceptanceSettings(8, NEW)
    found = measure_bundle(session, text, [Sample(("a", "b"), source="x")], settings, lambda count: None).to_dict()
    assert (found["samples"], found["answers"], found["equal"]) == (1, 2, 1)
    first = text.encode_chat([{"role": "user", "content": "a"}])
    answer = [cache for cache in asked if cache[: len(first)] == first]
    assert any(len(cache) > len(first) + NEW for cache in answer)  # the second turn has the first and its answer


def test_samples_that_do_not_fit_are_left_out_and_sources_are_told_apart(text: Tokenizer) -> None:
    short = [Sample((), source=name, ids=Example([1, 2], 2)) for name in ("x", "y", "y")]
    long = Sample((), source="y", ids=Example([1] * 90, 90))
    found = measure(backend(), text, *short, long)
    assert (found["samples"], found["skipped"]) == (3, 1)
    assert {name: one["answers"] for name, one in found["sources"].items()} == {"x": 1, "y": 2}
    assert found["tokens"] == sum(one["tokens"] for one in found["sources"].values())


def test_a_sampled_text_is_compared_too_and_plain_decoding_may_be_left_out(text: Tokenizer) -> None:
    sample = Sample((), ids=Example([1, 2], 2))
    assert measure(backend(), text, sample, temperature=1.0, seed=3)["equal"] == 1
    on = backend()
    assert measure(on, text, sample, plain=False)["equal"] is None
    assert sum(method == "decode" for method, _ in on.calls) <= 2  # the first token and the last one, at most


def run(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["bench", "acceptance", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_command_prints_one_object_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "engines_of", fake_engines()[1])
    bundle, data = write_bundle(tmp_path / "demo"), tmp_path / "d.jsonl"
    rows = [{"prompt": f"name[{name}]", "completion": "x"} for name in "ABAC"]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = run(bundle, "--data", data, "--max-new-tokens", 8, "--limit", 2)
    assert (found["samples"], found["equal"]) == (2, 1)
    assert found["settings"] == {
        "data": str(data), "adapter": None, "width": 8, "max_new_tokens": 8, "temperature": 0.0, "seed": 0,
        "plain": True,
    }  # fmt: skip
    assert set(found["quality"]) == {"rouge1", "rouge2", "rougeL", "rougeLsum"}
    assert run(bundle, "--data", data, "--max-new-tokens", 8, "--width", 4)["settings"]["width"] == 4
    result = CliRunner().invoke(app, ["bench", "acceptance", str(bundle), "--data", str(data), "--max-new-tokens", "8"])
    assert result.exit_code == 0, result.stderr
    assert "100.0 % of the answers are equal to the plain ones" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a BUNDLE, or --adapter"),
        (("BUNDLE", "--adapter", "x"), "--adapter x: the bundle has no adapters"),
        (("--adapter", "x", "--temperature", "1"), "--adapter without a bundle replays greedy text"),
        (("BUNDLE", "--width", "5"), "--width must be one of 4, 8 for this bundle, not 5"),
        (("BUNDLE", "--completion", "{a}"), "--completion goes with --template"),
        (("BUNDLE", "--format", "sql"), "line 1: no field 'context'; the row has prompt"),
    ],
)
def test_bad_use_is_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    bundle, data = write_bundle(tmp_path / "demo"), tmp_path / "d.jsonl"
    data.write_text('{"prompt": "x"}\n')
    given = [str(bundle) if argument == "BUNDLE" else argument for argument in arguments]
    result = CliRunner().invoke(app, ["bench", "acceptance", *given, "--data", str(data)])
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_adapter_is_measured_on_its_models_own_greedy_text(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'streamfuse[export]'")
    import tiny

    from streamfuse.model.checkpoint import save_adapter

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    base = tiny.base(std=0.4, vocab_size=tokenizer.get_vocab_size())
    folder = tiny.write_base(tmp_path / "model", base, vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(folder / "tokenizer.json"))
    save_adapter(tiny.fused(base), tmp_path / "a.safetensors", {"chat_template": CHAT_TEMPLATE})
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Say {i}", "source": "xy"[i % 2]}) + "\n" for i in range(5)))
    flags = ("--model", folder, "--data", data, "--max-new-tokens", 10, "--width", 8)
    found = run("--adapter", tmp_path / "a.safetensors", *flags)
    assert (found["samples"], found["answers"], found["equal"], found["quality"]) == (5, 5, None, {})
    assert 10 < found["tokens"] <= 50
    assert found["tokens"] >= found["target_forward_passes"] > 5
    tokens, passes = (found[name] - found["answers"] for name in ("tokens", "target_forward_passes"))
    assert found["call_reduction_ratio"] == tokens / passes  # an answer's first token and its pass do not count
    assert {name: one["answers"] for name, one in found["sources"].items()} == {"x": 3, "y": 2}
