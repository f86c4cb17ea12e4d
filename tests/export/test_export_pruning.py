"""The pruner of graphs whose delegate computes in float16: the root survives and comes first, and so do all ancestors.

Run: python -m pytest tests/export/test_export_pruning.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from streamfuse.export.config import ExportConfig
from streamfuse.export.pruning import Survivors
from streamfuse.export.resolve import resolve

ROWS, KEEP = 16, 8


def _vulkan() -> Any:
    pytest.importorskip("executorch.backends.vulkan")
    from streamfuse.export.executorch.vulkan import VulkanForm

    return VulkanForm(config("vulkan", dtype="float16"))


def _coreml() -> Any:
    pytest.importorskip("coremltools")
    from streamfuse.export.executorch.coreml import CoreMLForm

    return CoreMLForm(config("coreml", dtype="float16"))


def _openvino() -> Any:
    pytest.importorskip("openvino")
    from streamfuse.export.executorch.openvino import OpenvinoForm

    return OpenvinoForm(config("openvino", device="gpu"))


def _qnn() -> Any:
    from streamfuse.export.executorch.qnn_form import QnnForm

    return QnnForm(config("qnn"))


def config(backend: str, **changes: Any) -> ExportConfig:
    return resolve(ExportConfig("model", None, Path("bundle"), backend=backend, **changes))


class Edges(nn.Module):
    """Given probabilities [child, parent]."""

    def forward(self, x: Tensor, probability: Tensor) -> Tensor:
        return probability


def random_tree() -> tuple[Tensor, list[int]]:
    """ancestors bool [T, T] and the parent of each row; the root's is -1."""
    parents = [-1, *(int(torch.randint(row, ())) for row in range(1, ROWS))]
    ancestors = torch.eye(ROWS, dtype=torch.bool)
    for row, parent in enumerate(parents[1:], start=1):
        ancestors[row] |= ancestors[parent]
    return ancestors, parents


@pytest.mark.parametrize("form", [_vulkan, _coreml, _openvino, _qnn], ids=lambda form: form.__name__.strip("_"))
@pytest.mark.parametrize("spread", [1.0, 10.0, 30.0])
def test_improbable_edges_in_float16_drop_no_ancestor(form: Callable[[], Any], spread: float) -> None:
    """Where a probability is 0 in float16, its logarithm is no number."""
    survivors: Survivors = form().survivors(Edges(), ROWS, KEEP, False, 0.0).half()
    x = torch.zeros(ROWS, 4, dtype=torch.float16)
    for _ in range(100):
        ancestors, parents = random_tree()
        probability = torch.sigmoid(-spread * torch.rand(ROWS, ROWS)).half()
        kept = survivors(x, probability, ancestors)[0]
        assert kept is not None
        rows = kept.tolist()
        assert rows[0] == 0
        assert len(set(rows)) == KEEP
        assert all(parents[row] in rows[:place] for place, row in enumerate(rows) if row)
