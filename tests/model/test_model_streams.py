"""The streams: main rows never see them, they see what eq. 2 says, and the static graphs compute the same.

The oracle computes one row at a time with plain loops. Run: python -m pytest tests/model/test_model_streams.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from streamfuse.export.graphs import GraphShapes, Weights, build_methods
from streamfuse.export.layers import Form
from streamfuse.export.reference import Form as ReferenceForm
from streamfuse.export.reference import reference_backend
from streamfuse.model.config import StreamConfig
from streamfuse.model.delta_rule import GatedDeltaNet
from streamfuse.model.streams import Segments, StreamFused
from streamfuse.model.transformer import Block, normed, rotary_tables, rotate
from streamfuse.runtime.backend import ModelSpec

GEMMA = {  # windows shorter than the rows of a token with its streams
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "sliding_window": 3,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
}
LFM = {  # the lower layer with streams is a convolution, the upper one attends
    "architectures": ["Lfm2ForCausalLM"],
    "layer_types": ["full_attention", "conv", "conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
}
LFM3 = {  # both layers with streams have gates
    "architectures": ["Lfm3ForCausalLM"],
    "head_dim": 8,
    "layer_types": ["conv", "conv", "sliding_attention", "full_attention"],
    "sliding_window": 3,
}
QWEN3_5 = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
}
GEMMA_4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "head_dim": 8,
    "global_head_dim": 16,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 4,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 6,
    "final_logit_softcapping": 5.0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "embeddings": {},
    "value rotation": {"value_rotation": 0.02},
    "eta rank": {"eta_rank": 3},
    "told the next token": {"next_token_rank": 3},
    "no adapters": {"adapter_rank": 0},
    "tuned base": {"base_rank": 2, "base_layers": 3},
    "tuned base, no adapters of its own": {"base_rank": 2, "base_layers": 2, "adapter_rank": 0},
    "three layers, one stream": {"num_msa_layers": 3, "num_streams": 1},
    "windows and two rotary embeddings": {"base": GEMMA},
    "convolutions": {"base": LFM},
    "convolutions, gates": {"base": LFM3},
    "convolutions and value rotation": {"base": LFM, "value_rotation": 0.02},
    "linear attention, gates of numbers": {"base": QWEN3_5},
    "linear attention on top": {"base": {**QWEN3_5, "layer_types": ["linear_attention"] * 4}, "value_rotation": 0.02},
    "shared keys of layers without streams": {"base": GEMMA_4},
    "shared keys of layers with streams": {"base": GEMMA_4, "num_msa_layers": 4},
    "shared keys of layers with and without streams": {"base": GEMMA_4, "num_msa_layers": 3, "value_rotation": 0.02},
    "shared keys and a tuned base": {"base": GEMMA_4, "base_rank": 2, "base_layers": 2},
    "shared keys of two layers, one layer with streams": {
        "base": {**GEMMA_4, "layer_types": ["sliding_attention", "full_attention"] * 2},
        "num_msa_layers": 1,
    },
    "a convolution of four rows on top": {"base": {**LFM, "layer_types": ["conv"] * 4, "conv_L_cache": 4}},
}
LENGTH = 9
AT = [2, 4, 8]


def variant(name: str, vocab: Tensor | None = None) -> StreamFused:
    settings = dict(VARIANTS[name])
    return tiny.fused(tiny.base(**settings.pop("base", {})), vocab, **settings)


def lower_of(model: StreamFused, ids: Tensor) -> Tensor:
    return model.frozen_states(ids)


class Oracle:
    """Eq. 1 to 3 for one sequence, row by row, head by head."""

    def __init__(self, model: StreamFused, ids: list[int]) -> None:
        self.model, self.ids = model, ids
        self.rotary = rotary_tables(model.base.config, len(ids) + 16)
        rows = list(model.base.embed_tokens(torch.tensor(ids)) * model.base.config.embedding_scale)
        self.below: list[list[Tensor]] = []  # main rows before each top layer
        self.projected: list[list[Any]] = []  # of the main rows in each layer
        per_layer = model.base.per_layer(torch.tensor(ids))
        for i, block in enumerate(model.base.blocks):
            if i >= model.num_lower_layers:
                self.below.append(rows)
            numbers = per_layer[i]
            rows = self.layer(block, rows, [None] * len(ids) if numbers is None else list(numbers))
        self.main = rows

    def project(self, block: Block, row: Tensor, position: int, adapt: Any = None) -> Any:
        """Query, key and value; the last two are None if they are those of another layer."""
        attention, y = block.mixer, normed(block.input_layernorm, row)
        if isinstance(attention, GatedDeltaNet):
            q, k, v = (
                getattr(attention, name)(y) + (0 if adapt is None else adapt.adapt(name, y))
                for name in ("q_proj", "k_proj", "v_proj")
            )
            return q, torch.cat([q, k, v]), torch.stack([attention.a_proj(y), attention.b_proj(y)])
        out, (cos, sin) = [], self.rotary[block.rotary]
        for name, heads in (("q_proj", 4), ("k_proj", 2), ("v_proj", 2)):
            if not hasattr(attention, name):
                out.append(None)
                continue
            flat = getattr(attention, name)(y)
            if adapt is not None:
                flat = flat + adapt.adapt(name, y)
            if block.convolves:
                out.append(flat)
                continue
            x = flat.view(heads, attention.head_dim)
            if attention.query_key_norm == "head" and name != "v_proj":
                x = (attention.q_norm if name == "q_proj" else attention.k_norm)(x)
            if attention.value_eps is not None and name == "v_proj":
                x = torch.stack([head / torch.sqrt(head @ head / len(head) + 1e-5) for head in x])
            out.append(x if name == "v_proj" else rotate(x, cos[position], sin[position]))
        return out[0], out[1], out[2]

    def attend(self, block: Block, query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Keys and values in the order of their positions, the row's own last; None where a row has none."""
        heads, window = [], block.window
        if block.recurs:
            return self.recur(block.linear_attn, keys, values)
        if block.convolves:
            taps = block.conv.taps.weight[:, 0].T.flip(0)  # the row's own first
            pairs = zip(reversed(keys), reversed(values), strict=True)
            return query * sum(tap * key * value for tap, (key, value) in zip(taps, pairs, strict=False))
        keys, values = (keys, values) if window is None else (keys[-window:], values[-window:])
        keys, values = ([row for row in rows if row is not None] for rows in (keys, values))
        for head in range(4):
            scores = torch.stack([query[head] @ key[head // 2] for key in keys]) / math.sqrt(query.shape[1])
            weights = torch.softmax(scores, 0)
            heads.append(sum(w * value[head // 2] for w, value in zip(weights, values, strict=True)))
        return torch.cat(heads)

    def recur(self, net: GatedDeltaNet, rows: list[Tensor], gates: list[Tensor]) -> Tensor:
        """Eq. 10 of Gated DeltaNet, a row of q, k and v and its gates a and b at a time."""
        sizes, states = net.sizes, [torch.zeros(6, 5)] * 4
        out: list[Tensor] = []
        for t, (a, b) in enumerate(gates):
            last = [torch.zeros_like(rows[0])] * 3 + rows[: t + 1]
            taps = zip(net.taps.weight[:, 0].T, last[-4:], strict=True)
            mixed = torch.stack([tap * row for tap, row in taps]).sum(0)
            q, k, v = torch.nn.functional.silu(mixed).split([sizes.keys, sizes.keys, sizes.values])
            out = []
            for head in range(4):
                own_q, own_k = (x.view(2, 6)[head // 2] for x in (q, k))
                own_q, own_k = (x / torch.sqrt(x @ x + 1e-6) for x in (own_q, own_k))
                decay = torch.exp(-net.A_log[head].exp() * torch.log1p(torch.exp(a[head] + net.dt_bias[head])))
                state = states[head] * decay
                change = (v.view(4, 5)[head] - own_k @ state) / (1 + torch.exp(-b[head]))
                states[head] = state + torch.outer(own_k, change)
                out.append(own_q @ states[head] / math.sqrt(6))
        return torch.cat(out)

    def finish(
        self, block: Block, row: Tensor, attended: Tensor, adapt: Any = None, numbers: Tensor | None = None
    ) -> Tensor:
        def through(layer: Any, name: str, x: Tensor) -> Tensor:
            return layer(x) if adapt is None else layer(x) + adapt.adapt(name, x)

        if block.recurs:
            gates = block.linear_attn.g_proj(normed(block.input_layernorm, row)).view(4, 5)
            heads = block.linear_attn.output_norm(attended.view(4, 5))
            attended = (heads * gates / (1 + torch.exp(-gates))).flatten()
        elif block.mixer.g_proj is not None:
            gates = block.mixer.g_proj(normed(block.input_layernorm, row))
            parts = attended.view(len(gates), -1)
            attended = torch.cat([part / (1 + torch.exp(-gate)) for part, gate in zip(parts, gates, strict=True)])
        row = row + normed(block.attention_output_norm, through(block.mixer.o_proj, "o_proj", attended))
        y = normed(block.post_attention_layernorm, row)
        gate = through(block.mlp.gate_proj, "gate_proj", y)
        share = torch.sigmoid(gate)
        if block.mlp.activation == "gelu_tanh":
            share = (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
        gated = gate * share * through(block.mlp.up_proj, "up_proj", y)
        row = row + normed(block.mlp_output_norm, through(block.mlp.down_proj, "down_proj", gated))
        if numbers is not None:
            gate = block.per_layer_gate(row)
            share = (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
            row = row + block.per_layer_output_norm(block.per_layer_proj(gate * share * numbers))
        return row if block.layer_scalar is None else row * block.layer_scalar

    def layer(self, block: Block, rows: list[Tensor], per_layer: list[Any]) -> list[Tensor]:
        self.projected.append([self.project(block, row, t) for t, row in enumerate(rows)])
        projected, source = self.projected[-1], self.projected[block.kv_source]
        out = []
        for t, row in enumerate(rows):
            keys, values = [p[1] for p in source[: t + 1]], [p[2] for p in source[: t + 1]]
            attended = self.attend(block, projected[t][0], keys, values)
            out.append(self.finish(block, row, attended, numbers=per_layer[t]))
        return out

    def rotate_value(self, value: Tensor, j: int) -> Tensor:
        """Section 1.3 of the paper: V e^(i eps n), a pair being (element, element half a head further)."""
        angle = self.model.streams_config.value_rotation * j
        half = value.shape[1] // 2
        pairs = torch.complex(value[:, :half], value[:, half:]) * torch.exp(torch.tensor(1j * angle))
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    def streams(self, t: int) -> list[Tensor]:
        """The final-norm rows of streams 1..G of token t."""
        config, model = self.model.streams_config, self.model
        steps = range(1, config.num_streams + 1)
        start = self.below[0][t]
        if config.eta_rank:
            start = start + model.eta(start)
        if config.next_token_rank and t + 1 < len(self.ids):
            start = start + model.next_token(model.base.embed_tokens.weight[self.ids[t + 1]])
        rows = [start if config.value_rotation else start + model.stream_embeddings[j - 1] for j in steps]
        of_streams: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # keys and values of layers that have some
        for i, block in enumerate(model.top_blocks):
            adapt = model.adapters[i] if config.adapter_rank else None
            main = self.projected[block.kv_source][: t + 1]
            own = [self.project(block, row, t + j, adapt) for j, row in zip(steps, rows, strict=True)]
            turn = (lambda value, _: value) if block.convolves or block.recurs else self.rotate_value
            if own[0][1] is not None:
                turned = [turn(p[2], j) for j, p in zip(steps, own, strict=True)]
                of_streams[block.kv_source] = [p[1] for p in own], turned
            own_keys, own_values = of_streams.get(block.kv_source, ([None] * len(own), [None] * len(own)))
            rows = [
                self.finish(
                    block,
                    row,
                    self.attend(
                        block,
                        own[j - 1][0],
                        [p[1] for p in main] + own_keys[:j],
                        [p[2] for p in main] + own_values[:j],
                    ),
                    adapt,
                )
                for j, row in zip(steps, rows, strict=True)
            ]
        return [model.base.norm(row) for row in rows]


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_streams_see_what_eq_2_says(name: str) -> None:
    model = variant(name)
    ids = torch.randint(1, tiny.VOCAB_SIZE, (2, LENGTH + 1))
    known = ids[:, [t + 1 for t in AT]]
    ids_read = ids[:, :LENGTH]
    found = model.stream_states(lower_of(model, ids_read), torch.tensor([AT, AT]), known=known, ids=ids_read)
    for b in range(2):
        oracle = Oracle(model.merged(), ids[b].tolist())
        main = torch.stack(oracle.main[:LENGTH])
        torch.testing.assert_close(found.main[b], model.base.norm(main), atol=1e-4, rtol=1e-4)
        for p, t in enumerate(AT):
            torch.testing.assert_close(found.streams[b, p], torch.stack(oracle.streams(t)), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_main_rows_do_not_depend_on_streams() -> None:
    base = tiny.base()
    ids = torch.randint(1, tiny.VOCAB_SIZE, (2, LENGTH))
    one, two = tiny.fused(base), tiny.fused(base, num_streams=2, eta_rank=2)
    rows = torch.arange(LENGTH).expand(2, -1)
    main = [model.stream_states(lower_of(model, ids), rows).main for model in (one, two)]
    assert torch.equal(main[0], main[1])
    torch.testing.assert_close(base.lm_head(main[0]), base(ids), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_streams_depend_on_nothing_after_their_token_nor_on_the_padding() -> None:
    model = tiny.fused(tiny.base())
    ids = torch.randint(1, tiny.VOCAB_SIZE, (1, LENGTH))
    lower = lower_of(model, ids)
    changed = lower.clone()
    changed[:, 5:] = 7.0
    at = torch.tensor([[1, 4]])
    expected = model.stream_states(lower, at).streams
    torch.testing.assert_close(model.stream_states(changed, at).streams, expected, atol=1e-5, rtol=1e-5)
    padded = torch.cat([lower, torch.zeros(1, 3, lower.shape[-1])], 1)
    torch.testing.assert_close(model.stream_states(padded, at).streams, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_streams_of_one_token_do_not_depend_on_which_others_carry_streams() -> None:
    model = tiny.fused(tiny.base())
    lower = lower_of(model, torch.randint(1, tiny.VOCAB_SIZE, (1, LENGTH)))
    alone, together = (
        model.stream_states(lower, torch.tensor([[4]])).streams,
        model.stream_states(lower, torch.tensor([AT])).streams,
    )
    torch.testing.assert_close(together[:, 1], alone[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_the_static_graphs_give_every_node_the_streams_of_its_path(name: str) -> None:
    vocab = torch.arange(1, tiny.VOCAB_SIZE, 2)
    model = variant(name, vocab)
    streams = model.streams_config.num_streams
    shapes = GraphShapes(capacity=40, prefill_rows=8, widths=((8, 8),), top_k=5)
    spec = ModelSpec(40, tiny.VOCAB_SIZE, streams, 5, 8, {"verify_8": (8, 8)})
    plain = model.base.config.delta is None and not model.base.config.per_layer_size
    form = Form() if plain else ReferenceForm()
    methods = build_methods(Weights(model.merged(), shapes, form))
    backend = reference_backend(methods, model, spec)
    prefix, tree, parents = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5], [-1, 0, 0, 1, 1, 4]
    paths = [[] for _ in tree]
    seen = np.zeros((6, 6), np.bool_)
    for node, parent in enumerate(parents):
        paths[node] = [*(paths[parent] if parent >= 0 else []), node]
        seen[node, paths[node]] = True
    backend.run("prefill", np.array(prefix), np.arange(5), np.tri(5, dtype=np.bool_))
    backend.commit(range(5))
    positions = np.array([5 + len(path) - 1 for path in paths])
    output = backend.run("verify_8", np.array(tree), positions, seen)
    assert output.kept.tolist() == list(range(6))
    for node, path in enumerate(paths):
        ids = torch.tensor([prefix + [tree[row] for row in path]])
        found = model.stream_states(lower_of(model, ids), torch.tensor([[ids.shape[1] - 1]]), ids=ids)
        expected, columns = torch.log_softmax(found.streams[0, 0] @ model.head_rows().T, -1).topk(5)
        assert output.stream_ids[node].tolist() == vocab[columns].tolist()
        torch.testing.assert_close(torch.tensor(output.stream_log_probs[node]), expected, atol=1e-4, rtol=1e-4)
        logits = model.base.logits(found.main[0, -1])
        torch.testing.assert_close(torch.tensor(output.logits[node]), logits, atol=1e-4, rtol=1e-4)


def test_a_fresh_adapter_changes_nothing_but_the_start_of_the_streams() -> None:
    torch.manual_seed(1)
    model = StreamFused(tiny.base(), StreamConfig(num_streams=2, num_msa_layers=2, eta_rank=2))
    with torch.no_grad():
        model.stream_embeddings.zero_()
    lower = lower_of(model, torch.randint(1, tiny.VOCAB_SIZE, (1, 4)))
    inserted = model.insert(lower)
    assert torch.equal(inserted[:, :, 0], lower)
    assert torch.equal(inserted[:, :, 1], lower)
    assert not model.stream_adapter(2)("q_proj", lower).any()


def test_more_stream_layers_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="--num-msa-layers is 5, the base model has 4 layers"):
        StreamFused(tiny.base(), StreamConfig(num_msa_layers=5))


def test_more_streams_than_the_window_of_a_layer_with_shared_keys_are_refused() -> None:
    with pytest.raises(
        ValueError, match="--num-streams is 4; it must be below 4, the sliding window of a layer that shares"
    ):
        tiny.fused(tiny.base(**GEMMA_4), num_streams=4)
    tiny.fused(tiny.base(**GEMMA_4), num_streams=4, num_msa_layers=4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_streams": 0}, "num_streams must be from 1 to 8"),
        ({"num_msa_layers": 0}, "at least 1"),
        ({"eta_rank": -1}, "eta_rank"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StreamConfig(**settings)


@pytest.mark.parametrize("settings", [{}, {"base_rank": 2, "base_layers": 3}], ids=["lossless", "shared"])
def test_texts_in_one_row_do_not_see_one_another(settings: dict[str, Any]) -> None:
    model = tiny.fused(tiny.base(), **settings).double()  # so that the order of additions does not matter
    texts = [torch.randint(1, tiny.VOCAB_SIZE, (1, length)) for length in (5, 9, 3)]
    places = [torch.tensor([some]) for some in ([1, 3], [4, 5, 8], [2])]
    alone = [model.stream_states(model.frozen_states(ids), at) for ids, at in zip(texts, places, strict=True)]
    segments = Segments([(ids.shape[1], at.shape[1]) for ids, at in zip(texts, places, strict=True)])
    frozen = torch.cat([model.frozen_states(ids) for ids in texts], 1)
    at = torch.cat([some + first for some, first in zip(places, (0, 5, 14), strict=True)], 1)
    packed = model.stream_states(frozen, at, segments)
    for name in ("streams", "main", "below"):
        expected = torch.cat([getattr(one, name) for one in alone], 1)
        torch.testing.assert_close(getattr(packed, name), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.main_states(frozen, segments), packed.main, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_pass_of_streams_alone_is_told_the_token_after_its_node() -> None:
    vocab = torch.arange(1, tiny.VOCAB_SIZE, 2)
    model = tiny.fused(tiny.base(), vocab, next_token_rank=3)
    shapes = GraphShapes(capacity=40, prefill_rows=8, widths=((4, 4),), stream_nodes=(0,), top_k=5, deferred=True)
    spec = ModelSpec(40, tiny.VOCAB_SIZE, 3, 5, 8, {"verify_4": (4, 4)}, stream_nodes={"verify_4": 0}, deferred=True)
    backend = reference_backend(build_methods(Weights(model, shapes)), model, spec)
    text = [3, 1, 4, 1, 5, 9]
    backend.run("prefill", np.array(text[:-1]), np.arange(5), np.tri(5, dtype=np.bool_))
    backend.commit(range(5))
    backend.run("decode", np.array(text[-1:]), np.array([5]), np.ones((1, 1), np.bool_))
    backend.commit([0])
    frozen, at = lower_of(model, torch.tensor([text])), torch.tensor([[5]])
    for token in (2, 6):
        found = model.stream_states(frozen, at, known=torch.tensor([[token]])).streams[0, 0]
        expected, columns = torch.log_softmax(found @ model.head_rows().T, -1).topk(5)
        output = backend.streams(0, token)
        assert output.stream_ids[0].tolist() == vocab[columns].tolist()
        torch.testing.assert_close(torch.tensor(output.stream_log_probs[0]), expected, atol=1e-4, rtol=1e-4)
    assert not torch.equal(found, model.stream_states(frozen, at).streams[0, 0])
