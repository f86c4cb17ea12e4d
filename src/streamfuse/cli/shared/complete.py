"""Shell completion of flag values and folder arguments (`streamfuse --install-completion`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Completer = Callable[[str], list[str]]

_RECIPES = Path(__file__).parents[2] / "train" / "recipes"
_MOST_FOLDERS = 200  # that are looked into for one press of the key


def among(*names: str) -> dict[str, Any]:
    """For typer.Option: the values of a flag, in its help and in the shell."""
    return {"metavar": f"[{'|'.join(names)}]", "autocompletion": lambda incomplete: _starting(names, incomplete)}


def listed(*names: str) -> Completer:
    """Several of these values, with commas between."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return _starting(
            (f"{before}{comma}{name}" for name in names if name not in before.split(",")), before + comma + last
        )

    return complete


def bundles(incomplete: str) -> list[str]:
    """Folders with a manifest, in the folder that was begun and one below."""
    found = [path for path in _folders(incomplete) if (path / "manifest.json").is_file()]
    return _starting(map(str, found), incomplete)


def adapters(incomplete: str) -> list[str]:
    """Those that ship, by name, and files beside what was begun."""
    from streamfuse.adapters import shipped

    return _starting([*shipped(), *_files(incomplete, ".safetensors")], incomplete)


def export_adapters(incomplete: str) -> list[str]:
    """`adapters`, and the two words that an export takes besides."""
    return [*_starting(("auto", "none"), incomplete), *adapters(incomplete)]


def recipes(incomplete: str) -> list[str]:
    """Those that ship, by name, and files beside what was begun."""
    own = sorted(path.stem for path in _RECIPES.glob("*.toml"))
    return _starting([*own, *_files(incomplete, ".toml")], incomplete)


def data_formats(incomplete: str) -> list[str]:
    """Those of rows (docs/training.md)."""
    return _starting(("e2e", "sql", "dialogsum", "chat", "messages", "spec-bench", "distilled"), incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Those that `streamfuse data fetch` makes."""
    from streamfuse.train.public import NAMES

    return _starting(NAMES, incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _base(incomplete: str) -> Path:
    """The folder that is named so far."""
    return Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent


def _files(incomplete: str, suffix: str) -> list[str]:
    try:
        return sorted(str(path) for path in _base(incomplete).iterdir() if path.name.endswith(suffix))
    except OSError:
        return []


def _folders(incomplete: str) -> Iterator[Path]:
    looked = 0
    waiting = [(_base(incomplete), 0)]
    while waiting and looked < _MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        looked += 1
        try:
            inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        except OSError:
            continue
        yield from inside
        if depth < 1:
            waiting += [(path, depth + 1) for path in inside]
