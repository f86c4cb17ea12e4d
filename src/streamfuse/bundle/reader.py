"""Opens a bundle and checks everything about its folder before an engine loads it.

text/ (Rust) reads and checks it, as it does on phones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from ctypes import byref, create_string_buffer, pointer
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamfuse.native.library import path_argument
from streamfuse.runtime.structures import STEP, BundleOptions, Estimate, Watch
from streamfuse.runtime.text import Tokenizer
from streamfuse.runtime.text_library import BAD_ARGUMENT, OK, BundleHandle, text_library

from .errors import BundleError, KeyProblem
from .manifest import MANIFEST_NAME, PREFILL, STREAMS, Manifest
from .signature import key_argument

if TYPE_CHECKING:
    from streamfuse.runtime.backend import ModelSpec
    from streamfuse.runtime.tables import AnyArray

PTE_FILE = "model.pte"
MLPACKAGE = "model.mlpackage"  # a folder
TOKENIZER_FILE = "tokenizer.json"
DRAFT_FILE = "draft.safetensors"
SELFTEST_FILE = "selftest.npz"


@dataclass(frozen=True)
class Bundle:
    """A folder whose manifest was read and whose files were checked, unless that was turned off.

    Attributes:
        adapter_name: the task adapter that manifest, tables and tokenizer belong to; None: the base model.
    """

    folder: Path
    manifest: Manifest
    _handle: BundleHandle = field(repr=False, compare=False)
    adapter_name: str | None = None

    def adapter(self, name: str) -> Bundle:
        """The bundle with one of its task adapters. BundleError, with the names, if there is none of this name."""
        handle = self._handle.adapter(name, lambda _, sentence: BundleError(sentence))
        return Bundle(self.folder, Manifest.model_validate_json(handle.manifest), handle, name)

    def file(self, name: str) -> Path:
        """The path of a file in the manifest. BundleError if it is not listed."""
        if name not in self.manifest.files:
            raise BundleError(f"{self.folder / MANIFEST_NAME}: files: has no {name}")
        return self.folder / name

    @property
    def identity(self) -> str:
        """What tells the bundle from others: a hash over the hashes of its files, without stored prefixes."""
        return self._handle.identity

    @property
    def graph(self) -> Path:
        """The path of the graphs: model.pte, the folder model.mlpackage, or the bundle (one .onnx file per method)."""
        return self.folder / {"executorch": PTE_FILE, "coreml": MLPACKAGE, "onnx": ""}[self.manifest.target]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer and chat template."""
        return Tokenizer.of_bundle(self._handle)

    @property
    def draft(self) -> Path | None:
        """The file of `tables`; None if the bundle has none."""
        return self._own_file(DRAFT_FILE)

    @property
    def tables(self) -> dict[str, AnyArray] | None:
        """The drafting tables (docs/contracts.md, section 4) by name, in the order of the file: read-only views of the
        memory-mapped file, which must not be modified. None if the bundle has none.

        Raises:
            BundleError: an array has more than two dimensions.
        """
        from streamfuse.runtime.tables import tables_of

        if self.draft is None:
            return None
        try:
            return tables_of(self._handle)
        except ValueError as error:
            raise BundleError(f"{self.draft}: {error}") from None

    @property
    def prefixes(self) -> list[Path]:
        """The files of the stored prefixes, of the base model or of the chosen adapter."""
        return self._handle.prefixes

    def selftest(self) -> AbstractContextManager[tuple[Any, int]]:
        """The recorded passes, as CoreModel.self_test takes them. BundleError if the bundle has none, or the file is
        damaged."""
        return self._handle.selftest(BundleError)

    def _own_file(self, name: str) -> Path | None:
        """The bundle's file of this name, or that of the chosen adapter."""
        listed = name if self.adapter_name is None else adapter_file(self.adapter_name, name)
        return self.file(listed) if listed in self.manifest.files else None

    def spec(self) -> ModelSpec:
        """The specification for the loop."""
        from streamfuse.runtime.backend import ModelSpec

        manifest = self.manifest
        return ModelSpec(
            capacity=manifest.cache.capacity,
            vocab_size=manifest.model.vocab_size,
            num_streams=manifest.speculation.num_streams,
            top_k=manifest.speculation.top_k,
            prefill_rows=manifest.methods[PREFILL].rows,
            widths={name: (m.rows, m.keep or m.rows) for name, m in manifest.verify_methods.items()},
            eos_token_ids=manifest.model.eos_token_ids,
            default_width=manifest.speculation.default_width,
            stream_nodes={n: m.stream_nodes for n, m in manifest.verify_methods.items() if m.stream_nodes is not None},
            deferred=STREAMS in manifest.methods,
            stream_vocab_size=manifest.speculation.stream_vocab_size,
        )


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a bundle occupies in memory once it is loaded, in bytes.

    Weights and drafting tables are mapped files: the system can drop their pages and read them again. The KV cache is
    that of one session with a full context.
    """

    weights_bytes: int
    tables_bytes: int
    cache_bytes: int


def estimate(path: Path | str) -> MemoryEstimate:
    """Estimate the memory that a bundle needs, from its manifest. No other file is read, and none is checked.

    Raises:
        BundleError: the folder has no valid manifest.
    """
    found, sentence = Estimate(), create_string_buffer(4096)
    code = text_library().sf_bundle_estimate(path_argument(path), byref(found), sentence, len(sentence))
    if code != OK:
        raise BundleError(sentence.value.decode(errors="surrogateescape"))
    return MemoryEstimate(found.weights_bytes, found.tables_bytes, found.cache_bytes)


def prefix_file(name: str, adapter: str | None = None) -> str:
    """The name of the file in the bundle that stores a prefix."""
    file = f"prefixes/{name}.cache"
    return file if adapter is None else adapter_file(adapter, file)


def adapter_file(adapter: str, name: str) -> str:
    """The name of an adapter's own file in the bundle."""
    return f"adapters/{adapter}/{name}"


