"""Tables for people; every number in them is also in the JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamfuse.bundle import Catalog, Manifest
from streamfuse.bundle.manifest import TensorFacts
from streamfuse.bundle.reader import DRAFT_FILE, adapter_file, prefix_file
from streamfuse.cli.shared.compare import Comparison, Comparisons
from streamfuse.cli.shared.console import visible
from streamfuse.cli.shared.drafts import SOURCES

if TYPE_CHECKING:
    from streamfuse.api import Statistics


def statistics(facts: Statistics) -> Table:
    """One generation."""
    table = _table("", "value", right=("value",))
    for label, value in _rows(facts, _restricted(facts)):
        _add(table, label, value)
    return table


def comparison(result: Comparison) -> Group:
    """Plain and speculative, column by column."""
    plain, speculative = result.plain.statistics, result.speculative.statistics
    table = _table("", "plain", "speculative", right=("plain", "speculative"))
    restricted = _restricted(plain) or _restricted(speculative)
    for (label, left), (_, right) in zip(_rows(plain, restricted), _rows(speculative, restricted), strict=True):
        _add(table, label, left, right)
    equal = "[green]the outputs are equal[/green]" if result.equal else "[red]the outputs differ[/red]"
    fallback = speculative.fallback_reason
    lines = [f"[bold]speed-up {result.speedup:.2f}x[/bold], {equal}"]
    if fallback:
        lines.append(f"[yellow]{'partly plain' if speculative.rounds else 'not speculative'}: {fallback}[/yellow]")
    return Group(table, *lines)


def comparisons(result: Comparisons, label: str) -> Group:
    """Several prompts, a row each, and where their accepted drafts came from. `label`: the first column's name."""
    rows = [
        [
            name,
            f"{row.speculative.statistics.mean_accepted_tokens:.2f}",
            f"{row.plain.speed:.1f}",
            f"{row.speculative.speed:.1f}",
            *_speedups(row),
        ]
        for name, row in result.rows
    ]
    plain_speed, speculative_speed = result.speeds
    total = [f"{result.per_pass:.2f}", f"{plain_speed:.1f}", f"{speculative_speed:.1f}"]
    rows.append(["all", *total, *_speedups(result)])
    columns = [label, "tokens per pass", "plain tokens/s", "speculative tokens/s", "speed-up"]
    if result.speedup_cold_caches is not None:
        columns.append("cold caches")
    accepted = sum(result.sources.values())
    sources = ", ".join(f"{SOURCES[name][0]} {count}" for name, count in result.sources.items() if count)
    lines = [
        ["outputs", "equal, token for token" if result.equal else "they differ"],
        ["accepted drafts", f"{accepted} of {result.tokens} tokens{f': {sources}' if sources else ''}"],
    ]
    return Group(figures(columns, rows), facts(lines))


def _speedups(result: Comparison | Comparisons) -> list[str]:
    """With warm caches, and if measured, with cold ones."""
    found = (result.speedup, result.speedup_cold_caches)
    return [f"{value:.2f}x" for value in found if value is not None]


def bundle(manifest: Manifest) -> Group:
    """Everything in a manifest but the hashes and the chat template."""
    parts = (
        _facts(manifest),
        _methods(manifest),
        _parts(manifest),
        _parity(manifest),
        *_adapters(manifest),
        *prefixes(manifest),
    )
    return Group(*parts, _files(manifest))


def catalog(made: Catalog) -> Table:
    """What apps show of each bundle."""
    table = _table("name", "title", "licence", "context", "MB", "backend", right=("context", "MB"))
    for entry in made.bundles:
        license_, size = entry.license or "not stated", f"{entry.bytes / 1e6:.1f}"
        _add(
            table, entry.name, entry.title, license_, str(entry.context_length), size, f"{entry.target}/{entry.backend}"
        )
    return table


def operations(report: dict[str, Any]) -> Group:
    """A Core ML program by function: which operations leave the Neural Engine, which suit it less (docs/targets.md)."""
    table = _table("function", "operations", "leave the Neural Engine", "trips", "suit it less", right=("trips",))
    for name, found in report["functions"].items():
        leaves = [f"{rule}: {_counts(kinds)}" for rule, kinds in found["leaves"].items()]
        less = [f"{rule}: {sum(kinds.values())}" for rule, kinds in found["suits_less"].items()]
        _add(table, name, _counts(found["operations"]), "\n".join(leaves), str(found["trips"]), "\n".join(less))
    return Group(table, *(plain(f"{rule}: {text}") for rule, text in report["rules"].items()))


def _counts(kinds: dict[str, int]) -> str:
    return " ".join(f"{kind}:{count}" for kind, count in kinds.items())


