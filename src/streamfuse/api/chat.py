"""A conversation with a model, turn by turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamfuse.api.asynchronous import AsyncGeneration, OneStream
from streamfuse.api.options import GenerationOptions, PromptConfig, prompt_config_of, several
from streamfuse.runtime.config import RESTRICTING, demand, is_integer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streamfuse.api.model import Model
    from streamfuse.runtime.backend import Backend
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.session import Generation, Result, Session, ToolCall
    from streamfuse.runtime.text import ContextPolicy, Conversation


ToolResult = str | Mapping[str, Any]  # a text, or {"content"} with the call's "tool_call_id" or the tool's "name"


class Chat:
    """Turns of a conversation over one cache, made by `Model.chat`. `options` are the defaults of every turn."""

    def __init__(
        self,
        model: Model,
        session: Session,
        conversation: Conversation,
        options: GenerationOptions,
        context_policy: ContextPolicy,
    ) -> None:
        self._model, self._session, self._conversation, self._options = model, session, conversation, options
        self._context_policy = context_policy
        self._has_failed = False  # a question, which may still be the last turn of the conversation
        self._one = OneStream()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The turns so far, {"role", "content"}, with "tool_calls" where an answer has some, without those that
        `context_policy` dropped. An answer that is being written comes when it ends."""
        return list(self._conversation.messages)

    @property
    def used_tokens(self) -> int:
        """Tokens of the context that the last prompt and its answer occupy; 0 before the first."""
        return self._session.core.token_count

    @property
    def remaining_tokens(self) -> int:
        """Tokens of the context that are left."""
        return self._model.context_length - self.used_tokens

    @property
    def backend(self) -> Backend:
        """The engine of this conversation (runtime/backend.py)."""
        return self._session.backend

    def prepare(self) -> None:
        """Measure what passes cost now, so that the first answer does not wait for it."""
        self._end_turn()
        self._session.prepare()

    def send(self, words: str, *, max_tool_rounds: int = 0, **options: Unpack[GenerationOptions]) -> Result:
        """Ask, and wait for the whole answer.

        With `max_tool_rounds` above 0, tool calls of an answer are made: the functions of `tools` are called, and their
        results are sent, until an answer calls none, at most so many times. What a function raises is sent as the
        result "error: ...". `stop` also works while a function runs: no further function is called, and `tool_calls`
        has all calls of that answer, made or not. The result is that of the last answer.
        """
        whole = is_integer(max_tool_rounds) and max_tool_rounds >= 0
        demand(whole, "max-tool-rounds", "an integer of at least 0", max_tool_rounds)
        stopped = self._session.watch_stops()
        result = self._finish(self._stream(words, options, stopped))
        # A required call is made once: required again, another would follow. Not None: then the chat's default that the
        # choice replaced, such as a schema, would restrict the next answer.
        if self._merged(options).get("tool_choice") not in (None, "auto", "none"):
            options["tool_choice"] = "auto"
        for _ in range(max_tool_rounds):
            if not result.tool_calls or stopped():
                break
            results = []
            for text in self._called(result.tool_calls, options):
                results.append(text)
                if stopped():
                    return result
            result = self._finish(self._stream_tool_results(results, options, stopped))
        return result

    def stream(self, words: str, **options: Unpack[GenerationOptions]) -> Generation:
        """Ask; the answer comes in pieces. A turn that is left early counts as far as it was delivered; one that still
        runs is ended by the next.

        Raises:
            PromptError: the conversation does not fit into the context, or with `context_policy="drop_oldest"` not even
                the question alone; the conversation is as before, and `reset` begins anew.
        """
        return self._stream(words, options, self._session.watch_stops())

    def _stream(self, words: str, options: GenerationOptions, stopped: Callable[[], bool]) -> Generation:
        turn = self._turn(options)
        self._one.wait_until_free()
        return self._ask(lambda: self._conversation.ask(words), *turn, stopped)

    def astream(self, words: str, **options: Unpack[GenerationOptions]) -> AsyncGeneration:
        """The same for `async for`: passes run in a worker thread. One at a time; CoreError for a second one."""
        stopped, turn = self._session.watch_stops(), self._turn(options)
        return AsyncGeneration(lambda: self._ask(lambda: self._conversation.ask(words), *turn, stopped), self._one)

    def send_tool_results(self, results: Sequence[ToolResult], **options: Unpack[GenerationOptions]) -> Result:
        """Give back what the tools that the last answer calls have returned, and wait for the next answer.

        Args:
            results: a text for each call in order, or {"content"} with the call's "tool_call_id" or the tool's "name".

        Raises:
            TextError: the last answer calls no tool, or not this one.
        """
        return self._finish(self.stream_tool_results(results, **options))

    def stream_tool_results(self, results: Sequence[ToolResult], **options: Unpack[GenerationOptions]) -> Generation:
        """The same; the answer comes in pieces."""
        return self._stream_tool_results(results, options, self._session.watch_stops())

    def _stream_tool_results(
        self, results: Sequence[ToolResult], options: GenerationOptions, stopped: Callable[[], bool]
    ) -> Generation:
        turn = self._turn(options)
        self._one.wait_until_free()
        form = "a text for each call, or dicts"
        given = [{"content": one} if isinstance(one, str) else one for one in several("results", results, form)]
        for one in given:
            demand(isinstance(one, Mapping), "results", form, one)
        return self._ask(lambda: self._conversation.ask_results(given), *turn, stopped)

    def call_tools(self, calls: Sequence[ToolCall], **options: Unpack[GenerationOptions]) -> list[str]:
        """Call the functions of `tools`: a text for each call, for `send_tool_results`."""
        from streamfuse.runtime.session import ToolCall

        calls = several("calls", calls, "the tool calls of an answer")
        for call in calls:
            demand(isinstance(call, ToolCall), "calls", "the tool calls of an answer", call)
        return list(self._called(calls, options))

    def _called(self, calls: Sequence[ToolCall], options: GenerationOptions) -> Iterator[str]:
        """Yields the text of each call's result. Lazy: a function is called only when the iterator reaches it."""
        tools = {tool.name: tool for tool in self._turn(options)[1].tools}
        for call in calls:
            if call.name in tools:
                yield tools[call.name].answer(call.arguments)
            else:
                yield f"error: there is no tool {call.name}; the tools are {', '.join(tools)}"

    def _turn(self, options: GenerationOptions) -> tuple[GenerationConfig, PromptConfig]:
        merged = self._merged(options)
        return self._model.config(**merged), prompt_config_of(**merged)

    def _merged(self, options: GenerationOptions) -> GenerationOptions:
        """The options of a turn with the chat's defaults."""
        # What restricts an answer is one choice, so one of these options replaces the chat's default of any of them.
        given = any(options.get(name) is not None for name in RESTRICTING)
        defaults = {name: value for name, value in self._options.items() if not (given and name in RESTRICTING)}
        return {**defaults, **options}  # type: ignore[typeddict-item]

    def _ask(
        self,
        ask: Callable[[], list[int]],
        config: GenerationConfig,
        setting: PromptConfig,
        stopped: Callable[[], bool],
    ) -> Generation:
        self._end_turn()
        self._conversation.set(setting.descriptions, setting.variables)
        self._conversation.set_limit(self._model.context_length, config.max_new_tokens, self._context_policy)
        try:
            ids = ask()
            constraint = self._model._constraint(config, setting, self._conversation)
            text = self._conversation.stream(config.stop_strings, None if setting.chooses else config.restriction)
            dropped = self._conversation.dropped
            return self._session.generate(
                ids, config, constraint=constraint, text=text, dropped=dropped, stopped=stopped
            )
        except BaseException:  # Ctrl-C too, which may come after `ask` or `generate` has done its work
            self._has_failed = True  # until the question is taken back, which a second Ctrl-C may prevent
            with suppress(Exception):  # the next turn tries again and raises it
                self._session.end_generation()
            self._take_back()
            raise

    def _finish(self, generation: Generation) -> Result:
        generation.finish()
        return generation.result

    def stop(self) -> None:
        """End the answer that runs at its next token, and one that was requested before but has not begun as soon as it
        begins. Any thread may call it."""
        self._session.stop()

    def reset(self) -> None:
        """Return to what the chat was when it was made: the system message and the history that it was given stay."""
        self._end_turn()
        self._session.reset()
        self._conversation.reset()

    def trim(self) -> None:
        """Drop the cache and return its memory to the system; the conversation stays, and the next question processes
        it again."""
        self._end_turn()
        self._session.trim()

    def save(self, path: str | os.PathLike[str]) -> None:
        """The conversation and its cache to a file, for `restore` in another process, or on a phone."""
        self._end_turn()
        self._session.save(path, self._conversation.note())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Read back what `save` wrote. CoreError or TextError for any other file; if an engine cannot load the cache,
        CoreError or its own exception. The conversation never changes then; if the cache failed, the next question
        processes it again."""
        self._end_turn()
        before, taken = self._conversation.note(), False

        def take(note: bytes) -> None:
            nonlocal taken
            self._conversation.take_note(note)
            taken = True

        try:
            self._session.restore(path, take)
        except BaseException:
            if taken:  # the cache failed after that
                self._conversation.take_note(before)
            raise

    def close(self) -> None:
        """Give the cache's memory back; what runs is ended, also in another thread."""
        self._model._forget(self._session)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_turn(self) -> None:
        """End the answer that runs, which counts as far as it was delivered. The order matters: an answer that ends
        after the next question was asked would end the answer to that one, since a conversation has one at a time."""
        self._session.end_generation()
        if self._has_failed:
            self._take_back()

    def _take_back(self) -> None:
        self._conversation.take_back()
        self._has_failed = False
