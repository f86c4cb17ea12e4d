"""A conversation with a model, turn by turn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from streamfuse.api.asynchronous import AsyncGeneration, OneStream
from streamfuse.api.options import GenerationOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streamfuse.api.model import Model
    from streamfuse.runtime.backend import Backend
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.session import Generation, Result, Session
    from streamfuse.runtime.text import Conversation


class Chat:
    """Turns of a conversation over one cache, made by `Model.chat`. `options` are the defaults of every turn."""

    def __init__(self, model: Model, session: Session, conversation: Conversation, options: GenerationOptions) -> None:
        self._model, self._session, self._conversation, self._options = model, session, conversation, options
        self._generation: Generation | None = None
        self._one = OneStream()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns so far, {"role", "content"}; an answer that is being written comes when it ends."""
        return list(self._conversation.messages)

    @property
    def backend(self) -> Backend:
        """The engine of this conversation (runtime/backend.py)."""
        return self._session.backend

    def prepare(self) -> None:
        """Measure what passes cost now, so that the first answer does not wait for it."""
        self._end_turn()
        self._session.prepare()

    def send(self, words: str, **options: Unpack[GenerationOptions]) -> Result:
        """Ask, and wait for the whole answer."""
        generation = self.stream(words, **options)
        generation.finish()
        return generation.result

    def stream(self, words: str, **options: Unpack[GenerationOptions]) -> Generation:
        """Ask; the answer comes in pieces. A turn that is left early counts as far as it was delivered; one that still
        runs is ended by the next.

        Raises:
            PromptError: the conversation outgrew the context; it is as before, and `reset` begins anew.
        """
        config = self._turn(options)
        self._one.check()
        return self._ask(words, config)

    def astream(self, words: str, **options: Unpack[GenerationOptions]) -> AsyncGeneration:
        """The same for `async for`: passes run in a worker thread. One at a time; CoreError for a second one."""
        config = self._turn(options)
        return AsyncGeneration(lambda: self._ask(words, config), self._one)

    def _turn(self, options: GenerationOptions) -> GenerationConfig:
        merged: GenerationOptions = {**self._options, **options}
        return self._model.config(**merged)

    def _ask(self, words: str, config: GenerationConfig) -> Generation:
        self._end_turn()
        constraint = self._model._constraint(config)
        ids = self._conversation.ask(words)
        try:
            self._generation = self._model._start(self._session, ids, config, on_end=self._take, constraint=constraint)
        except BaseException:
            self._conversation.take_back()
            raise
        return self._generation

    def stop(self) -> None:
        """End the answer that runs at its next token. Any thread may call it."""
        self._session.stop()

    def reset(self) -> None:
        """Return to what the chat was when it was made: the system message and the history that it was given stay."""
        self._end_turn()
        self._session.reset()
        self._conversation.reset()

    def save(self, path: str | os.PathLike[str]) -> None:
        """The conversation and its cache to a file, for `restore` in another process, or on a phone."""
        self._end_turn()
        self._session.save(path, self._conversation.note())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Read back what `save` wrote. CoreError or TextError for any other file; the conversation has not changed."""
        self._end_turn()
        self._session.restore(path, self._conversation.take_note)

    def close(self) -> None:
        """Give the cache's memory back; what runs is ended."""
        self._end_turn()
        self._model._forget(self._session)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_turn(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()

    def _take(self, generation: Generation) -> None:
        """An answer has ended: it is a turn, unless it was stopped before its first token."""
        if generation.token_ids or generation.statistics.finish_reason != "stopped":
            self._conversation.answer(generation.text, generation.token_ids)
        else:
            self._conversation.take_back()
