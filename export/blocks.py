"""The products of a decoder between two attentions, in the form that delegates take: one `Segment` is one delegate.

Operators are chosen for what XNNPACK delegates: 2-D products, slices, concatenations and element-wise arithmetic.
docs/export.md says why norm weights are inputs and why projections that share an input are one matrix.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import LowRank, StreamAdapters
from streamfuse.model.transformer import Block, RMSNorm


class Norm(nn.Module):
    """RMSNorm over rows [R, h], its mean taken by a product with a row of 1/h (means are often not delegated).

    Its weight is an argument: XNNPACK's cache of packed weights frees constants that are not part of a product, so a
    segment gets such constants as inputs. The epsilon is the product's bias for the same reason.
    """

    mean: Tensor
    eps: Tensor

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        size = norm.weight.shape[0]
        self.register_buffer("mean", torch.full((1, size), 1.0 / size))
        self.register_buffer("eps", torch.full((1,), norm.eps))

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(F.linear(x * x, self.mean, self.eps)) * weight


class FusedAdapter(nn.Module):
    """Low-rank adapters of projections that share an input, as one pair of matrices.

    x [R, n_in] and the row mask stream_rows [R, 1] (1 for streams) -> [R, n_out]. The mask acts on the few columns
    between the two.
    """

    def __init__(self, parts: list[LowRank]) -> None:
        super().__init__()
        self.down = nn.Linear(parts[0].down.shape[1], sum(p.down.shape[0] for p in parts), bias=False)
        self.up = nn.Linear(self.down.out_features, sum(p.up.shape[0] for p in parts), bias=False)
        self.down.weight = nn.Parameter(torch.cat([p.down for p in parts]), requires_grad=False)
        self.up.weight = nn.Parameter(torch.block_diag(*(p.up * p.scale for p in parts)), requires_grad=False)

    def forward(self, x: Tensor, stream_rows: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(x) * stream_rows)
        return added


class FusedBlock(nn.Module):
    """A decoder layer in two halves around attention, with few, large products: q, k, v in one, gate and up in one.

    The projections are `nn.Module`, because quantization puts modules of its own in their places.
    """

    def __init__(self, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        a, m = block.self_attn, block.mlp
        self.heads, self.kv_heads, self.dim = a.num_heads, a.num_kv_heads, a.head_dim
        self.attention_norm, self.mlp_norm = Norm(block.input_layernorm), Norm(block.post_attention_layernorm)
        self.qkv_proj: nn.Module = _joined(a.q_proj, a.k_proj, a.v_proj)
        self.o_proj: nn.Module = a.o_proj
        self.gate_up_proj: nn.Module = _joined(m.gate_proj, m.up_proj)
        self.down_proj: nn.Module = m.down_proj
        self.intermediate = m.up_proj.out_features
        self.qk_norm = a.qk_norm
        if self.qk_norm:
            self.q_norm, self.k_norm = Norm(a.q_norm), Norm(a.k_norm)
        self.adapted = adapters is not None
        if adapters is not None:
            self.qkv_adapter = _fused(adapters, "q_proj", "k_proj", "v_proj")
            self.o_adapter = _fused(adapters, "o_proj")
            self.gate_up_adapter = _fused(adapters, "gate_proj", "up_proj")
            self.down_adapter = _fused(adapters, "down_proj")

    def open_norms(self) -> list[Tensor]:
        """Norm weights that `open` takes."""
        return [self.attention_norm.weight, *([self.q_norm.weight, self.k_norm.weight] if self.qk_norm else [])]

    def open(
        self, x: Tensor, cos: Tensor, sin: Tensor, stream_rows: Tensor | None, norms: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, h], cos and sin [R, 1, D] -> rotated query [R, Hq, D], rotated key and plain value [R, Hkv, D]."""
        y = self.attention_norm(x, norms[0])
        qkv = self._add(self.qkv_proj(y), "qkv_adapter", y, stream_rows).view(x.shape[0], -1, self.dim)
        qk, v = qkv[:, : -self.kv_heads], qkv[:, -self.kv_heads :]
        if self.qk_norm:
            q, k = qk[:, : self.heads], qk[:, self.heads :]
            qk = torch.cat([_per_head(self.q_norm, q, norms[1]), _per_head(self.k_norm, k, norms[2])], 1)
        half = self.dim // 2
        qk = qk * cos + torch.cat([-qk[..., half:], qk[..., :half]], dim=-1) * sin
        return qk[:, : self.heads], qk[:, self.heads :], v

    def close(self, x: Tensor, attended: Tensor, stream_rows: Tensor | None, norm: Tensor) -> Tensor:
        """Output projection of attended [R, Hq * D], the MLP, and both residual additions: x [R, h] -> [R, h]."""
        x = x + self._add(self.o_proj(attended), "o_adapter", attended, stream_rows)
        y = self.mlp_norm(x, norm)
        gate_up = self._add(self.gate_up_proj(y), "gate_up_adapter", y, stream_rows)
        # Slices, because chunk() is not delegated.
        gate, up = gate_up[:, : self.intermediate], gate_up[:, self.intermediate :]
        gated = gate * torch.sigmoid(gate) * up
        return x + self._add(self.down_proj(gated), "down_adapter", gated, stream_rows)

    def _add(self, y: Tensor, adapter: str, x: Tensor, stream_rows: Tensor | None) -> Tensor:
        """y plus what the adapter of that name adds for its input x; y itself where no row is a stream."""
        return y if stream_rows is None or not self.adapted else y + getattr(self, adapter)(x, stream_rows)


