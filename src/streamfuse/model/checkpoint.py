"""Loads base checkpoints, and reads and writes adapters (safetensors with their settings in the metadata)."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from streamfuse.durable import one_writer, os_error, reason, replace_file

from .config import ModelConfig, StreamConfig
from .families import from_checkpoint, own_name, own_shapes, text_names
from .fields import PEFT, CheckpointError, CheckpointWarning, read_object
from .quantized import decoded, shapes_of
from .shapes import EMBEDDING, HEAD, PER_LAYER, check_headers, check_shapes, has_of, is_unused, packing, read_headers
from .shards import check_types, read_header, shards
from .streams import StreamFused
from .transformer import Transformer

_FORMAT = "streamfuse-adapter-1"
_NGRAMS = "ngrams."  # names of the n-gram table's arrays in an adapter file
_BASE_FACTS = ("architecture", "vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads")


def load_config(folder: Path) -> ModelConfig:
    """The configuration of a checkpoint folder as `load_base` will use it, reading at most the embedding and the head.

    Raises:
        CheckpointError: as ModelConfig.load; or existing weights do not fit it.
    """
    config = ModelConfig.load(folder)
    if not any(path.is_file() for path in shards(folder)):  # sufficient for a dry run
        return config
    headers = read_headers(config, folder)
    if config.tie_word_embeddings and {EMBEDDING, HEAD} <= headers.keys():
        embedding, head = (_read(headers[name].path, name) for name in (EMBEDDING, HEAD))
        config = _with_own_head(config, embedding, head, folder)
    check_headers(config, headers, folder)
    return config


def load_base(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """The base model of a Hugging Face folder (config.json and *.safetensors), in eval mode.

    Raises:
        CheckpointError: a file is missing or damaged, or the tensors do not fit the configuration.
    """
    config = ModelConfig.load(folder)
    packed, has = packing(folder), has_of(config)
    state: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}  # of packed checkpoints: the parts of a matrix may be in several files
    files = shards(folder)
    for path in files:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
    headers = {path: read_header(path) for path in files}
    text = text_names(name for header in headers.values() for name in header)
    for path, header in headers.items():
        own = {name: facts for name, facts in header.items() if name in text}
        try:
            with safe_open(path, framework="pt") as file:
                shard = {name: file.get_tensor(name) for name in own}
        except (SafetensorError, KeyError) as error:  # KeyError: a dtype that PyTorch does not have
            raise CheckpointError(f"{path}: damaged safetensors file ({error})") from None
        check_types(shapes_of(own, packed, has))
        check_finite(shard, path)
        if packed is not None:
            stored |= shard
            continue
        state |= _own_tensors(shard, dtype, config)
    if packed is not None:
        state = _own_tensors(decoded(stored, packed, str(folder), has), dtype, config)
    return _fill(config, state, folder)


def _own_tensors(shard: Mapping[str, Tensor], dtype: torch.dtype, config: ModelConfig) -> dict[str, Tensor]:
    """The model's tensors in those of a file, in `dtype`. Per-layer embeddings keep the file's dtype, to save memory:
    only a few of their rows are read at a time."""
    found: dict[str, Tensor] = {}
    for name, value in shard.items():
        if not is_unused(name, config):
            keeps = own_shapes(name, (), config).keys() == {PER_LAYER} and value.dtype.itemsize < dtype.itemsize
            own = value.dtype if keeps else dtype
            found |= from_checkpoint(name, value.to(own), config)
    return found


def _read(path: Path, wanted: str) -> Tensor | None:
    """A tensor of a file; None if it is packed there."""
    with safe_open(path, framework="pt") as file:
        named = {own_name(name): name for name in file.keys()}  # noqa: SIM118 (not a dict)
        tensor: Tensor | None = file.get_tensor(named[wanted]) if wanted in named else None
    return tensor


def _with_own_head(config: ModelConfig, embedding: Tensor | None, head: Tensor | None, folder: Path) -> ModelConfig:
    """The configuration with an untied head if the files have two different tensors; as in transformers, files win. A
    packed tensor (None) is rounded, so it differs from the other one."""
    if (
        embedding is not None
        and head is not None
        and embedding.shape == head.shape
        and torch.equal(embedding.float(), head.float())
    ):
        return config
    warnings.warn(
        f"{folder / 'config.json'}: tie_word_embeddings is true, but lm_head.weight differs from the embedding, so the "
        "two are not tied, as in transformers; set it to false to avoid this warning",
        CheckpointWarning,
        stacklevel=3,
    )
    return replace(config, tie_word_embeddings=False)


def own_template(folder: Path) -> str | None:
    """The chat template of a checkpoint folder; None if it has none, or several of which none is named default, which
    gives a warning.

    Raises:
        CheckpointError: it is not a string.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}: not UTF-8 text ({error})") from None
    path = folder / "tokenizer_config.json"
    template = read_object(path).get("chat_template")
    more = folder / "additional_chat_templates"
    named = {file.stem: None for file in sorted(more.glob("*.jinja"))}
    if isinstance(template, list):  # several named templates
        named |= {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is None and (folder / "chat_template.json").is_file():  # of models with a part for images
        path = folder / "chat_template.json"
        template = read_object(path).get("chat_template")
    if template is None and named:
        warnings.warn(
            f"{path}: its chat templates are {', '.join(named)}, and none is named default, so none is used; "
            "rename the one to use to default",
            CheckpointWarning,
            stacklevel=2,
        )
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{path}: chat_template must be text, not {type(template).__name__}")
    return template


def _fill(config: ModelConfig, state: dict[str, Tensor], folder: Path) -> Transformer:
    if config.tie_word_embeddings:
        if EMBEDDING in state and HEAD in state:
            config = _with_own_head(config, state[EMBEDDING], state[HEAD], folder)
        else:
            for name, other in ((EMBEDDING, HEAD), (HEAD, EMBEDDING)):
                if name not in state and other in state:
                    state[name] = state[other]
    check_shapes(config, {name: tuple(value.shape) for name, value in state.items()}, folder)
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(state, strict=True, assign=True)
    if config.tie_word_embeddings:  # assign=True created two parameters for one tensor
        model.lm_head.weight = model.embed_tokens.weight
    return model.requires_grad_(False).eval()


def save_adapter(model: StreamFused, path: Path, facts: dict[str, str] | None = None) -> None:
    """Write the trained part of a stream-fused model atomically, with `facts` (data, steps, ...) in the metadata."""
    state = {name: _stored(name, value.detach().cpu()) for name, value in model.extra_state().items()}
    state |= {_NGRAMS + name: value.contiguous() for name, value in model.ngrams.items()}
    base = json.dumps(base_facts(model.base.config))
    own = {"format": _FORMAT, "streams": model.streams_config.to_json(), "base": base}
    metadata = {**(facts or {}), **own}
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, state, metadata)


