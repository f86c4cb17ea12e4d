"""Writing a bundle: into a sibling folder first, then renamed, so nobody ever sees half of one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import BaseModel

from .errors import BundleError
from .manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, manifest_json, parse_manifest
from .reader import file_sha256


class BundleWriter:
    """Context manager; write files below `folder`, then call `write_manifest` once.

        with BundleWriter(Path("build/demo"), overwrite=True) as writer:
            (writer.folder / "model.pte").write_bytes(...)
            writer.write_manifest(model=..., methods=..., ...)

    On a normal exit the folder takes its final name in one rename; on an exception it is removed and whatever was at
    the final name stays as it was.

    Raises:
        BundleError: the target exists and `overwrite` is off, or is something else than a bundle; a manifest that is
            wrong or was never written.
    """

    def __init__(self, path: Path | str, overwrite: bool = False) -> None:
        self.path = Path(path)
        self._overwrite = overwrite
        self._folder: Path | None = None
        self._manifest: Manifest | None = None

    @property
    def folder(self) -> Path:
        """The temporary folder to write into; files below it, in any depth, become part of the bundle."""
        if self._folder is None:
            raise BundleError(f"{self.path}: the writer is not open")
        return self._folder

    def __enter__(self) -> BundleWriter:
        self._refuse_if_taken()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.partial-", dir=self.path.parent))
        except OSError as error:
            raise BundleError(f"{self.path}: cannot be written ({error.strerror})") from None
        self._folder.chmod(0o777 & ~_umask())  # mkdtemp gives 0700, a bundle is an ordinary folder
        return self

    def write_manifest(self, **fields: Any) -> Manifest:
        """Hash every file written so far and write `manifest.json`.

        Args:
            fields: the fields of `Manifest` but `format_version` and `files`, as its models or as plain dictionaries.
        """
        files = {
            path.relative_to(self.folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path != self.folder / MANIFEST_NAME
        }
        data = {**fields, "format_version": FORMAT_VERSION, "files": files}
        where = self.path / MANIFEST_NAME
        try:
            text = json.dumps(data, default=_model_as_dict, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BundleError(f"{where}: cannot be written as JSON ({error})") from None
        self._manifest = parse_manifest(text, str(where))
        (self.folder / MANIFEST_NAME).write_text(manifest_json(self._manifest), encoding="utf-8")
        return self._manifest

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        folder = self.folder
        try:
            if kind is None:
                if self._manifest is None:
                    raise BundleError(f"{self.path / MANIFEST_NAME}: was never written")
                self._publish(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # already renamed where all went well
            self._folder = None

    def _refuse_if_taken(self) -> None:
        if not self.path.name:
            raise BundleError(f"{self.path}: not the name of a folder")
        if not os.path.lexists(self.path):
            return
        if not self._overwrite:
            raise BundleError(f"{self.path}: exists already; choose another folder or allow overwriting")
        is_bundle = self.path.is_dir() and not self.path.is_symlink() and (self.path / MANIFEST_NAME).is_file()
        is_empty = self.path.is_dir() and not any(self.path.iterdir())
        if not is_bundle and not is_empty:
            raise BundleError(f"{self.path}: exists and is not a bundle, so it is not overwritten")

    def _publish(self, folder: Path) -> None:
        self._refuse_if_taken()  # once more: someone may have written it meanwhile
        if not os.path.lexists(self.path):
            folder.rename(self.path)
            return
        # A folder cannot be replaced in one step: the old one steps aside, and comes back if the new one fails to move.
        aside = folder.with_name(folder.name + ".old")
        self.path.rename(aside)
        try:
            folder.rename(self.path)
        except BaseException:
            aside.rename(self.path)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _model_as_dict(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a field of the manifest")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
