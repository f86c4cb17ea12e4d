"""The sampling defaults of a bundle: greedy, or those of the model's generation_config.json.

Values have the semantics of transformers: decoding samples if `do_sample` is true, `top_k` is 50 if it is missing, and
a repetition penalty also applies to greedy decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamfuse.model.config import CheckpointError, read_object
from streamfuse.options import OptionError
from streamfuse.runtime.config import SamplingConfig

FILE = "generation_config.json"
MODEL, GREEDY = "model", "greedy"
_IN_TRANSFORMERS: dict[str, Any] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
# Settings of generate() that affect tokens and that no runtime here supports, with the values that have no effect.
_OTHERS: dict[str, tuple[Any, ...]] = {
    "typical_p": (1.0,), "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,), "top_h": (), "penalty_alpha": (),
    "encoder_repetition_penalty": (1.0,), "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,),
    "num_beams": (1,), "guidance_scale": (1.0,), "min_length": (0,), "min_new_tokens": (0,), "bad_words_ids": (),
    "sequence_bias": (), "suppress_tokens": (), "begin_suppress_tokens": (), "forced_bos_token_id": (),
    "forced_eos_token_id": (), "exponential_decay_length_penalty": (), "watermarking_config": (),
}  # fmt: skip


_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """A bundle's sampling defaults, and a note for the user if the model requests something else."""

    values: dict[str, Any]
    note: str | None = None

    @property
    def words(self) -> str:
        return _listed({**self.values, "temperature": self.values["temperature"] or "0 (greedy)"})


def sampling_defaults(folder: Path, choice: str) -> SamplingDefaults:
    """The defaults of a bundle of the model in `folder`.

    Args:
        choice: `model`: those of its generation_config.json; `greedy`: greedy decoding.

    Raises:
        CheckpointError: a value there that is used is out of range.
    """
    path, greedy = folder / FILE, {"temperature": 0.0, "max_new_tokens": 128}
    given = {name: value for name, value in read_object(path).items() if value is not None}
    values = (
        {name: given.get(name, usual) for name, usual in _IN_TRANSFORMERS.items()} if given.get("do_sample") else {}
    )
    if given.get("repetition_penalty", 1.0) != 1.0:
        values["repetition_penalty"] = given["repetition_penalty"]
    others = {name: given[name] for name, neutral in _OTHERS.items() if name in given and given[name] not in neutral}
    if not values and not others:
        return SamplingDefaults(greedy)
    if choice == GREEDY:
        note = f"sampling defaults: greedy; {FILE} has {_listed({**values, **others})}, which --sampling {MODEL} takes"
        return SamplingDefaults(greedy, note)
    _check(path, values)
    defaults = {**greedy, **values}
    note = f"sampling defaults from {FILE}: {_listed(values) or 'greedy'} (--sampling {GREEDY} takes none)"
    return SamplingDefaults(defaults, note + (f"; left out, not supported: {_listed(others)}" if others else ""))


def _check(path: Path, values: dict[str, Any]) -> None:
    for name, value in values.items():
        kinds = int if name == "top_k" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise CheckpointError(f"{path}: {name} must be a number, not {value!r:.40}")
    try:
        SamplingConfig(**values)
    except OptionError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _listed(values: dict[str, Any]) -> str:
    """Names and values, without settings that are off, and without the length."""
    shown = {name: value for name, value in values.items() if name != "max_new_tokens" and value != _OFF.get(name)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
