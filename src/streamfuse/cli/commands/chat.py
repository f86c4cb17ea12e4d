"""`streamfuse chat`: a conversation in the terminal. The cache keeps all turns; only new words are read."""

from __future__ import annotations

import contextlib
import sys

import typer

from streamfuse.api import Chat, GenerationOptions, Statistics, load
from streamfuse.cli.shared import drafts, options, tables
from streamfuse.cli.shared.console import out, read_input, say
from streamfuse.cli.shared.engine import settle, tell_defaults, tell_emulated, tell_limit, tell_provider
from streamfuse.cli.shared.interrupt import stop_on_interrupt
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.text import TextError

_HELP = "/reset forgets the conversation, /stats shows the last answer's statistics, /exit (or Ctrl-D) leaves."


def register(app: typer.Typer) -> None:
    app.command("chat")(chat)


def chat(
    bundle: options.BundleFolder,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    system: options.System = None,
    no_speculation: options.NoSpeculation = False,
    width: options.Width = options.AUTO,
    no_cost_cache: options.NoCostCache = False,
    threads: options.Threads = None,
    provider: options.Provider = None,
    show_drafts: options.ShowDrafts = False,
    public_key: options.PublicKey = None,
) -> None:
    """Talk with the model; Ctrl-C ends an answer, not the program.

    [bold]In the chat[/bold]

    /reset  forget the conversation

    /stats  statistics of the last answer

    /exit   leave (or Ctrl-D)

    [bold]Examples[/bold]

    streamfuse chat build/demo

    streamfuse chat build/demo --show-drafts

    streamfuse chat build/demo --system "You answer in one sentence." --temperature 0.7 --top-p 0.9
    """
    model = load(bundle, threads=threads, provider=provider, cost_cache=not no_cost_cache, public_key=public_key)
    if not model.tokenizer.can_chat:
        raise TextError(f"{bundle}: this bundle has no chat template; use `streamfuse run --raw`")
    asked = GenerationOptions(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, stop=tuple(stop or ()), speculative=not no_speculation,
        width=options.nodes(width),
    )  # fmt: skip
    plan = options.checked(model.manifest, asked).needs_plan
    tell_emulated(model.bundle)
    tell_defaults(options.defaults(model.manifest, asked))
    with model, model.chat(system, **asked) as conversation:
        settle(conversation, plan=plan)
        tell_provider(conversation.backend)
        say(f"{model.manifest.model.name}. {_HELP}")
        _Terminal(conversation, show_drafts).talk()


class _Terminal:
    """Reads lines, obeys commands, streams answers."""

    def __init__(self, conversation: Chat, show_drafts: bool) -> None:
        self._conversation, self._show_drafts = conversation, show_drafts
        self._last: Statistics | None = None

    def talk(self) -> None:
        """Until /exit or the end of the input."""
        while True:
            try:
                line = read_line().strip()
            except EOFError:
                print()
                return
            except UnicodeError:  # of the terminal
                say("That line is not UTF-8 text, so it was not read.", "yellow")
                continue
            except KeyboardInterrupt:
                print()
                say("/exit or Ctrl-D leaves.")
                continue
            if line == "/exit":
                return
            if line.startswith("/"):
                self._obey(line)
            elif line:
                self._answer(line)

    def _obey(self, command: str) -> None:
        if command == "/reset":
            self._conversation.reset()
            say("The conversation is forgotten.")
        elif command == "/stats":
            out.print(tables.statistics(self._last) if self._last else "No answer yet.")
        else:
            say(_HELP)

    def _answer(self, line: str) -> None:
        try:
            generation = self._conversation.stream(line)
        except TextError as error:
            say(f"{error}.", "yellow")
            return
        except PromptError as error:  # the conversation outgrew the context
            say(f"{error}. /reset begins anew.", "yellow")
            return
        with stop_on_interrupt(generation.stop) as interrupted:
            drafts.write(generation, self._show_drafts)
        self._last = generation.statistics
        if interrupted:
            say("(stopped)")
        elif self._last.finish_reason == "context":
            say("The context is full. /reset begins anew.", "yellow")
        tell_limit(self._last)


def read_line() -> str:
    """A line, in a terminal with editing and history where this Python has readline."""
    if not sys.stdin.isatty():
        data = read_input(line=True)
        if not data:
            raise EOFError
        return data.decode("utf-8")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (importing it is what switches it on)
    return input("> ")
