"""The engines of tools/equality.py: each writes a case's plain and speculative text.

Only engines whose rows do not depend on the pass that computes them are here, so every difference is a fault. XNNPACK,
Core ML, OpenVINO and QNN resolve near ties by pass (docs/limits.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Protocol

from equality_cases import PROMPTS, Case, Facts, random_ids
from equality_constraints import CONSTRAINTS

from streamfuse.api import Model, Score, load
from streamfuse.api.options import config_of
from streamfuse.bundle import Bundle, Manifest, open_bundle
from streamfuse.runtime.backend import DECODE, STREAMS, ModelSpec
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.session import Generation, Session


@dataclass(frozen=True, slots=True)
class Text:
    """A text that was delivered.

    Attributes:
        text: None if it was delivered in parts.
        reason: why it ended; "left" if its reader did not wait for that, "refused" if the prompt does not fit.
        passes: passes of the model after the prompt.
        drafted: delivered tokens by who drafted them.
        log_probs: of each token, and of the most probable ones at its position, if they were asked for.
    """

    tokens: tuple[int, ...]
    text: str | None
    reason: str
    passes: int = 0
    drafted: Counter[str] = field(default_factory=Counter)
    log_probs: tuple[float, ...] = ()

    def then(self, rest: Text) -> Text:
        """This text, continued by another session."""
        tokens, drafted = self.tokens + rest.tokens, self.drafted + rest.drafted
        log_probs = self.log_probs + rest.log_probs
        return Text(tokens, None, rest.reason, self.passes + rest.passes, drafted, log_probs)


@dataclass(frozen=True, slots=True)
class Written:
    """The texts of a case, one of each turn. `restores` counts the sessions that continued a saved one."""

    texts: tuple[Text, ...]
    restores: int = 0


class Engine(Protocol):
    """Generates the outputs of cases. Subclasses without state need none of the last three methods."""

    name: str
    facts: Facts

    def write(self, case: Case) -> tuple[Written, Written]:
        """The plain and the speculative texts of a case."""

    def decode(self, case: Case, tokens: Sequence[int]) -> str:
        """The text of tokens."""

    def prepare(self) -> None:
        """Load all that any case may need."""

    def trim(self) -> None:
        """Drop the caches; they are filled again when they are needed."""

    def close(self) -> None: ...


class Writer(Protocol):
    """What writes a text after token ids: a Model, or a session."""

    def stream(self, ids: list[int], /, **options: Any) -> Generation: ...
    def score(self, ids: list[int], answer: list[int], /, *, top_log_probs: int) -> Score: ...
    def save(self, path: Path, /) -> None: ...
    def restore(self, path: Path, /) -> object: ...
    def reset(self) -> None: ...
    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionWriter:
    """A session with the keywords of a Model. `forget` empties the memory that its sessions share."""

    session: Session
    manifest: Manifest
    forget: Callable[[], None]

    def stream(self, ids: list[int], /, **options: Any) -> Generation:
        return self.session.generate(ids, config_of(self.manifest, **options), raw=True)

    def score(self, ids: list[int], answer: list[int], /, *, top_log_probs: int) -> Score:
        return self.session.score([*ids, *answer], len(ids), top_log_probs)

    def save(self, path: Path, /) -> None:
        self.session.save(path)

    def restore(self, path: Path, /) -> object:
        return self.session.restore(path)

    def reset(self) -> None:
        self.session.reset()


def text_of(start: Callable[[], Generation], leave: int = 0) -> Text:
    """Run a generation to its end, or until it has delivered `leave` tokens; then the caller ends it."""
    try:
        generation = start()
    except PromptError:
        return Text((), "", "refused")
    drafted, log_probs, left = Counter[str](), list[float](), False
    for piece in generation:
        drafted[piece.source] += piece.token is not None
        if piece.log_prob is not None:
            log_probs += [piece.log_prob, *(one.log_prob for one in piece.top_log_probs)]
        if left := leave > 0 and len(generation.token_ids) == leave:
            break
    found = generation.statistics
    reason = "left" if left else found.finish_reason
    tokens, passes = tuple(generation.token_ids), found.target_forward_passes
    return Text(tokens, generation.text, reason, passes, +drafted, tuple(log_probs))


def scored(text: Text, score: Score) -> Text:
    """The text with the log-probabilities of its score, in the order of `text_of`."""
    log_probs = list[float]()
    for place, own in enumerate(score.log_probs):
        top = score.top_log_probs[place] if score.top_log_probs else ()
        log_probs += [own, *(one.log_prob for one in top)]
    return replace(text, log_probs=tuple(log_probs))


def write_text(
    case: Case, ids: list[int], restriction: Mapping[str, str], opened: Callable[[str], Writer], path: Path
) -> tuple[Written, Written]:
    """The cases "text" and "saved". `opened` gives the sequence of a role: "plain", "drafting" or "restored"."""
    plainly, seed = {**case.plainly(), **restriction}, case.options["seed"]
    plain, drafting = opened("plain"), opened("drafting")
    plain.reset()
    if drafting is not plain:
        drafting.reset()
    if case.memory != "off":
        drafting.forget()
    if case.memory == "other":
        text_of(lambda: drafting.stream(ids, **{**plainly, "seed": (seed + 1) % (1 << 64)}))
    expected = text_of(lambda: plain.stream(ids, **plainly))
    leave = case.leave if case.way == "saved" else 0
    found = text_of(lambda: drafting.stream(ids, **case.drafting(0), **restriction), leave)
    if found.reason != "left":
        if found.log_probs and found.log_probs == expected.log_probs:  # otherwise that is the difference to be shown
            found = scored(found, drafting.score(ids, list(found.tokens), top_log_probs=case.options["top_log_probs"]))
        return Written((expected,)), Written((found,))
    drafting.save(path)
    restored = opened("restored")
    restored.restore(path)
    left = {**case.drafting(1), "max_new_tokens": case.options["max_new_tokens"] - leave}
    rest = text_of(lambda: restored.stream([*ids, *found.tokens], **left))
    return Written((replace(expected, text=None),)), Written((found.then(rest),), restores=1)


def latencies(spec: ModelSpec, variant: int) -> dict[str, float]:
    """Of each method, in plain passes: cheap enough that the planner drafts by every source."""
    random = Random(variant)
    found = {DECODE: 1.0, **{method: 1.0 + random.uniform(0, 0.7) for method in spec.widths}}
    return {**found, STREAMS: random.uniform(0.01, 0.5)} if spec.deferred else found


_KINDS = ("plain", "memory", "restored")  # of models: "memory" drafts from earlier answers


class BundleEngine:
    """A bundle by the public API. Models are loaded once per role and thread count."""

    def __init__(
        self,
        name: str,
        path: Path,
        folder: Path,
        prompts: Sequence[str] = PROMPTS,
        threads: Sequence[int] = (1, 2),
        token_limits: tuple[int, ...] = (16, 48),
        constrained_limit: int = 96,
    ) -> None:
        """`folder` takes saved sessions."""
        self.name, self._path, self._saved = name, path, folder / "saved"
        bundle = open_bundle(path)
        manifest, spec = bundle.manifest, bundle.spec()
        check_row_invariant(bundle)
        adapters: list[str | None] = [None, *manifest.adapters]
        self.facts = Facts(
            widths={one: (bundle if one is None else bundle.adapter(one)).spec().verify_widths for one in adapters},
            capacity=spec.capacity, vocab_size=spec.vocab_size, token_limits=token_limits,
            constrained_limit=constrained_limit, constraints=CONSTRAINTS,
            ways=("text", "text", "saved", "chat") if bundle.tokenizer.can_chat else ("text", "saved"),
            planners=("measured", "given"), threads=tuple(threads),
            mixed_threads=manifest.target == "executorch", has_text=True,
        )  # fmt: skip
        self._prompts = prompts
        self._models: dict[tuple[str, int], Model] = {}

    def decode(self, case: Case, tokens: Sequence[int]) -> str:
        return self._model(case, "plain").tokenizer.decode(tokens)

    def write(self, case: Case) -> tuple[Written, Written]:
        with ExitStack() as stack:
            if case.way == "chat":
                return self._chat(case, "plain", stack), self._chat(case, "drafting", stack)
            opened = lambda role: self._sequence(case, role, stack)  # noqa: E731
            return write_text(case, self._ids(case), self.facts.restriction(case), opened, self._saved)

    def prepare(self) -> None:
        for kind, threads in product(_KINDS, self.facts.threads):
            model = self._loaded(kind, threads)
            for adapter in self.facts.widths:
                (model if adapter is None else model.adapter(adapter)).prepare()
            # The first constraint of a kind builds what later ones share, up to 11 MB for 49,152 tokens.
            for option in {next(iter(one.option)): one.option for one in self.facts.constraints}.values():
                model.generate("a", max_new_tokens=8, **option)

    def trim(self) -> None:
        for model in self._models.values():
            model.trim()

    def close(self) -> None:
        for model in self._models.values():
            model.close()
        self._models.clear()

    def _model(self, case: Case, role: str) -> Model:
        remembers = case.memory == "same" or (case.memory == "other" and role == "drafting")
        kind = "restored" if role == "restored" else "memory" if remembers else "plain"
        model = self._loaded(kind, case.threads[role == "drafting"])
        return model if case.adapter is None else model.adapter(case.adapter)

    def _loaded(self, kind: str, threads: int) -> Model:
        key = kind, threads
        if key not in self._models:
            self._models[key] = load(self._path, threads=threads, memory="" if kind == "memory" else None)
        return self._models[key]

    def _sequence(self, case: Case, role: str, stack: ExitStack) -> Writer:
        model = self._model(case, role)
        if role == "plain" or not case.is_fresh:
            return model
        session = stack.enter_context(model.session())
        if case.planner == "given":
            session.core.set_costs(latencies(model.bundle.spec(), case.variant), frozen=True)
        return SessionWriter(session, model.manifest, model.forget)

    def _ids(self, case: Case) -> list[int]:
        """The prompt, cut so that a quarter of the context is left."""
        most = 3 * self.facts.capacity // 4
        if case.form == "ids":
            return random_ids(case.prompts[0], self.facts.vocab_size, min(most, 60))
        model = self._model(case, "plain")
        is_raw = case.form == "raw" or not model.tokenizer.can_chat
        return model.encode(self._prompts[case.prompts[0]], raw=is_raw)[:most]

    def _chat(self, case: Case, role: str, stack: ExitStack) -> Written:
        """Two turns. The speculative chat is saved after the first one and restored in another model."""
        policy: Any = "drop_oldest" if case.drops_oldest else "fail"
        chat = stack.enter_context(self._model(case, role).chat(context_policy=policy))
        words = [self._prompts[prompt][: self.facts.capacity // 4] for prompt in case.prompts]
        restriction, restores = self.facts.restriction(case), 0
        options = [{**(case.plainly() if role == "plain" else case.drafting(part)), **restriction} for part in (0, 1)]
        first = text_of(lambda: chat.stream(words[0], **options[0]), case.leave)
        if case.restores and role == "drafting":
            chat.save(self._saved)
            restored = stack.enter_context(self._model(case, "restored").chat(context_policy=policy))
            restored.restore(self._saved)
            chat, restores = restored, 1
        second = text_of(lambda: chat.stream(words[1], **options[1]))
        return Written((first, second), restores)


def check_row_invariant(bundle: Bundle) -> None:
    """ValueError for a bundle whose engine resolves near ties by pass."""
    manifest = bundle.manifest
    by_kernels = manifest.target == "executorch" and manifest.backend == "kernels"
    by_onnx = manifest.target == "onnx" and manifest.cache.dtype == "float32"
    if not by_kernels and not by_onnx:
        raise ValueError(
            f"{bundle.folder}: with {manifest.target}, backend {manifest.backend}, speculation may change a token at a "
            "near tie (docs/limits.md); give a bundle of --backend kernels, or one for ONNX Runtime in float32"
        )
