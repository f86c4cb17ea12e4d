"""Opening a bundle: everything that can be wrong with the folder is found here, before an engine sees it."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BundleError
from .manifest import MANIFEST_NAME, PREFILL, STREAMS, Manifest, parse_manifest
from .signature import SIGNATURE_BYTES, SIGNATURE_NAME, is_signed, parse_public_key

if TYPE_CHECKING:
    from streamfuse.runtime.backend import ModelSpec

PTE_FILE = "model.pte"
MLPACKAGE = "model.mlpackage"  # a folder
TOKENIZER_FILE = "tokenizer.json"
DRAFT_FILE = "draft.safetensors"
SELFTEST_FILE = "selftest.npz"

_MAX_MANIFEST_BYTES = 16 * 1024 * 1024
_MAX_TOKENIZER_BYTES = 128 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder whose manifest was read and, unless asked otherwise, whose files were checked."""

    folder: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """The path of a file that the manifest lists. BundleError if it does not."""
        if name not in self.manifest.files:
            raise BundleError(f"{self.folder / MANIFEST_NAME}: files: has no {name}")
        return self.folder / name

    @property
    def graph(self) -> Path:
        """Where the graphs are: model.pte, the folder model.mlpackage, or the bundle (an .onnx per method)."""
        return self.folder / {"executorch": PTE_FILE, "coreml": MLPACKAGE, "onnx": ""}[self.manifest.target]

    @property
    def tokenizer(self) -> Path:
        return self.file(TOKENIZER_FILE)

    @property
    def draft(self) -> Path | None:
        """The host's drafting data (docs/contracts.md, section 4); None where the bundle has none."""
        return self.file(DRAFT_FILE) if DRAFT_FILE in self.manifest.files else None

    @property
    def selftest(self) -> Path | None:
        return self.file(SELFTEST_FILE) if SELFTEST_FILE in self.manifest.files else None

    def spec(self) -> ModelSpec:
        """The facts that the loop needs, as the runtime's own type."""
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


def open_bundle(path: Path | str, verify: bool = True, public_key: str | None = None) -> Bundle:
    """Read and check a bundle. `verify=False` skips the hashes of the files, never their names and sizes.

    Args:
        public_key: the line that `streamfuse bundle keygen` wrote. The manifest must be signed with it, and hashes are
            checked whatever `verify` says.

    Raises:
        BundleError: with one line that names the file and the field.
        KeyProblem: `public_key` is no key.
        MissingExtra: `public_key` needs the package cryptography, which is not installed.
    """
    key = None if public_key is None else parse_public_key(public_key)
    folder = Path(path)
    if not os.path.lexists(folder) and (aside := set_aside(folder)).is_dir():
        folder = aside  # a writer was killed before the new one had the name
    if not folder.exists():
        raise BundleError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise BundleError(f"{folder}: not a folder; a bundle is a folder with {MANIFEST_NAME}")
    text = _read_manifest(folder)
    if key is not None:
        _check_signature(folder, text, key)  # before anything in the manifest is believed
    manifest = parse_manifest(text, str(folder / MANIFEST_NAME))
    graphs = {
        "executorch": [PTE_FILE],
        "coreml": [f"{MLPACKAGE}/Manifest.json"],
        "onnx": [f"{method}.onnx" for method in manifest.methods],
    }
    required = [TOKENIZER_FILE, *graphs[manifest.target]]
    if manifest.speculation.parent_rank:
        required.append(DRAFT_FILE)
    for name in required:
        if name not in manifest.files:
            raise BundleError(f"{folder / MANIFEST_NAME}: files: has no {name}")
    size = manifest.files[TOKENIZER_FILE].bytes
    if size > _MAX_TOKENIZER_BYTES:
        where = f"{folder / MANIFEST_NAME}: files.{TOKENIZER_FILE}.bytes"
        raise BundleError(f"{where}: {size} bytes is too large for a tokenizer")
    _check_files(folder, manifest, verify or key is not None)
    return Bundle(folder, manifest)


def set_aside(folder: Path) -> Path:
    """Where the writer keeps a bundle that it overwrites, on systems that need a moment without the name."""
    return folder.with_name(f".{folder.name}.replaced") if folder.name else folder


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _read_manifest(folder: Path) -> bytes:
    path = folder / MANIFEST_NAME
    size = _find_unlisted(folder, path, f"missing; {folder} is not a streamfuse bundle")
    if size > _MAX_MANIFEST_BYTES:
        raise BundleError(f"{path}: {size} bytes is too large for a manifest")
    return _read(path, size)


def _check_signature(folder: Path, manifest: bytes, key: bytes) -> None:
    path = folder / SIGNATURE_NAME
    size = _find_unlisted(folder, path, "missing; the bundle is not signed (`streamfuse bundle sign` signs one)")
    if size != SIGNATURE_BYTES:
        raise BundleError(f"{path}: {SIGNATURE_BYTES} bytes expected, {size} found; damaged or cut short")
    if not is_signed(manifest, _read(path, size), key):
        raise BundleError(
            f"{path}: does not sign this {MANIFEST_NAME} with the given public key; the bundle was changed, or another"
            " key signed it"
        )


def _find_unlisted(folder: Path, path: Path, missing: str) -> int:
    """The size of a file that no manifest lists, so that its reader bounds it."""
    if not os.path.lexists(path):
        raise BundleError(f"{path}: {missing}")
    if _leaves(folder, path):
        raise BundleError(f"{path}: a link that leaves the bundle")
    try:
        facts = path.stat()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(facts.st_mode):  # a pipe or a device would be read for ever
        raise BundleError(f"{path}: cannot be read (not a regular file)")
    return facts.st_size


def _read(path: Path, size: int) -> bytes:
    """The bytes of a file, no more than it had when it was looked at."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None


def _check_files(folder: Path, manifest: Manifest, verify: bool) -> None:
    for name, facts in manifest.files.items():
        path = folder / name
        if _leaves(folder, path):
            raise BundleError(f"{path}: files: a link that leaves the bundle")
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError
            if found.st_size != facts.bytes:
                raise BundleError(
                    f"{path}: files.bytes: {facts.bytes} expected, {found.st_size} found; damaged or cut short"
                )
            if verify and file_sha256(path) != facts.sha256:
                raise BundleError(f"{path}: files.sha256: does not match; the file was changed or damaged")
        except (FileNotFoundError, NotADirectoryError):
            raise BundleError(f"{path}: files: listed in {MANIFEST_NAME}, but there is no such file") from None
        except OSError as error:
            raise BundleError(f"{path}: files: cannot be read ({error.strerror})") from None


def _leaves(folder: Path, path: Path) -> bool:
    """Whether a link leads out of the folder. What is not there leads nowhere."""
    root, place = os.path.realpath(folder), os.path.realpath(path)
    return os.path.exists(place) and os.path.commonpath([root, place]) != root
