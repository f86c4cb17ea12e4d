"""`streamfuse bundle prefix`: the cache of a system prompt becomes a part of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.api import GenerationOptions, store_prefix
from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import say
from streamfuse.cli.shared.errors import usage_errors


def register(app: typer.Typer) -> None:
    app.command("prefix")(prefix)


@usage_errors()
def prefix(
    bundle: options.BundleFolder,
    system: options.System = None,
    tools: options.Tools = None,
    template_variables: options.TemplateVariables = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the prefix. Replaces one with the same name.")
    ] = "system",
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Task adapter whose chats begin with the prefix.", show_default="the base model"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Write a new bundle.", show_default="change BUNDLE itself"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the bundle in --output.")] = False,
    sign_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=options.SIGN_KEY_HELP,
            show_default="none",
        ),
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Store the KV cache of a system prompt in a bundle.

    Chats whose prompt begins with exactly this system message and these tools
    load the cache instead of prefilling it, so their first token comes sooner.
    With --backend kernels, answers are identical with and without the cache.
    Needs a bundle for target executorch.

    [bold]Examples[/bold]

    streamfuse bundle prefix build/demo --system @system.txt

    streamfuse bundle prefix build/demo --system @system.txt --tools weather.json --name weather -o build/app

    streamfuse bundle prefix build/tasks --system "You write SQL." --adapter sql --sign-key release.key
    """
    key = None if sign_key is None else options.private_key("--sign-key", sign_key)
    asked: GenerationOptions = {}
    options.add_prompt(asked, tools, template_variables)
    stored = store_prefix(
        bundle, system, tools=asked.get("tools"), template_variables=asked.get("template_variables"), name=name,
        adapter=adapter, output=output, overwrite=overwrite, threads=threads, sign_key=key,
    )  # fmt: skip
    say(f"stored a prefix of {stored.tokens} tokens, {stored.size / 1e6:.1f} MB")
    if stored.lost_signature:
        changed = bundle if output is None else output
        say(f"The signature was of the old manifest; sign again: streamfuse bundle sign {changed} --key FILE", "yellow")
    print(stored.file)
