"""Heads: an alternative to streams that proposes tokens from the state after the last layer. The product has none.

The rest of the system treats heads as streams without layers of their own (`num_msa_layers` 0): the same training,
graphs, trees and loops. The base is frozen. A kind of heads is a class that its module adds to `config.HEADS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

if TYPE_CHECKING:
    from .streams import StreamFused


class Heads(nn.Module, ABC):
    """`num_heads` heads; head j proposes the token at t + 1 + j. `size` is StreamConfig.head_size.

    Attributes:
        LEAST_SIZE: the smallest `size`.
    """

    LEAST_SIZE: ClassVar[int]

    def __init__(self, hidden_size: int, num_heads: int, vocab_size: int, size: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, hidden: Tensor, normed: Tensor) -> Tensor:
        """States before and after the final norm [..., h] -> rows [..., G, h] before the final norm."""

    def with_own_scores(self, logits: Tensor, states: Tensor, stream: Tensor) -> Tensor:
        """Logits [n, S] of rows [n, h] from the base's vocabulary head, plus the contribution of the heads' own rows.

        `stream` int64 [n]: the head of each row, from 0.
        """
        return logits

    @staticmethod
    @abstractmethod
    def count(hidden_size: int, num_heads: int, vocab_size: int, size: int) -> tuple[int, int]:
        """Parameters, and how many numbers a bundle stores in the streams' format, without the vocabulary head that all
        streams share."""

    @staticmethod
    @abstractmethod
    def graph(form: Any, model: StreamFused, top_k: int) -> tuple[nn.Module, nn.Module]:
        """The parts of a bundle's graphs for these heads, made from an `export.layers.Form`.

        States [R, h] -> rows [R, G, h] before the final norm; and those rows -> the best `top_k` tokens of each.
        """
