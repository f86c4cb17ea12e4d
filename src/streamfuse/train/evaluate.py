"""Held-out metrics of a stream-fused model: call-reduction ratio, acceptance per depth and rank, by exact replay.

The continuation is the model's own text, so the pass after position t accepts exactly the longest path of the tree that
the text follows. Trees are built as in the reference loop (runtime/reference/draft.py). Every drafted node is verified;
the loss from in-graph pruning is measured on the exported bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import FloatArray, IntArray
from streamfuse.runtime.reference.draft import DraftTables, grow
from streamfuse.runtime.reference.tree import Tree

from .config import DistillConfig
from .data import Example, FrozenStates
from .generate import generate_batch

MAX_RANKS = 8  # ranks from here on are counted as one


@dataclass(frozen=True)
class Replay:
    """Counts over all examples, without the prompt's pass and the token that it produces.

    `accepted_by_rank` int64 [G, MAX_RANKS]: accepted nodes by depth and by rank among their siblings, best first.
    """

    tokens: int
    calls: int  # passes of the target
    proposed: tuple[int, ...]  # [j]: passes whose tree had a node of depth j + 1
    accepted_by_rank: npt.NDArray[np.int64]

    @property
    def call_reduction_ratio(self) -> float:
        """Tokens per target call; plain decoding is 1."""
        return self.tokens / max(self.calls, 1)

    @property
    def accepted(self) -> tuple[int, ...]:
        """[j]: passes whose accepted path reached depth j + 1."""
        return tuple(self.accepted_by_rank.sum(axis=1).tolist())

    @property
    def acceptance_per_depth(self) -> list[float]:
        return [a / max(p, 1) for a, p in zip(self.accepted, self.proposed, strict=True)]

    @property
    def acceptance_per_rank(self) -> list[list[float]]:
        """[depth][rank]: share of the passes with a node of that depth that accepted the child of that rank."""
        return (self.accepted_by_rank / np.maximum(self.proposed, 1)[:, None]).tolist()


@torch.no_grad()
def draft_tables(model: StreamFused) -> DraftTables | None:
    """The tables of the parent term, as in a bundle's draft.safetensors; None without a parent term."""
    if not model.streams_config.parent_rank:
        return None
    left = model.parent.left_rows(model.base.embed_tokens.weight)
    right = model.parent.right_rows(model.head_rows())
    return DraftTables.of(
        left.to(torch.float16).cpu().numpy(),
        right.to(torch.float16).cpu().numpy(),
        model.parent.gate.float().cpu().numpy(),
        model.stream_vocab.to(torch.int32).cpu().numpy(),
    )


def own_text(model: StreamFused, prompts: Sequence[list[int]], max_new_tokens: int) -> list[Example]:
    """The model's own greedy answers to the prompts, as examples to replay; empty answers are dropped."""
    merged = model.merged()
    config = DistillConfig(max_new_tokens=max_new_tokens)
    texts = generate_batch(merged.base, prompts, config)
    return [Example([*prompt, *text], len(prompt)) for prompt, text in zip(prompts, texts, strict=True) if text]


@dataclass(frozen=True, slots=True)
class Proposals:
    """The streams' candidates along a text: row p belongs to the token before the completion's p-th token.

    `stream_ids` int64 [P, G, k], full-vocabulary ids, best first; `stream_log_probs` float32 [P, G, k].
    """

    example: Example
    stream_ids: IntArray
    stream_log_probs: FloatArray


def replay(
    model: StreamFused, examples: Sequence[Example], widths: Sequence[int] = (16,), top_k: int = 32
) -> dict[int, Replay]:
    """Replay the examples per width, with trees of that many nodes (including the root) and `top_k` candidates per
    stream."""
    model = model.merged()
    return replay_proposals(proposals(model, examples, top_k), draft_tables(model), widths)


