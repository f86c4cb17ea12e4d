"""The configuration of a checkpoint: the base model and the settings of its streams.

Both are frozen dataclasses. `ModelConfig` is read from a Hugging Face `config.json`; `StreamConfig` is stored in an
adapter file's metadata, so that its modules can be rebuilt from the file alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from streamfuse.options import OptionError, check, flag_of, option

from .fields import PEFT, Fields, refuse_constant
from .fields import CheckpointError as CheckpointError
from .fields import read_object as read_object
from .rope import rope_of
from .shards import TAKE_UNQUANTIZED

if TYPE_CHECKING:
    from .heads import Heads

WIDENS = (
    "num_streams",
    "num_msa_layers",
    "eta_rank",
    "next_token_rank",
    "adapter_rank",
    "parent_rank",
    "pruner_rank",
    "stream_vocab_size",
)  # sizes of streams that may grow after training
PrunerScore = Literal["sigmoid", "softmax"]
SIGMOID, SOFTMAX = "sigmoid", "softmax"
STREAMS = "Streams"  # the heading of their options
# Kinds of heads that may stand in for streams, by name. There are none until somebody adds them.
HEADS: dict[str, type[Heads]] = {}
_SIZES = (  # sizes of the streams; all 0 without streams
    *WIDENS,
    "value_rotation",
    "base_rank",
    "base_layers",
)
# Architectures, each with its model_type.
ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
# Fields of this and related families that change what a model computes, with the values that have no effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "attention_multiplier": (),
    "residual_multiplier": (1.0,),
    "embedding_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "scale_emb": (1.0,),
    "scale_depth": (),
    "dim_model_base": (),
    "query_pre_attn_scalar": (),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "clip_qkv": (0,),
    "no_rope_layers": ([],),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "per_layer_config": ({},),
    "transformers_weights": ("model.safetensors",),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Configuration of a Llama-family base model (sizes in elements)."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    qk_norm: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: dict[str, Any], source: str = "config.json") -> ModelConfig:
        """Read a Hugging Face `config.json`.

        Raises:
            CheckpointError: a field is missing, or the architecture or a feature of it (sliding window, unknown RoPE
                scaling, another activation) is not supported.
        """
        numbers = Fields(config, source)
        by_type = {kind: [name] for name, kind in ARCHITECTURES.items()}
        named = config.get("architectures") or by_type.get(str(config.get("model_type")), ["?"])
        architecture = named[0] if isinstance(named, list) else named
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise CheckpointError(f"{source}: architecture {architecture!r} is not one of {', '.join(ARCHITECTURES)}")
        _check_kind(config, architecture, source)
        heads, hidden, vocab = (numbers.size(n) for n in ("num_attention_heads", "hidden_size", "vocab_size"))
        # Defaults of the families' own configuration classes, for missing fields.
        llama, qwen3 = architecture == "LlamaForCausalLM", architecture == "Qwen3ForCausalLM"
        kv_heads = numbers.size("num_key_value_heads", heads if llama or "num_key_value_heads" in config else 32)
        head_dim = numbers.size("head_dim", 128 if qwen3 else hidden // heads)
        longest = numbers.size("max_position_embeddings", 2048 if llama else 32768)
        if heads % kv_heads:
            raise CheckpointError(f"{source}: num_key_value_heads {kv_heads} does not divide {heads} heads")
        if head_dim < 2 or head_dim % 2:
            raise CheckpointError(f"{source}: heads of {head_dim} numbers have no pairs to rotate; see head_dim")
        rope_theta, rope_scaling = rope_of(config, longest, source)
        eos = config.get("eos_token_id")
        marks = [*(eos if isinstance(eos, list) else [eos]), config.get("bos_token_id")]
        for mark in marks:
            if mark is not None and not (type(mark) is int and 0 <= mark < vocab):
                raise CheckpointError(
                    f"{source}: eos_token_id or bos_token_id {mark!r:.40} is not a token id below {vocab}"
                )
        return cls(
            architecture=architecture,
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=numbers.size("intermediate_size"),
            num_layers=numbers.size("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=numbers.number("rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            max_position_embeddings=longest,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            # Qwen2 has biases on q, k and v, whatever its config is (transformers, modeling_qwen2.py).
            attention_bias=architecture == "Qwen2ForCausalLM" or bool(config.get("attention_bias")),
            qk_norm=qwen3,
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=tuple(mark for mark in marks[:-1] if mark is not None),
        )

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read a checkpoint folder's `config.json`, and its special tokens from the files next to it.

        The tokens that end an answer are those of `generation_config.json`, else of config.json. The tokenizer's
        `bos_token` and `eos_token` take precedence, because chat templates use them.
        """
        path = folder / "config.json"
        if not path.is_file():
            if (folder / "adapter_config.json").is_file():
                raise CheckpointError(f"{folder} {PEFT}")
            raise CheckpointError(f"{path}: no such file; a checkpoint folder needs config.json")
        config, generation = read_object(path), read_object(folder / "generation_config.json")
        if (extra := generation.get("eos_token_id")) is not None:
            config["eos_token_id"] = extra
        found = cls.from_hf(config, str(path))
        named = _named_token_ids(folder, found.vocab_size)
        eos = named.get("eos_token")
        ends = found.eos_token_ids if eos is None else tuple(dict.fromkeys((eos, *found.eos_token_ids)))
        return replace(found, bos_token_id=named.get("bos_token", found.bos_token_id), eos_token_ids=ends)


