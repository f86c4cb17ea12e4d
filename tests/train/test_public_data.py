"""`streamfuse data fetch`: public sets from a server of the test's own, or a folder, as the rows that recipes read.

Run: python -m pytest tests/train/test_public_data.py
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from streamfuse.bench.structured.function_calling import read_questions as read_calls
from streamfuse.cli import app
from streamfuse.cli.shared.console import SafeConsole
from streamfuse.train import public
from streamfuse.train.readers import merged, read_samples
from streamfuse.train.recipe import load, names


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def wikisql() -> bytes:
    table = {"id": "1-1", "header": ["Order Year", "Manufacturer's", "2nd leg (home)"]}
    doubled = {"id": "1-2", "header": ["A b", "A-B"]}
    asked = {"question": "How many?", "table_id": "1-1",
             "sql": {"sel": 1, "agg": 3, "conds": [[0, 1, "1998"], [2, 0, 'a "b"']]}}  # fmt: skip
    bare = {"question": "Which years?", "table_id": "1-1", "sql": {"sel": 0, "agg": 0, "conds": []}}
    dropped = {"question": "What?", "table_id": "1-2", "sql": {"sel": 0, "agg": 0, "conds": []}}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:bz2") as file:
        for split in ("train", "dev", "test"):
            parts = {split: lines(asked, bare, dropped), f"{split}.tables": lines(table, doubled)}
            for name, data in parts.items():
                facts = tarfile.TarInfo(f"data/{name}.jsonl")
                facts.size = len(data)
                file.addfile(facts, io.BytesIO(data))
    return archive.getvalue()


SAID = {"summary": "A greeting.", "topic": "x"}
ASKED = {"role": "user", "content": "Call f."}
TOOL = {"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "integer"}}}}
FILES = {
    "devset.csv": b'"mr","ref"\r\n"name[Blue]","Blue one."\r\n"name[Red]","Red."\r\n"name[Red]","Red, again."\r\n',
    "testset_w_refs.csv": '"mr","ref"\n"name[Caf\u00e9]","A caf\u00e9."\n'.encode(),
    "data.tar.bz2": wikisql(),
    "dialogsum.train.jsonl": lines({"fname": "a", "dialogue": "#Person1#: Hi.", **SAID}),
    "dialogsum.dev.jsonl": lines({"fname": "b", "dialogue": "#Person1#: Bye.", **SAID}),
    "dialogsum.test.jsonl": lines({"dialogue": "#Person1#: Well.", "summary1": "One.", "summary2": "Two."}),
    "question.jsonl": lines({"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": []}),
    "test.jsonl": lines({"question": "How many?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}),
    "HumanEval.jsonl.gz": gzip.compress(
        lines(
            {
                "task_id": "HumanEval/0",
                "prompt": "def f():\n",
                "entry_point": "f",
                "canonical_solution": "",
                "test": "t",
            }
        )
    ),
    **{
        name: data
        for split in ("simple_python", "multiple")
        for name, data in (
            (f"BFCL_v4_{split}.json", lines({"id": split, "question": [[ASKED]], "function": [TOOL]})),
            (f"possible_answer/BFCL_v4_{split}.json", lines({"id": split, "ground_truth": [{"f": {"a": [1]}}]})),
        )
    },
}


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that has FILES; the sources' own ids are those of FILES meanwhile."""
    folder = tmp_path / "server"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    for name, source in public.SOURCES.items():
        ids = {file: git_id(FILES[file]) for file in source.files}
        monkeypatch.setitem(public.SOURCES, name, replace(source, files=ids))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if not self.path.startswith("/broken/"):
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "9")
            self.end_headers()
            self.wfile.write(b"mr,ref")
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def fetch(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", "fetch", *map(str, arguments)])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_set_is_written_as_its_format_reads_it(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "data"
    result = fetch(*public.NAMES, "-o", out, "--from", server)
    assert result.exit_code == 0, result.stderr
    folders = [
        out / name
        for name in ("e2e_nlg", "sql_context", "dialogsum", "spec_bench", "gsm8k", "humaneval", "function_calling")
    ]
    assert result.stdout.split() == list(map(str, folders))
    assert result.stderr.count("Licence: ") == 7
    with monkeypatch.context() as terminal:
        terminal.setattr("streamfuse.cli.commands.data.fetch.err", SafeConsole(stderr=True, force_terminal=True))
        again = fetch("sql", "-o", out, "--from", server)
        assert again.stdout.split() == [str(out / "sql_context")], again.stderr
    assert "the shipped adapters were trained; test.jsonl is the authors' test set" in result.stderr
    assert rows(out / "e2e_nlg/train.jsonl") == [
        {"prompt": "name[Red]", "completion": "Red."},
        {"prompt": "name[Red]", "completion": "Red, again."},
    ]
    assert rows(out / "e2e_nlg/valid.jsonl") == [{"prompt": "name[Blue]", "references": ["Blue one."]}]
    assert rows(out / "e2e_nlg/test.jsonl") == [{"prompt": "name[Caf\u00e9]", "references": ["A caf\u00e9."]}]
    assert rows(out / "sql_context/valid.jsonl") == [
        {
            "context": "CREATE TABLE table_1 (c_2nd_leg_home VARCHAR, manufacturers VARCHAR, order_year VARCHAR)",
            "question": "How many?",
            "answer": 'SELECT COUNT(manufacturers) FROM table_1 WHERE c_2nd_leg_home = "a ""b""" AND order_year > 1998',
        },
        {
            "context": "CREATE TABLE table_1 (c_2nd_leg_home VARCHAR, manufacturers VARCHAR, order_year VARCHAR)",
            "question": "Which years?",
            "answer": "SELECT order_year FROM table_1",
        },
    ]
    assert rows(out / "dialogsum/test.jsonl") == [{"dialogue": "#Person1#: Well.", "references": ["One.", "Two."]}]
    assert rows(out / "spec_bench/question.jsonl") == [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    ]
    assert rows(out / "gsm8k/question.jsonl") == [
        {"question_id": 0, "category": "gsm8k", "turns": ["How many?"], "answer": "2"}
    ]
    (completed,) = rows(out / "humaneval/question.jsonl")
    assert completed == {
        "question_id": 0,
        "category": "humaneval",
        "turns": ["Complete this Python function. Answer with the whole function.\n\ndef f():\n"],
        "entry_point": "f",
        "test": "t",
    }
    called = {"messages": [ASKED], "tools": [TOOL], "ground_truth": [{"f": {"a": [1]}}]}
    assert rows(out / "function_calling/multiple.jsonl") == [{"id": "multiple", **called}]
    assert len(read_calls(str(out / "function_calling"))) == 2
    for folder, format_ in zip(folders, ("e2e", "sql", "dialogsum", *["spec-bench"] * 3), strict=False):
        for file in folder.iterdir():
            assert merged(read_samples(str(file), None)), file
            assert read_samples(str(file), format_) == read_samples(str(file), None)


def test_e2e_is_split_as_the_shipped_adapters_were_trained() -> None:
    """Of the 547 prompts of the development set the same 47 are held out, and none of the test set is trained on."""
    known = "".join(f'"name[{number}]","one"\n"name[{number}]","two"\n' for number in range(547))
    files = {"devset.csv": b"mr,ref\n" + known.encode(), "testset_w_refs.csv": b'mr,ref\n"name[new]","three"\n'}
    found = public.SOURCES["e2e"].splits(files)
    numbers = [int(row["prompt"].removeprefix("name[").removesuffix("]")) for row in found["valid"]]
    assert (numbers[:6], numbers[-3:], len(numbers)) == ([17, 43, 44, 56, 68, 73], [493, 522, 545], 47)
    trained = {row["prompt"] for row in found["train"]}
    assert (len(found["train"]), len(trained)) == (1000, 500)
    assert trained.isdisjoint(row["prompt"] for row in found["valid"])
    assert found["test"] == [{"prompt": "name[new]", "references": ["three"]}]


def test_the_folders_are_those_that_recipes_ask_for() -> None:
    stages = [stage for name in names() for stage in load(name)["stage"]]
    listed = [stage.get(key, []) for stage in stages for key in ("data", "valid")]
    files = [file for one in listed for file in ([one] if isinstance(one, str) else one)]
    asked = {Path(file).parts[0] for file in files if file.endswith(".jsonl")}
    assert asked - {"prompts"} == {public.SOURCES[name].folder for name in ("e2e", "sql", "dialogsum")}


def test_a_folder_serves_as_well(server: str, tmp_path: Path) -> None:
    result = fetch("spec-bench", "-o", tmp_path / "data", "--from", tmp_path / "server")
    assert result.exit_code == 0, result.stderr
    (tmp_path / "server" / "question.jsonl").unlink()
    result = fetch("spec-bench", "-o", tmp_path / "data", "--from", tmp_path / "server")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "question.jsonl: No such file or directory; the folder of --from must contain it" in result.stderr


def test_what_goes_wrong_is_one_line_and_leaves_nothing(server: str, tmp_path: Path) -> None:
    out = tmp_path / "data"
    changed = tmp_path / "server" / "question.jsonl"
    changed.write_bytes(FILES["question.jsonl"] + b"\n")
    for arguments, words, code in (
        (("spec-bench", "--from", server), "question.jsonl: not the file of https://raw.githubusercontent.com/", 1),
        (("e2e", "--from", f"{server}/nowhere"), "devset.csv: cannot be downloaded (HTTP Error 404", 1),
        (
            ("e2e", "--from", f"{server}/broken"),
            "cannot be downloaded (the connection ended after 6 of 9 b",
            1,
        ),
        (("e2e", "--from", "http://127.0.0.1:9"), "use --from with a folder that has devset.csv", 1),
        (("e2e", "--from", "http://"), "cannot be downloaded", 1),
        (("e2e", "--from", f"{server}/with a space"), "cannot be downloaded", 1),
        (
            ("glue",),
            "NAME must be one of e2e, sql, dialogsum, spec-bench, gsm8k, humaneval, function-calling, not glue",
            2,
        ),
    ):
        result = fetch(*arguments, "-o", out)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.stderr
        assert words in result.stderr
    assert not out.exists()
