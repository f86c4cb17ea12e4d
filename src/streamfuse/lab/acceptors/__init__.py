"""Acceptors of the literature. Each says its `name`, and whether it is `lossless`.

| module | methods |
| --- | --- |
| `base` | match (the runtime's); what the others share |
| `sequential` | speculative sampling, SpecInfer, Sequoia, EAGLE-2's children |
| `spectr` | k-sequential selection |
| `transport` | the optimal plan, for small vocabularies (SciPy) |
| `typical`, `blockwise` | lossy, by a test of each token (`longest`) |
| `exact` | what any of them does at a node: its distribution, acceptance and loss, without sampling error |
"""

from streamfuse.lab.acceptors.base import DrawAcceptor, Match, NamedAcceptor, Verdict
from streamfuse.lab.acceptors.blockwise import BlockwiseAcceptor, Exact, TopK, Within
from streamfuse.lab.acceptors.sequential import (
    CertainAcceptor,
    SequoiaAcceptor,
    SpecInferAcceptor,
    SpeculativeAcceptor,
)
from streamfuse.lab.acceptors.spectr import SpecTrAcceptor
from streamfuse.lab.acceptors.transport import TransportAcceptor
from streamfuse.lab.acceptors.typical import TypicalAcceptor

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
