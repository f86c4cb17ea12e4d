"""Acceptance of a bundle over the arithmetic model, and of an adapter over a tiny one: counts, equal texts, the JSON.

Run: python -m pytest tests/bench/test_bench_acceptance.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import (
    CHAT_TEMPLATE,
    IM_END,
    VOCAB_SIZE,
    byte_tokenizer,
    edit_manifest,
    fake_engines,
    manifest_fields,
    write_bundle,
)
from typer.testing import CliRunner

from streamfuse import engines, load
from streamfuse.bench.acceptance import AcceptanceSettings, Tally, measure_bundle
from streamfuse.bench.shared.turns import turns
from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.watch import Pass
from streamfuse.train.formats import Example, Sample

NEW = 12


Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Acceptance of a bundle whose engine is `kind` of its facts: the object of `--json`."""

    def measured(*samples: Sample, kind: Any = fakes.ArithmeticBackend, **settings: Any) -> dict[str, Any]:
        made, new = fake_engines(kind)
        monkeypatch.setattr(engines, "engines_of", new)
        asked = AcceptanceSettings(**{"width": 8, "max_new_tokens": NEW, **settings})
        with load(tmp_path / "bundle", cost_cache=False) as model:
            found = measure_bundle(model, samples, asked, lambda count: None).to_dict()
        assert [engine.closed for engine in made] == [True]
        return found

    write_bundle(tmp_path / "bundle", cache=manifest_fields()["cache"] | {"capacity": 200})
    return measured


def scripted(script: Sequence[int]) -> Any:
    return lambda spec: fakes.ArithmeticBackend(spec, script=script)


