"""Authenticates a bundle: an ed25519 signature (RFC 8032) of its manifest, in the file `manifest.sig`.

The manifest contains the hashes of all other files, so the signature covers the bundle. docs/limits.md (Signatures)
explains what it proves. The package `cryptography` makes keys and signatures; text/ verifies them when a bundle is
opened with a key.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from streamfuse.durable import reason
from streamfuse.extras import need
from streamfuse.runtime.text_library import text_library

from .errors import KeyProblem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE_NAME = "manifest.sig"

# Prefix of the signed message, so that the signature is not valid for anything else.
_PURPOSE = b"streamfuse bundle manifest v1\n"
_MOST_KEY_BYTES = 1 << 16


def sign(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """The 64 bytes of `manifest.sig`."""
    return key.sign(_PURPOSE + manifest)


def key_argument(text: object) -> bytes:
    """A public key as an argument of the library, which checks what is in it. KeyProblem if it is not text."""
    if not isinstance(text, str):
        raise KeyProblem(f"the public key must be text, not {text!r:.40}")
    if "\0" in text:
        raise KeyProblem("the public key contains a zero byte")
    return text.encode(errors="replace")  # no key has what UTF-8 cannot write


def check_public_key(text: str) -> str:
    """The stripped line that `streamfuse bundle keygen` prints. KeyProblem if it is not a key, or a weak one."""
    line = text.strip(" \t\n\f\r")
    problem = text_library().sf_bundle_check_key(key_argument(line))
    if problem is not None:
        raise KeyProblem(problem.decode())
    return line


def read_public_key(path: Path) -> str:
    """The text of a public key's file, checked. KeyProblem names the file."""
    data = _read(path)
    try:
        return check_public_key(data.decode("ascii"))
    except UnicodeDecodeError:
        raise KeyProblem(f"{path}: not a public key: it is not text") from None
    except KeyProblem as problem:
        raise KeyProblem(f"{path}: {problem}") from None


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The key of a PEM file. KeyProblem names the file and shows nothing of the key.

    Raises:
        MissingExtra: cryptography is not installed.
    """
    need("sign")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(path)
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        raise KeyProblem(
            f"{path}: the private key has a passphrase, which is not supported; use one without, from a secret store"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyProblem(f"{path}: not a private key in PEM; make a pair with `streamfuse bundle keygen`") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyProblem(f"{path}: not an ed25519 private key; make a pair with `streamfuse bundle keygen`")
    return key


def write_keys(private: Path, public: Path) -> str:
    """Make a new key pair: the private key as PEM (PKCS #8) that only its owner can read, the public key as a line.

    Returns the line. Existing files are not overwritten (KeyProblem); if one cannot be written, neither is kept.

    Raises:
        MissingExtra: cryptography is not installed.
    """
    need("sign")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    line = public_line(key)
    written: list[Path] = []
    try:
        for path, mode, data in (
            (private, 0o600, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())),
            (public, 0o666, f"{line}\n".encode()),
        ):
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with open(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(number)
    except OSError as error:
        for left in written:
            left.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise KeyProblem(f"{path}: exists already, and a key is never overwritten; choose another name") from None
        raise KeyProblem(f"{path}: cannot be written ({reason(error)})") from None
    return line


def public_line(key: Ed25519PrivateKey) -> str:
    """The public half of a key, in the form that readers accept."""
    return key.public_key().public_bytes_raw().hex()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise KeyProblem(f"{path}: cannot be read ({reason(error)})") from None
    if len(data) > _MOST_KEY_BYTES:
        raise KeyProblem(f"{path}: too large for a key")
    return data
