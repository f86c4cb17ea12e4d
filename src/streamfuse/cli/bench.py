"""`streamfuse bench ...`: measures. One small module per measure, each with `register(bench)`, as the commands have."""

from __future__ import annotations

from importlib import import_module

import typer

MEASURES = (
    "bench_ablations",
    "bench_acceptance",
    "bench_latency",
    "bench_parity",
    "bench_quantization",
    "bench_scale",
    "bench_tasks",
)


def register(app: typer.Typer) -> None:
    bench = typer.Typer(help="Measure a bundle: what is accepted, and how good the text is.", no_args_is_help=True)
    for name in MEASURES:
        import_module(f"{__package__}.{name}").register(bench)
    app.add_typer(bench, name="bench")
