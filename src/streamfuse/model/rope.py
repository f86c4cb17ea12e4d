"""Rotary position embedding: the settings of a `config.json`, read as in transformers, and the resulting frequencies.

The formulas are those of transformers, modeling_rope_utils.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .fields import CheckpointError, CheckpointWarning, Fields

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Frequencies = npt.NDArray[np.float64]

_THETA = 10000.0
_KINDS = ("default", "linear", "llama3", "yarn", "longrope", "proportional")
_BETA_FAST, _BETA_SLOW = 32.0, 1.0  # defaults of YaRN
# Queries are multiplied by 1 + beta log(1 + floor(position / length of the training)), which is 1 up to that length.
_QUERY_SCALING = "llama_4_scaling_beta"


@dataclass(frozen=True, slots=True)
class Rotary:
    """One rotary embedding of a model.

    Attributes:
        theta: the base of the frequencies.
        scaling: as `rope_of` gives it; None: no scaling.
        size: how many numbers of each head are rotated, an even number; 0: none, the layers have no positions.
        frequency_dim: d in the frequencies theta ** (-2i / d): `size`, or head_dim (`proportional`). Unless a
            checkpoint interleaves pairs, elements i and i + d / 2 are rotated together.
    """

    theta: float
    scaling: dict[str, Any] | None
    size: int
    frequency_dim: int


def rotary_of(
    config: dict[str, Any], longest: int, head_dim: int, source: str, theta: float = _THETA, partial: bool = False
) -> Rotary:
    """`rope_of`, with the share of a head that is rotated; `partial` says whether it may be less than 1."""
    base, scaling = rope_of(config, longest, source, theta)
    name = _settings_of(config)
    rope = config.get(name) or {}
    stated = (settings.get("partial_rotary_factor") for settings in (rope, config))
    share = next((found for found in stated if found is not None), 1.0)
    proportional = _kind_of(rope) == "proportional"
    if share != 1.0 and not (partial or proportional):
        raise CheckpointError(f"{source}: {name}: partial_rotary_factor {share!r:.40} is not supported (only 1.0 is)")
    size = int(head_dim * share) if isinstance(share, (int, float)) and 0 <= share <= 1 else -1
    if proportional and size >= 0:  # it may also rotate nothing
        size -= size % 2
    if size < 0:
        raise CheckpointError(f"{source}: partial_rotary_factor must be a number from 0 to 1, not {share!r:.40}")
    if size % 2 or (not size and not proportional):
        raise CheckpointError(
            f"{source}: partial_rotary_factor {share!r:.40} rotates {size} of {head_dim} dimensions; the number must "
            "be even and above 0"
        )
    if size == 0:
        return Rotary(base, None, 0, 0)
    if scaling is not None and len(scaling.get("short_factor", range(size // 2))) != size // 2:
        raise CheckpointError(f"{source}: {name}: short_factor must have {size // 2} numbers")
    return Rotary(base, scaling, size, head_dim if proportional else size)


def with_ntk_alpha(config: dict[str, Any], head_dim: int, source: str, theta: float) -> dict[str, Any]:
    """Hunyuan's `dynamic` scaling with `alpha` (NTK) only changes the base, to theta * alpha ** (d / (d - 2)), where d
    is head_dim. Returns settings with that base and no scaling."""
    name = _settings_of(config)
    rope = config.get(name)
    if not isinstance(rope, dict) or _kind_of(rope) != "dynamic" or not rope.get("alpha"):
        return config
    if head_dim <= 2:
        raise CheckpointError(f"{source}: {name}: alpha needs a head_dim above 2, not {head_dim}")
    base = Fields({"rope_theta": rope.get("rope_theta") or config.get("rope_theta")}, source)
    alpha = Fields(rope, f"{source}: {name}").number("alpha")
    scaled = base.number("rope_theta", theta) * alpha ** (head_dim / (head_dim - 2))
    return {**config, name: {"rope_type": "default", "rope_theta": scaled}}


def local_and_global(
    config: dict[str, Any], longest: int, head_dim: int, source: str, theta: float, local_theta: float
) -> dict[str, Rotary]:
    """The rotary embeddings of Gemma 3 and OLMo 3: layers with a sliding window have their own base.

    As in transformers, `rope_scaling` applies to layers with full attention.
    """
    nested = config.get("rope_parameters") or {}
    if not isinstance(nested, dict) or nested.keys() - {"full_attention", "sliding_attention"}:
        raise CheckpointError(f"{source}: rope_parameters must have settings per layer type, not {nested!r:.80}")
    others = {name: value for name, value in config.items() if name not in ("rope_parameters", "rope_scaling")}
    full = {**(nested.get("full_attention") or {}), **(config.get("rope_scaling") or {})}
    local = nested.get("sliding_attention") or {}
    local_base = config.get("rope_local_base_freq") or local_theta
    return {
        "full_attention": rotary_of({**others, "rope_parameters": full}, longest, head_dim, source, theta),
        "sliding_attention": rotary_of(
            {**others, "rope_theta": local_base, "rope_parameters": local}, longest, head_dim, source
        ),
    }


def by_layer_type(
    config: dict[str, Any], head_dims: Mapping[str, int], longest: int, source: str, theta: float
) -> dict[str, Rotary]:
    """The rotary embeddings of LFM3 and Gemma 4, whose `rope_parameters` have an entry for each layer type.

    `head_dims` are the layer types of the model with the size of their heads.
    """
    name, found = _settings_of(config), dict[str, Rotary]()
    nested = config.get(name)
    others = {key: value for key, value in config.items() if key not in ("rope_parameters", "rope_scaling")}
    for kind in ("full_attention", "sliding_attention"):
        own = nested.get(kind) if isinstance(nested, dict) else None
        if kind in head_dims and not isinstance(own, dict):
            raise CheckpointError(f"{source}: {name} must have an object {kind!r}, with the settings of these layers")
        if kind in head_dims:
            found[kind] = rotary_of({**others, name: own}, longest, head_dims[kind], source, theta)
    return found


def trained_length(rotaries: Sequence[Rotary], longest: int) -> int:
    """The longest context: that of the training where longer ones have other frequencies (LongRoPE) or scaled queries
    (Ministral 3)."""
    scalings = [rotary.scaling for rotary in rotaries if rotary.scaling is not None]
    limited = [one for one in scalings if one["rope_type"] == "longrope" or _QUERY_SCALING in one]
    return min([longest, *(scaling["original_max_position_embeddings"] for scaling in limited)])


def _kind_of(rope: dict[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _settings_of(config: dict[str, Any]) -> str:
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def rope_of(
    config: dict[str, Any], max_position_embeddings: int, source: str, default_theta: float = _THETA
) -> tuple[float, dict[str, Any] | None]:
    """The base and the scaling of a `config.json`; None: no scaling.

    `rope_scaling`, which model cards tell people to add, replaces the whole `rope_parameters` that transformers 5
    writes. A scaling has `rope_type` and every number that its formula needs, including defaults for missing ones.

    Raises:
        CheckpointError: the scaling is not supported, or lacks a number.
    """
    name = _settings_of(config)
    rope = config.get(name) or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"{source}: {name} must be an object, not {rope!r:.40}")
    for key, value in rope.items():
        if isinstance(value, dict):
            raise CheckpointError(f"{source}: {name} has settings per layer type ({key}), which are not supported")
    _check_theta(config, rope, name, source)
    theta = Fields({"rope_theta": rope.get("rope_theta") or config.get("rope_theta")}, source)
    kind = _kind_of(rope)
    if kind in ("su", "yarn") and "short_factor" in rope:  # older names of LongRoPE
        kind = "longrope"
    if rope.get(_QUERY_SCALING) and kind != "yarn":
        raise CheckpointError(f"{source}: {name}: {_QUERY_SCALING} is only supported with yarn, not with {kind!r:.40}")
    base = theta.number("rope_theta", default_theta)
    numbers = Fields(rope, f"{source}: {name}")
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, {"rope_type": kind, "factor": numbers.number("factor")}
    if kind == "proportional":  # `rotary_of` reads the rest
        factor = numbers.number("factor", 1.0)
        return base, None if factor == 1 else {"rope_type": "linear", "factor": factor}
    # A top-level field of this name takes precedence over the one in the settings.
    own = Fields(config, source) if config.get("original_max_position_embeddings") is not None else numbers
    original = own.size("original_max_position_embeddings", max_position_embeddings)
    if kind == "llama3":
        scaling = {field: numbers.number(field) for field in ("factor", "low_freq_factor", "high_freq_factor")}
        if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
            raise CheckpointError(f"{source}: {name}: high_freq_factor must be above low_freq_factor")
        return base, {"rope_type": kind, **scaling, "original_max_position_embeddings": original}
    if kind == "yarn":
        if base <= 1:
            raise CheckpointError(f"{source}: {name}: rope_theta must be above 1 with yarn, not {base:g}")
        return base, {"rope_type": kind, **_yarn(numbers, original, max_position_embeddings)}
    if kind == "longrope":
        return base, {"rope_type": kind, **_longrope(rope, numbers, original, max_position_embeddings)}
    hint = f"; for texts of up to {max_position_embeddings} tokens it changes nothing and can be taken out"
    raise CheckpointError(
        f"{source}: rope scaling {kind!r:.40} is not supported ({', '.join(_KINDS)} are)"
        + (hint if kind == "dynamic" else "")
    )


def _longrope(rope: dict[str, Any], numbers: Fields, original: int, longest: int) -> dict[str, Any]:
    """Only the factors of contexts within the trained length; beyond it, all positions would have other frequencies."""
    factors = rope.get("short_factor")
    if not (isinstance(factors, list) and all(isinstance(x, (int, float)) and 0 < x < math.inf for x in factors)):
        raise CheckpointError(f"{numbers.source}: short_factor must be a list of numbers above 0")
    factor = numbers.number("factor", longest / original)
    usual = 1.0 if factor <= 1 or original <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return {
        "short_factor": [float(x) for x in factors],
        "original_max_position_embeddings": original,
        "attention_factor": numbers.number("attention_factor", usual),
    }


def _check_theta(config: dict[str, Any], rope: dict[str, Any], name: str, source: str) -> None:
    """Warns if a base that is only in `rope_parameters` is lost because `rope_scaling` replaces them; transformers does
    not."""
    replaced = config.get("rope_parameters")
    lost = replaced.get("rope_theta") if isinstance(replaced, dict) and replaced is not rope else None
    if lost is not None and lost != (rope.get("rope_theta") or config.get("rope_theta") or _THETA):
        warnings.warn(
            f"{source}: {name} replaces rope_parameters with their rope_theta {lost!r:.40}, as in transformers; "
            "add rope_theta to rope_scaling to keep it",
            CheckpointWarning,
            stacklevel=2,
        )


def _yarn(numbers: Fields, original: int, longest: int) -> dict[str, Any]:
    truncate = numbers.values.get("truncate", True)
    given = {name: value for name, value in numbers.values.items() if value}  # 0 and null mean the default
    numbers = Fields(given, numbers.source)
    factor = numbers.number("factor", longest / original)
    if given.keys() >= {"mscale", "mscale_all_dim"}:
        usual = _mscale(factor, numbers.number("mscale")) / _mscale(factor, numbers.number("mscale_all_dim"))
    else:
        usual = _mscale(factor, 1.0)
    queries = {_QUERY_SCALING: given[_QUERY_SCALING]} if _QUERY_SCALING in given else {}
    return queries | {
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": numbers.number("attention_factor", usual),
        "beta_fast": numbers.number("beta_fast", _BETA_FAST),
        "beta_slow": numbers.number("beta_slow", _BETA_SLOW),
        "truncate": bool(truncate),
    }


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def attention_factor(scaling: dict[str, Any] | None) -> float:
    """The factor of cos and sin, for queries and keys."""
    return float((scaling or {}).get("attention_factor", 1.0))


def scaled_frequencies(inverse: Frequencies, theta: float, scaling: dict[str, Any] | None) -> Frequencies:
    """Frequencies [size / 2] in radians per position after a scaling from `rope_of`; `inverse` are those before."""
    import numpy as np

    if scaling is None:
        return inverse
    if scaling["rope_type"] == "longrope":
        return inverse / np.array(scaling["short_factor"])
    factor = scaling["factor"]
    if scaling["rope_type"] == "linear":
        return inverse / factor
    original = scaling["original_max_position_embeddings"]
    if (
        scaling["rope_type"] == "llama3"
    ):  # frequencies of long wavelengths are divided by the factor, with a ramp to short ones
        wavelength = 2 * math.pi / inverse
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((original / wavelength - low) / (high - low)).clip(0, 1)
        return inverse * (kept + (1 - kept) / factor)
    # YaRN: frequencies that rotate beta_fast times over the original length are kept, those that rotate beta_slow times
    # are divided by the factor, with a linear ramp over their indices in between.
    size = 2 * len(inverse)
    low, high = (
        size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling["beta_fast"], scaling["beta_slow"])
    )
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    kept = 1 - ((np.arange(len(inverse)) - low) / (high - low if high != low else 0.001)).clip(0, 1)
    return inverse * (kept + (1 - kept) / factor)