def facts(rows: Sequence[Sequence[str]]) -> Table:
    """Names and values, as they stand: paths may hold brackets."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(plain(name), plain(value))
    return table


def plain(text: str) -> Text:
    """Text as it stands: not read as markup, control characters written out so that columns keep their width."""
    return Text(visible(text))


def figures(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows that a measurement has formatted already: names on the left, numbers on the right."""
    table = _table(*columns, right=tuple(columns[1:]))
    for row in rows:
        _add(table, *row)
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of texts that may be names of a bundle."""
    table.add_row(*map(plain, cells))


def _restricted(facts: Statistics) -> bool:
    """Whether a schema, regex or grammar had something to do."""
    return bool(facts.mask_ms or facts.forced_tokens or facts.refused_drafts)


def _rows(facts: Statistics, restricted: bool) -> list[tuple[str, str]]:
    depths = " ".join(f"{share:.2f}" for share in facts.acceptance_per_depth)
    ranks = " ".join(f"{share:.2f}" for share in facts.acceptance_per_rank)
    widths = " ".join(f"{name}:{count}" for name, count in facts.widths.items())
    costs = " ".join(f"{name}:{ms:.2f}" for name, ms in facts.cost_ms.items())
    reasons = ", ".join(f"{reason}: {count}" for reason, count in facts.fallback_reasons.items())
    stored = f", {facts.prefix_tokens} from a stored prefix" if facts.prefix_tokens else ""
    rows = [
        ("tokens/s", f"{facts.decode_token_per_sec:.1f}"),
        ("mean accepted tokens", f"{facts.mean_accepted_tokens:.2f}"),
        ("acceptance per depth", depths or "-"),
        ("acceptance per rank", ranks or "-"),
        ("drafted tokens accepted", f"{facts.draft_tokens_accepted} of {facts.draft_tokens_proposed}"),
        ("target passes", widths or "-"),
        ("planned with ms per pass", costs or "-"),
        ("plain passes because", reasons or facts.fallback_reason or "-"),
        ("generated tokens", str(facts.generated_tokens)),
        ("finish reason", facts.finish_reason),
        ("prompt tokens", f"{facts.prompt_tokens} ({facts.prefill_token_per_sec:.0f}/s{stored})"),
        ("first token", f"{facts.first_token_ms:.0f} ms"),
    ]
    if facts.dropped_turns:
        rows.append(("dropped turns", f"{facts.dropped_turns} ({facts.reread_tokens} tokens read again)"))
    if restricted:
        rows += [
            ("tokens forced by the grammar", str(facts.forced_tokens)),
            ("drafts refused by the grammar", str(facts.refused_drafts)),
            ("time in masks", f"{facts.mask_ms:.1f} ms"),
        ]
    return rows + [(f"time in {phase}", f"{ms:.1f} ms") for phase, ms in facts.time_ms.items()]


def _facts(manifest: Manifest) -> Table:
    model, speculation, cache = manifest.model, manifest.speculation, manifest.cache
    drafts = "no streams, drafts are look-ups in the text"
    if DRAFT_FILE in manifest.files:
        drafts += " and in the n-gram table"
    if speculation.num_streams:
        pruned = "no pruning" if speculation.prune_layer is None else f"pruned before layer {speculation.prune_layer}"
        drafts = (
            f"{speculation.num_streams} streams, top {speculation.top_k} each, in {speculation.num_msa_layers} layers, "
            f"{pruned}, parent rank {speculation.parent_rank}"
        )
    untrained = "none: untrained streams" if speculation.num_streams else "none"
    defaults = ", ".join(f"{name} {value}" for name, value in manifest.sampling_defaults)
    table = _table("bundle", "")
    for label, value in (
        ("model", model.name),
        ("source", model.source),
        ("license", model.license or "not stated"),
        ("architecture", f"{model.architecture}, {model.num_layers} layers, hidden {model.hidden_size}"),
        ("heads", f"{model.num_heads} query, {model.num_kv_heads} key/value, {model.head_dim} wide"),
        ("parameters", f"{model.parameters:,} + {speculation.extra_parameters:,} for streams"),
        ("vocabulary", f"{model.vocab_size:,}, of which streams propose {speculation.stream_vocab_size:,}"),
        ("speculation", drafts),
        ("adapter", speculation.adapter or untrained),
        ("default width", str(speculation.default_width or "none")),
        ("context", f"{cache.capacity} tokens, cache {cache.dtype}"),
        ("target", f"{manifest.target}, {manifest.backend}"),
        ("operators", ", ".join(manifest.required_operators) or "stock ones only"),
        ("sampling defaults", defaults),
        ("exporter", manifest.exporter_version),
        ("format version", str(manifest.format_version)),
    ):
        _add(table, label, value)
    return table


def _methods(manifest: Manifest) -> Table:
    table = _table("method", "rows", "keep", "inputs", "outputs", right=("rows", "keep"))
    for name, method in manifest.methods.items():
        keep = "all" if method.keep is None else str(method.keep)
        _add(table, name, str(method.rows), keep, _tensors(method.inputs), _tensors(method.outputs))
    return table


def _tensors(tensors: Sequence[TensorFacts]) -> str:
    """One line per tensor; the same tensor of several layers is one line, `key_cache_0..29`."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for tensor in tensors:
        layer = re.search(r"(?<=[._])\d+(?=\.|$)", tensor.name)
        before, after = (tensor.name[: layer.start()], tensor.name[layer.end() :]) if layer else (tensor.name, "")
        shape = f"{tensor.dtype} {list(tensor.shape)}"
        groups.setdefault((before, after, shape), []).append(layer[0] if layer else "")
    lines = []
    for (before, after, shape), layers in groups.items():
        lines.append(f"{before}{_ranges(layers)}{after} {shape}")
    return "\n".join(lines)