def save_ngrams(path: Path, config: ModelConfig, arrays: Mapping[str, Tensor], facts: dict[str, str]) -> None:
    """Write an adapter without streams: the n-gram table `arrays` for a base of this configuration, and `facts`."""
    with torch.device("meta"):
        base = Transformer(config)
    model = StreamFused.without_streams(base)
    model.ngrams = dict(arrays)
    save_adapter(model, path, facts)


def replace_ngrams(path: Path, arrays: Mapping[str, Tensor], out: Path) -> None:
    """Write the adapter `path` with another n-gram table to `out`, which may be the same file.

    Raises:
        CheckpointError: as `read_adapter`.
    """
    _, state, metadata = read_adapter(path)
    kept = {name: value for name, value in state.items() if not name.startswith(_NGRAMS)}
    _write(out, kept | {_NGRAMS + name: value.contiguous() for name, value in arrays.items()}, metadata)


def average_adapters(paths: Sequence[Path], out: Path) -> None:
    """Write the mean of several adapters' weights to `out`; n-gram table and metadata are those of the last one.

    For the adapters before and after training on other text: their mean keeps most of what both learnt (Wortsman et
    al., 2021, arXiv 2109.01903).

    Raises:
        CheckpointError: as `read_adapter`; or their bases, settings, sizes or stream vocabularies differ.
    """
    adapters = [read_adapter(path) for path in paths]
    streams, last, metadata = adapters[-1]
    mean = dict(last)
    for (settings, state, facts), path in zip(adapters, paths, strict=True):
        if (settings, facts.get("base")) != (streams, metadata.get("base")):
            raise CheckpointError(f"{path}: its base or its streams' settings differ from those of {paths[-1]}")
        if not torch.equal(state["stream_vocab"], last["stream_vocab"]):
            raise CheckpointError(f"{path}: its stream vocabulary differs from that of {paths[-1]}")
    for name, value in last.items():
        if name == "stream_vocab" or name.startswith(_NGRAMS):
            continue
        same = [state[name] for _, state, _ in adapters if name in state and state[name].shape == value.shape]
        if len(same) < len(paths):
            raise CheckpointError(f"{paths[-1]}: tensor {name!r} is not in all of the adapters, or of another shape")
        mean[name] = torch.stack(same).double().mean(0).to(value.dtype)
    _write(out, mean, metadata)


