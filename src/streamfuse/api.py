"""The way in for Python: `import streamfuse; model = streamfuse.load("build/demo")`.

A model finds everything of its bundle by itself: engine, tokenizer, chat template, drafting tables, and what passes
cost on this device. The command line and the benches open bundles with it, and generate through its session.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamfuse.bundle import Bundle, Manifest, open_bundle
from streamfuse.runtime.config import GenerationConfig, OptionError, PromptError, SamplingConfig, check_prompt
from streamfuse.runtime.text import Conversation

if TYPE_CHECKING:
    from streamfuse.runtime.backend import Backend
    from streamfuse.runtime.session import Generation, Piece, Session

_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Result:
    """An answer. `statistics` has the keys of docs/runtime.md, times in milliseconds."""

    text: str
    tokens: list[int]
    statistics: dict[str, Any] = field(repr=False)


def config_of(
    manifest: Manifest,
    *,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    speculative: bool = True,
    width: int | None = None,
) -> GenerationConfig:
    """The configuration of one generation; what is None is the bundle's default.

    Args:
        max_new_tokens: tokens to generate at most.
        temperature: 0 is greedy; higher is more varied.
        top_k: sample among the k likeliest tokens; 0: off.
        top_p: sample among the likeliest tokens of this total probability; 1: off.
        min_p: drop tokens below this share of the likeliest one; 0: off.
        repetition_penalty: above 1, tokens seen before are less likely; 1: off.
        seed: the same seed gives the same text, with and without speculation.
        stop: the text ends before this, or before any of these.
        stop_token_ids: tokens that end the text, beside the model's own.
        ignore_eos: the model's end-of-sequence tokens are tokens like others.
        speculative: False decodes one token per pass, the baseline.
        width: nodes per verify pass; None: what pays, by the cost measured on this device.

    Raises:
        OptionError: a value out of its range; names the keyword. It is a ValueError.
    """
    said = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "repetition_penalty": repetition_penalty}  # fmt: skip
    defaults = manifest.sampling_defaults
    chosen: dict[str, Any] = {name: getattr(defaults, name) if said[name] is None else said[name] for name in _DEFAULTS}
    widths = [method.rows for method in manifest.verify_methods.values() if method.rows > 1]
    if speculative and width is not None and width not in widths:
        listed = ", ".join(map(str, widths)) or "none, it drafts nothing"
        raise OptionError(f"--width must be one of those of this bundle ({listed}), not {width}; without it, what pays")
    return GenerationConfig(
        max_new_tokens=defaults.max_new_tokens if max_new_tokens is None else max_new_tokens,
        sampling=SamplingConfig(seed=seed, **chosen),
        stop_token_ids=_several("stop-token-ids", stop_token_ids, "a list of token ids"),
        stop_strings=(stop,) if isinstance(stop, str) else _several("stop", stop, "text, or a list of texts"),
        ignore_eos=ignore_eos,
        speculative=speculative,
        width=width if speculative else None,
    )


def _several(flag: str, values: object, what: str) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise OptionError(f"--{flag} must be {what}, not {values!r:.40}")
    return tuple(values)


def load(
    path: str | os.PathLike[str] | Bundle,
    *,
    threads: int | None = None,
    provider: str | None = None,
    cost_cache: bool = True,
    public_key: str | None = None,
) -> Model:
    """Open a bundle folder. The graphs are loaded when they are first used.

    Args:
        path: a folder that `streamfuse export` wrote.
        threads: of the engine, 1 to 64; None lets it choose.
        provider: of an ONNX bundle, ONNX Runtime's execution provider: cpu, webgpu, qnn, coreml or directml, with
            options where wanted ("webgpu:deviceId=1", docs/onnx.md). None is cpu.
        cost_cache: remember what passes cost on this device; False measures it anew, about 250 ms.
        public_key: the line that `streamfuse bundle keygen` wrote; a folder that this key did not sign is refused.
            It is ignored with a Bundle: `open_bundle` checks it.

    Raises:
        BundleError: the bundle is damaged, foreign or newer, or not signed with the key; names file and field.
        KeyProblem: `public_key` is no key.
        OptionError: `threads` is out of range, `provider` is none, or is given for a bundle that is not ONNX.
        BackendError: the graphs cannot be loaded here, or the provider is not here.
        MissingExtra: a package is not installed; names the line that installs it.
    """
    from streamfuse.engines import check_provider, need_engine
    from streamfuse.native.library import MOST_THREADS

    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise OptionError(f"--threads must be from 1 to {MOST_THREADS}, not {threads}")
    bundle = path if isinstance(path, Bundle) else open_bundle(os.fspath(path), public_key=public_key)
    need_engine(bundle)
    check_provider(bundle, provider)
    return Model(bundle, threads=threads, provider=provider, cost_cache=cost_cache)


class Model:
    """A bundle that is open: checked files, tokenizer, loaded graphs. Use it as a context manager, or close it.

    `generate` and `stream` share one sequence, so a prompt that begins like the last one is not read again; each
    `chat` has a sequence of its own. One thread at a time, but for `stop`.
    """

    def __init__(self, bundle: Bundle, *, threads: int | None, provider: str | None, cost_cache: bool) -> None:
        """`load` makes it."""
        self.bundle = bundle
        self.text = self.bundle.tokenizer
        self._threads, self._provider, self._cost_cache = threads, provider, cost_cache
        self._new_engine: Any = None
        self._load_ms = 0.0
        self._session: Session | None = None
        self._open: list[Session] = []
        self._running: Session | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def manifest(self) -> Manifest:
        """All that the bundle says of itself."""
        return self.bundle.manifest

    def config(self, **options: Any) -> GenerationConfig:
        """The options of `config_of` for this bundle."""
        return config_of(self.manifest, **options)

    def encode(self, prompt: str, system: str | None = None, raw: bool = False) -> list[int]:
        """Token ids of a prompt: in the chat template where the bundle has one, unless `raw`.

        Raises:
            TextError: the template refuses the messages, or there is none for a system message.
        """
        if system is None and self.reads_raw(raw):
            return self.text.encode(prompt)
        messages = [{"role": "user", "content": prompt}]
        return self.text.encode_chat([*([] if system is None else [{"role": "system", "content": system}]), *messages])

    def reads_raw(self, raw: bool = False) -> bool:
        """Whether a prompt is continued as it stands: for `raw`, and where the bundle has no chat template."""
        return raw or not self.text.can_chat

    def check_prompt(self, prompt_ids: Sequence[int]) -> None:
        """PromptError for a prompt that does not fit, before seconds are spent on loading the engine."""
        check_prompt(prompt_ids, self.bundle.spec())

    def session(self, *, text: bool = True) -> Session:
        """A sequence of its own that speaks token ids (runtime.session.Session). Closed with the model, or before.

        Without `text` it gives no text, only ids. CoreError where the model is closed.
        """
        from streamfuse.engines import cost_file, device_of, identity_of
        from streamfuse.runtime.core import CoreError, TablesError
        from streamfuse.runtime.session import Session

        if self._closed:
            raise CoreError("this model is closed; open its bundle again")
        started = time.perf_counter()
        backend = self._engine()
        device = device_of(self.bundle, self._threads, self._provider)
        try:
            session = Session(
                backend,
                self.bundle.tables,
                self.text if text else None,
                identity=identity_of(self.bundle),
                cost_file=cost_file(self.bundle, device) if self._cost_cache else None,
                device=device,
                model_load_ms=self._load_ms or 1000 * (time.perf_counter() - started),
            )
        except TablesError as error:
            backend.close()
            raise TablesError(f"cannot read the drafting data {self.bundle.draft}: {error}") from None
        except BaseException:
            backend.close()
            raise
        self._load_ms = self._load_ms or 1000 * (time.perf_counter() - started)
        self._open.append(session)
        return session

    def generate(
        self, prompt: str | Sequence[int], *, system: str | None = None, raw: bool = False, **options: Any
    ) -> Result:
        """Answer a prompt (text, or token ids). `options` are those of `config_of`, the command line's by name."""
        with self.stream(prompt, system=system, raw=raw, **options) as generation:
            text = generation.finish()
        return Result(text, generation.token_ids, generation.statistics)

    def stream(
        self, prompt: str | Sequence[int], *, system: str | None = None, raw: bool = False, **options: Any
    ) -> Generation:
        """The same as an iterator of pieces (text, token, source); leaving early is safe at any token."""
        config = self.config(**options)
        if not isinstance(prompt, str) and (isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Iterable)):
            raise PromptError(f"the prompt must be text or a list of token ids, not {prompt!r:.40}")
        ids = self.encode(prompt, system, raw) if isinstance(prompt, str) else list(prompt)
        self.check_prompt(ids)
        self._session = self._session or self.session()
        return self._start(self._session, ids, config, self.reads_raw(raw) or not isinstance(prompt, str))

    def chat(self, system: str | None = None, history: Sequence[Mapping[str, str]] = (), **options: Any) -> Chat:
        """A conversation with a cache of its own, so that only new words are read.

        Args:
            system: a system message; it stays through `reset`.
            history: earlier turns, {"role", "content"} each, for example another chat's `messages`; they stay too.
            options: of `config_of`, the defaults of every turn.

        Raises:
            TextError: the bundle has no chat template, or `history` holds something else.
        """
        if not self.text.can_chat:
            from streamfuse.runtime.text import TextError

            raise TextError(f"{self.bundle.folder}: this bundle has no chat template; use generate(..., raw=True)")
        self.config(**options)  # what is wrong with them is said now
        conversation = Conversation(self.text, system, history)
        return Chat(self, self.session(), conversation, options)

    def stop(self) -> None:
        """End the generation that runs at its next token. Any thread may call it."""
        with self._lock:
            if self._running is not None:
                self._running.stop()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Tokens and cache of `generate`'s sequence to a file, for `restore` in another process."""
        self._session = self._session or self.session()
        self._session.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Read back what `save` wrote with the same bundle. CoreError for any other file; then nothing has changed."""
        self._session = self._session or self.session()
        self._session.restore(path)

    def close(self) -> None:
        """Give back the engine's memory; what runs is ended. Nothing happens the second time."""
        self._closed = True
        with self._lock:
            self._running = None
        for session in self._open:
            session.close()
        self._open.clear()
        self._session = self._new_engine = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _engine(self) -> Backend:
        from streamfuse import engines

        if self._new_engine is None:
            self._new_engine = engines.engines_of(self.bundle, self._threads, self._provider)
        backend: Backend = self._new_engine()
        return backend

    def _forget(self, session: Session) -> None:
        """Close it, and keep it no longer."""
        session.close()
        with self._lock:
            self._running = None if self._running is session else self._running
        self._open = [other for other in self._open if other is not session]

    def _start(self, session: Session, ids: Sequence[int], config: GenerationConfig, raw: bool = False) -> Generation:
        with self._lock:
            self._running = session
        return session.generate(ids, config, raw=raw)


