"""A draft model that learns: the low-rank adapters of its layers, merged into its weights when it is packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from streamfuse.export.config import GraphShapes
from streamfuse.export.executorch import native
from streamfuse.export.schemes import Schemes
from streamfuse.export.weights import Weights
from streamfuse.model.streams import StreamFused
from streamfuse.research.online.notes import Noted


class DraftModelStudent:
    """A draft model whose exported program has its adapters merged.

    Args:
        model: the draft in PyTorch, with the adapters that learn (`base_adapters`), not merged.
    """

    def __init__(self, model: StreamFused) -> None:
        self._model = model.requires_grad_(False)

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self._model.base_adapters.parameters()), "lr": learning_rate}]

    def loss(self, one: Noted) -> tuple[Tensor, int]:
        """Over the places after which a draft was wrong."""
        places = torch.tensor([rejection.last for rejection in one.rejections])
        ids = torch.tensor([one.tokens])
        states = self._model.main_states(self._model.frozen_states(ids), ids=ids)[0][places]
        log_probs = torch.log_softmax(self._model.base.logits(states).float(), -1)
        rows = places + 1 - one.start
        drafted, probs = torch.from_numpy(one.ids)[rows], torch.from_numpy(one.probs)[rows]
        return -(log_probs.gather(1, drafted) * probs).sum(), len(places)

    def packed(self) -> Mapping[str, Tensor]:
        """Its merged weights, as an export by default packs them for the kernels."""
        form = native.Form(Schemes())
        weights = Weights(self._model.merged(), GraphShapes(widths=((4, 4),), top_k=1), form)
        return {name: tensor for name, tensor in weights.state_dict().items() if tensor.dtype == torch.uint8}
