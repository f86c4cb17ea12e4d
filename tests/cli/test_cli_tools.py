"""`streamfuse run` and `streamfuse chat` with tools.

The engine is the arithmetic model of fakes.py; everything else is real.
Run: python -m pytest tests/cli/test_cli_tools.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import CHAT_TEMPLATE, PrintableBackend, edit_manifest, write_bundle
from engine_fixtures import made_engines
from typer.testing import CliRunner

from streamfuse.cli import app

TOOL = {
    "name": "choose",
    "description": "Choose a letter.",
    "parameters": {
        "type": "object",
        "properties": {"letter": {"enum": ["a", "b"]}},
        "required": ["letter"],
        "additionalProperties": False,
    },
}
LIMIT = ("--max-new-tokens", "200")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """With room for tools in the prompt, a token per byte."""
    edit_manifest(write_bundle(tmp_path / "demo"), lambda manifest: manifest["cache"].update(capacity=4096))
    return tmp_path / "demo"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]), encoding="utf-8")
    return tmp_path / "tools.json"


made = made_engines(PrintableBackend)


def command(*words: object, stdin: str | bytes = "") -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_a_call_is_a_line_of_json(bundle: Path, tools: Path, made: list[fakes.ArithmeticBackend]) -> None:
    flags: list[Any] = ["run", bundle, "x", "--tools", tools, "--tool-choice", "required", *LIMIT]
    code, stdout, stderr = command(*flags)
    assert (code, stderr) == (0, "")
    call = json.loads(stdout)
    assert (call["name"], set(call)) == ("choose", {"id", "name", "arguments"})
    assert call["arguments"]["letter"] in ("a", "b")
    found = json.loads(command(*flags, "--json")[1])
    assert (found["text"], found["tool_calls"]) == ("", [call])
    compared = json.loads(command(*flags, "--compare", "--repeats", 1, "--width", 4, "--json")[1])
    assert (compared["equal"], compared["tool_calls"]) == (True, [call])
    free = json.loads(command("run", bundle, "x", "--tools", tools, "--json")[1])
    assert "tool_calls" not in free


def test_a_template_variable_is_json(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    edit_manifest(bundle, lambda manifest: manifest["model"].update(chat_template="{{ mood }}"))
    found = json.loads(command("run", bundle, "x", "--template-variables", '{"mood": "glad"}', "--json")[1])
    assert found["prompt_tokens"] == len("glad")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--tools", "nowhere.json"), "--tools nowhere.json: No such file or directory"),
        (("--tool-choice", "required"), "--tool-choice required needs tools"),
        (("--template-variables", "3"), "--template-variables must hold names and values, not 3"),
        (("--template-variables", "{"), "--template-variables is not JSON: "),
    ],
)
def test_what_cannot_be_used_names_its_flag(bundle: Path, flags: tuple[str, ...], sentence: str) -> None:
    code, stdout, stderr = command("run", bundle, "x", *flags)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"error: Invalid value: {sentence}")


def test_a_tool_that_is_none_and_a_choice_that_is_none_are_refused(bundle: Path, tools: Path) -> None:
    assert (
        "--tool-choice must be one of auto, required, none, choose"
        in command("run", bundle, "x", "--tools", tools, "--tool-choice", "snow")[2]
    )
    assert (
        "--schema and --tool-choice required do not go together; with --schema the choice is auto"
        in command("run", bundle, "x", "--tools", tools, "--tool-choice", "required", "--schema", "{}")[2]
    )
    tools.write_text('[{"name": 3}]', encoding="utf-8")
    assert '--tools: tool 1: its "name" must be text, not 3' in command("run", bundle, "x", "--tools", tools)[2]
    tools.write_text("[", encoding="utf-8")
    assert f"--tools {tools} is not JSON" in command("chat", bundle, "--tools", tools)[2]


def test_a_chat_asks_what_a_tool_returns(
    bundle: Path, tools: Path, made: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamfuse.api import Chat

    stream = Chat.stream  # the model that likes letters calls no tool of its own
    monkeypatch.setattr(Chat, "stream", lambda chat, words: stream(chat, words, tool_choice="required"))
    code, stdout, stderr = command("chat", bundle, "--tools", tools, *LIMIT, stdin="x\nwarm\n/exit\n")
    assert code == 0
    assert 'choose({"letter": "' in stderr
    assert "What does it return?" in stderr
    assert len(stdout.strip()) == 200  # the answer after the result
    code, again, stderr = command("chat", bundle, "--tools", tools, *LIMIT, stdin=b"x\n\xe9\nwarm\n/exit\n")
    assert (code, again) == (0, stdout)
    assert "That line is not UTF-8 text and is ignored." in stderr
    code, stdout, _ = command("chat", bundle, "--tools", tools, *LIMIT, stdin="x\n")
    assert (code, stdout.strip()) == (0, "")


def test_what_the_model_thinks_is_no_answer(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    thinks = CHAT_TEMPLATE + "{{ '<think>\\n' }}{# </think> #}"
    edit_manifest(bundle, lambda manifest: manifest["model"].update(chat_template=thinks))
    code, stdout, stderr = command("run", bundle, "x", "--regex", "[a-c]{3}</think>[d-e]{2}")
    assert code == 0
    assert re.fullmatch(r"[d-e]{2}\n", stdout)
    assert re.fullmatch(r"[a-c]{3}\n", stderr)
    found = json.loads(command("run", bundle, "x", "--regex", "[a-c]{3}</think>[d-e]{2}", "--json")[1])
    assert (found["text"], found["thinking"]) == (stdout.strip(), stderr.strip())
