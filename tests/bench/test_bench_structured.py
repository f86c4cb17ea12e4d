"""The structured bench: its tasks and metrics, turns, ratios, equality and validity over a scripted model.

Run: python -m pytest tests/bench/test_bench_structured.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import write_bundle
from structured_samples import RIGHT, SCHEMA, Scripted
from typer.testing import CliRunner

from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.structured import extraction, function_calling, objects, sql
from streamfuse.bench.structured.measure import FREE, PLAIN, SPECULATIVE, StructuredResult, measure
from streamfuse.bench.structured.questions import Constraint, Question, problem_of, user
from streamfuse.bench.structured.report import summary, task_rows
from streamfuse.bench.structured.tasks import TASKS, EncodedQuestion, encode_questions
from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.train.formats import DataError


def run(model: Scripted, questions: int = 2, advance: Any = lambda: None, **settings: Any) -> StructuredResult:
    question = Question((user("?"),), SCHEMA, lambda text: {"exact_match": 100.0 * (text == RIGHT)})
    todo = {"objects": ([EncodedQuestion(question, [1, 2])] * questions, 1)}
    chosen = TaskSettings(**{"repetitions": 2, **settings})
    return measure(
        [model.stream] * chosen.repetitions, todo, chosen, lambda ids: "".join(map(chr, ids)),
        {"data": "d"}, advance,
    )  # fmt: skip


def test_ratios_and_shares() -> None:
    facts = json.loads(json.dumps(run(Scripted()).to_dict()))
    found = facts["tasks"]["objects"]
    assert found["speedup"] == pytest.approx(7 * 2.5 / (2 * 3.0))
    assert found["constrained_over_free"] == pytest.approx(2.0 / 2.5), "by passes"
    assert found["counted_speedup"] == pytest.approx(7 / 2)
    assert found["tokens_per_pass"] == pytest.approx(7 / 2)
    assert found["grammar_share"] == pytest.approx(4 / 7)
    assert found["mask_ms_per_token"] == {PLAIN: pytest.approx(0.1), SPECULATIVE: pytest.approx(0.1)}
    assert (found["forced_drafts"], found["refused_drafts"], found["answers"], found["skipped"]) == (10, 6, 2, 1)
    assert (found["valid"], found["finished"], found["equal"]) == (1.0, 1.0, True)
    assert found["cpu_ms_per_token"].keys() == {PLAIN, SPECULATIVE, FREE}
    assert min(found["cpu_ms_per_token"].values()) > 0
    assert found["quality"] == {"exact_match": 100.0}
    assert (facts["complete"], facts["data"], facts["repetitions"]) == (True, "d", 2)


def test_systems_take_turns_and_free_text_is_as_long_as_the_constrained_one() -> None:
    model = Scripted()
    run(model, questions=1, repetitions=3, max_new_tokens=50, seed=7)
    assert model.calls[0] == (PLAIN, 50, 7), "the first answer, which is not timed"
    turns = [model.calls[i : i + 3] for i in range(1, 10, 3)]
    assert all({name for name, *_ in turn} == {PLAIN, SPECULATIVE, FREE} for turn in turns)
    assert len({turn[0][0] for turn in turns}) == 3, "not always the same one begins"
    assert {room for name, room, _ in model.calls if name == FREE} == {len(RIGHT)}


def test_one_different_token_breaks_equality() -> None:
    result = run(Scripted(drafted='{"a":2}'))
    assert result.tasks["objects"].equal is False
    assert "objects: THE OUTPUTS DIFFER" in summary(result)


def test_an_answer_that_breaks_its_constraint_is_told() -> None:
    result = run(Scripted('{"a":"1"}'))
    found = result.tasks["objects"].to_dict()
    assert found["valid"] == 0.0
    assert found["problems"] == ["$.a: '1' is not of type 'integer'"] * 2
    assert any("INVALID: $.a" in line for line in summary(result))


def test_an_answer_that_a_limit_cut_is_not_finished_and_not_judged_for_validity() -> None:
    found = run(Scripted('{"a":', finish="incomplete")).tasks["objects"].to_dict()
    assert (found["finished"], found["valid"], found["quality"]) == (0.0, None, {"exact_match": 0.0})


def test_a_run_that_is_interrupted_keeps_its_figures() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    result = run(Scripted(), advance=interrupted)
    assert isinstance(result.stopped_by, KeyboardInterrupt)
    assert result.to_dict()["complete"] is False
    assert result.tasks["objects"].to_dict()["answers"] == 1


def test_the_table_has_a_row_per_task() -> None:
    columns, rows = task_rows(run(Scripted()))
    row = dict(zip(columns, rows[0], strict=True))
    assert row["over plain"] == "2.92x"
    assert (row["grammar"], row["valid"], row["exact"], row["plain over free"]) == ("57%", "100%", "100 %", "0.800")


# ---- tasks ---------------------------------------------------------------------------------------------------------

TOOL = {
    "name": "math.area",
    "description": "Area.",
    "parameters": {
        "type": "dict",
        "properties": {
            "base": {"type": "integer", "description": "The base."},
            "height": {"type": "float", "default": 1.0},
            "unit": {"type": "string", "enum": ["cm", "m"]},
            "points": {"type": "tuple", "items": {"type": "dict", "properties": {"x": {"type": "integer"}}}},
            "anything": {"type": "any"},
        },
        "required": ["base"],
    },
}
TRUTH = {"math.area": {"base": [10], "height": [2.5, ""], "unit": ["Cm.", ""], "points": [[{"x": [1]}], ""]}}


def functions(folder: Path, *rows: dict[str, Any]) -> list[Question]:
    (folder / "simple.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return function_calling.read_questions(str(folder))


def test_a_function_call_fits_the_schema_of_one_of_the_tools(tmp_path: Path) -> None:
    other = {"name": "noop", "parameters": {"type": "dict", "properties": {}}}
    row = {"messages": [user("Area?")], "tools": [TOOL, other], "ground_truth": [TRUTH]}
    (question,) = functions(tmp_path, row)
    assert question.messages[-1] == user("Area?")
    assert "math.area" in question.messages[0]["content"]
    valid = [
        '{"name":"noop","arguments":{}}',
        '{"name":"math.area","arguments":{"base":1}}',
        '{"name":"math.area","arguments":{"base":1,"height":2.5,"unit":"m","points":[{"x":1}],"anything":[null]}}',
    ]
    invalid = [
        '{"name":"other","arguments":{}}',
        '{"name":"math.area","arguments":{}}',
        '{"name":"math.area","arguments":{"base":1.5}}',
        '{"name":"math.area","arguments":{"base":1,"unit":"km"}}',
        '{"name":"math.area","arguments":{"base":1,"width":1}}',
        '{"name":"noop","arguments":{}',
    ]
    assert [problem_of(question.constraint, text) for text in valid] == [None] * 3
    assert all(problem_of(question.constraint, text) for text in invalid)


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"base": 10}, True),
        ({"base": 10.0, "height": 2.5, "unit": "c m", "points": [{"x": 1}]}, True),
        ({"base": 10, "points": []}, False),
        ({"base": True}, False),
        ({"base": "10"}, False),
        ({"base": 10, "unit": "m"}, False),
        ({"base": 10, "points": [{"x": 2}]}, False),
        ({"base": 10, "other": 1}, False),
        ({}, False),
    ],
)
def test_a_call_is_right_where_its_values_are_accepted(arguments: dict[str, Any], right: bool) -> None:
    assert function_calling.accepted({"name": "math.area", "arguments": arguments}, TRUTH) is right
    assert not function_calling.accepted({"name": "area", "arguments": arguments}, TRUTH)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [user("?")], "tools": []}, "messages and tools"),
        ({"messages": [user("?")], "tools": [TOOL], "ground_truth": []}, "ground_truth"),
        (
            {"messages": [user("?")], "tools": [TOOL], "ground_truth": [{"area": {"base": 5}}]},
            "list of accepted values",
        ),
        ({"messages": [user("?")], "tools": [{"name": "f"}], "ground_truth": [TRUTH]}, "a tool"),
    ],
)
def test_a_row_that_is_no_function_calling_is_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"simple\.jsonl, line 1: .*{message}"):
        functions(tmp_path, row)


def test_extraction_asks_for_the_attributes_of_a_text(tmp_path: Path) -> None:
    row = {"prompt": "name[Aromi], food[Chinese], customer rating[3 out of 5]", "references": ["Aromi, Chinese.", "B"]}
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps(row) + "\n" + json.dumps({**row, "references": ["Again."]}) + "\n")
    (question,) = extraction.read_questions(str(file))
    assert question.messages[-1] == user("Aromi, Chinese.")
    right = {**dict.fromkeys(extraction.schema()["properties"]), "name": "Aromi", "food": "Chinese"}
    right["customer rating"] = "3 out of 5"
    assert problem_of(question.constraint, json.dumps(right)) is None
    assert question.score(json.dumps(right)) == {"exact_match": 100.0, "fields": 100.0}
    assert question.score(json.dumps({**right, "food": None})) == {"exact_match": 0.0, "fields": 87.5}
    assert question.score('{"name":"Aromi"') == {"exact_match": 0.0, "fields": 0.0}
    assert problem_of(question.constraint, json.dumps({**right, "food": "Thai"}))
    file.write_text('{"prompt": "colour[red]", "references": ["Red."]}\n')
    with pytest.raises(DataError, match="line 1: colour is no attribute"):
        extraction.read_questions(str(file))


def test_a_query_uses_the_columns_of_its_table(tmp_path: Path) -> None:
    context = "CREATE TABLE table_1 (group VARCHAR, year INTEGER)"
    query = 'SELECT COUNT(group) FROM table_1 WHERE year > 1999 AND group = "a ""b"""'
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"context": context, "question": "How many?", "answer": query}) + "\n")
    (question,) = sql.read_questions(str(file))
    valid = [query, "SELECT year FROM table_1", "SELECT year FROM table_1 WHERE year <= -1.5"]
    invalid = ["SELECT month FROM table_1", "SELECT year FROM table_2", "DROP TABLE table_1", f"{query} AND", "SELECT"]
    assert [problem_of(question.constraint, text) for text in valid] == [None] * 3
    assert all(problem_of(question.constraint, text) for text in invalid)
    assert question.score(query)["exact_match"] == 100.0
    with pytest.raises(ValueError, match="no table"):
        sql.grammar("nothing")


