"""How many tokens a pass brings: a bundle is run, an adapter that is not exported yet is replayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamfuse.api import Model
from streamfuse.bench.quality.scores import quality
from streamfuse.bench.shared.systems import NO_DEFAULTS, emitted_tokens, tokens_after_first_pass
from streamfuse.bench.shared.turns import turns
from streamfuse.bench.tasks.prompts import none_fits
from streamfuse.runtime.reference.watch import Pass
from streamfuse.runtime.text import Tokenizer

if TYPE_CHECKING:
    from streamfuse.model.streams import StreamFused
    from streamfuse.train.evaluate import Replay
    from streamfuse.train.formats import Example, Sample

_MAX_DEPTH = 64  # a tree's nodes at deeper levels are not counted by depth
_MAX_RANKS = 8  # ranks from here on are counted as one
_REPLAY_BATCH = 64  # answers written together, in sequences

Progress = Callable[[int], None]  # called with the number of samples done since


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """`width` nodes per tree, root counted; temperature 0 is greedy; `plain` decodes everything plainly too."""

    width: int
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    plain: bool = True


@dataclass(slots=True)
class Tally:
    """Sums over answers."""

    answers: int = 0
    tokens: int = 0  # delivered ones, and the stop tokens that ended texts
    later_tokens: int = 0  # without those of each answer's first pass, for which streams have not drafted
    passes: int = 0  # of the target, prompt passes not counted
    equal: int = 0  # answers whose plain text has the same tokens
    proposed: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_MAX_DEPTH, np.int64))
    accepted: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((_MAX_DEPTH, _MAX_RANKS), np.int64))

    def add_answer(self, passes: Sequence[Pass], tokens: int) -> None:
        """Add an answer of the runtime: the depth of each pass's tree, and the rank among its siblings of each
        accepted node."""
        for one in passes:
            self.proposed[: one.depth] += 1
            for depth, row in enumerate(one.walk_rows[1 : one.delivered + 1][:_MAX_DEPTH]):
                rank = one.parents[:row].count(one.parents[row])
                self.accepted[depth, min(rank, _MAX_RANKS - 1)] += 1
        self.answers, self.passes = self.answers + 1, self.passes + len(passes)
        self.tokens += tokens
        self.later_tokens += tokens_after_first_pass(tokens, [one.delivered for one in passes])

    def add_replay(self, replay: Replay, answers: int) -> None:
        """Replayed answers; `replay` leaves out the first token of each and the pass that it comes from."""
        depth, ranks = replay.accepted_by_rank.shape
        self.answers, self.tokens = self.answers + answers, self.tokens + replay.tokens + answers
        self.later_tokens, self.passes = self.later_tokens + replay.tokens, self.passes + replay.calls + answers
        self.proposed[:depth] += np.asarray(replay.proposed)
        self.accepted[:depth, :ranks] += replay.accepted_by_rank

    def add(self, other: Tally) -> None:
        """Another tally's sums."""
        self.answers, self.tokens = self.answers + other.answers, self.tokens + other.tokens
        self.later_tokens += other.later_tokens
        self.passes, self.equal = self.passes + other.passes, self.equal + other.equal
        self.proposed += other.proposed
        self.accepted += other.accepted

    def figures(self) -> dict[str, Any]:
        """The ratios, keys as in docs/bench.md."""
        depths = int(np.count_nonzero(self.proposed))
        shares = self.accepted[:depths] / np.maximum(self.proposed[:depths, None], 1)
        return {
            "answers": self.answers,
            "tokens": self.tokens,
            "target_forward_passes": self.passes,
            "call_reduction_ratio": self.later_tokens / max(self.passes - self.answers, 1),
            "mean_accepted_tokens": self.tokens / max(self.passes, 1),
            "acceptance_per_depth": shares.sum(axis=1).tolist(),
            "acceptance_per_rank": shares.tolist(),
        }


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was measured; `skipped` samples are too long for the context."""

    tallies: dict[str, Tally]  # by the samples' source
    texts: list[tuple[Sample, str]]  # the last answer to each sample
    skipped: int
    plain: bool

    def to_dict(self) -> dict[str, Any]:
        """The object of `--json`."""
        total = Tally()
        for tally in self.tallies.values():
            total.add(tally)
        by_source = {source: tally.figures() for source, tally in self.tallies.items()}
        return {
            "samples": len(self.texts),
            "skipped": self.skipped,
            **total.figures(),
            "equal": total.equal / max(total.answers, 1) if self.plain else None,
            "quality": quality([sample for sample, _ in self.texts], [text for _, text in self.texts]),
            "sources": by_source if len(by_source) > 1 else {},
        }


def measure_bundle(
    model: Model, samples: Sequence[Sample], settings: AcceptanceSettings, progress: Progress
) -> Acceptance:
    """Answer every turn of the samples with trees of one width, and plainly, on one session. PromptsError where no
    first turn leaves room for its answer."""
    # A sequence of its own, because `Model.stream` does not show single passes, and the statistics of an answer have
    # the shares of accepted drafts per depth and per rank, but not both together.
    session = model.session()
    asked = {
        "max_new_tokens": settings.max_new_tokens, "temperature": settings.temperature, "seed": settings.seed,
        **NO_DEFAULTS,
    }  # fmt: skip
    config, plainly = model.config(**asked, width=settings.width), model.config(**asked, speculative=False)
    room = model.context_length - settings.max_new_tokens
    tallies: dict[str, Tally] = defaultdict(Tally)
    texts = []
    for sample in samples:
        last = None
        for prompt_ids, answered in turns(sample, model.tokenizer):
            if len(prompt_ids) > room:
                break
            tally = tallies[sample.kind]
            passes: list[Pass] = []
            session.reset()
            generation = session.generate(prompt_ids, config, passes.append)
            last = generation.finish()
            facts = generation.statistics
            tally.add_answer(passes, emitted_tokens(facts.to_dict()))
            if settings.plain:
                session.reset()
                plain = session.generate(prompt_ids, plainly)
                plain.finish()
                tally.equal += plain.token_ids == generation.token_ids
            answered(generation.token_ids)
        if last is not None:
            texts.append((sample, last))
        progress(1)
    if not texts:
        raise none_fits(settings.max_new_tokens, model.context_length)
    return Acceptance(dict(tallies), texts, len(samples) - len(texts), settings.plain)


def measure_adapter(
    model: StreamFused, text: Tokenizer, samples: Sequence[Sample], settings: AcceptanceSettings, progress: Progress
) -> Acceptance:
    """Replay of the model's own greedy answers to the first turns, in PyTorch; every drafted node is verified.
    PromptsError as `measure_bundle`."""
    from streamfuse.train.evaluate import own_text, replay
    from streamfuse.train.readers import encode_prompt

    prompts = sorted(((encode_prompt(sample, text), sample) for sample in samples), key=lambda pair: len(pair[0]))
    room = model.base.config.max_position_embeddings - settings.max_new_tokens
    fitting = [pair for pair in prompts if len(pair[0]) <= room]
    if not fitting:
        raise none_fits(settings.max_new_tokens, model.base.config.max_position_embeddings)
    tallies: dict[str, Tally] = defaultdict(Tally)
    texts = []
    for start in range(0, len(fitting), _REPLAY_BATCH):
        batch = fitting[start : start + _REPLAY_BATCH]
        answers = own_text(model, [prompt for prompt, _ in batch], settings.max_new_tokens)
        by_kind: dict[str, list[Example]] = defaultdict(list)
        for (_, sample), answer in zip(batch, answers, strict=True):
            by_kind[sample.kind].append(answer)
            texts.append((sample, text.decode(answer.input_ids[answer.start :])))
        for kind, examples in by_kind.items():
            result = replay(model, examples, (settings.width,))[settings.width]
            tallies[kind].add_replay(result, len(examples))
            progress(len(examples))
    return Acceptance(dict(tallies), texts, len(samples) - len(texts), plain=False)
