"""How good a text is: ROUGE against references; exact and execution match for SQL. All figures are in percent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from .sql import same_result

if TYPE_CHECKING:
    from streamfuse.train.formats import Sample

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def quality(samples: Sequence[Sample], texts: Sequence[str]) -> dict[str, float]:
    """What fits the data: exact and execution match where rows have a schema, else ROUGE where they have references.

    Rows without references count in nothing; where none has any, the result is empty.
    """
    judged = [(sample, text) for sample, text in zip(samples, texts, strict=True) if sample.references]
    if not judged:
        return {}
    references = [sample.references for sample, _ in judged]
    answers = [text for _, text in judged]
    schemas = [sample.schema for sample, _ in judged]
    if all(schemas):
        return {
            "exact_match": exact_match(answers, references),
            **execution_match(answers, [first for first, *_ in references], schemas),
        }
    return rouge(answers, references)


def needs_rouge(samples: Iterable[Sample]) -> bool:
    """Whether `quality` of these samples is ROUGE."""
    judged = [sample for sample in samples if sample.references]
    return not all(sample.schema for sample in judged)


def rouge(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """F-measures of rouge1, rouge2, rougeL and rougeLsum with stemming; of several references the best one counts.

    That is what Hugging Face `evaluate` reports for lists of references. For rougeLsum a sentence is a line.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGE, use_stemmer=True)
    scores = [
        scorer.score_multi([_lines(one) for one in right], _lines(text)) for text, right in _pairs(texts, references)
    ]
    return {name: 100 * fmean(score[name].fmeasure for score in scores) for name in ROUGE}


def exact_match(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Share of texts that equal one of their references, but for white space and a last semicolon."""
    return 100 * fmean(_plain(text) in map(_plain, right) for text, right in _pairs(texts, references))


def execution_match(queries: Sequence[str], references: Sequence[str], schemas: Sequence[str]) -> dict[str, float]:
    """`execution_match`: share of queries with the result of their reference on synthetic tables (see `sql.py`).

    A pair that cannot be told apart by running it (the reference fails, or finds nothing in any table) counts by its
    words. `executed`: share of pairs that running decided.
    """
    matches, decided = [], []
    for query, reference, schema in zip(queries, references, schemas, strict=True):
        verdict = same_result(query, reference, schema)
        decided.append(verdict is not None)
        matches.append(_plain(query) == _plain(reference) if verdict is None else verdict)
    return {"execution_match": 100 * fmean(matches), "executed": 100 * fmean(decided)}


def _pairs(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    if not texts:
        raise ValueError("there is no text to judge")
    return list(zip(texts, references, strict=True))


def _lines(text: str) -> str:
    return _SENTENCE_END.sub("\n", text.strip())


def _plain(text: str) -> str:
    return " ".join(text.split()).removesuffix(";").rstrip()
