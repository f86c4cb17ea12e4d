"""The bundles that the methods run on: the target, and those of other methods, exported once per target bundle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamfuse.bundle import Bundle, open_bundle
from streamfuse.bundle.manifest import MANIFEST_NAME
from streamfuse.digest import sha256_of
from streamfuse.engines import engines_of
from streamfuse.paths import own_name
from streamfuse.research import files
from streamfuse.research.drafters.model import DraftModel, SelfModel
from streamfuse.runtime.reference.draft import DraftTables

from .methods import BLOCKWISE, DRAFT, MEDUSA, METHODS, SELF, STREAMS, Parts, named

OTHERS = (MEDUSA, BLOCKWISE, SELF, DRAFT)
DRAFT_LAYERS = 4  # of the draft model whose adapter ships

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Opened:
    """What a run opened, what each method adds to the target, and the folders of the bundles by name."""

    parts: Parts
    extra: Mapping[str, Mapping[str, Any]]
    folders: Mapping[str, Path]


def folder_for(target: Bundle, folder: Path) -> Path:
    """The subfolder of `folder` for files of this target bundle, so that those of another are never reused.

    Its name has a digest of what those files depend on: the target's manifest, which has its model, its sizes and the
    hashes of its files, and the trained adapters of the other methods.
    """
    made_of = [target.folder / MANIFEST_NAME, *files.trained()]
    return folder / f"{own_name(target.folder)}-{sha256_of(made_of)[:16]}"


def missing(folder: Path, names: Sequence[str] | None = None) -> list[str]:
    """Bundles of other methods that are not in the target's `folder` yet; of the methods `names` only, where given."""
    wanted = {part for method in named(names) for part in (method.bundle, *method.needs)}
    return [name for name in OTHERS if name in wanted and not (folder / name / "manifest.json").is_file()]


def prepare(target: Bundle, folder: Path, names: Sequence[str], progress: Progress) -> None:
    """Export these bundles: minutes. The same checkpoint, sizes and widths as those of `target`.

    Raises:
        MissingExtra: what an export needs is not installed.
        CheckpointError, OptionError, ParityError, FileNotFoundError: one sentence each.
    """
    trained = {name: files.adapter(name) for name in names if name != SELF}  # first, before a download
    import streamfuse.research.heads  # noqa: F401 (adds the kinds of heads)
    from streamfuse.export import export_bundle
    from streamfuse.model.pull import resolve_model
    from streamfuse.research.first_layers import write_first_layers
    from streamfuse.research.self_draft import leaving_out

    manifest = target.manifest
    widths = target.spec().verify_widths
    sizes: dict[str, Any] = {"widths": widths, "max_context_len": manifest.cache.capacity}
    for name in names:
        checkpoint = resolve_model(manifest.model.name)
        options: dict[str, Any] = {"adapter": "none"}
        if name == SELF:
            options["extra_methods"] = leaving_out(files.sublayers_left_out())
        elif name == DRAFT:
            small = folder / "draft-checkpoint"
            write_first_layers(checkpoint, DRAFT_LAYERS, small)
            checkpoint, options = small, {"adapter": trained[DRAFT], "merge_adapter": "on", "prune_keep": max(widths)}
        else:
            options = {"adapter": trained[name], "prune_keep": max(widths)}
        export_bundle(
            folder / name, model=str(checkpoint), **options, **sizes,
            progress=lambda line, name=name: progress(f"exporting {name}: {line}"),  # type: ignore[misc]
        )  # fmt: skip
    shutil.rmtree(folder / "draft-checkpoint", ignore_errors=True)


@contextmanager
def opened(target: Bundle, folder: Path, threads: int | None) -> Iterator[Opened]:
    """Engines on all bundles that are there, closed at the end. ValueError for a target without streams."""
    tables = target.tables
    if tables is None:
        raise ValueError(f"{target.folder} has no streams; compare methods on a bundle that has")
    bundles = {STREAMS: target}
    bundles |= {name: open_bundle(folder / name) for name in OTHERS if name not in missing(folder)}
    with parts_of(bundles, threads, DraftTables.load(tables, target.draft)) as parts:
        extra = {method.name: _extra(method, bundles) for method in METHODS if method.bundle in bundles}
        yield Opened(parts, extra, {name: bundle.folder for name, bundle in bundles.items()})


@contextmanager
def parts_of(bundles: Mapping[str, Bundle], threads: int | None, tables: DraftTables) -> Iterator[Parts]:
    """Engines on these bundles, closed at the end."""
    with ExitStack() as stack:
        backends = {
            name: stack.enter_context(_closing(engines_of(bundle, threads)())) for name, bundle in bundles.items()
        }
        draft = DraftModel(backends.pop(DRAFT)) if DRAFT in backends else None
        itself = SelfModel(backends[SELF]) if SELF in backends else None
        yield Parts(backends, tables, draft, itself)


@contextmanager
def _closing(backend: Any) -> Iterator[Any]:
    try:
        yield backend
    finally:
        backend.close()


def _extra(method: Any, bundles: Mapping[str, Bundle]) -> dict[str, int]:
    """Parameters and bytes that a method adds to a bundle that decodes plainly."""
    if DRAFT in method.needs and DRAFT in bundles:
        own = bundles[DRAFT]
        return {"extra_parameters": own.manifest.model.parameters, "extra_bytes": own.graph.stat().st_size}
    if method.reads_streams:
        manifest = bundles[method.bundle].manifest
        size = manifest.quantization.streams.bytes or 0
        return {"extra_parameters": manifest.speculation.extra_parameters, "extra_bytes": size}
    return {"extra_parameters": 0, "extra_bytes": 0}
