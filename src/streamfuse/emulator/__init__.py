"""Interprets a saved Core ML program in numpy, so that it can be checked without a Mac. See docs/targets.md."""

from streamfuse.emulator.emulator import CoreMLEmulator
from streamfuse.emulator.errors import EmulatorError

__all__ = ["CoreMLEmulator", "EmulatorError"]
