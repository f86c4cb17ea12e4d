"""What `streamfuse export --dry-run` prints: the options, and what to expect of them, before anything is lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamfuse.cli.shared.console import out, print_json

if TYPE_CHECKING:
    from streamfuse.export.config import ExportConfig
    from streamfuse.export.preview import Preview


def show(config: ExportConfig, expected: Preview, as_json: bool) -> None:
    """Print to standard output: sections of names and values, or one JSON object."""
    from streamfuse.export.capabilities import BACKENDS, own_options

    options = config.to_dict()
    if as_json:
        print_json({**options, "output_dir": str(config.output_dir), **expected.to_dict()})
        return
    foreign = own_options() - BACKENDS[config.target][config.backend].own.keys()
    options = {name: value for name, value in options.items() if name not in foreign}
    resolved = {"adapter": expected.adapter, "sampling": f"{config.sampling}: {expected.sampling.words}"}
    _section("options", {"output_dir": config.output_dir, **options, **resolved})
    copies = "one copy in each method that reads them" if config.copies_weights else "one copy for all methods"
    _section(f"weights, {copies}", {**_parts(config, expected), "all": _megabytes(expected.weight_bytes)})
    files = {name: _megabytes(size) for name, size in expected.files.items()}
    _section("files", {**files, "all": _megabytes(sum(expected.files.values()))})
    _section(
        "memory to run it",
        {
            "caches": f"{_megabytes(expected.cache_bytes)} for {config.max_context_len} tokens",
            "all": f"{_megabytes(expected.run_bytes)} with weights and drafting data",
        },
    )
    if expected.calls:
        _section(f"calls of {'operators' if config.kernels else 'delegates'} per pass", dict(expected.calls))
    cost = expected.cost
    words = {"time": "never measured for this backend"}
    if cost is not None:
        words = {
            "time": f"about {cost.cpu_seconds:.0f} s of one core (docs/export.md, Cost)",
            "memory": f"about {cost.peak_bytes / 1e9:.1f} GB at most",
        }
    _section("the export itself", words)


def _parts(config: ExportConfig, expected: Preview) -> dict[str, str]:
    from streamfuse.export.sizes import schemes

    return {
        name: f"{part.parameters / 1e6:.1f} M weights, {_megabytes(part.bytes)}, {schemes(config)[name]['scheme']}"
        for name, part in expected.parts.items()
    }


def _section(title: str, rows: dict[str, Any]) -> None:
    out.print(f"[bold]{title}[/bold]", highlight=False)
    for name, value in rows.items():
        words = ", ".join(f"{k}={v}" for k, v in value.items()) or "none" if isinstance(value, dict) else value
        out.print(f"  {name:26} {words}", highlight=False, soft_wrap=True, markup=False)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
