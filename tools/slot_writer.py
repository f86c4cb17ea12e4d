"""Batched text generation with a fixed number of slots (continuous batching), one CUDA graph per step.

A step computes one row of every slot, so all steps have the same shapes: on a GPU they are one CUDA graph, which is
captured once and replayed. Everything that a step decides (forced tokens, ends of turns, limits) is computed on the
device; the host looks at the slots every few steps, takes the finished texts and starts others in their places.
Prompts are read at one token per step too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from streamfuse.model.config import ModelConfig
from streamfuse.model.transformer import Transformer, rotary_tables
from streamfuse.runtime.text import Tokenizer

try:
    import triton
    from triton import language as tl
except ImportError:
    triton = None

_MARK = "\ufdd1"  # placeholder for messages; no text has this noncharacter of Unicode
_MOST_GROUP = 16  # query heads per key head: the rows of the kernel's products
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a text.

    Attributes:
        ids: its given tokens: a whole prompt, or the beginning of one.
        opens: the model writes the rest of the prompt, sampled at temperature 1.
        temperature: of the answers; 0 is greedy.
        turns: prompts and answers of the text; the model writes the later prompts.
    """

    ids: list[int]
    opens: bool = False
    temperature: float = 0.0
    turns: int = 1


@dataclass(frozen=True, slots=True)
class Bridges:
    """A chat template's tokens after a prompt, up to its answer, and after an answer, up to the next prompt. The first
    token of each ends the turn before it."""

    to_answer: list[int]
    to_prompt: list[int]

    @classmethod
    def of(cls, text: Tokenizer) -> Bridges:
        """ValueError if the template does not mark where turns begin and end."""
        roles = ("user", "assistant", "user")
        parts = text.render_cut([{"role": role, "content": _MARK} for role in roles]).split(_MARK)
        bridges = [text.encode_rendered(part, continues=True) for part in parts[2:]]
        if len(bridges) != 2 or not all(bridges):
            raise ValueError("the chat template does not mark where turns begin and end")
        return cls(bridges[1], bridges[0])


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers of tokens.

    Attributes:
        length: of a text, at most.
        prompt: of a prompt that the model writes, at most.
        answer: of an answer, at most.
        turn: left in a text, at least, where another turn begins.
        least: in the answers of a text that is kept, at least.
    """

    length: int = 448
    prompt: int = 160
    answer: int = 224
    turn: int = 200
    least: int = 12


@dataclass(frozen=True, slots=True)
class Texts:
    """ids int32 [N, T], 0 after the end; answers bool [N, T]: the answers' tokens, with those that end them."""

    ids: Tensor
    answers: Tensor


