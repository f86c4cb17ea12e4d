"""Flags that several commands share, and the configuration made from them; an omitted flag is the bundle's default."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfuse.bundle import KeyProblem, Manifest
from streamfuse.bundle.signature import read_private_key, read_public_key
from streamfuse.cli.shared import complete
from streamfuse.cli.shared.errors import usage_errors
from streamfuse.durable import reason
from streamfuse.extras import need
from streamfuse.json_text import integer
from streamfuse.native.library import MOST_THREADS
from streamfuse.options import AUTO

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from streamfuse.api import GenerationOptions, Model
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.text import Tokenizer
    from streamfuse.train.templates import Template

_BUNDLE_DEFAULT = "from the bundle"


def _public_key(file: str | None) -> str | None:
    """The line in a key's file. Raises BadParameter, exit code 2, if there is none."""
    try:
        return None if file is None else read_public_key(Path(file))
    except KeyProblem as problem:
        raise typer.BadParameter(str(problem)) from None


def _system(text: str | None) -> str | None:
    """The text of a file for @FILE, unchanged, with a line end at its end if it has one."""
    return _text("--system", Path(text[1:])) if text is not None and text.startswith("@") else text


BaseModel = Annotated[
    str,
    typer.Option(help="Hub name, checkpoint folder or .gguf file.", show_default=DEFAULT_MODEL.rpartition("/")[2]),
]
BundleFolder = Annotated[
    str,
    typer.Argument(metavar="BUNDLE", help="Folder that `streamfuse export` wrote.", autocompletion=complete.bundles),
]
PublicKey = Annotated[
    str | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        callback=_public_key,
        help="Refuse a bundle that is not signed with this key (NAME.pub from `streamfuse bundle keygen`).",
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Token limit of the answer.", show_default=_BUNDLE_DEFAULT),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="T",
        help="Temperature; 0: greedy. Higher is more varied.",
        show_default=_BUNDLE_DEFAULT,
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(min=0, help="Top-k sampling: keep the k likeliest tokens; 0: off.", show_default=_BUNDLE_DEFAULT),
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Nucleus sampling: keep the likeliest tokens up to this total probability; 1: off.",
        show_default=_BUNDLE_DEFAULT,
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Drop tokens below this fraction of the top token's probability; 0: off.",
                 show_default=_BUNDLE_DEFAULT),
]  # fmt: skip
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 1: make tokens that already occur less likely; 1: off.", show_default=_BUNDLE_DEFAULT),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed yields the same text, with or without speculation.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Stop string; repeat the flag for several.")]
System = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT|@FILE",
        callback=_system,
        help="System message. The text, or @ and the path of a text file.",
    ),
]
DataSystem = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT|@FILE",
        callback=_system,
        help="System message of chats that have none. The text, or @ and the path of a text file.",
    ),
]
NoSpeculation = Annotated[
    bool, typer.Option("--no-speculation", help="Plain decoding, one token per pass: the baseline.")
]
Width = Annotated[
    str,
    typer.Option(
        metavar="auto|N",
        autocompletion=complete.listed(AUTO),
        help="Nodes per verify pass; auto: chosen pass by pass from the latencies measured on this device.",
    ),
]
NoCostCache = Annotated[
    bool, typer.Option("--no-cost-cache", help="Measure pass latencies again, and do not cache them.")
]
Gguf = Annotated[
    Path | None,
    typer.Option(
        help=".gguf file of the bundle's weights for llama.cpp.", show_default="made from checkpoint and adapter"
    ),
]
TrainedAdapter = Annotated[
    str | None,
    typer.Option(
        help="Adapter that the bundle, or its --adapter, was exported with, to make weights for other programs: a file "
        "or the name of a shipped adapter.",
        show_default="from the bundle",
        autocompletion=complete.adapters,
    ),
]
Memory = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draft from earlier answers, which are stored in this file. This speeds up similar answers. The "
        "file is readable by its owner only; delete it to discard the answers. With --adapter NAME, the file is "
        "FILE.NAME.",
        dir_okay=False,
    ),
]
TaskAdapter = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        metavar="NAME",
        help="Task adapter to answer with. `streamfuse bundle inspect` lists those of the bundle.",
        show_default="the base model",
    ),
]
Systems = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Any of plain, speculative, llama.cpp.",
        show_default="all installed ones",
        autocompletion=complete.listed("plain", "speculative", "llama.cpp"),
    ),
]
ShowDrafts = Annotated[
    bool,
    typer.Option(
        "--show-drafts",
        help="Colour each token by the source that drafted it. A line below has counts and speed. Without colours, "
        "drafts are in brackets.",
    ),
]
AdapterName = Annotated[
    str,
    typer.Option(
        help="Name of a shipped adapter, or a file from `streamfuse train`.", autocompletion=complete.adapters
    ),
]
AnswerSchema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="FILE|JSON",
        help="Make the answer match this JSON schema. A file, or the schema itself.",
    ),
]
Regex = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Make the answer match this regular expression from beginning to end."),
]
Grammar = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Make the answer match this Lark grammar."),
]
Tools = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Functions that the model may call. A JSON list of {name, description, parameters}."
    ),
]
ToolChoice = Annotated[
    str | None,
    typer.Option(
        metavar="auto|required|none|NAME",
        autocompletion=complete.listed("auto", "required", "none"),
        show_default="auto",
        help="auto: the model decides; required: it calls a tool; none: it calls none; NAME: it calls this one.",
    ),
]
TemplateVariables = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Variables of the chat template, for example '{\"enable_thinking\": false}'."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use local files only; no network access.")]


