"""Products with 16-bit integer rows; the ranges of their inputs and outputs are measured while the model answers
questions.

Only products use integers. Everything between them (residual sums, norms, attention) stays float16, because a few of
its values are thousands of times larger than the others, and a common scale would leave those only a few bits.
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
_ROOM = 0.125  # margin on either side of the measured range, for other text; costs a third of a bit
_COARSE_DB = 50.0  # SNR below which a product keeps float rows; int8 weights have 40 dB


class Norm(qnn_form.Norm):
    """A norm whose weights are a separate product. For 9 to 16 rows, the compiler of QAIRT 2.49 fuses a norm with
    weights and the following Quantize into an operator that outputs zeros for half of the rows."""

    ones: Tensor

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__(norm)
        self.register_buffer("ones", torch.ones_like(norm.weight))

    def rows(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[1],), self.ones, self.epsilon) * self.weight


class Range:
    """The measured range of a tensor [R, K], and its encoding: x = scale (q - zero), q from 0 to 65535."""

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
        """SNR of the median row with this encoding's rounding noise; a few much larger rows do not raise it."""
        power = float(torch.cat(self.powers).median())
        return 10 * math.log10(max(power, 1e-30) / (self.scale**2 / 12))

    def rounded(self, x: Tensor) -> Tensor:
        encoding = self.scale, self.zero, 0, _MOST, torch.int32
        found: Tensor = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *encoding), *encoding)
        return found


class Integers(Int8):
    """x [R, K] -> [R, N] in 16-bit integers, with 8-bit or 4-bit weights and one scale per output.

    Records the range of its inputs and outputs until `settle` is called. All methods share the module, so a row has the
    same encodings in `decode` as in `verify_T`.
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
        """Switch to integers; rows stay float16 if one scale is too coarse for most of them."""
        self.watched, self.floats = None, min(self.inputs.snr_db(), self.outputs.snr_db()) < _COARSE_DB
        self.most = 127 if self.floats else self.most  # the processor has no product of float rows and 4-bit weights
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
    """float16 except for the products. Adapters and the pruner stay floats: they are small."""

    NORM = Norm

    def integers(self, linear: nn.Linear, scheme: PartScheme) -> nn.Module:
        return Integers(linear, scheme.bits)
