"""The methods that `streamfuse research compare` compares: drafter, tree and acceptor of each, and what it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfuse.research.acceptors import (
    BlockwiseAcceptor,
    CertainAcceptor,
    Match,
    NamedAcceptor,
    SequoiaAcceptor,
    SpecInferAcceptor,
    SpecTrAcceptor,
    SpeculativeAcceptor,
    TopK,
    TypicalAcceptor,
)
from streamfuse.research.drafters.chain import AdaptiveExit, ChainDrafter
from streamfuse.research.drafters.drawn import DrawnTreeDrafter, SequencesDrafter
from streamfuse.research.drafters.model import DraftModel
from streamfuse.research.drafters.table import TableDrafter
from streamfuse.research.drafters.tree import TreeDrafter
from streamfuse.research.growth import ShapedDrafter, our_tree, parallel_tree, static_tree
from streamfuse.research.proposal import How
from streamfuse.research.trees import Shape, cartesian_shape
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.draft import Drafter, DraftTables
from streamfuse.runtime.reference.lookup import LookUpDrafter
from streamfuse.runtime.reference.ngram_table import NgramTable

STREAMS, MEDUSA, BLOCKWISE, SELF, DRAFT = "streams", "medusa", "blockwise", "self", "draft"
CALIBRATION, TABLES = "calibration", "tables"
SAME_TOKENS, SAME_DISTRIBUTION = "tokens", "distribution"  # what a lossless method promises
WIDTH = 8  # nodes verified at most, the root counted
BASELINE, TARGET = "plain", "target"
ONLINE_DRAFT, ONLINE_STREAMS = "draft model, online", "streams, online"
ONLINE = {ONLINE_DRAFT: "draft model, chain", ONLINE_STREAMS: "streams, ours"}  # rows that learn: as what each begins
STREAMS_OF = {  # names of the passes that give streams or heads, by bundle
    STREAMS: f"{TARGET}: streams",
    MEDUSA: "Medusa heads: streams",
    BLOCKWISE: "blockwise heads: streams",
}
_OWN, _LEVIATHAN = "this project", "Leviathan et al., 2023, arXiv 2211.17192"
_STREAMING, _MEDUSA = "Bhendawade et al., 2024, arXiv 2402.11131", "Cai et al., 2024, arXiv 2401.10774"
_STERN, _SELF = "Stern et al., 2018, arXiv 1811.03115", "Zhang et al., 2023, arXiv 2309.08168"


@dataclass(slots=True)
class Parts:
    """What the methods of one run are made of.

    Attributes:
        backends: engines by bundle: `STREAMS`, `MEDUSA`, `BLOCKWISE`, `SELF`; all have the target's own weights.
        tables: of the bundle with streams.
        draft: the small model of its own; None: not here.
        itself: the target without some of its sub-layers; None: not here.
        shapes: static trees by bundle, from calibration; empty: nothing was calibrated.
    """

    backends: Mapping[str, Backend]
    tables: DraftTables
    draft: DraftModel | None = None
    itself: DraftModel | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)

    @property
    def ngrams(self) -> NgramTable:
        """Of the tables; `chosen` leaves out what needs it where there is none."""
        assert self.tables.ngrams is not None
        return self.tables.ngrams

    def passes(self) -> Counter[str]:
        """How often the draft models ran since they were opened."""
        return sum((model.passes for model in (self.draft, self.itself) if model is not None), Counter())


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the comparison.

    Attributes:
        bundle: whose backend verifies.
        make: a drafter, of the run's parts and the request's sampling; None decodes plainly.
        acceptor: what decides.
        width: nodes verified at most, the root counted.
        needs: parts in addition to the bundle's backend: `DRAFT`, `CALIBRATION`, `TABLES`.
        sampled: whether it says something new only where texts are sampled (True), greedy (False), or both (None).
        reads_streams: whether the drafter reads streams (or heads), so that their pass is run.
    """

    name: str
    about: str
    source: str
    drafter: str
    tree: str
    make: Callable[[Parts, SamplingConfig], Drafter] | None
    acceptor: Callable[[], NamedAcceptor] = Match
    bundle: str = STREAMS
    width: int = WIDTH
    needs: tuple[str, ...] = ()
    sampled: bool | None = None
    reads_streams: bool = False

    @property
    def lossless(self) -> bool:
        return self.acceptor().lossless

    def promises(self, temperature: float) -> str | None:
        """What the text has of plain decoding's: its `SAME_TOKENS` (under a seed), its `SAME_DISTRIBUTION`, or None.

        Where a text is sampled, only sample and match takes the tokens that plain decoding would have drawn.
        """
        acceptor = self.acceptor()
        if not acceptor.lossless:
            return None
        return SAME_TOKENS if temperature == 0 or isinstance(acceptor, Match) else SAME_DISTRIBUTION


def _model(parts: Parts) -> DraftModel:
    assert parts.draft is not None, "a method that needs the draft model is left out without it"
    return parts.draft


def _itself(parts: Parts) -> DraftModel:
    assert parts.itself is not None, "self-speculation is left out where the bundle has no method `draft`"
    return parts.itself


def _streams(build: Callable[[Parts], Any]) -> Callable[[Parts, SamplingConfig], Drafter]:
    return lambda parts, _: ShapedDrafter(build(parts))


_BEST = _streams(lambda parts: parallel_tree)

