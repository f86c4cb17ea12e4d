"""How the weights of each part are stored: formats of the kernels, and bits, groups and symmetry elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from streamfuse.options import OptionError

GROUP_SIZES = (32, 64, 128, 256)

Part = Literal["embedding", "attention", "mlp", "head", "streams"]
PARTS = get_args(Part)
DTYPE_BITS = {"float16": 16, "float32": 32}
# Bits of the layers' weights by the word of --quantize (docs/export.md); 0: floats.
BITS = {"none": 0, "q4_1": 4, "q8_0": 8, "8da4w": 4, "int4": 4, "int8": 8, "16a8w": 8, "16a4w": 4}
INTEGER_ACTIVATIONS = ("16a8w", "16a4w")  # with integer activations, whose ranges are calibrated


@dataclass(frozen=True, slots=True)
class Schemes:
    """The format of every part's weights for the kernels' operators; an embedding is always q8_0.

    Streams have 4 bits by default, and 8 beside 8-bit layers (`ExportConfig.grids`). Rounding their weights changes
    drafts, never the output, and memory bandwidth limits their pass.
    """

    attention: str = "q4_1"
    mlp: str = "q4_1"
    head: str = "q8_0"
    streams: str = "q4_1"

    def of(self, part: Part) -> str:
        return "q8_0" if part == "embedding" else cast("str", getattr(self, part))


@dataclass(frozen=True, slots=True)
class PartScheme:
    """How one part's weights are stored if the kernels' formats are not used.

    Attributes:
        bits: 4, 8: integers; 16, 32: floats.
        group_size: weights per scale along the input; None: one scale per output channel (or none, for floats).
        symmetric: w = d q; otherwise w = d (q - z) with an integer z per scale.
    """

    bits: int
    group_size: int | None
    symmetric: bool

    @property
    def name(self) -> str:
        """The `--scheme` syntax, for example int4:32:affine."""
        if self.bits >= 16:
            return f"float{self.bits}"
        sharing = "channel" if self.group_size is None else str(self.group_size)
        return f"int{self.bits}:{sharing}:{'symmetric' if self.symmetric else 'affine'}"


GROUP = 32  # weights that share a scale in GGUF files
Q4_1, Q8_0 = PartScheme(4, GROUP, symmetric=False), PartScheme(8, GROUP, symmetric=True)
GRIDS = {"q4_1": Q4_1, "q8_0": Q8_0}  # formats of GGUF files that the kernels support, by llama.cpp's names


_SYNTAX = "int4, int8 or float, then :GROUP or :channel, then :symmetric or :affine, for example mlp=int4:32:affine"


def parse_scheme(part: str, text: str, group_size: int, dtype: str) -> PartScheme:
    """Parse `--scheme PART=TEXT`; omitted fields of TEXT are as in `default_scheme`.

    Raises:
        OptionError: the text is not a scheme.
    """
    kind, *rest = text.split(":")
    if part not in PARTS or kind not in ("int4", "int8", "float") or (kind == "float" and rest):
        raise OptionError(f"--scheme must be PART=SCHEME with a part of {', '.join(PARTS)} and a scheme of {_SYNTAX}, "
                        f"not {part}={text}")  # fmt: skip
    scheme = _of_bits({"int4": 4, "int8": 8, "float": DTYPE_BITS[dtype]}[kind], group_size)
    size, symmetric = scheme.group_size, scheme.symmetric
    for word in rest:
        if word in ("symmetric", "affine"):
            symmetric = word == "symmetric"
        elif word == "channel":
            size = None
        elif word in map(str, GROUP_SIZES):
            size = int(word)
        else:
            sizes = ", ".join(map(str, GROUP_SIZES))
            raise OptionError(
                f"--scheme {part}={text}: {word} is not a group size ({sizes}), channel, symmetric or affine"
            )
    return PartScheme(scheme.bits, size, symmetric)


def default_scheme(part: Part, bits: int, group_size: int, q8_tables: bool) -> PartScheme:
    """The scheme of a part when quantizing to `bits`: tables and heads have at least 8 bits.

    `q8_tables`: 8-bit tables and heads use a GGUF's Q8_0, which is stored without change.
    """
    if part in ("attention", "mlp"):
        return _of_bits(bits, group_size)
    return PartScheme(8, 32, True) if bits <= 8 and q8_tables else _of_bits(max(bits, 8), group_size)


def _of_bits(bits: int, group_size: int) -> PartScheme:
    """4 bits need small groups with their own zero points; for 8 bits one scale per output is sufficient."""
    return PartScheme(bits, group_size, False) if bits == 4 else PartScheme(bits, None, True)