class Writer:
    """Slots that write texts, one after the other, until `starts` has no more.

    Args:
        base: the model, in the dtype and on the device to be used.
        min_p: sampled tokens are at least this probable, relative to the most probable one.

    Raises:
        ValueError: the model has layers with a sliding window.
    """

    def __init__(
        self, base: Transformer, bridges: Bridges, starts: Iterator[Start], slots: int, limits: Limits, min_p: float
    ) -> None:
        config, weight = base.config, base.embed_tokens.weight
        if any(config.layer_windows):
            raise ValueError("models with sliding windows, convolutions or linear attention are not supported")
        self.base, self.starts, self.limits, self.min_p = base, starts, limits, min_p
        self.device = weight.device
        self.attend = attend_triton if fits_triton(config, self.device) else attend_plain
        self.rotary = [(cos.to(self.device), sin.to(self.device)) for cos, sin in rotary_tables(config, limits.length)]
        shape = (slots, config.num_kv_heads, limits.length, config.head_dim)
        self.keys = [weight.new_zeros(shape) for _ in base.blocks]
        self.values = [weight.new_zeros(shape) for _ in base.blocks]
        longest = max(len(bridges.to_answer), len(bridges.to_prompt))
        padded = [ids + [0] * (longest - len(ids)) for ids in (bridges.to_answer, bridges.to_prompt)]
        self.bridges = torch.tensor(padded, device=self.device)
        self.bridge_lengths = torch.tensor([len(bridges.to_answer), len(bridges.to_prompt)], device=self.device)
        self.is_end = torch.zeros(config.vocab_size, dtype=torch.bool, device=self.device)
        self.is_end[list(config.eos_token_ids)] = True
        self.rows = torch.arange(slots, device=self.device)

        def integers() -> Tensor:
            return torch.zeros(slots, dtype=torch.int64, device=self.device)

        self.ids = torch.zeros(slots, limits.length, dtype=torch.int64, device=self.device)
        self.answers = torch.zeros(slots, limits.length, dtype=torch.bool, device=self.device)
        self.position, self.token = integers(), integers()  # of the row that the next step computes
        self.given = integers()  # tokens of `Start.ids`
        self.forced = integers()  # index of the next token in its bridge; 0: none is forced
        self.to_prompt = integers()  # which bridge: 0 to an answer, 1 to a prompt
        self.left = integers()  # tokens that the model may still write in this turn
        self.turns = integers()  # turns left, this one included
        self.temperature = torch.zeros(slots, device=self.device)
        self.answering = self.rows < 0  # whether tokens are the answer's
        self.dropped = torch.zeros_like(self.answering)  # a prompt that does not end
        self.done = torch.ones_like(self.answering)
        self.empty = torch.ones_like(self.answering)  # done, and its text is taken

    @torch.no_grad()
    def run(self, seconds: float = math.inf, every: int = 32) -> tuple[Texts, dict[str, float]]:
        """The texts that are finished after `seconds`, or all, and what was counted. Slots are looked at after `every`
        steps."""
        step = self._captured() if self.device.type == "cuda" else self._step
        self._fill()
        found: list[tuple[Tensor, Tensor]] = []
        counts = {"texts": 0, "dropped": 0, "answer_tokens": 0, "steps": 0}
        start = time.monotonic()
        while time.monotonic() - start < seconds and not bool(self.empty.all()):
            for _ in range(every):
                step()
            counts["steps"] += every
            finished = (self.done & ~self.empty).nonzero()[:, 0]
            good = finished[~self.dropped[finished] & (self.answers[finished].sum(1) >= self.limits.least)]
            found.append((self.ids[good].int(), self.answers[good]))
            counts["texts"] += len(good)
            counts["dropped"] += len(finished) - len(good)
            counts["answer_tokens"] += int(self.answers[good].sum())
            self.empty |= self.done
            self._fill()
        texts = Texts(*map(torch.cat, zip(*found, strict=True)))
        return texts, {**counts, "seconds": round(time.monotonic() - start, 1)}

    def _captured(self) -> Callable[[], None]:
        """The step as a CUDA graph; capturing it needs a few steps of warm-up, here of empty slots."""
        others = torch.cuda.Stream()
        others.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(others):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(others)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        replay: Callable[[], None] = graph.replay
        return replay

    def _fill(self) -> None:
        """Start texts in the empty slots, as many as there are."""
        slots = self.empty.nonzero()[:, 0]
        starts = list(islice(self.starts, len(slots)))
        if not starts:
            return
        slots = slots[: len(starts)]
        longest = max(len(one.ids) for one in starts)
        ids = torch.tensor([one.ids + [0] * (longest - len(one.ids)) for one in starts], device=self.device)
        opens = torch.tensor([one.opens for one in starts], device=self.device)
        self.ids[slots] = 0
        self.ids[slots, :longest] = ids
        self.answers[slots] = False
        self.position[slots], self.token[slots] = 0, ids[:, 0]
        self.given[slots] = torch.tensor([len(one.ids) for one in starts], device=self.device)
        self.forced[slots], self.to_prompt[slots] = 0, 0
        self.left[slots] = torch.where(opens, self.limits.prompt, self.limits.answer)
        self.turns[slots] = torch.tensor([one.turns for one in starts], device=self.device)
        self.temperature[slots] = torch.tensor([one.temperature for one in starts], device=self.device)
        self.answering[slots] = ~opens
        for flags in (self.dropped, self.done, self.empty):
            flags[slots] = False

    def _step(self) -> None:
        """Compute a row of every slot and append a token to the text of each that is not done."""
        limits, chosen = self.limits, self._choose(self._logits().float())
        at = self.position + 1
        given, in_bridge = at < self.given, self.forced > 0
        free = ~(given | in_bridge | self.done)
        token = torch.where(in_bridge, self.bridges[self.to_prompt, self.forced], chosen)
        token = torch.where(given | self.done, self.ids[self.rows, at], token)
        self.ids[self.rows, at] = token
        self.answers[self.rows, at] |= free & self.answering

        ends = free & torch.where(self.answering, self.is_end[token], token == self.bridges[0, 0])
        self.left -= free.long()
        too_long, full = free & ~ends & (self.left <= 0), ~self.done & (at + 1 >= limits.length)
        again = ends & self.answering & (self.turns > 1) & (at + limits.turn < limits.length)
        finished = self.answering & (too_long | (ends & ~again))
        endless = too_long & ~self.answering

        forced = torch.where(ends, 1, torch.where(in_bridge, self.forced + 1, 0))
        self.to_prompt.copy_(torch.where(ends, again.long(), self.to_prompt))
        over = (forced > 0) & (forced >= self.bridge_lengths[self.to_prompt])
        self.forced.copy_(forced.masked_fill(over, 0))
        self.answering.copy_((self.answering & ~again) | (over & (self.to_prompt == 0)))
        self.left.copy_(torch.where(over, torch.where(self.answering, limits.answer, limits.prompt), self.left))
        self.turns -= again.long()

        self.dropped |= endless | (full & ~self.answering & ~finished)
        self.done |= finished | endless | full
        self.position.copy_(torch.where(self.done, self.position, at))
        self.token.copy_(torch.where(self.done, self.token, token))

    def _logits(self) -> Tensor:
        """[slots, vocabulary] after the tokens of all slots."""
        base = self.base
        x = base.embed(self.token)
        rotary = [(cos[self.position], sin[self.position]) for cos, sin in self.rotary]
        for block, keys, values in zip(base.blocks, self.keys, self.values, strict=True):
            q, k, v = block.qkv(x, *rotary[block.rotary])
            keys[self.rows, :, self.position], values[self.rows, :, self.position] = k, v
            attended = self.attend(q.unflatten(1, (k.shape[1], -1)).contiguous(), keys, values, self.position)
            x = block.finish(x, attended.flatten(1))
        logits: Tensor = base.lm_head(base.norm(x))
        return logits

    def _choose(self, logits: Tensor) -> Tensor:
        """A token per slot: at the text's temperature in answers, at 1 in prompts."""
        temperature = torch.where(self.answering, self.temperature, torch.ones_like(self.temperature))
        scale = temperature.clamp(min=1e-3)[:, None]
        best = logits.max(-1, keepdim=True).values
        gumbel = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)))
        scores = ((logits - best) / scale + gumbel).masked_fill_(
            logits < best + math.log(self.min_p) * scale, float("-inf")
        )
        return torch.where(temperature > 0, scores.argmax(-1), logits.argmax(-1))


