"""A decoder as small as can be, in the plain and in the Neural Engine's layout, for tests of Core ML packages.

Both hold the same weights and follow docs/contracts.md, section 2, with an additive mask: caches are inputs, new rows
are outputs, attention runs over two segments. Heads are grouped, rotary positions are looked up.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, CAPACITY, LAYERS, TOP_K = 48, 64, 4, 2, 16, 96, 24, 2, 3
NO_ENTRY = -1e4  # finite: the Neural Engine makes NaN of infinities


def _rms(x: torch.Tensor, weight: torch.Tensor, axis: int = -1) -> torch.Tensor:
    shape = [1] * x.ndim
    shape[axis] = -1
    return x * torch.rsqrt(x.square().mean(axis, keepdim=True) + 1e-5) * weight.reshape(shape)


def _turned(x: torch.Tensor, axis: int = -1) -> torch.Tensor:
    left, right = x.chunk(2, axis)
    return torch.cat([-right, left], axis)


class Decoder(torch.nn.Module):
    """forward(ids [R], positions [R], mask [R, C + R], keys and values [C, Hkv, D] per layer) -> as in the contract."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, HIDDEN)
        sizes = {"q": (HIDDEN, HEADS), "k": (HIDDEN, KV_HEADS), "v": (HIDDEN, KV_HEADS)}
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    **{name: torch.nn.Linear(n, heads * HEAD_DIM, bias=False) for name, (n, heads) in sizes.items()},
                    "o": torch.nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False),
                    "gate": torch.nn.Linear(HIDDEN, INNER, bias=False),
                    "up": torch.nn.Linear(HIDDEN, INNER, bias=False),
                    "down": torch.nn.Linear(INNER, HIDDEN, bias=False),
                }
            )
            for _ in range(LAYERS)
        )
        self.norms = torch.nn.Parameter(0.5 + torch.rand(2 * LAYERS + 1, HIDDEN))
        angles = torch.arange(CAPACITY + 8)[:, None] / 100 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rows, x, new = len(ids), self.embedding(ids), []
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        for index, layer in enumerate(self.layers):
            y = _rms(x, self.norms[2 * index])
            query, key, value = (layer[name](y).view(rows, -1, HEAD_DIM) for name in "qkv")
            query, key = (part * cos + _turned(part) * sin for part in (query, key))
            keys, values = (
                torch.cat(parts).repeat_interleave(HEADS // KV_HEADS, 1)
                for parts in ((caches[2 * index], key), (caches[2 * index + 1], value))
            )
            scores = torch.einsum("qhd,khd->hqk", query, keys) * HEAD_DIM**-0.5 + mask
            attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
            x = x + layer["o"](attended.reshape(rows, -1))
            y = _rms(x, self.norms[2 * index + 1])
            x = x + layer["down"](F.silu(layer["gate"](y)) * layer["up"](y))
            new += [key, value]
        logits = _rms(x, self.norms[-1]) @ self.embedding.weight.T
        return self._answers(logits, new)

    @staticmethod
    def _answers(logits: torch.Tensor, new: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        best, ids = logits.topk(TOP_K)
        return logits, ids.int(), best - logits.logsumexp(-1, keepdim=True), *new


class ChannelsFirst(Decoder):
    """The same decoder in the Neural Engine's layout: x [1, channels, 1, R], 1x1 convolutions, one head at a time.

    The mask lies transposed [1, C + R, 1, R]; cos and sin [1, D, 1, R] are inputs; caches are [1, Hkv * D, 1, C].
    """

    def forward(  # type: ignore[override]
        self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x, new = self.embedding(ids).T[None, :, None], []
        for index, layer in enumerate(self.layers):
            y = _rms(x, self.norms[2 * index], 1)
            query, key, value = (self._conv(y, layer[name]) for name in "qkv")
            queries, new_keys = (
                [part * cos + _turned(part, 1) * sin for part in whole.split(HEAD_DIM, 1)] for whole in (query, key)
            )
            key = torch.cat(new_keys, 1)
            keys = torch.cat([caches[2 * index], key], -1).split(HEAD_DIM, 1)
            values = torch.cat([caches[2 * index + 1], value], -1).split(HEAD_DIM, 1)
            attended = []
            for head, one in enumerate(queries):
                at = head // (HEADS // KV_HEADS)
                scores = torch.einsum("bchq,bkhc->bkhq", one, keys[at].transpose(1, 3)) * HEAD_DIM**-0.5 + mask
                attended.append(torch.einsum("bkhq,bchk->bchq", scores.softmax(1), values[at]))
            x = x + self._conv(torch.cat(attended, 1), layer["o"])
            y = _rms(x, self.norms[2 * index + 1], 1)
            x = x + self._conv(F.silu(self._conv(y, layer["gate"])) * self._conv(y, layer["up"]), layer["down"])
            new += [key, value]
        halves = self.embedding.weight[..., None, None].split(VOCAB // 2)  # wide heads are split for the Neural Engine
        y = _rms(x, self.norms[-1], 1)
        logits = torch.cat([F.conv2d(y, half) for half in halves], 1)
        return self._answers(logits[0, :, 0].T, new)

    @staticmethod
    def _conv(x: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
        return F.conv2d(x, linear.weight[..., None, None])


def example(rows: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Inputs of the plain decoder: `length` cached positions, a chain of `rows` new ones with one branch."""
    mask = torch.full((rows, CAPACITY + rows), NO_ENTRY)
    mask[:, :length] = 0
    mask[:, CAPACITY:] = torch.where(torch.ones(rows, rows).tril() > 0, 0.0, NO_ENTRY)
    if rows > 2:
        mask[rows - 1, CAPACITY + rows - 2] = NO_ENTRY  # the last node is a sibling of the one before
    ids = torch.randint(0, VOCAB, (rows,), generator=generator, dtype=torch.int32)
    positions = length + (mask[:, CAPACITY:] == 0).sum(1).int() - 1
    caches = [torch.randn(CAPACITY, KV_HEADS, HEAD_DIM, generator=generator) for _ in range(2 * LAYERS)]
    return ids, positions, mask, *caches


def channels_first(model: Decoder, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same inputs for the Neural Engine's layout."""
    ids, positions, mask, *caches = inputs
    given = (*(table[positions] for table in (model.cos, model.sin)), mask, *(x.flatten(1) for x in caches))
    return ids, *(x.T.flatten().view(1, x.shape[1], 1, x.shape[0]) for x in given)
