"""The target Core ML. On import, coremltools warns about what it cannot do on this machine, such as running models."""

import logging

_before = logging.root.manager.disable
logging.disable(logging.WARNING)
import coremltools  # noqa: E402, F401

logging.disable(_before)
