"""`streamfuse bundle prefix`: the cache of a system prompt becomes a part of a bundle, is listed or removed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from streamfuse.api import GenerationOptions, remove_prefix, store_prefix
from streamfuse.bundle import open_bundle
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import out, say
from streamfuse.cli.shared.help import COMMON


def register(app: typer.Typer) -> None:
    app.command("prefix")(prefix)


def prefix(
    bundle: options.BundleFolder,
    system: Annotated[options.System, COMMON] = None,
    tools: Annotated[options.Tools, COMMON] = None,
    template_variables: options.TemplateVariables = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the prefix. Replaces one with the same name.", show_default="system"
        ),
        COMMON,
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Task adapter that the prefix is for.", show_default="the base model"),
        COMMON,
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only list the stored prefixes."), COMMON] = False,
    remove: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Remove the prefix of this name, for --adapter or the base model."),
        COMMON,
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Write a new bundle to this folder.",
            show_default="change BUNDLE itself",
        ),
        COMMON,
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the bundle in --output.")] = False,
    sign_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=options.SIGN_KEY_HELP,
        ),
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Store the KV cache of a system prompt in a bundle, or list or remove stored prefixes.

    Chats whose prompt begins with exactly this system message and these tools
    load the cache instead of prefilling it, so their first token comes sooner.
    With --backend kernels, answers are identical with and without the cache.
    Needs a bundle for target executorch.

    [bold]Examples[/bold]

    streamfuse bundle prefix build/demo --system @system.txt

    streamfuse bundle prefix build/demo --list

    streamfuse bundle prefix build/demo --remove system

    streamfuse bundle prefix build/demo --system @system.txt --tools weather.json --name weather -o build/app

    streamfuse bundle prefix build/tasks --system "You write SQL." --adapter sql --sign-key release.key
    """
    stores = {
        "--system": system, "--tools": tools, "--template-variables": template_variables, "--name": name,
        "--threads": threads,
    }  # fmt: skip
    if remove is not None:
        _refuse("--remove", stores)
    if list_:
        changes = {"--output": output, "--overwrite": overwrite or None, "--sign-key": sign_key}
        _refuse("--list", {**stores, "--remove": remove, "--adapter": adapter, **changes})
        shown = tables.prefixes(open_bundle(bundle).manifest)
        out.print(*(shown or [f"{bundle} has no stored prefixes"]), markup=False, soft_wrap=True)
        return
    if overwrite and output is None:
        raise typer.BadParameter("--overwrite needs --output")
    key = None if sign_key is None else options.private_key("--sign-key", sign_key)
    changed = bundle if output is None else output
    if remove is not None:
        removed = remove_prefix(bundle, remove, adapter=adapter, output=output, overwrite=overwrite, sign_key=key)
        say(f"removed a prefix of {removed.tokens} tokens, {removed.size / 1e6:.1f} MB")
        _tell_signature(removed.lost_signature, changed)
        print(changed)
        return
    asked: GenerationOptions = {}
    options.add_prompt(asked, tools, template_variables)
    stored = store_prefix(
        bundle, system, tools=asked.get("tools"), template_variables=asked.get("template_variables"),
        name="system" if name is None else name, adapter=adapter, output=output, overwrite=overwrite,
        threads=threads, sign_key=key,
    )  # fmt: skip
    say(f"stored a prefix of {stored.tokens} tokens, {stored.size / 1e6:.1f} MB")
    _tell_signature(stored.lost_signature, changed)
    print(stored.file)


def _refuse(flag: str, others: Mapping[str, object]) -> None:
    """BadParameter, exit code 2, if another flag was given that does not go with this one."""
    for other, value in others.items():
        if value is not None:
            raise typer.BadParameter(f"{other} does not go with {flag}")


def _tell_signature(lost: bool, bundle: str | Path) -> None:
    if lost:
        say(f"The signature was of the old manifest; sign again: streamfuse bundle sign {bundle} --key FILE", "yellow")