def _write(out: Path, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
    target = out.resolve()  # a link keeps pointing where it did
    try:
        with one_writer(target.with_name(f".{target.name}.partial")) as temporary:
            temporary.write_bytes(save(state, metadata))  # `save_file` makes a new file, which is not locked
            replace_file(temporary, target)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{out}: cannot be written ({reason(os_error(error) or OSError(str(error)))})") from None


def _stored(name: str, value: Tensor) -> Tensor:
    """Large tensors that are quantized further at export (the base's adapters, heads) are stored in float16."""
    return (value.half() if name.startswith(("base_adapters.", "heads.")) else value).contiguous()


def read_adapter(path: Path) -> tuple[StreamConfig, dict[str, Tensor], dict[str, str]]:
    """Settings, tensors and metadata of an adapter file.

    Raises:
        CheckpointError: the file is missing, damaged, or not an adapter of this version.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such adapter file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged adapter file ({error})") from None
    check_finite(state, path)
    found = metadata.get("format")
    if found is None and any(name.startswith("base_model.") for name in state):
        raise CheckpointError(f"{path} {PEFT}")
    if found is None:
        raise CheckpointError(f"{path}: not an adapter; `streamfuse train` and `streamfuse adapter convert` write one")
    if found != _FORMAT:
        raise CheckpointError(
            f"{path}: not an adapter of this version (metadata field 'format' is {found!r}, not {_FORMAT!r}); train or "
            "convert it again"
        )
    try:
        return StreamConfig.from_json(metadata["streams"]), state, metadata
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: metadata field 'streams' cannot be read ({error})") from None


def adapter_digest(path: Path) -> str:
    """A short digest of an adapter's settings and tensors. Other metadata and its order have no effect.

    Raises:
        CheckpointError: as `read_adapter`.
    """
    _, state, metadata = read_adapter(path)
    digest = hashlib.sha256(metadata["streams"].encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def load_stream_fused(base: Transformer, path: Path, merge: bool = True) -> StreamFused:
    """The base model with the streams of an adapter file, in eval mode.

    If the file tunes the base (shared mode), its low-rank adapters are added to copies of the matrices that they
    change; with `merge=False` they are kept separate, for training.

    Raises:
        CheckpointError: as `read_adapter`, or the adapter was trained on a base of another shape.
    """
    config, state, metadata = read_adapter(path)
    if (misfit := _misfit_of_base(base.config, metadata, path)) is not None:
        raise CheckpointError(f"{path}: {misfit}")
    if config.num_msa_layers > base.config.num_layers:
        raise CheckpointError(f"{path}: has {config.num_msa_layers} layers with streams, {_misfit(base)}")
    vocab = state.get("stream_vocab")
    if vocab is None or not _is_stream_vocab(vocab, base.config.vocab_size, may_be_empty=not config.num_streams):
        raise CheckpointError(f"{path}: tensor 'stream_vocab' is not a list of ascending token ids, {_misfit(base)}")
    try:
        model = StreamFused(base, config, vocab)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; was it trained on another base model?") from None
    model.ngrams = {name.removeprefix(_NGRAMS): state.pop(name) for name in list(state) if name.startswith(_NGRAMS)}
    own = model.extra_state()
    for name in sorted(own.keys() | state.keys()):
        if name not in own or name not in state or own[name].shape != state[name].shape:
            raise CheckpointError(f"{path}: tensor {name!r} does not fit, {_misfit(base)}")
    model.load_state_dict(state, strict=False)  # it does not contain the base's tensors
    return (model.merged() if merge else model).eval()


def load_with_adapter(folder: Path, adapter: Path, dtype: torch.dtype = torch.float32) -> StreamFused:
    """The base model of a folder with an adapter merged into it, and with the token that ends the adapter's answers.

    Raises:
        CheckpointError: as `load_base`, `load_stream_fused` and `adapter_end_token`.
    """
    base = load_base(folder, dtype)
    base.config = ending_as(base.config, adapter)
    return load_stream_fused(base, adapter)


def check_finite(state: dict[str, Tensor], path: Path) -> None:
    """A single NaN in the weights makes every answer NaN, which comparisons would not detect."""
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value.to(_wide(value.dtype))).all()):
            raise CheckpointError(f"{path}: tensor {name!r} has NaN or infinite values; download the file again")


def _wide(dtype: torch.dtype) -> torch.dtype:
    """A wider dtype: PyTorch has no isfinite for 8-bit floats."""
    return torch.float32 if dtype.itemsize == 1 else dtype


def base_facts(config: ModelConfig) -> dict[str, int | str]:
    """What distinguishes a base from others that its adapters do not fit."""
    return {name: getattr(config, name) for name in _BASE_FACTS}


def adapter_misfit(config: ModelConfig, path: Path) -> str | None:
    """Why an adapter file does not fit this base model, in a few words; None if it may fit.

    Raises:
        CheckpointError: as `read_adapter`.
    """
    return _misfit_of_base(config, read_adapter(path)[2], path)


def adapter_vocab_size(path: Path) -> int:
    """The vocabulary size of the base that an adapter was trained on.

    Raises:
        CheckpointError: as `read_adapter`, or the file does not have it.
    """
    try:
        return int(json.loads(read_adapter(path)[2]["base"])["vocab_size"])
    except (ValueError, TypeError, KeyError):
        raise CheckpointError(f"{path}: metadata field 'base' does not have the size of the vocabulary") from None


def adapter_end_token(path: Path) -> int | None:
    """The token that ends an adapter's answers; None if it is the base's.

    Raises:
        CheckpointError: as `adapter_vocab_size`, or it is not a token of the base.
    """
    found = read_adapter(path)[2].get("eos_token_id")
    if found is None:
        return None
    size = adapter_vocab_size(path)
    if not found.isdecimal() or int(found) >= size:
        raise CheckpointError(
            f"{path}: metadata field 'eos_token_id' {found!r:.40} is not a token id below {size}; convert the adapter "
            "again with `streamfuse adapter convert`"
        )
    return int(found)


def ending_as(config: ModelConfig, adapter: Path | None) -> ModelConfig:
    """The base's settings, in which the token that ends the adapter's answers is the first end token. Raises as
    `adapter_end_token`."""
    token = None if adapter is None else adapter_end_token(adapter)
    if token is None:
        return config
    return replace(config, eos_token_ids=tuple(dict.fromkeys((token, *config.eos_token_ids))))


def _misfit_of_base(config: ModelConfig, metadata: dict[str, str], path: Path) -> str | None:
    """Checks the number of layers: shapes alone would accept an adapter of 30 layers for a base of 32."""
    try:
        trained_on = dict(json.loads(metadata.get("base", "{}")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: metadata field 'base' cannot be read ({error})") from None
    for name, value in base_facts(config).items():
        if trained_on.get(name, value) != value:
            return f"trained on a base with {name} {trained_on[name]}, this one has {value}"
    return None


def _misfit(base: Transformer) -> str:
    config = base.config
    return (
        f"but the base model has {config.num_layers} layers of size {config.hidden_size} "
        f"and {config.vocab_size} tokens; was it trained on another one?"
    )


def _is_stream_vocab(vocab: Tensor, vocab_size: int, may_be_empty: bool) -> bool:
    if vocab.dtype != torch.int64 or vocab.ndim != 1:
        return False
    if not len(vocab):
        return may_be_empty
    return bool((vocab.diff() > 0).all()) and int(vocab[0]) >= 0 and int(vocab[-1]) < vocab_size
