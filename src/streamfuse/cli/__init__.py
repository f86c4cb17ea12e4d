"""The `streamfuse` command. One small module per command or group, each with `register(app)`."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Annotated

import typer

from streamfuse import __version__
from streamfuse.cli.shared.errors import OneLineErrors
from streamfuse.cli.shared.groups import register_all

MAIN = (
    "commands.quickstart", "commands.pull", "commands.train", "commands.export", "commands.run", "commands.chat",
    "commands.doctor", "commands.data", "commands.bundle", "bench",
)  # fmt: skip
MORE = ("commands.demo", "commands.serve", "commands.devices", "commands.adapter")


def _flag(name: str) -> str:
    """`--max_new_tokens` and `--max-new-tokens` are the same flag."""
    return name.replace("_", "-")


app = typer.Typer(
    name="streamfuse",
    cls=OneLineErrors,
    help=(
        "Speculative decoding without a draft model: get a model, export it as static graphs, and run it with or"
        " without speculation.\n\n"
        "[bold]Examples[/bold]\n"
        "streamfuse quickstart\n"
        "streamfuse pull\n"
        "streamfuse export --output-dir build/demo\n"
        'streamfuse run build/demo "Why is the sky blue?" --compare\n'
        "streamfuse chat build/demo"
    ),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": _flag, "help_option_names": ["-h", "--help"]},  # inherited
)


def _print_version(value: bool) -> None:
    if value:
        print(f"streamfuse {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="STREAMFUSE_DEBUG", help="Show the traceback of an error.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


register_all(app, __name__, MAIN, "Main commands")
register_all(app, __name__, MORE, "More commands")
if find_spec("streamfuse.research") is not None:  # by name: nothing of the product imports it or needs it
    register_all(app, "streamfuse.research", ["cli"], "More commands")


def main() -> None:
    """The command line of this process."""
    # Whatever imports torchao makes torch warn, for the developers of torchao, about types of a future release.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    app(prog_name="streamfuse")  # for `python -m streamfuse` too: completion is installed for this name