class ContextPolicyName(str, Enum):
    fail = "fail"
    drop_oldest = "drop-oldest"


ContextPolicy = Annotated[
    ContextPolicyName,
    typer.Option(
        help="When a question does not fit the context: fail, or drop the oldest turns. The others are prefilled again."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_THREADS,
        help="Threads of the engine; not for Core ML, OpenVINO, QNN, Vulkan.",
        show_default="chosen by the engine",
    ),
]
Provider = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:OPTION=VALUE,...]",
        autocompletion=complete.listed("cpu", "webgpu", "qnn", "coreml", "directml"),
        help="Execution provider for ONNX bundles: cpu, webgpu, qnn, coreml or directml.",
        show_default="cpu",
    ),
]

SIGN_KEY_HELP = "Sign the bundle with this private key (NAME.key from `streamfuse bundle keygen`)."
DATA_HELP = (
    "JSON Lines file, folder, or Hugging Face data set. A folder holds data files; a data set is owner/name or "
    "owner/name:config."
)
DataFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Row format. docs/training.md lists the formats.",
        show_default="detected from the fields",
        autocompletion=complete.data_formats,
    ),
]
DataTemplate = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Prompt made of a row's fields. For example '{title}: {body}', or a Jinja template."
    ),
]
DataSplit = Annotated[str, typer.Option(help="Split of a folder or data set.")]
ColdCaches = Annotated[
    bool, typer.Option("--cold-caches", help="Evict the CPU caches before each pass; the eviction is not timed.")
]
ReportFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write tables and a bar chart to this file."),
]


def adapter_file(flag: str, name: str | Path) -> Path:
    """The file of a shipped adapter, by name, or the path itself. Raises BadParameter if there is none."""
    from streamfuse.adapters import find

    try:
        return find(str(name))
    except FileNotFoundError as error:
        raise typer.BadParameter(f"{flag} {error}") from None


def check_report(report: Path | None) -> None:
    """Check before minutes of measuring that a report can be drawn and that its folder exists."""
    if report is not None:
        need("report")
        check_place("--report", report)


def check_place(flag: str, file: Path | None) -> None:
    """Raises BadParameter if the file's folder does not exist, or if the file is a folder."""
    if file is not None and not file.parent.is_dir():
        raise typer.BadParameter(f"{flag} {file}: there is no folder {file.parent}; make it first")
    if file is not None and file.is_dir():
        raise typer.BadParameter(f"{flag} {file} is a folder; name a file in it")


def is_given(ctx: Any, parameter: str) -> bool:
    """Whether the running command was given this parameter on its command line."""
    return str(getattr(ctx.get_parameter_source(parameter), "name", "")) == "COMMANDLINE"


def refuse_unread(ctx: Any, case: str, *parameters: str) -> None:
    """Raises BadParameter if one of these parameters of the running command was given but is not used in this `case`,
    such as "without --data"."""
    for param in ctx.command.params:
        if param.name in parameters and is_given(ctx, param.name):
            raise typer.BadParameter(f"{param.opts[0]} has no effect {case}; leave it out")


