"""With a public key, a bundle that this key did not sign is refused in one sentence.

Run: python -m pytest tests/bundle/test_bundle_signature.py
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_damages import cut, flip_a_byte
from bundle_samples import PrintableBackend, edit_manifest, fake_engines, manifest_fields, write_bundle, write_tokenizer
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from signed_samples import OF_NOTHING, OTHER_PUBLIC, PUBLIC, SECRET, rfc_key, write_signed_bundle
from typer.testing import CliRunner

import streamfuse
from streamfuse import engines
from streamfuse.bundle import BundleError, BundleWriter, KeyProblem, open_bundle, sign_bundle
from streamfuse.bundle.signature import (
    check_public_key,
    public_line,
    read_private_key,
    read_public_key,
    sign,
    write_keys,
)
from streamfuse.cli import app

FIELD, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_signed_bundle(tmp_path / "demo")


def verdict(folder: Path, public_key: str = PUBLIC) -> str | None:
    """The sentence with which a bundle is refused; None where it opens."""
    try:
        open_bundle(folder, verify=False, public_key=public_key)
    except (BundleError, KeyProblem) as error:
        return str(error)
    return None


def is_signed(folder: Path, manifest: bytes, signature: bytes, public_key: str) -> bool:
    """Whether a reader goes on to read this manifest."""
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(manifest)
    (folder / "manifest.sig").write_bytes(signature)
    refused = verdict(folder, public_key) or ""
    return "does not sign" not in refused and "public key" not in refused


def test_the_library_signs_as_the_standard_says() -> None:
    assert rfc_key().sign(b"").hex() == OF_NOTHING
    assert public_line(rfc_key()) == PUBLIC
    assert check_public_key(f" {PUBLIC.upper()}\r\n") == PUBLIC.upper()


def test_what_is_signed_stays_what_it_was(tmp_path: Path) -> None:
    """Old signatures must hold: the bytes before the manifest are part of the format."""
    assert sign(b"{}\n", rfc_key()) == rfc_key().sign(b"streamfuse bundle manifest v1\n{}\n")
    assert is_signed(tmp_path / "ours", b"{}\n", sign(b"{}\n", rfc_key()), PUBLIC)
    assert not is_signed(tmp_path / "bare", b"", bytes.fromhex(OF_NOTHING), PUBLIC)


def test_a_signed_bundle_opens_with_and_without_the_key(bundle: Path) -> None:
    assert verdict(bundle) is None
    assert verdict(bundle, f"{PUBLIC.upper()}\n") is None
    assert "manifest.sig" not in open_bundle(bundle).manifest.files
    assert (bundle / "manifest.sig").stat().st_size == 64


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda bundle: (bundle / name).write_bytes(change((bundle / name).read_bytes()))


def replaced(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda bundle: ((bundle / "manifest.sig").unlink(), make(bundle / "manifest.sig"))


def add_the_order(signature: bytes) -> bytes:
    """The same number in another form, which a careless reader takes."""
    return signature[:32] + (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")


def without_a_nonce(bundle: Path) -> None:
    """What the owner of the key can make with the point 0 instead of a random one; lax readers take it."""
    manifest, public, point = (bundle / "manifest.json").read_bytes(), bytes.fromhex(PUBLIC), b"\x01" + bytes(31)
    scalar = bytearray(hashlib.sha512(bytes.fromhex(SECRET)).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 63 | 64
    message = b"streamfuse bundle manifest v1\n" + manifest
    challenge = int.from_bytes(hashlib.sha512(point + public + message).digest(), "little")
    answer = challenge * int.from_bytes(scalar, "little") % ORDER
    made = point + answer.to_bytes(32, "little")
    ed25519.Ed25519PublicKey.from_public_bytes(public).verify(made, message)
    (bundle / "manifest.sig").write_bytes(made)


DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "missing": (replaced(lambda path: None), ["manifest.sig: missing", "streamfuse bundle sign"]),
    "empty": (edit("manifest.sig", lambda data: b""), ["manifest.sig: 64 bytes expected, 0 found"]),
    "cut short": (lambda b: cut(b, "manifest.sig"), ["manifest.sig: 64 bytes expected, 63 found"]),
    "grown": (edit("manifest.sig", lambda data: data + b"\n"), ["64 bytes expected, 65 found"]),
    "as text": (edit("manifest.sig", lambda data: data.hex().encode()), ["64 bytes expected, 128 found"]),
    "all zero": (edit("manifest.sig", lambda data: bytes(64)), ["manifest.sig: does not sign"]),
    "all ones": (edit("manifest.sig", lambda data: b"\xff" * 64), ["does not sign"]),
    "with the order added": (edit("manifest.sig", add_the_order), ["does not sign"]),
    "with a point of small order": (without_a_nonce, ["does not sign"]),
    "a folder": (replaced(Path.mkdir), ["manifest.sig: cannot be read (not a regular file)"]),
    "a pipe": (replaced(os.mkfifo), ["manifest.sig: cannot be read (not a regular file)"]),
    "a link to nothing": (replaced(lambda path: path.symlink_to("nothing")), ["manifest.sig: cannot be read"]),
    "a device": (replaced(lambda path: path.symlink_to("/dev/zero")), ["manifest.sig: a link out of"]),
    "one bit of the manifest": (edit("manifest.json", lambda d: d[:-2] + bytes([d[-2] ^ 1]) + d[-1:]), ["does not"]),
    "a space in the manifest": (edit("manifest.json", lambda data: data + b" "), ["manifest.sig: does not sign"]),
    "a manifest with another hash": (
        lambda b: edit_manifest(b, lambda data: data["files"]["model.pte"].update(sha256="0" * 64)),
        ["manifest.sig: does not sign"],
    ),
    "a manifest that is no JSON": (edit("manifest.json", lambda data: b"{"), ["manifest.sig: does not sign"]),
    "a file that was changed": (flip_a_byte, ["model.pte: files.sha256"]),
    "a file that is gone": (lambda b: (b / "model.pte").unlink(), ["model.pte", "no such file"]),
    "no manifest": (lambda b: (b / "manifest.json").unlink(), ["manifest.json: missing"]),
    "no folder": (shutil.rmtree, ["no such folder"]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_named(name: str, bundle: Path) -> None:
    damage, words = DAMAGES[name]
    damage(bundle)
    problem = verdict(bundle)
    assert problem is not None
    assert all(word in problem for word in words), problem


def test_no_other_bit_will_do(bundle: Path) -> None:
    signature = (bundle / "manifest.sig").read_bytes()
    assert verdict(bundle) is None
    for place in range(512):
        changed = bytearray(signature)
        changed[place // 8] ^= 1 << place % 8
        (bundle / "manifest.sig").write_bytes(changed)
        assert "does not sign" in str(verdict(bundle))


def test_another_key_is_not_this_one(bundle: Path) -> None:
    assert "does not sign" in str(verdict(bundle, OTHER_PUBLIC))
    sign_bundle(bundle, ed25519.Ed25519PrivateKey.generate())
    assert "another key signed it" in str(verdict(bundle))


def point(y: int, sign: int = 0) -> str:
    return (y | sign << 255).to_bytes(32, "little").hex()


EIGHTH = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
SMALL = (0, 1, FIELD - 1, EIGHTH, FIELD - EIGHTH)  # orders 4, 1, 2, 8, 8


NO_DIGITS = (
    "", PUBLIC[:-1], PUBLIC + "0", PUBLIC[:-1] + "g", "+" + PUBLIC[1:], PUBLIC[:32] + " " + PUBLIC[32:], "\u0660" * 64,
    "-----BEGIN PUBLIC KEY-----", "\udcff" * 64,
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "words"),
    [
        *((text, "64 hexadecimal digits") for text in NO_DIGITS),
        *((point(y, sign), "weak") for y in SMALL for sign in (0, 1)),
        *((point(y, sign), "no point") for y in (FIELD, FIELD + 1, FIELD + 3, 2**255 - 1) for sign in (0, 1)),
        *((point(y), "no point") for y in (2, 7, FIELD - 2)),
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused_before_the_bundle_is_read(key: str, words: str, tmp_path: Path) -> None:
    assert words in str(verdict(tmp_path / "nowhere", key))


def test_half_of_a_thousand_random_numbers_are_keys(bundle: Path) -> None:
    rng, fit = random.Random(5), 0
    for _ in range(1000):
        fit += "does not sign" in str(verdict(bundle, rng.randbytes(32).hex()))
    assert 400 < fit < 600  # half of all numbers are points


def test_a_key_that_would_sign_everything_signs_nothing(tmp_path: Path) -> None:
    zero, signature = b"\x01" + bytes(31), b"\x01" + bytes(63)
    ed25519.Ed25519PublicKey.from_public_bytes(zero).verify(signature, b"anything")  # the library alone takes it
    assert not is_signed(tmp_path / "zero", b"{}", signature, zero.hex())


def test_a_writer_with_a_key_signs_and_one_without_leaves_no_old_signature(bundle: Path) -> None:
    def write(key: ed25519.Ed25519PrivateKey | None, left: bytes | None = None) -> None:
        with BundleWriter(bundle, overwrite=True, sign_key=key) as writer:
            (writer.folder / "model.pte").write_text("new")
            write_tokenizer(writer.folder)
            if left is not None:
                (writer.folder / "manifest.sig").write_bytes(left)
            writer.write_manifest(**manifest_fields())

    old = (bundle / "manifest.sig").read_bytes()
    for copied in (None, old):
        write(None, copied)
        assert "manifest.sig: missing" in str(verdict(bundle))
        assert set(open_bundle(bundle).manifest.files) == {"model.pte", "tokenizer.json"}
    write(rfc_key(), old)
    open_bundle(bundle, public_key=PUBLIC)
    assert (bundle / "manifest.sig").read_bytes() != old


def test_signing_takes_one_step_and_a_sound_bundle(bundle: Path, tmp_path: Path) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    (bundle / ".manifest.sig.partial").write_bytes(b"left by a killed one")
    before = (bundle / "manifest.sig").stat().st_ino
    sign_bundle(bundle, other)
    assert (bundle / "manifest.sig").stat().st_ino != before
    assert verdict(bundle, public_line(other)) is None
    assert sorted(path.name for path in bundle.iterdir()) == [
        "manifest.json", "manifest.sig", "model.pte", "tokenizer.json",
    ]  # fmt: skip
    flip_a_byte(bundle)
    with pytest.raises(BundleError, match=r"model\.pte: files\.sha256"):
        sign_bundle(bundle, rfc_key())
    assert "does not sign" not in str(verdict(bundle, public_line(other)))
    with pytest.raises(BundleError, match="no such folder"):
        sign_bundle(tmp_path / "nowhere" / "at all", rfc_key())


def test_a_signature_that_cannot_be_written_is_one_sentence(bundle: Path) -> None:
    (bundle / "manifest.sig").unlink()
    (bundle / "manifest.sig").mkdir()
    with pytest.raises(BundleError, match=r"manifest\.sig: cannot be written"):
        sign_bundle(bundle, rfc_key())
    assert not (bundle / ".manifest.sig.partial").exists()


def test_a_pair_of_keys_is_written_for_its_owner(tmp_path: Path) -> None:
    private, public = tmp_path / "a.key", tmp_path / "a.pub"
    line = write_keys(private, public)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert private.read_text().startswith("-----BEGIN PRIVATE KEY-----\n")
    assert public.read_text() == f"{line}\n"
    assert read_public_key(public) == line == public_line(read_private_key(private))
    for taken in (private, public):
        kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(KeyProblem, match=f"{taken.name}: exists already"):
            write_keys(private, public)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept
        private.unlink(missing_ok=True)
    with pytest.raises(KeyProblem, match=r"b\.key: cannot be written"):
        write_keys(tmp_path / "none" / "b.key", tmp_path / "b.pub")


def pem(key: Any, encryption: Any = None) -> bytes:
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
    return made


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a private key in PEM"),
        (b"\xff" * 100, "not a private key in PEM"),
        (bytes.fromhex(SECRET), "not a private key in PEM"),
        (PUBLIC.encode(), "not a private key in PEM"),
        (rfc_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), "not a private key"),
        (pem(rfc_key())[:-40] + b"\n-----END PRIVATE KEY-----\n", "not a private key in PEM"),
        (pem(rfc_key(), BestAvailableEncryption(b"secret")), "has a passphrase"),
        (pem(x25519.X25519PrivateKey.generate()), "not an ed25519 private key"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "not an ed25519 private key"),
        (b"x" * 70_000, "too large for a key"),
    ],
)
def test_a_file_that_holds_no_private_key_is_named_and_not_shown(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.key").write_bytes(data)
    with pytest.raises(KeyProblem) as caught:
        read_private_key(tmp_path / "a.key")
    assert str(caught.value).startswith(f"{tmp_path / 'a.key'}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_from_keys_to_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "engines_of", fake_engines(PrintableBackend)[1])
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    bundle = write_bundle(tmp_path / "demo")
    code, line, stderr = command("bundle", "keygen", "release.v1")
    assert (code, line) == (0, (tmp_path / "release.v1.pub").read_text())
    assert "release.v1.key signs; keep it secret" in stderr
    assert command("bundle", "keygen", "release.v1")[0] == 1
    code, stdout, stderr = command("bundle", "keygen", ".")
    assert (code, stdout) == (2, "")
    assert "NAME . is a folder; name the keys in it, for example release" in stderr

    def refused(*arguments: object) -> str:
        code, stdout, stderr = command(*arguments, "--public-key", "release.v1.pub")
        assert (code, stdout, stderr.count("\n")) == (1, "", 1)
        return stderr

    for arguments in (["run", bundle, "hi"], ["chat", bundle], ["bundle", "inspect", bundle, "--json"]):
        assert "manifest.sig: missing; the bundle is not signed" in refused(*arguments)
    assert command("bundle", "sign", bundle, "--key", "release.v1.key")[:2] == (0, f"{bundle}/manifest.sig\n")
    assert command("run", bundle, "hi", "--public-key", "release.v1.pub") == command("run", bundle, "hi")
    code, _, stderr = command("bundle", "inspect", bundle, "--json", "--public-key", "release.v1.pub")
    assert (code, stderr) == (0, f"signed with {line}")
    with streamfuse.load(bundle, public_key=line) as model:
        assert model.generate("hi").text
    (tmp_path / "old.pub").write_text(OTHER_PUBLIC)
    assert command("run", bundle, "hi", "--public-key", "old.pub")[0] == 1
    flip_a_byte(bundle)
    assert "model.pte: files.sha256" in refused("run", bundle, "hi")
    assert command("bundle", "sign", bundle, "--key", "release.v1.key")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "demo", "hi", "--public-key", "nowhere.pub"], "'--public-key': nowhere.pub: cannot be read"),
        (["run", "demo", "hi", "--public-key", "demo"], "'--public-key': demo: cannot be read"),
        (["chat", "demo", "--public-key", "a.key"], "'--public-key': a.key: the public key must be 64 hexadecimal"),
        (
            ["bundle", "inspect", "demo", "--public-key", "weak.pub"],
            "'--public-key': weak.pub: the public key is no point",
        ),
        (["bundle", "inspect", "demo", "--public-key", "a.pub", "--no-verify"], "--no-verify does not go with it"),
        (["bundle", "sign", "demo"], "--key"),
        (["bundle", "sign", "demo", "--key", "a.pub"], "--key a.pub: not a private key in PEM"),
        (["export", "-o", "new", "--sign-key", "a.pub"], "--sign-key a.pub: not a private key in PEM"),
    ],
)
def test_bad_use_is_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_bundle(tmp_path / "demo")
    write_keys(tmp_path / "a.key", tmp_path / "a.pub")
    (tmp_path / "weak.pub").write_text(point(1))
    code, stdout, stderr = command(*arguments)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert words in stderr
    assert "PRIVATE" not in stderr
