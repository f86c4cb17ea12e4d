"""Export: from a checkpoint and an adapter to a bundle (docs/export.md).

streamfuse.export_bundle("build/phone", target="coreml", layout="ane")
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from streamfuse.model.pull import DEFAULT_MODEL

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .config import ExportOptions
    from .pipeline import Report


def export_bundle(
    output_dir: str | PathLike[str],
    *,
    model: str | PathLike[str] = DEFAULT_MODEL,
    adapter: str | PathLike[str] | None = "auto",
    progress: Callable[[str], None] | None = None,
    sign_key: str | PathLike[str] | None = None,
    **options: Unpack[ExportOptions],
) -> Report:
    """Write a bundle, atomically: `streamfuse.export_bundle(output_dir, model=..., adapter=..., **options)` -> Report.

    Args:
        adapter: the name of a shipped adapter, or a file; None or "none": no streams; "auto": the shipped adapter if it
            fits the model, else none, with a warning that explains how to train one.
        progress: called with a description of each step.
        sign_key: the file of a private key (`streamfuse bundle keygen`) that signs the bundle.
        options: those of ExportConfig (export/config.py), by the names of the flags; docs/export.md lists them.

    Raises:
        MissingExtra: a package is not installed; the message has the command that installs it.
        LibraryError: the native library, which the parity checks need, is not built; the message has the command.
        TypeError: there is no option of that name.
        KeyProblem: the file does not contain a valid key.
        FileNotFoundError, OptionError, CheckpointError, BundleError, LoweringError, ParityError: one sentence each;
            nothing is left behind.
    """
    from streamfuse.extras import need_export, need_native

    need_export(options.get("target", ""), options.get("backend", ""))
    need_native()
    import warnings
    from pathlib import Path

    from streamfuse.bundle.signature import read_private_key
    from streamfuse.options import converted

    from .adapter import configure
    from .config import NO_ADAPTER, ExportConfig

    key = None if sign_key is None else read_private_key(Path(sign_key))
    asked = NO_ADAPTER if adapter is None else str(adapter)
    config, chosen = configure(Path(output_dir), str(model), asked, converted(ExportConfig, options))
    if chosen.note is not None:
        warnings.warn(chosen.note, stacklevel=2)
    from .pipeline import run_export

    return run_export(config, progress or (lambda _: None), {"model": str(model), "adapter": chosen.word}, key)
