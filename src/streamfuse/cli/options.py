"""The flags that several commands share, and the configuration they become; a flag left out is the bundle's default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.bundle import KeyProblem, Manifest
from streamfuse.bundle.signature import read_private_key, read_public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.train.templates import Template

_BUNDLE_DEFAULT = "from the bundle"
AUTO = "auto"


def _public_key(file: str | None) -> str | None:
    """The line in a key's file. BadParameter, exit code 2, where it has none."""
    try:
        return None if file is None else read_public_key(Path(file))
    except KeyProblem as problem:
        raise typer.BadParameter(str(problem)) from None


BundleFolder = Annotated[str, typer.Argument(metavar="BUNDLE", help="Folder that `streamfuse export` wrote.")]
PublicKey = Annotated[
    str | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        callback=_public_key,
        help="Refuse a bundle that is not signed with this key, NAME.pub of `streamfuse keys`.",
        show_default="none",
    ),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens to generate at most.", show_default=_BUNDLE_DEFAULT)
]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, help="0 is greedy; higher is more varied.", show_default=_BUNDLE_DEFAULT)
]
TopK = Annotated[
    int | None, typer.Option(min=0, help="Sample among the k likeliest tokens; 0: off.", show_default=_BUNDLE_DEFAULT)
]
TopP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Sample among the likeliest tokens of this total probability; 1: off.",
                 show_default=_BUNDLE_DEFAULT),
]  # fmt: skip
MinP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Drop tokens below this share of the likeliest one; 0: off.",
                 show_default=_BUNDLE_DEFAULT),
]  # fmt: skip
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 1: tokens seen before are less likely; 1: off.", show_default=_BUNDLE_DEFAULT),
]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same text, with and without speculation.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given again.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="System message, before the first turn.")]
NoSpeculation = Annotated[bool, typer.Option("--no-speculation", help="One token per pass, the baseline.")]
Width = Annotated[
    str,
    typer.Option(metavar="auto|N", help="Nodes per verify pass; auto: what pays, by the cost measured on this device."),
]
NoCostCache = Annotated[
    bool, typer.Option("--no-cost-cache", help="Measure what passes cost again, and do not remember it.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the engine.", show_default="the engine's choice")]

DATA_HELP = "JSON lines, a folder of data files, or a Hugging Face data set: owner/name or owner/name:configuration."
DataFormat = Annotated[
    str | None,
    typer.Option("--format", help="Of the rows; see docs/data.md.", show_default="told by the fields"),
]
DataTemplate = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Make the prompt of the row's own fields: '{title}: {body}', or Jinja.",
        show_default="none",
    ),
]
DataSplit = Annotated[str, typer.Option(help="Of a folder or a data set.")]


def private_key(flag: str, file: Path) -> Ed25519PrivateKey:
    """The key in a file. BadParameter, exit code 2, where it has none; MissingExtra where nothing here reads keys."""
    try:
        return read_private_key(file)
    except KeyProblem as problem:
        raise typer.BadParameter(f"{flag} {problem}") from None


def data_template(prompt: str | None, completion: str | None = None) -> Template | None:
    """The template of `--template` and `--completion`; None where there is none."""
    from streamfuse.train.templates import Template

    if completion is not None and prompt is None:
        raise typer.BadParameter("--completion goes with --template")
    return None if prompt is None else Template(prompt, completion, chat_template=None)


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What the user said; None where nothing was said."""

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    speculative: bool = True
    width: str = AUTO

    def config(self, manifest: Manifest) -> GenerationConfig:
        """The configuration for one bundle. BadParameter, exit code 2, for values out of range."""
        from streamfuse.api import config_of

        said = {name: getattr(self, name) for name in self.__slots__ if name != "width"}
        if self.width != AUTO and not self.width.isdecimal():
            raise typer.BadParameter(f"--width must be auto or a number of nodes, not {self.width}")
        try:
            return config_of(manifest, **said, width=None if self.width == AUTO else int(self.width))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