class Chat:
    """Turns of a conversation over one cache. `options` are the defaults of every turn."""

    def __init__(self, model: Model, session: Session, conversation: Conversation, options: dict[str, Any]) -> None:
        self._model, self._session, self._conversation, self._options = model, session, conversation, options
        self._answer: Answer | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns so far, {"role", "content"}; an answer that is being written comes when it ends."""
        return list(self._conversation.messages)

    def send(self, words: str, **options: Any) -> Result:
        """Ask, and wait for the whole answer."""
        pieces = self.stream(words, **options)
        for _ in pieces:
            pass
        return pieces.result

    def stream(self, words: str, **options: Any) -> Answer:
        """Ask; the answer comes in pieces. A turn that is left early counts as far as it was delivered; one that still
        runs is ended by the next.

        Raises:
            PromptError: the conversation outgrew the context; it is as before, and `reset` begins anew.
        """
        config = self._model.config(**{**self._options, **options})
        self._end_turn()
        ids = self._conversation.ask(words)
        try:
            generation = self._model._start(self._session, ids, config)
        except BaseException:
            self._conversation.take_back()
            raise
        self._answer = Answer(generation, self._conversation)
        return self._answer

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
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


class Answer(Iterator["Piece"]):
    """A turn of a chat that is being written. The conversation takes it when it ends, or is closed."""

    def __init__(self, generation: Generation, conversation: Conversation) -> None:
        self._generation, self._conversation = generation, conversation
        self._taken = False

    @property
    def result(self) -> Result:
        """What was delivered so far."""
        return Result(self._generation.text, self._generation.token_ids, self._generation.statistics)

    def stop(self) -> None:
        """End at the next token. Any thread may call it."""
        self._generation.stop()

    def close(self) -> None:
        """End now."""
        self._generation.close()
        self._take()

    def __next__(self) -> Piece:
        try:
            return next(self._generation)
        except StopIteration:
            self._take()
            raise
        except BaseException:
            self._generation.close()
            self._take()
            raise

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> None:
        if self._taken:
            return
        self._taken = True
        if self._generation.token_ids or self._generation.statistics["finish_reason"] != "stopped":
            self._conversation.answer(self._generation.text, self._generation.token_ids)
        else:
            self._conversation.take_back()
