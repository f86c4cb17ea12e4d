"""The base model: a Llama-family decoder, with Hugging Face parameter names so that checkpoints load as they are.

A block exposes its halves (`qkv` and `finish`) because its callers use different attentions between them: the plain
decoder here, the streams (`streams.py`) and the batched generation of `train/generate.py`. The static graphs
(`export/`) use the weights in their own arrangement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig
from .rope import attention_factor, scaled_frequencies

# An adapter is called with the name of a projection and its input; its result is added to the projection's output.
Adapter = Callable[[str, Tensor], Tensor | None]


def no_adapter(name: str, x: Tensor) -> Tensor | None:
    return None


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary_table(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [length, head_dim], in the half-split layout (each value occurs twice).

    They include the attention factor of the RoPE scaling, if it has one."""
    half = config.head_dim // 2
    inverse = config.rope_theta ** (-torch.arange(0, half, dtype=torch.float64) / half)
    frequencies = torch.from_numpy(scaled_frequencies(inverse.numpy(), config.rope_theta, config.rope_scaling))
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    factor = attention_factor(config.rope_scaling)
    return (angles.cos() * factor).float(), (angles.sin() * factor).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [..., heads, head_dim] with cos, sin [..., head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos.unsqueeze(-2).to(x.dtype) + turned * sin.unsqueeze(-2).to(x.dtype)


class Attention(nn.Module):
    """The projections of grouped-query attention, and the head norms of Qwen3; `Block` and `attend` do the work."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        h, d, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.q_proj = nn.Linear(h, self.num_heads * d, bias=bias)
        self.k_proj = nn.Linear(h, self.num_kv_heads * d, bias=bias)
        self.v_proj = nn.Linear(h, self.num_kv_heads * d, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * d, h, bias=bias and config.architecture != "Qwen2ForCausalLM")
        if config.qk_norm:
            self.q_norm = RMSNorm(d, config.rms_norm_eps)
            self.k_norm = RMSNorm(d, config.rms_norm_eps)
        self.qk_norm = config.qk_norm


class MLP(nn.Module):
    """The projections of the gated feed-forward layer; `Block.finish` does the work."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


def project(layer: nn.Module, name: str, x: Tensor, adapter: Adapter) -> Tensor:
    """`layer(x)` plus what the adapter adds for the projection `name`."""
    y = layer(x)
    extra = adapter(name, x)
    return y if extra is None else y + extra.to(y.dtype)


class Block(nn.Module):
    """One decoder layer; `x` is [..., hidden_size], positions are given as cos and sin [..., head_dim]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor, adapter: Adapter = no_adapter) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query [..., num_heads, head_dim], rotated key and plain value [..., num_kv_heads, head_dim]."""
        a = self.self_attn
        y = self.input_layernorm(x)
        q = project(a.q_proj, "q_proj", y, adapter).unflatten(-1, (a.num_heads, a.head_dim))
        k = project(a.k_proj, "k_proj", y, adapter).unflatten(-1, (a.num_kv_heads, a.head_dim))
        v = project(a.v_proj, "v_proj", y, adapter).unflatten(-1, (a.num_kv_heads, a.head_dim))
        if a.qk_norm:
            q, k = a.q_norm(q), a.k_norm(k)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor, adapter: Adapter = no_adapter) -> Tensor:
        """Output projection of `attended` [..., num_heads * head_dim], the MLP, and both residual additions."""
        return self.feed_forward(x + project(self.self_attn.o_proj, "o_proj", attended, adapter), adapter)

    def feed_forward(self, x: Tensor, adapter: Adapter = no_adapter) -> Tensor:
        """The MLP and its residual addition."""
        y = self.post_attention_layernorm(x)
        gate = F.silu(project(self.mlp.gate_proj, "gate_proj", y, adapter))
        gated = gate * project(self.mlp.up_proj, "up_proj", y, adapter)
        return x + project(self.mlp.down_proj, "down_proj", gated, adapter)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """Grouped-query attention, scaled by 1 / sqrt(D): q [B, R, Hq, D], k and v [B, S, Hkv, D] -> [B, R, Hq * D].

    `mask` is bool [B or 1, 1, R, S], True where a row attends to a key; or None, and then `causal` says whether row i
    attends to keys 0..i only (R = S).
    """
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, is_causal=causal, enable_gqa=True
    )
    return out.transpose(1, 2).flatten(2)


def attend_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`attend` where row i attends to keys 0..i only, for training: in bfloat16 on a CPU the backward pass of PyTorch's
    own kernel takes five times as long as these few products. Scores are not tiled: [B, Hq, R, R]."""
    if not torch.is_grad_enabled():
        return attend(q, k, v, None, causal=True)
    rows, heads, dim, kv_heads = q.shape[1], q.shape[2], q.shape[3], k.shape[2]
    group = heads // kv_heads
    q = (q * dim**-0.5).unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, Hkv, group * R, D]
    later = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1).repeat(group, 1)
    scores = (q @ k.permute(0, 2, 3, 1)).masked_fill(later, float("-inf"))
    out = torch.softmax(scores, -1) @ v.transpose(1, 2)
    return out.unflatten(2, (group, rows)).permute(0, 3, 1, 2, 4).flatten(2)


class Transformer(nn.Module):
    """The plain decoder: token ids to hidden states after the final norm, and the vocabulary head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    @property
    def blocks(self) -> list[Block]:
        """The layers, lowest first."""
        return cast("list[Block]", list(self.layers))

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [..., head_dim] of integer positions [...]."""
        cos, sin = rotary_table(self.config, int(positions.max()) + 1)
        return cos.to(positions.device)[positions], sin.to(positions.device)[positions]

    def lower(self, input_ids: Tensor, num_layers: int) -> Tensor:
        """Hidden states [B, T, hidden_size] after the first `num_layers` layers of causal attention, no norm."""
        x = self.embed_tokens(input_ids)
        cos, sin = self.rotary(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks[:num_layers]:
            q, k, v = block.qkv(x, cos, sin)
            x = block.finish(x, attend(q, k, v, None, causal=True))
        return x

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits [B, T, vocab_size] of causal decoding of `input_ids` [B, T] (no padding)."""
        logits: Tensor = self.lm_head(self.norm(self.lower(input_ids, self.config.num_layers)))
        return logits
