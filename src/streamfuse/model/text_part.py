"""The text model of a checkpoint that also has parts for images or sound, such as Gemma 3 4B; the rest is not read."""

from __future__ import annotations

from typing import Any

from .families import ARCHITECTURES
from .fields import CheckpointError

# The text models of Qwen's image models have three positions per token, which are equal where there are only words.
_ALIASES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
_SHARED = ("bos_token_id", "eos_token_id", "quantization_config")  # of the whole model, if the text's do not have them
_TIED = "tie_word_embeddings"


def text_config(config: dict[str, Any], source: str) -> dict[str, Any]:
    """The text model's settings in a `config.json`; the whole one if it has no `text_config`.

    Raises:
        CheckpointError: the text model is of no supported family.
    """
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    kind = str(text.get("model_type"))
    by_type = {own: name for name, own in ARCHITECTURES.items()}
    own = _ALIASES.get(kind, kind)
    if own not in by_type:
        raise CheckpointError(
            f"{source}: text_config: model_type {kind!r:.40} is not supported; supported are {', '.join(by_type)}"
        )
    shared = {name: config[name] for name in _SHARED if name in config and text.get(name) is None}
    stated = [one[_TIED] for one in (config, text) if one.get(_TIED) is not None]
    tied = {_TIED: any(stated)} if stated else {}
    return {**text, **shared, **tied, "architectures": [by_type[own]], "model_type": own}
