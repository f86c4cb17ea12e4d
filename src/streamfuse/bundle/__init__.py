"""The bundle: one folder with everything that a runtime reads. See docs/bundle.md.

`Manifest` is the schema, `open_bundle` checks a folder against it, `BundleWriter` writes a bundle, `sign_bundle` signs
one. This module depends neither on PyTorch nor on an engine; exporters and runtimes share only this module.
"""

from .errors import BundleError, KeyProblem
from .manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, parse_manifest
from .reader import Bundle, open_bundle
from .writer import BundleWriter, sign_bundle

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "Bundle",
    "BundleError",
    "BundleWriter",
    "KeyProblem",
    "Manifest",
    "open_bundle",
    "parse_manifest",
    "sign_bundle",
]
