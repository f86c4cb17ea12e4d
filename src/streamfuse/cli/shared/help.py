"""Help that fits on one screen: `--help` shows the common flags of a command, `--help-all` all of them."""

from __future__ import annotations

import inspect
import re
import shlex
from copy import copy
from typing import Annotated, Any, get_args, get_origin

from typer.core import TyperCommand, TyperGroup


class _Common:
    """A mark in a flag's Annotated: `--help` shows the flag. A command without marks shows all of its flags."""


COMMON = _Common()
ALL = "--help-all"
_WORDS = "streamfuse.words"  # in a context's `meta`: the words after the command
_EXAMPLES, _CHOICES = 3, 25  # limits of the short help: examples; characters of a list of choices
_HEADING = re.compile(r"\[bold\].+\[/bold\]")
_FIRST_SENTENCE = re.compile(r".+?[.](?=\s|$)", re.DOTALL)


class Group(TyperGroup):
    """A group whose help shows no type for flags without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


class _View(TyperCommand):
    """A command that is made only to print its help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


class Command(TyperCommand):
    """A command with a short `--help`: one sentence, some examples and the flags that are marked `COMMON`.

    `--help-all` shows all paragraphs, examples and flags; so does `--help` if no flag is marked.
    """

    _all: Any = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        shown = self.get_help_option(ctx)
        if shown is None:
            return params
        if self._all is None:
            self._all = copy(shown)
            self._all.name, self._all.opts = "help_all", [ALL]
            self._all.help, self._all.callback = "Show all flags and exit.", self._show_all
        return [*params, self._all]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        left_out = self.left_out()
        if not left_out:
            self._format_all(ctx, formatter)
            return
        params = [_short(param) for param in self.params if param not in left_out]
        count = f"{len(left_out)} more flag{'s' if len(left_out) > 1 else ''}"
        rest = f"{count}: {ctx.command_path} {ALL}"
        self._view(_text(self.help or "", whole=False), params, rest).format_help(ctx, formatter)

    def left_out(self) -> list[Any]:
        """The flags that only `--help-all` shows."""
        parameters = inspect.signature(self.callback, eval_str=True).parameters.values()  # type: ignore[arg-type]
        common = {parameter.name for parameter in parameters if _is_common(parameter.annotation)}
        flags = [param for param in self.params if param.param_type_name == "option"]
        return [flag for flag in flags if common and flag.name not in common and not flag.required]

    def _show_all(self, ctx: Any, _: Any, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            formatter = ctx.make_formatter()
            self._format_all(ctx, formatter)
            print(formatter.getvalue().rstrip("\n"))
            ctx.exit()

    def _format_all(self, ctx: Any, formatter: Any) -> None:
        self._view(_text(self.help or "", whole=True), self.params).format_help(ctx, formatter)

    def _view(self, text: str, params: list[Any], epilog: str | None = None) -> TyperCommand:
        """A command with this help, for typer to print."""
        return _View(self.name, help=text, params=params, epilog=epilog, rich_markup_mode=self.rich_markup_mode)


def command_line(ctx: Any) -> str:
    """The running command with its arguments, quoted for a shell, as reports print it."""
    path = ctx.command_path.split()[1:]  # the first one is the program, by any name
    return shlex.join(["streamfuse", *path, *ctx.meta[_WORDS]])


def help_flag(ctx: Any) -> str:
    """`--help-all` if the context's command has a short `--help`, else `--help`."""
    command = getattr(ctx, "command", None)
    return ALL if isinstance(command, Command) and command.left_out() else "--help"


def _hide_flag_types(params: list[Any]) -> list[Any]:
    """Hide the type of flags that take no value, for which typer 0.29 and later show `<bool>`. Changes the parameters
    in place and returns them."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


def _is_common(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated and COMMON in get_args(annotation)


def _short(param: Any) -> Any:
    """With the first sentence of its help, in the panel of all, without the rest of a long list of choices."""
    param = copy(param)
    found = _FIRST_SENTENCE.match(param.help or "")
    param.help, param.rich_help_panel = found[0] if found else param.help, None
    if len(param.metavar or "") > _CHOICES and param.metavar[0] == "[":
        param.metavar = param.metavar[: param.metavar.rindex("|", 0, _CHOICES)] + "|...]"
    return param


def _text(docstring: str, whole: bool) -> str:
    """Paragraphs as long lines, for the terminal to wrap, and what is below a heading without empty lines.

    Unless it is `whole`, only the first paragraph and some of the examples.
    """
    about, examples = [], []
    sections: list[list[str]] = []
    for paragraph in docstring.split("\n\n"):
        line = " ".join(paragraph.split("\n")).strip()
        if _HEADING.fullmatch(line):
            sections.append([line])
        elif sections:
            sections[-1].append(line)
        else:
            about.append(line)
    if not whole:
        about = about[:1]
        examples = [section for section in sections if section[0] == "[bold]Examples[/bold]"]
        sections = [section[: 1 + _EXAMPLES] for section in examples]
    return "\n\n".join([*about, *("\n".join(section) for section in sections)])
