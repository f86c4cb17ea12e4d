"""The option --systems of benchmarks over the systems of a task."""

from __future__ import annotations

from importlib.util import find_spec

import typer


def system_names(systems: str | None) -> list[str]:
    """The names in --systems; without it those that are installed. BadParameter names the flag."""
    from streamfuse.bench.shared.systems import LLAMA_CPP, PLAIN, SPECULATIVE, SYSTEMS

    if systems is None:
        return [PLAIN, SPECULATIVE, *([LLAMA_CPP] if find_spec("llama_cpp") else [])]
    names = [name.strip() for name in systems.split(",") if name.strip()]
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown or not names or len(set(names)) != len(names):
        raise typer.BadParameter(f"--systems names some of {', '.join(SYSTEMS)}, each once, not {systems!r}")
    return names
