"""One clear line for whatever goes wrong: exit code 2 for bad use, 1 for a failure, 130 for Ctrl-C."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from streamfuse.cli.shared.console import err, say, visible
from streamfuse.cli.shared.help import Group, help_flag
from streamfuse.durable import os_error, reason
from streamfuse.model.fields import CheckpointWarning
from streamfuse.options import OptionError

EXIT_FAILURE, EXIT_INTERRUPTED = 1, 130
_show_others = warnings.showwarning
# What Python and pydantic say of an integer that Python does not read.
_LONG = re.compile(
    r"Exceeds the limit \(\d+ digits\) for integer string conversion(: value has \d+ digits)?; use "
    r"sys\.set_int_max_str_digits\(\) to increase the limit"
    r"|Unable to parse input string as an integer, exceeded maximum size"
)
_KNOWN_MODULES = "streamfuse."  # errors of these modules are sentences already


@contextmanager
def usage_errors() -> Iterator[None]:
    """An option's error becomes an error of the command's use: exit code 2, and a hint at its help."""
    try:
        yield
    except OptionError as error:
        raise typer.BadParameter(error.flags) from None


class OneLineErrors(Group):
    """The root command. It replaces the boxes and tracebacks of typer by one line on standard error."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("standalone_mode", True):
            return super().main(*args, **kwargs)
        _settle_streams()
        _settle_warnings()
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.stdout.flush()
        except (typer.Abort, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # the reader has what it wanted, as `head` does; nothing to say, as click says nothing
            _let_go_of_output()
            code = EXIT_FAILURE
        except Exception as error:
            code = _tell(error)
        sys.exit(code if isinstance(code, int) else 0)


def _tell(error: Exception) -> int:
    if _debug():
        traceback.print_exc()
    line, code = describe(error)
    # Rich removes some control characters without a trace, so they are made visible first.
    say(f"error: {visible(line) if err.is_terminal else line}", "red")
    try:
        sys.stdout.flush()
    except OSError:  # full, or closed by the reader
        _let_go_of_output()
    return code


def _let_go_of_output() -> None:
    """Python would try again at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(error: Exception) -> tuple[str, int]:
    """The line for an error, and its exit code."""
    if hasattr(error, "format_message"):  # typer's own: an unknown flag, a value out of range, a missing argument
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "streamfuse")
        text = _one_line(error.format_message()) or "Missing command"  # typer has printed the group's help, no sentence
        return f"{text.rstrip('.')} (see {command} {help_flag(context)})", int(getattr(error, "exit_code", 2))
    system = os_error(error)
    if system is not None and system.strerror:
        return _one_line(f"{system.filename}: {reason(system)}" if system.filename else reason(system)), EXIT_FAILURE
    if type(error).__module__.startswith(_KNOWN_MODULES) or isinstance(error, (ValueError, OSError)):
        return _one_line(str(getattr(error, "flags", error))) or type(error).__name__, EXIT_FAILURE
    if isinstance(error, MemoryError):
        return "not enough memory; close other programs, or take a smaller model or context", EXIT_FAILURE
    if isinstance(error, ImportError):
        return f"a package is missing ({_one_line(str(error))}); `streamfuse doctor` says what brings it", EXIT_FAILURE
    name = type(error).__name__
    return f"{name}: {_one_line(str(error))} (set STREAMFUSE_DEBUG=1 for the traceback)", EXIT_FAILURE


def _debug() -> bool:
    """Also true where the error came before typer had read `--debug`."""
    return "--debug" in sys.argv[1:] or os.environ.get("STREAMFUSE_DEBUG", "0").lower() not in ("", "0", "false", "no")


def _settle_streams() -> None:
    """A terminal that is not UTF-8 shows `?` for what it lacks; a stream that is closed is an empty one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open to the end)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _settle_warnings() -> None:
    """What is to say of a checkpoint is a line like others, without a line of our code below it."""
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, CheckpointWarning):
        say(f"warning: {_one_line(str(message))}", "yellow")
    else:
        _show_others(message, category, *place, **more)


def _one_line(text: str) -> str:
    return " ".join(_LONG.sub("a number of more than 4300 digits; integers have at most 64 bits", text).split())
