"""Muon for low-rank matrices beside AdamW: one schedule for both, and a state that is saved and restored.

Run: python -m pytest tests/train/test_train_optimizer.py
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from streamfuse.options import OptionError
from streamfuse.train.config import TrainConfig
from streamfuse.train.optimizer import make_optimizer


def parameters(seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"adapters.0.down": (4, 16), "eta.up": (16, 4), "parent.gate": (3, 4)}
    return {name: nn.Parameter(torch.randn(*shape, generator=generator)) for name, shape in shapes.items()}


def gradients(named: dict[str, nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for one in named.values():
        one.grad = torch.randn(one.shape, generator=generator)


def test_a_step_of_muon_moves_a_matrix_equally_in_all_its_directions() -> None:
    named = parameters()
    before = {name: one.detach().clone() for name, one in named.items()}
    optimizer = make_optimizer("muon", named.items(), matrix_rate=0.04, other_rate=1e-3)
    gradients(named, 1)
    optimizer.step()
    moved = named["adapters.0.down"].detach() - before["adapters.0.down"]
    singular = torch.linalg.svdvals(moved)
    assert singular.max() / singular.min() < 2  # of the gradient itself: about 3
    assert singular.mean() == pytest.approx(0.04, rel=0.3)
    moved = named["parent.gate"].detach() - before["parent.gate"]
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 1e-3))  # AdamW's first step


def test_a_schedule_changes_both_rates() -> None:
    named = parameters()
    optimizer = make_optimizer("muon", named.items(), matrix_rate=0.04, other_rate=1e-3)
    schedule = LambdaLR(optimizer, lambda step: 0.0 if step else 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 5e-4]
    gradients(named, 1)
    optimizer.step()
    schedule.step()
    before = {name: one.detach().clone() for name, one in named.items()}
    optimizer.step()
    assert all(torch.equal(one, before[name]) for name, one in named.items())
    optimizer.zero_grad()
    assert all(one.grad is None for one in named.values())


def test_a_restored_state_goes_on_with_the_same_steps() -> None:
    one, two = parameters(), parameters()
    first, second = (make_optimizer("muon", named.items(), 0.04, 1e-3) for named in (one, two))
    gradients(one, 1)
    first.step()
    with torch.no_grad():
        for name, value in one.items():
            two[name].copy_(value)
    second.load_state_dict(deepcopy(first.state_dict()))
    LambdaLR(second, lambda step: 0.25)
    LambdaLR(first, lambda step: 0.25)
    for named, optimizer in ((one, first), (two, second)):
        gradients(named, 2)
        optimizer.step()
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_trained_parameter_is_in_the_optimizer_once(name: str) -> None:
    named = parameters()
    named["adapters.1.frozen"] = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
    for some in (named, {"adapters.0.down": named["adapters.0.down"]}, {"parent.gate": named["parent.gate"]}):
        optimizer = make_optimizer(name, some.items(), 0.04, 1e-3)
        found = [id(one) for group in optimizer.param_groups for one in group["params"]]
        assert sorted(found) == sorted(id(one) for one in some.values() if one.requires_grad)


def test_the_default_learning_rate_is_that_of_the_optimizer() -> None:
    def config(**settings: object) -> TrainConfig:
        return TrainConfig(Path("m"), ("d",), Path("o"), Path("a"), **settings)  # type: ignore[arg-type]

    assert config().peak_learning_rate == 1e-3
    assert config(optimizer="muon").peak_learning_rate == 0.04
    assert config(optimizer="muon", learning_rate=0.01).peak_learning_rate == 0.01
    with pytest.raises(OptionError, match="optimizer must be one of adamw, muon, not sgd"):
        config(optimizer="sgd")
