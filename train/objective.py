"""The n-gram objective of the streams (paper, section 3, training), with the parent term and the pruner beside it.

Lossless mode: alpha_0 = 0, the base is frozen; streams, parent term and pruner are trained. Half of the weight is on
the plain stream logits, so that the graph's top-k stays good, half on the logits with the true parent's term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamFused

_NEGATIVES = 8  # drafted tokens per edge that the pruner learns to tell from the true one


@dataclass(frozen=True)
class _Targets:
    """The predictions that count, n of them in the order (sequence, token, stream); all int64 [n] but `valid`."""

    valid: Tensor  # bool [B, P, G]: which they are
    stream: Tensor  # j - 1
    target: Tensor  # column in the stream vocabulary of the token at t + 1 + j
    parent: Tensor  # token id at t + j

    @property
    def first(self) -> Tensor:
        """bool [n]: those of stream 1."""
        return self.stream == 0


class NGramObjective(nn.Module):
    """The model to train. Its state is the adapter's: a checkpoint of a frozen base would be the base again.

    `forward` returns `loss` (scalar) and `metrics` (float32 [3, G]: hits of the logits with the true parent's term,
    hits of the plain stream logits, predictions; per stream).
    """

    slots: Tensor  # int64 [V]: a token's column in the stream vocabulary, -1 outside it
    head: Tensor  # float32 [S, h]: head rows of the stream vocabulary

    def __init__(self, model: StreamFused) -> None:
        super().__init__()
        self.model = model
        slots = torch.full((model.base.config.vocab_size,), -1)
        slots[model.stream_vocab] = torch.arange(len(model.stream_vocab))
        self.register_buffer("slots", slots, persistent=False)
        self.register_buffer("head", model.head_rows().detach().float(), persistent=False)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return self.model.extra_state()

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        own = self.model.extra_state()
        if own.keys() != state_dict.keys() or not torch.equal(
            own["stream_vocab"].cpu(), state_dict["stream_vocab"].cpu()
        ):
            raise ValueError("the checkpoint has other parts or another stream vocabulary than this run")
        result = self.model.load_state_dict(state_dict, strict=False, assign=assign)
        result.missing_keys.clear()  # the base's
        return result

    def forward(self, ids: Tensor, lower: Tensor, at: Tensor, carried: Tensor) -> dict[str, Tensor]:
        """Arguments as `data.collate` makes them."""
        model = self.model
        states, _ = model.stream_states(lower, at)
        wanted = self._targets(ids, at, carried)
        plain = states[wanted.valid].float() @ self.head.T
        loss = F.cross_entropy(plain, wanted.target, reduction="none")
        logits = plain
        if model.streams_config.parent_rank:
            logits = plain + self._parent_term(wanted)
            loss = 0.5 * loss + 0.5 * F.cross_entropy(logits, wanted.target, reduction="none")
        total = loss.sum() / max(len(loss), 1)
        if model.streams_config.pruner_rank:
            total = total + self._pruner_loss(lower, at, wanted, plain.detach())
        return {"loss": total, "metrics": self._metrics(wanted, logits, plain)}

    def _targets(self, ids: Tensor, at: Tensor, carried: Tensor) -> _Targets:
        streams = self.model.streams_config.num_streams
        steps = torch.arange(1, streams + 1, device=ids.device)
        padded = F.pad(ids, (0, streams + 1), value=-1)
        wanted = padded.gather(1, (at[..., None] + 1 + steps).flatten(1)).unflatten(1, (-1, streams))
        parents = padded.gather(1, (at[..., None] + steps).flatten(1)).unflatten(1, (-1, streams))
        target = self.slots[wanted.clamp(min=0)].masked_fill((wanted < 0) | ~carried[..., None], -1)
        valid = target >= 0
        return _Targets(valid, steps.expand(valid.shape)[valid] - 1, target[valid], parents[valid])

    def _parent_term(self, wanted: _Targets) -> Tensor:
        """[n, S]: what the true parent says about each candidate."""
        parent = self.model.parent
        left = parent.left_rows(self.model.base.embed_tokens.weight[wanted.parent]) * parent.gate[wanted.stream]
        return left @ parent.right_rows(self.head).T

    def _pruner_loss(self, lower: Tensor, at: Tensor, wanted: _Targets, plain: Tensor) -> Tensor:
        """Binary: the true child of the token at t + 1 against what stream 1 of t proposes for the same place."""
        model, valid, first = self.model, wanted.valid[..., 0], wanted.first
        rows = torch.arange(len(at), device=at.device)[:, None].expand(at.shape)[valid]
        hidden = model.base.norm(lower[rows, at[valid] + 1])
        truth = wanted.target[first][:, None]
        proposed = plain[first].topk(min(_NEGATIVES, plain.shape[1]), dim=-1).indices
        candidates = torch.cat([truth, proposed], dim=1)
        z = model.pruner.edge_logit(torch.einsum("nh,nch->nc", model.pruner.early_exit(hidden), self.head[candidates]))
        is_true = candidates == truth
        weight = torch.ones_like(z)
        weight[:, 1:] = (~is_true[:, 1:]).float()  # the true token, met again among the proposed ones, counts once
        loss = F.binary_cross_entropy_with_logits(z, is_true.float(), weight=weight, reduction="sum")
        return loss / weight.sum().clamp(min=1)

    @torch.no_grad()
    def _metrics(self, wanted: _Targets, logits: Tensor, plain: Tensor) -> Tensor:
        hits, plain_hits = (scores.argmax(-1) == wanted.target for scores in (logits, plain))
        empty = torch.zeros(self.model.streams_config.num_streams, device=plain.device)
        columns = (hits, plain_hits, torch.ones_like(hits))
        return torch.stack([empty.index_add(0, wanted.stream, column.float()) for column in columns])
