"""Constrained text with speculation against constrained plain text, token for token, over many generations.

    PYTHONPATH=tests/helpers python tools/constrained_equality.py --bundle build/demo --bundle build/sql

Every engine writes an answer under each constraint, by several seeds and temperatures, plainly and with speculation at
every width of its verify methods and at the width that the planner chooses. The tokens must be equal, and an answer
that ends must satisfy its constraint by another library's judgement. Engines are tiny models with random weights in the
native engine, which disagree with most drafts, bundles of real ones, and an arithmetic model that agrees with most
drafts. The exit code is 1 if anything differs; a line for each difference has its case.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from streamfuse.bench.structured import extraction, function_calling, objects, sql
from streamfuse.bench.structured.questions import Constraint, object_of, problem_of

TEMPERATURES = (0.0, 0.7, 1.2)
QUESTION = "Answer in the form that was asked for."

_TEXT: dict[str, Any] = {"type": "string", "maxLength": 12}
_NODE = {"$ref": "#/$defs/node"}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"const": 'quotes " and \\ backslashes,\n lines, Zürich, ☕ and 漢字'},
    {"enum": ["a", "ab", "abc", "abcd", 1, 1.5, -2, True, None, ["a"], {"a": "ab"}]},
    {"type": "array", "items": {"enum": ["north", "north-east", "north-west", "south"]}, "minItems": 2, "maxItems": 6},
    {"type": "array", "prefixItems": [{"type": "integer"}, _TEXT, {"type": "boolean"}], "items": False, "minItems": 3},
    object_of({"optional": _TEXT, "also": {"type": "null"}, "needed": {"type": "boolean"}}, required=["needed"]),
    object_of({"empty": object_of({}), "list": {"type": "array", "items": False}}),
    {"anyOf": [object_of({"kind": {"const": kind}, kind: _TEXT}) for kind in ("one", "other", "another")]},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    {
        "$defs": {"node": object_of({"value": {"type": "integer"}, "next": {"anyOf": [_NODE, {"type": "null"}]}})},
        **_NODE,
    },
    {"type": "integer", "minimum": -100, "maximum": 1000},
    {"type": "number", "minimum": 0, "maximum": 1},
    object_of({"when": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}}),
    {
        "x-guidance": {"whitespace_flexible": True},
        **object_of({"spaced": {"type": "array", "items": _TEXT, "maxItems": 2}}),
    },
)
REGEXES = (
    r"\d{4}-\d{2}-\d{2}",
    r"(yes|no|maybe)( because [a-z]{3,10})?\.",
    r"#[0-9a-f]{6}(,#[0-9a-f]{6}){1,3}",
    r"[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8}){0,2}",
    r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3}",
    r"the keeper climbed the steps( again){0,3}",
)
GRAMMARS = (
    """start: sum
sum: product (("+" | "-") product)~0..3
product: NUMBER (("*" | "/") NUMBER)~0..2
NUMBER: /[0-9]{1,4}/
""",
    """start: line~1..4
line: KEY " = " value "\\n"
value: "true" | "false" | NUMBER
KEY: /[a-z_]{2,8}/
NUMBER: /[0-9]{1,3}/
""",
    """start: "(" NAME (" " (NAME | start))~0..3 ")"
