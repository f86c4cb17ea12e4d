"""`streamfuse bench parity`: whether bundles of several targets choose the same tokens and accept the same paths."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfuse import engines
from streamfuse.api import load
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.paths import own_name

if TYPE_CHECKING:
    from streamfuse.runtime.text import Tokenizer

_COLUMNS = (
    "bundle",
    "dB",
    "same\ntoken",
    "near\nties",
    "other\ngaps",
    "largest\ngap",
    "first",
    "tokens\nper pass",
    "same\npath",
)


def register(bench: typer.Typer) -> None:
    bench.command("parity")(parity)


def parity(
    bundles: Annotated[
        list[str], typer.Argument(metavar="BUNDLE...", help="Bundle folders; the first one writes the answers.")
    ],
    data: Annotated[list[str], typer.Option(metavar="DATA", help=f"{options.DATA_HELP} Repeat the flag for several.")],
    limit: Annotated[int, typer.Option(min=1, help="Prompts per data set, evenly spread.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer.")] = 32,
    width: Annotated[
        int | None, typer.Option(min=2, help="Nodes per tree, including the root.", show_default="the first bundle's")
    ] = None,
    near_tie: Annotated[float, typer.Option(min=0.0, help="Logits closer than this count as equal.")] = 0.5,
    threads: options.Threads = None,
    format_: options.DataFormat = None,
    json_: options.Json = False,
) -> None:
    """Compare bundles of one adapter for several targets, pass by pass on the same text.

    The first bundle writes the answers by plain decoding. Each bundle then
    follows these answers with trees from its own streams. Reported are how
    often it would choose the same token, how close the others were, and how
    often a pass accepts a path of the same length.

    [bold]Examples[/bold]

    streamfuse bench parity build/demo build/onnx build/coreml --data question.jsonl --limit 4
    """
    from streamfuse.bench.parity import ParityError, Replay, check_comparable, decibels, replay, write_text
    from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter
    from streamfuse.runtime.reference.lookup import LookUpDrafter

    opened = [load(bundle) for bundle in bundles]
    if threads is not None and all(engines.threads_for(one.bundle, threads) is None for one in opened):
        raise typer.BadParameter("--threads: the engines of these bundles choose their number of threads; leave it out")
    first = opened[0].bundle.spec()
    if not first.verify_widths:
        raise typer.BadParameter(
            f"{bundles[0]}: this bundle has no verify methods, so there is nothing to compare; name another first"
        )
    width = width or first.default_width or first.verify_widths[-1]
    try:
        check_comparable([one.bundle for one in opened], width)
    except ParityError as error:
        raise typer.BadParameter(str(error)) from None
    prompts = _prompts(opened[0].tokenizer, data, format_, limit, first.capacity - max_new_tokens)
    replays: list[Replay] = []
    texts: list[tuple[int, list[int]]] = []
    for one in opened:
        with closing(engines.engines_of(one.bundle, engines.threads_for(one.bundle, threads))()) as backend:
            if not texts:
                texts = [(len(prompt), write_text(backend, prompt, max_new_tokens)) for prompt in prompts]
            drafting = DraftTables.load(one.bundle.tables, one.bundle.draft) if one.bundle.tables else None
            if drafting is not None:
                drafting.check(backend.spec.num_streams, backend.spec.vocab_size)
            drafter = StreamDrafter(drafting) if backend.spec.num_streams else LookUpDrafter()
            replays.append(replay(backend, drafter, texts, width, lambda: None))
        if not json_ and err.is_terminal:
            err.print(f"{one.bundle.folder}: {len(replays[-1].paths)} passes", markup=False)
    found = [
        {"bundle": str(one.bundle.folder), "target": one.bundle.manifest.target, "snr_db": decibels(one.bundle),
         **each.figures(replays[0], near_tie)}
        for one, each in zip(opened, replays, strict=True)
    ]  # fmt: skip
    settings = {"data": data, "prompts": len(prompts), "tokens": sum(len(text) - n for n, text in texts),
                "width": width, "near_tie": near_tie}  # fmt: skip
    if json_:
        print_json({"bundles": found, "settings": settings})
    else:
        out.print(tables.figures(_COLUMNS, [_row(row) for row in found]))
        out.print(
            f"{settings['tokens']} tokens of {len(prompts)} answers, trees of {width} nodes; dB: to the float32 model",
            highlight=False,
        )


def _prompts(text: Tokenizer, data: list[str], format_: str | None, limit: int, room: int) -> list[list[int]]:
    from streamfuse.train.readers import encode_prompt, merged, read_samples, spread

    found = []
    for source in data:
        samples = [s for s in merged(read_samples(source, format_)) if len(encode_prompt(s, text)) <= room]
        found += [encode_prompt(sample, text) for sample in spread(samples, limit)]
    if not found:
        raise typer.BadParameter(
            f"--data {', '.join(data)}: no prompt fits into the {room} tokens that --max-new-tokens leaves; lower it"
        )
    return found


def _row(row: dict[str, Any]) -> list[str]:
    others = row["differences"] - row["near_ties"]
    begin = row["first_difference"]
    return [
        own_name(row["bundle"]),
        f"{row['snr_db']['float32']:.0f}" if "float32" in row["snr_db"] else "-",
        f"{100 * (1 - row['differences'] / max(row['choices'], 1)):.1f} %",
        str(row["near_ties"]),
        str(others),
        f"{row['largest_gap']:.2f}",
        "-" if begin is None else f"{begin[0]}:{begin[1]}",
        f"{row['tokens_per_pass']:.2f}",
        f"{row['same_path']} of {row['same_start']}",
    ]
