"""A constraint, an answer that satisfies it, and a model that gives it, for tests of the structured bench."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from fakes import statistics_of

from streamfuse.bench.structured.measure import FREE, PLAIN, SPECULATIVE
from streamfuse.bench.structured.questions import Constraint, object_of

SCHEMA = Constraint.schema(object_of({"a": {"type": "integer"}}))
RIGHT = '{"a":1}'


class Scripted:
    """A model whose constrained answers are `text`, one token per character, at a time per pass of each system."""

    def __init__(self, text: str = RIGHT, drafted: str | None = None, finish: str = "stop") -> None:
        self.text, self.drafted, self.finish = text, text if drafted is None else drafted, finish
        self.calls: list[tuple[str, int, int]] = []

    def stream(self, prompt: Sequence[int], **options: Any) -> Any:
        constrained = "schema" in options
        name = FREE if not constrained else SPECULATIVE if options["speculative"] else PLAIN
        assert options.get("ignore_eos", False) is (name == FREE)
        self.calls.append((name, options["max_new_tokens"], options["seed"]))
        text = {FREE: "x" * options["max_new_tokens"], PLAIN: self.text, SPECULATIVE: self.drafted}[name]
        return self._generation([ord(character) for character in text], name)

    def _generation(self, ids: list[int], name: str) -> Any:
        passes = 2 if name == SPECULATIVE else len(ids)
        facts = statistics_of(
            target_forward_passes=passes,
            time_ms={
                "prefill": 99.0,
                "draft": 0.0,
                "accept": 0.0,
                "sample": 0.0,
                "verify": passes * {FREE: 2.0, PLAIN: 2.5, SPECULATIVE: 3.0}[name],
            },
            finish_reason=self.finish,
            accepted_by_source={"lookup": 1, "grammar": 4},
            widths={"decode": passes},
            cost_ms={"decode": 4.0},
            forced_tokens=5,
            refused_drafts=3,
            mask_ms=0.7,
        )

        class Running:
            statistics, token_ids = facts, ids

            def __iter__(self) -> Iterator[Any]:
                return iter([SimpleNamespace(token=token, drafted=False) for token in ids])

        return Running()