METHODS: tuple[Method, ...] = (
    Method(BASELINE, "one token per pass", "-", "none", "-", None, width=1),
    Method(
        "streams, ours", "streams with the parent term", _OWN, "streams", "best first",
        _streams(lambda parts: our_tree(parts.tables)), needs=(TABLES,), reads_streams=True,
    ),
    Method(
        "streams, fixed 2x2 tree", "no parent term, the two best candidates of two streams: 7 nodes", _STREAMING,
        "streams", "full, 2 x 2", _streams(lambda parts: static_tree(cartesian_shape((2, 2, 2, 2), WIDTH))),
        reads_streams=True,
    ),
    Method("Medusa heads", "4 heads, tree from their live probabilities", _MEDUSA, "heads", "best first", _BEST,
           bundle=MEDUSA, reads_streams=True),
    Method("streams, Sequoia's tree", "no parent term, the best static tree for measured acceptance and passes",
           "Chen et al., 2024, arXiv 2402.12374", "streams", "Sequoia",
           _streams(lambda parts: static_tree(parts.shapes[STREAMS])), needs=(CALIBRATION,), reads_streams=True),
    Method("Medusa heads, calibrated tree", "the same heads, a static tree by the paper's greedy rule", _MEDUSA,
           "heads", "greedy, calibrated", _streams(lambda parts: static_tree(parts.shapes[MEDUSA])), bundle=MEDUSA,
           needs=(CALIBRATION,), reads_streams=True),
    Method("Medusa heads, typical acceptance", "the same, accepted by typical acceptance", _MEDUSA, "heads",
           "best first", _BEST, TypicalAcceptor, MEDUSA, reads_streams=True, sampled=True),
    Method("blockwise heads", "4 heads, a chain of each head's best token, exact", _STERN, "heads", "chain",
           _streams(lambda parts: static_tree(cartesian_shape((1, 1, 1, 1), WIDTH))), BlockwiseAcceptor, BLOCKWISE,
           reads_streams=True, sampled=False),
    Method("blockwise heads, top 2", "the same, accepted where the target's two best tokens have it", _STERN, "heads",
           "chain", _streams(lambda parts: static_tree(cartesian_shape((1, 1, 1, 1), WIDTH))),
           lambda: BlockwiseAcceptor(TopK(2)), BLOCKWISE, reads_streams=True, sampled=False),
    Method("draft model, chain", "a small model of its own, 4 tokens", _LEVIATHAN, "model", "chain",
           lambda parts, sampling: ChainDrafter(_model(parts), sampling, length=4), SpeculativeAcceptor,
           needs=(DRAFT,)),
    Method("draft model, tree", "the same model, a tree grown layer by layer", "Li et al., 2024, arXiv 2406.16858",
           "model", "EAGLE-2", lambda parts, sampling: TreeDrafter(_model(parts), sampling), CertainAcceptor,
           needs=(DRAFT,)),
    Method("draft model, SpecTr", "independent sequences, k-sequential selection",
           "Sun et al., 2023, arXiv 2310.15141", "model", "2 sequences of 3",
           lambda parts, sampling: SequencesDrafter(_model(parts), sampling), SpecTrAcceptor,
           needs=(DRAFT,), sampled=True),
    Method("draft model, SpecInfer", "independent draws, multi-step speculative sampling",
           "Miao et al., 2023, arXiv 2305.09781", "model", "branching 2, 1, 1",
           lambda parts, sampling: DrawnTreeDrafter(_model(parts), sampling, How.INDEPENDENT), SpecInferAcceptor,
           needs=(DRAFT,), sampled=True),
    Method("draft model, Sequoia", "draws without replacement", "Chen et al., 2024, arXiv 2402.12374", "model",
           "branching 2, 1, 1",
           lambda parts, sampling: DrawnTreeDrafter(_model(parts), sampling, How.WITHOUT_REPLACEMENT),
           SequoiaAcceptor, needs=(DRAFT,), sampled=True),
    Method("self-speculation", "the target without some sub-layers drafts, adaptive exit", _SELF, "itself", "chain",
           lambda parts, sampling: ChainDrafter(_itself(parts), sampling, AdaptiveExit()), SpeculativeAcceptor,
           bundle=SELF),
    Method("prompt look-up", "what followed the last tokens before", "Saxena, 2023", "text", "best first",
           lambda parts, _: LookUpDrafter()),
    Method("n-gram table", "what the model usually says after up to five tokens", _OWN, "table", "best first",
           lambda parts, _: TableDrafter(parts.ngrams), needs=(TABLES,)),
)  # fmt: skip


def named(names: Sequence[str] | None) -> list[Method]:
    """The methods of these names, and the baseline; None: all. ValueError for a name that no method has."""
    known = [method.name for method in METHODS]
    for name in names or ():
        if name not in known:
            raise ValueError(f"--methods: {name!r} is none of {'; '.join(known)}")
    return [method for method in METHODS if names is None or method.name in (*names, BASELINE)]


def chosen(parts: Parts, temperature: float, names: Sequence[str] | None = None) -> list[Method]:
    """The methods that can run with these parts at this temperature, in the order of `METHODS`.

    ValueError for a name that no method has.
    """
    here = {
        name for name, there in ((DRAFT, parts.draft), (CALIBRATION, parts.shapes), (TABLES, parts.tables)) if there
    }
    return [
        method
        for method in named(names)
        if method.bundle in parts.backends
        and here.issuperset(method.needs)
        and (method.bundle != SELF or parts.itself is not None)
        and (method.sampled is None or method.sampled == (temperature > 0))
        and (method.name != "n-gram table" or parts.tables.ngrams is not None)
    ]
