"""The text model of a checkpoint that also has parts for images or sound, such as Gemma 3 4B; the rest is not read."""

from __future__ import annotations

from typing import Any

from .families import ARCHITECTURES, unsupported
from .fields import ADD_A_FAMILY, CheckpointError

# Text models of multimodal models that equal a supported family: that family's model_type, and defaults of their own
# configuration class. With `mrope` a token has three positions, which are equal for text.
_QWEN2 = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8}
_AS_FAMILY: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl_text": ("qwen2", _QWEN2),
    "qwen2_5_vl_text": ("qwen2", _QWEN2),
    "qwen3_vl_text": ("qwen3", {"rope_theta": 5e5, "max_position_embeddings": 128000}),
}
_FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}  # config.json may have no text_config
_TIED = "tie_word_embeddings"


def text_config(config: dict[str, Any], source: str) -> dict[str, Any]:
    """The text model's settings in a `config.json`; all of them if the model is a text model.

    Raises:
        CheckpointError: the text model is of no supported family.
    """
    text = config.get("text_config")
    if not isinstance(text, dict):
        if config.get("model_type") not in _FLAT:
            return config
        text = {**config, "model_type": _FLAT[config["model_type"]]}
    architecture_of = {kind: name for name, kind in ARCHITECTURES.items()}
    model_type = str(text.get("model_type"))
    own, defaults = _AS_FAMILY.get(model_type, (model_type, {}))
    if own not in architecture_of:
        reason, known = unsupported(model_type), ", ".join(architecture_of)
        raise CheckpointError(
            f"{source}: text_config: model_type {model_type!r:.40} is not supported{reason}; supported are {known}; "
            f"{ADD_A_FAMILY}"
        )
    # As in transformers, the whole model's tokens take precedence, and either may say that the embedding is the head.
    tokens = {name: config[name] for name in ("bos_token_id", "eos_token_id") if config.get(name) is not None}
    packed = {name: config[name] for name in ("quantization_config",) if text.get(name) is None and name in config}
    stated = [one[_TIED] for one in (config, text) if one.get(_TIED) is not None]
    tied = {_TIED: any(stated)} if stated else {}
    found = {**defaults, **text, **tokens, **packed, **tied}
    if model_type in _AS_FAMILY:
        found |= {name: _without_mrope(found[name]) for name in ("rope_scaling", "rope_parameters") if name in found}
    return {**found, "architectures": [architecture_of[own]], "model_type": own}


def _without_mrope(rope: Any) -> Any:
    if not isinstance(rope, dict) or "mrope" not in (rope.get("type"), rope.get("rope_type")):
        return rope
    return {**{name: value for name, value in rope.items() if name != "type"}, "rope_type": "default"}
