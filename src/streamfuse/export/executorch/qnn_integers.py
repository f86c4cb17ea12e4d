"""Products of rows in 16-bit integers: how far their inputs and outputs go is seen while the model answers questions.

Only products are in integers. What lies between them (the sum of the layers, norms, attention) stays in float16: there
a few numbers are thousands of times the others, and one scale for all would leave the others a few bits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.transformer import RMSNorm

from ..schemes import PartScheme
from . import qnn_form
from .decomposed import ops
from .qnn_convert import convert
from .qnn_form import Int8, QnnForm

_MOST = (1 << 16) - 1
_ROOM = 0.125  # beyond what was seen, on either side: other text goes further, and this costs a third of a bit
_COARSE_DB = 50.0  # signal to rounding noise below which a product keeps its rows in floats; int8 weights have 40


class Norm(qnn_form.Norm):
    """Its weights are a product of their own: of 9 to 16 rows, the compiler of QAIRT 2.49 joins a norm with weights and
    the Quantize after it to something that gives noughts for half of them."""

    ones: Tensor

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__(norm)
        self.register_buffer("ones", torch.ones_like(norm.weight))

    def rows(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[1],), self.ones, self.epsilon) * self.weight


class Range:
    """What was seen of a tensor [R, K], and its encoding: x = scale (q - zero), q from 0 to 65535."""

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self.powers: list[Tensor] = []  # mean squares of rows

    def see(self, x: Tensor) -> None:
        low, high = torch.aminmax(x)
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self.powers.append(x.float().square().mean(1))

    @property
    def scale(self) -> float:
        return max((self.high - self.low) * (1 + 2 * _ROOM), 1e-6) / _MOST

    @property
    def zero(self) -> int:
        room = _ROOM * (self.high - self.low)
        low = self.low - room if self.low < 0 else 0.0
        return min(round(-low / self.scale), _MOST)

    def snr_db(self) -> float:
        """Of the median row against the noise of rounding; rows far beyond the others do not raise it."""
        power = float(torch.cat(self.powers).median())
        return 10 * math.log10(max(power, 1e-30) / (self.scale**2 / 12))

    def rounded(self, x: Tensor) -> Tensor:
        encoding = self.scale, self.zero, 0, _MOST, torch.int32
        found: Tensor = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *encoding), *encoding)
        return found


class Integers(Int8):
    """x [R, K] -> [R, N], in 16-bit integers, with weights in 8 or 4 bits and one scale per output.

    It watches what it is given until `settle` is called. All methods share the module, so that a row has the same
    encodings in `decode` as in `verify_T`.
    """

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__(linear, bits)
        self.inputs, self.outputs = Range(), Range()
        self.floats = False
        self.watched: Tensor | None = self.dequantized(torch.float32)  # the weights until `settle`

    @property
    def seen(self) -> bool:
        return bool(self.inputs.powers)

    def settle(self) -> None:
        """From now on in integers; with rows in float16 where one scale is too coarse for most of them."""
        self.watched, self.floats = None, min(self.inputs.snr_db(), self.outputs.snr_db()) < _COARSE_DB
        self.most = 127 if self.floats else self.most  # the processor has no product of floats and 4 bits
        self.inputs.powers.clear()
        self.outputs.powers.clear()

    def forward(self, x: Tensor) -> Tensor:
        if self.floats:
            return super().forward(x)
        if self.watched is not None:
            y = F.linear(x, self.watched)
            self.inputs.see(x)
            self.outputs.see(y)
        else:
            rows = self.inputs.rounded(convert(x, torch.float32))
            y = convert(self.outputs.rounded(F.linear(rows, self.dequantized(torch.float32))), x.dtype)
        return y if self.bias is None else y + self.bias


class IntegerForm(QnnForm):
    """float16 but for the products. Adapters and the pruner stay floats: they are small."""

    NORM = Norm

    def integers(self, linear: nn.Linear, scheme: PartScheme) -> nn.Module:
        return Integers(linear, scheme.bits)
