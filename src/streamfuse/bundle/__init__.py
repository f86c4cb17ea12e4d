"""The bundle: one folder that holds all a runtime reads. See docs/bundle.md.

`Manifest` is the schema, `open_bundle` checks a folder against it, `BundleWriter` makes one, `sign_bundle` signs one.
This module knows neither PyTorch nor an engine; exporters and runtimes meet here.
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
