"""The optimizers of a training run: AdamW, or Muon for the low-rank matrices with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_MATRICES = ("adapters.", "base_adapters.", "eta.", "next_token.", "heads.")  # weights of linear maps of hidden states


def adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """AdamW without weight decay, as all runs use it."""
    return torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.99))


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for matrices and AdamW for other parameters, as one optimizer with two parameter groups.

    Muon orthogonalizes the momentum of each matrix by Newton-Schulz iterations (Jordan et al., 2024,
    https://kellerjordan.github.io/posts/muon), so its singular directions all get steps of similar size. At large
    ranks, where AdamW's steps follow a few strong directions, the loss falls faster (LOG.md, "small streams, trained on
    a GPU").

    Args:
        matrices, others: parameters; those of `matrices` have two dimensions.
        matrix_rate, other_rate: peak learning rates; a scheduler changes both by the same factor.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        matrix_rate: float,
        other_rate: float,
    ) -> None:
        self._muon = torch.optim.Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.0)
        self._adamw = adamw([{"params": list(others), "lr": other_rate}])
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})
        self.param_groups = [*self._muon.param_groups, *self._adamw.param_groups]  # shared: schedulers change these

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        self._muon.step()
        self._adamw.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self._muon.state_dict(), "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._muon.load_state_dict(state_dict["muon"])
        self._adamw.load_state_dict(state_dict["adamw"])
        self.param_groups = [*self._muon.param_groups, *self._adamw.param_groups]


def make_optimizer(
    name: str, parameters: Iterable[tuple[str, nn.Parameter]], matrix_rate: float, other_rate: float
) -> torch.optim.Optimizer:
    """The optimizer `name` ("adamw", "muon") of all parameters that are trained.

    Args:
        matrix_rate: peak learning rate of the weights of linear maps.
        other_rate: that of embeddings, parent term and pruner, which is higher with AdamW.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for path, parameter in parameters:
        if parameter.requires_grad:
            is_matrix = path.startswith(_MATRICES) and (name != "muon" or parameter.ndim == 2)
            (matrices if is_matrix else others).append(parameter)
    if name == "muon" and matrices and others:
        return MuonWithAdamW(matrices, others, matrix_rate, other_rate)
    if name == "muon" and matrices:
        return torch.optim.Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.0)
    rates = ((matrices, matrix_rate), (others, other_rate))
    return adamw([{"params": some, "lr": rate} for some, rate in rates if some])
