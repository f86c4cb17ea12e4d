"""The n-gram objective of the streams (paper, training loss), with the parent term and the pruner beside it.

Lossless mode: alpha_0 = 0, the base is frozen, and streams, parent term and pruner are trained. Half of the weight is on the plain
stream logits, so that the graph's top-k stays good, half on the logits with the true parent's term.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamFused

_NEGATIVES = 8  # drafted tokens per edge that the pruner learns to tell from the true one


class NGramObjective(nn.Module):
    """`forward` returns `{"loss": scalar, "metrics": float tensor [5, G]}` (loss, plain loss, hits with and without parent, count)."""

    def __init__(self, model: StreamFused, alpha: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.alpha = alpha
        slots = torch.full((model.base.config.vocab_size,), -1)
        slots[model.stream_vocab] = torch.arange(len(model.stream_vocab))
        self.register_buffer("slots", slots, persistent=False)
        head = model.head_rows().detach().float()
        self.register_buffer("head", head, persistent=False)

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        """Only what is trained: a checkpoint of a frozen base would be the base again."""
        return self.model.extra_state()

    def load_state_dict(self, state: dict[str, Tensor], strict: bool = True, assign: bool = False):  # type: ignore[no-untyped-def,override]
        return self.model.load_state_dict(state, strict=False)

    def forward(self, ids: Tensor, lower: Tensor, at: Tensor, carried: Tensor) -> dict[str, Tensor]:
        """Arguments as `data.collate` makes them."""
        model, streams = self.model, self.model.streams_config.num_streams
        states, _ = model.stream_states(lower, at)
        steps = torch.arange(1, streams + 1, device=ids.device)
        padded = F.pad(ids, (0, streams + 1), value=-1)
        wanted = padded.gather(1, (at[..., None] + 1 + steps).flatten(1)).unflatten(1, (-1, streams))
        parents = padded.gather(1, (at[..., None] + steps).flatten(1)).unflatten(1, (-1, streams))
        target = self.slots[wanted.clamp(min=0)].masked_fill((wanted < 0) | ~carried[..., None], -1)
        valid = target >= 0
        rows, target, parents = states[valid].float(), target[valid], parents[valid]
        stream = steps.expand(valid.shape)[valid] - 1
        plain = rows @ self.head.T
        plain_loss = F.cross_entropy(plain, target, reduction="none")
        loss, logits = plain_loss, plain
        if model.streams_config.parent_rank:
            parent = model.parent
            left = parent.left_rows(model.base.embed_tokens.weight[parents]) * parent.gate[stream]
            logits = plain + left @ parent.right_rows(self.head).T
            loss = 0.5 * plain_loss + 0.5 * F.cross_entropy(logits, target, reduction="none")
        total = self.alpha * loss.sum() / valid.sum().clamp(min=1)
        if model.streams_config.pruner_rank:
            total = total + self._pruner_loss(lower, at, valid, stream, plain, target)
        with torch.no_grad():
            columns = (loss, plain_loss, logits.argmax(-1) == target, plain.argmax(-1) == target, torch.ones_like(loss))
            metrics = torch.stack([torch.zeros(streams, device=ids.device).index_add_(0, stream, c.float()) for c in columns])
        return {"loss": total, "metrics": metrics}

    def _pruner_loss(self, lower: Tensor, at: Tensor, valid: Tensor, stream: Tensor, plain: Tensor, target: Tensor) -> Tensor:
        """Binary: the true child of the token at t + j against what stream j proposes for the same place."""
        model = self.model
        first = stream == 0  # stream 1 of t proposes children of the token at t + 1
        rows = torch.arange(len(at), device=at.device)[:, None].expand(at.shape)[valid[..., 0]]
        hidden = model.base.norm(lower[rows, at[valid[..., 0]] + 1])
        proposed = plain[first].detach().topk(_NEGATIVES, dim=-1).indices
        candidates = torch.cat([target[first][:, None], proposed], dim=1)
        logit = torch.einsum("nh,nch->nc", model.pruner.early_exit(hidden), self.head[candidates])
        z = model.pruner.slope * logit + model.pruner.offset
        truth = candidates == target[first][:, None]
        weight = torch.ones_like(z)
        weight[:, 1:] = (~truth[:, 1:]).float()  # the true token, met again among the proposed ones, counts once
        return F.binary_cross_entropy_with_logits(z, truth.float(), weight=weight, reduction="sum") / weight.sum()
