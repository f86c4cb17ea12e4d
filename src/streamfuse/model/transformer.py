"""The base model: a decoder with what `ModelConfig` says, under the parameter names of Hugging Face's Llama.

A block exposes its halves (`qkv` and `finish`) because its callers use different attentions between them: the plain
decoder here, the streams (`streams.py`) and the batched generation of `train/generate.py`. The static graphs
(`export/`) use the weights in their own arrangement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig
from .delta_rule import GatedDeltaNet
from .families import Activation, QueryKeyNorm
from .rope import attention_factor, scaled_frequencies

# An adapter is called with the name of a projection and its input; its result is added to the projection's output.
Adapter = Callable[[str, Tensor], Tensor | None]


def no_adapter(name: str, x: Tensor) -> Tensor | None:
    return None


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension, in float32.

    The weight of a model in bfloat16 may be float32 (families.py); then the product with it is in float32 too.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = unit_rms(x, self.eps)
        return (self.weight * wide.to(torch.promote_types(self.weight.dtype, x.dtype))).to(x.dtype)


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def rotary_tables(config: ModelConfig, length: int) -> list[tuple[Tensor, Tensor]]:
    """cos and sin of each rotary embedding, float32 [length, size of a head], in the half-split layout (each value
    occurs twice).

    They include the attention factor of the RoPE scaling, unless q and k are normalized after it, and what the
    attention's scale differs from 1 / sqrt(D): both q and k are multiplied by its root. Numbers of a head that are not
    rotated have an angle of 0.
    """
    found = []
    for rotary, head_dim in zip(config.rotaries, config.rotary_dims, strict=True):
        half, scale = head_dim // 2, (config.attention_scale * head_dim**0.5) ** 0.5
        turned = rotary.size // 2
        inverse = rotary.theta ** (-torch.arange(0, turned, dtype=torch.float64) / max(rotary.frequency_dim // 2, 1))
        frequencies = torch.from_numpy(scaled_frequencies(inverse.numpy(), rotary.theta, rotary.scaling))
        angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
        # The norm after RoPE cancels the factor; the kernels normalize before RoPE and would keep it.
        factor = 1.0 if config.query_key_norm == "head after rope" else attention_factor(rotary.scaling)
        cos = F.pad(angles.cos() * factor, (0, half - turned), value=1.0)
        sin = F.pad(angles.sin() * factor, (0, half - turned))
        found.append(((torch.cat([cos, cos], 1) * scale).float(), (torch.cat([sin, sin], 1) * scale).float()))
    return found


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [..., heads, head_dim] with cos, sin [..., head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos.unsqueeze(-2).to(x.dtype) + turned * sin.unsqueeze(-2).to(x.dtype)


class Attention(nn.Module):
    """The projections of grouped-query attention, norms of q, k and v, and gates; `Block` and `attend` do the work.

    A layer that reads the keys and values of an earlier one has neither projections nor norms of its own for them.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        h, d, bias = config.hidden_size, config.layer_head_dims[layer], config.attention_bias
        self.head_dim, shares = d, layer >= config.num_cached_layers
        self.q_proj = nn.Linear(h, self.num_heads * d, bias=bias)
        if not shares:
            self.k_proj = nn.Linear(h, self.num_kv_heads * d, bias=bias)
            self.v_proj = nn.Linear(h, self.num_kv_heads * d, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * d, h, bias=config.output_bias)
        self.query_key_norm = config.query_key_norm
        if self.query_key_norm != "none":
            wide = self.query_key_norm == "width"
            self.q_norm = RMSNorm(self.num_heads * d if wide else d, config.rms_norm_eps)
            if not shares:
                self.k_norm = RMSNorm(self.num_kv_heads * d if wide else d, config.rms_norm_eps)
        self.value_eps = config.rms_norm_eps if config.value_norm and not shares else None  # None: no norm
        gates = {"none": 0, "head": self.num_heads, "element": self.num_heads * d}[config.attention_gate]
        self.g_proj = nn.Linear(h, gates, bias=False) if gates else None


