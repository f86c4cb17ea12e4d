"""Downloads public data sets from their original sources, and converts them to JSON lines for training and benchmarks.

Each source is pinned to a commit, so its files never change; git's blob id of each file is checked. The splits are the
authors', except E2E's (`_e2e`). Needs only the standard library.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import http.client
import io
import json
import random
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamfuse.durable import reason, write_text

from .formats import DataError, Row

Files = Mapping[str, bytes]
Progress = Callable[[str, int, int], None]  # file, bytes done, total bytes (0: unknown)

_TIMEOUT_S = 30.0
_BLOCK_BYTES = 1 << 18
_MOST_BYTES = 1 << 28  # limit per file; the largest has 26 MB
_E2E_PROMPTS, _E2E_HELD_OUT = 547, 47  # sizes of the development set
_AGGREGATES = ("", "MAX", "MIN", "COUNT", "SUM", "AVG")  # WikiSQL's, by number
_COMPARISONS = ("=", ">", "<")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """`base` is the folder at a commit, `files` git's ids by name, `folder` the name that recipes use for the
    result."""

    about: str
    licence: str
    base: str
    files: Mapping[str, str]
    folder: str
    splits: Callable[[Files], dict[str, list[Row]]]


def _e2e(files: Files) -> dict[str, list[Row]]:
    """`train` and `valid`: the development set, on which the shipped adapters were trained; `test`: the test set."""

    def grouped(name: str) -> dict[str, list[str]]:
        references: dict[str, list[str]] = {}
        for row in csv.DictReader(io.StringIO(files[name].decode("utf-8"), newline="")):
            references.setdefault(row["mr"], []).append(row["ref"])
        return references

    def asked(references: Mapping[str, list[str]], prompts: Iterable[str]) -> list[Row]:
        return [{"prompt": prompt, "references": references[prompt]} for prompt in prompts]

    known = grouped("devset.csv")
    order = list(known)
    random.Random(0).shuffle(order)  # the split that the shipped adapters were trained with
    held_out = set(order[: max(1, len(order) * _E2E_HELD_OUT // _E2E_PROMPTS)])
    new = grouped("testset_w_refs.csv")
    return {
        "train": [
            {"prompt": prompt, "completion": text}
            for prompt, texts in known.items()
            for text in texts
            if prompt not in held_out
        ],
        "valid": asked(known, [prompt for prompt in known if prompt in held_out]),
        "test": asked(new, new),
    }


def _sql(files: Files) -> dict[str, list[Row]]:
    with tarfile.open(fileobj=io.BytesIO(files["data.tar.bz2"]), mode="r:bz2") as archive:

        def lines(name: str) -> Iterator[Any]:
            file = archive.extractfile(f"data/{name}.jsonl")
            if file is None:
                raise KeyError(name)
            return map(json.loads, file)

        found = {}
        for split, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
            headers = {table["id"]: table["header"] for table in lines(f"{name}.tables")}
            rows = (_query(row, headers[row["table_id"]]) for row in lines(name))
            found[split] = [row for row in rows if row is not None]
    return found


def _query(row: Any, header: list[str]) -> Row | None:
    """A row of WikiSQL as a schema, a question and a query; None if two columns would have the same name.

    Names are lower case with underscores; columns and conditions are sorted; every type is VARCHAR; numbers are
    unquoted.
    """
    names = [_column(name) for name in header]
    conditions = sorted((names[column], comparison, str(value)) for column, comparison, value in row["sql"]["conds"])
    if len(set(names)) < len(names) or any(comparison >= len(_COMPARISONS) for _, comparison, _ in conditions):
        return None
    aggregate, column = _AGGREGATES[row["sql"]["agg"]], names[row["sql"]["sel"]]
    where = " AND ".join(
        f"{name} {_COMPARISONS[comparison]} {_literal(value)}" for name, comparison, value in conditions
    )
    return {
        "context": f"CREATE TABLE table_1 ({', '.join(f'{name} VARCHAR' for name in sorted(names))})",
        "question": row["question"],
        "answer": f"SELECT {f'{aggregate}({column})' if aggregate else column} FROM table_1"
        + (f" WHERE {where}" if where else ""),
    }


def _column(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower().replace("'", "")).strip("_")
    return plain if plain[:1].isalpha() else f"c_{plain}"


def _literal(value: str) -> str:
    return value if _NUMBER.fullmatch(value) else '"{}"'.format(value.replace('"', '""'))


def _lines(data: bytes) -> list[Row]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def _dialogsum(files: Files) -> dict[str, list[Row]]:
    def rows(split: str) -> list[Row]:
        return _lines(files[f"dialogsum.{split}.jsonl"])

    def held_out(split: str) -> list[Row]:
        return [
            {"dialogue": row["dialogue"], "references": [row[key] for key in sorted(row) if key.startswith("summary")]}
            for row in rows(split)
        ]

    train = [{"dialogue": row["dialogue"], "summary": row["summary"]} for row in rows("train")]
    return {"train": train, "valid": held_out("dev"), "test": held_out("test")}


def _spec_bench(files: Files) -> dict[str, list[Row]]:
    rows = _lines(files["question.jsonl"])
    return {"question": [{key: row[key] for key in ("question_id", "category", "turns")} for row in rows]}


def _gsm8k(files: Files) -> dict[str, list[Row]]:
    """The test set in Spec-Bench's format. `answer` is the number after `####`."""
    return {
        "question": [
            {
                "question_id": number,
                "category": "gsm8k",
                "turns": [row["question"]],
                "answer": row["answer"].rpartition("####")[2].strip(),
            }
            for number, row in enumerate(_lines(files["test.jsonl"]))
        ]
    }


