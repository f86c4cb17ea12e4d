"""Digests of files that may be larger than memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_BLOCK_BYTES = 1024 * 1024


def sha256_of(files: Iterable[Path]) -> str:
    """Hex digest of the files' contents, one after another, read in blocks."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def stamp_of(*files: Path) -> str:
    """A short digest of files' paths, sizes and modification times, for commands in which hashing gigabytes would take
    too long."""
    found = [(path.resolve(), path.stat()) for path in files]
    facts = [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in found]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