class ShortConvolution(nn.Module):
    """The projections and taps of LFM2's gated short convolution (arXiv 2511.23404); `convolve` does the work.

    q, k and v [..., hidden_size] are products of a row (C, B and x in LFM2). Each channel of k * v is convolved over
    the last rows, and q multiplies the result. The projections have the names of attention's, because adapters, tree
    and caches treat them alike: the cache stores k * v, the first half of its channels as keys, the second as values.
    """

    query_key_norm: QueryKeyNorm = "none"
    value_eps = None

    def __init__(self, config: ModelConfig, taps: int) -> None:
        super().__init__()
        self.g_proj = None
        h = config.hidden_size
        self.head_dim = config.head_dim
        self.num_heads = self.num_kv_heads = h // config.head_dim  # of the three products
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(h, h, bias=False) for _ in range(4))
        self.taps = nn.Conv1d(h, h, taps, groups=h, bias=False)  # the last one belongs to the row itself


class MLP(nn.Module):
    """The projections of the gated feed-forward layer; `Block.finish` does the work."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.layer_mlp_sizes[layer]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)
        self.activation = config.activation


def activated(gate: Tensor, activation: Activation) -> Tensor:
    """SiLU, or GELU in its approximation with tanh."""
    return F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")


def project(layer: nn.Module, name: str, x: Tensor, adapter: Adapter) -> Tensor:
    """`layer(x)` plus what the adapter adds for the projection `name`."""
    y = layer(x)
    extra = adapter(name, x)
    return y if extra is None else y + extra.to(y.dtype)


class Block(nn.Module):
    """One decoder layer; `x` is [..., hidden_size], positions are given as cos and sin [..., head_dim].

    Attributes:
        kv_source: the layer whose keys and values it reads: itself, or a lower one, with which it shares them.
        rotary: the index of its rotary embedding.
        window: how many tokens a token's output depends on, itself included; None: all.
        convolves: whether it is a short convolution instead of attention.
        recurs: whether it has linear attention instead.
        mixer: `conv`, `linear_attn` or `self_attn`, whichever it has.
        per_layer_gate: with `per_layer_proj` and `per_layer_output_norm`, the branch that adds the layer's per-layer
            input (`Transformer.per_layer`); None: the model has no per-layer embeddings.
        layer_scalar: [1], multiplies the layer's output; None: nothing does.
    """

    input_layernorm: RMSNorm | None  # before attention
    attention_output_norm: RMSNorm | None  # after attention, before the residual addition
    post_attention_layernorm: RMSNorm | None  # before the MLP
    mlp_output_norm: RMSNorm | None  # after the MLP, before the residual addition

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.kv_source = config.kv_source_layers[layer]
        self.shares = self.kv_source != layer
        self.rotary, self.window = config.layer_rotaries[layer], config.layer_windows[layer]
        before, after = config.norms != "after", config.norms != "before"

        def norm(wanted: bool) -> RMSNorm | None:
            return RMSNorm(config.hidden_size, config.rms_norm_eps) if wanted else None

        self.input_layernorm = norm(before)
        self.convolves, self.recurs = config.layer_convolutions[layer], config.layer_recurrences[layer]
        if self.recurs:
            assert config.delta is not None
            output_norm = RMSNorm(config.delta.value_dim, config.rms_norm_eps)
            self.linear_attn = GatedDeltaNet(config.hidden_size, config.delta, config.head_dim, output_norm)
        elif self.convolves:
            assert self.window is not None
            self.conv = ShortConvolution(config, self.window)
        else:
            self.self_attn = Attention(config, layer)
        self.attention_output_norm = norm(after)
        self.post_attention_layernorm = norm(before)
        self.mlp = MLP(config, layer)
        self.mlp_output_norm = norm(after)
        size = config.per_layer_size
        self.per_layer_gate = nn.Linear(config.hidden_size, size, bias=False) if size else None
        self.per_layer_proj = nn.Linear(size, config.hidden_size, bias=False) if size else None
        self.per_layer_output_norm = norm(size > 0)
        self.layer_scalar = nn.Parameter(torch.ones(1)) if config.layer_scalars else None

    @property
    def mixer(self) -> Attention | ShortConvolution | GatedDeltaNet:
        if self.recurs:
            return self.linear_attn
        return self.conv if self.convolves else self.self_attn

    @property
    def gate_projections(self) -> list[nn.Linear]:
        """The projections of attention that cannot have low-rank adapters: those whose outputs are gates."""
        if self.recurs:
            return [self.linear_attn.g_proj, self.linear_attn.a_proj, self.linear_attn.b_proj]
        return [] if self.mixer.g_proj is None else [self.mixer.g_proj]

    def qkv(
        self, x: Tensor, cos: Tensor, sin: Tensor, adapter: Adapter = no_adapter
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rotated query [..., num_heads, head_dim], rotated key and plain value [..., num_kv_heads, head_dim], or None
        for both if they are those of layer `kv_source`.

        Of a convolution: q, and the two halves of k * v. Of linear attention: no query, and the two halves of its
        cached rows. Nothing is rotated.
        """
        a = self.mixer
        y = normed(self.input_layernorm, x)
        if self.shares and isinstance(a, Attention):
            q = project(a.q_proj, "q_proj", y, adapter).unflatten(-1, (-1, a.head_dim))
            return rotate(a.q_norm(q) if a.query_key_norm == "head" else q, cos, sin), None, None
        q, k, v = (project(getattr(a, name), name, y, adapter) for name in ("q_proj", "k_proj", "v_proj"))
        if isinstance(a, GatedDeltaNet):
            gates = torch.cat([a.a_proj(y), a.b_proj(y)], -1)
            rows = a.packed(gates, torch.cat([q, k, v], -1)).unflatten(-1, (-1, a.head_dim))
            return (rows[..., :0, :], *rows.chunk(2, -2))
        if isinstance(a, ShortConvolution):
            return (q.unflatten(-1, (-1, a.head_dim)), *(k * v).unflatten(-1, (-1, a.head_dim)).chunk(2, -2))
        if a.query_key_norm == "width":
            q, k = a.q_norm(q), a.k_norm(k)
        q, k, v = (rows.unflatten(-1, (-1, a.head_dim)) for rows in (q, k, v))
        if a.query_key_norm == "head":
            q, k = a.q_norm(q), a.k_norm(k)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if a.query_key_norm == "head after rope":
            q, k = a.q_norm(q), a.k_norm(k)
        return q, k, v if a.value_eps is None else unit_rms(v, a.value_eps).to(v.dtype)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention, or what a layer has instead, of whole texts: q [B, T, Hq, D], k and v [B, T, Hkv, D] ->
        [B, T, Hq * D]."""
        if self.recurs:
            return self.linear_attn.mix(torch.cat([k, v], -2).flatten(-2))
        if self.convolves:
            return convolve(q, k, v, self.conv.taps)
        return attend_causal(q, k, v, self.window)

    def finish(
        self, x: Tensor, attended: Tensor, adapter: Adapter = no_adapter, per_layer: Tensor | None = None
    ) -> Tensor:
        """Output projection of `attended` [..., num_heads * head_dim], the MLP, and both residual additions.

        `per_layer` [..., per_layer_size] is the layer's per-layer input; None: the rows have no tokens (streams).
        """
        return self.finish_layer(self.feed_forward(self.add_attention(x, attended, adapter), adapter), per_layer)

    def finish_layer(self, x: Tensor, per_layer: Tensor | None = None) -> Tensor:
        """Adds the branch of the per-layer input to the hidden state after the MLP, and multiplies the sum by the
        layer's scalar; `per_layer` as in `finish`."""
        if self.per_layer_gate is not None and self.per_layer_proj is not None and per_layer is not None:
            gated = activated(self.per_layer_gate(x), self.mlp.activation) * per_layer
            x = x + normed(self.per_layer_output_norm, self.per_layer_proj(gated))
        return x if self.layer_scalar is None else x * self.layer_scalar

    def add_attention(self, x: Tensor, attended: Tensor, adapter: Adapter = no_adapter) -> Tensor:
        """x plus the output projection of `attended`, which may be gated."""
        if self.recurs:
            attended = self.linear_attn.gated(attended, self.linear_attn.g_proj(normed(self.input_layernorm, x)))
        elif self.mixer.g_proj is not None:
            attended = gated_heads(attended, self.mixer.g_proj(normed(self.input_layernorm, x)))
        return x + normed(self.attention_output_norm, project(self.mixer.o_proj, "o_proj", attended, adapter))

    def feed_forward(self, x: Tensor, adapter: Adapter = no_adapter) -> Tensor:
        """The MLP and its residual addition."""
        y = normed(self.post_attention_layernorm, x)
        gate = activated(project(self.mlp.gate_proj, "gate_proj", y, adapter), self.mlp.activation)
        gated = gate * project(self.mlp.up_proj, "up_proj", y, adapter)
        return x + normed(self.mlp_output_norm, project(self.mlp.down_proj, "down_proj", gated, adapter))


def normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    """x, normalized if there is a norm."""
    return x if norm is None else norm(x)


def gated_heads(attended: Tensor, gates: Tensor) -> Tensor:
    """Attention output [..., heads * head_dim], each head scaled by the sigmoid of its gate, gates [..., heads]."""
    return (attended.unflatten(-1, (gates.shape[-1], -1)) * torch.sigmoid(gates).unsqueeze(-1)).flatten(-2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """Grouped-query attention, scaled by 1 / sqrt(D): q [B, R, Hq, D], k and v [B, S, Hkv, D] -> [B, R, Hq * D].

    `mask` is bool [B or 1, 1, R, S], True where a row attends to a key; or None, and then `causal` says whether row i
    attends to keys 0..i only (R = S).
    """
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, is_causal=causal, enable_gqa=True
    )
    return out.transpose(1, 2).flatten(2)


def attend_causal(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """`attend` where row i attends to keys 0..i only, or to the last `window` of them.

    For training: in bfloat16 on a CPU the backward pass of PyTorch's own kernel takes five times as long as these few
    products. Scores are not tiled: [B, Hq, R, R].
    """
    rows, heads, dim, kv_heads = q.shape[1], q.shape[2], q.shape[3], k.shape[2]
    if not torch.is_grad_enabled() and (window is None or window >= rows):
        return attend(q, k, v, None, causal=True)
    hidden = hidden_in(rows, window, q.device)
    if not torch.is_grad_enabled():
        return attend(q, k, v, ~hidden[None, None])
    group = heads // kv_heads
    q = (q * dim**-0.5).unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, Hkv, group * R, D]
    scores = (q @ k.permute(0, 2, 3, 1)).masked_fill(hidden.repeat(group, 1), float("-inf"))
    out = torch.softmax(scores, -1) @ v.transpose(1, 2)
    return out.unflatten(2, (group, rows)).permute(0, 3, 1, 2, 4).flatten(2)


