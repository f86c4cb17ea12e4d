"""Held-out measures of a stream-fused model: call-reduction ratio and acceptance per depth, by exact replay.

The continuation is the model's own text, so the pass after position t accepts exactly the longest path of the tree
that the text follows. No pass is simulated away: tree growth is the runtime's own (`streamfuse.runtime.draft`). Every
drafted node is verified; what in-graph pruning loses is measured on the exported bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from streamfuse.model.streams import StreamFused
from streamfuse.runtime.draft import DraftTables, grow
from streamfuse.runtime.tree import Tree

from .data import StreamDataset, collate


@dataclass(frozen=True, slots=True)
class Replay:
    """Counts over all examples; the prompt's pass and the first token that it leads to are not among them."""

    tokens: int
    calls: int  # passes of the target
    proposed: tuple[int, ...]  # [j]: passes whose tree had a node of depth j + 1
    accepted: tuple[int, ...]  # [j]: passes whose accepted path reached depth j + 1

    @property
    def call_reduction_ratio(self) -> float:
        """Tokens per target call; plain decoding is 1."""
        return self.tokens / max(self.calls, 1)

    @property
    def acceptance_per_depth(self) -> list[float]:
        return [a / max(p, 1) for a, p in zip(self.accepted, self.proposed, strict=True)]


@torch.no_grad()
def draft_tables(model: StreamFused) -> DraftTables | None:
    """The host's tables of the parent term, as the exporter writes them into a bundle; None without a parent term."""
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


@torch.inference_mode()
def replay(model: StreamFused, data: StreamDataset, width: int = 8, top_k: int = 16) -> Replay:
    """Replay every example of `data` with trees of `width` nodes and `top_k` candidates per stream."""
    tables, depth = draft_tables(model), model.streams_config.num_streams
    head, vocab, device = model.head_rows().float(), model.stream_vocab.cpu().numpy(), model.stream_vocab.device
    tokens = calls = 0
    proposed, accepted = np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    for i in range(len(data)):
        batch = collate([data[i]])
        states, _ = model.stream_states(batch["lower"].to(device), batch["at"].to(device))
        log_probs, columns = torch.log_softmax(states[0].float() @ head.T, -1).topk(min(top_k, len(vocab)), dim=-1)
        stream_log_probs, stream_ids = log_probs.cpu().numpy(), vocab[columns.cpu().numpy()]
        text, root = data.examples[i].input_ids, data.examples[i].start  # the first token of the completion
        first = root
        while root + 1 < len(text):
            node = root - first  # the token before the root carries the streams; row 0 is the last prompt token's
            tree = grow(text[root], stream_ids[node], stream_log_probs[node], width, depth, tables)
            path = follow(tree, text[root + 1 :])
            proposed[: int(tree.depths.max())] += 1
            accepted[:path] += 1
            # The pass that consumes the root and its accepted path emits one token more than it accepts.
            emitted = min(path + 1, len(text) - 1 - root)
            tokens, calls, root = tokens + emitted, calls + 1, root + emitted
    return Replay(tokens, calls, tuple(proposed.tolist()), tuple(accepted.tolist()))


def follow(tree: Tree, text: list[int]) -> int:
    """Depth of the longest path of the tree that `text`, the tokens after the root, follows."""
    row = depth = 0
    for token in text:
        children = np.flatnonzero((tree.parents == row) & (tree.tokens == token))
        if not len(children):
            break
        row, depth = int(children[0]), depth + 1
    return depth
