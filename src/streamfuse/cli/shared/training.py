"""A run of training, as `train`, recipes and `bench ablations` start it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from streamfuse.cli.shared.console import err, say
from streamfuse.cli.shared.errors import EXIT_INTERRUPTED
from streamfuse.extras import need
from streamfuse.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from streamfuse.train.config import TrainConfig
    from streamfuse.train.main import TrainResult


def import_main() -> Any:
    """The training code; MissingExtra where its libraries are not installed."""
    need("train")
    from streamfuse.train import main

    return main


def run_config(config: TrainConfig, resume: bool, more: bool = False) -> TrainResult:
    """One run, with a progress bar, and a clean end on Ctrl-C.

    With `more`, other work follows: if Ctrl-C comes in the last step, the program exits instead of beginning it.
    """
    main, stop = import_main(), threading.Event()

    def ask_to_stop() -> None:
        say("Ending after this step; Ctrl-C again leaves at once.", "yellow")
        stop.set()

    with stop_on_interrupt(ask_to_stop):
        result: TrainResult = main.run(config, resume, stop=stop, console=err)
    if more and result.finished and stop.is_set():
        say(
            f"Stopped after {config.out_dir}, which is finished; the same command continues with what follows.",
            "yellow",
        )
        raise typer.Exit(EXIT_INTERRUPTED)
    return result


def report(result: TrainResult, adapter: Path) -> None:
    """What a run came to, and the adapter's path on standard output. Exit code 130 where it was stopped."""
    if not result.finished:
        say(f"Stopped at step {result.step} of {result.max_steps}; the same command continues there.", "yellow")
        raise typer.Exit(EXIT_INTERRUPTED)
    ratio = result.metrics.get("eval_call_reduction_ratio")
    measured = f"Held-out call-reduction ratio {ratio:.3f} after" if ratio else "The base is tuned after"
    say(f"{measured} {result.step} steps.")
    print(adapter)