def _humaneval(files: Files) -> dict[str, list[Row]]:
    """Spec-Bench's format, with the tests of each function."""
    return {
        "question": [
            {
                "question_id": number,
                "category": "humaneval",
                "turns": [f"Complete this Python function. Answer with the whole function.\n\n{row['prompt']}"],
                "entry_point": row["entry_point"],
                "test": row["test"],
            }
            for number, row in enumerate(_lines(gzip.decompress(files["HumanEval.jsonl.gz"])))
        ]
    }


def _function_calling(files: Files) -> dict[str, list[Row]]:
    """Rows of messages, tools and the accepted answer; questions have one turn."""

    def rows(name: str) -> list[Row]:
        asked, right = (map(json.loads, files[file].splitlines()) for file in _files_of(name))
        truth = {row["id"]: row["ground_truth"] for row in right}
        return [
            {
                "id": row["id"],
                "messages": row["question"][0],
                "tools": row["function"],
                "ground_truth": truth[row["id"]],
            }
            for row in asked
        ]

    return {name: rows(name) for name in ("simple_python", "multiple")}


def _files_of(name: str) -> tuple[str, str]:
    return f"BFCL_v4_{name}.json", f"possible_answer/BFCL_v4_{name}.json"


_GITHUB = "https://raw.githubusercontent.com"
SOURCES = {
    "e2e": Source(
        "E2E NLG: a meaning representation in, a sentence or two out. train.jsonl and valid.jsonl are the authors' "
        "development set, on which the shipped adapters were trained; test.jsonl is the authors' test set",
        "CC BY-SA 4.0",
        f"{_GITHUB}/tuetschek/e2e-dataset/ab0d967dd5729ce455ef14ba9ffafc456a335264",
        {
            "devset.csv": "c45950a0771c769d787a33fdf56439cb890005d7",
            "testset_w_refs.csv": "86733864c96dc18cbaa5f18042356296ef679302",
        },
        "e2e_nlg",
        _e2e,
    ),
    "sql": Source(
        "WikiSQL, reshaped: a CREATE TABLE and a question in, a query out",
        "BSD 3-Clause",
        f"{_GITHUB}/salesforce/WikiSQL/7857cfd8aefcc9823245c370f9e39ecd55745ea6",
        {"data.tar.bz2": "941de4cb2ad5fa7aeb2e37d314468636ce070af7"},
        "sql_context",
        _sql,
    ),
    "dialogsum": Source(
        "DialogSum: a dialogue in, a summary out",
        "CC BY-NC-SA 4.0: measure with it, ship no weights trained on it",
        f"{_GITHUB}/cylnlp/dialogsum/848cc8c05e0a04def79326539de827f1b28786a0/DialogSum_Data",
        {
            "dialogsum.train.jsonl": "0a02b0f0cbe801a75384ba28364a7528b9340587",
            "dialogsum.dev.jsonl": "de762eea17e5e2464e221ac9a1cf5c7c64eec655",
            "dialogsum.test.jsonl": "1975a852f57a07f93fbabe68841c3328e3057f65",
        },
        "dialogsum",
        _dialogsum,
    ),
    "spec-bench": Source(
        "Spec-Bench: 480 questions of thirteen kinds, without answers",
        "Apache 2.0",
        f"{_GITHUB}/hemingkx/Spec-Bench/fd2c1cd7d2201ef71db4c5f4e455008f017967bf/data/spec_bench",
        {"question.jsonl": "2498d09719b92937c9408f9d7e6efbeaaceb0413"},
        "spec_bench",
        _spec_bench,
    ),
    "gsm8k": Source(
        "GSM8K: the 1,319 questions of the test set, with their answers, which are numbers",
        "MIT",
        f"{_GITHUB}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data",
        {"test.jsonl": "e4c2ff4942b9a78bd74f04141224c11e28d12dc9"},
        "gsm8k",
        _gsm8k,
    ),
    "humaneval": Source(
        "HumanEval: 164 Python functions to complete, with their tests",
        "MIT",
        f"{_GITHUB}/openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d/data",
        {"HumanEval.jsonl.gz": "998d25196e17af24daf9b6cb3a975fe752528e46"},
        "humaneval",
        _humaneval,
    ),
    "function-calling": Source(
        "Berkeley Function Calling Leaderboard v4: a question and functions in, one call out. simple_python.jsonl has "
        "one function per question, multiple.jsonl two to four",
        "Apache 2.0",
        f"{_GITHUB}/ShishirPatil/gorilla/6ea57973c7a6097fd7c5915698c54c17c5b1b6c8/"
        "berkeley-function-call-leaderboard/bfcl_eval/data",
        {
            "BFCL_v4_simple_python.json": "356a0db61e54eb1d92d8e10d014463cf2eb513cc",
            "BFCL_v4_multiple.json": "83643fa853e7a29a50e7303b0279284c37dd63c8",
            "possible_answer/BFCL_v4_simple_python.json": "268c55641a21b51fc15730ce39ce906444a935a1",
            "possible_answer/BFCL_v4_multiple.json": "1f2f1fbfd9b7c8859ef5a92d6c18b0a6b2bc2663",
        },
        "function_calling",
        _function_calling,
    ),
}
NAMES = tuple(SOURCES)


