"""The one error of the emulator."""

from __future__ import annotations


class EmulatorError(ValueError):
    """A package or a request that the emulator cannot serve, said in one sentence."""
