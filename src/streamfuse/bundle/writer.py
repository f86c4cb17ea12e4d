"""Writes a bundle: into a sibling folder, which is flushed and then renamed, so that no partial bundle is ever visible.

An overwritten bundle is exchanged with the new one atomically. If the system cannot do that, the old one is moved aside
between two renames (`durable.replace_folder`); after a crash in between, readers open it from there, and the next
writer moves it back.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from streamfuse.digest import sha256_of
from streamfuse.durable import FULL, flush_tree, reason, recover_folder, replace_file, replace_folder, uncache

from .errors import BundleError
from .manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, manifest_json, parse_manifest
from .reader import open_bundle
from .signature import SIGNATURE_NAME, sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class BundleWriter:
    """Context manager: write files below `folder`, then call `write_manifest` once.

        with BundleWriter(Path("build/demo"), overwrite=True) as writer:
            (writer.folder / "model.pte").write_bytes(...)
            writer.write_manifest(model=..., methods=..., ...)

    On a normal exit the folder is flushed to disk and renamed to its final name; on an exception it is removed, and an
    existing bundle is unchanged. The next writer of the same name removes what a killed writer left.

    Args:
        path: of the bundle.
        overwrite: whether a bundle that is there may be replaced.
        sign_key: signs the manifest; None: it is not signed.
        replaces: the bytes that the manifest of the replaced bundle must have; None: any.

    Raises:
        BundleError: the target exists and `overwrite` is off, it is not a bundle, or its manifest is not `replaces`;
            the manifest is invalid or was never written.
    """

    def __init__(
        self,
        path: Path | str,
        overwrite: bool = False,
        sign_key: Ed25519PrivateKey | None = None,
        replaces: bytes | None = None,
    ) -> None:
        self.path = Path(path)
        self._overwrite = overwrite
        self._sign_key = sign_key
        self._replaces = replaces
        self._unlisted: set[str] = set()  # copied files that the manifest does not list
        self._folder: Path | None = None
        self._mine = -1  # the open and locked folder; unlocked when this process ends
        self._manifest: Manifest | None = None

    @property
    def folder(self) -> Path:
        """The temporary folder to write into; all files below it become part of the bundle."""
        if self._folder is None:
            raise BundleError(f"{self.path}: the writer is not open")
        return self._folder

    def __enter__(self) -> BundleWriter:
        if not self.path.name:
            raise BundleError(f"{self.path}: not the name of a folder")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.parent):
                self._recover()
                self._refuse_if_taken()
                self._folder = Path(tempfile.mkdtemp(prefix=self._partial, dir=self.path.parent))
                self._mine = _lock(self._folder)
        except OSError as error:
            raise BundleError(f"{self.path}: cannot be written ({reason(error)})") from None
        self._folder.chmod(0o777 & ~_umask())  # mkdtemp creates it with 0700
        return self

    def take_files(self, bundle: Path, listed: Collection[str]) -> None:
        """Take over all files of a bundle's folder, except its manifest and signature. Files that are not in `listed`,
        the old manifest's files, are kept, but the new manifest does not list them. Files of the bundle that is
        overwritten are linked instead of copied, if the file system can: add files or replace them, but do not write
        into them."""
        is_own, here = bundle.resolve() == self.path.resolve(), self.folder.resolve()
        for source in bundle.rglob("*"):
            name = source.relative_to(bundle)
            is_new = here in source.resolve().parents  # of a bundle that is written into this one's folder
            if not source.is_file() or is_new or name.as_posix() in (MANIFEST_NAME, SIGNATURE_NAME):
                continue
            if name.as_posix() not in listed:
                self._unlisted.add(name.as_posix())
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if is_own:
                with suppress(OSError):
                    os.link(source.resolve(), target)
            if not target.exists():
                shutil.copyfile(source, target)

    def write_manifest(self, **fields: Any) -> Manifest:
        """Hash every file written so far and write `manifest.json`, with a signature if the writer has a key.

        Args:
            fields: the fields of `Manifest` except `format_version` and `files`, as its models or as dictionaries.
        """
        signature = self.folder / SIGNATURE_NAME
        others = {MANIFEST_NAME, SIGNATURE_NAME, *self._unlisted}
        found = {path.relative_to(self.folder).as_posix(): path for path in sorted(self.folder.rglob("*"))}
        files = {
            name: {"sha256": sha256_of([path]), "bytes": path.stat().st_size}
            for name, path in found.items()
            if path.is_file() and name not in others
        }
        data = {**fields, "format_version": FORMAT_VERSION, "files": files}
        where = self.path / MANIFEST_NAME
        try:
            text = json.dumps(data, default=_model_as_dict, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BundleError(f"{where}: cannot be written as JSON ({error})") from None
        self._manifest = parse_manifest(text, str(where))
        written = manifest_json(self._manifest).encode()
        (self.folder / MANIFEST_NAME).write_bytes(written)
        signature.unlink(missing_ok=True)  # a copied signature is for another manifest
        if self._sign_key is not None:
            signature.write_bytes(sign(written, self._sign_key))
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
            elif isinstance(error, OSError) and error.errno in FULL:
                raise error
        except OSError as failure:
            raise BundleError(f"{self.path}: cannot be written ({reason(failure)})") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # after an exchange this is the old bundle, if any
            if self._mine >= 0:
                os.close(self._mine)
            self._folder = None

    @property
    def _partial(self) -> str:
        """Prefix of the names of temporary folders."""
        return f".{self.path.name}.partial-"

    def _recover(self) -> None:
        """Move back what a killed writer set aside, and remove its partial files."""
        recover_folder(self.path)
        for left in self.path.parent.iterdir():
            if left.name.startswith(self._partial) and (lock := _lock(left)) >= 0:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)

    def _refuse_if_taken(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self._overwrite:
            raise BundleError(f"{self.path}: exists already; choose another folder or allow overwriting")
        # Other programs have files of this name too.
        is_folder, manifest = self.path.is_dir() and not self.path.is_symlink(), self.path / MANIFEST_NAME
        is_bundle = is_folder and manifest.is_file() and b'"format_version"' in manifest.read_bytes()
        is_empty = is_folder and not any(self.path.iterdir())
        if not is_bundle and not is_empty:
            raise BundleError(f"{self.path}: exists and is not a bundle, so it is not overwritten")
        if self._replaces is not None and manifest.read_bytes() != self._replaces:
            raise BundleError(f"{self.path}: another process has changed this bundle meanwhile; run the command again")

    def _publish(self, folder: Path) -> None:
        flush_tree(folder)
        for path in folder.rglob("*"):
            if path.is_file():
                uncache(path)
        with _locked(self.path.parent):
            self._refuse_if_taken()  # checked again, since another process may have written it
            replace_folder(folder, self.path)


def sign_bundle(path: Path | str, key: Ed25519PrivateKey) -> None:
    """Check a bundle with its hashes, and atomically write a signature for its current manifest.

    Raises:
        BundleError: the bundle cannot be opened or written to.
    """
    folder = open_bundle(path, verify=False).folder
    partial = folder / f".{SIGNATURE_NAME}.partial"
    try:
        with _locked(folder.parent):  # so that no writer replaces the bundle in between
            open_bundle(folder)
            signature = sign((folder / MANIFEST_NAME).read_bytes(), key)
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:
                file.write(signature)
            replace_file(partial, folder / SIGNATURE_NAME)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise BundleError(f"{folder / SIGNATURE_NAME}: cannot be written ({reason(error)})") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Serializes writers that rename in a folder; without effect on a file system without locks."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _lock(folder: Path) -> int:
    """Opens and locks the folder until it is closed or the process ends; -1 if another process has locked it, or if it
    cannot be opened, for example because its writer has just removed it."""
    number = -1
    try:
        number = os.open(folder, os.O_RDONLY)
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if number >= 0:
            os.close(number)
        return -1
    return number


def _model_as_dict(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a field of the manifest")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
