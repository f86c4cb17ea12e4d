"""Do the targets agree? Bundles of one model and adapter go along the same text, each with drafts of its own.

The text is what the first bundle writes, plainly and greedily. Every bundle then walks it as its loop would: it drafts
a tree from its own streams, verifies it in one pass, and goes on by the path that the text takes through its tree. So
each choice of a token and each accepted path is compared in the same context, also after a difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamfuse.bundle import Bundle
from streamfuse.bundle.reader import TOKENIZER_FILE
from streamfuse.runtime.backend import DECODE, PREFILL, Backend, PassOutput
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.draft import Drafter
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.reference.tree import Tree

_REPORT = "export_report.json"

Progress = Callable[[], None]


class ParityError(ValueError):
    """Bundles cannot be compared; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A choice that is not the text's: the token number `position` of prompt number `prompt` would be another one.

    `gap`: by how much the bundle's own logits prefer it, natural logarithm.
    """

    prompt: int
    position: int
    gap: float


@dataclass
class Replay:
    """One bundle along all texts. `paths`: tokens that each pass brought, by where it began (prompt, position)."""

    choices: int = 0
    differences: list[Difference] = field(default_factory=list)
    paths: dict[tuple[int, int], int] = field(default_factory=dict)

    def figures(self, first: Replay, near_tie: float) -> dict[str, Any]:
        """This bundle's figures; paths are compared with those of `first` where passes began at the same place."""
        both = self.paths.keys() & first.paths.keys()
        opening = min(self.differences, key=lambda d: (d.prompt, d.position), default=None)
        return {
            "choices": self.choices,
            "differences": len(self.differences),
            "near_ties": sum(d.gap < near_tie for d in self.differences),
            "largest_gap": round(max((d.gap for d in self.differences), default=0.0), 3),
            "first_difference": None if opening is None else [opening.prompt, opening.position],
            "passes": len(self.paths),
            "tokens_per_pass": round(sum(self.paths.values()) / max(len(self.paths), 1), 3),
            "same_start": len(both),
            "same_path": sum(self.paths[key] == first.paths[key] for key in both),
        }


def check_comparable(bundles: Sequence[Bundle], width: int) -> None:
    """Raises ParityError if models, adapters, drafting tables or tokenizers differ, or a bundle lacks `width`.

    Adapters are named after their files, so the stream tables that do not depend on the target are compared too.
    """
    first = bundles[0]
    for bundle in bundles:
        for name in ("name", "source", "hidden_size"):
            its, firsts = (getattr(one.manifest.model, name) for one in (bundle, first))
            if its != firsts:
                raise ParityError(f"{bundle.folder} has another model than {first.folder}: {name} {its}, not {firsts}")
        if bundle.manifest.speculation.adapter != first.manifest.speculation.adapter:
            raise ParityError(f"{bundle.folder} has another adapter than {first.folder}")
        if not _same_tables(bundle, first):
            raise ParityError(
                f"{bundle.folder} has other drafting tables than {first.folder}; export both with one adapter and the "
                "same --num-streams"
            )
        if bundle.manifest.files[TOKENIZER_FILE].sha256 != first.manifest.files[TOKENIZER_FILE].sha256:
            raise ParityError(f"{bundle.folder} has another tokenizer than {first.folder}")
        if width not in bundle.spec().verify_widths:
            raise ParityError(f"{bundle.folder} has no width {width}; its widths are {bundle.spec().verify_widths}")


def _same_tables(one: Bundle, other: Bundle) -> bool:
    """Whether two bundles have the streams of one adapter. The other tables follow from the weights, an option or what
    was measured."""
    if not (one.manifest.speculation.num_streams or other.manifest.speculation.num_streams):
        return True  # drafts are look-ups
    tables, others = one.tables or {}, other.tables or {}
    return all(np.array_equal(tables.get(name, ()), others.get(name, ())) for name in ("gate", "stream_vocab"))


def write_text(backend: Backend, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The prompt and what the backend answers to it, plainly and greedily."""
    backend.truncate(0)
    loop = Loop(backend, list(prompt), GenerationConfig(max_new_tokens, speculative=False))
    for _ in loop.run():
        pass
    return loop.tokens


def replay(
    backend: Backend, drafter: Drafter, texts: Sequence[tuple[int, list[int]]], width: int, progress: Progress
) -> Replay:
    """Walk (prompt length, tokens) for each text."""
    found = Replay()
    for number, (prompt_length, tokens) in enumerate(texts):
        backend.truncate(0)
        drafter.reset()
        for position, accepted, differences in _walk(backend, drafter, width, tokens, prompt_length - 1):
            found.paths[number, position - prompt_length] = accepted
            found.choices += accepted
            found.differences += [Difference(number, at - prompt_length, gap) for at, gap in differences]
        progress()
    return found


def _walk(
    backend: Backend, drafter: Drafter, width: int, tokens: list[int], root: int
) -> Iterator[tuple[int, int, list[tuple[int, float]]]]:
    """Per pass: the position of the first token that it chose, how many it chose, and where it chose otherwise."""
    _prefill(backend, tokens[:root])
    while root < len(tokens) - 1:
        room = len(tokens) - 1 - root
        tree = drafter.draft(tokens[: root + 1], width, room - 1) if room > 1 else Tree.root(tokens[root])
        method = backend.spec.verify_method(len(tree)) if room > 1 else DECODE
        output = backend.run(method, tree.tokens, tree.positions(root), tree.ancestors(), want_logits=True)
        kept = output.kept.tolist()
        rows, differences = [0], []
        while True:
            right, index = tokens[root + len(rows)], kept.index(rows[-1])
            if int(output.best[index]) != right:
                differences.append((root + len(rows), _gap(output, index, right)))
            child = next((i for i in kept if i and tree.parents[i] == rows[-1] and tree.tokens[i] == right), None)
            if child is None or root + len(rows) == len(tokens) - 1:
                break
            rows.append(child)
        last = kept.index(rows[-1])
        drafter.learn(output, last)
        backend.commit(rows)
        if backend.spec.deferred and not output.carries_streams(last) and root + len(rows) < len(tokens) - 1:
            drafter.learn(backend.streams(last, tokens[root + len(rows)]), 0)
        yield root + 1, len(rows), differences
        root += len(rows)


def _gap(output: PassOutput, index: int, right: int) -> float:
    assert output.logits is not None, "logits were asked for"
    return float(output.logits[index].max() - output.logits[index][right])


def _prefill(backend: Backend, tokens: list[int]) -> None:
    rows = backend.spec.prefill_rows
    for start in range(0, len(tokens), rows):
        part = np.array(tokens[start : start + rows], np.int64)
        causal = np.tri(len(part), dtype=np.bool_)
        backend.run(PREFILL, part, np.arange(start, start + len(part)), causal)
        backend.commit(range(len(part)))


def decibels(bundle: Bundle) -> dict[str, float]:
    """The least signal-to-noise of logits over all methods, as the bundle's export measured it: of the emitted graphs
    against PyTorch on the same weights (`lowering`) and against the float32 model (`float32`).
    """
    if _REPORT not in bundle.manifest.files:
        return {}
    parity = json.loads(bundle.file(_REPORT).read_text())["parity"]
    return {
        name: min(row["snr_db"] for method, row in parity[name].items() if method != "streams")
        for name in ("lowering", "float32")
        if name in parity
    }
