"""From a checkpoint and an adapter to a bundle (docs/export.md).

streamfuse.export_bundle("build/phone", target="coreml", layout="ane")
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

from streamfuse.adapters import DEFAULT, find
from streamfuse.model.pull import DEFAULT_MODEL

if TYPE_CHECKING:
    from .pipeline import Report


def export_bundle(
    output_dir: str | PathLike[str],
    *,
    model: str | PathLike[str] = DEFAULT_MODEL,
    adapter: str | PathLike[str] | None = "auto",
    progress: Callable[[str], None] | None = None,
    sign_key: str | PathLike[str] | None = None,
    **plan: Any,
) -> Report:
    """Write a bundle, atomically: `streamfuse.export_bundle(output_dir, model=..., adapter=..., **plan)` -> Report.

    Args:
        adapter: the name of a shipped one, or a file; None or "none": no streams; "auto": the shipped one where it fits
            the model, else none, with a warning that says how to train one.
        progress: hears of each step.
        sign_key: the file of a private key (`streamfuse bundle keygen`) that signs the bundle.
        plan: options by the names of ExportPlan (export/plan.py), an enum also by its word.

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
    import warnings
    from pathlib import Path

    from streamfuse.bundle.signature import read_private_key
    from streamfuse.model.pull import resolve_model

    from .adapter import choose_adapter, is_named, load_plan
    from .plan import options_of
    from .plan_file import NO_ADAPTER

    key = None if sign_key is None else read_private_key(Path(sign_key))
    said = NO_ADAPTER if adapter is None else str(adapter)
    first = None if said == NO_ADAPTER else find(said if is_named(said) else DEFAULT)
    options = options_of(plan)
    load_plan(Path(model), first, Path(output_dir), **options)  # refuses an option before anything is downloaded
    folder = resolve_model(str(model))  # may be a download, so the last thing before the work
    chosen = choose_adapter(said, folder, str(model))
    if chosen.note is not None:
        warnings.warn(chosen.note, stacklevel=2)
    made = load_plan(folder, chosen.path, Path(output_dir), **options)
    from .pipeline import export_plan

    return export_plan(made, progress or (lambda _: None), {"model": str(model), "adapter": chosen.word}, key)
