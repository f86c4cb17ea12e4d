"""Plain and speculative answers to the same prompts, with the time and the tokens of every pass."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfuse.api import Generation
from streamfuse.bench.shared.comparison import SETTLE_S
from streamfuse.runtime.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Token:
    """The text that a token completes, and who drafted it (`Piece.source`)."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of the model: when it ended, in milliseconds from the start of decoding, and the tokens that it gave."""

    end_ms: float
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """An answer, pass by pass. The last pass has no tokens if it gave the one that ends the text."""

    token_ids: tuple[int, ...]
    passes: tuple[Pass, ...]
    statistics: Statistics

    @property
    def ms(self) -> float:
        """Decoding, from the pass of the last prompt token."""
        return self.passes[-1].end_ms if self.passes else 0.0

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def text(self) -> str:
        return "".join(token.text for one in self.passes for token in one.tokens)


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt, answered both ways. `kind` is its category."""

    kind: str
    prompt: str
    plain: Lane
    speculative: Lane

    @property
    def equal(self) -> bool:
        return self.plain.token_ids == self.speculative.token_ids

    @property
    def speedup(self) -> float:
        return self.plain.ms / self.speculative.ms if self.speculative.ms else 1.0

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "kind": self.kind,
            "prompt": self.prompt,
            "text": self.speculative.text,
            "equal": self.equal,
            "speedup": self.speedup,
            "passes": len(self.speculative.passes),
            "tokens": self.speculative.tokens,
            "statistics": {
                "plain": self.plain.statistics.to_dict(),
                "speculative": self.speculative.statistics.to_dict(),
            },
        }


def lane(generation: Generation, clock: Callable[[], float] = time.perf_counter) -> Lane:
    """Read a generation to its end. A pass ends with a token that was not drafted."""
    began = clock()
    passes: list[Pass] = []
    tokens: list[Token] = []

    def close() -> None:
        passes.append(Pass(1000 * (clock() - began), tuple(tokens)))
        tokens.clear()

    for piece in generation:
        if piece.token is not None:
            tokens.append(Token(piece.text, piece.source))
            if not piece.drafted:
                close()
        elif tokens:  # text that was held back belongs to the token before it
            tokens[-1] = Token(tokens[-1].text + piece.text, tokens[-1].source)
        elif passes and passes[-1].tokens:
            last = passes[-1]
            *before, one = last.tokens
            passes[-1] = Pass(last.end_ms, (*before, Token(one.text + piece.text, one.source)))
    if tokens or len(passes) < generation.statistics.target_forward_passes:
        close()
    prefill_ms = generation.statistics.prefill_ms  # the generation reads its prompt before its first piece
    decoded = (Pass(max(0.0, one.end_ms - prefill_ms), one.tokens) for one in passes)
    return Lane(tuple(generation.token_ids), tuple(decoded), generation.statistics)


def answer(kind: str, prompt: str, ask: Callable[..., Generation], plain_first: bool) -> Answer:
    """Ask both ways. `ask` takes `speculative`, and starts a generation from an empty cache."""
    lanes = {}
    for speculative in (False, True) if plain_first else (True, False):
        time.sleep(SETTLE_S)
        lanes[speculative] = lane(ask(speculative=speculative))
    return Answer(kind, prompt, lanes[False], lanes[True])


def speedups(answers: Sequence[Answer]) -> dict[str, float]:
    """The speed-up by kind, fastest first: milliseconds of all plain answers over those of the speculative ones."""
    kinds = dict.fromkeys(one.kind for one in answers)
    found = {kind: speedup([one for one in answers if one.kind == kind]) for kind in kinds}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def speedup(answers: Sequence[Answer]) -> float:
    """Milliseconds of all plain answers over those of the speculative ones."""
    speculative_ms = sum(one.speculative.ms for one in answers)
    return sum(one.plain.ms for one in answers) / speculative_ms if speculative_ms else 1.0


def acceptance(answers: Sequence[Answer]) -> list[float]:
    """The share of passes that delivered at least 1, 2, ... drafted tokens. Counts all passes, because
    passes without a draft tree can also deliver tokens that a constraint forces."""
    depths = [
        sum(token.source != "model" for token in each.tokens) for one in answers for each in one.speculative.passes
    ]
    return [sum(depth >= least for depth in depths) / len(depths) for least in range(1, max(depths, default=0) + 1)]


def accepted_by_source(answers: Sequence[Answer]) -> Counter[str]:
    """Accepted drafts of all answers by their source."""
    total: Counter[str] = Counter()
    for one in answers:
        total.update(one.speculative.statistics.accepted_by_source)
    return total


def costs(answers: Sequence[Answer]) -> Mapping[str, float]:
    """Milliseconds per pass by method, as the planner measured them last; empty without a planner."""
    return next(
        (one.speculative.statistics.cost_ms for one in reversed(answers) if one.speculative.statistics.cost_ms), {}
    )
