"""Stores the cache of a system prompt in a bundle, so that chats with that system prompt do not prefill it, and removes
it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamfuse.api.options import check_adapter, prompt_config_of
from streamfuse.bundle import Bundle, BundleError, BundleWriter, open_bundle
from streamfuse.bundle.manifest import MANIFEST_NAME, PLAIN_NAME, PLAIN_NAME_RULE, Manifest, Prefix
from streamfuse.bundle.reader import TOKENIZER_FILE, prefix_file
from streamfuse.bundle.signature import SIGNATURE_NAME
from streamfuse.options import OptionError
from streamfuse.runtime.config import GenerationConfig, PromptError
from streamfuse.runtime.text import Conversation, TextError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# Questions whose first characters are of different kinds, so that their first tokens have nothing in common.
_QUESTIONS = ("a", "The", "I", "7", " x", "\nx", "-", "<", '"', "\u00e9", "\u4e2d", "\U0001f600")


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """A prefix in a bundle.

    Attributes:
        file: its path.
        tokens: how many tokens of a prompt need not be prefilled.
        size: of the file, in bytes.
        lost_signature: the bundle was signed and no longer is, because no key was given.
    """

    file: Path
    tokens: int
    size: int
    lost_signature: bool


@dataclass(frozen=True, slots=True)
class RemovedPrefix:
    """What a bundle no longer has.

    Attributes:
        tokens: how many tokens the prefix had.
        size: of its file, in bytes.
        lost_signature: the bundle was signed and no longer is, because no key was given.
    """

    tokens: int
    size: int
    lost_signature: bool


def store_prefix(
    path: str | os.PathLike[str],
    system: str | None = None,
    *,
    tools: Sequence[Any] | None = None,
    template_variables: Mapping[str, Any] | None = None,
    name: str = "system",
    adapter: str | None = None,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    sign_key: Ed25519PrivateKey | None = None,
) -> StoredPrefix:
    """Prefill what all chats with a system prompt and tools begin with, and store the cache in the bundle, atomically.

    Args:
        path: the bundle, for target executorch.
        system: the system message, exactly as chats will give it.
        tools: as chats will give them, see `GenerationOptions`; `system`, `tools` or both are needed.
        template_variables: of the chat template, as chats will give them.
        name: of the prefix; one with the same name is replaced.
        adapter: a task adapter of the bundle; its sessions alone use the prefix. None: the base model.
        output: a new bundle instead of `path`; `overwrite` allows it to replace one.
        threads: of the engine that prefills, 1 to 64; None lets it choose.
        sign_key: signs the bundle; None: the bundle is not signed, even if it was.

    Returns:
        The stored prefix, and whether a signature was lost.

    Raises:
        BundleError: the bundle cannot be opened or written, or its engine cannot save caches.
        OptionError: an option is invalid.
        TextError: there is no chat template, or it refuses the system message.
        PromptError: the prefix does not fit into the context.
        BackendError: the engine cannot be loaded, or fails.
    """
    if system is None and not tools:
        raise OptionError("give --system, --tools or both: a prefix is what they render to")
    if not PLAIN_NAME.fullmatch(name):
        raise OptionError(f"--name {PLAIN_NAME_RULE}, not {name}")
    whole, stated = _open(path, adapter)
    bundle = whole if adapter is None else whole.adapter(adapter)
    setting = prompt_config_of(tools=tools, template_variables=template_variables)
    ids = _shared_prefix(bundle, system, setting.descriptions, setting.variables)
    loses_signature = _loses_signature(whole, sign_key)
    with _rewritten(whole, stated, output, overwrite, sign_key, prefix_file(name, adapter)) as writer:
        file = writer.folder / prefix_file(name, adapter)
        file.parent.mkdir(parents=True, exist_ok=True)
        _save_cache(bundle, ids, threads, file)
        shutil.copymode(writer.folder / TOKENIZER_FILE, file)
        prefixes = {**_prefixes(whole.manifest, adapter), name: Prefix(tokens=len(ids))}
        writer.write_manifest(**_with_prefixes(whole.manifest, adapter, prefixes))
        size = file.stat().st_size
    return StoredPrefix(writer.path / prefix_file(name, adapter), len(ids), size, loses_signature)


def remove_prefix(
    path: str | os.PathLike[str],
    name: str = "system",
    *,
    adapter: str | None = None,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    sign_key: Ed25519PrivateKey | None = None,
) -> RemovedPrefix:
    """Remove a stored prefix from a bundle, atomically. Chats with its system prompt prefill it again.

    Args:
        path: the bundle.
        name: of the prefix.
        adapter: the task adapter whose prefix it is; None: it is one of the base model.
        output: a new bundle instead of `path`; `overwrite` allows it to replace one.
        sign_key: signs the bundle; None: the bundle is not signed, even if it was.

    Raises:
        BundleError: the bundle cannot be opened or written.
        OptionError: there is no such adapter or prefix.
    """
    whole, stated = _open(path, adapter)
    prefixes = dict(_prefixes(whole.manifest, adapter))
    _check_stored(name, list(prefixes), adapter)
    removed = prefixes.pop(name)
    file, loses_signature = prefix_file(name, adapter), _loses_signature(whole, sign_key)
    with _rewritten(whole, stated, output, overwrite, sign_key) as writer:
        (writer.folder / file).unlink()
        with suppress(OSError):  # other prefixes are there
            (writer.folder / file).parent.rmdir()
        writer.write_manifest(**_with_prefixes(whole.manifest, adapter, prefixes))
    return RemovedPrefix(removed.tokens, whole.manifest.files[file].bytes, loses_signature)


def _open(path: str | os.PathLike[str], adapter: str | None) -> tuple[Bundle, bytes]:
    """The whole bundle and its manifest as it is written. OptionError if it has no task adapter of this name."""
    stated = b""
    with suppress(OSError):  # `open_bundle` says what is wrong
        stated = (Path(os.fspath(path)) / MANIFEST_NAME).read_bytes()
    whole = open_bundle(os.fspath(path))
    if adapter is not None:
        check_adapter(adapter, list(whole.manifest.adapters))
    return whole, stated


def _check_stored(name: str, names: Sequence[str], adapter: str | None) -> None:
    """OptionError, with the names, if none of the stored prefixes `names` has this name."""
    if name not in names:
        owner = "the base model" if adapter is None else f"the adapter {adapter}"
        there = f"it has {', '.join(names)}" if names else "it has none"
        raise OptionError(f"{owner} has no stored prefix with the name {name!r:.40}; {there}")


def _loses_signature(bundle: Bundle, sign_key: Ed25519PrivateKey | None) -> bool:
    return sign_key is None and (bundle.folder / SIGNATURE_NAME).exists()


@contextmanager
def _rewritten(
    bundle: Bundle,
    stated: bytes,
    output: str | os.PathLike[str] | None,
    overwrite: bool,
    sign_key: Ed25519PrivateKey | None,
    *added: str,
) -> Iterator[BundleWriter]:
    """A writer, with the files of the bundle, that replaces it or writes `output`.

    `stated` is the bundle's manifest, which must not have changed when it is replaced; `added`: files to be written.
    """
    place = bundle.folder.resolve() if output is None else Path(output)
    with BundleWriter(place, output is None or overwrite, sign_key, stated if output is None else None) as writer:
        writer.take_files(bundle.folder, {*bundle.manifest.files, *added})
        yield writer


def _shared_prefix(
    bundle: Bundle, system: str | None, tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> list[int]:
    """The token ids with which a chat begins, whatever its first question is."""
    if not bundle.tokenizer.can_chat:
        raise TextError(f"{bundle.folder}: this bundle has no chat template, which renders the system message")
    conversation = Conversation(bundle.tokenizer, system, tools=tools, variables=variables)
    prompts = []
    for question in _QUESTIONS:
        prompts.append(conversation.ask(question))
        conversation.take_back()
    shared = [ids[0] for ids in takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))]
    if not shared:
        raise TextError(f"{bundle.folder}: prompts of its chat template begin with the question, so they share nothing")
    capacity = bundle.manifest.cache.capacity
    if len(shared) >= capacity:
        raise PromptError(f"the prefix has {len(shared)} tokens, but this bundle's context holds {capacity}")
    return shared


def _save_cache(bundle: Bundle, ids: Sequence[int], threads: int | None, file: Path) -> None:
    """Prefill the tokens on a new engine, without the prefixes that the bundle has."""
    from streamfuse.engines import engines_of
    from streamfuse.runtime.core import CoreError, CoreModel
    from streamfuse.runtime.session import Session

    model = CoreModel(bundle.spec(), bundle.tables, bundle.identity)
    with Session(engines_of(bundle, threads)(), model=model) as session:
        # The last token of a prompt is not prefilled: the first pass that generates processes it.
        session.core.start([*ids, ids[-1]], GenerationConfig(speculative=False))
        while session.core.read():
            pass
        session.core.save(os.fspath(file))
    try:
        model.add_prefix(os.fspath(file))
    except CoreError:  # the file has no cache
        target = bundle.manifest.target
        raise BundleError(
            f"{bundle.folder}: the engine of target {target} cannot save its cache; export the model for target "
            "executorch to store a prefix"
        ) from None


def _prefixes(manifest: Manifest, adapter: str | None) -> Mapping[str, Prefix]:
    """The stored prefixes of the base model, or of a task adapter, by name."""
    return manifest.prefixes if adapter is None else manifest.adapters[adapter].prefixes


def _with_prefixes(manifest: Manifest, adapter: str | None, prefixes: dict[str, Prefix]) -> dict[str, Any]:
    """The fields of the manifest with other prefixes of the base model or of a task adapter, for
    BundleWriter.write_manifest."""
    fields = {field: getattr(manifest, field) for field in Manifest.model_fields}
    del fields["format_version"], fields["files"]
    if adapter is None:
        fields["prefixes"] = prefixes
    else:
        changed = manifest.adapters[adapter].model_copy(update={"prefixes": prefixes})
        fields["adapters"] = {**manifest.adapters, adapter: changed}
    return fields
