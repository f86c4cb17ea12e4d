"""SQL: a question about a table, answered by a query that a grammar restricts to the table's own columns.

The grammar has what the queries of WikiSQL need: one column or an aggregate of it, and conditions joined by AND.
"""

from __future__ import annotations

import json
import re

from streamfuse.bench.quality.scores import exact_match, execution_match
from streamfuse.train.formats import DataError, Sample
from streamfuse.train.readers import merged, read_samples

from .questions import Constraint, Question, user

_GRAMMAR = """\
start: "SELECT " selected " FROM " TABLE (" WHERE " condition (" AND " condition)*)?
selected: COLUMN | AGGREGATE "(" COLUMN ")"
condition: COLUMN " " OPERATOR " " value
value: STRING | NUMBER
AGGREGATE: "AVG" | "COUNT" | "MAX" | "MIN" | "SUM"
OPERATOR: "=" | "<" | ">" | "<=" | ">=" | "<>"
STRING: /"([^"\\n]|"")*"/
NUMBER: /-?[0-9]+(\\.[0-9]+)?/
"""
_TABLE = re.compile(r"CREATE\s+TABLE\s+(\w+)\s*\(([^()]*)\)", re.IGNORECASE)


def read_questions(source: str, split: str = "test") -> list[Question]:
    """A question for each row of `context`, `question` and `answer`. DataError names the row that has no tables."""
    return [_question(sample, source) for sample in merged(read_samples(source, "sql", split=split))]


def grammar(schema: str) -> str:
    """The queries that may be asked of the tables that `schema` creates. ValueError where it creates none.

    The statements are read by a pattern, not by a database: WikiSQL has columns that are named group and to.
    """
    tables, columns = [], []
    for table, listed in _TABLE.findall(schema):
        tables.append(table)
        columns += [column.split()[0] for column in listed.split(",") if column.strip()]
    if not columns:
        raise ValueError("it creates no table")
    return f"{_GRAMMAR}TABLE: {_any_of(tables)}\nCOLUMN: {_any_of(columns)}\n"


def _any_of(names: list[str]) -> str:
    return " | ".join(json.dumps(name) for name in dict.fromkeys(names))


def _question(sample: Sample, source: str) -> Question:
    try:
        constraint = Constraint("grammar", grammar(sample.schema))
    except ValueError as error:
        raise DataError(f"{source}: {sample.schema!r:.60} is no CREATE TABLE: {error}") from None

    def score(text: str) -> dict[str, float]:
        found = execution_match([text], [sample.references[0]], [sample.schema])
        return {"exact_match": exact_match([text], [sample.references]), "execution_match": found["execution_match"]}

    return Question((user(sample.turns[0]),), constraint, score)
