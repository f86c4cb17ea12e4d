"""Flags of declared options (streamfuse/options.py), their values, and configuration files with the same keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypeVar, get_args, get_origin

import typer

from streamfuse.cli.shared import complete
from streamfuse.cli.shared.help import COMMON
from streamfuse.options import OptionError, choices_of, declared, flag_of, types_of

Command = TypeVar("Command", bound=Callable[..., Any])


def _per_width(text: str) -> int | dict[int, int]:
    if ":" not in text:
        return int(text)
    return {int(width): int(number) for width, number in (item.split(":") for item in text.split(","))}


@dataclass(frozen=True, slots=True)
class _Form:
    """How a flag spells a value that is no scalar; `sign` stands between a key and its value in a mapping."""

    type: Any
    parse: Callable[[Any], Any]
    words: str
    lists: bool = True
    sign: str = ""


_FORMS = {
    tuple[int, ...]: _Form(
        str,
        lambda text: tuple(int(part) for part in text.split(",")),
        "numbers with commas between, for example 4,8,16",
    ),
    tuple[str, ...]: _Form(list[str], tuple, "words"),
    Mapping[int, int]: _Form(str, _per_width, "a number, or like 8:4,16:8", lists=False, sign=":"),
    Mapping[str, str]: _Form(
        list[str],
        lambda items: dict(item.split("=", 1) for item in items),
        "PART=SCHEME, for example head=q4_1 or mlp=int4:64",
        sign="=",
    ),
    Mapping[str, str | Path]: _Form(
        list[str],
        lambda items: dict(item.split("=", 1) for item in items),
        "NAME=FILE, for example sql=sql-lossless",
        sign="=",
    ),
}
_SCALAR = _Form(None, lambda value: value, "", lists=False)


def _form(kind: Any) -> _Form:
    return next((form for made, form in _FORMS.items() if made in (kind, *get_args(kind))), _SCALAR)


def _scalar(kind: Any) -> Any:
    """The type of a flag with one value: `int` of `int | None`, and text for a choice of words."""
    return next((part for part in (kind, *get_args(kind)) if part in (bool, int, float, str, Path)), str)


def with_options(
    *configs: Any, completers: Mapping[str, complete.Completer] | None = None
) -> Callable[[Command], Command]:
    """Give a command a flag for every declared option of these dataclasses, in place of its `**options`.

    Instead of a dataclass an instance may stand: then its values are shown as defaults, and a flag that is left out is
    None. The flags come before the command's own keyword-only parameters.
    """

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        own = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        first = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in own)
        flags = [_flag(config, name, completers or {}) for config in configs for name in declared(_class(config))]
        ordered = (parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in (*own[:first], *flags, *own[first:]))
        command.__signature__ = inspect.Signature(list(ordered))  # type: ignore[attr-defined]
        return command

    return decorate


def _class(config: Any) -> type:
    return config if isinstance(config, type) else type(config)


def _flag(config: Any, name: str, completers: Mapping[str, complete.Completer]) -> inspect.Parameter:
    made = _class(config)
    facts, kind, choices = declared(made)[name], types_of(made)[name], choices_of(made, name)
    (default,) = (option.default for option in fields(made) if option.name == name)
    value = default if config is made else getattr(config, name)
    itself = config is made and _form(kind) is _SCALAR and not facts.shown  # the flag has the default as its value
    looks: dict[str, Any] = complete.among(*choices) if choices else {}
    looks |= {"metavar": facts.metavar} if facts.metavar else {}
    looks |= {"autocompletion": completers[name]} if name in completers else {}
    shown = facts.shown or itself or value in (None, MISSING, (), {}) or str(value)
    names = [flag_of(name)] if kind is bool else []
    option = typer.Option(*names, help=facts.help, show_default=shown, rich_help_panel=facts.group or None, **looks)
    type_ = _form(kind).type or _scalar(kind)
    type_ = type_ if itself and value is not None else Optional[type_]  # noqa: UP045
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=value if itself else None,
        annotation=Annotated[type_, option, COMMON] if facts.common else Annotated[type_, option],
    )


def given(config: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that flags were given for.

    Raises:
        OptionError: a text is not of the form that its option takes.
    """
    found = {name: options[name] for name in declared(config) if options[name] is not None}
    for name, value in found.items():
        kind = types_of(config)[name]
        words = [word for part in get_args(kind) if get_origin(part) is Literal for word in get_args(part)]
        try:
            found[name] = value if value in words else _form(kind).parse(value)
        except ValueError:
            raise OptionError(f"{flag_of(name)} must be {_form(kind).words}, not {_shown(value):.40}") from None
    return found


def _shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def read_config(path: Path, command: Any, config: type, without: tuple[str, ...]) -> dict[str, Any]:
    """The flags of a YAML file as on the command line, for a command's `default_map`.

    A list of numbers is joined by commas, a map of widths becomes 8:4,16:8, a map of schemes PART=SCHEME.

    Raises:
        OptionError: the file cannot be read, has an unknown key, or has a value that no flag takes.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise OptionError(f"--config {path} cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(content or {}, dict):
        raise OptionError(f"--config {path} must hold keys and values, for example `target: onnx`")
    flags = {parameter.name: parameter for parameter in command.params if parameter.name not in without}
    found: dict[str, Any] = {}
    for key, value in (content or {}).items():
        name = str(key).replace("-", "_")
        if name not in flags:
            raise OptionError(f"--config {path}: {name} is not a flag of `streamfuse {command.name}`")
        if value is not None:
            kind = types_of(config).get(name)
            try:
                found[name] = _as_flag(value, _form(kind), flags[name])
            except TypeError as error:
                raise OptionError(f"--config {path}: {name} has a value that no flag takes, {error}") from None
    return found


def _as_flag(value: Any, form: _Form, flag: Any) -> Any:
    """A value as the command line spells it. TypeError, with the value, for one that no flag takes."""
    if isinstance(value, bool):  # YAML reads the words on and off so too
        return value if getattr(flag, "is_flag", False) else "on" if value else "off"
    if isinstance(value, dict) and form.sign:
        words = [f"{_word(key)}{form.sign}{_word(item)}" for key, item in value.items()]
    else:
        words = [_word(item) for item in (value if isinstance(value, list) and form.lists else [value])]
    return words if flag.multiple else ",".join(words)


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{value!r:.40}")
    return str(value)
