"""Rotary position embedding: the settings of a `config.json`, read as in transformers, and the resulting frequencies.

The formulas are those of transformers, modeling_rope_utils.py.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from .fields import CheckpointError, CheckpointWarning, Fields

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Frequencies = npt.NDArray[np.float64]

_THETA = 10000.0
_KINDS = ("default", "linear", "llama3", "yarn")
_BETA_FAST, _BETA_SLOW = 32.0, 1.0  # defaults of YaRN


def rope_of(config: dict[str, Any], max_position_embeddings: int, source: str) -> tuple[float, dict[str, Any] | None]:
    """The base and the scaling of a `config.json`; None: no scaling.

    `rope_scaling`, which model cards tell people to add, replaces the whole `rope_parameters` that transformers 5
    writes. A scaling has `rope_type` and every number that its formula needs, including defaults for missing ones.

    Raises:
        CheckpointError: the scaling is not supported, or lacks a number.
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(name) or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"{source}: {name} must be an object, not {rope!r:.40}")
    for key, value in rope.items():
        if isinstance(value, dict):
            raise CheckpointError(f"{source}: {name} has settings per layer type ({key}), which are not supported")
    _check_theta(config, rope, name, source)
    theta = Fields({"rope_theta": rope.get("rope_theta") or config.get("rope_theta")}, source)
    partial = rope.get("partial_rotary_factor")
    if partial not in (None, 1.0):
        raise CheckpointError(f"{source}: {name}: partial_rotary_factor {partial!r:.40} is not supported (only 1.0 is)")
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = theta.number("rope_theta", _THETA)
    numbers = Fields(rope, f"{source}: {name}")
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, {"rope_type": kind, "factor": numbers.number("factor")}
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
    hint = f"; for texts of up to {max_position_embeddings} tokens it changes nothing and can be taken out"
    raise CheckpointError(
        f"{source}: rope scaling {kind!r:.40} is not supported ({', '.join(_KINDS)} are)"
        + (hint if kind == "dynamic" else "")
    )


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
    return {
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
    """Frequencies [head_dim / 2] in radians per position after a scaling from `rope_of`; `inverse` are those before."""
    import numpy as np

    if scaling is None:
        return inverse
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