def plain_text(prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(NEW):
        tokens.append(fakes.greedy_after(tokens, VOCAB_SIZE))
    assert IM_END not in tokens
    return tokens


def test_drafts_that_are_always_right_give_the_most_tokens_per_pass(measure: Measure) -> None:
    sample = Sample((), ids=Example([5, 6, 7], 3))
    found = measure(sample, kind=scripted(plain_text([5, 6, 7])), width=4)  # this bundle prunes no nodes of four
    # The first pass gives one token; each of the others its two drafted ones and one more: 1 + 3 + 3 + 3 + 2.
    assert (found["samples"], found["answers"], found["tokens"], found["target_forward_passes"]) == (1, 1, NEW, 5)
    assert found["call_reduction_ratio"] == pytest.approx(11 / 4)
    assert found["mean_accepted_tokens"] == pytest.approx(12 / 5)
    assert found["acceptance_per_depth"] == [1, 1]
    assert [ranks[0] for ranks in found["acceptance_per_rank"]] == [1, 1]
    assert found["equal"] == 1


def chain(drafts: int, delivered: int) -> Pass:
    """A pass that verifies a chain and delivers its first tokens."""
    rows = drafts + 1
    tree = {"tokens": [7] * rows, "parents": list(range(-1, drafts)), "log_probs": [0.0] * rows, "sources": []}
    walk = {"walk_rows": list(range(delivered)), "walk_tokens": [7] * delivered, "delivered": delivered}
    return Pass(method="verify", reason=None, kept=[], cached=9, **tree, **walk)


def test_the_first_pass_and_its_drafted_tokens_do_not_count_in_the_ratio() -> None:
    tally = Tally()
    tally.add_answer([chain(drafts=3, delivered=4), chain(3, 2), chain(3, 2), chain(0, 0)], tokens=9)
    assert tally.figures()["mean_accepted_tokens"] == 9 / 4
    assert tally.figures()["call_reduction_ratio"] == 5 / 3
    tally.add_answer([chain(3, 3)], tokens=4)  # the first pass ends this text
    assert tally.figures()["call_reduction_ratio"] == 5 / 3


def test_trees_may_be_deeper_than_any_streams() -> None:
    tally = Tally()
    tally.add_answer([chain(drafts=20, delivered=16)], tokens=16)
    assert tally.figures()["acceptance_per_depth"] == [1.0] * 15 + [0.0] * 5


def test_drafts_that_are_always_wrong_give_one_token_per_pass(measure: Measure) -> None:
    wrong = [(token + 9) % VOCAB_SIZE for token in plain_text([5, 6, 7])]
    found = measure(Sample((), ids=Example([5, 6, 7], 3)), kind=scripted(wrong))
    assert found["call_reduction_ratio"] == found["mean_accepted_tokens"] == 1
    assert found["acceptance_per_depth"] == [0, 0]
    assert found["equal"] == 1


def test_counts_are_those_of_the_runtimes_statistics(measure: Measure, tmp_path: Path) -> None:
    prompts = [[1, 2], [3, 4, 5], [7]]
    found = measure(*(Sample((), ids=Example(prompt, len(prompt))) for prompt in prompts))
    tokens = passes = 0.0
    for prompt in prompts:
        with load(tmp_path / "bundle", cost_cache=False) as model:
            statistics = model.generate(prompt, max_new_tokens=NEW, width=8).statistics
        tokens += statistics.mean_accepted_tokens * statistics.target_forward_passes
        passes += statistics.target_forward_passes
        alone = measure(Sample((), ids=Example(prompt, len(prompt))))
        assert alone["acceptance_per_depth"] == pytest.approx(statistics.acceptance_per_depth)
    assert 0 < found["acceptance_per_depth"][0] < 1
    assert found["target_forward_passes"] == passes
    assert found["mean_accepted_tokens"] == pytest.approx(tokens / passes)
    for ranks, share in zip(found["acceptance_per_rank"], found["acceptance_per_depth"], strict=True):
        assert sum(ranks) == pytest.approx(share)


def test_every_turn_is_asked_after_the_models_own_answer(measure: Measure, tmp_path: Path) -> None:
    asked: list[list[int]] = []

    class Listening(fakes.ArithmeticBackend):
        def truncate(self, length: int) -> None:
            asked.append(list(self.cache))
            super().truncate(length)

    found = measure(Sample(("a", "b"), source="x"), kind=Listening)
    assert (found["samples"], found["answers"], found["equal"]) == (1, 2, 1)
    first = open_bundle(tmp_path / "bundle").tokenizer.encode_chat([{"role": "user", "content": "a"}])
    answer = [cache for cache in asked if cache[: len(first)] == first]
    assert any(len(cache) > len(first) + NEW for cache in answer)  # the second turn has the first and its answer


def test_the_messages_before_a_question_are_in_its_prompt(tmp_path: Path) -> None:
    before = [
        {"role": "system", "content": "c"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    text = open_bundle(write_bundle(tmp_path / "bundle")).tokenizer
    prompts = [prompt for prompt, _ in turns(Sample(("d",), before=tuple(before)), text)]
    assert prompts == [text.encode_chat([*before, {"role": "user", "content": "d"}])]


def test_samples_that_do_not_fit_are_left_out_and_sources_are_told_apart(measure: Measure) -> None:
    short = [Sample((), source=name, ids=Example([1, 2], 2)) for name in ("x", "y", "y")]
    long = Sample((), source="y", ids=Example([1] * 190, 190))
    found = measure(*short, long)
    assert (found["samples"], found["skipped"]) == (3, 1)
    assert {name: one["answers"] for name, one in found["sources"].items()} == {"x": 1, "y": 2}
    assert found["tokens"] == sum(one["tokens"] for one in found["sources"].values())


def test_a_sampled_text_is_compared_too_and_plain_decoding_may_be_left_out(measure: Measure) -> None:
    sample = Sample((), ids=Example([1, 2], 2))
    assert measure(sample, temperature=1.0, seed=3)["equal"] == 1
    calls: list[str] = []

    class Listening(fakes.ArithmeticBackend):
        def run(self, method: str, *inputs: Any) -> PassOutput:
            calls.append(method)
            return super().run(method, *inputs)

    assert measure(sample, kind=Listening, plain=False)["equal"] is None
    assert calls.count("decode") <= 2  # the first token and the last one, at most


def test_the_bundles_own_sampling_changes_nothing(measure: Measure, tmp_path: Path) -> None:
    sample = Sample((), ids=Example([5, 6, 7], 3))
    found = measure(sample)
    edit_manifest(tmp_path / "bundle", lambda manifest: manifest["sampling_defaults"].update(repetition_penalty=9.0))
    assert measure(sample) == found


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
    result = CliRunner().invoke(
        app, ["bench", "acceptance", str(bundle), "--data", str(data), "--max-new-tokens", "64", "--json"]
    )
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no prompt with 64 new tokens fits into 64 of context; lower --max-new-tokens" in result.stderr


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


def test_an_adapter_without_streams_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'streamfuse[export]'")
    import tiny

    from streamfuse.model.checkpoint import save_adapter
    from streamfuse.model.config import StreamConfig
    from streamfuse.model.streams import StreamFused

    adapter, data = tmp_path / "tuned.safetensors", tmp_path / "d.jsonl"
    config = StreamConfig.without(base_rank=2, base_layers=2)
    save_adapter(StreamFused(tiny.base(), config, torch.tensor([], dtype=torch.long)), adapter)
    data.write_text('{"prompt": "x"}\n')
    command = ["bench", "acceptance", "--adapter", adapter, "--model", tmp_path, "--data", data]
    result = CliRunner().invoke(app, list(map(str, command)))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "this adapter has no streams" in result.stderr


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


def test_answers_end_with_the_end_token_of_the_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'streamfuse[export]'")
    import tiny

    from streamfuse.bench import acceptance
    from streamfuse.model.checkpoint import save_adapter

    torch.manual_seed(0)
    base = tiny.base(vocab_size=VOCAB_SIZE)
    folder = tiny.write_base(tmp_path / "model", base, vocab_size=VOCAB_SIZE)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    own = {"chat_template": "{{ messages[0].content }}{{ eos_token }}", "eos_token_id": str(IM_END)}
    save_adapter(tiny.fused(base), tmp_path / "a.safetensors", own)
    (tmp_path / "d.jsonl").write_text('{"prompt": "x"}\n')
    seen: list[tuple[int | None, str]] = []
    measured = acceptance.measure_adapter

    def watched(model: Any, text: Any, *rest: Any) -> Any:
        seen.append((model.base.config.eos_token_id, text.render([{"role": "user", "content": "x"}])))
        return measured(model, text, *rest)

    monkeypatch.setattr(acceptance, "measure_adapter", watched)
    flags = ("--model", folder, "--data", tmp_path / "d.jsonl", "--max-new-tokens", 4)
    run("--adapter", tmp_path / "a.safetensors", *flags)
    assert seen == [(IM_END, "x<|im_end|>")]
