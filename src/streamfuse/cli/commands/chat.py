"""`streamfuse chat`: a conversation in the terminal. The cache keeps all turns; only new words are read."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import typer

from streamfuse.api import load
from streamfuse.cli.shared import drafts, options, tables
from streamfuse.cli.shared.console import out, read_input, say
from streamfuse.cli.shared.engine import loaded, tell_defaults, tell_emulated, tell_limit, tell_provider
from streamfuse.cli.shared.interrupt import stop_on_interrupt
from streamfuse.runtime.text import Conversation, TextError

if TYPE_CHECKING:
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.session import Session

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
    if not model.text.can_chat:
        raise TextError(f"{bundle}: this bundle has no chat template; use `streamfuse run --raw`")
    asked = options.GenerationOptions(
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, tuple(stop or ()),
        not no_speculation, width,
    )  # fmt: skip
    config = asked.config(model.manifest)
    tell_emulated(model.bundle)
    tell_defaults(asked.defaults(model.manifest))
    with loaded(model, plan=config.needs_plan) as session:
        tell_provider(session.backend)
        say(f"{model.manifest.model.name}. {_HELP}")
        _Terminal(session, Conversation(model.text, system), config, show_drafts).talk()


class _Terminal:
    """Reads lines, obeys commands, streams answers."""

    def __init__(
        self, session: Session, conversation: Conversation, config: GenerationConfig, show_drafts: bool
    ) -> None:
        self._session = session
        self._conversation = conversation
        self._config = config
        self._show_drafts = show_drafts
        self._last: dict[str, Any] | None = None

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
            self._session.reset()
            say("The conversation is forgotten.")
        elif command == "/stats":
            out.print(tables.statistics(self._last) if self._last else "No answer yet.")
        else:
            say(_HELP)

    def _answer(self, line: str) -> None:
        from streamfuse.runtime.config import PromptError

        try:
            prompt_ids = self._conversation.ask(line)
        except TextError as error:
            say(f"{error}.", "yellow")
            return
        try:
            generation = self._session.generate(prompt_ids, self._config)
        except PromptError as error:  # the conversation outgrew the context
            self._conversation.take_back()
            say(f"{error}. /reset begins anew.", "yellow")
            return
        with stop_on_interrupt(generation.stop) as interrupted:
            drafts.write(generation, self._show_drafts)
        if interrupted and not generation.token_ids:
            self._conversation.take_back()
        else:
            self._conversation.answer(generation.text, generation.token_ids)
        self._last = generation.statistics
        if interrupted:
            say("(stopped)")
        elif self._last["finish_reason"] == "context":
            say("The context is full. /reset begins anew.", "yellow")
        tell_limit(generation, self._config)


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
