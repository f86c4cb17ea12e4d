"""The decode loop on one page: prefill, then draft, verify, accept and commit until something ends the text.

This is the specification of the core (core/session.cpp), at one fixed width, and the loop for experiments with any
engine, drafter and acceptor. It speaks token ids; keys and values never leave the backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamfuse.runtime.backend import DECODE, PREFILL, Backend, PassOutput
from streamfuse.runtime.config import GenerationConfig, check_prompt, token_ids_of
from streamfuse.runtime.constraint import Constraint
from streamfuse.runtime.reference.accept import Acceptor, MatchAcceptor, Target, Walk
from streamfuse.runtime.reference.coupling import Coupled, Coupling
from streamfuse.runtime.reference.draft import Drafter, StreamDrafter
from streamfuse.runtime.reference.guide import Guide, Guided
from streamfuse.runtime.reference.sampling import Sampler
from streamfuse.runtime.reference.tree import Tree


class Emitted(NamedTuple):
    """A delivered token, and whether it was drafted (True) or chosen after the accepted path (False)."""

    token: int
    drafted: bool


@dataclass(frozen=True, slots=True)
class Round:
    """All that one pass did, for traces and tests. The arrays of `output` and `tree` are valid until the next pass."""

    method: str
    tree: Tree
    output: PassOutput
    walk: Walk
    delivered: int  # tokens of the walk that were delivered
    length: int  # committed rows afterwards


@dataclass(slots=True)
class Counts:
    """What the loop counted. Only delivered tokens are generated."""

    generated_tokens: int = 0
    target_forward_passes: int = 0  # verify and decode passes; the prompt's are not counted
    draft_tokens_proposed: int = 0
    draft_tokens_accepted: int = 0
    near_ties: int = 0  # choices that another engine's rounding might turn
    finish_reason: str = "stopped"  # until the loop knows better: a caller may walk away at any token

    @property
    def mean_accepted_tokens(self) -> float:
        """Delivered tokens per target pass, bonus tokens counted; plain decoding is 1.00."""
        return self.generated_tokens / max(self.target_forward_passes, 1)


@dataclass(slots=True)
class Loop:
    """The parts of a loop. `tokens` is the context: it holds the prompt and grows with each delivered token.

    At every moment, also after an early close or an error, the cache holds the first `backend.length` of `tokens`;
    between two passes that is all of them but the last, which is the root of the next tree.

    `constraint` restricts one text: it begins at the end of the prompt, and a run takes it over.
    """

    backend: Backend
    tokens: list[int]
    config: GenerationConfig = field(default_factory=GenerationConfig)
    drafter: Drafter = field(default_factory=StreamDrafter)
    acceptor: Acceptor = field(default_factory=MatchAcceptor)
    constraint: Constraint | None = None
    stop: threading.Event = field(default_factory=threading.Event)  # another thread may set it at any time
    observe: Callable[[Round], None] | None = None
    counts: Counts = field(default_factory=Counts)

    def run(self) -> Generator[Emitted, None, None]:
        """Generate. Ends with `counts.finish_reason` set; PromptError or ValueError before the first pass.

        The text ends with "stop" (a stop token, which is not delivered, or the constraint allows nothing more),
        "length" (max_new_tokens), "context" (prompt and text fill the cache's capacity), "incomplete" (one of these
        two limits, where the constraint does not allow an end) or "stopped" (by `stop`, or by closing this generator).
        Tokens of a block after such a cut are neither delivered nor committed. What the constraint raises ends the text
        before the token that it concerns, and passes through.
        """
        backend, tokens, counts, spec = self.backend, self.tokens, self.counts, self.backend.spec
        check_prompt(token_ids_of(tokens), spec)
        width, stop_ids = self.config.width_for(spec), self.config.stop_ids(spec)
        sampler, guide = Sampler(self.config.sampling), self._guide(stop_ids)
        needs_logits = sampler.needs_logits or self.acceptor.needs_logits or guide.constrained
        self.drafter.reset()
        if isinstance(self.drafter, Coupled) and isinstance(self.acceptor, MatchAcceptor):
            self.drafter.coupling = Coupling.of(self.config.sampling, spec.vocab_size)
        self.prefill()
        room = min(self.config.max_new_tokens, spec.capacity - len(tokens))
        reason = _end(guide, None if room else "context")
        while reason is None and not self.stop.is_set():
            if end := guide.certain_end(room):  # no pass is needed to choose these
                for token in end:
                    tokens.append(token)
                    counts.generated_tokens += 1
                    yield Emitted(token, drafted=width > 1)
                    if self.stop.is_set():
                        break
                else:
                    reason = "stop"
                continue
            method, tree = self._draft(width, room)
            positions, visible = tree.positions(len(tokens) - 1), tree.ancestors()
            output = backend.run(method, tree.tokens, positions, visible, needs_logits)
            walk = self.acceptor.accept(tree, output, tokens, Target(sampler, output, guide, len(tokens)))
            walk = walk.until(room, stop_ids, output.kept.tolist())
            counts.target_forward_passes += 1
            counts.draft_tokens_proposed += len(tree) - 1
            delivered = 0
            try:
                for token in walk.tokens:
                    if self.stop.is_set():
                        break
                    if token in stop_ids:
                        reason = "stop"
                        break
                    tokens.append(token)
                    delivered += 1
                    counts.generated_tokens += 1
                    yield Emitted(token, drafted=delivered < len(walk.tokens))
            finally:
                counts.near_ties = sampler.near_ties_before(len(tokens) + (reason == "stop"))
                counts.draft_tokens_accepted += min(delivered, len(walk.tokens) - 1)
                if delivered:  # the root and every delivered token but the last, which becomes the next root
                    backend.commit(walk.rows[:delivered])
            if self.observe is not None:
                self.observe(Round(method, tree, output, walk, delivered, backend.length))
            room -= delivered
            if reason is None and delivered == len(walk.tokens):
                guide.take(tuple(walk.tokens))
                full = counts.generated_tokens == self.config.max_new_tokens
                reason = _end(guide, None if room else "length" if full else "context")
            self.drafter.learn(output, walk.last)
            carried = output.carries_streams(walk.last)
            if width > 1 and spec.deferred and not carried and reason is None and delivered == len(walk.tokens):
                self.drafter.learn(backend.streams(walk.last, tokens[-1]), 0)
        counts.finish_reason = reason or "stopped"

    def _guide(self, stop_ids: Collection[int]) -> Guide:
        """Of this text. A drafter that knows guides gets it."""
        if self.constraint is None and self.config.restricted:
            raise ValueError(f"{self.config.restricted} restricts texts of a session; give the loop a constraint")
        if self.constraint is not None and not isinstance(self.acceptor, MatchAcceptor):
            raise ValueError("a constraint needs the acceptor that matches drafts with the model's own choices")
        widest = max((rows for rows, _ in self.backend.spec.widths.values()), default=1)
        guide = Guide(self.constraint, stop_ids, widest)
        if isinstance(self.drafter, Guided):
            self.drafter.guide = guide
        return guide

    def _draft(self, width: int, room: int) -> tuple[str, Tree]:
        """The pass to run and its tree, whose root is the last token."""
        if width < 2 or room < 2:  # the last token's successor is of no use
            return DECODE, Tree.root(self.tokens[-1])
        tree = self.drafter.draft(self.tokens, width, room - 1)
        if len(tree) == 1 and not self.backend.spec.num_streams:  # nothing to verify, and no streams to gain
            return DECODE, tree
        return self.backend.spec.verify_method(len(tree)), tree

    def prefill(self) -> None:
        """Commit every token but the last, which is the first root; the cache may hold some of them already."""
        backend, end = self.backend, len(self.tokens) - 1
        step = backend.spec.prefill_rows
        for start in range(backend.length, end, step):
            if self.stop.is_set():
                break
            ids = np.asarray(self.tokens[start : min(start + step, end)], np.int64)
            rows = len(ids)
            backend.run(PREFILL, ids, np.arange(start, start + rows), np.tri(rows, dtype=np.bool_))
            backend.commit(range(rows))


def _end(guide: Guide, limit: str | None) -> str | None:
    """Why the text ends here: it is complete, or at a limit; None if it goes on."""
    if guide.must_end():
        return "stop"
    return limit if limit is None or guide.is_complete() else "incomplete"
