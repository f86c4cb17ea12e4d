"""The cases of tools/equality.py: all that a text depends on, derived from a seed and a number.

Cases must not depend on Python's version or on the order in which they run: every choice comes from a `random.Random`
that is seeded with both numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from streamfuse.bench.structured.questions import Constraint

TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5)
STOPS = (" ", "e", "}", "\n", "the ")
SOURCES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    (),
    ("lookup", "table"),
    ("streams",),
    ("lookup",),
    ("table",),
    ("memory",),
)
PROMPTS = (
    "Why is the sky blue?",
    "hi",
    "Write one sentence about a restaurant with these attributes: name[Aromi], food[Italian], area[riverside]",
    "one two three one two three one two three one",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
    '{"name": "Ada", "age": 36, "name": "Bob", "age":',
    "Translate into German: The keeper climbed the steps to light the lamp again.",
    "Ein Käse für 3 €, bitte; 漢字 and ☕ too 🙂",
    "CREATE TABLE books (title VARCHAR, author VARCHAR, year INTEGER); which authors wrote before 1900?",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "  leading spaces, a tab\tand a line\nbreak\r\n",
    "List the first ten prime numbers, then the first ten squares, then both again in reverse order.",
    "The cat sat on the mat. The dog sat on the log. The cat sat on",
    "Summarize: A ship left the harbour at dawn. A storm came up at noon. It returned at dusk, and the crew was safe.",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "What is 17 * 23? Think step by step.",
    "Dear Sir or Madam, I am writing to complain about the delay of",
    "<|im_start|>user\nwho are you<|im_end|>",
    "x",
    "Give me a JSON object with the fields city and days for the weather in Oslo in the next three days.",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the cases of an engine can vary.

    Attributes:
        widths: nodes per verify pass, by adapter; None is the base model.
        capacity: tokens of context.
        vocab_size: tokens of the vocabulary.
        token_limits: values of max_new_tokens of unrestricted texts.
        constrained_limit: max_new_tokens of restricted texts.
        constraints: what restricts them.
        ways: "text" is one text. "saved" is one text that is saved to a file at a token and goes on in another session.
            "chat" is two turns, of which the first may be left early, and the chat may be saved and restored between.
        planners: who chooses the width where none is fixed: "measured" by this machine's latencies, "given" by random
            ones.
        threads: thread counts.
        mixed_threads: plain and speculative text may have different ones.
        has_text: prompts are texts; otherwise random token ids.
        has_memory: answers can be stored, to draft from them.
        has_sources: single sources of drafts can be chosen, and stop strings.
    """

    widths: Mapping[str | None, tuple[int, ...]]
    capacity: int
    vocab_size: int
    token_limits: tuple[int, ...]
    constrained_limit: int
    constraints: tuple[Constraint, ...]
    ways: tuple[str, ...] = ("text", "saved")
    planners: tuple[str, ...] = ("given",)
    threads: tuple[int, ...] = (1,)
    mixed_threads: bool = False
    has_text: bool = False
    has_memory: bool = True
    has_sources: bool = True

    def restriction(self, case: Case) -> dict[str, str]:
        """Keywords of `Model.generate` for the constraint of a case; none without one."""
        return {} if case.constraint is None else self.constraints[case.constraint].option