def check_not_read(flag: str, out: Path | None, of: str, inputs: Iterable[Path | str]) -> None:
    """Raises BadParameter if the file to write is one of the files that are read, which it would replace."""
    if out is not None and any(Path(one).exists() and out.exists() and out.samefile(one) for one in inputs):
        raise typer.BadParameter(f"{flag} {out} would overwrite an input of {of}; name another file")


def private_key(flag: str, file: Path) -> Ed25519PrivateKey:
    """The key in a file. Raises BadParameter, exit code 2, if there is none; MissingExtra without `cryptography`."""
    try:
        return read_private_key(file)
    except KeyProblem as problem:
        raise typer.BadParameter(f"{flag} {problem}") from None


def data_template(prompt: str | None, completion: str | None = None) -> Template | None:
    """The template of `--template` and `--completion`; None without them."""
    from streamfuse.train.templates import Template

    if completion is not None and prompt is None:
        raise typer.BadParameter("--completion goes with --template")
    return None if prompt is None else Template(prompt, completion, chat_template=None)


def nodes(width: str, no_speculation: bool = False) -> int | None:
    """The number of `--width`; None for auto."""
    if no_speculation and width != AUTO:
        raise typer.BadParameter("--width sets speculative decoding and cannot be used with --no-speculation")
    if width != AUTO and not width.isdecimal():
        raise typer.BadParameter(f"--width must be auto or a number of nodes, not {width}")
    return None if width == AUTO else int(width)


@usage_errors()
def with_adapter(model: Model, adapter: str | None) -> Model:
    """The model with the task adapter of `--adapter`. BadParameter, exit code 2, if there is none of this name."""
    return model if adapter is None else model.adapter(adapter)


@usage_errors()
def checked(manifest: Manifest, asked: GenerationOptions) -> GenerationConfig:
    """What the options mean for one bundle. BadParameter, exit code 2, for values out of range."""
    from streamfuse.api import config_of

    return config_of(manifest, **asked)


def restrictions(schema: str | None, regex: str | None, grammar: Path | None) -> GenerationOptions:
    """What restricts an answer, as it is written in files or in the flags. Raises BadParameter, exit code 2."""
    found: GenerationOptions = {}
    if schema is not None:
        if schema.lstrip().startswith(("{", "[")) or schema.strip() in ("true", "false"):
            found["schema"] = _json("--schema", schema)
        else:
            found["schema"] = _json(f"--schema {schema}", _text("--schema", Path(schema)))
    if regex is not None:
        found["regex"] = regex
    if grammar is not None:
        found["grammar"] = _text("--grammar", grammar)
    return found


@usage_errors()
def add_prompt(
    asked: GenerationOptions, tools: Path | None, template_variables: str | None, tool_choice: str | None = None
) -> None:
    """Add what the chat template reads besides the messages, and check it. Raises BadParameter, exit code 2."""
    from streamfuse.api.options import prompt_config_of

    asked["tool_choice"] = tool_choice
    if tools is not None:
        asked["tools"] = _json(f"--tools {tools}", _text("--tools", tools))
    if template_variables is not None:
        asked["template_variables"] = _json("--template-variables", template_variables)
    prompt_config_of(**asked)


def _text(flag: str, file: Path) -> str:
    """The file's text, its line ends unchanged."""
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{flag} {file}: {reason(error)}") from None
    except ValueError as error:  # not UTF-8, or a zero byte in the name
        raise typer.BadParameter(f"{flag} {file} is not UTF-8 text ({error}); convert it") from None


@usage_errors()
def check_restriction(config: GenerationConfig, tokenizer: Tokenizer) -> None:
    """BadParameter, exit code 2, for a schema, regex or grammar that cannot be used, before the engine is loaded."""
    from streamfuse.runtime.session import constraint_of

    constraint_of(config, tokenizer)


def _json(flag: str, text: str) -> Any:
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_int=integer)  # some editors write a byte order mark
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{flag} is not JSON: {error}") from None


def defaults(manifest: Manifest, asked: GenerationOptions) -> str:
    """The bundle's sampling defaults that take effect, `temperature 0.6, top-p 0.95`; empty where it has none."""
    from streamfuse.api.options import SAMPLING
    from streamfuse.runtime.config import SamplingConfig

    off, given = SamplingConfig(), manifest.sampling_defaults
    return ", ".join(
        f"{name.replace('_', '-')} {getattr(given, name):g}"
        for name in SAMPLING
        if asked.get(name) is None and getattr(given, name) != getattr(off, name)
    )
