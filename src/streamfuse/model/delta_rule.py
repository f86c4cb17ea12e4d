"""Gated DeltaNet, the linear attention of Qwen3.5 (arXiv 2412.06464): layers with a state instead of keys and values.

A row has raw gates a and b, and raw q, k and v. A short causal convolution with SiLU goes over q, k and v; q and k are
then scaled to length 1. Each value head has a state S [key_dim, value_dim], which every row changes (eq. 10):

    S <- e^g S,  then  S <- S + beta k (v - S^T k)^T,  output S^T q / sqrt(key_dim)

with the head's g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b). In a tree, each row starts from the state
after its parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .delta_config import GATE_STRIDE, DeltaConfig

if TYPE_CHECKING:
    from .transformer import RMSNorm

_CHUNK = 64  # rows of a text that are computed together
_EPS = 1e-6  # of the lengths of q and k, as in transformers


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def pack_rows(gates: Tensor, qkv: Tensor, size: int) -> Tensor:
    """The rows that are cached, [..., size]: gates [..., n] (a, then b), `GATE_STRIDE` apart, then qkv [..., channels],
    then zeros."""
    rows = torch.cat([F.pad(gates.unsqueeze(-1), (0, GATE_STRIDE - 1)).flatten(-2), qkv], -1)
    return F.pad(rows, (0, size - rows.shape[-1]))


def unpack_rows(rows: Tensor, gates: int, channels: int) -> tuple[Tensor, Tensor]:
    """The inverse of `pack_rows`: gates [..., gates] and qkv [..., channels] of rows [..., size]."""
    first = GATE_STRIDE * gates
    return rows[..., :first:GATE_STRIDE], rows[..., first : first + channels]


class GatedDeltaNet(nn.Module):
    """The weights of a layer with linear attention.

    q_proj, k_proj, v_proj and o_proj have the names of attention's, so that low-rank adapters find them. g_proj gates
    the output: norm(output of a head) * SiLU(g_proj(x)).
    """

    query_key_norm = "none"

    def __init__(self, hidden_size: int, sizes: DeltaConfig, head_dim: int, output_norm: RMSNorm) -> None:
        super().__init__()
        self.sizes, self.head_dim = sizes, head_dim
        self.a_proj = nn.Linear(hidden_size, sizes.value_heads, bias=False)
        self.b_proj = nn.Linear(hidden_size, sizes.value_heads, bias=False)
        self.q_proj = nn.Linear(hidden_size, sizes.keys, bias=False)
        self.k_proj = nn.Linear(hidden_size, sizes.keys, bias=False)
        self.v_proj = nn.Linear(hidden_size, sizes.values, bias=False)
        self.g_proj = nn.Linear(hidden_size, sizes.values, bias=False)
        self.o_proj = nn.Linear(sizes.values, hidden_size, bias=False)
        self.taps = nn.Conv1d(sizes.channels, sizes.channels, sizes.taps, groups=sizes.channels, bias=False)
        self.A_log = nn.Parameter(torch.zeros(sizes.value_heads))
        self.dt_bias = nn.Parameter(torch.ones(sizes.value_heads))
        self.output_norm = output_norm  # of each head

    def packed(self, gates: Tensor, qkv: Tensor) -> Tensor:
        """`pack_rows`, up to a whole number of heads in both caches."""
        return pack_rows(gates, qkv, 2 * self.head_dim * self.sizes.cached_heads(self.head_dim))

    def unpacked(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `packed`: gates [..., 2 Hv] and qkv [..., channels]."""
        return unpack_rows(rows, 2 * self.sizes.value_heads, self.sizes.channels)

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [..., channels] after the convolution -> q and k [..., Hk, key_dim] of length 1, v [..., Hv, value_dim],
        float32."""
        sizes = self.sizes
        q, k, v = qkv.float().split([sizes.keys, sizes.keys, sizes.values], -1)
        q, k = (_unit(x.unflatten(-1, (sizes.key_heads, -1))) for x in (q, k))
        return q, k, v.unflatten(-1, (sizes.value_heads, -1))

    def decays(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        """gates [..., 2 Hv] -> g and beta [..., Hv], float32."""
        a, b = gates.float().chunk(2, -1)
        return -self.A_log.float().exp() * F.softplus(a + self.dt_bias.float()), b.sigmoid()

    def gated(self, outputs: Tensor, gates: Tensor) -> Tensor:
        """norm(outputs of each head) * SiLU(gates), both [..., Hv * value_dim]."""
        heads: Tensor = self.output_norm(outputs.unflatten(-1, (self.sizes.value_heads, -1)))
        return heads.flatten(-2) * F.silu(gates)

    def mix(self, rows: Tensor) -> Tensor:
        """The outputs [B, T, Hv * value_dim] of whole texts, cached rows [B, T, n]."""
        gates, qkv = self.unpacked(rows)
        out, _ = self.recur(self.taps(F.pad(qkv.mT, (self.sizes.taps - 1, 0))).mT, gates)
        return out

    def recur(
        self, convolved: Tensor, gates: Tensor, state: Tensor | None = None, is_padding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Convolved q, k and v [B, T, channels] and gates [B, T, 2 Hv] of texts that continue those of `state`
        [B, Hv, key_dim, value_dim] -> the outputs [B, T, Hv * value_dim], and the state after the last row.

        Rows where `is_padding`, bool [B, T], change no state.
        """
        g, beta = self.decays(gates)
        if is_padding is not None:
            g, beta = (x.masked_fill(is_padding.unsqueeze(-1), 0.0) for x in (g, beta))
        inputs = (*self.heads(F.silu(convolved)), g, beta)
        out = []
        for q, k, v, g, beta in zip(*(x.split(_CHUNK, 1) for x in inputs), strict=True):
            found = delta_rule(q, k, v, g, beta, causal(q.shape[1], convolved.device), state)
            out.append(found.out)
            state = found.state_after()
        assert state is not None
        return torch.cat(out, 1).flatten(2).to(convolved.dtype), state

    def mix_streams(self, own: Tensor, main: Tensor, at: Tensor) -> Tensor:
        """The outputs [B, P, G, Hv * value_dim] of stream rows own [B, P, G, n]: row j of a token continues the main
        rows [B, T, n] up to the token `at` [B, P] with rows 1..j of the same token."""
        return torch.stack([self._mix_streams(*text) for text in zip(own, main, at, strict=True)])

    def _mix_streams(self, own: Tensor, main: Tensor, at: Tensor) -> Tensor:
        """`mix_streams` of one text. Each block of its rows is computed with the streams of the tokens in it."""
        sizes, device, streams = self.sizes, at.device, own.shape[1]
        (main_gates, main_qkv), (own_gates, own_qkv) = self.unpacked(main), self.unpacked(own)
        padded = F.pad(main_qkv.T, (sizes.taps - 1, 0)).T
        before = padded[at[:, None] + torch.arange(1, sizes.taps, device=device)]  # [P, taps - 1, channels]
        own_read = torch.cat([before, own_qkv], 1)
        mains = [*self.heads(F.silu(self.taps(padded.T).T)), *self.decays(main_gates)]
        owns = [*self.heads(F.silu(self.taps(own_read.mT).mT)), *self.decays(own_gates)]
        out, state = own.new_empty(len(own), streams, sizes.values), None
        for start in range(0, len(main), _CHUNK):
            rows = min(_CHUNK, len(main) - start)
            here = ((at >= start) & (at < start + rows)).nonzero()[:, 0]
            parts = zip(mains, owns, strict=True)
            q, k, v, g, beta = (torch.cat([m[start : start + rows], o[here].flatten(0, 1)]) for m, o in parts)
            reached = torch.arange(start, start + rows, device=device) <= at[here].repeat_interleave(streams)[:, None]
            same = torch.arange(len(here), device=device).repeat_interleave(streams)
            among = causal(len(same), device) & (same[:, None] == same)
            above = torch.cat([causal(rows, device), among.new_zeros(rows, len(same))], 1)
            seen = torch.cat([above, torch.cat([reached, among], 1)])
            found = delta_rule(q, k, v, g, beta, seen, state)
            out[here] = found.out[rows:].flatten(1).unflatten(0, (-1, streams)).to(out.dtype)
            state = found.state_after(rows - 1)
        return out


