"""Who wrote a bundle: an ed25519 signature (RFC 8032) over its manifest, in `manifest.sig` beside it.

The manifest holds the hashes of all other files, so the signature covers the bundle. docs/security.md says what it
proves. The package `cryptography` signs and verifies; it is asked for where there is a key, and nowhere else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from streamfuse.durable import reason
from streamfuse.extras import need

from .errors import KeyProblem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE_NAME = "manifest.sig"
SIGNATURE_BYTES = 64

# Stands before the manifest in what is signed, so that such a signature is one of nothing else.
_PURPOSE = b"streamfuse bundle manifest v1\n"
_MOST_KEY_BYTES = 1 << 16
_FIELD = 2**255 - 19
_D = -121665 * pow(121666, -1, _FIELD) % _FIELD  # the curve is -x^2 + y^2 = 1 + d x^2 y^2


def sign(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """The 64 bytes of `manifest.sig`."""
    return key.sign(_PURPOSE + manifest)


def is_signed(manifest: bytes, signature: bytes, public_key: bytes) -> bool:
    """Whether `signature` is one of this manifest by the key of `parse_public_key`.

    Accepts and refuses the same bytes as text/: what a weak point could sign for everybody is no signature.

    Raises:
        MissingExtra: cryptography is not installed.
    """
    need("sign")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(signature) != SIGNATURE_BYTES or not _is_sound(signature[:32]):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _PURPOSE + manifest)
    except InvalidSignature:
        return False
    return True


def parse_public_key(text: str) -> bytes:
    """The 32 bytes of the line that `streamfuse bundle keygen` writes. KeyProblem where it is none, or a weak key."""
    digits = text.strip(" \t\n\f\r")
    if not re.fullmatch("[0-9a-fA-F]{64}", digits):
        raise KeyProblem(
            "the public key must be 64 hexadecimal digits, the line that `streamfuse bundle keygen` writes"
        )
    key = bytes.fromhex(digits)
    if not _is_sound(key):
        raise KeyProblem(
            "the public key is no point of ed25519, or a weak one; make a pair with `streamfuse bundle keygen`"
        )
    return key


def read_public_key(path: Path) -> str:
    """The text of a public key's file, checked. KeyProblem names the file."""
    data = _read(path)
    try:
        text = data.decode("ascii")
        parse_public_key(text)
    except UnicodeDecodeError:
        raise KeyProblem(f"{path}: not a public key: it is not text") from None
    except KeyProblem as problem:
        raise KeyProblem(f"{path}: {problem}") from None
    return text.strip()


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The key of a PEM file. KeyProblem names the file and shows nothing of it.

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
            f"{path}: the private key has a passphrase; give one without, from a store of secrets"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyProblem(f"{path}: not a private key in PEM; make a pair with `streamfuse bundle keygen`") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyProblem(
            f"{path}: a private key of another kind than ed25519; make a pair with `streamfuse bundle keygen`"
        )
    return key


def write_keys(private: Path, public: Path) -> str:
    """A new pair: the private key as PEM (PKCS #8) that only its owner can read, the public key as its line.

    Returns the line. A file that is there stays, and is a KeyProblem; where one cannot be written, neither is left.

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
    """The public half of a key, as readers take it."""
    return key.public_key().public_bytes_raw().hex()


def _is_sound(point: bytes) -> bool:
    """Whether 32 bytes are the one name of a point of the curve that has not one of the eight small orders."""
    y = int.from_bytes(point, "little") % 2**255
    square = y * y % _FIELD
    # y is 0 at order 4, 1 or -1 at orders 1 and 2, and solves d y^4 + 2 y^2 = 1 at order 8.
    if y >= _FIELD or square in (0, 1) or (_D * square * square + 2 * square - 1) % _FIELD == 0:
        return False
    x_squared = (square - 1) * pow(_D * square + 1, -1, _FIELD)
    return pow(x_squared, (_FIELD - 1) // 2, _FIELD) == 1


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise KeyProblem(f"{path}: cannot be read ({reason(error)})") from None
    if len(data) > _MOST_KEY_BYTES:
        raise KeyProblem(f"{path}: too large for a key")
    return data
