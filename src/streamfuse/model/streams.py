"""The stream-fused model: Speculative Streaming (arXiv 2402.11131, v1) on a frozen base, and this project's additions.

A token at position t has `num_streams` extra rows in the top `num_msa_layers` layers. Row j (1-based) starts from the
token's own hidden state below those layers (eq. 3), attends to the main rows up to t and to rows 1..j of the same token
(eq. 2), and predicts the token at t + 1 + j. Its rotary position is t + j. Main rows never attend to stream rows, so
the base's outputs do not depend on them. docs/model.md has the formulas and their sources.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from .config import HEADS, SOFTMAX, WIDENS, StreamConfig
from .heads import Heads
from .low_rank import LowRank, ParentTerm, Pruner, SigmoidPruner, SoftmaxPruner, StreamAdapters
from .transformer import Adapter, Block, SharedKV, Transformer, no_adapter

__all__ = ["LowRank", "ParentTerm", "Pruner", "Segments", "StreamAdapters", "StreamFused", "StreamStates"]


# Rows of an embedding table are an order of magnitude smaller than hidden states; this factor makes them comparable.
_NEXT_TOKEN_SCALE = 8.0
_OF_STREAMS = {"stream_embeddings", "parent.gate"}  # tensors with a row per stream


@dataclass(frozen=True, slots=True)
class Segments:
    """Texts concatenated in one row, which do not attend to each other: (tokens, tokens with streams) of each.

    Everything except attention processes all rows at once, without padding; attention is computed per text.
    """

    lengths: Sequence[tuple[int, int]]

    @classmethod
    def one(cls, tokens: int, carrying: int = 0) -> Segments:
        """A row that is a single text."""
        return cls([(tokens, carrying)])

    def positions(self, device: torch.device) -> Tensor:
        """int64 [T]: each token's position in its text."""
        return torch.cat([torch.arange(tokens, device=device) for tokens, _ in self.lengths])

    def split(self, x: Tensor) -> Sequence[Tensor]:
        """Rows of all tokens [B, T, ...], per text. (The gradient of a split is one concatenation, that of slices is
        not.)"""
        return x.split([tokens for tokens, _ in self.lengths], 1)

    def split_carrying(self, x: Tensor) -> Sequence[Tensor]:
        """Rows of the tokens with streams [B, P, ...], per text."""
        return x.split([carrying for _, carrying in self.lengths], 1)

    def mix(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`Block.mix` of each text: q [B, T, Hq, D], k and v [B, T, Hkv, D] -> [B, T, Hq * D]."""
        return torch.cat([block.mix(*text) for text in zip(*map(self.split, (q, k, v)), strict=True)], 1)

    def mix_streams(self, block: Block, own: Sequence[Tensor], main: Sequence[Tensor], places: Tensor) -> Tensor:
        """Eq. 2 in each text: own q, k, v [B, P, G, ...], main k, v [B, T, ...]; places [B, P] are positions in the
        text."""
        parts = (*map(self.split_carrying, own), *map(self.split, main), self.split_carrying(places))
        mix = _stream_attention
        if block.convolves or block.recurs:
            mix = _stream_convolution if block.convolves else _stream_recurrence
        return torch.cat([mix(block, *text) for text in zip(*parts, strict=True)], 1)


@dataclass(frozen=True, slots=True)
class StreamStates:
    """Results of the top layers: streams [B, P, G, h] and main rows [B, T, h], both after the final norm, and the main
    rows below the streams, [B, T, h]."""

    streams: Tensor
    main: Tensor
    below: Tensor


class StreamFused(nn.Module):
    """A base model with its streams.

    Args:
        base: the frozen base model, which is not copied.
        config: settings of the streams.
        stream_vocab: token ids that streams may propose, int64 [S], ascending; None is the full vocabulary.

    Raises:
        ValueError: the settings do not fit the base model.
    """

    base_adapters: nn.ModuleList  # StreamAdapters, one per layer of the top base_layers; absent if base_rank is 0
    adapters: nn.ModuleList  # StreamAdapters, one per top layer; absent if adapter_rank is 0
    eta: LowRank  # absent if eta_rank is 0
    next_token: LowRank  # absent if next_token_rank is 0
    parent: ParentTerm  # absent if parent_rank is 0
    pruner: Pruner  # absent if pruner_rank is 0
    heads: Heads  # of another method, instead of streams; absent otherwise
    stream_vocab: Tensor

    def __init__(self, base: Transformer, config: StreamConfig, stream_vocab: Tensor | None = None) -> None:
        super().__init__()
        h, n = base.config.hidden_size, base.config.num_layers
        if config.num_msa_layers > n:
            raise ValueError(f"--num-msa-layers is {config.num_msa_layers}, the base model has {n} layers")
        if config.base_layers > n:
            raise ValueError(f"--base-layers is {config.base_layers}, the base model has {n} layers")
        self.base = base
        self.streams_config = config
        # In a layer that shares the keys of a layer without streams, a stream attends to main rows only, and there must
        # be one in its window.
        shared = (block.window for block in self.top_blocks if block.kv_source < self.num_lower_layers)
        window = min((window for window in shared if window is not None), default=None)
        if window is not None and config.num_streams >= window:
            raise ValueError(
                f"--num-streams is {config.num_streams}; it must be below {window}, the sliding window of a layer that "
                "shares keys and values with a layer below the top --num-msa-layers, where streams have no keys"
            )
        if not (config.value_rotation or config.heads):
            self.stream_embeddings = nn.Parameter(torch.randn(config.num_streams, h) * 0.02)
        if config.eta_rank:
            self.eta = LowRank(h, h, config.eta_rank)
        if config.next_token_rank:
            self.next_token = LowRank(h, h, config.next_token_rank)
            self.next_token.down.data *= _NEXT_TOKEN_SCALE
        if config.base_rank:
            self.base_adapters = nn.ModuleList(
                StreamAdapters.of(block, config.base_rank, config.base_alpha)
                for block in base.blocks[n - config.base_layers :]
            )
        if config.adapter_rank:
            self.adapters = nn.ModuleList(
                StreamAdapters.of(block, config.adapter_rank, config.adapter_alpha) for block in self.top_blocks
            )
        if config.parent_rank:
            self.parent = ParentTerm(h, config.num_streams, config.parent_rank)
        if config.pruner_rank:
            kind = SoftmaxPruner if config.pruner_score == SOFTMAX else SigmoidPruner
            self.pruner = kind(h, config.pruner_rank)
        if stream_vocab is None:
            stream_vocab = torch.arange(base.config.vocab_size)
        if config.heads:
            self.heads = HEADS[config.heads](h, config.num_streams, len(stream_vocab), config.head_size)
        self.register_buffer("stream_vocab", stream_vocab)
        self.ngrams: dict[str, Tensor] = {}  # arrays of the n-gram table (train/ngram_counts.py); {} for none

    @classmethod
    def without_streams(cls, base: Transformer) -> StreamFused:
        """The base model alone: no parameters are added, and the stream vocabulary is empty."""
        return cls(base, StreamConfig.without(), torch.zeros(0, dtype=torch.int64)).eval()

    @property
    def num_lower_layers(self) -> int:
        """Layers without streams, N - Ns."""
        return self.base.config.num_layers - self.streams_config.num_msa_layers

    @property
    def tunes_base(self) -> bool:
        """Whether the base's adapters are trained (shared mode); frozen ones belong to a previously tuned base."""
        return bool(self.streams_config.base_rank) and next(self.base_adapters.parameters()).requires_grad

    @property
    def num_frozen_layers(self) -> int:
        """Lowest layers, whose outputs are computed once: training does not change them, and no layer above needs their
        keys and values."""
        tuned = self.streams_config.base_layers if self.tunes_base else 0
        unchanged = min(self.num_lower_layers, self.base.config.num_layers - tuned)
        while (lowest := self.base.config.lowest_kv_layer(unchanged)) < unchanged:
            unchanged = lowest
        return unchanged

    @property
    def top_blocks(self) -> list[Block]:
        """The layers with streams, lowest first."""
        return self.base.blocks[self.num_lower_layers :]

    def extra_state(self) -> dict[str, Tensor]:
        """Everything that is not part of the base: the content of an adapter file."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("base.")}

    def extra_parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained in lossless mode."""
        return [parameter for name, parameter in self.named_parameters() if not name.startswith("base.")]

    def keep_streams(self, count: int) -> None:
        """Drop all but the first `count` streams. Stream j attends to streams 1..j only, so the others do not change.

        Raises:
            ValueError: there are not that many.
        """
        if not 1 <= count <= self.streams_config.num_streams:
            raise ValueError(f"num_streams must be from 1 to {self.streams_config.num_streams}, not {count}")
        self.streams_config = replace(self.streams_config, num_streams=count)
        if self.streams_config.heads:
            for name, parameter in self.heads.named_parameters():
                setattr(self.heads, name, nn.Parameter(parameter[:count].detach()))
        elif not self.streams_config.value_rotation:
            self.stream_embeddings = nn.Parameter(self.stream_embeddings[:count].detach())
        if self.streams_config.parent_rank:
            self.parent.gate = nn.Parameter(self.parent.gate[:count].detach())

    def widened(self, stream_vocab: Tensor, **sizes: int) -> StreamFused:
        """A model with more streams or stream tokens, or larger ranks (`config.WIDENS`), and equal outputs of its old
        streams.

        Existing parameters are kept; new ranks have no effect until they are trained, new streams start as copies of
        the last one, and no stream attends to later ones. With more layers, streams and pruner start from a lower
        layer, so their outputs change until they are trained.

        Raises:
            ValueError: a size cannot grow, or would shrink.
        """
        config, whole = self.streams_config, self.base.config.vocab_size
        for name, size in sizes.items():
            before = getattr(config, name, 0)
            shrinks = size < before
            if name == "stream_vocab_size":  # 0 is the whole vocabulary
                shrinks = (size or whole) < (before or whole)
                before = before or "all"
            if name not in WIDENS or shrinks:
                raise ValueError(f"{name} {before} of an adapter cannot become {size}")
        rank = config.adapter_rank  # 0: `adapter_alpha` is that of the ranks to come
        growth = sizes.get("adapter_rank", rank) / rank if rank else 1.0
        settings: dict[str, Any] = {**sizes, "adapter_alpha": config.adapter_alpha * growth}  # keeps the scale
        wide = StreamFused(self.base, replace(config, **settings), stream_vocab)
        state = wide.extra_state()
        below = wide.streams_config.num_msa_layers - config.num_msa_layers  # new layers, the lowest of the top ones
        for name, value in self.extra_state().items():
            if name != "stream_vocab":
                state[_layers_up(name, below)][tuple(slice(length) for length in value.shape)] = value
        for name in state.keys() & _OF_STREAMS:
            state[name][config.num_streams :] = state[name][config.num_streams - 1]
        wide.ngrams = self.ngrams
        return wide

    def base_adapter(self, layer: int) -> Adapter:
        """The adapter of all rows in layer `layer` (0 = the lowest of the model)."""
        first = self.base.config.num_layers - self.streams_config.base_layers
        return cast("StreamAdapters", self.base_adapters[layer - first]).adapt if layer >= first else no_adapter

    def stream_adapter(self, layer: int) -> Adapter:
        """The adapter of stream rows in layer `layer` (0 = the lowest of the model)."""
        for_all = self.base_adapter(layer)
        if not self.streams_config.adapter_rank:
            return for_all
        own = cast("StreamAdapters", self.adapters[layer - self.num_lower_layers]).adapt
        if for_all is no_adapter:
            return own
        return lambda name, x: own(name, x) + cast("Tensor", for_all(name, x))

    def merged(self) -> StreamFused:
        """This model with the base's adapters added to the base's weights; all other tensors are shared, not copied."""
        if not self.streams_config.base_rank:
            return self
        base = copy.deepcopy(self.base, {id(parameter): parameter for parameter in self.base.parameters()})
        blocks = base.blocks[base.config.num_layers - self.streams_config.base_layers :]
        for block, adapters in zip(blocks, self.base_adapters, strict=True):
            cast("StreamAdapters", adapters).merge_into(block)
        with torch.device("meta"):  # every tensor is assigned below
            model = StreamFused(base, replace(self.streams_config, base_rank=0, base_layers=0), self.stream_vocab)
        own = {name: value for name, value in self.extra_state().items() if not name.startswith("base_adapters.")}
        model.load_state_dict(own, strict=False, assign=True)
        model.ngrams = self.ngrams
        return model.eval()

    def merged_stream_blocks(self) -> Iterator[Block]:
        """Copies of the top layers with the streams' adapters, and the base's if it is tuned, merged in."""
        first = self.base.config.num_layers - self.streams_config.base_layers
        for i, (block, own) in enumerate(zip(self.top_blocks, self.adapters, strict=True), self.num_lower_layers):
            merged = copy.deepcopy(block, {id(parameter): parameter for parameter in block.parameters()})
            if i >= first:
                cast("StreamAdapters", self.base_adapters[i - first]).merge_into(merged)
            cast("StreamAdapters", own).merge_into(merged)
            yield merged

    def run_main(
        self,
        x: Tensor,
        first: int,
        last: int,
        segments: Segments | None = None,
        per_layer: Sequence[Tensor | None] | None = None,
        shared: SharedKV | None = None,
    ) -> Tensor:
        """Main rows [B, T, h] through layers `first` to `last` - 1 with causal attention.

        `per_layer` has the per-layer inputs of the tokens (`Transformer.per_layer`). The layers' keys and values are
        added to `shared`.
        """
        segments, shared = segments or Segments.one(x.shape[1]), shared or SharedKV()
        rotary = self.base.rotary(segments.positions(x.device))
        for i in range(first, last):
            block, adapt = self.base.blocks[i], self.base_adapter(i)
            q, k, v = shared.resolve(block, *block.qkv(x, *rotary[block.rotary], adapt))
            x = block.finish(x, segments.mix(block, q, k, v), adapt, None if per_layer is None else per_layer[i])
        return x

    def frozen_states(self, ids: Tensor) -> Tensor:
        """Hidden states [B, T, h] of tokens [B, T] after the layers that training does not change."""
        return self.run_main(self.base.embed(ids), 0, self.num_frozen_layers, per_layer=self.base.per_layer(ids))

    def main_states(self, frozen: Tensor, segments: Segments | None = None, ids: Tensor | None = None) -> Tensor:
        """Main rows [B, T, h] after the final norm, without streams; arguments as in `stream_states`."""
        first, last = self.num_frozen_layers, self.base.config.num_layers
        states: Tensor = self.base.norm(self.run_main(frozen, first, last, segments, self._per_layer(ids)))
        return states

    def _per_layer(self, ids: Tensor | None) -> Sequence[Tensor | None]:
        """The per-layer inputs of tokens (`Transformer.per_layer`). Models without them do not need the tokens."""
        if not self.base.config.per_layer_size:
            return [None] * self.base.config.num_layers
        if ids is None:
            raise ValueError("a model with per-layer embeddings needs the tokens (ids)")
        with torch.no_grad():
            return self.base.per_layer(ids)

    def insert(self, hidden: Tensor, known: Tensor | None = None) -> Tensor:
        """Eq. 3, or the heads: main rows [..., h] below the top layers -> stream rows [..., num_streams, h].

        `known` are the embedding rows [..., h] of the next tokens, if streams are conditioned on them.
        """
        if self.streams_config.heads:
            return self.heads(hidden, self.base.norm(hidden))
        start = hidden + self.eta(hidden) if self.streams_config.eta_rank else hidden
        if known is not None and self.streams_config.next_token_rank:
            start = start + self.next_token(known)
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

    def stream_logits(self, states: Tensor, stream: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores of stream states after the final norm.

        Args:
            states: [n, h].
            stream: int64 [n], the stream of each, from 0.
            rows: `head_rows`, if they are available in the states' dtype.

        Returns:
            [n, S].
        """
        logits = states @ (self.head_rows() if rows is None else rows).T
        return self.heads.with_own_scores(logits, states, stream) if self.streams_config.heads else logits

    def stream_states(
        self,
        frozen: Tensor,
        at: Tensor,
        segments: Segments | None = None,
        known: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> StreamStates:
        """Final states of streams and of main rows, for training and evaluation.

        Gradients reach the main rows in shared mode only.

        Args:
            frozen: hidden states [B, T, h] after `num_frozen_layers` layers (`frozen_states`).
            at: positions [B, P] of the tokens with streams.
            segments: the texts that are concatenated in each row, `at` ascending; None: one text.
            known: the tokens [B, P] after those at `at`, which are known in a deferred `streams` pass, -1 where streams
                are not conditioned on them; None: nowhere.
            ids: the tokens [B, T], which models with per-layer embeddings need.

        Raises:
            ValueError: `ids` is missing.
        """
        base, config = self.base, self.streams_config
        batch, length, _ = frozen.shape
        device, segments = frozen.device, segments or Segments.one(length, at.shape[1])
        positions = segments.positions(device)
        rotary = base.rotary(positions)
        steps = torch.arange(1, config.num_streams + 1, device=device)
        places = positions[at]
        stream_rotary = base.rotary(places[..., None] + steps)
        rows = torch.arange(batch, device=device)[:, None]
        main_gradients = self.tunes_base and torch.is_grad_enabled()
        per_layer, shared, own = self._per_layer(ids), SharedKV(), SharedKV()
        with torch.set_grad_enabled(main_gradients):
            lower = self.num_frozen_layers, self.num_lower_layers
            below = main = self.run_main(frozen, *lower, segments, per_layer, shared)
        told = None if known is None else base.embed_tokens(known.clamp(min=0)) * (known >= 0).unsqueeze(-1)
        streams = self.insert(below[rows, at], told)
        for i, block in enumerate(self.top_blocks, self.num_lower_layers):
            adapt = self.base_adapter(i)
            with torch.set_grad_enabled(main_gradients):
                q, k, v = shared.resolve(block, *block.qkv(main, *rotary[block.rotary], adapt))
                main = block.finish(main, segments.mix(block, q, k, v), adapt, per_layer[i])
            adapt = self.stream_adapter(i)
            sq, sk, sv = block.qkv(streams, *stream_rotary[block.rotary], adapt)
            if sv is not None and not (block.convolves or block.recurs):
                sv = self.rotate_value(sv)
            if block.kv_source < self.num_lower_layers:  # a layer without streams, so streams have no keys
                sk = sv = k.new_zeros(*sq.shape[:2], 0, *k.shape[2:])
            attended = segments.mix_streams(block, own.resolve(block, sq, sk, sv), (k, v), places)
            streams = block.finish(streams, attended, adapt)
        with torch.set_grad_enabled(main_gradients):
            main = base.norm(main)
        return StreamStates(base.norm(streams), main, below)


def _layers_up(name: str, count: int) -> str:
    """A tensor's name after adding `count` layers below those that have stream adapters."""
    part, _, rest = name.partition(".")
    if part != "adapters":
        return name
    layer, _, rest = rest.partition(".")
    return f"{part}.{int(layer) + count}.{rest}"


def _stream_convolution(
    block: Block, q: Tensor, k: Tensor, v: Tensor, main_k: Tensor, main_v: Tensor, at: Tensor
) -> Tensor:
    """A short convolution over the rows that `_stream_attention` attends to: the main rows up to a token, then rows
    1..j of the same token. Arguments and result as there."""
    taps = block.conv.taps.weight.squeeze(1).T  # [L, h]
    count, streams = len(taps), q.shape[2]
    main = torch.cat([main_k, main_v], -2).flatten(-2)  # [B, T, h]
    before = at[..., None] + torch.arange(2 - count, 1, device=at.device)  # [B, P, L - 1]
    batch = torch.arange(len(at), device=at.device)[:, None, None]
    rows = main[batch, before.clamp(min=0)] * (before >= 0).unsqueeze(-1)
    rows = torch.cat([rows, torch.cat([k, v], -2).flatten(-2)], 2)  # [B, P, L - 1 + G, h]
    return q.flatten(-2) * sum(rows[:, :, i : i + streams] * tap for i, tap in enumerate(taps))


def _stream_recurrence(
    block: Block, q: Tensor, k: Tensor, v: Tensor, main_k: Tensor, main_v: Tensor, at: Tensor
) -> Tensor:
    """Linear attention over the rows that `_stream_attention` attends to. Arguments and result as there."""
    own, main = (torch.cat(halves, -2).flatten(-2) for halves in ((k, v), (main_k, main_v)))
    return block.linear_attn.mix_streams(own, main, at)


def _stream_attention(
    block: Block, q: Tensor, k: Tensor, v: Tensor, main_k: Tensor, main_v: Tensor, at: Tensor
) -> Tensor:
    """Eq. 2: row j of a token attends to the main rows up to the token and to rows 1..j of the same token.

    q [B, P, G, Hq, D], own k and v [B, P, G, Hkv, D], or [B, P, 0, Hkv, D] where streams have none, main k and v
    [B, T, Hkv, D], at [B, P] (the tokens' indices in the main rows) -> [B, P, G, Hq * D]. Main keys are shared by all
    tokens of a sequence, not copied. With a window, a row attends to that many positions up to its own, which is `at` +
    j.
    """
    _, positions, streams, heads, dim = q.shape
    places = torch.arange(main_k.shape[1], device=at.device)
    unseen = (places > at[..., None]).unsqueeze(2)  # [B, P, 1, T]
    later = torch.ones(streams, streams, dtype=torch.bool, device=q.device).triu(1)
    if (window := block.window) is not None:
        own_places = at[..., None, None] + torch.arange(1, streams + 1, device=at.device)[:, None]
        unseen = unseen | (places <= own_places - window)  # [B, P, G, T]
        later = later | torch.ones_like(later).tril(-window)
    later = later[:, : k.shape[2]]
    kv_heads = k.shape[3]
    group = heads // kv_heads
    q = (q * dim**-0.5).unflatten(3, (kv_heads, group)).permute(0, 3, 1, 2, 4, 5)  # [B, Hkv, P, G, group, D]
    flat = q.flatten(2, 4)  # rows in the order (P, G, group)
    hidden = torch.zeros(unseen.shape, dtype=q.dtype, device=q.device).masked_fill_(unseen, float("-inf"))
    to_main = (flat @ main_k.permute(0, 2, 3, 1)).unflatten(2, (positions, streams, group))
    to_main = (to_main + hidden[:, None, :, :, None, :]).flatten(2, 4)
    own_k = k.permute(0, 3, 1, 2, 4)  # [B, Hkv, P, G, D]
    own_v = v.permute(0, 3, 1, 2, 4)
    to_own = torch.einsum("bhpgud,bhpjd->bhpguj", q, own_k)
    to_own = to_own.masked_fill(later[:, None, :], float("-inf")).flatten(2, 4)
    weights = torch.softmax(torch.cat([to_main, to_own], dim=-1), dim=-1)
    length = main_k.shape[1]
    out = weights[..., :length] @ main_v.permute(0, 2, 1, 3)
    own_weights = weights[..., length:].unflatten(2, (positions, streams, group))
    out = out.unflatten(2, (positions, streams, group)) + torch.einsum("bhpguj,bhpjd->bhpgud", own_weights, own_v)
    return out.permute(0, 2, 3, 1, 4, 5).flatten(3)  # [B, P, G, Hkv * group * D]