def _check_kind(config: dict[str, Any], architecture: str, source: str) -> None:
    """Reject configurations that would be computed incorrectly; a field that is null counts as missing."""
    quantized = config.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        raise CheckpointError(
            f"{source}: quantization_config: the weights are quantized ({method or 'no quant_method'}), which is not "
            f"supported; {TAKE_UNQUANTIZED}, and choose the bundle's own format with `streamfuse export --quantize`"
        )
    kind = config.get("model_type")
    if kind is not None and kind != ARCHITECTURES[architecture]:
        raise CheckpointError(
            f"{source}: model_type {kind!r:.40} does not go with the architecture {architecture}, "
            f"whose model_type is {ARCHITECTURES[architecture]!r}"
        )
    for name, neutral in _NEUTRAL.items():
        if (value := config.get(name)) is not None and value not in neutral:
            only = f" (only {neutral[0]!r} is)" if neutral else ""
            raise CheckpointError(f"{source}: {name} {value!r:.40} is not supported{only}")
    if (field := _sliding(config, architecture)) is not None:
        raise CheckpointError(f"{source}: {field} {config[field]!r:.80} is not supported (only full attention is)")


def _sliding(config: dict[str, Any], architecture: str) -> str | None:
    """The field that gives a layer a sliding window; None if every layer has full attention."""
    layer_types = config.get("layer_types")
    if layer_types is not None:
        return None if layer_types == ["full_attention"] * len(layer_types) else "layer_types"
    if architecture == "LlamaForCausalLM" or not config.get(
        "use_sliding_window"
    ):  # Llama's class has no sliding windows
        return None
    layers, first = config.get("num_hidden_layers"), config.get("max_window_layers", 28)
    whole = isinstance(layers, int) and isinstance(first, int) and first >= layers
    return None if whole or config.get("sliding_window", 4096) is None else "use_sliding_window"


def token_word(entry: Any) -> str | None:
    """A special token in tokenizer_config.json: a string, or an object with `content`. None for anything else."""
    word = entry.get("content") if isinstance(entry, dict) else entry
    return word if isinstance(word, str) else None


def _named_token_ids(folder: Path, vocab_size: int) -> dict[str, int | None]:
    """Ids of the `bos_token` and `eos_token` in the tokenizer's settings; None for those that are null.

    As in transformers, special_tokens_map.json takes precedence over tokenizer_config.json, unless the latter has an
    `added_tokens_decoder`. Missing names and words that are not tokens of the model are omitted.
    """
    config = read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= read_object(folder / "special_tokens_map.json")
    words = {name: token_word(config[name]) for name in ("bos_token", "eos_token") if name in config}
    if not words:
        return {}
    decoder = config.get("added_tokens_decoder")
    known: dict[str | None, int | None] = {None: None}
    if isinstance(decoder, dict):
        known |= {token_word(entry): int(number) for number, entry in decoder.items() if number.isdecimal()}
    if not known.keys() >= set(words.values()):
        known |= _tokens(folder / "tokenizer.json", set(words.values()))
    ids = {name: known[word] for name, word in words.items() if word in known}
    return {name: number for name, number in ids.items() if number is None or number < vocab_size}


