"""The schema of `manifest.json`, format version 4: the contract between exporters and every runtime.

The published schema, docs/manifest.schema.json, is generated from these types. text/ validates manifests with it, and
checks the relations between fields, when a manifest is written and when a bundle is opened. Unknown fields are errors,
so a typo or a foreign file is detected there and not by wrong output. A change that older runtimes would misread
increases FORMAT_VERSION.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamfuse.runtime.text_library import manifest_problem

from .errors import BundleError

FORMAT_VERSION = 4
MANIFEST_NAME = "manifest.json"

# Custom operators of this version's engine.
OPERATORS = tuple(
    f"streamfuse::{name}.out"
    for name in (
        "tree_attention",
        "window_attention",
        "short_convolution",
        "embedding_q8",
        "embedding_q4",
        "linear",
        "biased_linear",
        "qkv",
        "biased_qkv",
        "query",
        "gated_mlp",
        "gated_branch",
        "add_normed",
        "gate_heads",
        "silu_gate",
        "gelu_gate",
        "delta_rows",
        "gated_delta_rule",
        "head",
        "capped_head",
        "stream_top_k",
    )
)
PREFILL, DECODE, STREAMS, VERIFY_PREFIX = "prefill", "decode", "streams", "verify_"

# Of a task adapter or a stored prefix; text/src/manifest.rs has the same rule.
PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
PLAIN_NAME_RULE = "must be 1 to 32 of a-z, 0-9, _ and -, and begin with a letter or digit"

# Each adapter repeats much of the manifest in a reader's memory.
MOST_ADAPTERS = 64

_MOST = 2**53  # larger integers lose digits in readers that use doubles
_MOST_TOKENS = 2**22  # of a vocabulary, as in the core
_LONGEST_NAME = 255
_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$"  # no control characters
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
TokenId = Annotated[int, Field(ge=0, le=_MOST)]
Line = Annotated[str, Field(pattern=_LINE)]
FilledLine = Annotated[str, Field(min_length=1, pattern=_LINE)]
Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DType = Literal["float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]


class Strict(BaseModel):
    """What a file describes: unknown fields are errors, and nothing is converted or changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class ModelFacts(Strict):
    """The base model."""

    name: FilledLine = Field(description="for example HuggingFaceTB/SmolLM2-135M-Instruct")
    architecture: Line = Field(description="class name in the Hugging Face config, for example LlamaForCausalLM")
    source: Line = Field(
        description="where the weights came from: a hub revision, a package, or a file with its sha256"
    )
    license: Line | None
    num_layers: Positive
    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    hidden_size: Positive
    vocab_size: Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
    parameters: Positive = Field(description="parameters of the base model, shared ones counted once")
    bos_token_id: TokenId | None
    eos_token_ids: tuple[TokenId, ...] = Field(description="every id that ends an answer")
    chat_template: Annotated[str, Field(max_length=2**20)] | None = Field(
        description="Jinja template as in tokenizer_config.json; null: no chat form"
    )


class TensorFacts(Strict):
    """One input or output of a method."""

    name: FilledLine
    dtype: DType
    shape: tuple[Count, ...]


class Method(Strict):
    """One static graph. Tensors are in call order."""

    rows: Positive = Field(description="token rows R of the pass")
    keep: Positive | None = Field(description="nodes that survive the pass; null where nothing is verified")
    stream_nodes: Count | None = Field(
        description="survivors that carry streams, the first ones; null where nothing is verified"
    )
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]


class Speculation(Strict):
    """The streams, in the terms of docs/contracts.md."""

    num_streams: Count = Field(description="gamma; 0: no streams, drafts are look-ups in the text")
    top_k: Count = Field(description="candidates per stream and node that the graph returns")
    num_msa_layers: Count = Field(description="Ns, top layers that carry streams")
    prune_layer: Count | None = Field(description="the pruner acts before this layer; null: no pruning")
    stream_vocab_size: Count = Field(description="tokens that streams may propose")
    parent_rank: Count = Field(description="rank of the parent term in draft.safetensors; 0: off")
    adapter: Line | None = Field(description="name of the trained adapter; null: none")
    extra_parameters: Count = Field(description="parameters on top of the base model")
    default_width: Positive | None = Field(description="rows of the verify method to use where nobody measures")
    schedule: Literal["fused", "deferred", "both"] = Field(
        description="streams in the verifying pass, in a second pass (method `streams`) for the accepted node, or both"
    )
    merged_streams: bool = Field(
        False, description="the method `streams` has its own matrices, merged with the streams' low-rank products"
    )


class CacheFacts(Strict):
    """The KV caches, which the host owns."""

    layout: Literal["position_head_dim", "head_position_dim", "channels_position", "packed"] = Field(
        description="[capacity, num_kv_heads, head_dim] per layer; [1, num_kv_heads, capacity, head_dim];"
        " [1, num_kv_heads * head_dim, 1, capacity]; or blocks of 32 positions in int8 (docs/contracts.md, section 6)."
        " A convolution or linear attention has half of its rows in each cache, as heads of head_dim"
    )
    capacity: Positive = Field(description="committed positions, which is the context length in tokens")
    dtype: Literal["float32", "float16", "int8"]


