"""`streamfuse adapter ngrams`: the n-gram table of an adapter, counted anew in more of the model's own text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import complete, options
from streamfuse.cli.shared.console import err, print_json, say
from streamfuse.extras import need


def register(app: typer.Typer) -> None:
    app.command("ngrams")(ngrams)


def ngrams(
    adapter: Annotated[
        str,
        typer.Argument(
            metavar="ADAPTER", help="Shipped adapter, by name, or a file.", autocompletion=complete.adapters
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="The adapter with the new table.")],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="ANSWERS.jsonl", help="Output of `streamfuse data distill`; repeat the flag for several files."
        ),
    ],
    max_mb: Annotated[
        float, typer.Option("--max-mb", metavar="MB", help="Maximum size of the table in megabytes, up to 24.")
    ] = 24.0,
    json_: options.Json = False,
) -> None:
    """Add an n-gram table, counted in the model's own answers, to an adapter.

    Prints the new path. The table has contexts of one to five tokens. It takes seconds to count, while streams take
    hours to train, so it can use much more text. Nothing else in the adapter changes. `export --ngram-table-mb`
    limits how much of the table a bundle takes.

    [bold]Examples[/bold]

    streamfuse adapter ngrams chat-lossless mine.safetensors --data answers.jsonl --data more.jsonl
    """
    need("ngrams")
    from streamfuse.model.checkpoint import adapter_vocab_size, replace_ngrams
    from streamfuse.model.ngrams import MOST_BYTES, bytes_of
    from streamfuse.train.ngram_counts import answers_in, count_ngrams, tokens_of

    source = options.adapter_file("ADAPTER", adapter)
    options.check_place("OUT", out)
    if not 0 < max_mb * 1e6 <= MOST_BYTES:
        raise typer.BadParameter(f"--max-mb must be above 0 and at most {MOST_BYTES / 1e6:g}, not {max_mb:g}")
    options.check_not_read("OUT", out, "--data", data)
    vocab_size = adapter_vocab_size(source)
    examples = answers_in(data, vocab_size)
    with err.status("Counting"):
        table = count_ngrams(examples, vocab_size, round(max_mb * 1e6))
    replace_ngrams(source, table, out)
    tokens = tokens_of(examples)
    facts = {"tokens": tokens, "contexts": len(table["keys"]), "entries": len(table["ids"]), "bytes": bytes_of(table)}
    if json_:
        print_json({"adapter": str(out), **facts})
        return
    say(
        f"{tokens:,} tokens: {facts['contexts']:,} contexts, {facts['entries']:,} continuations, "
        f"{facts['bytes'] / 1e6:.1f} MB"
    )
    print(out)