def _ranges(layers: Sequence[str]) -> str:
    """Numbers of layers, successive ones as a range: `0..2,4`; [""] of a tensor that is of no layer is empty."""
    runs: list[list[str]] = []
    for layer in layers:
        if runs and layer.isdecimal() and int(layer) == int(runs[-1][-1]) + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _parts(manifest: Manifest) -> Table:
    table = _table("part", "scheme", "bits", "group", "symmetric", "size", right=("bits", "group", "size"))
    for part, scheme in manifest.quantization:
        symmetric = "-" if scheme.symmetric is None else "yes" if scheme.symmetric else "no"
        size = "-" if scheme.bytes is None else _size(scheme.bytes)
        _add(table, part, scheme.scheme, str(scheme.bits), str(scheme.group_size or "-"), symmetric, size)
    return table


def _parity(manifest: Manifest) -> RenderableType:
    if not manifest.parity:
        return "no parity was measured"
    table = _table("parity", "floor", "measured")
    for name, parity in manifest.parity.items():
        _add(table, name, parity.floor, ", ".join(f"{key} {value:.6g}" for key, value in parity.metrics.items()))
    missed = (
        Text(
            f"below the floor {one.floor}, as allowed: {one.comparison}, {one.method}, {one.metric} "
            f"{one.measured:.6g} instead of {one.asked:.6g}",
            "yellow",
        )
        for one in manifest.below_floor
    )
    return Group(table, *missed)


def _adapters(manifest: Manifest) -> list[RenderableType]:
    """A table of the task adapters, if there are some."""
    if not manifest.adapters:
        return []
    own = {name: part.bytes or 0 for name, part in manifest.quantization if name != "streams"}
    table = _table("task adapter", "trained adapter", "streams", "added weights", "drafting tables", "parity",
                   right=("streams", "added weights", "drafting tables"))  # fmt: skip
    for name, adapter in manifest.adapters.items():
        added = sum((part.bytes or 0) - own.get(key, 0) for key, part in adapter.quantization)
        tables = manifest.files.get(adapter_file(name, DRAFT_FILE))
        measured = [row.metrics["snr_db"] for row in adapter.parity.values() if "snr_db" in row.metrics]
        _add(
            table, name, adapter.speculation.adapter or "none", str(adapter.speculation.num_streams), _size(added),
            "none" if tables is None else _size(tables.bytes), f"at least {min(measured):.0f} dB" if measured else "-",
        )  # fmt: skip
    return [table]


def prefixes(manifest: Manifest) -> list[RenderableType]:
    """A table of the stored prefixes, if there are some."""
    of_adapters = {name: facts.prefixes for name, facts in manifest.adapters.items()}
    table = _table("stored prefix", "task adapter", "tokens", "size", right=("tokens", "size"))
    for adapter, stored in [(None, manifest.prefixes), *of_adapters.items()]:
        for name, prefix in stored.items():
            size = _size(manifest.files[prefix_file(name, adapter)].bytes)
            _add(table, name, adapter or "none", str(prefix.tokens), size)
    return [table] if table.row_count else []


def _files(manifest: Manifest) -> Table:
    table = _table("file", "size", "sha256", right=("size",))
    for name, facts in manifest.files.items():
        _add(table, name, _size(facts.bytes), facts.sha256[:16])
    _add(table, "total", _size(sum(facts.bytes for facts in manifest.files.values())), "")
    return table


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.2f} GB"


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
