"""Streams that learn: their adapters and embeddings. The base, the parent term and the pruner stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.export.executorch import native
from streamfuse.export.schemes import Schemes
from streamfuse.export.weights import Insert
from streamfuse.model.streams import StreamAdapters, StreamFused
from streamfuse.research.online.notes import Noted

_EMBEDDINGS_FASTER = 10.0  # than the matrices, as in training
_SLOW = ("adapters.", "eta.")


class StreamsStudent:
    """The streams of a target whose base is frozen (lossless mode).

    Stream j of the token at place t learns the target's distribution of the token at t + 1 + j, once by itself and once
    with the parent term, as in training (`train/objective.py`); but at places only whose tree the text left, and of
    the distributions that the passes gave. A token outside the stream vocabulary teaches nothing.

    Args:
        model: with `adapters` of its own for stream rows.

    Raises:
        ValueError: the adapter tunes the base too, or has no adapters for streams.
    """

    def __init__(self, model: StreamFused) -> None:
        config = model.streams_config
        if config.base_rank or not config.adapter_rank or config.heads:
            raise ValueError("streams learn online with an adapter of lossless mode; this one is of another kind")
        self._model = model.requires_grad_(False)
        self._head = model.head_rows()
        self._slots = torch.full((model.base.config.vocab_size,), -1)
        self._slots[model.stream_vocab] = torch.arange(len(model.stream_vocab))
        self._right = model.parent.right_rows(self._head) if config.parent_rank else None  # [S, r]
        self._frozen = WeakKeyDictionary[Noted, Tensor]()  # as long as their notes are kept

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        own = list(self._model.named_parameters())
        slow = [parameter for name, parameter in own if name.startswith(_SLOW)]
        fast = [parameter for name, parameter in own if name == "stream_embeddings"]
        return [
            {"params": slow, "lr": learning_rate},
            *([{"params": fast, "lr": learning_rate * _EMBEDDINGS_FASTER}] if fast else []),
        ]

    def loss(self, one: Noted) -> tuple[Tensor, int]:
        """Over the streams of the token before each rejected tree's root."""
        tokens = torch.tensor(one.tokens)
        at = torch.tensor([rejection.root - 1 for rejection in one.rejections])
        steps = torch.arange(1, self._model.streams_config.num_streams + 1)
        places = at[:, None] + 1 + steps  # [P, G], of the tokens that the streams draft
        rows = (places - one.start).clamp(0, len(one.ids) - 1)
        known = (places < one.start + len(one.ids)) & (self._slots[tokens[places.clamp(max=len(tokens) - 1)]] >= 0)
        stream = (steps - 1).expand(known.shape)[known]
        slots = self._slots[torch.from_numpy(one.ids)[rows[known]]]  # [n, 32]
        probs = torch.from_numpy(one.probs)[rows[known]] * (slots >= 0)
        probs = probs / probs.sum(1, keepdim=True).clamp(min=1e-9)
        known_tokens = tokens[at + 1][None]
        found = self._model.stream_states(self._states(one), at[None], known=known_tokens, ids=tokens[None])
        states = found.streams[0][known]
        plain = self._model.stream_logits(states, stream, self._head).float()
        scores = [plain]
        if self._right is not None:
            parent = self._model.parent
            left = parent.left_rows(self._model.base.embed_tokens.weight[tokens[places[known] - 1]])
            scores.append(plain + (left * parent.gate[stream]) @ self._right.T)
        logs = torch.stack([F.log_softmax(each, -1) for each in scores]).mean(0)
        return -(logs.gather(1, slots.clamp(min=0)) * probs).sum(), len(stream)

    def packed(self) -> Mapping[str, Tensor]:
        """Its insertion of streams and its adapters, as an export for the kernels holds them."""
        parts: dict[str, nn.Module] = {"insert": Insert(native.Form(Schemes()), self._model)}
        for layer, own in enumerate(self._model.adapters):
            adapters = cast("StreamAdapters", own)
            for part, adapter in enumerate((native.opening_adapter(adapters), *native.closing_adapters(adapters))):
                parts[f"adapters.{layer}.{part}"] = adapter
        return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}

    def _states(self, one: Noted) -> Tensor:
        """Frozen states [1, T, h] of a text. They are the base's, so they are computed once."""
        if one not in self._frozen:
            with torch.no_grad():
                self._frozen[one] = self._model.frozen_states(torch.tensor([one.tokens]))
        return self._frozen[one]
