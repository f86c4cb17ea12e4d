"""The bundle: one folder with everything that a runtime reads. See docs/bundle.md.

`Manifest` is the schema, `open_bundle` checks a folder against it, `BundleWriter` writes a bundle, `sign_bundle` signs
one, `make_catalog` lists bundles for apps to download. This module depends neither on PyTorch nor on an engine;
exporters and runtimes share only this module.
"""

from .catalog import Catalog, make_catalog
from .errors import BundleError, KeyProblem
from .manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, parse_manifest
from .reader import Bundle, MemoryEstimate, estimate, open_bundle
from .writer import BundleWriter, sign_bundle

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "Bundle",
    "BundleError",
    "BundleWriter",
    "Catalog",
    "KeyProblem",
    "Manifest",
    "MemoryEstimate",
    "estimate",
    "make_catalog",
    "open_bundle",
    "parse_manifest",
    "sign_bundle",
]
