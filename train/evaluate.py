"""Held-out measures of a stream-fused model: call-reduction ratio and acceptance per depth, by exact replay.

The continuation is the model's own greedy text, so the pass after position t accepts exactly the longest path of the tree that the
text follows. No pass is simulated away: tree growth is the runtime's own (`streamfuse.runtime.draft`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from streamfuse.model.streams import StreamFused
from streamfuse.runtime.draft import DraftTables, grow
from streamfuse.runtime.tree import Tree

from .data import StreamDataset, collate


@dataclass(frozen=True)
class Replay:
    """Figures over all examples; `call_reduction_ratio` is tokens per target call at the tree size asked for."""

    call_reduction_ratio: float
    acceptance_per_depth: list[float]
    tokens: int


def draft_tables(model: StreamFused) -> DraftTables | None:
    """The host's tables of the parent term, as the exporter writes them into a bundle; None without a parent term."""
    if not model.streams_config.parent_rank:
        return None
    with torch.no_grad():
        left = model.parent.left_rows(model.base.embed_tokens.weight)
        right = model.parent.right_rows(model.head_rows())
    return DraftTables.of(
        left.to(torch.float16).numpy(),
        right.to(torch.float16).numpy(),
        model.parent.gate.detach().float().numpy(),
        model.stream_vocab.to(torch.int32).numpy(),
    )


@torch.inference_mode()
def replay(model: StreamFused, data: StreamDataset, width: int = 8, top_k: int = 16) -> Replay:
    """Replay every example of `data` with trees of `width` nodes and `top_k` candidates per stream."""
    tables, streams = draft_tables(model), model.streams_config.num_streams
    head, vocab = model.head_rows().float(), model.stream_vocab.numpy()
    tokens = calls = 0
    tried, right = np.zeros(streams), np.zeros(streams)
    for i in range(len(data)):
        batch = collate([data[i]])
        states, _ = model.stream_states(batch["lower"], batch["at"])
        log_probs, columns = torch.log_softmax(states[0].float() @ head.T, -1).topk(top_k, dim=-1)
        ids, at, text = vocab[columns.numpy()], batch["at"][0].numpy(), data.examples[i].input_ids
        t = 0  # index into `at`; the token text[at[t] + 1] is the next root
        while at[t] + 2 < len(text):
            root = int(at[t]) + 1
            tree = grow(text[root], ids[t], log_probs[t].numpy(), width, streams, tables)
            accepted = follow(tree, text[root + 1 :])
            depths = int(tree.depths.max())
            tried[:depths] += 1
            right[:accepted] += 1
            # The pass that consumes the root and its accepted path emits one token more than it accepts.
            emitted = min(accepted + 1, len(text) - 1 - root)
            tokens, calls = tokens + emitted, calls + 1
            t += emitted
    return Replay(tokens / max(calls, 1), [float(x) for x in right / np.maximum(tried, 1)], tokens)


def follow(tree: Tree, text: list[int]) -> int:
    """Depth of the longest path of the tree that `text` follows."""
    row = depth = 0
    for token in text:
        children = [c for c in range(len(tree.tokens)) if tree.parents[c] == row and tree.tokens[c] == token]
        if not children:
            break
        row, depth = children[0], depth + 1
    return depth
