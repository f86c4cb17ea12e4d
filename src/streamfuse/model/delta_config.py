"""The sizes of layers with linear attention (delta_rule.py). Does not import PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

GATE_STRIDE = 32  # numbers of a cached row for each gate: itself and zeros, so that it has an int8 scale of its own
MOST_TAPS = 16  # as in kernels/ops/gated_delta_rule.h
# The most rows of a pass (--prefill-len). The next pass reads those that were committed again, to update a state.
PASS_ROWS = 128


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    """Sizes of a model's layers with linear attention; `taps` are those of the convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def keys(self) -> int:
        """Numbers of q in a row; k has as many."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Numbers of v in a row."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.keys + self.values

    @property
    def state_size(self) -> int:
        """Numbers of a layer's state: the channels of the last taps - 1 rows, and a matrix for each value head."""
        return (self.taps - 1) * self.channels + self.value_heads * self.key_dim * self.value_dim

    @property
    def row_size(self) -> int:
        """Numbers of a cached row: the gates, each with `GATE_STRIDE`, and the channels."""
        return 2 * GATE_STRIDE * self.value_heads + self.channels

    def cached_heads(self, head_dim: int) -> int:
        """Heads of `head_dim` in each of the two caches of a layer, which have half of a row each."""
        return -(-self.row_size // (2 * head_dim))
