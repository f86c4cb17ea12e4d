"""The n-gram objective (paper, section 3, training), with the parent term and the pruner.

    alpha_main * next-token loss + alpha_streams * sum over j of stream_decay^(j - 1) * loss of stream j

per completion token. In lossless mode alpha_main is 0 and the base is frozen; in shared mode the base's low-rank
adapters apply to main and stream rows. Half of a stream's weight is on its plain logits, which the graph's top-k uses,
half on the logits with the true parent's term.

With `soft_targets`, a fraction of a stream's target is the main row's own distribution of that token, given the text
before it, over the stream vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from streamfuse.model.low_rank import SigmoidPruner, SoftmaxPruner
from streamfuse.model.streams import Segments, StreamFused, StreamStates
from streamfuse.model.transformer import capped

# Predictions whose logits are in memory at once: those of a whole batch are hundreds of megabytes, and allocating their
# pages in each step takes longer than the products.
_ROWS = 256
_NEGATIVES = 8  # drafted tokens per edge that the pruner learns to distinguish from the true one


@dataclass(frozen=True)
class _Targets:
    """The n valid predictions in the order (token, stream); all int64 [n] except `valid`."""

    valid: Tensor  # bool [P, G]: which predictions are valid
    stream: Tensor  # j - 1
    target: Tensor  # column in the stream vocabulary of the token at t + 1 + j

    def of(self, some: Tensor) -> _Targets:
        """A subset of the n predictions."""
        return _Targets(self.valid, self.stream[some], self.target[some])

    @property
    def first(self) -> Tensor:
        """bool [n]: predictions of stream 1."""
        return self.stream == 0


class NGramObjective(nn.Module):
    """The model to train. Its state is the adapter's, since a checkpoint of a frozen base would only repeat the base.

    `forward` returns `loss` (scalar; a sum divided by `tokens`), `tokens` (completion tokens of the batch), `main`
    (float32 [2]: loss sum and hits of the main rows) and `streams` (float32 [3, G]: hits of the logits with the true
    parent's term, hits of the plain stream logits, predictions).

    Args:
        model: the streams, and in shared mode the base's adapters.
        alpha_main: weight of the next-token loss (alpha_0); with 0 it is not computed.
        alpha_streams: weight of each stream's loss (alpha_j); with 0 streams are not computed.
        stream_decay: weight of each stream's loss relative to the stream before, since its token is only useful if the
            earlier ones are correct.
        next_token_dropout: fraction of the tokens whose streams are not conditioned on the next token, drawn anew in
            each step.
        soft_targets: fraction of a stream's target that is the main row's distribution; the rest is the text's token.
    """

    slots: Tensor  # int64 [V]: a token's column in the stream vocabulary, -1 outside it
    head: Tensor  # [S, h] in the base's dtype: head rows of the stream vocabulary

    weight: Tensor  # float32 [G]: weight of each stream's loss

    def __init__(
        self,
        model: StreamFused,
        alpha_main: float = 0.0,
        alpha_streams: float = 0.3,
        soft_targets: float = 0.0,
        stream_decay: float = 1.0,
        next_token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.alpha_main, self.alpha_streams = model, alpha_main, alpha_streams
        self.soft_targets, self.next_token_dropout = soft_targets, next_token_dropout
        slots = torch.full((model.base.config.vocab_size,), -1)
        slots[model.stream_vocab] = torch.arange(len(model.stream_vocab))
        self.register_buffer("slots", slots, persistent=False)
        weight = stream_decay ** torch.arange(model.streams_config.num_streams, dtype=torch.float32)
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("head", model.head_rows().detach().clone(), persistent=False)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return self.model.extra_state()

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        own = self.model.extra_state()
        if own.keys() != state_dict.keys() or not torch.equal(
            own["stream_vocab"].cpu(), state_dict["stream_vocab"].cpu()
        ):
            raise ValueError("the checkpoint has other parts or another stream vocabulary than this run")
        result = self.model.load_state_dict(state_dict, strict=False, assign=assign)
        result.missing_keys.clear()  # those of the base
        return result

    def forward(
        self, ids: Tensor, frozen: Tensor, at: Tensor, left: Tensor, segments: list[tuple[int, int]]
    ) -> dict[str, Tensor]:
        """Arguments as returned by `data.collate`."""
        packed = frozen[None].to(self.head.dtype), Segments(segments)
        out = {
            "tokens": torch.tensor(len(at), device=ids.device),
            "main": torch.zeros(2, device=ids.device),
            "streams": torch.zeros(3, self.model.streams_config.num_streams, device=ids.device),
        }
        total: Tensor | float = 0.0
        if self.alpha_streams:
            known = self.told(ids, at)[None]
            states = self.model.stream_states(packed[0], at[None], packed[1], known, ids[None])
            main = states.main[0]
            loss, out["streams"] = self._stream_loss(ids, at, left, states)
            total = total + self.alpha_streams * loss
        else:
            main = self.model.main_states(*packed, ids[None])[0]
        if self.alpha_main:
            loss, hits = self._main_loss(ids, at, main)
            out["main"] = torch.stack([loss.detach(), hits])
            total = total + self.alpha_main * loss
        return {**out, "loss": torch.as_tensor(total / len(at))}

    def told(self, ids: Tensor, at: Tensor) -> Tensor:
        """The next tokens [P], -1 where streams are not conditioned on them."""
        known = ids[at + 1]
        if not self.next_token_dropout:
            return known
        return known.masked_fill(torch.rand(known.shape, device=known.device) < self.next_token_dropout, -1)

    def _main_loss(self, ids: Tensor, at: Tensor, main: Tensor) -> tuple[Tensor, Tensor]:
        """Summed loss and hits of the next token, for completion tokens only."""
        target = ids[at + 1]
        logits = self.model.base.logits(main[at]).float()
        return F.cross_entropy(logits, target, reduction="sum"), (logits.max(-1).indices == target).sum().float()

    def _stream_loss(self, ids: Tensor, at: Tensor, left: Tensor, states: StreamStates) -> tuple[Tensor, Tensor]:
        """Summed loss of streams and pruner (in proportion to its edges), and the streams' counts."""
        wanted = self._targets(ids, at, left)
        soft = self._soft(at, wanted, states.main[0].detach()) if self.soft_targets else None
        rows, parents, terms = states.streams[0][wanted.valid], None, None
        if self.model.streams_config.parent_rank:
            parents, terms = self._parents(ids, at, wanted), self.model.parent.right_rows(self.head).T
        total: Tensor | float = 0.0
        counts = torch.zeros(3, self.model.streams_config.num_streams, device=ids.device)
        proposed = []
        for some in torch.arange(len(rows), device=ids.device).split(_ROWS):
            now = wanted.of(some)
            target = now.target if soft is None else soft[some]
            arguments = rows[some], now, target, None if parents is None else parents[some], terms
            loss, hits, best = checkpoint(self._rows_loss, *arguments, use_reentrant=False)
            total, counts = total + loss, counts + hits
            proposed.append(best)
        if self.model.streams_config.pruner_rank:
            below = states.below[0].detach()
            if isinstance(self.model.pruner, SoftmaxPruner):
                total = total + self._early_exit_loss(self.model.pruner, ids, at, below)
            else:
                total = total + self._edge_loss(below, at, wanted, torch.cat(proposed))
        return torch.as_tensor(total, device=ids.device), counts

    def _rows_loss(
        self, rows: Tensor, wanted: _Targets, target: Tensor, parents: Tensor | None, terms: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For a few predictions: summed loss, counts, and the tokens that stream 1 proposes [its rows, <=
        _NEGATIVES]."""
        plain = self.model.stream_logits(rows, wanted.stream, self.head).float()
        loss = F.cross_entropy(plain, target, reduction="none")
        logits = plain
        if parents is not None and terms is not None:
            logits = torch.addmm(plain, parents, terms)
            loss = 0.5 * loss + 0.5 * F.cross_entropy(logits, target, reduction="none")
        loss = (loss * self.weight[wanted.stream]).sum()
        proposed = plain.detach()[wanted.first].topk(min(_NEGATIVES, plain.shape[1]), dim=-1).indices
        return loss, self._counts(wanted, logits, plain), proposed

    def _targets(self, ids: Tensor, at: Tensor, left: Tensor) -> _Targets:
        steps = self._steps(ids.device)
        wanted = ids[(at[:, None] + 1 + steps).clamp(max=len(ids) - 1)]
        target = self.slots[wanted].masked_fill(steps >= left[:, None], -1)  # beyond the end of the text
        valid = target >= 0
        return _Targets(valid, steps.expand(valid.shape)[valid] - 1, target[valid])

    def _steps(self, device: torch.device) -> Tensor:
        """1, 2, ..., G."""
        return torch.arange(1, self.model.streams_config.num_streams + 1, device=device)

    def _soft(self, at: Tensor, wanted: _Targets, main: Tensor) -> Tensor:
        """[n, S]: the text's token mixed with the main row's distribution at t + j. Those rows have streams too."""
        logits = capped((main[at] @ self.head.T).float(), self.model.base.config.logit_cap)
        taught = torch.softmax(logits, -1)  # [P, S]
        place = wanted.valid.nonzero()[:, 0]
        soft = taught[place + 1 + wanted.stream] * self.soft_targets
        return soft.scatter_add(1, wanted.target[:, None], torch.full_like(soft[:, :1], 1 - self.soft_targets))

    def _parents(self, ids: Tensor, at: Tensor, wanted: _Targets) -> Tensor:
        """[n, r]: the parent term's factors of the true parents, the tokens at t + j, for each prediction."""
        parent = self.model.parent
        rows = parent.left_rows(self.model.base.embed_tokens.weight[ids])  # [T, r]
        parents = (at[:, None] + self._steps(ids.device)).clamp(max=len(ids) - 1)[wanted.valid]
        return rows[parents] * parent.gate[wanted.stream]

    def _early_exit_loss(self, pruner: SoftmaxPruner, ids: Tensor, at: Tensor, below: Tensor) -> Tensor:
        """Cross entropy of the next token (the paper)."""
        base = self.model.base
        logits = base.lm_head(pruner.early_exit(base.norm(below[at]))).float()
        return F.cross_entropy(logits, ids[at + 1], reduction="sum")

    def _edge_loss(self, below: Tensor, at: Tensor, wanted: _Targets, proposed: Tensor) -> Tensor:
        """Binary loss: the true child of the token at t + 1 against the tokens that stream 1 of t proposes instead."""
        model, first, pruner = self.model, wanted.first, cast("SigmoidPruner", self.model.pruner)
        hidden = model.base.norm(below[at[wanted.valid[:, 0]] + 1])
        truth = wanted.target[first][:, None]
        candidates = torch.cat([truth, proposed], dim=1)
        z = pruner.edge_logit(torch.einsum("nh,nch->nc", pruner.early_exit(hidden), self.head[candidates]))
        is_true = candidates == truth
        weight = torch.ones_like(z)
        weight[:, 1:] = (~is_true[:, 1:]).float()  # the true token counts once, even if it is proposed too
        loss = F.binary_cross_entropy_with_logits(z, is_true.float(), weight=weight, reduction="sum")
        return loss / candidates.shape[1]

    @torch.no_grad()
    def _counts(self, wanted: _Targets, logits: Tensor, plain: Tensor) -> Tensor:
        hits, plain_hits = (scores.max(-1).indices == wanted.target for scores in (logits, plain))
        empty = torch.zeros(self.model.streams_config.num_streams, device=plain.device)
        columns = (hits, plain_hits, torch.ones_like(hits))
        return torch.stack([empty.index_add(0, wanted.stream, column.float()) for column in columns])
