"""From a checkpoint and an adapter to a bundle (docs/export.md); the package itself can be called.

streamfuse.export("build/phone", target="coreml", layout="ane")
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING, Any

from streamfuse.adapters import DEFAULT
from streamfuse.model.pull import DEFAULT_MODEL

if TYPE_CHECKING:
    from .pipeline import Report


def export(
    output_dir: str | PathLike[str],
    *,
    model: str | PathLike[str] = DEFAULT_MODEL,
    adapter: str | PathLike[str] = DEFAULT,
    progress: Callable[[str], None] | None = None,
    sign_key: str | PathLike[str] | None = None,
    **plan: Any,
) -> Report:
    """Write a bundle, atomically: `streamfuse.export(output_dir, model=..., adapter=..., **plan)` -> Report.

    `plan` are options by the names of ExportPlan (export/plan.py), an enum also by its word. `progress` hears of each
    step. `sign_key` is the file of a private key (`streamfuse keys`) that signs the bundle.

    Raises:
        MissingExtra: a package is not installed; names the line that installs it.
        LibraryError: the native library is not built, on which the proofs run; names the line that builds it.
        TypeError: an option that a plan does not have.
        KeyProblem: the file holds no such key.
        FileNotFoundError, PlanError, CheckpointError, BundleError, LoweringError, ParityError: one sentence each;
            nothing is left behind.
    """
    from streamfuse.extras import need_export, need_native

    need_export(str(plan.get("target", "")), str(plan.get("backend", "")))
    need_native()
    from dataclasses import replace
    from pathlib import Path

    from streamfuse.adapters import find
    from streamfuse.bundle.signature import read_private_key
    from streamfuse.model.pull import resolve_model

    from .plan import ExportPlan, options_of

    key = None if sign_key is None else read_private_key(Path(sign_key))
    checked = ExportPlan(Path(model), find(str(adapter)), Path(output_dir), **options_of(plan))
    made = replace(checked, model=resolve_model(str(model)))  # may be a download, so the last thing before the work
    from .pipeline import export_bundle

    return export_bundle(made, progress or (lambda _: None), {"model": str(model), "adapter": str(adapter)}, key)


class _Package(ModuleType):
    """This package: it holds the exporter's modules, and calling it exports."""

    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _Package