@torch.inference_mode()
def proposals(
    model: StreamFused,
    examples: Iterable[Example],
    top_k: int,
    vocab: IntArray | None = None,
    cached: FrozenStates | None = None,
    told: bool = True,
) -> Iterator[Proposals]:
    """The candidates of a merged model's streams along the examples; only ids in `vocab` (ascending), if given (not
    supported with heads that have rows of their own).

    `cached` are the examples' frozen states, if available. Streams that are conditioned on the next token are given it,
    unless `told` is False, as in a verify pass.
    """
    own = model.stream_vocab.cpu().numpy()
    vocab, device = own if vocab is None else vocab, model.stream_vocab.device
    head = model.base.lm_head.weight[torch.from_numpy(vocab).to(device)].float()
    for i, example in enumerate(examples):
        text, first = example.input_ids, example.start
        ids = torch.tensor([text], device=device)
        if cached is None:
            frozen = model.frozen_states(ids)
        else:
            frozen = cached[i][None].to(device, model.base.lm_head.weight.dtype)
        at = torch.arange(first - 1, len(text) - 1, device=device)[None]
        states = model.stream_states(frozen, at, known=ids[:, first:] if told else None, ids=ids)
        rows = states.streams[0].float()
        stream = torch.arange(rows.shape[1], device=device).repeat(len(rows))
        logits = model.stream_logits(rows.flatten(0, 1), stream, head).view(*rows.shape[:2], -1)
        log_probs, columns = torch.log_softmax(logits, -1).topk(min(top_k, len(vocab)), -1)
        yield Proposals(example, vocab[columns.cpu().numpy()], log_probs.cpu().numpy())


def replay_proposals(
    proposed: Iterable[Proposals],
    tables: DraftTables | None,
    widths: Sequence[int],
    cut: Callable[[Example, int, Tree], Tree] | None = None,
) -> dict[int, Replay]:
    """Replay given candidates; results per width.

    Args:
        cut: prunes a tree that was drafted at this position of the example's text; None keeps it whole.
    """
    counts: dict[int, _Counts] = {}
    for one in proposed:
        text, first = one.example.input_ids, one.example.start  # the first root is the completion's first token
        depth, trees = one.stream_ids.shape[1], dict[int, Tree]()
        for width in widths:
            count, root = counts.setdefault(width, _Counts(depth)), first
            while root + 1 < len(text):
                if root not in trees:  # a narrower tree is a prefix of the widest one
                    here = one.stream_ids[root - first], one.stream_log_probs[root - first]
                    trees[root] = grow(text[root], *here, max(widths), depth, tables)
                tree = trees[root].first(width)
                root += count.add(cut(one.example, root, tree) if cut else tree, text[root + 1 :])
    return {width: count.result() for width, count in counts.items()}


class _Counts:
    def __init__(self, depth: int) -> None:
        self.tokens = self.calls = 0
        self.proposed = np.zeros(depth, np.int64)
        self.accepted = np.zeros((depth, MAX_RANKS), np.int64)

    def add(self, tree: Tree, text: list[int]) -> int:
        """One pass over the tree, if `text` follows its root; returns the number of tokens that it emits."""
        path = follow(tree, text)
        self.proposed[: tree.depth] += 1
        parent = 0
        for depth, row in enumerate(path):
            rank = int((tree.parents[:row] == parent).sum())
            self.accepted[depth, min(rank, MAX_RANKS - 1)] += 1
            parent = row
        # The pass over the root and its accepted path emits one more token than it accepts.
        emitted = min(len(path) + 1, len(text))
        self.tokens, self.calls = self.tokens + emitted, self.calls + 1
        return emitted

    def result(self) -> Replay:
        return Replay(self.tokens, self.calls, tuple(self.proposed.tolist()), self.accepted)


def follow(tree: Tree, text: list[int]) -> list[int]:
    """Rows of the longest path that `text` follows, without the root."""
    path: list[int] = []
    for token in text:
        row = tree.child(path[-1] if path else 0, token)
        if row is None:
            break
        path.append(row)
    return path
