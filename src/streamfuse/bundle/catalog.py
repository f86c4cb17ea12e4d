"""The catalogue: one JSON file beside published bundles, from which apps download them.

docs/bundle.md explains the format and its rules. Readers ignore fields that they do not know, so that fields can be
added; a change that older readers would misread increases `catalog_version`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from streamfuse.paths import own_name

from .errors import BundleError
from .manifest import MANIFEST_NAME, FileFacts, FilledLine, Line, Name, Positive, Strict
from .reader import Bundle, open_bundle
from .signature import SIGNATURE_NAME

_MOST_BYTES = 4 << 20  # that readers accept
_MOST_FILES = 1000  # of one bundle
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")

Title = Annotated[FilledLine, Field(max_length=200)]


class CatalogEntry(Strict):
    """One bundle."""

    name: Name = Field(description="its folder's name; unique in the catalogue")
    title: Title = Field(description="what people read")
    license: Line | None = Field(description="of the model; null: not stated")
    context_length: Positive = Field(description="in tokens")
    bytes: Positive = Field(description="of all files together")
    target: Literal["executorch", "coreml", "onnx"]
    backend: FilledLine
    url: FilledLine = Field(description="of the folder with the files, ends in /; relative to that of the catalogue")
    files: dict[Name, FileFacts] = Field(description="every file, manifest and signature included")


class Catalog(Strict):
    """The contents of the file."""

    catalog_version: Literal[1] = 1
    bundles: tuple[CatalogEntry, ...]

    def json_text(self) -> str:
        """The text of the file: indented, with a final newline."""
        return self.model_dump_json(indent=2) + "\n"


def make_catalog(
    folders: Sequence[Path | str],
    titles: dict[str, str] | None = None,
    base_url: str = "",
    public_key: str | None = None,
) -> Catalog:
    """Check bundles with their hashes, and describe them.

    Args:
        titles: by the name of a folder; default: the last part of the model's name.
        base_url: of the folder that has the bundles' folders, ends in /; "": the catalogue's own.
        public_key: the line that `streamfuse bundle keygen` printed; every bundle must be signed with this key.

    Raises:
        BundleError: a folder is not a bundle, its name or title cannot be used, two have the same name, or the
            catalogue is larger than readers accept.
        KeyProblem: `public_key` is not a valid key.
    """
    titles = titles or {}
    entries: dict[str, CatalogEntry] = {}
    paths: dict[str, Path] = {}
    for folder in folders:
        bundle = open_bundle(folder, public_key=public_key)
        name = own_name(bundle.folder)
        if not _NAME.fullmatch(name):
            raise BundleError(
                f"{folder}: a folder named {name!r} cannot be published; use at most 60 letters, digits, '.', '_', '-'"
            )
        if name in entries:
            raise BundleError(f"{folder}: {paths[name]} has the same name; rename one of the folders")
        title = titles.get(name, bundle.manifest.model.name.rpartition("/")[2])
        entries[name], paths[name] = _entry(bundle, name, title, base_url), bundle.folder
    for name in titles:
        if name not in entries:
            raise BundleError(f"{name}: has a title, but is not one of the bundles ({', '.join(entries)})")
    catalog = Catalog(bundles=tuple(entries.values()))
    if (size := len(catalog.json_text().encode())) > _MOST_BYTES:
        raise BundleError(f"the catalogue has {size} bytes, but readers accept {_MOST_BYTES}; write several catalogues")
    return catalog


def _entry(bundle: Bundle, name: str, title: str, base_url: str) -> CatalogEntry:
    manifest = bundle.manifest
    own = [MANIFEST_NAME, *([SIGNATURE_NAME] if (bundle.folder / SIGNATURE_NAME).is_file() else [])]
    files = {path: _facts(bundle.folder / path) for path in own} | manifest.files
    if len(files) > _MOST_FILES:
        raise BundleError(f"{bundle.folder}: has {len(files)} files, but readers accept {_MOST_FILES}")
    try:
        return CatalogEntry(
            name=name,
            title=title,
            license=manifest.model.license,
            context_length=manifest.cache.capacity,
            bytes=sum(facts.bytes for facts in files.values()),
            target=manifest.target,
            backend=manifest.backend,
            url=f"{base_url}{name}/",
            files=files,
        )
    except ValidationError as error:
        found = error.errors()[0]
        raise BundleError(f"{bundle.folder}: {'.'.join(map(str, found['loc']))}: {found['msg']}") from None


def _facts(path: Path) -> FileFacts:
    data = path.read_bytes()
    return FileFacts(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