def _fused(adapters: StreamAdapters, *names: str) -> FusedAdapter:
    return FusedAdapter([cast("LowRank", adapters[name]) for name in names])


def _joined(*layers: nn.Linear) -> nn.Linear:
    """One product for layers that share an input; outputs in the order given."""
    joined = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers), layers[0].bias is not None)
    joined.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), requires_grad=False)
    if joined.bias is not None:
        joined.bias = nn.Parameter(torch.cat([layer.bias for layer in layers]), requires_grad=False)
    return joined


def _per_head(norm: Norm, x: Tensor, weight: Tensor) -> Tensor:
    """The norm of every head: x [R, H, D] -> [R, H, D]."""
    rows: Tensor = norm(x.reshape(-1, x.shape[-1]), weight)
    return rows.view(x.shape)


class Heads(nn.Module):
    """Final norm and the vocabulary head over the first `rows` rows, the stream head (where given) over the rest."""

    def __init__(self, norm: Norm, rows: int, head: nn.Module, stream_head: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.rows, self.head, self.stream_head = norm, rows, head, stream_head

    def forward(self, x: Tensor, norm: Tensor) -> tuple[Tensor, ...]:
        """x [R, h] -> logits [rows, V], and stream logits [R - rows, S]."""
        x = self.norm(x, norm)
        if self.stream_head is None:
            return (self.head(x),)
        return self.head(x[: self.rows]), self.stream_head(x[self.rows :])


class Segment(nn.Module):
    """What lies between two attentions: the end of one layer and the beginning of the next. One delegate when lowered.

    Inputs (those that apply, in this order): x [R, h], attended [R, Hq * D], cos [R, 1, D], sin [R, 1, D],
    stream_rows [R, 1], norm weights. Outputs: x, then query, key, value; or what `tail` makes of x.
    """

    def __init__(
        self, closing: FusedBlock | None, opening: FusedBlock | None, tail: Heads | None, streams: bool
    ) -> None:
        super().__init__()
        self.closing, self.opening, self.tail, self.streams = closing, opening, tail, streams

    def norms(self) -> list[Tensor]:
        """The norm weights that `forward` takes last."""
        closing = [self.closing.mlp_norm.weight] if self.closing is not None else []
        opening = self.opening.open_norms() if self.opening is not None else []
        return closing + opening + ([self.tail.norm.weight] if self.tail is not None else [])

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        inputs = list(rest)
        attended = inputs.pop(0) if self.closing is not None else None
        rotary = (inputs.pop(0), inputs.pop(0)) if self.opening is not None else None
        stream_rows = inputs.pop(0) if self.streams else None
        if self.closing is not None and attended is not None:
            x = self.closing.close(x, attended, stream_rows, inputs.pop(0))
        if self.opening is not None and rotary is not None:
            # x goes on to the next segment only where attention lies between; the first segment's x is its own input.
            qkv = self.opening.open(x, *rotary, stream_rows, inputs)
            return (x, *qkv) if self.closing is not None else qkv
        if self.tail is None:
            return (x,)
        out: tuple[Tensor, ...] = self.tail(x, inputs.pop(0))
        return out


class Chain(nn.Module):
    """Consecutive segments with their norm weights; lowering replaces `segments` and nothing else."""

    def __init__(self, segments: list[Segment]) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        self.norms = nn.ModuleList(nn.ParameterList(segment.norms()) for segment in segments)

    def __len__(self) -> int:
        return len(self.segments)

    def call(self, i: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Outputs of segment i for its inputs, norm weights excepted."""
        out: tuple[Tensor, ...] = self.segments[i](*inputs, *cast("nn.ParameterList", self.norms[i]))
        return out
