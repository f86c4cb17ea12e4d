"""The operators in PyTorch: their specification, and the eager implementation. See docs/contracts.md, sections 6 and 7.

Attention, products, norms and activations are bit-identical to the operators (except for a double rounding of `_fma`
about once in 2^29), because every sum is computed in the order of the C++ code. Log-probabilities only agree to a few
units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamfuse.export.operators import states
from streamfuse.export.operators.layout import GROUP, TILE
from streamfuse.export.operators.packing import RoundedKeys, RoundedValues, float_adapters, unpack
from streamfuse.model.delta_rule import pack_rows, unpack_rows

_LANES = 16
AT_ONCE = 1 << 18  # products in float64, which stay in a processor's cache
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # below it a group of activations is stored as zeros


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Row i attends to cache rows [0, cache_length), then to rows j with visible[i, j]; zeros if it attends to nothing.

    query [R, Hq, D], key/value [R, Hkv, D], cache_length int64 [1], visible bool [R, R] -> [R, Hq * D]. Caches are
    packed (uint8, layout.cache_shapes) or, in eager backends, float32 [C, Hkv, D] that are quantized when they are
    read. With a window (`window_attention`), a row attends to that many last positions of its sequence, and a cache of
    at least window + 32 positions may be a ring: position t is at t modulo C. The result is bit-identical to the
    operator's.
    """
    rows, heads, dim = query.shape
    kv_heads, length = key.shape[1], int(cache_length)
    group, packed = heads // kv_heads, key_cache.dtype == torch.uint8
    capacity = key_cache.shape[1 if packed else 0]
    is_ring = 0 < window <= capacity - GROUP
    if length < 0 or (length > capacity and not is_ring):
        raise ValueError(f"cache_length {length} is outside the cache of {capacity} positions")
    if packed:
        old_keys, old_values = RoundedKeys.unpack(key_cache), RoundedValues.unpack(value_cache)
    else:
        old_keys, old_values = RoundedKeys.of(key_cache[:length]), RoundedValues.of(value_cache[:length])
    keys, values = RoundedKeys.of(key), RoundedValues.of(value)
    at = torch.arange(length) % max(capacity, 1)  # a ring has later positions where those before the windows were
    key_q, key_d = torch.cat([old_keys.q[at], keys.q]), torch.cat([old_keys.d[at], keys.d])
    value_q = torch.cat([old_values.q[at][:, :, :dim], values.q])
    value_scale = torch.cat([old_values.scale[at], values.scale])

    # Scores of all positions, [Hkv, R * group, T]: groups of 32 dimensions in order.
    grouped = query.view(rows, kv_heads, group, dim).transpose(0, 1)
    padded = F.pad(grouped, (0, -dim % GROUP)).reshape(kv_heads * rows * group, -1)
    r = Rounded.of(padded)
    q, q_scale = r.q.view(kv_heads, rows * group, -1, GROUP), r.scale.view(kv_heads, rows * group, -1)
    scores = query.new_zeros(kv_heads, rows * group, key_q.shape[0])
    for g in range(q.shape[2]):
        dots = torch.bmm(q[:, :, g], key_q[:, :, g].permute(1, 2, 0))  # exact
        scores = _fma(dots, key_d[:, :, g].T[:, None, :] * q_scale[:, :, g, None], scores)
    scores = scores.view(kv_heads, rows, group, -1) * query.new_tensor(scale)

    # The canonical sequence of each row: [R, N] positions, N a multiple of the group size, and which of them exist.
    seen = torch.cat([visible.new_ones(rows, length), visible], dim=1)
    count = int(seen.sum(1).max())
    order = torch.sort(seen.to(torch.int8), dim=1, descending=True, stable=True).indices[:, :count]
    order = F.pad(order, (0, -count % GROUP))
    places, lengths = torch.arange(order.shape[1])[None], seen.sum(1, keepdim=True)
    there = (places < lengths) & (places >= lengths - window if window else places >= 0)
    found = scores.gather(3, order[None, :, None].expand(kv_heads, rows, group, -1))
    hidden = ~there[None, :, None]
    found = found.masked_fill(hidden, float("-inf"))
    best = found.amax(-1, keepdim=True) if count else found.new_zeros(kv_heads, rows, group, 1)
    shifted = torch.where(hidden, found, found + -best)
    weights = torch.where(hidden, torch.zeros_like(found), exp_of_nonpositive(shifted))
    total = _lane_dot(weights, torch.ones_like(weights)) if count else weights.sum(-1)
    total = torch.where(there[None, :, None].any(-1), total, torch.ones_like(total))

    # Weights times the values' scales, quantized, in groups of 32 positions in order.
    mixed = torch.zeros(kv_heads, rows, group, dim)
    scaled = weights * value_scale[order].permute(2, 0, 1)[:, :, None]
    scaled = scaled.masked_fill(hidden, 0.0)
    w = Rounded.of(scaled.reshape(kv_heads * rows * group, -1))
    w_q, w_scale = w.q.view(kv_heads, rows, group, -1, GROUP), w.scale.view(kv_heads, rows, group, -1)
    for n in range(order.shape[1] // GROUP):
        here = value_q[order[:, n * GROUP : (n + 1) * GROUP]].permute(2, 0, 1, 3)  # [Hkv, R, 32, D]
        mixed = _fma(torch.matmul(w_q[:, :, :, n], here), w_scale[:, :, :, n, None], mixed)
    return (mixed / total[..., None]).transpose(0, 1).reshape(rows, heads * dim)


window_attention = tree_attention  # a separate operator, whose window is required


def short_convolution(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    taps: Tensor,
) -> Tensor:
    """A gated short convolution: query [R, H, D], key and value [R, H / 2, D], taps [L, H D] -> [R, H D].

    Key and value are the halves of the convolution's input, quantized as `tree_attention` quantizes them. Row i is
    query[i] * sum of taps * input over the last L rows of its sequence, oldest first. Sequences, caches, which may be
    rings, and `visible` are those of `tree_attention`. The result is bit-identical to the operator's.
    """
    rows, length, packed = query.shape[0], int(cache_length), key_cache.dtype == torch.uint8
    capacity, count = key_cache.shape[1 if packed else 0], len(taps)
    if length < 0 or (length > capacity and count > capacity - GROUP):
        raise ValueError(f"cache_length {length} is outside the cache of {capacity} positions")
    if packed:
        old_keys, old_values = RoundedKeys.unpack(key_cache), RoundedValues.unpack(value_cache)
    else:
        old_keys, old_values = RoundedKeys.of(key_cache), RoundedValues.of(value_cache)
    cached = _read_back(old_keys, old_values, key.shape[2])
    fresh = _read_back(RoundedKeys.of(key), RoundedValues.of(value), key.shape[2])
    mixed = []
    for row in range(rows):
        before = torch.arange(max(length - count, 0), length) % max(capacity, 1)
        sequence = torch.cat([cached[before], fresh[visible[row]]])[-count:]
        total = torch.zeros_like(taps[0])
        for tap, read in zip(taps[count - len(sequence) :], sequence, strict=True):
            total = total + tap * read  # product and sum are rounded separately (core/rounding.h)
        mixed.append(total)
    return query.reshape(rows, -1) * torch.stack(mixed)


def delta_rows(projected: Tensor, value_heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Gates and channels [R, 2 value_heads + channels] as the cached rows of `gated_delta_rule`: key and value
    [R, kv_heads, head_dim], which are the halves of a row (`pack_rows`)."""
    rows = pack_rows(projected[:, : 2 * value_heads], projected[:, 2 * value_heads :], 2 * kv_heads * head_dim)
    rows = rows.view(len(rows), 2, kv_heads, head_dim)
    return rows[:, 0].contiguous(), rows[:, 1].contiguous()


def gated_delta_rule(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    layer_states: Tensor,
    taps: Tensor,
    rates: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    eps: float,
    key_heads: int,
    rewindable: int,
) -> Tensor:
    """The gated delta rule (Gated DeltaNet, arXiv 2412.06464, eq. 10) over a tree of rows -> [R, Hv * value_dim].

    key and value [R, H, D] are the halves of rows as `delta_rows` gives them, quantized as `tree_attention` quantizes
    them; caches and `visible` are those of `tree_attention`. taps [L, channels] convolve q, k and v; rates, exp(A_log),
    and dt_bias [Hv]; norm [value_dim] normalizes the output of each head. `layer_states` are the layer's states
    (states.py), which this brings up to date in place. The result is bit-identical to the operator's, as far as the
    exponentials of the gates are.
    """
    length, packed, count = int(cache_length), key_cache.dtype == torch.uint8, len(taps)
    delta = _DeltaRule(taps, rates, dt_bias, key_heads, len(norm))
    capacity = key_cache.shape[1 if packed else 0]

    def cached(first: int, last: int) -> Tensor:
        at = torch.arange(first, last) % capacity
        if not packed:
            return _read_back(RoundedKeys.of(key_cache[at]), RoundedValues.of(value_cache[at]), key.shape[2])
        keys, values = RoundedKeys.unpack(key_cache), RoundedValues.unpack(value_cache)
        return _read_back(keys, values, key.shape[2])[at]

    def advance(state: Tensor, first: int, last: int) -> Tensor:
        history, matrix = delta.split(state)
        gates, read = delta.unpacked(cached(first, last))
        rows = torch.cat([history, read])
        sequences = [rows[i : i + count] for i in range(len(read))]
        for row in zip(*delta.inputs(sequences, gates), strict=True):
            matrix, _ = delta.step(matrix, *row)
        return torch.cat([rows[len(rows) - count + 1 :].flatten(), matrix.flatten()])

    history, matrix = delta.split(states.update(layer_states, length, rewindable, advance))
    fresh = _read_back(RoundedKeys.of(key), RoundedValues.of(value), key.shape[2])
    gates, read = delta.unpacked(fresh)
    seen = visible | torch.eye(len(visible), dtype=torch.bool)  # padding rows do not see even themselves
    sequences = [torch.cat([history, read[row]])[-count:] for row in seen]
    parents = [torch.nonzero(row[:i])[-1:].flatten().tolist() for i, row in enumerate(seen)]
    after, out = list[Tensor](), list[Tensor]()
    for parent, row in zip(parents, zip(*delta.inputs(sequences, gates), strict=True), strict=True):
        changed, found = delta.step(after[parent[0]] if parent else matrix, *row)
        after.append(changed)
        out.append(rms_norm(found, norm, eps))
    return torch.stack(out).flatten(1)


@dataclass(frozen=True, slots=True)
class _DeltaRule:
    """The arithmetic of `gated_delta_rule`."""

    taps: Tensor
    rates: Tensor
    dt_bias: Tensor
    key_heads: int
    value_dim: int

    @property
    def key_dim(self) -> int:
        return (self.taps.shape[1] - len(self.rates) * self.value_dim) // (2 * self.key_heads)

    def split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The channels of the last rows [L - 1, channels], and S [Hv, key_dim, value_dim]."""
        history = (len(self.taps) - 1) * self.taps.shape[1]
        matrices = state[history:].view(len(self.rates), self.key_dim, self.value_dim)
        return state[:history].view(-1, self.taps.shape[1]), matrices

    def unpacked(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gates [T, 2 Hv] and channels [T, channels] of rows [T, n]."""
        return unpack_rows(rows, 2 * len(self.rates), self.taps.shape[1])

    def inputs(self, sequences: list[Tensor], gates: Tensor) -> tuple[Tensor, ...]:
        """The inputs of `step` for each row, from the channels of its last rows [L, channels]."""
        mixed = torch.zeros(len(sequences), self.taps.shape[1])
        for i, tap in enumerate(self.taps):
            mixed = mixed + tap * torch.stack([sequence[i] for sequence in sequences])
        keys = self.key_heads * self.key_dim
        q, k, v = silu(mixed).split([keys, keys, len(self.rates) * self.value_dim], 1)
        root = 1 / q.new_tensor(self.key_dim).sqrt()
        eps = float(q.new_tensor(1e-6) / q.new_tensor(self.key_dim))
        q, k = (
            rms_norm(x.unflatten(1, (self.key_heads, -1)), weight.expand(self.key_dim), eps)
            for x, weight in ((q, root * root), (k, root))
        )
        group = len(self.rates) // self.key_heads
        q, k = (x.repeat_interleave(group, 1) for x in (q, k))
        a, b = gates.double().chunk(2, 1)
        softplus = F.softplus(a + self.dt_bias.double(), threshold=1e9)
        decay, beta = (-self.rates.double() * softplus).exp().float(), torch.sigmoid(b).float()
        return q, k, v.unflatten(1, (-1, self.value_dim)), decay, beta

    def step(
        self, before: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """S [Hv, key_dim, value_dim] after a row with q, k [Hv, key_dim], v [Hv, value_dim], decay, beta [Hv]; and its
        output [Hv, value_dim] before the norm."""

        def read(state: Tensor, by: Tensor) -> Tensor:
            """S^T by: the sum over even rows in order, plus that over odd ones."""
            steps = (state.double() * by[:, :, None].double()).transpose(0, 1)
            return _summed(steps[::2], torch.zeros_like(v)) + _summed(steps[1::2], torch.zeros_like(v))

        change = (v + read(before, k) * -decay[:, None]) * beta[:, None]
        after = _fma(k[:, :, None], change[:, None], before * decay[:, None, None])
        return after, read(after, q)


def _read_back(keys: RoundedKeys, values: RoundedValues, dim: int) -> Tensor:
    """Keys and values after their quantization, side by side: [T, 2 Hkv D]."""
    first = (keys.q * keys.d[..., None]).flatten(2)[:, :, :dim]
    return torch.cat([first, values.q[:, :, :dim] * values.scale[..., None]], 1).flatten(1)


def embedding_q8(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows `ids` int64 [R] of a packed matrix, dequantized: float32 [R, K]."""
    tiles = unpack(weight[ids // TILE])
    rows = torch.arange(ids.shape[0]) * TILE + ids % TILE
    return tiles.dequantized()[rows]


embedding_q4 = embedding_q8


def linear(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    out_features: int,
    residual: Tensor | None,
    down: Tensor | None,
    up: Tensor | None,
    first_adapted_row: int,
    bias: Tensor | None = None,
) -> Tensor:
    """W . round(rms_norm(x)) + low-rank part of the rows from first_adapted_row on + bias + residual: float32 [R, N].

    x [R, K]; norm [K] or None (x is used directly); weight packed [N, K]; residual [R, N]; float16 down [r, K]
    and up [N / 16, r, 16], or int8 with K + 4 (packing.integer_adapters); bias float32 [N].
    """
    y = _joined(x, norm, eps, weight, [out_features], down, up, first_adapted_row)
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


def qkv(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    down: Tensor | None,
    up: Tensor | None,
    first_adapted_row: int,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """x [R, h], cos and sin [R, D] -> rotated query [R, Hq, D], rotated key [R, Hkv, D], value [R, Hkv, D].

    bias float32 [(Hq + 2 Hkv) D] is added to the product; q_norm and k_norm [D] normalize each head before the
    rotation, [Hq D] and [Hkv D] all heads of a row together. Adapters: float16 down [3 r, h], up [tiles, r, 16], or
    int8 as in `linear`.
    """
    rows, dim = x.shape[0], cos.shape[1]
    widths = [heads * dim, kv_heads * dim, kv_heads * dim]
    joined = _joined(x, norm, eps, weight, widths, down, up, first_adapted_row)
    joined = joined if bias is None else joined + bias
    q, k, v = joined.view(rows, -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    q = q if q_norm is None else rms_norm(q.reshape(rows, -1, len(q_norm)), q_norm, eps).view(q.shape)
    k = k if k_norm is None else rms_norm(k.reshape(rows, -1, len(k_norm)), k_norm, eps).view(k.shape)
    return _rotated(q, cos, sin), _rotated(k, cos, sin), v.contiguous()


def query(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    q_norm: Tensor | None,
    down: Tensor | None,
    up: Tensor | None,
    first_adapted_row: int,
) -> Tensor:
    """The query of `qkv` alone, with norms of each head only: [R, Hq, D]. Adapters have down [r, h]."""
    joined = _joined(x, norm, eps, weight, [heads * cos.shape[1]], down, up, first_adapted_row)
    q = joined.view(x.shape[0], heads, -1)
    return _rotated(q if q_norm is None else rms_norm(q, q_norm, eps), cos, sin)


biased_linear, biased_qkv = linear, qkv  # separate operators, whose bias is required


def gated_branch(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    gate_up: Tensor,
    down_proj: Tensor,
    intermediate: int,
    gate_up_down: Tensor | None,
    gate_up_up: Tensor | None,
    down_down: Tensor | None,
    down_up: Tensor | None,
    first_adapted_row: int,
    gelu: bool,
    residual: Tensor | None = None,
) -> Tensor:
    """down_proj(activation(gate) * up), x [R, h]; gate and up interleaved in blocks of 16 rows (packing.py).

    gelu: GELU in its approximation with tanh, instead of SiLU."""
    turns = [TILE] * (2 * intermediate // TILE)
    both = _joined(x, norm, eps, gate_up, turns, gate_up_down, gate_up_up, first_adapted_row, 2)
    blocks = both.view(x.shape[0], -1, 2, TILE)
    gate, up = (blocks[:, :, i].reshape(x.shape[0], intermediate) for i in (0, 1))
    gated = (gelu_tanh(gate) if gelu else silu(gate)) * up
    return linear(gated, None, eps, down_proj, x.shape[1], residual, down_down, down_up, first_adapted_row)


def gated_mlp(
    x: Tensor,
    norm: Tensor,
    eps: float,
    gate_up: Tensor,
    down_proj: Tensor,
    intermediate: int,
    gate_up_down: Tensor | None,
    gate_up_up: Tensor | None,
    down_down: Tensor | None,
    down_up: Tensor | None,
    first_adapted_row: int,
) -> Tensor:
    """x plus `gated_branch` with SiLU."""
    adapters = gate_up_down, gate_up_up, down_down, down_up
    return gated_branch(x, norm, eps, gate_up, down_proj, intermediate, *adapters, first_adapted_row, False, x)


def add_normed(x: Tensor, norm: Tensor, eps: float, residual: Tensor) -> Tensor:
    """residual + rms_norm(x), both [R, h]."""
    return rms_norm(x, norm, eps) + residual


def gate_heads(x: Tensor, gates: Tensor) -> Tensor:
    """Attention output x [R, H * D], each head multiplied by the sigmoid of its gate, gates [R, H]."""
    heads = x.unflatten(1, (gates.shape[1], -1))
    return _times_sigmoid(heads, gates.unsqueeze(2)).flatten(1)


def silu_gate(x: Tensor, gates: Tensor) -> Tensor:
    """x [R, n] multiplied by SiLU of gates [R, n]."""
    return silu(gates) * x


def gelu_gate(x: Tensor, gates: Tensor) -> Tensor:
    """x [R, n] multiplied by GELU (tanh) of gates [R, n]."""
    return gelu_tanh(gates) * x


def head(
    x: Tensor, norm: Tensor, eps: float, weight: Tensor, vocab_size: int, want_logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits float32 [R, V] and their argmax int64 [R], the smaller id on ties. The C++ code does not write logits if
    want_logits, bool [1], is False.
    """
    logits = linear(x, norm, eps, weight, vocab_size, None, None, None, 0)
    return logits, torch.argmax(logits, dim=1)


def capped_head(
    x: Tensor, norm: Tensor, eps: float, weight: Tensor, vocab_size: int, want_logits: Tensor, cap: float
) -> tuple[Tensor, Tensor]:
    """`head`, with cap tanh(x / cap) in place of each logit x; the argmax is that of the logits before."""
    logits, best = head(x, norm, eps, weight, vocab_size, want_logits)
    limit = logits.new_tensor(cap)
    return _times_sigmoid((2 * limit).expand_as(logits), logits * (2 / limit)) - limit, best


def stream_top_k(x: Tensor, norm: Tensor, eps: float, weight: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row's stream head, x [R, h], ids int64 [S]: ids int64 [R, k], log-probabilities [R, k]."""
    return top_k_log_prob(linear(x, norm, eps, weight, ids.shape[0], None, None, None, 0), ids, k)


# --- arithmetic ---


def top_k_log_prob(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, best first, ties by smaller column: their ids and log-softmax values.

    logits float32 [R, S], ids int64 [S] -> int64 [R, k], float32 [R, k].
    """
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must be between 1 and {logits.shape[1]}, not {k}")
    columns = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :k]
    return ids[columns], torch.log_softmax(logits, dim=1).gather(1, columns)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Activations in int8 per row and group of 32: x is about scale * q."""

    q: Tensor  # float32 [R, G, 32], integers in -127..127
    scale: Tensor  # float32 [R, G]

    @classmethod
    def of(cls, x: Tensor) -> Rounded:
        """Symmetric, scale = largest magnitude / 127, half to even. x float32 [R, K]."""
        groups = x.reshape(x.shape[0], -1, GROUP)
        scale = groups.abs().amax(dim=2) / 127
        scale = torch.where(scale < _SMALLEST_SCALE, torch.zeros_like(scale), scale)
        inverse = torch.where(scale == 0, scale, 1 / scale)
        return cls(torch.round(groups * inverse[..., None]), scale)


@dataclass(frozen=True, slots=True)
class _Groups:
    """A packed weight, its groups of inputs apart: w[n, 32 g + k] = d[g, n] * q[g, k, n] + m[g, n]."""

    q: Tensor  # int8 [G, 32, N'], N' a multiple of 16
    d: Tensor  # float32 [G, N']
    m: Tensor | None  # float32 [G, N']; None for Q8_0

    @classmethod
    def of(cls, weight: Tensor) -> _Groups:
        w = unpack(weight)
        q = w.q.to(torch.int8).unflatten(1, (-1, GROUP)).permute(1, 2, 0)
        return cls(q.contiguous(), w.d.T.contiguous(), None if w.m is None else w.m.T.contiguous())


_once: ContextVar[dict[tuple[int, torch.Size], tuple[Tensor, _Groups]] | None] = ContextVar("_once", default=None)


@contextmanager
def unpacked_once() -> Iterator[None]:
    """Inside, a weight is unpacked for its first product only: a byte per parameter is kept. No weight may change."""
    token = _once.set({})
    try:
        yield
    finally:
        _once.reset(token)


def _groups_of(weight: Tensor) -> _Groups:
    if (known := _once.get()) is None:
        return _Groups.of(weight)
    place = weight.data_ptr(), weight.shape
    if place not in known:
        known[place] = weight, _Groups.of(weight)  # with the weight, whose address is nobody else's then
    return known[place][1]


def product(x: Tensor, weight: Tensor, out_features: int) -> Tensor:
    """W . round(x): x float32 [R, K], weight packed -> float32 [R, N]. Groups in order, two fused steps each."""
    w, r = _groups_of(weight), Rounded.of(x.detach())
    groups, outputs = w.d.shape
    if r.scale.shape[1] != groups or not outputs - TILE < out_features <= outputs:
        raise ValueError(f"a packed weight of {list(weight.shape)} does not map {list(x.shape)} to {out_features}")
    q, scale, shares = r.q.transpose(0, 1), r.scale.T[..., None], (r.scale * r.q.sum(dim=2)).T[..., None]
    columns = max(AT_ONCE // max(r.scale.numel(), 1), 1)
    blocks = []
    for at in (slice(start, start + columns) for start in range(0, outputs, columns)):
        dots = torch.bmm(q, w.q[:, :, at].float())  # [G, R, N'], exact
        factors = [(dots, w.d[:, None, at] * scale)]
        if w.m is not None:
            factors.append((shares, w.m[:, None, at]))
        steps = dots.new_empty(groups, len(factors), *dots.shape[1:], dtype=torch.float64)
        for i, (a, b) in enumerate(factors):
            torch.mul(a.double(), b.double(), out=steps[:, i])
        blocks.append(_summed(steps.flatten(0, 1), torch.zeros_like(dots[0])))
    return torch.cat(blocks, 1)[:, :out_features].contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """(x / sqrt(mean(x^2) + eps)) * weight over the last dimension."""
    size = x.new_tensor(x.shape[-1])
    mean = _lane_dot(x, x) / size + x.new_tensor(eps)
    factor = 1 / torch.sqrt(mean.double()).float()  # torch's float32 square root is off in one of five cases
    return (x * factor[..., None]) * weight


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)), computed from the exponential of -|x|."""
    return _times_sigmoid(x, x)


def gelu_tanh(x: Tensor) -> Tensor:
    """x / (1 + exp(-z)), z = 2 sqrt(2 / pi) (x + 0.044715 x^3)."""
    return _times_sigmoid(x, x * _fma(x * x, x.new_tensor(0.0713548162726), x.new_tensor(1.59576912161)))


def _times_sigmoid(x: Tensor, z: Tensor) -> Tensor:
    e = exp_of_nonpositive(-z.abs())
    return torch.where(z >= 0, x, x * e) / (1 + e)


def exp_of_nonpositive(x: Tensor) -> Tensor:
    """exp(x) for x <= 0 as in ops/lanes.h; zero below -86."""
    bounded = torch.where(x > -86, x, torch.full_like(x, -86.0))
    n = _fma(bounded, x.new_tensor(1.44269504088896341), x.new_tensor(12582912.0)) - 12582912.0
    r = _fma(n, x.new_tensor(-0.693145751953125), bounded)
    r = _fma(n, x.new_tensor(-1.42860677e-6), r)
    p = torch.full_like(x, 1 / 720)
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        p = _fma(p, r, x.new_tensor(coefficient))
    return torch.where(x > -86, torch.ldexp(p, n.int()), torch.zeros_like(x))


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c, rounded to float32 once; the product is exact in float64."""
    return (a.double() * b.double() + c.double()).float()


def _summed(steps: Tensor, total: Tensor) -> Tensor:
    """`total`, in place, with exact products of float32, float64 [n, ...], added in order: n times `_fma`.

    No gradients: sums in place have none, and nothing trains through rounded products.
    """
    for step in steps.detach():
        total.copy_(step.add_(total))
    return total


def _lane_dot(a: Tensor, b: Tensor) -> Tensor:
    """Dot products over the last dimension: 16 lanes, each in order, then a pairwise reduction."""
    padding = (0, -a.shape[-1] % _LANES)
    a, b = torch.broadcast_tensors(F.pad(a, padding), F.pad(b, padding))
    a, b = (t.reshape(*t.shape[:-1], -1, _LANES) for t in (a, b))
    acc = _summed((a.double() * b.double()).movedim(-2, 0), torch.zeros_like(a[..., 0, :]))
    for half in (8, 4, 2, 1):
        acc = acc[..., :half] + acc[..., half : 2 * half]
    return acc[..., 0]


def _joined(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    widths: list[int],
    down: Tensor | None,
    up: Tensor | None,
    first: int,
    parts: int | None = None,
) -> Tensor:
    """W . round(rms_norm(x)) + up^T (down x') in the rows from `first` on, for projections with concatenated outputs.

    Block i of widths[i] outputs belongs to projection i modulo `parts` (None: each block is its own projection), which
    has its own r rows of down [parts r, K]; up [tiles, r, 16].
    """
    x = x if norm is None else rms_norm(x, norm, eps)
    y = product(x, weight, sum(widths))
    if down is None or up is None or first >= y.shape[0]:
        return y
    rank, parts = up.shape[1], parts or len(widths)
    part = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths)) % parts  # [N]
    first_matrix, factors, second = float_adapters(down, up)
    columns = second.permute(1, 0, 2).reshape(rank, -1)
    inner = (_lane_dot(x[first:, None, :], first_matrix[None]) * factors).view(-1, parts, rank)
    rows = y[first:]
    for j in range(rank):
        rows = _fma(columns[j, : y.shape[1]], inner[:, part, j], rows)
    return torch.cat([y[:first], rows])


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotary embedding: x [R, H, D], cos and sin [R, D]."""
    half = x.shape[2] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=2)
    return _fma(turned, sin[:, None, :], x * cos[:, None, :])
