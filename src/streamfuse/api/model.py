"""A bundle that is loaded: `load`, and the Model that it returns."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from streamfuse.api.asynchronous import AsyncGeneration, OneStream
from streamfuse.api.chat import Chat
from streamfuse.api.options import GenerationOptions, PromptConfig, check_adapter, config_of, prompt_config_of
from streamfuse.bundle import Bundle, Manifest, open_bundle
from streamfuse.options import OptionError
from streamfuse.runtime.config import (
    GenerationConfig,
    PromptError,
    check_prompt,
    demand,
    demand_bool,
    demand_top_log_probs,
    token_ids_of,
)
from streamfuse.runtime.stops import StopCount
from streamfuse.runtime.text import ContextPolicy, Conversation, TextError, checked, utf8

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streamfuse.engines import EngineMaker
    from streamfuse.runtime.backend import Backend
    from streamfuse.runtime.constraint import Constraint
    from streamfuse.runtime.core import CoreModel, Score
    from streamfuse.runtime.self_test import SelfTest
    from streamfuse.runtime.session import Generation, Result, Session
    from streamfuse.runtime.text import Tokenizer

_clocks = itertools.count()


def load(
    path: str | os.PathLike[str] | Bundle,
    *,
    threads: int | None = None,
    provider: str | None = None,
    cost_cache: bool = True,
    public_key: str | None = None,
    memory: str | os.PathLike[str] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Model:
    """Open a bundle folder. The graphs are loaded when they are first used.

    Args:
        path: a folder that `streamfuse export` wrote.
        threads: of the engine, 1 to 64; None lets it choose.
        provider: of an ONNX bundle, ONNX Runtime's execution provider: cpu, webgpu, qnn, coreml or directml, with
            options where wanted ("webgpu:deviceId=1", docs/targets.md). None is cpu.
        cost_cache: remember what passes cost on this device; False measures it anew, about 250 ms.
        public_key: the line that `streamfuse bundle keygen` wrote; a folder that this key did not sign is refused.
            It is ignored with a Bundle: `open_bundle` checks it.
        memory: a file that stores the answers of this model as token ids, so that later, similar answers are drafted
            from them; only its owner can read it. "" stores them in RAM only; None turns this off. `Model.forget`
            removes them.
        progress: called with the share of the bundle's bytes that are checked, from 0 to 1. An exception in it ends the
            call and is raised again.

    Raises:
        BundleError: the bundle is damaged, foreign or newer, or not signed with the key; names file and field.
        KeyProblem: `public_key` is no key.
        OptionError: `threads` is out of range, `provider` is none, or is given for a bundle that is not ONNX, or an
            option has another type.
        BackendError: the graphs cannot be loaded here, or the provider is not here.
        MissingExtra: a package is not installed; names the line that installs it.
    """
    from streamfuse.engines import check_provider, need_engine, threads_of

    threads = threads_of(threads)
    demand_bool("cost-cache", cost_cache)
    demand(isinstance(memory, (str, os.PathLike, NoneType)), "memory", "a path", memory)
    demand(progress is None or callable(progress), "progress", "a function", progress)
    bundle = (
        path if isinstance(path, Bundle) else open_bundle(os.fspath(path), public_key=public_key, progress=progress)
    )
    need_engine(bundle)
    check_provider(bundle, provider)
    memory = Path(memory).absolute() if memory else memory  # opened later, when the working directory may have changed
    return Model(bundle, threads=threads, provider=provider, cost_cache=cost_cache, memory=memory)


class Model:
    """A bundle that is open: checked files, tokenizer, loaded graphs. Use it as a context manager, or close it.

    `generate` and `stream` share one sequence, so a prompt that begins like the last one is not read again; each
    `chat` has a sequence of its own. Use a sequence in one thread at a time, except `stop`; each thread may create its
    own.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int | None,
        provider: str | None,
        cost_cache: bool,
        memory: str | os.PathLike[str] | None,
    ) -> None:
        """`load` makes it."""
        self.bundle = bundle
        self.tokenizer = bundle.tokenizer
        self._threads, self._provider, self._cost_cache = threads, provider, cost_cache
        self._memory = memory
        self._core: CoreModel | None = None
        self._new_engine: EngineMaker | None = None
        self._whole: Model = self
        self._adapters: dict[str, Model] = {}
        self._choosing = threading.Lock()
        self._loading = threading.Lock()  # of the whole bundle; held for seconds, so `stop` and `close` do not take it
        self._load_ms = 0.0
        self._session: Session | None = None
        self._open: set[Session] = set()  # changed by single operations: any thread may
        self._clocks: dict[Callable[[], float], int] = {}  # the number of each clock that sessions were given
        self._closed = False
        self._one = OneStream()
        self._stops = StopCount()

    @property
    def manifest(self) -> Manifest:
        """All that the bundle says of itself."""
        return self.bundle.manifest

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of prompt and answer together."""
        return self.bundle.spec().capacity

    @property
    def adapters(self) -> list[str]:
        """The names of the bundle's task adapters."""
        return list(self._whole.manifest.adapters)

    def adapter(self, name: str) -> Model:
        """The same bundle with one of its task adapters: its own graphs, streams, n-gram table and chat
        template, with the base model's weights in memory once. Always the same object; it is closed with this one.
        OptionError, with the names, if there is none of this name.
        """
        whole = self._whole
        check_adapter(name, self.adapters)
        with whole._choosing:
            if name not in whole._adapters:
                whole._adapters[name] = whole._with_adapter(name)
                if whole._closed:  # `close` may not have seen it
                    whole._adapters[name].close()
            return whole._adapters[name]

    def _with_adapter(self, name: str) -> Model:
        memory = None if self._memory is None else os.fspath(self._memory)
        model = Model(
            self.bundle.adapter(name),
            threads=self._threads,
            provider=self._provider,
            cost_cache=self._cost_cache,
            memory=f"{memory}.{name}" if memory else memory,
        )
        model._whole = self
        return model

    def _of(self, adapter: str | None) -> Model:
        return self if adapter is None else self.adapter(adapter)

    def count_tokens(self, text: str) -> int:
        """Tokens of a text in a message of a chat, without what the chat template adds; `encode` gives those of a whole
        prompt. TextError where it is not text."""
        return self.tokenizer.count_tokens(text)

    def config(self, **options: Unpack[GenerationOptions]) -> GenerationConfig:
        """What these options mean for this bundle. OptionError names the one that is out of range."""
        return config_of(self.manifest, **options)

    def encode(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> list[int]:
        """Token ids of a prompt or of a whole conversation, as `generate` reads them; of the options, `tools`,
        `template_variables` and `documents` belong to the prompt.

        Raises:
            TextError: the template refuses the messages, or there is none for them.
            PromptError: both a prompt and messages, or options for the template without one.
        """
        demand_bool("raw", raw)
        return self._read(prompt, messages, system, raw, prompt_config_of(**options))[0]

    def _read(
        self,
        prompt: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        system: str | None,
        raw: bool,
        setting: PromptConfig,
    ) -> tuple[list[int], Conversation | None]:
        """Token ids of what `generate` is given as text; with the conversation that the answer belongs to, if any."""
        if messages is None and (raw or (system is None and self._continues(raw))):
            _refuse(setting, system, "raw text")
            return self.tokenizer.encode(prompt), None  # type: ignore[arg-type]
        if messages is None:
            first = [] if system is None else [{"role": "system", "content": system}]
            messages = [*first, {"role": "user", "content": prompt}]
        elif prompt is not None:
            raise PromptError("give a prompt or messages, not both; the prompt can be the last of the messages")
        elif system is not None or raw:
            name, why = ("raw", "they are for the chat template") if raw else ("system", "it is the first of them")
            raise PromptError(f"{name} does not go with messages: {why}")
        return _encode_messages(self.tokenizer, messages, setting)

    def check_prompt(self, prompt_ids: Sequence[int]) -> None:
        """PromptError for a prompt that does not fit, before seconds are spent on loading the engine."""
        check_prompt(token_ids_of(prompt_ids), self.bundle.spec())

    def session(self, *, text: bool = True, clock: Callable[[], float] | None = None) -> Session:
        """A sequence of its own that speaks token ids (runtime.session.Session). Closed with the model, or before.

        Without `text` it gives no text, only ids. `clock` (monotonic seconds; None: the system's) measures its passes,
        and what it finds is not remembered on this device. CoreError where the model is closed.
        """
        from streamfuse.engines import cost_folder, device_of, threads_in_use
        from streamfuse.runtime.session import Session

        self._check_open()
        started = time.perf_counter()
        backend = self._engine()
        try:
            device = device_of(self.bundle, threads_in_use(backend, self._threads), self._provider)
            session = Session(
                backend,
                tokenizer=self.tokenizer if text else None,
                model=self._core_model(),
                cost_folder=cost_folder() if self._cost_cache and clock is None else None,
                # Sessions of a model share costs by device and clock.
                device=device if clock is None else f"{device}, clock {self._clocks.setdefault(clock, next(_clocks))}",
                model_load_ms=self._load_ms or 1000 * (time.perf_counter() - started),
                clock=clock,
                stops=StopCount(self._stops),
            )
        except BaseException:
            backend.close()
            raise
        self._load_ms = self._load_ms or 1000 * (time.perf_counter() - started)
        self._open.difference_update([other for other in list(self._open) if other.core.handle.closed])
        self._open.add(session)
        if self._closed:  # `close` has not seen it
            self._forget(session)
            self._check_open()
        return session

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        adapter: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Answer a prompt, or the last of `messages`.

        Args:
            prompt: text, which goes into the bundle's chat template, or token ids, which are taken as they are.
            messages: a whole conversation instead of a prompt, {"role", "content"} each. If the last message is the
                assistant's, the answer continues it.
            system: a system message before the prompt.
            raw: continue the text as it stands, without the chat template.
            adapter: answer with this task adapter of the bundle; `Model.adapter` has the same models.

        Raises:
            PromptError: the prompt is none, or longer than the context; or `system` or tools with `raw` or token ids.
            TextError: the chat template refuses the messages, or there is none for them.
            OptionError: an option out of its range.
            CoreError: the engine failed, or the model is closed.
        """
        with self.stream(prompt, messages=messages, system=system, raw=raw, adapter=adapter, **options) as generation:
            generation.finish()
        return generation.result

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        adapter: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """The same as an iterator of pieces (text, token, source); leaving early is safe at any token."""
        chosen = self._of(adapter)
        start = chosen._starting(prompt, messages, system, raw, options)
        chosen._one.wait_until_free()
        return start()

    def astream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        adapter: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> AsyncGeneration:
        """The same for `async for`: passes run in a worker thread. One at a time; CoreError for a second one."""
        chosen = self._of(adapter)
        return AsyncGeneration(chosen._starting(prompt, messages, system, raw, options), chosen._one)

    def score(
        self,
        prompt: str | Sequence[int],
        answer: str | Sequence[int],
        *,
        system: str | None = None,
        raw: bool = False,
        adapter: str | None = None,
        top_log_probs: int = 0,
    ) -> Score:
        """How probable the model finds a given answer to a prompt, for example to choose one of several answers.

        With the streamfuse kernels, the log-probabilities are bit-identical to those of `generate`, if it generates the
        same tokens. The answer is processed like a prompt, in few passes.

        Args:
            prompt: as in `generate`. For a conversation: `encode(messages=...)`.
            answer: text or token ids. No end token is appended to text. With a raw prompt in text, both are encoded
                together and scored from the first token that differs from the prompt's; begin the answer with the space
                that separates them.
            system: as in `generate`, like `raw` and `adapter`.
            top_log_probs: number of most probable tokens to report per position, 0 to 20.

        Raises:
            PromptError: prompt or answer is empty, or both together are longer than the context.
            TextError: the chat template refuses the messages, or the answer is not UTF-8 text.
            OptionError: an option out of its range.
            Stopped: `stop` was called.
            CoreError: the engine failed, or the model is closed.
        """
        demand_top_log_probs(top_log_probs)
        chosen = self._of(adapter)
        stopped = chosen._stops.watch()
        ids, first = chosen._with_answer(prompt, answer, system, raw)
        check_prompt(ids, self.bundle.spec(), "prompt with its answer")
        if first == len(ids):
            raise PromptError("the answer is empty: it needs at least one token")
        chosen._one.wait_until_free()
        return chosen._shared().score(ids, first, top_log_probs, stopped)

    def stop_score(self) -> None:
        """End the `score` that runs, and nothing that waits for it, unlike `stop`. Any thread may call it."""
        if self._session is not None:
            self._session.core.stop()

    def _with_answer(self, prompt: Any, answer: Any, system: str | None, raw: bool) -> tuple[list[int], int]:
        """Token ids of a prompt with an answer, and the number of those before the answer."""
        demand_bool("raw", raw)
        is_text = isinstance(prompt, str)
        before = self.encode(prompt, system=system, raw=raw) if is_text else token_ids_of(prompt)
        if not is_text:
            _refuse(prompt_config_of(), system, "token ids")
        if not before:
            raise PromptError("the prompt is empty: it needs at least one token")
        if not isinstance(answer, str):
            return [*before, *token_ids_of(answer, "answer")], len(before)
        utf8(answer, "answer")
        if is_text and system is None and self._continues(raw):
            whole = self.tokenizer.encode(prompt + answer)
            same = next((place for place, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
            if not same:
                raise PromptError("the first token has text of both the prompt and the answer; give a longer prompt")
            return whole, same
        return [*before, *self.tokenizer.encode_rendered(answer, continues=True)], len(before)

    def chat(
        self,
        system: str | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        *,
        context_policy: ContextPolicy = "fail",
        adapter: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Chat:
        """A conversation with a cache of its own, so that only new words are read.

        Args:
            system: a system message; it stays through `reset`.
            history: earlier turns, {"role", "content"} each, for example another chat's `messages`; they stay too.
            context_policy: what happens when the next question does not fit into the context. "fail" raises
                PromptError. "drop_oldest" drops the oldest turns, as few as leave `max_new_tokens` for the answer, and
                prefills the remaining ones again; the system message and the tools are kept (docs/python.md).
            adapter: the task adapter of the whole conversation, since keys and values in its cache are the adapter's;
                None: that of this model, if it is one, else the base model.
            options: the defaults of every turn.

        Raises:
            TextError: the bundle has no chat template, or `history` holds something else.
            OptionError: an option out of its range, or the bundle has no such adapter.
        """
        if adapter is not None:
            return self.adapter(adapter).chat(system, history, context_policy=context_policy, **options)
        if not self.tokenizer.can_chat:
            raise TextError(f"{self.bundle.folder}: this bundle has no chat template; use generate(..., raw=True)")
        config, setting = self.config(**options), prompt_config_of(**options)  # a wrong option is refused now
        if config.restricted:
            self._constraint(config, setting, None)
        conversation = Conversation(self.tokenizer, system, history)
        conversation.set_limit(self.context_length, config.max_new_tokens, context_policy)
        return Chat(self, self.session(), conversation, options, context_policy)

    @property
    def backend(self) -> Backend:
        """The engine that `generate` runs on (runtime/backend.py); it is loaded now if it is not yet."""
        return self._shared().backend

    def prepare(self) -> None:
        """Load the engine and measure what passes cost, so that the first answer does not wait for it."""
        self._shared().prepare()

    def reset(self) -> None:
        """Forget the sequence of `generate`: the next prompt is read from its first token."""
        self._shared().reset()

    def forget(self) -> None:
        """Remove the answers that `load(memory=)` stores, from RAM and file, those of task adapters too, loaded or not:
        the files of answers named `FILE.*`. It needs no space on the disk. An answer that is still being generated is
        added when it ends. CoreError, after all of them were tried, where a file cannot be emptied, or
        the model is closed."""
        from streamfuse.runtime.core import CoreError

        failures: list[CoreError] = []

        def forget(model: Model) -> None:
            try:
                model._core_model().forget()
            except CoreError as error:
                failures.append(error)

        forget(self)
        # If the model's own file cannot be opened, the core has not emptied those of adapters.
        if failures and self._whole is self and not self._closed:
            adapters = [self.adapter(name) for name in self.adapters]
        else:  # the files of adapters are empty; those that are loaded by now have their answers in RAM too
            with self._whole._loading:  # those that have just read their files included
                adapters = [one for one in list(self._adapters.values()) if one._core is not None]
        for adapter in adapters:
            forget(adapter)
        if failures:
            raise failures[0]

    def trim(self) -> None:
        """Drop the cache of `generate`'s sequence and return its memory to the system; the next prompt is processed
        from its first token."""
        if self._session is not None:
            self._session.trim()
        for model in list(self._adapters.values()):
            model.trim()

    def self_test(self) -> SelfTest:
        """Repeat the passes that the exporter recorded, on an engine of their own, and compare the outputs
        (docs/bundle.md): whether this device computes what it should. With an adapter, those of the base model, whose
        operators it uses too; nothing is recorded for adapters.

        Raises:
            BundleError: the bundle has no self-test, or it is damaged.
            BackendError: the engine cannot be loaded, or fails.
            CoreError: the self-test does not fit the bundle, or the model is closed.
        """
        from streamfuse.runtime.self_test import SelfTest

        if self._whole is not self:
            return self._whole.self_test()
        with self.bundle.selftest() as (arrays, count):
            return SelfTest.of(self._core_model().self_test(self._engine(), arrays, count))

    def stop(self) -> None:
        """End the generations that run at their next token, those of chats and adapters too. One that was requested
        before but has not begun ends as soon as it begins. Any thread may call it."""
        self._stops.add()
        for session in list(self._open):
            session.stop()
        for model in list(self._adapters.values()):
            model.stop()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Tokens and cache of `generate`'s sequence to a file, for `restore` in another process."""
        self._shared().save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Read back what `save` wrote with the same bundle. CoreError for any other file; then nothing has changed. If
        an engine cannot load the cache, CoreError or its own exception; then the sequence is empty."""
        self._shared().restore(path)

    def close(self) -> None:
        """Give back the engine's memory; what runs is ended. Nothing happens the second time. If an engine fails at
        that, the others are closed too, and then the first failure is raised."""
        self._closed = True
        failures: list[Exception] = []
        adapters: list[Callable[[], None]] = [model.close for model in list(self._adapters.values())]
        sessions: list[Callable[[], None]] = [partial(self._forget, session) for session in list(self._open)]
        for close in (*adapters, *sessions):
            try:
                close()
            except Exception as error:
                failures.append(error)
        self._session = self._new_engine = self._core = None
        if failures:
            raise failures[0]

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        from streamfuse.runtime.core import CoreError

        if self._closed:
            raise CoreError("this model is closed; open its bundle again")

    def _engine(self) -> Backend:
        from streamfuse import engines

        whole = self._whole
        with whole._loading:
            self._check_open()
            make = whole._new_engine or engines.engines_of(whole.bundle, whole._threads, whole._provider)
            whole._new_engine = make
            if whole._closed:  # meanwhile; `session` closes what it has made
                whole._new_engine = None
            return make(self.bundle)

    def _forget(self, session: Session) -> None:
        """Close it, and keep it no longer."""
        try:
            session.close()
        finally:
            self._open.discard(session)

    def _core_model(self) -> CoreModel:
        """What all sequences share: tables, measured costs, and the memory of answers."""
        from streamfuse.runtime.core import CoreError, CoreModel, TablesError

        with self._whole._loading:
            self._check_open()
            if self._core is None:
                try:
                    core = CoreModel(self.bundle.spec(), self.bundle.tables, self.bundle.identity)
                except TablesError as error:
                    raise TablesError(f"cannot read the drafting data {self.bundle.draft}: {error}") from None
                for path in self.bundle.prefixes:
                    with suppress(CoreError):  # the statistics of texts say why it was refused
                        core.add_prefix(os.fspath(path))
                if self._memory is not None:
                    core.remember(os.fspath(self._memory) or None)
                self._core = core
                if self._closed:  # meanwhile
                    self._core = None
                return core
            return self._core

    def _shared(self) -> Session:
        """The sequence of `generate` and `stream`."""
        self._session = self._session or self.session()
        return self._session

    def _starting(
        self, prompt: Any, messages: Any, system: str | None, raw: bool, options: GenerationOptions
    ) -> Callable[[], Generation]:
        """Everything checked, nothing loaded: what starts the generation."""
        stopped = self._stops.watch()
        demand_bool("raw", raw)
        config, setting = self.config(**options), prompt_config_of(**options)
        is_text = isinstance(prompt, str) or messages is not None
        if not is_text and (isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Iterable)):
            raise PromptError(f"the prompt must be text or a list of token ids, not {prompt!r:.40}")
        if is_text:
            ids, conversation = self._read(prompt, messages, system, raw, setting)
        else:
            _refuse(setting, system, "token ids")
            ids, conversation = list(prompt), None
        self.check_prompt(ids)
        # now, so that a wrong schema is refused before an engine is loaded
        constraint = self._constraint(config, setting, conversation)
        text = None
        if conversation is not None:
            text = conversation.stream(config.stop_strings, None if setting.chooses else config.restriction)
        return lambda: self._shared().generate(
            ids, config, raw=conversation is None, constraint=constraint, text=text, stopped=stopped
        )

    def _constraint(
        self, config: GenerationConfig, setting: PromptConfig, conversation: Conversation | None
    ) -> Constraint | None:
        """What restricts the answer: the schema, regex or grammar; calls fit their tools."""
        from streamfuse.runtime.session import constraint_of

        if conversation is None or not setting.tools or (config.restricted and not setting.chooses):
            return constraint_of(config, self.tokenizer)
        if config.restricted:
            return constraint_of(config, conversation)
        try:
            return conversation.call_constraint(setting.tool_choice or "auto")
        except TextError as error:
            raise OptionError(f"--tools: {error}") from None

    def _continues(self, raw: bool) -> bool:
        """Whether a prompt is continued as it stands: for `raw`, and where the bundle has no chat template."""
        return raw or not self.tokenizer.can_chat


def _refuse(setting: PromptConfig, system: str | None, prompt: str) -> None:
    """PromptError for what the chat template reads with a prompt that is read without it."""
    given = {"system": system is not None, "tools": setting.tools, "template_variables": setting.variables}
    for name in (name for name, value in given.items() if value):
        raise PromptError(f"{name} is for the chat template, so it does not go with {prompt}")


def _encode_messages(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], setting: PromptConfig
) -> tuple[list[int], Conversation | None]:
    """Token ids of a conversation, and the conversation, whose next turn is the answer; None if the answer continues
    its last turn."""
    turns = checked(messages)
    if not turns:
        raise PromptError("the messages are empty: there must be at least one")
    if turns[-1]["role"] == "assistant" and not turns[-1].get("tool_calls"):
        if setting.tools:
            raise PromptError("the last message is the assistant's; it is continued as text, without tools")
        return tokenizer.encode_unfinished(turns, variables=setting.variables or None), None
    last = len(turns)
    while last > 0 and turns[last - 1]["role"] == "tool":
        last -= 1
    has_results = 0 < last < len(turns) and turns[last - 1].get("tool_calls")
    history = turns[:last] if has_results else ()
    conversation = Conversation(tokenizer, history=history, tools=setting.descriptions, variables=setting.variables)
    if has_results:
        return conversation.ask_results(turns[last:]), conversation
    return conversation.ask_messages(turns), conversation
