"""Qualcomm's QNN: is its SDK here? Everything else needs it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from streamfuse.export.plan import PlanError

_LIBRARY = "libQnnHtp.so"
_HOST = "lib/x86_64-linux-clang"


def find_sdk() -> Path:
    """The folder of the SDK.

    Raises:
        PlanError: it, or ExecuTorch's binding to it, is missing; what to install, and what to set.
    """
    if importlib.util.find_spec("executorch.backends.qualcomm.python.PyQnnManagerAdaptor") is None:
        raise PlanError(
            "--backend qnn needs ExecuTorch's Qualcomm binding, which this wheel lacks; build ExecuTorch for Linux "
            "x86-64 with backends/qualcomm/scripts/build.sh"
        )
    root = os.environ.get("QNN_SDK_ROOT", "")
    if not root:
        raise PlanError(
            "--backend qnn needs Qualcomm's AI Engine Direct SDK; install it and set QNN_SDK_ROOT to its folder"
        )
    if not (Path(root) / _HOST / _LIBRARY).is_file():
        raise PlanError(f"--backend qnn: QNN_SDK_ROOT is {root}, which has no {_HOST}/{_LIBRARY}")
    return Path(root)