def convolve(q: Tensor, k: Tensor, v: Tensor, taps: nn.Conv1d) -> Tensor:
    """q times the causal convolution of each channel of k and v together: q [B, T, H, D], k and v [B, T, H / 2, D] ->
    [B, T, H * D]."""
    read = torch.cat([k, v], -2).flatten(-2)
    (count,) = taps.kernel_size
    return q.flatten(-2) * taps(F.pad(read.transpose(1, 2), (count - 1, 0))).transpose(1, 2)


def hidden_in(rows: int, window: int | None, device: torch.device) -> Tensor:
    """bool [R, R]: the keys that a row does not attend to: later ones, and those that its window leaves behind."""
    all_ = torch.ones(rows, rows, dtype=torch.bool, device=device)
    return all_.triu(1) if window is None else all_.triu(1) | all_.tril(-window)


def capped(logits: Tensor, cap: float) -> Tensor:
    """cap tanh(logits / cap); the logits themselves if the cap is 0."""
    return torch.tanh(logits / cap) * cap if cap else logits


class SharedKV:
    """Keys and values computed in a pass, by layer, for the layers that share them (`Block.kv_source`)."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Tensor, Tensor]] = {}

    def resolve(self, block: Block, q: Tensor, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of a block, from the results of its `qkv`: k and v are stored if the block computed them, else
        looked up."""
        if k is not None and v is not None:
            self._found[block.kv_source] = k, v
        return q, *self._found[block.kv_source]


