"""Checkpoints whose weights are integers already: those are read whose numbers are on the grid of our 4-bit weights.

That is w = s (q - 8) with a float16 s per group, which is Q4_1 (w = d q + m) with d = s and m = -8 s: the exporter
finds these numbers again (export/grid.py), so nothing is quantized twice. Formats whose numbers are on no such grid
would lose more than their own quantization did, so they are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .fields import CheckpointError
from .shards import TAKE_UNQUANTIZED, TensorFacts

if TYPE_CHECKING:
    from torch import Tensor

Has: TypeAlias = Callable[[str], bool]  # whether a model has what the tensor of this name holds

_GROUP = 32  # weights with one scale on our grid
_REASONS = {
    "awq": "its zero points times its scales are no float16 numbers, so they are on no grid of ours",
    "bitsandbytes": "the levels of nf4 are unevenly spaced, and the scales of int8 are float32",
    "fp8": "the levels of an 8-bit float are unevenly spaced",
    "gguf": "`streamfuse pull` converts GGUF files themselves",
}


@dataclass(frozen=True, slots=True)
class Packed:
    """How a checkpoint stores its 4-bit matrices.

    Attributes:
        method: gptq or compressed-tensors.
        group_size: inputs with one scale; 0: all inputs of an output.
        zero: the stored number of zero points, in every nibble of `qzeros`; they must be 8 once read.
    """

    method: str
    group_size: int
    zero: int = 8

    @property
    def matrix(self) -> str:
        """The last word of the names of packed matrices."""
        return "qweight" if self.method == "gptq" else "weight_packed"

    @property
    def beside(self) -> tuple[str, ...]:
        """The last words of the names of the tensors that go with a packed matrix."""
        return ("scales", "qzeros", "g_idx") if self.method == "gptq" else ("weight_scale", "weight_shape")

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape [N, K] of a matrix with this packed shape: eight numbers in an int32, along the inputs."""
        first, second = stored
        return (second, 8 * first) if self.method == "gptq" else (first, 8 * second)


def packed_of(config: dict[str, Any], source: str) -> Packed | None:
    """The format of a `config.json`'s weights; None: floats.

    Raises:
        CheckpointError: a format that is not read, with the reason.
    """
    found = config.get("quantization_config")
    if not found:
        return None
    settings = found if isinstance(found, dict) else {}
    method = settings.get("quant_method")
    if method == "gptq":
        problem = _gptq_problem(settings)
        zero = 8 if settings.get("checkpoint_format") == "gptq_v2" else 7  # older files store one less
        packed = Packed("gptq", max(0, _integer(settings.get("group_size", 128))), zero)
    elif method == "compressed-tensors":
        problem, size = _compressed_problem(settings)
        packed = Packed("compressed-tensors", size)
    else:
        problem, packed = _REASONS.get(str(method), "this format is not known"), Packed("", 0)
    if problem is None and packed.group_size % _GROUP:
        problem = f"its groups of {packed.group_size} are no multiple of {_GROUP}"
    if problem is None:
        return packed
    raise CheckpointError(
        f"{source}: quantization_config: the weights are quantized ({method or 'no quant_method'}), which is not "
        f"supported here: {problem}; {TAKE_UNQUANTIZED}, and choose the bundle's own format with "
        "`streamfuse export --quantize`"
    )


def _integer(value: Any) -> int:
    """A group size. What is no integer becomes 1, which is refused: it is no multiple of our groups."""
    return value if type(value) is int else 1


def _gptq_problem(settings: dict[str, Any]) -> str | None:
    for name, wanted in (("bits", 4), ("sym", True), ("desc_act", False)):
        if (value := settings.get(name)) != wanted:
            return f"{name} is {value!r:.40}, and only {wanted!r} is on our grid"
    return None


