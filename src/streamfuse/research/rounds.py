"""What a round of speculation reads and multiplies, from the manifests of its bundles: computed, nothing is run.

A round is the passes that advance the text once: one `decode`, or drafting and one verify pass. Where reading the
weights is all that counts, the fewest bytes per token of the text win; how many multiply-accumulates come with a byte
says how much of a processor's arithmetic they use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from streamfuse.bench.shared.work import work_of
from streamfuse.bundle import open_bundle
from streamfuse.bundle.manifest import DECODE, VERIFY_PREFIX, Manifest


@dataclass(frozen=True, slots=True)
class Round:
    """Work of one round.

    Attributes:
        verified: tokens that the target computes in it.
        tokens: by how many tokens it advances the text.
    """

    name: str
    bytes: float
    macs: float
    verified: int
    tokens: float

    def to_dict(self) -> dict[str, Any]:
        """An entry of `rounds` in `--json`."""
        return {
            **asdict(self),
            "macs_per_byte": self.macs / self.bytes,
            "bytes_per_verified": self.bytes / self.verified,
            "macs_per_verified": self.macs / self.verified,
            "bytes_per_token": self.bytes / self.tokens,
            "macs_per_token": self.macs / self.tokens,
        }


def read_round(text: str, context: int) -> Round:
    """Parse NAME=PASS+PASS@TOKENS with PASS = [N*]BUNDLE:METHOD; TOKENS, the tokens per round, is 1 by default.

    Args:
        context: tokens in the cache while the passes run.

    Raises:
        ValueError: the text does not have that form, or a bundle has no such method.
        BundleError, WorkError: a folder is no bundle, or its manifest lacks the sizes of its parts.
    """
    name, equals, rest = text.partition("=")
    passes, _, advance = rest.rpartition("@") if "@" in rest else (rest, "", "1")
    try:
        tokens = float(advance)
    except ValueError:
        tokens = 0.0
    if not (name and equals and passes) or not tokens > 0:
        raise ValueError(f"{text}: expected NAME=[N*]BUNDLE:METHOD+...@TOKENS, with TOKENS above 0")
    read = macs = 0.0
    plain = verified = 0
    for one in passes.split("+"):
        count, manifest, method = _parse_pass(one)
        work = work_of(manifest, method, context).values()
        read += count * sum(part.bytes for part in work)
        macs += count * sum(part.macs for part in work)
        if method.startswith(VERIFY_PREFIX):
            verified += count * manifest.methods[method].rows
        elif method == DECODE:
            plain += count
    return Round(name, read, macs, verified or max(plain, 1), tokens)


def _parse_pass(text: str) -> tuple[int, Manifest, str]:
    times, star, place = text.rpartition("*")
    folder, colon, method = place.rpartition(":")
    if not (folder and colon) or (star and not (times.isdecimal() and int(times) > 0)):
        raise ValueError(f"{text}: expected [N*]BUNDLE:METHOD, with N from 1")
    manifest = open_bundle(Path(folder), verify=False).manifest
    if method not in manifest.methods:
        raise ValueError(f"{text}: {folder} has the methods {', '.join(manifest.methods)}")
    return int(times or 1), manifest, method


def round_rows(rounds: Sequence[Round]) -> tuple[list[str], list[list[str]]]:
    """One row per round; bytes in MB, multiply-accumulates in millions."""
    columns = ["round", "verified", "tokens", "MB", "per verified", "per token", "MMAC", "per verified", "per token"]
    rows = []
    for one in rounds:
        facts = one.to_dict()
        megabytes = [f"{facts[key] / 1e6:.1f}" for key in ("bytes", "bytes_per_verified", "bytes_per_token")]
        macs = [f"{facts[key] / 1e6:.0f}" for key in ("macs", "macs_per_verified", "macs_per_token")]
        counts = [one.name, str(one.verified), f"{one.tokens:.2f}"]
        rows.append([*counts, *megabytes, *macs, f"{facts['macs_per_byte']:.1f}"])
    return [*columns, "MAC per byte"], rows
