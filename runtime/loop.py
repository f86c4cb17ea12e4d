"""The decode loop: prefill, then draft, verify, accept and commit until something ends the text.

It speaks token ids. Tokenizer, clock and user interface are passed in; keys and values never leave the backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamfuse.runtime.accept import Acceptor, MatchAcceptor, Pick, Walk
from streamfuse.runtime.backend import PREFILL, Backend, PassOutput
from streamfuse.runtime.config import GenerationConfig, check_prompt
from streamfuse.runtime.draft import Drafter, StreamDrafter
from streamfuse.runtime.plan import FixedPlan, Plan
from streamfuse.runtime.sampling import Draw, Sampler
from streamfuse.runtime.stats import Statistics, Stopwatch
from streamfuse.runtime.tree import Tree


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


def _never(_: int) -> bool:
    return False


@dataclass(slots=True)
class Loop:
    """The parts of a loop. `tokens` is the context: it holds the prompt and grows with each delivered token.

    At every moment, also after an early close or an error, the cache holds the first `backend.length` of `tokens`;
    between two passes that is all of them but the last, which is the root of the next tree. Without a `plan` the
    drafter proposes at one width: the one of `config`, else the bundle's default.
    """

    backend: Backend
    tokens: list[int]
    config: GenerationConfig = field(default_factory=GenerationConfig)
    drafter: Drafter = field(default_factory=StreamDrafter)
    acceptor: Acceptor = field(default_factory=MatchAcceptor)
    stop: threading.Event = field(default_factory=threading.Event)  # another thread may set it at any time
    watch: Callable[[int], bool] = _never  # sees each delivered token; True ends the text after it (a stop string)
    observe: Callable[[Round], None] | None = None
    statistics: Statistics = field(default_factory=lambda: Statistics(Stopwatch()))
    plan: Plan | None = None
    draw: Draw | None = None  # a faster way to the sampled tokens

    def run(self) -> Generator[Emitted, None, None]:
        """Generate. Ends with `statistics.finish_reason` set; PromptError or ValueError before the first pass.

        The text ends with "stop" (a stop token, which is not delivered, or a stop string), "length" (max_new_tokens),
        "context" (prompt and text fill the cache's capacity) or "stopped" (by `stop`, or by closing this generator).
        Tokens of a block after such a cut are neither delivered nor committed.
        """
        backend, tokens, statistics = self.backend, self.tokens, self.statistics
        clock, spec, max_new = statistics.stopwatch, backend.spec, self.config.max_new_tokens
        check_prompt(tokens, spec)
        width, stop_ids = self.config.width_for(spec), self.config.stop_ids(spec)
        plan = self.plan if self.plan is not None and width > 1 else FixedPlan(spec, self.drafter, width)
        sampler = Sampler(self.config.sampling, self.draw)
        statistics.speculative, statistics.fallback_reason = width > 1, self.config.fallback_reason(spec)
        statistics.prompt_tokens = len(tokens)
        clock.skip()
        plan.begin(tokens)
        self._prefill()
        room = min(max_new, spec.capacity - len(tokens))
        reason = None if room else "context"
        while reason is None and not self.stop.is_set():
            step = plan.step(tokens, room)
            tree = step.tree
            statistics.count_pass(step.method, tree.depth, len(tree) - 1, step.reason)
            positions, visible = tree.positions(len(tokens) - 1), tree.ancestors()
            clock.lap("draft")
            output = backend.run(step.method, tree.tokens, positions, visible, sampler.needs_logits)
            pass_ms = clock.lap("verify")
            walk = self.acceptor.accept(tree, output, tokens, self._pick(sampler, output))
            statistics.near_ties = sampler.near_ties
            delivered = end_tokens = 0
            try:
                for token in walk.tokens[:room]:
                    if self.stop.is_set():
                        break
                    if token in stop_ids:
                        reason, end_tokens = "stop", 1
                        break
                    tokens.append(token)
                    delivered += 1
                    reason = "stop" if self.watch(token) else None
                    clock.lap("accept")
                    statistics.count_token()
                    yield Emitted(token, drafted=delivered < len(walk.tokens))
                    clock.skip()
                    if reason:
                        break
            finally:
                clock.lap("accept")
                accepted = min(delivered, len(walk.tokens) - 1)
                statistics.count_accepted(accepted, delivered + end_tokens)
                if step.looked_up:
                    statistics.looked_up_tokens += sum(row in step.looked_up for row in walk.rows[1 : accepted + 1])
                if delivered:  # the root and every delivered token but the last, which becomes the next root
                    backend.commit(walk.rows[:delivered])
                clock.lap("commit")
            if self.observe is not None:
                self.observe(Round(step.method, tree, output, walk, delivered, backend.length))
            statistics.count_ranks(walk)
            room -= delivered
            if not room and reason is None:
                reason = "length" if statistics.generated_tokens == max_new else "context"
            if plan.learn(step, output, walk, pass_ms) and reason is None and delivered == len(walk.tokens):
                clock.lap("draft")
                statistics.streams_passes += 1
                streams = backend.streams(walk.last)
                plan.learn_streams(streams, clock.lap("verify"))
        statistics.finish_reason = reason or "stopped"

    def _prefill(self) -> None:
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
            self.statistics.prefilled_tokens += rows
        self.statistics.stopwatch.lap("prefill")

    def _pick(self, sampler: Sampler, output: PassOutput) -> Pick:
        """The model's own choice after a survivor. The time of sampling goes to `sample`, the walk's to `accept`."""
        clock, logits = self.statistics.stopwatch, output.logits
        if logits is None:
            best = output.best.tolist()
            return lambda index, history, position: best[index]

        def timed(index: int, history: Sequence[int], position: int) -> int:
            clock.lap("accept")
            token = sampler.pick(logits[index], history, position)
            clock.lap("sample")
            return token

        return timed