def _compressed_problem(settings: dict[str, Any]) -> tuple[str | None, int]:
    kind, groups = settings.get("format"), settings.get("config_groups")
    if kind != "pack-quantized":
        return f"format {kind!r:.40} is not on our grid (only 'pack-quantized' with symmetric int4 is)", 0
    every = list(groups.values()) if isinstance(groups, dict) else []
    weights = [group.get("weights") for group in every if isinstance(group, dict)]
    if len(weights) != 1 or not isinstance(weights[0], dict):
        return "config_groups must be one group with weights", 0
    wanted = {"num_bits": 4, "type": "int", "symmetric": True}
    for name, value in wanted.items():
        if weights[0].get(name) != value:
            return f"{name} is {weights[0].get(name)!r:.40}, and only {value!r} is on our grid", 0
    if weights[0].get("actorder") in ("group", True):
        return "actorder 'group' has groups of inputs that are not next to each other", 0
    return None, _integer(weights[0].get("group_size") or 0)


def shapes_of(headers: dict[str, TensorFacts], packed: Packed | None, has: Has) -> dict[str, TensorFacts]:
    """The tensors of a checkpoint as they are once decoded."""
    if packed is None:
        return headers
    found = {}
    for name, facts in headers.items():
        owner, _, word = name.rpartition(".")
        if word == packed.matrix and len(facts.shape) == 2:
            found[f"{owner}.weight"] = TensorFacts(facts.path, "F16", packed.shape(facts.shape))
        elif f"{owner}.{packed.matrix}" not in headers or not (word in packed.beside or _is_spare(name, has)):
            found[name] = facts
    return found


def _is_spare(name: str, has: Has) -> bool:
    """Whether it is a bias that the model does not have: some tools store zeros as one beside each packed matrix."""
    return name.endswith(".bias") and not has(name)


def decoded(tensors: dict[str, Tensor], packed: Packed, source: str, has: Has) -> dict[str, Tensor]:
    """Packed matrices as float32 [N, K]; other tensors as they are, but for biases that the model does not have.

    Raises:
        CheckpointError: a tensor is missing or does not fit, its numbers are not on the grid, or such a bias is not
            zero.
    """
    found = {}
    for name, tensor in tensors.items():
        owner, _, word = name.rpartition(".")
        if word == packed.matrix:
            try:
                found[f"{owner}.weight"] = _matrix(tensors, owner, packed)
            except (KeyError, ValueError, RuntimeError) as error:
                raise CheckpointError(f"{source}: {name}: not readable as {packed.method} ({error})") from None
        elif f"{owner}.{packed.matrix}" not in tensors:
            found[name] = tensor
        elif _is_spare(name, has):
            if bool(tensor.any()):
                problem = f"is not zero, but the model has no such bias; {TAKE_UNQUANTIZED}"
                raise CheckpointError(f"{source}: {name}: {problem}")
        elif word not in packed.beside:
            found[name] = tensor
    return found


def _matrix(tensors: dict[str, Tensor], owner: str, packed: Packed) -> Tensor:
    stored = tensors[f"{owner}.{packed.matrix}"]
    if packed.method == "gptq":
        q, scales = _nibbles(stored.T), tensors[f"{owner}.scales"].T
        _check_order(tensors.get(f"{owner}.g_idx"), packed.group_size)
        zeros = _nibbles(tensors[f"{owner}.qzeros"])
        if bool((zeros != packed.zero).any()):
            raise ValueError(f"a zero point is not 8, although sym is true; {TAKE_UNQUANTIZED}")
    else:
        q, scales = _nibbles(stored), tensors[f"{owner}.weight_scale"]
    half = scales.half()
    if bool((half.float() != scales.float()).any()):
        raise ValueError(f"a scale is no float16 number; {TAKE_UNQUANTIZED}")
    groups = (q - 8).float().unflatten(1, (half.shape[1], -1))
    return (groups * half.float().unsqueeze(2)).flatten(1)


def _nibbles(rows: Tensor) -> Tensor:
    """int32 [N, K / 8] -> int32 [N, K], the lowest four bits first."""
    shifts = rows.new_tensor(range(0, 32, 4))
    return (rows.unsqueeze(2) >> shifts & 15).flatten(1)


def _check_order(group_of: Tensor | None, group_size: int) -> None:
    if group_of is None or not group_size:
        return
    in_order = group_of.new_tensor(range(len(group_of))) // group_size
    if bool((group_of != in_order).any()):
        raise ValueError(f"its groups of inputs are not next to each other (g_idx); {TAKE_UNQUANTIZED}")
