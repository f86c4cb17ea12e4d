"""An export with a progress bar, as `export` and `quickstart` run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamfuse.cli.shared.console import err

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from streamfuse.export.config import ExportConfig
    from streamfuse.export.pipeline import Report
    from streamfuse.export.preview import Preview


def run_with_progress(
    config: ExportConfig, expected: Preview, asked: dict[str, str], sign_key: Ed25519PrivateKey | None = None
) -> Report:
    """`run_export` of a configuration that was previewed."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading PyTorch and the exporter", total=None)
        from streamfuse.export.pipeline import count_steps, run_export

        progress.update(task, total=count_steps(expected))
        return run_export(config, lambda words: progress.update(task, advance=1, description=words), asked, sign_key)
