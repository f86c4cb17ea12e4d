"""The target Core ML. coremltools warns at import of what it cannot do on this machine: run models, mostly."""

import logging

_before = logging.root.manager.disable
logging.disable(logging.WARNING)
import coremltools  # noqa: E402, F401

logging.disable(_before)
