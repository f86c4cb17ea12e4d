"""Stores the cache of a system prompt in a bundle, so that chats with that system prompt do not prefill it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamfuse.api.options import check_adapter, prompt_config_of
from streamfuse.bundle import Bundle, BundleError, BundleWriter, open_bundle
from streamfuse.bundle.manifest import PLAIN_NAME, PLAIN_NAME_RULE, Manifest, Prefix
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
    whole = open_bundle(os.fspath(path))
    if adapter is not None:
        check_adapter(adapter, list(whole.manifest.adapters))
    bundle = whole if adapter is None else whole.adapter(adapter)
    setting = prompt_config_of(tools=tools, template_variables=template_variables)
    ids = _shared_prefix(bundle, system, setting.descriptions, setting.variables)
    loses_signature = sign_key is None and (whole.folder / SIGNATURE_NAME).exists()
    with BundleWriter(
        whole.folder.resolve() if output is None else Path(output), output is None or overwrite, sign_key
    ) as writer:
        writer.take_files(whole.folder)
        file = writer.folder / prefix_file(name, adapter)
        file.parent.mkdir(parents=True, exist_ok=True)
        _save_cache(bundle, ids, threads, file)
        shutil.copymode(writer.folder / TOKENIZER_FILE, file)
        writer.write_manifest(**_with_prefix(whole.manifest, name, adapter, len(ids)))
        size = file.stat().st_size
    return StoredPrefix(writer.path / prefix_file(name, adapter), len(ids), size, loses_signature)


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


def _with_prefix(manifest: Manifest, name: str, adapter: str | None, tokens: int) -> dict[str, Any]:
    """The fields of the manifest with one more prefix, for BundleWriter.write_manifest."""
    fields = {field: getattr(manifest, field) for field in Manifest.model_fields}
    del fields["format_version"], fields["files"]
    if adapter is None:
        fields["prefixes"] = {**manifest.prefixes, name: Prefix(tokens=tokens)}
    else:
        own = manifest.adapters[adapter]
        changed = own.model_copy(update={"prefixes": {**own.prefixes, name: Prefix(tokens=tokens)}})
        fields["adapters"] = {**manifest.adapters, adapter: changed}
    return fields