def attend_plain(q: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
    """A row per slot attends to keys 0 to `position` [S] of its slot, scaled by 1 / sqrt(D): q [S, Hkv, group, D], keys
    and values [S, Hkv, T, D] -> as q."""
    seen = torch.arange(keys.shape[2], device=q.device) <= position[:, None, None, None]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)


def fits_triton(config: ModelConfig, device: torch.device) -> bool:
    """Whether `attend_triton` computes this model's attention on this device."""
    size, group = config.head_dim, config.num_heads // config.num_kv_heads
    powers = (16, 32, 64, 128, 256)
    return triton is not None and device.type == "cuda" and size in powers and group <= _MOST_GROUP


def attend_triton(q: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
    """`attend_plain` by a kernel that reads only the keys that a row attends to."""
    out = torch.empty_like(q)
    slots, heads, group, size = q.shape
    _attend_kernel[(slots, heads)](
        q, keys, values, position, out, keys.shape[2], size**-0.5, SIZE=size, GROUP=group, BLOCK=64, num_warps=2
    )
    return out


if triton is not None:

    @triton.jit
    def _attend_kernel(
        q, keys, values, position, out, length, scale, SIZE: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
    ):
        """One program per slot and key head, with the online softmax of FlashAttention (arXiv 2205.14135)."""
        slot = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        heads = tl.num_programs(1)
        count = tl.load(position + slot) + 1
        rows = tl.arange(0, 16)
        columns = tl.arange(0, SIZE)
        block = tl.arange(0, BLOCK)
        own = ((slot * heads + head) * GROUP + rows)[:, None] * SIZE + columns[None, :]
        is_row = (rows < GROUP)[:, None]
        query = tl.load(q + own, mask=is_row, other=0.0)
        first = (slot * heads + head) * length * SIZE
        most = tl.full([16], -1e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        mixed = tl.zeros([16, SIZE], tl.float32)
        for start in range(0, count, BLOCK):
            at = start + block
            seen = at < count
            places = first + at[:, None] * SIZE + columns[None, :]
            key = tl.load(keys + places, mask=seen[:, None], other=0.0)
            value = tl.load(values + places, mask=seen[:, None], other=0.0)
            scores = tl.where(seen[None, :], tl.dot(query, tl.trans(key)) * scale, -1e30)
            higher = tl.maximum(most, tl.max(scores, 1))
            weights = tl.exp(scores - higher[:, None])
            shrink = tl.exp(most - higher)
            total = total * shrink + tl.sum(weights, 1)
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value)
            most = higher
        tl.store(out + own, (mixed / total[:, None]).to(out.dtype.element_ty), mask=is_row)