NAME: /[a-z]{1,6}/
""",
    sql.grammar("CREATE TABLE books (title VARCHAR, author VARCHAR, year INTEGER, pages INTEGER)"),
)
TOOLS = (
    {"name": "get_weather", "parameters": {"type": "dict", "properties": {"city": _TEXT, "days": {"type": "integer"}}}},
    {
        "name": "get_time",
        "parameters": {"type": "dict", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}}},
    },
    {"name": "stop", "parameters": {"type": "dict", "properties": {}}},
)
CONSTRAINTS: tuple[Constraint, ...] = (
    *(question.constraint for question in objects.read_questions()),
    Constraint.schema(extraction.schema()),
    Constraint.schema(function_calling.call_schema(TOOLS)),
    Constraint.schema(function_calling.call_schema(TOOLS[:1])),
    *map(Constraint.schema, SCHEMAS),
    *(Constraint("regex", regex) for regex in REGEXES),
    *(Constraint("grammar", grammar) for grammar in GRAMMARS),
)
# For the arithmetic model, whose vocabulary is 64 letters from 0 to o.
LETTER_CONSTRAINTS = tuple(
    Constraint("regex", regex)
    for regex in (
        "[0-9]{2}:[0-9]{2}:[0-9]{2}",
        "(ABBA|ABBEY|ACDC)(;(ABBA|ABBEY|ACDC)){0,5}",
        "[A-Za-o]{3,30}=[0-9]+;",
        "(@[a-f]+<[0-9]{1,3}>){2,6}",
        "(abc|abd|bcd)*",
        "[0-9A-F]{40}",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One text: the same tokens whatever `width` is. `width`: nodes per verify pass, None: planned, 0: plain."""

    constraint: Constraint
    temperature: float
    seed: int
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What a generation delivered; `drafted` counts delivered tokens by who drafted them."""

    tokens: tuple[int, ...]
    finished: bool
    drafted: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Engine:
    """Something that writes a text. `cases` are with speculation; `write` also takes them with width 0."""

    name: str
    write: Callable[[Case], Written]
    decode: Callable[[Sequence[int]], str]
    cases: Sequence[Case]


@dataclass(slots=True)
class Found:
    """What was compared, and what differs."""

    generations: int = 0
    plain: int = 0
    finished: int = 0
    tokens: int = 0
    drafted: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def cases_of(
    constraints: Iterable[Constraint],
    widths: Iterable[int | None],
    seeds: int,
    temperatures: Iterable[float] = TEMPERATURES,
) -> list[Case]:
    """All of them. Cases of the same text follow each other."""
    texts = product(constraints, temperatures, range(seeds))
    return [Case(*text, width) for text in texts for width in widths]


def compare(engine: Engine, progress: Callable[[Found], None] = lambda found: None) -> Found:
    """Write every case, and its plain text once."""
    found = Found()
    plain: tuple[Case, Written] | None = None
    for case in engine.cases:
        baseline = Case(case.constraint, case.temperature, case.seed, 0)
        if plain is None or plain[0] != baseline:
            plain = (baseline, engine.write(baseline))
            found.plain += 1
            if plain[1].finished and (problem := problem_of(case.constraint, engine.decode(plain[1].tokens))):
                found.differences.append(f"{engine.name}: {baseline} is not valid: {problem}")
        drafted = engine.write(case)
        found.generations += 1
        found.finished += drafted.finished
        found.tokens += len(drafted.tokens)
        found.drafted.update(drafted.drafted)
        if (drafted.tokens, drafted.finished) != (plain[1].tokens, plain[1].finished):
            texts = [engine.decode(one.tokens) for one in (plain[1], drafted)]
            found.differences.append(f"{engine.name}: {case}: plain {texts[0]!r}, speculative {texts[1]!r}")
        progress(found)
    return found


# ---- engines -------------------------------------------------------------------------------------------------------


@contextmanager
def bundle_engine(
    name: str, bundle: Path, constraints: Sequence[Constraint], seeds: int, max_new_tokens: int
) -> Iterator[Engine]:
    """A bundle in its own engine. Every seed has a prompt of its own, so that greedy texts differ too."""
    from streamfuse.api import load

    with load(bundle, cost_cache=False) as model:
        prompts = [_prompt(model, seed) for seed in range(seeds)]

        def write(case: Case) -> Written:
            generation = model.stream(
                prompts[case.seed], max_new_tokens=max_new_tokens, temperature=case.temperature, seed=case.seed,
                top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, speculative=case.width != 0,
                width=case.width or None, **case.constraint.option,
            )  # fmt: skip
            drafted = Counter(piece.source for piece in generation if piece.token is not None)
            return Written(tuple(generation.token_ids), generation.statistics.finish_reason == "stop", drafted)

        widths = [None, *sorted(method.rows for method in model.manifest.verify_methods.values() if method.rows > 1)]
        yield Engine(name, write, model.tokenizer.decode, cases_of(constraints, widths, seeds))


def _prompt(model: Any, seed: int) -> list[int]:
    text = f"{QUESTION} Number {seed}."
    return model.encode(text) if model.tokenizer.can_chat else model.encode(text, raw=True)


def tiny_bundle(folder: Path, schedule: str, merges: int) -> Path:
    """A model with random weights in the native engine; tokens are bytes, and `merges` frequent strings of JSON."""
    import torch
    from export_samples import config_for, tiny_model, write_checkpoint

    from streamfuse.export.pipeline import run_export

    torch.manual_seed(len(schedule))
    tokenizer = json_tokenizer(merges)
    size = tokenizer.get_vocab_size()
    sizes = {"vocab_size": size, "eos_token_id": [size - 1], "max_position_embeddings": 512}
    checkpoint = write_checkpoint(folder / "checkpoint", tiny_model(**sizes), **sizes)
    tokenizer.save(str(folder / "checkpoint" / "tokenizer.json"))
    config = config_for(checkpoint, folder / "bundle", schedule=schedule, max_context_len=512)
    run_export(config, lambda word: None)
    return config.output_dir


def json_tokenizer(merges: int) -> Any:
    """The byte tokenizer of the tests, with `merges` merges that are learnt on the constraints themselves."""
    from bundle_samples import byte_tokenizer
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if not merges:
        return byte_tokenizer()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator([constraint.text for constraint in CONSTRAINTS], trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


@contextmanager
def arithmetic_engine(name: str, folder: Path, accuracy: int, seeds: int) -> Iterator[Engine]:
    """The core over the arithmetic model of the tests, which agrees with `accuracy` sixteenths of its own drafts."""
    from fakes import ArithmeticBackend, spec
    from letters_samples import LETTERS, write_letters_bundle

    from streamfuse.runtime.config import GenerationConfig, SamplingConfig
    from streamfuse.runtime.session import Session
    from streamfuse.runtime.text import Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    bundle = write_letters_bundle(folder / name.replace(" ", "-"), "fused")
    tokenizer = Tokenizer(bundle / "tokenizer.json")
    facts = spec(capacity=256, vocab_size=len(LETTERS))
    with Session(ArithmeticBackend(facts, accuracy), None, tokenizer) as session:

        def write(case: Case) -> Written:
            config = GenerationConfig(
                max_new_tokens=96, sampling=SamplingConfig(temperature=case.temperature, seed=case.seed),
                speculative=case.width != 0, width=case.width or None, **case.constraint.option,
            )  # fmt: skip
            generation = session.generate([1 + case.seed, 2, 3], config)
            drafted = Counter(piece.source for piece in generation if piece.token is not None)
            return Written(tuple(generation.token_ids), generation.statistics.finish_reason == "stop", drafted)

        widths = [None, *sorted(rows for rows, _ in facts.widths.values())]
        yield Engine(name, write, tokenizer.decode, cases_of(LETTER_CONSTRAINTS, widths, seeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, action="append", default=[], help="a bundle of a real model; repeat it")
    parser.add_argument("--seeds", type=int, default=2, help="per constraint and temperature, of the tiny models")
    parser.add_argument("--bundle-seeds", type=int, default=1, help="the same, of the bundles")
    parser.add_argument("--every", type=int, default=1, help="of the bundles: every Nth constraint")
    parser.add_argument("--max-new-tokens", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    started, results = time.monotonic(), dict[str, Found]()
    with tempfile.TemporaryDirectory() as temporary:
        for opened in _engines(args, Path(temporary)):
            with opened as engine:
                total = len(engine.cases)
                results[engine.name] = compare(engine, lambda found: _tell(f"{found.generations} of {total}"))  # noqa: B023
            found = results[engine.name]
            _tell("")
            if not args.json:
                print(_line(engine.name, found), *found.differences, sep="\n", flush=True)
    generations = sum(found.generations for found in results.values())
    differences = [line for found in results.values() for line in found.differences]
    if args.json:
        engines = {name: _facts(found) for name, found in results.items()}
        print(json.dumps({"generations": generations, "differences": differences, "engines": engines}))
    else:
        print(f"{generations} generations, {len(differences)} differences, {time.monotonic() - started:.0f} s")
    return bool(differences)


def _engines(args: argparse.Namespace, folder: Path) -> Iterator[AbstractContextManager[Engine]]:
    for name, schedule, merges in (("tiny, bytes", "fused", 0), ("tiny, merges", "deferred", 500)):
        bundle = tiny_bundle(folder / schedule, schedule, merges)
        yield bundle_engine(name, bundle, CONSTRAINTS, args.seeds, args.max_new_tokens)
    for accuracy in (15, 4):
        yield arithmetic_engine(f"arithmetic, {accuracy} of 16", folder, accuracy, 3 * args.seeds)
    for bundle in args.bundle:
        yield bundle_engine(bundle.name, bundle, CONSTRAINTS[:: args.every], args.bundle_seeds, args.max_new_tokens)


def _facts(found: Found) -> dict[str, Any]:
    return {
        "generations": found.generations,
        "plain": found.plain,
        "finished": found.finished,
        "tokens": found.tokens,
        "delivered_by": dict(found.drafted),
    }


def _line(name: str, found: Found) -> str:
    by = ", ".join(f"{source} {count / max(1, found.tokens):.0%}" for source, count in found.drafted.most_common())
    return f"{name}: {found.generations} generations, {found.finished} finished, {found.tokens} tokens: {by}"


def _tell(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line:40}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
