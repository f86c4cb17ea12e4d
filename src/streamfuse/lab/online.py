"""Online speculative decoding (Liu et al., 2023, arXiv 2310.07177): the draft model learns from what was rejected.

While answers are written, each position where a draft was rejected is noted with the target's distribution there.
Every few answers the draft is distilled on them (forward Kullback-Leibler divergence, the paper's choice), and its
exported program gets the new weights by `lab/replaced.py`. The target never changes, so neither does any text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from streamfuse.export.executorch import native
from streamfuse.export.plan import GraphShapes
from streamfuse.export.schemes import Schemes
from streamfuse.export.weights import Weights
from streamfuse.lab.drafters.model import DraftModel
from streamfuse.lab.replaced import Replaceable
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import Backend, FloatArray, IntArray
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.reference.loop import Round

EVERY, LEARNING_RATE = 8, 1e-4  # answers between updates, and the constant rate: the paper's
_BEST = 32  # tokens of the target's distribution that are kept


@dataclass(frozen=True, slots=True)
class Rejected:
    """One answer and where drafts were rejected in it.

    Attributes:
        tokens: the whole text.
        at: places of the tokens after which the draft was wrong.
        ids: int64 [n, 32]: the target's likeliest next tokens there.
        probs: float32 [n, 32]: their probabilities, normalised.
    """

    tokens: list[int]
    at: list[int]
    ids: IntArray
    probs: FloatArray


@dataclass(slots=True)
class Watch:
    """Notes the rejected places of one answer; `observe` of a loop whose acceptor asks for logits."""

    at: list[int] = field(default_factory=list)
    logits: list[FloatArray] = field(default_factory=list)

    def __call__(self, one: Round) -> None:
        walked = len(one.walk.rows) - 1
        if one.delivered < len(one.walk.tokens) or walked == one.tree.depth:
            return  # the text ended there, or nothing was rejected
        assert one.output.logits is not None, "an acceptor that needs logits asks for them"
        self.at.append(one.length - 1)
        self.logits.append(np.array(one.output.logits[one.walk.last]))

    def rejected(self, tokens: Sequence[int]) -> Rejected:
        """What was noted, of the text as it is now."""
        scores = np.stack(self.logits) if self.logits else np.zeros((0, _BEST), np.float32)
        ids = np.argsort(-scores, axis=1, kind="stable")[:, :_BEST]
        best = np.take_along_axis(scores, ids, 1).astype(np.float64)
        weights = np.exp(best - best.max(axis=1, keepdims=True)) if len(best) else best
        probs = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
        return Rejected(list(tokens), self.at, ids.astype(np.int64), probs.astype(np.float32))


def packed(model: StreamFused) -> dict[str, Tensor]:
    """Weights of a merged model by name, as an export by default packs them for the kernels."""
    weights = Weights(model, GraphShapes(widths=((4, 4),), top_k=1), native.Form(Schemes()))
    return {name: tensor for name, tensor in weights.state_dict().items() if tensor.dtype == torch.uint8}


class OnlineDraft:
    """A draft model that is distilled while it drafts.

    Args:
        model: the draft in PyTorch, with the adapters that are trained (`base_adapters`), not merged.
        program: its exported file.
        folder: where programs with new weights are written; only the last one stays.
        every: answers between two updates.
        learning_rate: of AdamW, constant.
        steps: passes over what was noted, per update.
    """

    def __init__(
        self,
        model: StreamFused,
        program: Path,
        folder: Path,
        every: int = EVERY,
        learning_rate: float = LEARNING_RATE,
        steps: int = 1,
        open_backend: Callable[[Path], Backend] = ExecuTorchBackend,
    ) -> None:
        self.model, self.every, self.steps = model, every, steps
        self._program, self._folder, self._open = Replaceable(program, packed(model.merged())), folder, open_backend
        self.draft = DraftModel(open_backend(program))
        self._parameters = [p for name, p in model.named_parameters() if name.startswith("base_adapters.")]
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in self._parameters:
            parameter.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(self._parameters, lr=learning_rate, weight_decay=0.0)
        self._noted: deque[Rejected] = deque()
        self.updates, self.losses = 0, list[float]()

    def note(self, one: Rejected) -> None:
        """After each answer; every few of them the draft learns."""
        self._noted.append(one)
        if len(self._noted) >= self.every:
            self.update()

    def update(self) -> None:
        """Distil on what was noted, and draft with the new weights from now on."""
        texts = [one for one in self._noted if one.at]
        self._noted.clear()
        if not texts:
            return
        for _ in range(self.steps):
            count = sum(len(one.at) for one in texts)
            self._optimizer.zero_grad()
            total = 0.0
            for one in texts:  # gradients add up: one step for all of them
                loss = self._loss(one) / count
                loss.backward()
                total += float(loss.detach())
            self._optimizer.step()
            self.losses.append(total)
        self.updates += 1
        path = self._folder / f"draft-{self.updates}.pte"
        with torch.no_grad():
            self._program.write(path, packed(self.model.merged()))
        self.draft.use(self._open(path))
        (self._folder / f"draft-{self.updates - 1}.pte").unlink(missing_ok=True)

    def _loss(self, one: Rejected) -> Tensor:
        """Summed cross-entropy of the draft to the target's distributions: the divergence, but for a constant."""
        model, ids = self.model, torch.tensor([one.tokens])
        states = model.main_states(model.frozen_states(ids))[0][torch.tensor(one.at)]
        log_probs = torch.log_softmax(model.base.lm_head(states).float(), -1)
        return -(log_probs.gather(1, torch.from_numpy(one.ids)) * torch.from_numpy(one.probs)).sum()
