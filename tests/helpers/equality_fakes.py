"""Engines of tools/equality.py over the arithmetic model of the tests: the core, and the readable loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from equality_cases import Case, Facts, random_ids
from equality_constraints import LETTER_CONSTRAINTS
from equality_engines import Engine, SessionWriter, Text, Writer, Written, latencies, write_text
from fakes import ArithmeticBackend
from letters_samples import write_letters_bundle

from streamfuse.api.options import config_of
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.core import CoreModel
from streamfuse.runtime.reference.lookup import LookUpDrafter
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.session import Session, constraint_of
from streamfuse.runtime.text import Tokenizer


class _Letters(Engine):
    """What the engines over the arithmetic model share: two bundles without graphs, and their facts."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        """Writes the bundles to `folder`, which must be new; `facts` are fields of Facts."""
        self.bundles = letters_bundles(folder)
        spec = self.bundles[0].spec()
        self.facts = Facts(
            widths={None: spec.verify_widths}, capacity=spec.capacity, vocab_size=spec.vocab_size,
            token_limits=(1, 2, 5, 20, 60, 100), constrained_limit=90, constraints=LETTER_CONSTRAINTS, **facts,
        )  # fmt: skip

    def bundle(self, case: Case) -> Bundle:
        return self.bundles[case.variant % 2]

    def prompt(self, case: Case) -> list[int]:
        return random_ids(case.prompts[0], self.facts.vocab_size, 40)

    def decode(self, case: Case, tokens: Sequence[int]) -> str:
        return self.bundle(case).tokenizer.decode(tokens)


class ArithmeticEngine(_Letters):
    """The core over the arithmetic model of the tests, whose agreement with its own drafts varies."""

    name = "arithmetic"

    def __init__(self, folder: Path, backend: type[ArithmeticBackend] = ArithmeticBackend) -> None:
        """Writes the bundles, and saved sessions, to `folder`, which must be new."""
        super().__init__(folder)
        self._backend, self._saved = backend, folder / "saved"

    def write(self, case: Case) -> tuple[Written, Written]:
        bundle = self.bundle(case)
        with ExitStack() as stack:
            shared, apart = (CoreModel(bundle.spec(), bundle.tables, bundle.identity) for _ in range(2))
            stack.callback(shared.close)
            stack.callback(apart.close)
            if case.memory != "off":
                shared.remember()

            def opened(role: str) -> Writer:
                # Only in the case "same" the memory stores the plain answer.
                model = apart if role == "plain" and case.memory == "other" else shared
                backend = arithmetic_backend(bundle.spec(), case, self._backend)
                session = stack.enter_context(Session(backend, tokenizer=bundle.tokenizer, model=model))
                session.core.set_costs(latencies(bundle.spec(), case.variant), frozen=True)
                return SessionWriter(session, bundle.manifest, model.forget)

            return write_text(case, self.prompt(case), self.facts.restriction(case), opened, self._saved)


class ReferenceEngine(_Letters):
    """The readable loop over the arithmetic model, which specifies the core: fixed widths, no look-up memory."""

    name = "reference"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, planners=(), has_memory=False, has_sources=False)

    def write(self, case: Case) -> tuple[Written, Written]:
        bundle, ids, restriction = self.bundle(case), self.prompt(case), self.facts.restriction(case)

        def run(context: Sequence[int], leave: int = 0, **options: Any) -> Text:
            config = config_of(bundle.manifest, **options, **restriction)
            return self._run(bundle.tokenizer, config, context, arithmetic_backend(bundle.spec(), case), case, leave)

        leave = case.leave if case.way == "saved" else 0
        plain = run(ids, **case.plainly())
        found = run(ids, leave, **case.drafting(0))
        if found.reason != "left":
            return Written((plain,)), Written((found,))
        left = {**case.drafting(1), "max_new_tokens": case.options["max_new_tokens"] - leave}
        return Written((plain,)), Written((found.then(run([*ids, *found.tokens], **left)),), restores=1)

    def _run(
        self,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        context: Sequence[int],
        backend: ArithmeticBackend,
        case: Case,
        leave: int,
    ) -> Text:
        loop = Loop(backend, list(context), config, constraint=constraint_of(config, tokenizer))
        if case.variant & 64:
            loop.drafter = LookUpDrafter()
        tokens, drafted, running = list[int](), Counter[str](), loop.run()
        for emitted in running:
            tokens.append(emitted.token)
            drafted["drafter" if emitted.drafted else "model"] += 1
            if len(tokens) == leave:
                running.close()
        reason = "left" if 0 < leave == len(tokens) else loop.counts.finish_reason
        return Text(tuple(tokens), None, reason, loop.counts.target_forward_passes, drafted)


def arithmetic_backend(
    spec: ModelSpec, case: Case, kind: type[ArithmeticBackend] = ArithmeticBackend
) -> ArithmeticBackend:
    """From a model that never agrees with its drafts to one that always does."""
    return kind(spec, case.variant // 2 % 17, mixed=bool(case.variant & 128))


def letters_bundles(folder: Path) -> list[Bundle]:
    """Facts and tokenizer of the arithmetic model, with streams in the verify pass and in a pass of their own."""
    folder.mkdir(parents=True)
    return [open_bundle(write_letters_bundle(folder / schedule, schedule)) for schedule in ("fused", "deferred")]