def _tokens(path: Path, words: Set[str | None]) -> dict[str | None, int | None]:
    """Ids of those words that a tokenizer has; empty if the file is unreadable, which the tokenizer's loader
    reports."""
    try:
        tokenizer = json.loads(path.read_bytes())
        vocab = tokenizer["model"]["vocab"]
        numbered = vocab.items() if isinstance(vocab, dict) else ((piece, n) for n, (piece, _) in enumerate(vocab))
        found: dict[str | None, int | None] = {word: int(number) for word, number in numbered if word in words}
        return found | {str(entry["content"]): int(entry["id"]) for entry in tokenizer["added_tokens"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Settings of the speculative streams (Speculative Streaming, section 3) and of this project's additions.

    Attributes:
        adapter_alpha: scale of the streams' adapters is adapter_alpha / adapter_rank.
        base_rank: rank of adapters on all rows of the top `base_layers` layers (shared mode, or a tuned base under a
            lossless adapter); they are merged into the base's weights when an adapter is loaded to run.
        base_alpha: their scale is base_alpha / base_rank.
        heads: a kind of `HEADS` in place of streams (model/heads.py); they have no layers (num_msa_layers 0). Empty:
            streams.
        head_size: a size of the heads; its meaning depends on the kind.
    """

    num_streams: int = option(4, "Streams per token (gamma).", STREAMS, least=1, most=8)
    num_msa_layers: int = option(8, "Top layers with streams (Ns).", STREAMS, least=0)
    adapter_rank: int = option(12, "Rank of the low-rank adapters that only streams use; 0: none.", STREAMS, least=0)
    adapter_alpha: float = 24.0
    parent_rank: int = option(
        32, "Rank of the parent term, which conditions a candidate on its parent in the tree; 0: off.", STREAMS, least=0
    )
    pruner_rank: int = option(8, "Rank of the pruner's early exit; 0: no pruner.", STREAMS, least=0)
    pruner_score: PrunerScore = option(
        "sigmoid",
        "The pruner's score: sigmoid of the child's own logit, or softmax over the vocabulary (the paper).",
        STREAMS,
    )
    eta_rank: int = option(
        0,
        "Rank of the streams' initial map (eq. 3 of the paper), beside the identity; 0: the identity.",
        STREAMS,
        least=0,
    )
    next_token_rank: int = option(
        0,
        "Rank of the conditioning of streams on the next token, known in a separate streams pass only; 0: none.",
        STREAMS,
        least=0,
    )
    value_rotation: float = option(
        0.0, "Rotation per stream in radians, instead of stream embeddings; 0: off.", STREAMS
    )
    stream_vocab_size: int = option(0, "Tokens that streams may propose; 0: all.", STREAMS, least=0)
    base_rank: int = option(0, "Rank of the base's low-rank adapters; 24 if the base is tuned.", STREAMS, least=0)
    base_layers: int = option(0, "Top layers with low-rank adapters of the base; 12 if it is tuned.", STREAMS, least=0)
    base_alpha: float = 48.0
    heads: str = ""
    head_size: int = 0

    def __post_init__(self) -> None:
        for setting in fields(self):
            kind: Any = {"float": (int, float), "int": int}.get(str(setting.type))
            value = getattr(self, setting.name)
            if kind and (not isinstance(value, kind) or isinstance(value, bool) or not -math.inf < value < math.inf):
                raise OptionError(f"{flag_of(setting.name)} must be a number, not {value!r}")
        if not any(getattr(self, name) for name in _SIZES):  # a base model alone
            return
        check(self)
        if self.heads:
            self._check_heads()
        elif self.num_msa_layers < 1:
            raise OptionError(f"--num-msa-layers must be at least 1, not {self.num_msa_layers}")
        if bool(self.base_rank) != bool(self.base_layers):
            raise OptionError(
                f"--base-rank and --base-layers go together, both 0 or both positive, not {self.base_rank} and "
                f"{self.base_layers}"
            )

    def _check_heads(self) -> None:
        if self.heads not in HEADS:
            known = f"one of {', '.join(HEADS)}, or empty" if HEADS else "empty"
            raise ValueError(
                f"heads must be {known} for streams, not {self.heads!r}; heads of other methods need `streamfuse "
                "research`"
            )
        ranks = ("eta_rank", "next_token_rank", "adapter_rank", "pruner_rank", "base_rank")
        for name in ("num_msa_layers", *ranks, "value_rotation"):
            if getattr(self, name):
                raise ValueError(f"{name} must be 0 with heads, which begin after the last layer")
        if self.head_size < HEADS[self.heads].LEAST_SIZE:
            raise ValueError(f"head_size of {self.heads} heads cannot be {self.head_size}")

    @classmethod
    def without(cls) -> StreamConfig:
        """The settings of a base model without streams."""
        return cls(num_streams=0, num_msa_layers=0, adapter_rank=0, parent_rank=0, pruner_rank=0)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamConfig:
        """The settings from `to_json`. ValueError if a value is out of range, TypeError for an unknown field.

        Adapters of earlier versions have a setting for the parent term's path: its last token, or more.
        """
        settings = dict(json.loads(text, parse_constant=refuse_constant))
        if (path := settings.pop("parent_path", "parent")) != "parent":
            raise ValueError(f"a parent term over the path, parent_path {path!r}, is no longer supported")
        return cls(**settings)
