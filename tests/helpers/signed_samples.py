"""A key that everybody has, a small bundle signed with it, and its catalogue, for tests of readers in other languages.

Run: PYTHONPATH=src:tests/helpers python tests/helpers/signed_samples.py FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bundle_samples import write_bundle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from streamfuse.bundle import make_catalog, sign_bundle

# The first vector of RFC 8032, section 7.1: a key, and what it signs nothing with.
SECRET = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
OF_NOTHING = (
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655"
    "141438e7a100b"
)
OTHER_PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"  # of the second vector


def rfc_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SECRET))


def write_signed_bundle(path: Path) -> Path:
    """The bundle of bundle_samples, with a signature."""
    sign_bundle(write_bundle(path), rfc_key())
    return path


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    folder = write_signed_bundle(Path(sys.argv[1]))
    (folder / "catalog.json").write_text(make_catalog([folder]).json_text(), encoding="utf-8")
