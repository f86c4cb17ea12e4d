"""What the ablations need beside plain replay: the pruner's cut, and drafts from the parent term alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from streamfuse.export.pruning import SoftmaxEdges, Survivors, edges_of
from streamfuse.model.low_rank import ParentTerm
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import SharedKV, Transformer, attend
from streamfuse.runtime.reference.draft import DraftTables
from streamfuse.runtime.reference.tree import Tree
from streamfuse.train.evaluate import Proposals
from streamfuse.train.formats import Example

_PAIRS = 512  # per step of training the parent term alone
_PASSES = 4  # over the pairs


class PrunedTree:
    """What the graph's pruner leaves of a drafted tree: its nodes run through the lower layers, as in a verify pass.

    Args:
        model: merged, with a pruner.
        keep: nodes that are left at most, the root counted.
        threshold: probability of an edge below which nodes are dropped.
    """

    def __init__(self, model: StreamFused, keep: int, threshold: float = 0.0) -> None:
        self.model, self.keep, self.threshold = model, keep, threshold
        self._seen: Example | None = None
        self._caches: list[tuple[Tensor, Tensor]] = []

    @torch.inference_mode()
    def __call__(self, example: Example, root: int, tree: Tree) -> Tree:
        """`root` is the place of the tree's root in the example's text."""
        if len(tree) <= self.keep and not self.threshold:
            return tree
        if example is not self._seen:
            self._seen, self._caches = example, self._read(example)
        base = self.model.base
        ids, ancestors = torch.from_numpy(tree.tokens), torch.from_numpy(tree.ancestors())
        states = self._lower(ids, torch.from_numpy(tree.positions(root)), ancestors, root)
        edges = edges_of(self.model.pruner, base.norm, len(tree), base.lm_head)
        choose = Survivors(edges, len(tree), min(self.keep, len(tree)), ordered=False, threshold=self.threshold)
        drafted = ids if isinstance(edges, SoftmaxEdges) else base.lm_head.weight[ids].float()
        kept, named, _, _ = choose(states.float(), drafted, ancestors)
        assert kept is not None
        rows = sorted(row for row in (kept if named is None else named).tolist() if row < len(tree))
        place = {row: i for i, row in enumerate(rows)}
        parents = [place.get(int(tree.parents[row]), -1) for row in rows]
        return Tree.of(tree.tokens[rows].tolist(), parents, tree.log_probs[rows].tolist())

    def _read(self, example: Example) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [1, T, Hkv, D] of the text in the lower layers."""
        base, caches = self.model.base, []
        x = base.embed(torch.tensor([example.input_ids]))
        rotary = base.rotary(torch.arange(x.shape[1]))
        for block in base.blocks[: self.model.num_lower_layers]:
            q, k, v = SharedKV().resolve(block, *block.qkv(x, *rotary[block.rotary]))
            caches.append((k, v))
            x = block.finish(x, block.mix(q, k, v))
        return caches

    def _lower(self, ids: Tensor, positions: Tensor, ancestors: Tensor, root: int) -> Tensor:
        """States [n, h] of a tree's nodes after the lower layers; nodes see the text before the root."""
        base = self.model.base
        x = base.embed(ids)[None]
        rotary = base.rotary(positions)
        mask = torch.cat([torch.ones(len(ids), root, dtype=torch.bool), ancestors], 1)[None, None]
        places = torch.cat([torch.arange(root), positions])
        blocks = base.blocks[: self.model.num_lower_layers]
        for block, (keys, values) in zip(blocks, self._caches, strict=True):
            q, k, v = SharedKV().resolve(block, *block.qkv(x, *rotary[block.rotary]))
            keys, values = torch.cat([keys[:, :root], k], 1), torch.cat([values[:, :root], v], 1)
            near = mask if block.window is None else mask & (places > positions[:, None] - block.window)
            x = block.finish(x, attend(q, keys, values, near))
        nodes: Tensor = x[0]
        return nodes


class ParentAlone:
    """A transition model of host tables: log-probability of a token + its parent term, nothing from any stream.

    Trained on pairs of adjacent tokens in the completions; a tree is a chain of transitions, grown by the runtime.
    """

    def __init__(self, base: Transformer, vocab: Tensor, examples: Iterable[Example], rank: int) -> None:
        slots = torch.full((base.config.vocab_size,), -1)
        slots[vocab] = torch.arange(len(vocab))
        texts = [torch.tensor(example.input_ids[example.start - 1 :]) for example in examples]
        parents, children = torch.cat([t[:-1] for t in texts]), slots[torch.cat([t[1:] for t in texts])]
        parents, children = parents[children >= 0], children[children >= 0]
        counts = torch.bincount(children, minlength=len(vocab)).float() + 0.1
        self.log_probs = (counts / counts.sum()).log()
        self.vocab = vocab.numpy()
        self.term = ParentTerm(base.config.hidden_size, 1, rank)
        self.embedding, self.head = base.embed_tokens.weight.float(), base.lm_head.weight[vocab].float()
        self._train(parents, children)

    def _train(self, parents: Tensor, children: Tensor) -> None:
        steps = _PASSES * -(-len(parents) // _PAIRS)
        optimizer = torch.optim.AdamW(self.term.parameters(), lr=1e-2, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        for _ in range(_PASSES):
            for some in torch.randperm(len(parents)).split(_PAIRS):
                left = self.term.left_rows(self.embedding[parents[some]]) * self.term.gate[0]
                loss = F.cross_entropy(self.log_probs + left @ self.term.right_rows(self.head).T, children[some])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()

    @torch.no_grad()
    def tables(self, depth: int) -> DraftTables:
        """For trees of so many levels."""
        return DraftTables.of(
            self.term.left_rows(self.embedding).half().numpy(),
            self.term.right_rows(self.head).half().numpy(),
            self.term.gate.expand(depth, -1).numpy(),
            self.vocab.astype(np.int32),
        )

    def proposals(self, examples: Iterable[Example], depth: int) -> Iterator[Proposals]:
        """The whole vocabulary at every level, with each token's frequency: the parent term decides."""
        ids: npt.NDArray[Any] = self.vocab[None, None]
        log_probs = self.log_probs.numpy()[None, None]
        for example in examples:
            shape = (len(example.input_ids) - example.start, depth, len(self.vocab))
            yield Proposals(example, np.broadcast_to(ids, shape), np.broadcast_to(log_probs, shape))