class Scheme(Strict):
    """How the weights of one part are stored and multiplied."""

    scheme: FilledLine = Field(description="for example float32, 8da4w, int8_channel")
    bits: Annotated[int, Field(ge=1, le=32)] = Field(description="bits per weight, scales not counted")
    group_size: Positive | None = Field(description="weights per scale; null: one scale per channel or none")
    symmetric: bool | None = Field(description="null where nothing is quantized")
    parameters: Count | None = Field(None, description="weights of this part; null: not counted")
    bytes: Count | None = Field(None, description="their size in the graph file, scales included; null: not counted")


class Quantization(Strict):
    """One scheme per part of the model."""

    embedding: Scheme
    attention: Scheme
    mlp: Scheme
    head: Scheme
    streams: Scheme


class SamplingDefaults(Strict):
    """Sampling settings for requests that do not set them. Temperature 0 is greedy."""

    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    top_k: Count = Field(0, description="0: off")
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0.0)] = 1.0
    max_new_tokens: Positive = 128


class Parity(Strict):
    """The exporter's measurements of one method, compared with PyTorch, and the floor that it had to reach."""

    floor: FilledLine = Field(description="name of the floor, for example float32")
    metrics: dict[Name, float] = Field(description="for example max_abs_difference, cosine, top1_agreement")


class BelowFloor(Strict):
    """A result below its floor that was accepted with `export --allow-parity-below`."""

    comparison: Literal["quantization", "lowering"] = Field(
        description="integer weights against float32 ones, or the emitted graphs against PyTorch on the same weights"
    )
    method: FilledLine = Field(description="a method, or walk: passes over natural text")
    metric: Literal["snr_db", "stream_snr_db", "top1_agreement", "own_best", "kept_agreement"]
    measured: float
    asked: float = Field(description="what the floor asks for")
    floor: FilledLine


class Prefix(Strict):
    """The stored cache of a beginning of prompts, such as a system prompt, in the file prefixes/NAME.cache."""

    tokens: Positive


class Adapter(Strict):
    """A task adapter: what it has instead of the bundle's own fields of these names, while it is chosen."""

    chat_template: Annotated[str, Field(max_length=2**20)] | None
    methods: dict[Name, Method] = Field(description="called NAME.METHOD in the graph file")
    speculation: Speculation
    quantization: Quantization
    parity: dict[Name, Parity]
    below_floor: tuple[BelowFloor, ...] = ()
    prefixes: dict[Name, Prefix] = Field({}, description="in the adapter's folder; left out if there are none")


class FileFacts(Strict):
    """One file of the bundle."""

    sha256: Sha256
    bytes: Count


class Manifest(Strict):
    """Everything that a runtime needs to know about a bundle."""

    format_version: Literal[4]
    exporter_version: FilledLine
    target: Literal["executorch", "coreml", "onnx"]
    backend: FilledLine = Field(description="delegate inside the target, for example xnnpack")
    kernels: bool = Field(description="whether the graphs use the operators of streamfuse's kernels")
    required_operators: tuple[Line, ...] = Field(
        description="custom operators that the engine must carry, for example streamfuse::tree_attention.out"
    )
    model: ModelFacts
    methods: dict[Name, Method]
    speculation: Speculation
    cache: CacheFacts
    quantization: Quantization
    sampling_defaults: SamplingDefaults
    parity: dict[Name, Parity]
    below_floor: tuple[BelowFloor, ...] = Field(
        (), description="what missed its parity floor; left out where nothing did"
    )
    files: dict[Name, FileFacts] = Field(
        description="every file but the manifest and its signature; relative paths with /"
    )
    adapters: dict[Name, Adapter] = Field(
        {},
        max_length=MOST_ADAPTERS,
        description="task adapters by name, chosen per session; left out if there are none",
    )
    prefixes: dict[Name, Prefix] = Field(
        {}, description="stored prefixes of prompts by name; left out if there are none"
    )

    @property
    def verify_methods(self) -> dict[str, Method]:
        """The methods `verify_T`, ascending by T."""
        found = {name: method for name, method in self.methods.items() if name.startswith(VERIFY_PREFIX)}
        return dict(sorted(found.items(), key=lambda item: item[1].rows))


def parse_manifest(text: str, where: str = MANIFEST_NAME) -> Manifest:
    """Check and parse a manifest, as every reader does; `where` is the file name for messages.

    Raises:
        BundleError: not JSON, not a manifest, another format, or an invalid field.
    """
    if (problem := manifest_problem(text)) is not None:
        raise BundleError(f"{where}: {problem}")
    return Manifest.model_validate_json(text)


def manifest_json(manifest: Manifest) -> str:
    """The text of `manifest.json`: indented, in a stable order, with a final newline."""
    fields = manifest.model_dump(mode="json")
    adapters = fields["adapters"].values()
    # So that older readers accept all other bundles.
    optional = [(fields, name) for name in ("below_floor", "adapters", "prefixes")]
    optional += [(adapter, "prefixes") for adapter in adapters]
    optional += [(part["speculation"], "merged_streams") for part in (fields, *adapters)]
    for part, name in optional:
        if not part[name]:
            del part[name]
    return json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def schema_json() -> str:
    """The JSON Schema in docs/manifest.schema.json."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Manifest.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
