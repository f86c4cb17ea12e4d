"""The plan that takes what pays: each pass is the one with the most expected tokens for its time.

A pass is worth `expected tokens - rate * cost + what it leaves behind`. `rate` is tokens per millisecond of the best
known way (plain decoding, or what is being reached), so the sum is the gain over that way. A pass that leaves streams
behind leaves `value of streams`, followed while running; a plain pass leaves none.

Look-ups and the n-gram table draft without streams (runtime/free_drafts.py). So the value of streams is what they gain
beyond that, and a streams' pass is bought where the free draft at hand is worse than usual by enough.

An allowance in plain tokens bounds what being wrong may cost: it starts small, plain decoding adds a little, every
verify pass adds what it gained or takes what it lost, and a pass whose failure it could not pay is not run. So plain
speed is lost by a percent or two at most, whatever the streams promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from streamfuse.runtime.accept import Walk
from streamfuse.runtime.acceptance import Calibration, Yields, best_paths, expected_hits
from streamfuse.runtime.backend import DECODE, STREAMS, ModelSpec, PassOutput
from streamfuse.runtime.costs import CostTable
from streamfuse.runtime.draft import StreamDrafter
from streamfuse.runtime.free_drafts import Draft, FreeDrafts
from streamfuse.runtime.plan import Step
from streamfuse.runtime.tree import Tree

COSTS = "verifying costs more here than drafts bring"
REJECTED = "too few drafts were accepted"

_ALLOWANCE, _MOST_ALLOWANCE = 1.5, 6.0  # plain tokens: at the start, and at most
_EARNED = 0.01  # allowance per plain token
_PROBE = 4  # passes with drafts in one try after a pause
_PAUSE, _LONGEST_PAUSE = 24, 768  # tokens between tries; each that fails doubles it
_FOLLOW = 0.1  # of the difference, per sight: the value of streams
_FIRST_SIGHTS = 4  # sights that the first guess of it counts for; so the first few teach more
_CLEARLY = 2.0  # streams that are worth so many times their cost are bought mostly without a look at the free draft
_GLANCES = 4  # passes between two such looks
_UNSEEN = 32  # passes without streams after which they are looked at again where they are not bought
_OBSERVED = 8  # in a pause one plain pass in so many is looked at
_RATE_FORGET = 0.98
_PRIOR_HIT = 0.35  # expected tokens of the best node where a bundle has no acceptance; the i-th best has an i-th of it


class AdaptivePlan:
    """Chooses method, nodes and schedule per pass. What it has learnt stays for the next generation."""

    def __init__(self, spec: ModelSpec, costs: CostTable, drafter: StreamDrafter) -> None:
        self.costs = costs
        self._spec = spec
        self._drafter = drafter
        self._methods = sorted(spec.widths, key=lambda name: spec.widths[name])
        self._widest = max(rows for rows, _ in spec.widths.values())
        self._calibration = Calibration(drafter.calibration, spec.num_streams)
        self._yields = Yields(self._methods)
        self._carried = {name: _carrying_share(spec, name) for name in self._methods}  # how often streams are left
        self._free = FreeDrafts(drafter.ngrams, self._widest)
        self._free_gain = 0.0  # of a pass with a free draft over plain decoding, in tokens
        self._allowance = _ALLOWANCE
        self._recent = [0.0, 0.0]  # tokens, milliseconds
        self._decode_ms = self._rate = 0.0  # of a plain pass; tokens per millisecond of the best known way
        self._follow_rate()
        self._value = self._first_value()  # of having streams, in tokens
        self._sights = _FIRST_SIGHTS  # of that value
        self._unseen = 0  # passes since there were streams
        self._glance = 0  # passes since the free draft was looked at before streams were bought
        self._pause = _PAUSE  # length of the next one, in plain tokens
        self._wait: int | None = None  # what is left of this one; None where drafting goes on
        self._probe, self._probe_gain = 0, 0.0  # passes left of a try, plain tokens that it gained
        self._reason, self._drafted = COSTS, False
        self._draft: Draft | None = None  # of this pass
        self._next: Draft | None = None  # the free one of the next pass, where it was looked at already
        self._expected = 0.0
        self._tokens: Sequence[int] = ()
        self._room = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self._drafter.reset()
        self._free.begin(tokens)
        self._next = None

    def step(self, tokens: Sequence[int], room: int) -> Step:
        self._draft, self._tokens, self._room = None, tokens, room
        if room < 2:
            return Step(DECODE, Tree.root(tokens[-1]))
        if self._wait and self._next is None and not self._drafter.ready and self._free.idle(tokens):
            return Step(DECODE, Tree.root(tokens[-1]), self._reason)
        self._draft = draft = self._drafted_at(tokens, room - 1)
        if self._wait and len(draft.tree) == 1 and draft.streams is None:  # nothing to verify, no streams wanted yet
            return Step(DECODE, draft.tree, self._reason)
        method, nodes, gain, expected = draft.best or self._best(draft)
        plain = self._plain_gain()
        if draft.streams is not None:
            self._follow_value(max(gain, plain), plain, room)
        promising = gain > plain
        self._free.used(draft, promising)
        if promising or (not self._hopes() and self._looks_again(method, nodes)):
            if self._affords(method, nodes):
                self._expected = expected
                return Step(method, draft.tree.first(nodes), looked_up=draft.alone)
            self._reason = REJECTED if self._drafted else COSTS
            self._rest()
        elif self._hopes():  # the deferred schedule: a plain pass that leaves streams is no fall-back
            return Step(DECODE, draft.tree.first(1))
        elif draft.streams is not None:
            self._reason = COSTS if self._calibration.ratios()[1] > 0.7 else REJECTED
        return Step(DECODE, draft.tree.first(1), self._reason)

    def learn(self, step: Step, output: PassOutput, walk: Walk, ms: float) -> bool:
        method, nodes, tokens, draft = step.method, len(step.tree), len(walk.tokens), self._draft
        if self._wait and step.reason is not None and (draft is None or (not draft.streams and len(draft.tree) == 1)):
            return self._learn_in_pause(ms)
        self.costs.observe(method, nodes, ms)
        self._follow_rate()
        gained = self._account(method, nodes, tokens)
        if draft is not None:
            if draft.streams is not None:
                self._calibration.learn(draft.streams, walk.tokens)
            self._free.learn(draft, walk.tokens)
        carried = output.carries_streams(walk.last)
        self._drafter.learn(output, walk.last)
        if self._wait:  # also where free drafts go on in a pause: without plain passes it would never end
            self._wait -= 1
        if method != DECODE:
            if nodes > 1:
                self._drafted = True
                self._yields.learn(method, tokens - 1, self._expected)
            self._carried[method] += _FOLLOW * (carried - self._carried[method])
            self._watch_probe(gained, nodes)
        return self._spec.deferred and not carried and self._wants_deferred(self._room - tokens - 1)

    def _learn_in_pause(self, ms: float) -> bool:
        """A plain pass while nothing is tried: as little as can be, because this is what fallen back costs."""
        assert self._wait is not None
        self._wait -= 1
        if not self._wait % _OBSERVED:
            self.costs.observe(DECODE, 1, ms)
            self._follow_rate()
        self._allowance = min(_MOST_ALLOWANCE, self._allowance + _EARNED)
        recent = self._recent
        recent[0], recent[1] = _RATE_FORGET * recent[0] + 1, _RATE_FORGET * recent[1] + self._decode_ms
        self._drafter.reset()
        return False

    def learn_streams(self, output: PassOutput, ms: float) -> None:
        self.costs.observe(STREAMS, 1, ms)
        self._follow_rate()
        spent = self.costs.of_pass(STREAMS)
        self._allowance -= spent / self._decode_ms
        self._recent[1] += spent
        self._follow_rate()
        self._unseen = 0
        self._drafter.learn(output, 0)

    def _drafted_at(self, tokens: Sequence[int], depth: int) -> Draft:
        """The draft with streams, where there are any, else the free one."""
        if self._drafter.ready:
            return self._free.draft(tokens, depth, self._drafter.draft(tokens, self._widest, depth))
        known, self._next = self._next, None
        if known is not None and (known.place, known.depth) == (len(tokens), depth):
            return known
        return self._free.draft(tokens, depth, None)

    def _best(self, draft: Draft) -> tuple[str, int, float, float]:
        """The verify pass of the largest gain: method, nodes, gain, drafted tokens expected to be accepted."""
        ratios = self._free.ratios() if draft.streams is None else self._calibration.ratios()
        rate, hits = self._rate, expected_hits(draft.tree, ratios, draft.exact)
        sums, later = [0.0, *accumulate(hits)], self._left(0.0)
        best = ("", 0, -1e9, 0.0)
        for method in self._methods:
            nodes = min(len(hits) + 1, self._spec.widths[method][0])
            kept, least = self._yields.ratio(method), rate * self.costs.per_node(method)
            while nodes > 1 and kept * hits[nodes - 2] < least:
                nodes -= 1
            gain = 1 + kept * sums[nodes - 1] - rate * self.costs.of_pass(method, nodes)
            gain += self._left(self._carried[method]) if self._carried[method] else later
            if gain > best[2]:
                best = (method, nodes, gain, sums[nodes - 1])
            if nodes > len(hits):  # the whole tree: wider methods have nothing to add
                break
        return best

    def _plain_gain(self) -> float:
        return 1 - self._rate * self._decode_ms + self._left(0.0)

    def _left(self, carried: float) -> float:
        """What a pass leaves behind that carries streams with this probability."""
        if self._wait:
            return 0.0
        later = self._value - self._rate * self.costs.of_pass(STREAMS) if self._spec.deferred else 0.0
        return carried * self._value + (1 - carried) * max(0.0, later)

    def _hopes(self) -> bool:
        """Whether streams would be bought after a pass whose free draft is worth nothing."""
        if self._wait:
            return False
        return self._spec.deferred and self._value + self._free_gain > self._rate * self.costs.of_pass(STREAMS)

    def _wants_deferred(self, depth: int) -> bool:
        """Whether streams for the next pass, of so many levels at most, gain more than they cost."""
        if self._wait and not self._probe:
            return False
        value, cost = self._value, self._rate * self.costs.of_pass(STREAMS)
        self._glance = (self._glance + 1) % _GLANCES if value > _CLEARLY * cost else 0
        if depth > 0 and not self._probe and not self._glance:
            self._next = draft = self._free.draft(self._tokens, depth, None)
            draft.best = self._best(draft)
            here = max(0.0, draft.best[2] - self._plain_gain())
            value += self._free_gain - here
            self._free_gain += _FOLLOW * (here - self._free_gain)
        self._unseen += 1
        worth = value > cost or self._unseen > _UNSEEN
        return (worth or self._probe > 0) and self._allowance > self._relative(STREAMS)

    def _follow_rate(self) -> None:
        """Costs or speed have changed. Asked for many times a step, so both are kept."""
        self._decode_ms = self.costs.of_pass(DECODE)
        tokens, ms = self._recent
        plain = 1 / self._decode_ms
        self._rate = max(plain, tokens / ms) if ms else plain

    def _relative(self, method: str, nodes: int = 1) -> float:
        """Cost in plain passes."""
        return self.costs.of_pass(method, nodes) / self._decode_ms

    def _affords(self, method: str, nodes: int) -> bool:
        """The allowance can pay for the pass if nothing is accepted, and for the next one if this is to lead to it."""
        need = self._relative(method, nodes) - 1
        if nodes == 1:
            need += min(self._relative(name, self._spec.widths[name][0]) for name in self._methods) - 1
        return self._allowance >= need

    def _follow_value(self, here: float, plain: float, room: int) -> None:
        """Streams are worth what the best pass gains with them beyond the best without them."""
        if room < 8 or self._wait:  # the end of the text says nothing about its middle
            return
        narrow, plain = self._methods[0], plain + self._free_gain
        without = max(plain, 1 - self._rate * self.costs.of_pass(narrow) + self._left(self._carried[narrow]))
        self._value = max(0.0, self._value + max(_FOLLOW, 1 / self._sights) * (here - without - self._value))
        self._sights += 1

    def _first_value(self) -> float:
        rate, best = self._rate, 0.0
        hit = _PRIOR_HIT * min(1.0, self._calibration.ratios()[min(1, self._spec.num_streams)])
        hits = best_paths(self._drafter.acceptance, self._widest - 1) or [
            hit / (1 + i) for i in range(self._widest - 1)
        ]
        for method in self._methods:
            rows = self._spec.widths[method][0]
            tokens = sum(hits[: rows - 1])
            extra = self.costs.of_pass(method, rows) - self.costs.of_pass(self._methods[0])
            best = max(best, tokens - rate * extra)
        return best if self._spec.num_streams else 0.0

    def _account(self, method: str, nodes: int, tokens: int) -> float:
        """Book a pass; plain tokens that it gained."""
        gained = tokens - self._relative(method, nodes)
        self._allowance = min(_MOST_ALLOWANCE, self._allowance + (_EARNED if method == DECODE else gained))
        self._recent[0] = _RATE_FORGET * self._recent[0] + tokens
        self._recent[1] = _RATE_FORGET * self._recent[1] + self.costs.of_pass(method, nodes)
        self._follow_rate()
        return gained

    def _looks_again(self, method: str, nodes: int) -> bool:
        """Nothing pays by what is known. The first time, pause; after the pause, try a few passes all the same."""
        if self._probe:
            return True
        if self._wait is None:
            if self._draft is None or self._draft.streams is None:
                self._rest()
            return False
        if self._wait or not self._spec.num_streams or not self._affords(method, nodes):
            return False
        self._probe, self._probe_gain = _PROBE, 0.0
        self._calibration.doubt()
        self._yields.doubt()
        return True

    def _rest(self) -> None:
        """A pause, after which it is tried again; longer each time in a row."""
        self._probe, self._wait = 0, self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _watch_probe(self, gained: float, nodes: int) -> None:
        if self._allowance >= _MOST_ALLOWANCE:
            self._pause = _PAUSE
        if not self._probe or nodes == 1:
            return
        self._probe -= 1
        self._probe_gain += gained
        if not self._probe:
            if self._probe_gain > 0:
                self._pause, self._wait = _PAUSE, None
            else:
                self._reason = REJECTED
                self._rest()


def _carrying_share(spec: ModelSpec, method: str) -> float:
    """A guess before anything was seen: the nodes that carry streams are the likeliest ends of the accepted path."""
    return math.sqrt(spec.streams_of(method) / spec.widths[method][1])
