"""Whether two queries have the same result: both run in sqlite on synthetic tables, in which accidental agreement is
rare.

In about half of the rows, a column has the values that the queries compare it with, so that conditions match rows; in
others it has neighbouring values, so that a wrong comparison or a missing condition changes the result; all other
values are random. Tables are filled several times, and the results must agree each time: for example, a maximum over
half of the rows is often the maximum over all.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence

_FILLS, _ROWS, _SHARED_VALUES = 10, 150, 4
MAX_STEPS = 20_000_000  # limit of sqlite's virtual machine, for queries that would not end
_COMPARISON = re.compile(
    r"""[\"`\[]?(\w+)[\"`\]]?\s*(?:=|==|<>|!=|<=|>=|<|>|\blike\b)\s*("(?:[^"]|"")*"|'(?:[^']|'')*'|-?\d+(?:\.\d+)?)""",
    re.IGNORECASE,
)
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

_NUMERIC = re.compile("int|real|num|dec|doub|float", re.IGNORECASE)

Value = str | int | float
Result = list[tuple[object, ...]]


def same_result(query: str, reference: str, schema: str) -> bool | None:
    """Whether `query` has the result of `reference`, with rows in any order unless the reference has an ORDER BY.

    None if this cannot be determined: the schema or the reference fails, or the reference returns no rows.
    """
    constants = _constants(f"{query}\n{reference}")
    ordered = "order by" in reference.lower()
    informative = False
    for fill in range(_FILLS):
        try:
            tables = _tables(schema, constants, seed=fill)
        except sqlite3.Error:
            return None
        expected = _run(tables, reference)
        if expected is None:
            return None
        if not _equal(_run(tables, query), expected, ordered):
            return False
        informative |= any(value not in (None, 0) for row in expected for value in row)
        tables.close()
    return True if informative else None


def _constants(queries: str) -> dict[str, list[Value]]:
    """The constants that each column is compared with, by the column's lower-case name."""
    found: dict[str, list[Value]] = {}
    for column, constant in _COMPARISON.findall(queries):
        found.setdefault(column.lower(), []).append(_value(constant))
    return found


def _value(constant: str) -> Value:
    if constant[0] in "\"'":
        return constant[1:-1].replace(constant[0] * 2, constant[0])
    number = float(constant)
    # SQLite reads integers beyond 64 bits as floats. 20: digits that these have, with a sign.
    return int(constant) if "." not in constant and len(constant) <= 20 and abs(number) < 2**63 else number


def _tables(schema: str, constants: dict[str, list[Value]], seed: int) -> sqlite3.Connection:
    """The schema's tables in memory, filled; afterwards the database is read-only."""
    tables = sqlite3.connect(":memory:", isolation_level=None)
    for statement in schema.split(";"):
        if statement.strip():
            if not statement.lstrip().lower().startswith("create table"):
                raise sqlite3.OperationalError("a schema creates tables and does nothing else")
            tables.execute(statement)
    chance = random.Random(seed)
    shared = [chance.randrange(1, 60) for _ in range(_SHARED_VALUES)]
    for (name,) in tables.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = tables.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
        filled = [_column(column, kind, constants, shared, chance) for _, column, kind, *_ in columns]
        places = ", ".join("?" * len(columns))
        tables.executemany(f"INSERT OR IGNORE INTO {_quoted(name)} VALUES ({places})", zip(*filled, strict=True))
    tables.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    return tables


def _column(
    name: str, kind: str, constants: dict[str, list[Value]], shared: Sequence[int], chance: random.Random
) -> list[Value]:
    """The values of a column. The `shared` ones are in every column, so that joins find matches."""
    wanted = constants.get(name.lower(), [])
    near: list[Value] = [other for value in wanted for other in _neighbours(value)]
    in_words = not _NUMERIC.search(kind) and chance.random() < 0.5  # random values are text

    def value() -> Value:
        share = chance.random()
        if wanted and share < 0.5:
            return chance.choice(wanted)
        if near and share < 0.75:
            return chance.choice(near)
        if share > 0.9:
            return chance.choice(shared)
        number = chance.randrange(1, 1_000_000)
        return f"{name} {number}" if in_words else number

    return [value() for _ in range(_ROWS)]


def _neighbours(value: Value) -> list[Value]:
    try:
        number = int(float(value))
        return [number - 1, number + 1] if abs(number) < 2**62 else []
    except (ValueError, OverflowError):  # the latter for the text Infinity
        text = str(value).strip("%")
        return [text.lower(), text.upper(), f"{text} II"]


def _run(tables: sqlite3.Connection, query: str) -> Result | None:
    """The rows of a query; None if it fails, takes too long, or writes."""
    steps = Counter[str]()

    def too_long() -> int:
        steps["thousand"] += 1
        return int(steps["thousand"] > MAX_STEPS // 1000)

    tables.set_progress_handler(too_long, 1000)
    try:
        return tables.execute(query.strip().removesuffix(";")).fetchall()
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError):
        return None


def _equal(found: Result | None, expected: Result, ordered: bool) -> bool:
    if found is None or len(found) != len(expected):
        return False
    rounded = [[tuple(map(_rounded, row)) for row in rows] for rows in (found, expected)]
    return rounded[0] == rounded[1] if ordered else Counter(rounded[0]) == Counter(rounded[1])


def _rounded(value: object) -> object:
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