@dataclass(frozen=True, slots=True)
class Case:
    """A plain text, and a speculative one that must equal it.

    Attributes:
        number: together with the seed of the run it determines everything else.
        way: one of `Facts.ways`.
        prompts: of each turn, a place in the list of prompts, and the seed of random token ids.
        form: "chat" applies the chat template, "raw" does not, "ids" are random token ids.
        options: of both texts, keywords of `Model.generate`.
        constraint: a place in `Facts.constraints`; `kind` is its kind, or "none".
        widths: of the speculative text, before and after it is saved, or of each turn; None is planned.
        planner: one of `Facts.planners`, or "none" where all widths are fixed.
        sources: what may draft; none: all of them.
        memory: "off"; "same" drafts from the plain answer, "other" from an answer by another seed.
        threads: of the plain and of the speculative text.
        leave: tokens after which a text is saved or a first turn is left; 0: at its end.
        restores: the chat is saved and restored between the turns.
        is_fresh: the speculative text has a session of its own; otherwise the model's, which may hold other texts.
        drops_oldest: the chat drops its oldest turns where the context is full.
        variant: a number from which an engine derives what only it varies.
    """

    number: int
    engine: str
    adapter: str | None
    way: str
    prompts: tuple[int, int]
    form: str
    options: dict[str, Any]
    constraint: int | None
    kind: str
    widths: tuple[int | None, int | None]
    planner: str
    sources: tuple[str, ...]
    memory: str
    threads: tuple[int, int]
    leave: int
    restores: bool
    is_fresh: bool
    drops_oldest: bool
    variant: int

    def plainly(self) -> dict[str, Any]:
        """Keywords of the plain text, without the constraint."""
        return {**self.options, "speculative": False}

    def drafting(self, part: int) -> dict[str, Any]:
        """Keywords of a part of the speculative text, without the constraint."""
        return {**self.options, "width": self.widths[part], "sources": self.sources or None}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def case_of(number: int, seed: int, engines: Mapping[str, Facts], shares: Sequence[float], prompts: int) -> Case:
    """Case `number` of a run over `engines` with these shares of the cases, and a list of so many prompts."""
    random = Random(f"{seed}:{number}")
    name = random.choices(list(engines), shares)[0]
    facts = engines[name]
    adapter = random.choice(list(facts.widths))
    way = random.choice(facts.ways)
    form = (
        random.choice(("chat", "raw", "ids") if "chat" in facts.ways else ("raw", "ids")) if facts.has_text else "ids"
    )
    # A constraint begins anew at the text that continues a saved one.
    constraint = random.randrange(len(facts.constraints)) if way != "saved" and random.random() < 0.4 else None
    limit = random.choice(facts.token_limits) if constraint is None else facts.constrained_limit
    widths = tuple(random.choice([None, *facts.widths[adapter]] if facts.planners else facts.widths[adapter])
                   for _ in range(2))  # fmt: skip
    planners = [one for one in facts.planners if one == "measured" or way != "chat"]
    planner = random.choice(planners) if None in widths else "none"
    memory = random.choice(("off", "off", "same", "other")) if facts.has_memory and way == "text" else "off"
    threads = (random.choice(facts.threads), random.choice(facts.threads))
    if memory == "same" or not facts.mixed_threads:
        threads = (threads[1], threads[1])
    return Case(
        number=number, engine=name, adapter=adapter, way=way, form=form,
        prompts=(random.randrange(prompts), random.randrange(prompts)),
        options=_options(random, facts, limit, constraint is None, way),
        constraint=constraint, kind="none" if constraint is None else facts.constraints[constraint].kind,
        widths=widths, planner=planner,
        sources=random.choice(SOURCES) if facts.has_sources else (),
        memory=memory, threads=threads,
        leave=random.randrange(1, limit) if limit > 1 and (way == "saved" or random.random() < 0.7) else 0,
        restores=way == "chat" and random.random() < 0.7, is_fresh=planner == "given" or random.random() < 0.5,
        drops_oldest=random.random() < 0.5, variant=random.getrandbits(32),
    )  # fmt: skip


def _options(random: Random, facts: Facts, limit: int, has_stops: bool, way: str) -> dict[str, Any]:
    """Keywords of the API. Each filter is off in most texts, so that each is also seen alone."""

    def mostly(off: float, *others: float) -> float:
        return random.choice(others) if random.random() < 0.35 else off

    options: dict[str, Any] = {
        "max_new_tokens": limit,
        "temperature": random.choice(TEMPERATURES),
        "top_k": mostly(0, 1, 2, 8, 40),
        "top_p": mostly(1.0, 0.5, 0.8, 0.95),
        "min_p": mostly(0.0, 0.02, 0.1),
        "repetition_penalty": mostly(1.0, 0.9, 1.1, 1.3),
        "seed": random.choice((random.randrange(4), random.getrandbits(64))),
        "ignore_eos": random.random() < 0.3,
        "log_probs": random.random() < 0.3,
        "top_log_probs": mostly(0, 1, 3, 20),
    }
    if has_stops and facts.has_text and way != "saved" and random.random() < 0.15:
        options["stop"] = [random.choice(STOPS)]
    if has_stops and random.random() < 0.15:
        options["stop_token_ids"] = [random.randrange(facts.vocab_size)]
    return options


def random_ids(seed: int, vocab_size: int, most: int) -> list[int]:
    """A prompt of random token ids; half of them repeat a few."""
    random = Random(seed)
    length = random.randrange(1, most + 1)
    ids = [random.randrange(vocab_size) for _ in range(length)]
    period = random.randrange(1, 9)
    return [ids[place % period % length] for place in range(length)] if random.random() < 0.5 else ids
