"""The stream-fused model: Speculative Streaming (arXiv 2402.11131, v1) on a frozen base, and the parts that we add.

A token at position t carries `num_streams` extra rows in the top `num_msa_layers` layers. Row j (1-based) starts from
the token's own hidden state below those layers (eq. 3), attends to the main rows up to t and to rows 1..j of the same
token (eq. 2), and predicts the token at t + 1 + j. Its rotary position is t + j. Main rows never see stream rows, so
the base's outputs are unchanged. docs/model.md has the formulas and their sources.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import StreamConfig
from .transformer import Adapter, Block, Transformer, attend, no_adapter

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LowRank(nn.Module):
    """x [..., n_in] -> scale * up(down(x)) [..., n_out]; zero at the start."""

    def __init__(self, n_in: int, n_out: int, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, n_in) / math.sqrt(n_in))
        self.up = nn.Parameter(torch.zeros(n_out, rank))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.down), self.up) * self.scale


class StreamAdapters(nn.ModuleDict):
    """Row-masked low-rank adapters of one layer: they act on stream rows only (paper, lossless mode)."""

    def __init__(self, block: Block, rank: int, alpha: float) -> None:
        owners = {name: block.self_attn if hasattr(block.self_attn, name) else block.mlp for name in PROJECTIONS}
        shapes = {name: getattr(owner, name) for name, owner in owners.items()}
        super().__init__({n: LowRank(p.in_features, p.out_features, rank, alpha / rank) for n, p in shapes.items()})

    def adapt(self, name: str, x: Tensor) -> Tensor:
        """What is added to the output of projection `name` for its input x."""
        added: Tensor = self[name](x)
        return added


class ParentTerm(nn.Module):
    """What the parent token says about its child, beyond the paper: score += ((Ê_u U) * g_j) . (V E_c).

    A stream's distribution is marginal over the tokens between it and the last accepted one, but a tree proposes a
    particular parent u. Ê_u is u's embedding row scaled to unit length. rank r: 2 h r + num_streams r parameters.
    """

    def __init__(self, hidden_size: int, num_streams: int, rank: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(hidden_size, rank))  # U
        self.right = nn.Parameter(torch.zeros(rank, hidden_size))  # V
        self.gate = nn.Parameter(torch.ones(num_streams, rank))  # g

    def left_rows(self, embedding: Tensor) -> Tensor:
        """[n, hidden_size] embedding rows of parents -> [n, rank]."""
        return F.normalize(embedding.float(), dim=-1) @ self.left

    def right_rows(self, head: Tensor) -> Tensor:
        """[S, hidden_size] head rows of candidates -> [S, rank]."""
        return head.float() @ self.right.T


class Pruner(nn.Module):
    """Early exit before the streams are inserted (paper, tree pruning): scores the edge parent -> child.

    z = o_theta(norm(m_parent)) . E_child with o_theta = identity + rank-r map; the score is log sigmoid(a z + b).
    It needs the drafted tokens' head rows only, and it is never positive, so a path never scores above its parent's.
    """

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.low_rank = LowRank(hidden_size, hidden_size, rank)
        self.slope = nn.Parameter(torch.tensor(0.3))
        self.offset = nn.Parameter(torch.tensor(-3.0))

    def early_exit(self, normed: Tensor) -> Tensor:
        """o_theta of main states [..., h] after the final norm -> [..., h]."""
        return normed + self.low_rank(normed)

    def edge_logit(self, z: Tensor) -> Tensor:
        """a z + b, whose log sigmoid is the edge's score; z is the product of `early_exit` and a child's head row."""
        return self.slope * z + self.offset


class StreamFused(nn.Module):
    """A base model with its streams.

    Args:
        base: the frozen base model; it is used, not copied.
        config: settings of the streams.
        stream_vocab: token ids that streams may propose, int64 [S], ascending; None is the full vocabulary.

    Raises:
        ValueError: the settings do not fit the base model.
    """

    adapters: nn.ModuleList  # of StreamAdapters, one per top layer; absent where adapter_rank is 0
    eta: LowRank  # absent where eta_rank is 0
    parent: ParentTerm  # absent where parent_rank is 0
    pruner: Pruner  # absent where pruner_rank is 0
    stream_vocab: Tensor

    def __init__(self, base: Transformer, config: StreamConfig, stream_vocab: Tensor | None = None) -> None:
        super().__init__()
        h, n = base.config.hidden_size, base.config.num_layers
        if config.num_msa_layers > n:
            raise ValueError(f"num_msa_layers is {config.num_msa_layers}, the base model has {n} layers")
        self.base = base
        self.streams_config = config
        if not config.value_rotation:
            self.stream_embeddings = nn.Parameter(torch.randn(config.num_streams, h) * 0.02)
        if config.eta_rank:
            self.eta = LowRank(h, h, config.eta_rank)
        if config.adapter_rank:
            self.adapters = nn.ModuleList(
                StreamAdapters(block, config.adapter_rank, config.adapter_alpha) for block in self.top_blocks
            )
        if config.parent_rank:
            self.parent = ParentTerm(h, config.num_streams, config.parent_rank)
        if config.pruner_rank:
            self.pruner = Pruner(h, config.pruner_rank)
        if stream_vocab is None:
            stream_vocab = torch.arange(base.config.vocab_size)
        self.register_buffer("stream_vocab", stream_vocab)

    @property
    def num_lower_layers(self) -> int:
        """Layers without streams, N - Ns."""
        return self.base.config.num_layers - self.streams_config.num_msa_layers

    @property
    def top_blocks(self) -> list[Block]:
        """The layers that carry streams, lowest first."""
        return self.base.blocks[self.num_lower_layers :]

    def extra_state(self) -> dict[str, Tensor]:
        """Everything that is not the base: the content of an adapter file."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("base.")}

    def extra_parameters(self) -> list[nn.Parameter]:
        """What is trained in lossless mode."""
        return [parameter for name, parameter in self.named_parameters() if not name.startswith("base.")]

    def keep_streams(self, count: int) -> None:
        """Drop all but the first `count` streams. Stream j sees streams 1..j only, so those that stay say the same.

        Raises:
            ValueError: there are not that many.
        """
        if not 1 <= count <= self.streams_config.num_streams:
            raise ValueError(f"--num-streams must be from 1 to {self.streams_config.num_streams}, not {count}")
        self.streams_config = replace(self.streams_config, num_streams=count)
        if not self.streams_config.value_rotation:
            self.stream_embeddings = nn.Parameter(self.stream_embeddings[:count].detach())
        if self.streams_config.parent_rank:
            self.parent.gate = nn.Parameter(self.parent.gate[:count].detach())

    def adapter(self, layer: int) -> Adapter:
        """The adapter of stream rows in top layer `layer` (0 = the lowest that carries streams)."""
        if not self.streams_config.adapter_rank:
            return no_adapter
        return cast("StreamAdapters", self.adapters[layer]).adapt

    def insert(self, hidden: Tensor) -> Tensor:
        """Eq. 3: main rows [..., h] below the top layers -> stream rows [..., num_streams, h]."""
        start = hidden + self.eta(hidden) if self.streams_config.eta_rank else hidden
        start = start.unsqueeze(-2).expand(*start.shape[:-1], self.streams_config.num_streams, start.shape[-1])
        return start if self.streams_config.value_rotation else start + self.stream_embeddings.to(start.dtype)

    def rotate_value(self, value: Tensor) -> Tensor:
        """Value rotation by stream distance (paper, section on parameter-free streams): value [..., G, Hkv, D]."""
        if not self.streams_config.value_rotation:
            return value
        steps = torch.arange(1, self.streams_config.num_streams + 1, device=value.device)
        angle = (self.streams_config.value_rotation * steps).to(value.dtype)[:, None, None]
        a, b = value.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def head_rows(self) -> Tensor:
        """Head rows [S, h] of the stream vocabulary."""
        return self.base.lm_head.weight[self.stream_vocab]

    def stream_states(self, lower: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Final-norm states of streams and of main rows, for training and measuring.

        Gradients flow through the streams only.

        Args:
            lower: hidden states [B, T, h] below the top layers (`base.lower(ids, num_lower_layers)`), right-padded.
            at: positions [B, P] of the tokens that carry streams.

        Returns:
            streams [B, P, G, h] and main [B, T, h].
        """
        base, config = self.base, self.streams_config
        batch, length, _ = lower.shape
        cos, sin = base.rotary(torch.arange(length, device=lower.device))
        steps = torch.arange(1, config.num_streams + 1, device=lower.device)
        stream_cos, stream_sin = base.rotary(at[..., None] + steps)
        rows = torch.arange(batch, device=lower.device)[:, None]
        main, streams = lower, self.insert(lower[rows, at])
        unseen = torch.arange(length, device=lower.device) > at[..., None]  # [B, P, T]
        for i, block in enumerate(self.top_blocks):
            with torch.no_grad():
                q, k, v = block.qkv(main, cos, sin)
                main = block.finish(main, attend(q, k, v, None, causal=True))
            adapt = self.adapter(i)
            sq, sk, sv = block.qkv(streams, stream_cos, stream_sin, adapt)
            streams = block.finish(streams, _stream_attention(sq, sk, self.rotate_value(sv), k, v, unseen), adapt)
        with torch.no_grad():
            main = base.norm(main)
        return base.norm(streams), main


def _stream_attention(q: Tensor, k: Tensor, v: Tensor, main_k: Tensor, main_v: Tensor, unseen: Tensor) -> Tensor:
    """Eq. 2: row j of a token sees the main rows up to the token and rows 1..j of the same token.

    q [B, P, G, Hq, D], own k and v [B, P, G, Hkv, D], main k and v [B, T, Hkv, D], unseen bool [B, P, T] (True where a
    main row comes after the token) -> [B, P, G, Hq * D]. Main keys are shared by all tokens of a sequence, not copied.
    """
    _, positions, streams, heads, dim = q.shape
    kv_heads = k.shape[3]
    group = heads // kv_heads
    q = (q * dim**-0.5).unflatten(3, (kv_heads, group)).permute(0, 3, 1, 2, 4, 5)  # [B, Hkv, P, G, group, D]
    flat = q.flatten(2, 4)  # rows in the order (P, G, group)
    hidden = torch.zeros(unseen.shape, dtype=q.dtype, device=q.device).masked_fill_(unseen, float("-inf"))
    to_main = (flat @ main_k.permute(0, 2, 3, 1)).unflatten(2, (positions, streams * group))
    to_main = (to_main + hidden[:, None, :, None, :]).flatten(2, 3)
    own_k = k.permute(0, 3, 1, 2, 4)  # [B, Hkv, P, G, D]
    own_v = v.permute(0, 3, 1, 2, 4)
    to_own = torch.einsum("bhpgud,bhpjd->bhpguj", q, own_k)
    later = torch.ones(streams, streams, dtype=torch.bool, device=q.device).triu(1)
    to_own = to_own.masked_fill(later[:, None, :], float("-inf")).flatten(2, 4)
    weights = torch.softmax(torch.cat([to_main, to_own], dim=-1), dim=-1)
    length = main_k.shape[1]
    out = weights[..., :length] @ main_v.permute(0, 2, 1, 3)
    own_weights = weights[..., length:].unflatten(2, (positions, streams, group))
    out = out.unflatten(2, (positions, streams, group)) + torch.einsum("bhpguj,bhpjd->bhpgud", own_weights, own_v)
    return out.permute(0, 2, 3, 1, 4, 5).flatten(3)  # [B, P, G, Hkv * group * D]
