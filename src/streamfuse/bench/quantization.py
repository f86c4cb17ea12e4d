"""What each way to store the weights costs: error and size per part, perplexity, and what it does to the drafts.

Weights are rounded and given back as floats in PyTorch, activations stay in float32, so a choice is judged in seconds,
before anything is exported. The arithmetic of a target comes on top (docs/export.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.export.integers import to_q4_1, to_q8_0
from streamfuse.export.schemes import GRIDS, PARTS, Schemes, parse_scheme
from streamfuse.model.low_rank import PROJECTIONS, projection, projections_of
from streamfuse.model.streams import StreamFused
from streamfuse.train.evaluate import draft_tables, proposals, replay_proposals
from streamfuse.train.formats import Example

OWN_GRID = {part: Schemes().of(part) for part in PARTS}
_GRID_BITS = {"q4_1": 5.0, "q8_0": 8.5}  # per weight, with d and m
_DTYPE = "float16"  # of scales and of what stays a float
_TOP_K = 16

Choice = Mapping[str, str]  # part -> scheme: a grid of the kernels, or as `streamfuse export --scheme` takes it


@dataclass(frozen=True, slots=True)
class Texts:
    """What is measured on: perplexity over every text, from `start` on; acceptance over those that the model wrote."""

    own: Sequence[Example]
    other: Sequence[Example]


def parse_choice(text: str) -> dict[str, str]:
    """`PART=SCHEME,...`; a part that is not named keeps the grid of the kernels. `float` alone rounds nothing.

    Raises:
        OptionError: a part or scheme that there is not.
    """
    if text == "float":
        return dict.fromkeys(PARTS, "float")
    choice = dict(OWN_GRID)
    for item in filter(None, text.split(",")):
        part, _, scheme = item.partition("=")
        if scheme not in GRIDS:
            parse_scheme(part, scheme, 32, _DTYPE)
        choice[part] = scheme
    return choice


def rounded(weight: Tensor, scheme: str) -> tuple[Tensor, float]:
    """`weight` [N, K] as it comes back from storage, and the bits that a weight takes there, scales included.

    Affine: the grid reaches from the least to the greatest weight and holds zero, as ONNX Runtime and coremltools have
    it; symmetric: the greatest magnitude lies on the outermost integer of either sign.

    Raises:
        ValueError: the group size does not divide K.
    """
    if scheme == "q4_1":
        return to_q4_1(weight).dequantized(), _GRID_BITS[scheme]
    if scheme == "q8_0":
        return to_q8_0(weight).dequantized(), _GRID_BITS[scheme]
    stored = parse_scheme("mlp", scheme, 32, _DTYPE)
    if stored.bits >= 16:
        return weight, float(stored.bits)
    size = stored.group_size or weight.shape[1]
    if weight.shape[1] % size:
        raise ValueError(f"{scheme}: {size} does not divide the {weight.shape[1]} inputs of a weight")
    groups = weight.float().unflatten(1, (-1, size))
    top = 2 ** (stored.bits - 1) - 1
    if stored.symmetric:
        scale = (groups.abs().amax(-1, keepdim=True) / top).half().float().clamp(min=2**-24)
        values = (groups / scale).round().clamp(-top, top) * scale
        return values.flatten(1), stored.bits + 16 / size
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / (2 * top + 1)).half().float().clamp(min=2**-24)
    zero = (-low / scale).round()
    values = ((groups / scale).round() + zero).clamp(0, 2 * top + 1) - zero
    return (values * scale).flatten(1), stored.bits + (16 + stored.bits) / size


class Bench:
    """Measures choices on one model, one after another; in between the model has its own weights."""

    def __init__(self, model: StreamFused, texts: Texts, width: int = 16) -> None:
        self.model, self.texts, self.width = model.merged(), texts, width
        self._head = self.model.base.lm_head.weight
        self._tables = draft_tables(self.model)  # the host's, never rounded
        self._on_grid: set[tuple[int, str]] = set()  # weights that a grid gives back as they are

    @torch.inference_mode()
    def measure(self, choice: Choice) -> dict[str, Any]:
        """The figures of one choice.

        Returns `parts` (part -> snr_db, None where nothing changes, and bytes), `bytes`, `perplexity` by text,
        `best_token` (share of the own text's tokens that are still the likeliest) and `call_reduction` (tokens per
        pass by replay of the own text). What has no text is left out, and `call_reduction` without streams.

        Raises:
            ValueError: a group size does not divide a weight.
        """
        with ExitStack() as stack:
            parts = {part: self._store(stack, part, choice[part]) for part in PARTS[:-1]}
            found: dict[str, Any] = {"perplexity": {}}
            for name, texts in (("own", self.texts.own), ("other", self.texts.other)):
                if texts:
                    found["perplexity"][name], agreed = self._read(texts)
                    found |= {"best_token": agreed} if name == "own" else {}
            if self.model.base.config.tie_word_embeddings and choice["head"] == choice["embedding"]:
                parts["head"]["bytes"] = 0  # one table for both
            # The rows of streams are rows of the head; nothing but they use the head from here on.
            parts["streams"] = self._store(stack, "streams", choice["streams"])
            if self.texts.own and self.model.streams_config.num_streams:
                proposed = proposals(self.model, self.texts.own, _TOP_K)
                replay = replay_proposals(proposed, self._tables, (self.width,))[self.width]
                found["call_reduction"] = replay.call_reduction_ratio
        return {"parts": parts, "bytes": sum(row["bytes"] for row in parts.values()), **found}

    def _store(self, stack: ExitStack, part: str, scheme: str) -> dict[str, Any]:
        """Round a part until the stack unwinds. A layer's weights are replaced, so that others that share them stay."""
        signal = noise = bits = 0.0
        for layer in self._layers(part):
            exact = (self._head if part == "streams" else layer.weight).data
            weight, each = self._rounded(exact, scheme)
            bits += each * (len(self.model.stream_vocab) if part == "streams" else len(weight)) * weight.shape[1]
            signal += float(exact.pow(2).sum())
            noise += float((weight - exact).pow(2).sum())
            stack.callback(setattr, layer, "weight", layer.weight)
            layer.weight = nn.Parameter(weight, requires_grad=False)
        return {"snr_db": 10 * math.log10(signal / noise) if noise else None, "bytes": round(bits / 8)}

    def _layers(self, part: str) -> Iterator[nn.Embedding | nn.Linear]:
        base = self.model.base
        if part == "embedding":
            yield base.embed_tokens
        elif part in ("head", "streams"):
            yield base.lm_head
        else:
            names = PROJECTIONS[:4] if part == "attention" else PROJECTIONS[4:]
            for block in base.blocks:
                yield from (projection(block, name) for name in projections_of(block) if name in names)
            if part == "attention":
                yield from (gate for block in base.blocks for gate in block.gate_projections)

    def _rounded(self, weight: Tensor, scheme: str) -> tuple[Tensor, float]:
        """`rounded`, remembering which weights lie on a grid: to find them there takes the longest."""
        key = (weight.data_ptr(), scheme)
        if key in self._on_grid:
            return weight, _GRID_BITS[scheme]
        found, bits = rounded(weight, scheme)
        if scheme in GRIDS and torch.equal(found, weight):
            self._on_grid.add(key)
        return found, bits

    def _read(self, texts: Sequence[Example]) -> tuple[float, float]:
        """Perplexity over the texts from their start on, and the share of tokens that are the likeliest."""
        surprise, agreed, count = 0.0, 0, 0
        for text in texts:
            ids = torch.tensor([text.input_ids])
            logits = self.model.base(ids[:, :-1])[0, text.start - 1 :].float()
            wanted = ids[0, text.start :]
            surprise += float(F.cross_entropy(logits, wanted, reduction="sum"))
            agreed += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        return math.exp(surprise / count), agreed / count