def make(name: str, out: Path, origin: str | None = None, progress: Progress = lambda *_: None) -> Path:
    """Write a data set below `out`, one file of JSON lines per split, replacing existing files; returns its folder.

    `origin` is a folder or URL with the same files; None: the original source.

    Raises:
        DataError: a file is not available, or is not the expected one.
    """
    source = SOURCES[name]
    base = source.base if origin is None else origin
    files = {file: _read(base, file, progress) for file in source.files}
    for file, data in files.items():
        found = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if found != source.files[file]:
            raise DataError(
                f"{_place(base, file)}: not the file of {source.base} (git's id is {found}, not {source.files[file]});"
                " download it again"
            )
    try:
        splits = source.splits(files)
    except (KeyError, ValueError, OSError, tarfile.TarError, EOFError) as error:
        raise DataError(f"{base}: {name} cannot be read ({type(error).__name__}: {error})") from None
    folder = out / source.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            write_text(folder / f"{split}.jsonl", text)
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be written ({reason(error)})") from None
    return folder


def _place(base: str, file: str) -> str:
    return f"{base.rstrip('/')}/{file}"


def _read(base: str, file: str, progress: Progress) -> bytes:
    place = _place(base, file)
    if not base.startswith(("http://", "https://")):
        try:
            return Path(place).read_bytes()
        except OSError as error:
            raise DataError(f"{place}: {reason(error)}; the folder of --from must contain it") from None
    try:
        with urllib.request.urlopen(place, timeout=_TIMEOUT_S) as answer:
            return _all(answer, file, int(answer.headers.get("Content-Length") or 0), progress)
    except (OSError, ValueError, http.client.HTTPException) as error:  # urllib's are OSErrors; ValueError: not a URL
        message = str(error.reason) if type(error) is urllib.error.URLError else str(error)
        raise DataError(
            f"{place}: cannot be downloaded ({message}); check the network, or use --from with a folder that has {file}"
        ) from None


def _all(answer: Any, file: str, size: int, progress: Progress) -> bytes:
    data = bytearray()
    while block := answer.read(_BLOCK_BYTES):
        data += block
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES >> 20} MiB")
        progress(file, len(data), size)
    if len(data) < size:
        raise ValueError(f"the connection ended after {len(data)} of {size} bytes")
    return bytes(data)