class Transformer(nn.Module):
    """The plain decoder: token ids to hidden states after the final norm, and the vocabulary head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        if (size := config.per_layer_size) > 0:
            self.per_layer_embedding = nn.Embedding(config.vocab_size, config.num_layers * size)
            self.per_layer_projection = nn.Linear(config.hidden_size, config.num_layers * size, bias=False)
            self.per_layer_norm = RMSNorm(size, config.rms_norm_eps)

    @property
    def blocks(self) -> list[Block]:
        """The layers, lowest first."""
        return cast("list[Block]", list(self.layers))

    def rotary(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """cos and sin [..., head_dim] of integer positions [...], for each rotary embedding (`Block.rotary`)."""
        tables = rotary_tables(self.config, int(positions.max()) + 1)
        return [(cos.to(positions.device)[positions], sin.to(positions.device)[positions]) for cos, sin in tables]

    def embed(self, input_ids: Tensor) -> Tensor:
        """The hidden states [..., hidden_size] of tokens [...] that the first layer reads."""
        x: Tensor = self.embed_tokens(input_ids)
        return x if self.config.embedding_scale == 1 else x * self.config.embedding_scale

    def per_layer_modules(self) -> list[nn.Module]:
        """The modules that `per_layer` uses besides `embed_tokens`; none without per-layer embeddings."""
        has = self.config.per_layer_size > 0
        return [self.per_layer_embedding, self.per_layer_projection, self.per_layer_norm] if has else []

    def per_layer(self, input_ids: Tensor) -> Sequence[Tensor | None]:
        """The per-layer inputs of tokens [...]: for each layer [..., per_layer_size], the argument `per_layer` of
        `Block.finish`. All None if the model has no per-layer embeddings.

        An input is the sum of an embedding of the token and of a normalized projection of its hidden state before the
        first layer, divided by sqrt(2).
        """
        if not (size := self.config.per_layer_size):
            return [None] * self.config.num_layers
        shape = (self.config.num_layers, size)
        projected = self.per_layer_projection(self.embed(input_ids)) * self.config.hidden_size**-0.5
        own = self.per_layer_embedding(input_ids).to(projected.dtype).unflatten(-1, shape) * size**0.5
        return ((own + self.per_layer_norm(projected.unflatten(-1, shape))) * 2**-0.5).unbind(-2)

    def lower(self, input_ids: Tensor, num_layers: int) -> Tensor:
        """Hidden states [B, T, hidden_size] after the first `num_layers` layers of causal attention, no norm."""
        x, per_layer = self.embed(input_ids), self.per_layer(input_ids)
        rotary = self.rotary(torch.arange(input_ids.shape[1], device=input_ids.device))
        shared = SharedKV()
        for i, block in enumerate(self.blocks[:num_layers]):
            q, k, v = shared.resolve(block, *block.qkv(x, *rotary[block.rotary]))
            x = block.finish(x, block.mix(q, k, v), per_layer=per_layer[i])
        return x

    def logits(self, states: Tensor) -> Tensor:
        """Logits [..., vocab_size] of states [..., hidden_size] after the final norm."""
        return capped(self.lm_head(states), self.config.logit_cap)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits [B, T, vocab_size] of causal decoding of `input_ids` [B, T] (no padding)."""
        return self.logits(self.norm(self.lower(input_ids, self.config.num_layers)))
