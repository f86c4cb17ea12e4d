"""`streamfuse run` with a schema, a regular expression or a grammar.

The engine is the arithmetic model of fakes.py; everything else is real.
Run: python -m pytest tests/cli/test_cli_structured.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import fakes
import pytest
from bundle_samples import PrintableBackend, write_bundle
from engine_fixtures import made_engines
from typer.testing import CliRunner

from streamfuse.cli import app

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"], "additionalProperties": False}
LARK = 'start: "(" /[a-d]{2,4}/ ")"'


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


made = made_engines(PrintableBackend)


def run(bundle: Path, *flags: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `streamfuse run` with a raw prompt."""
    words = ["run", str(bundle), "x", "--raw", *(str(flag) for flag in flags)]
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.stdout, result.stderr


def test_the_answer_is_what_the_flag_allows(bundle: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (tmp_path / "words.lark").write_text(LARK, encoding="utf-8")
    for flags, fits in (
        (("--schema", tmp_path / "schema.json"), r'\{"a":"[bc]"\}\n'),
        (("--schema", json.dumps(SCHEMA)), r'\{"a":"[bc]"\}\n'),
        (("--regex", "[a-c]{4}"), r"[a-c]{4}\n"),
        (("--grammar", tmp_path / "words.lark"), r"\([a-d]{2,4}\)\n"),
    ):
        code, stdout, stderr = run(bundle, *flags)
        assert (code, stderr) == (0, "")
        assert re.fullmatch(fits, stdout), stdout
        assert run(bundle, *flags, "--no-speculation") == (0, stdout, "")
        assert run(bundle, *flags, "--width", 4) == (0, stdout, "")


def test_json_has_the_object_that_the_text_spells(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    found = json.loads(run(bundle, "--schema", json.dumps(SCHEMA), "--json", "--width", 4)[1])
    assert found["parsed"] == json.loads(found["text"])
    assert list(found)[:2] == ["text", "parsed"]
    assert (found["finish_reason"], found["accepted_by_source"]["grammar"] > 0) == ("stop", True)
    assert "parsed" not in json.loads(run(bundle, "--regex", "a", "--json")[1])


def test_an_incomplete_answer_says_so_and_has_no_object(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    flags = ("--schema", json.dumps(SCHEMA), "--max-new-tokens", 4)
    code, stdout, stderr = run(bundle, *flags)
    assert (code, stdout) == (0, '{"a"\n')
    assert stderr == (
        "The answer is incomplete: it stops at 4 tokens, before its schema, regex or grammar allows an end; "
        "--max-new-tokens allows more.\n"
    )
    found = json.loads(run(bundle, *flags, "--json")[1])
    assert (found["parsed"], found["finish_reason"]) == (None, "incomplete")


def test_compare_restricts_both_kinds_of_decoding(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    flags = ("--schema", json.dumps(SCHEMA), "--compare", "--width", 4, "--repeats", 1)
    found = json.loads(run(bundle, *flags, "--json")[1])
    assert found["equal"]
    assert list(found) == ["plain", "speculative", "equal", "speedup", "text", "parsed"]
    assert found["parsed"] == json.loads(found["text"])
    table = run(bundle, *flags)[1]
    assert "the outputs are equal" in table
    assert "tokens forced by the grammar" in table
    assert "forced" not in run(bundle, "--compare", "--width", 4, "--repeats", 1)[1]


def test_forced_tokens_have_their_own_name_among_the_drafts(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    _, stdout, stderr = run(bundle, "--schema", json.dumps(SCHEMA), "--width", 4, "--show-drafts")
    assert "[grammar:" in stdout
    assert re.search(r"grammar \d+", stderr)
    assert "grammar" not in run(bundle, "--show-drafts")[2]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--schema", "nowhere.json"), "--schema nowhere.json: No such file or directory"),
        (("--schema", '{"type"'), "--schema is not JSON: "),
        (("--schema", '{"type": "nothing"}'), '--schema: #/type: "nothing" is no type'),
        (("--regex", "(a"), "--regex: "),
        (("--grammar", "nowhere.lark"), "--grammar nowhere.lark: No such file or directory"),
        (("--schema", "{}", "--regex", "a"), "--schema and --regex do not go together"),
    ],
)
def test_what_cannot_be_used_names_its_flag_before_the_engine_is_loaded(
    bundle: Path, made: list[fakes.ArithmeticBackend], flags: tuple[str, ...], sentence: str
) -> None:
    code, stdout, stderr = run(bundle, *flags)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"error: Invalid value: {sentence}")
    assert stderr.count("\n") == 1
    assert made == []


def test_a_file_that_is_not_text_or_not_json_is_named(
    bundle: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"\xff\xfe")
    assert f"--grammar {bad} is not UTF-8 text" in run(bundle, "--grammar", bad)[2]
    bad.write_text("[1,")
    assert f"--schema {bad} is not JSON" in run(bundle, "--schema", bad)[2]
    assert "--grammar" in run(bundle, "--grammar", tmp_path)[2]
