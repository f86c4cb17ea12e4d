"""The bundle: one folder that holds all a runtime reads. See docs/bundle.md.

`Manifest` is the schema, `open_bundle` checks a folder against it, `BundleWriter` makes one. This module knows neither
PyTorch nor an engine; exporters and runtimes meet here.
"""

from .errors import BundleError
from .manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, parse_manifest
from .reader import Bundle, open_bundle
from .writer import BundleWriter

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "Bundle",
    "BundleError",
    "BundleWriter",
    "Manifest",
    "open_bundle",
    "parse_manifest",
]
