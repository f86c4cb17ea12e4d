"""The emulator's only error."""

from __future__ import annotations


class EmulatorError(ValueError):
    """A package or request that the emulator does not support; the message is one sentence."""
