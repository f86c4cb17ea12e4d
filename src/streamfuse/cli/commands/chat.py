"""`streamfuse chat`: a conversation in the terminal. The cache keeps all turns, so only new tokens are prefilled."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, cast

import typer

from streamfuse.api import Chat, Generation, GenerationOptions, Statistics, ToolCall, load
from streamfuse.cli.shared import drafts, options, tables
from streamfuse.cli.shared.console import out, read_input, say
from streamfuse.cli.shared.engine import settle, tell_defaults, tell_emulated, tell_limit, tell_prefix, tell_provider
from streamfuse.cli.shared.help import COMMON
from streamfuse.interrupt import stop_on_interrupt
from streamfuse.options import AUTO
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.text import ContextPolicy, TextError

_NOT_UTF_8 = "That line is not UTF-8 text and is ignored."
_HELP = "/reset clears the conversation, /stats shows statistics of the last answer, /exit (or Ctrl-D) quits."


def register(app: typer.Typer) -> None:
    app.command("chat")(chat)


def chat(
    bundle: options.BundleFolder,
    max_new_tokens: Annotated[options.MaxNewTokens, COMMON] = None,
    temperature: Annotated[options.Temperature, COMMON] = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    tools: Annotated[options.Tools, COMMON] = None,
    template_variables: options.TemplateVariables = None,
    system: Annotated[options.System, COMMON] = None,
    adapter: Annotated[options.TaskAdapter, COMMON] = None,
    context_policy: Annotated[options.ContextPolicy, COMMON] = options.ContextPolicyName.fail,
    no_speculation: Annotated[options.NoSpeculation, COMMON] = False,
    width: options.Width = AUTO,
    no_cost_cache: options.NoCostCache = False,
    memory: Annotated[options.Memory, COMMON] = None,
    threads: options.Threads = None,
    provider: options.Provider = None,
    show_drafts: Annotated[options.ShowDrafts, COMMON] = False,
    public_key: options.PublicKey = None,
) -> None:
    """Chat with the model. Ctrl-C stops the answer, not the program.

    [bold]In the chat[/bold]

    /reset  clear the conversation

    /stats  statistics of the last answer

    /exit   quit (or Ctrl-D)

    [bold]Examples[/bold]

    streamfuse chat build/demo

    streamfuse chat build/demo --system "You answer in one sentence." --temperature 0.7 --top-p 0.9

    streamfuse chat build/demo --show-drafts

    streamfuse chat build/demo --tools weather.json
    """
    whole = load(
        bundle, threads=threads, provider=provider, cost_cache=not no_cost_cache, public_key=public_key, memory=memory
    )
    model = options.with_adapter(whole, adapter)
    if not model.tokenizer.can_chat:
        raise TextError(f"{bundle}: this bundle has no chat template; use `streamfuse run --raw`")
    asked = GenerationOptions(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, stop=tuple(stop or ()), speculative=not no_speculation,
        width=options.nodes(width, no_speculation),
    )  # fmt: skip
    options.add_prompt(asked, tools, template_variables)
    plan = options.checked(model.manifest, asked).needs_plan
    tell_emulated(model.bundle)
    tell_defaults(options.defaults(model.manifest, asked))
    policy = cast("ContextPolicy", context_policy.name)  # flags have hyphens
    with whole, model.chat(system, context_policy=policy, **asked) as conversation:
        settle(conversation, plan=plan)
        tell_provider(conversation.backend)
        say(f"{model.manifest.model.name}. {_HELP}")
        _Terminal(conversation, show_drafts).talk()


class _Terminal:
    """Reads lines, runs commands, streams answers."""

    def __init__(self, conversation: Chat, show_drafts: bool) -> None:
        self._conversation, self._show_drafts = conversation, show_drafts
        self._last: Statistics | None = None
        self._calls: list[ToolCall] = []  # of the last answer

    def talk(self) -> None:
        """Runs until /exit or the end of input."""
        while True:
            try:
                line = read_line().strip()
            except EOFError:
                print()
                return
            except UnicodeError:
                say(_NOT_UTF_8, "yellow")
                continue
            except KeyboardInterrupt:
                print()
                say("/exit or Ctrl-D quits.")
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
            say("Conversation cleared.")
        elif command == "/stats":
            out.print(tables.statistics(self._last) if self._last else "No answer yet.")
        else:
            say(_HELP)

    def _answer(self, line: str) -> None:
        self._show(partial(self._conversation.stream, line))
        while self._calls:
            given = [self._result_of(call) for call in self._calls]
            results = [result for result in given if result is not None]
            if len(results) < len(given):
                return
            self._show(partial(self._conversation.stream_tool_results, results))

    def _result_of(self, call: ToolCall) -> str | None:
        """What the user says that a tool returns; None for an end of input, which leaves the call without a result."""
        say(f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})")
        say("What does it return? (Ctrl-C: nothing, and the chat goes on)")
        while True:
            try:
                return read_line().strip()
            except UnicodeError:
                say(_NOT_UTF_8, "yellow")
            except (EOFError, KeyboardInterrupt):
                return None

    def _show(self, start: Callable[[], Generation]) -> None:
        self._calls = []
        with stop_on_interrupt(self._conversation.stop) as interrupted:
            try:
                generation = start()
            except TextError as error:
                say(f"{error}.", "yellow")
                return
            except PromptError as error:  # the conversation no longer fits the context
                say(f"{error}. /reset starts over.", "yellow")
                return
            if interrupted:  # before `start` watched for a stop
                generation.stop()
            self._tell_dropped(generation.statistics)
            drafts.write(generation, self._show_drafts)
        self._last, self._calls = generation.statistics, generation.result.tool_calls
        if interrupted:
            say("(stopped)")
        elif self._last.finish_reason == "context":
            say("The context is full. /reset starts over.", "yellow")
        tell_prefix(self._last)
        tell_limit(self._last)

    def _tell_dropped(self, started: Statistics) -> None:
        if started.dropped_turns:
            turns = "oldest turn was" if started.dropped_turns == 1 else f"{started.dropped_turns} oldest turns were"
            say(f"(The context is full: the {turns} dropped, and {started.reread_tokens} tokens are read again.)")


def read_line() -> str:
    """Read a line; in a terminal with editing and history if this Python has readline."""
    if not sys.stdin.isatty():
        data = read_input(line=True)
        if not data:
            raise EOFError
        return data.decode("utf-8")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (the import enables it)
    return input("> ")
