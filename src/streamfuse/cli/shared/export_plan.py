"""What `streamfuse export --dry-run` prints: the plan, and what to expect of it, before anything is lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamfuse.cli.shared.console import out, print_json

if TYPE_CHECKING:
    from streamfuse.export.plan import ExportPlan
    from streamfuse.export.preview import Preview

_COREML = ("layout", "compute_units", "minimum_deployment_target")


def show(plan: ExportPlan, expected: Preview, as_json: bool) -> None:
    """Print to standard output: sections of names and values, or one JSON object."""
    from streamfuse.export.plan_file import to_config

    config = to_config(plan)
    if as_json:
        print_json({**config, "output_dir": str(plan.output_dir), **expected.to_dict()})
        return
    if "coreml" not in (plan.target, plan.backend):
        config = {name: value for name, value in config.items() if name not in _COREML}
    if plan.backend != "openvino":
        del config["device"]
    if plan.target != "onnx":
        del config["provider"]
    said = {"adapter": expected.adapter, "sampling": f"{plan.sampling}: {expected.sampling.words}"}
    _section("plan", {"output_dir": plan.output_dir, **config, **said})
    copies = "a copy of what it reads in each method" if plan.backend == "openvino" else "one copy for all methods"
    _section(f"weights, {copies}", {**_parts(plan, expected), "all": _megabytes(expected.weight_bytes)})
    files = {name: _megabytes(size) for name, size in expected.files.items()}
    _section("files", {**files, "all": _megabytes(sum(expected.files.values()))})
    _section(
        "memory to run it",
        {
            "caches": f"{_megabytes(expected.cache_bytes)} for {plan.max_context_len} tokens",
            "all": f"{_megabytes(expected.run_bytes)} with weights and drafting data",
        },
    )
    if expected.calls:
        _section(f"calls of {'operators' if plan.kernels else 'delegates'} per pass", dict(expected.calls))
    cost = expected.cost
    words = {"time": "never measured for this backend"}
    if cost is not None:
        words = {
            "time": f"about {cost.cpu_seconds:.0f} s of one core (docs/export.md, Cost)",
            "memory": f"about {cost.peak_bytes / 1e9:.1f} GB at most",
        }
    _section("the export itself", words)


def _parts(plan: ExportPlan, expected: Preview) -> dict[str, str]:
    from streamfuse.export.sizes import schemes

    return {
        name: f"{part.parameters / 1e6:.1f} M weights, {_megabytes(part.bytes)}, {schemes(plan)[name]['scheme']}"
        for name, part in expected.parts.items()
    }


def _section(title: str, rows: dict[str, Any]) -> None:
    out.print(f"[bold]{title}[/bold]", highlight=False)
    for name, value in rows.items():
        words = ", ".join(f"{k}={v}" for k, v in value.items()) or "none" if isinstance(value, dict) else value
        out.print(f"  {name:26} {words}", highlight=False, soft_wrap=True, markup=False)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
