"""Acceptors of the literature. Each has a `name` and a flag `lossless`.

| module | methods |
| --- | --- |
| `base` | match (the runtime's); shared code |
| `sequential` | speculative sampling, SpecInfer, Sequoia, EAGLE-2's children |
| `spectr` | k-sequential selection |
| `transport` | the optimal plan, for small vocabularies (SciPy) |
| `typical`, `blockwise` | lossy, by a test of each token (`longest`) |
| `exact` | the exact results of an acceptor at a node: distribution, acceptance and loss, without sampling error |
"""

from streamfuse.research.acceptors.base import DrawAcceptor, Match, NamedAcceptor, Verdict
from streamfuse.research.acceptors.blockwise import BlockwiseAcceptor, Exact, TopK, Within
from streamfuse.research.acceptors.sequential import (
    CertainAcceptor,
    SequoiaAcceptor,
    SpecInferAcceptor,
    SpeculativeAcceptor,
)
from streamfuse.research.acceptors.spectr import SpecTrAcceptor
from streamfuse.research.acceptors.transport import TransportAcceptor
from streamfuse.research.acceptors.typical import TypicalAcceptor

__all__ = [
    "BlockwiseAcceptor",
    "CertainAcceptor",
    "DrawAcceptor",
    "Exact",
    "Match",
    "NamedAcceptor",
    "SequoiaAcceptor",
    "SpecInferAcceptor",
    "SpecTrAcceptor",
    "SpeculativeAcceptor",
    "TopK",
    "TransportAcceptor",
    "TypicalAcceptor",
    "Verdict",
    "Within",
]