class Changes(NamedTuple):
    """Results of `delta_rule`: the outputs [..., N, Hv, value_dim], and what `state_after` needs."""

    out: Tensor
    keys: Tensor  # [..., Hv, N, key_dim]
    written: Tensor  # [..., Hv, N, value_dim]: what each row adds along its key
    decay: Tensor  # [..., Hv, N, N]: of row j's change in the state of row i
    kept: Tensor  # [..., Hv, N]: of the state before all rows in that of row i
    before: Tensor | None

    def state_after(self, row: int = -1) -> Tensor:
        """The state [..., Hv, key_dim, value_dim] after a row and its ancestors."""
        added = (self.keys * self.decay[..., row, :, None]).transpose(-1, -2) @ self.written
        return added if self.before is None else added + self.kept[..., row, None, None] * self.before


def causal(rows: int, device: torch.device) -> Tensor:
    """bool [R, R]: each row's ancestors in a text are all rows before it, and itself."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).tril()


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, visible: Tensor, state: Tensor | None
) -> Changes:
    """The gated delta rule over a tree of rows, in one block: the changes of all rows solve a triangular system (the
    WY form of the paper's section 3.3, with ancestors in place of earlier rows).

    Args:
        q, k: [..., N, Hk, key_dim], of length 1.
        v: [..., N, Hv, value_dim].
        g, beta: [..., N, Hv].
        visible: bool [N, N], the ancestors of each row, itself included; lower triangular.
        state: [..., Hv, key_dim, value_dim] before all rows; None: zero.
    """
    group = v.shape[-2] // k.shape[-2]
    q, k = (x.repeat_interleave(group, -2).transpose(-2, -3) for x in (q, k))
    v, g, beta = v.transpose(-2, -3), g.transpose(-1, -2), beta.transpose(-1, -2).unsqueeze(-1)
    total = (visible.to(g.dtype) @ g.unsqueeze(-1)).squeeze(-1)  # decay from before all rows to each
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~visible, float("-inf"))
    decay, kept = between.exp(), total.exp()
    strict = decay.tril(-1) * beta * (k @ k.transpose(-1, -2))
    wanted = v if state is None else v - kept.unsqueeze(-1) * (k @ state)
    # PyTorch solves without the diagonal, which is 1.
    written = torch.linalg.solve_triangular(strict, beta * wanted, upper=False, unitriangular=True)
    q = q * q.shape[-1] ** -0.5
    out = (decay * (q @ k.transpose(-1, -2))) @ written
    out = out if state is None else out + kept.unsqueeze(-1) * (q @ state)
    return Changes(out.transpose(-2, -3), k, written, decay, kept, state)