def test_the_objects_have_schemas_of_their_own() -> None:
    questions = objects.read_questions()
    assert len({question.constraint for question in questions}) == len(questions) == 16
    for question in questions:
        assert problem_of(question.constraint, "{}"), "nothing but a whole object is valid"


def test_dates_are_those_of_rfc_3339() -> None:
    constraint = Constraint.schema({"type": "string", "format": "date"})
    for text in ("2026-11-26", "0000-02-29", "0000-10-10", "2000-02-29"):
        assert problem_of(constraint, json.dumps(text)) is None, text
    for text in ("2026-13-01", "2026-02-29", "0000-02-30", "20261126", "2026-W48-4", "x"):
        assert problem_of(constraint, json.dumps(text)), text


def test_a_regular_expression_matches_the_whole_text() -> None:
    constraint = Constraint("regex", "[a-z]{2}")
    assert problem_of(constraint, "ab") is None
    assert problem_of(constraint, "abc")


def test_questions_that_leave_no_room_are_left_out(tmp_path: Path) -> None:
    bundle = open_bundle(str(write_bundle(tmp_path / "bundle")))
    questions = [Question((user("x" * length),), SCHEMA) for length in (1, 1, 1, 40)]
    fitting, skipped = encode_questions(questions, bundle.tokenizer, bundle.manifest, 16, limit=2)
    assert (len(fitting), skipped) == (2, 1)


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("poems", "--task names one of function-calling, extraction, sql, objects, not 'poems'"),
        ("sql", "--task sql needs data"),
        ("objects=x.jsonl", "--task objects takes no data"),
    ],
)
def test_a_task_that_cannot_be_is_refused(tmp_path: Path, task: str, message: str) -> None:
    found = CliRunner().invoke(app, ["bench", "structured", str(write_bundle(tmp_path / "b")), "--task", task])
    assert found.exit_code == 2
    assert message in " ".join(found.stderr.replace("│", "").split())


def test_the_help_names_every_task() -> None:
    found = CliRunner().invoke(app, ["bench", "structured", "--help"]).output
    assert all(name in found for name in TASKS)