def open_bundle(
    path: Path | str,
    verify: bool = True,
    public_key: str | None = None,
    progress: Callable[[float], object] | None = None,
) -> Bundle:
    """Read and check a bundle. `verify=False` skips the hashes of the files, but not their names and sizes.

    Args:
        public_key: the line that `streamfuse bundle keygen` printed. The manifest must be signed with this key, and
            hashes are checked whatever `verify` is.
        progress: called with the share of the bytes that are hashed, from 0 to 1. An exception in it ends the call and
            is raised again.

    Raises:
        BundleError: with one line that names the file and the field.
        KeyProblem: `public_key` is not a valid key.
        LibraryError: the native libraries are not built.
    """
    library, folder = text_library(), path_argument(path)
    options = BundleOptions(skip_hashes=not verify)
    if public_key is not None:  # an empty one is refused
        options.public_key = key_argument(public_key)
    raised: list[Exception] = []
    if progress is not None:
        options.watch = pointer(_watch(progress, raised))
    handle = BundleHandle(
        lambda place: library.sf_bundle_open(folder, byref(options), place),
        lambda code, sentence: raised[0] if raised else _refusal(code, sentence),
    )
    return Bundle(handle.folder, Manifest.model_validate_json(handle.manifest), handle)


def _watch(progress: Callable[[float], object], raised: list[Exception]) -> Watch:
    """Calls `progress` with the share that is done. What it raises is put into `raised` and cancels the call, since no
    exception may cross C."""

    def step(_: object, done: int, total: int) -> int:
        try:
            progress(done / total)
        except Exception as error:
            raised.append(error)
        return len(raised)

    return Watch(step=STEP(step))


def _refusal(code: int, sentence: str) -> Exception:
    return KeyProblem(sentence) if code == BAD_ARGUMENT else BundleError(sentence)
