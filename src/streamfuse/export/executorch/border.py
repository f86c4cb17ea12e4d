"""A method around a delegate whose processor has narrower types: what stays outside of the delegate.

The delegate knows no int64 and no truth values, and has floats of one type. Ids, masks and the few numbers that a host
reads are converted at the border. Caches and new rows are not: they have the delegate's type in the method's signature,
so that an engine binds them once.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..graphs import Method, Plain, Streams, Verify
from .delegate import DelegateTarget

_WANT_LOGITS = 4  # its place among a method's inputs
_KEPT = 2  # among the outputs of a verify method
_TOLD = 3  # the place of the next token among those of a pass of streams that is told it
_WIDE = {torch.int32: torch.int64, torch.float16: torch.float32}


def narrowed(tensor: Tensor, floats: torch.dtype) -> Tensor:
    """int64 as int32; truth values, as ones and zeros, and float32 as `floats`."""
    kinds = {torch.int64: torch.int32, torch.bool: floats, torch.float32: floats}
    return tensor.to(kinds.get(tensor.dtype, tensor.dtype))


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(_WIDE.get(tensor.dtype, tensor.dtype))


def taken(method: Method, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs that a method's graph uses, of its signature's: a delegate is given no others."""
    if not isinstance(method, Streams):
        inputs = (*inputs[:_WANT_LOGITS], *inputs[_WANT_LOGITS + 1 :])
    # A prefill chunk ends with the last layer's keys and values, before that layer's caches are read.
    return inputs[:-2] if isinstance(method, Plain) and method.head is None else inputs


def keeps_all(method: Method) -> bool:
    """Whether a method verifies without leaving out or moving a node. Then what is kept is known without the graph."""
    return isinstance(method, Verify) and method.survivors is None


def results_of(method: Method) -> list[str]:
    """Names of the outputs that a host reads, before new keys and values; streams give columns, not ids."""
    names = [] if isinstance(method, Streams) or method.head is None else ["logits", "best"]
    if isinstance(method, Verify):
        names.append("kept")
    streams = isinstance(method, Streams) or (isinstance(method, Verify) and method.carrying)
    return names + (["columns", "log_probs"] if streams else [])


class BorderTarget(DelegateTarget):
    """A target whose delegate gives columns for the streams' ids."""

    def quantize(self) -> dict[str, Method] | None:
        methods = super().quantize()
        if methods is None:
            return None
        ids = self.model.stream_vocab
        return {name: cast("Method", WithIds(method, ids)) for name, method in methods.items()}


class WithIds(nn.Module):
    """A method whose streams give columns, with their ids instead: what PyTorch runs."""

    ids: Tensor  # int64 [S]

    def __init__(self, method: Method, ids: Tensor) -> None:
        super().__init__()
        self.method, self.results = method, results_of(method)
        self.register_buffer("ids", ids)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = list(self.method(*inputs))
        if "columns" in self.results:
            place = self.results.index("columns")
            outputs[place] = self.ids[outputs[place].long()]
        return tuple(outputs)


class Columns(nn.Module):
    """Logits [R, S] -> int32 columns [R, k] of the best, log-probabilities [R, k]; `Border` looks the ids up."""

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, columns = torch.topk(torch.log_softmax(logits, dim=1), self.top_k)
        return columns.to(torch.int32), log_probs


class Lookups(nn.Module):
    """What a method looks up in tables by token, which stays outside of a delegate that would copy the tables.

    ids [R] -> rows [R, n], those of all tables side by side.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.place = _TOLD if isinstance(method, Streams) else 0
        known = ((name, getattr(method, name, None)) for name in ("embedding", "candidates"))
        self.tables = nn.ModuleDict({name: table for name, table in known if table is not None})

    def forward(self, ids: Tensor) -> Tensor:
        rows = [table(ids) for table in self.tables.values()]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def given(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A method's inputs with rows in the place of ids."""
        if not self.tables:
            return inputs
        return (*inputs[: self.place], self(inputs[self.place]), *inputs[self.place + 1 :])

    def taken_out(self, method: Method) -> Method:
        """The method over such inputs, sharing everything else."""
        inner = copy.copy(method)
        inner._modules = dict(method._modules)
        for i, name in enumerate(self.tables):
            setattr(inner, name, _Part(i, len(self.tables)))
        return inner


class _Part(nn.Module):
    """In the place of a table: its columns of rows that were looked up."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        self.index, self.count = index, count

    def forward(self, rows: Tensor) -> Tensor:
        return rows if self.count == 1 else rows.chunk(self.count, 1)[self.index]


class Narrow(nn.Module):
    """A method on the processor's types, over what `taken` gives: the delegate. `count`: inputs of its signature."""

    def __init__(self, method: Method, count: int) -> None:
        super().__init__()
        self.method, self.count = method, count
        self.streams, self.keeps_all = isinstance(method, Streams), keeps_all(method)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given: list[Tensor | None] = list(inputs)
        if not self.streams:
            given.insert(_WANT_LOGITS, None)
        outputs = list(self.method(*given, *[None] * (self.count - len(given))))
        if self.keeps_all:
            del outputs[_KEPT]
        return tuple(output.to(torch.int32) if output.dtype == torch.int64 else output for output in outputs)


class Border(nn.Module):
    """A method's signature around the delegate.

    Args:
        inner: the delegate.
        ids: int64 [S], of the columns that streams choose from.
        floats: the type of the delegate's floats.
        order: which of the outputs of `Narrow` each output of the delegate is; None: they are in order.
        lookups: what is looked up before it.
    """

    ids: Tensor  # int64 [S, 1]
    rows: Tensor  # int64 [T]

    def __init__(
        self,
        inner: nn.Module,
        method: Method,
        ids: Tensor,
        floats: torch.dtype,
        order: list[int] | None = None,
        lookups: Lookups | None = None,
    ) -> None:
        super().__init__()
        self.inner, self.floats, self.order, self.lookups = inner, floats, order, lookups
        self.taken, self.keeps_all = partial(taken, method), keeps_all(method)
        names = results_of(method)
        self.results = len(names)
        self.hidden = not isinstance(method, Streams) and bool(method.gives_hidden)  # the last output, for `streams`
        self.columns = names.index("columns") if "columns" in names else None
        if self.columns is not None:
            self.register_buffer("ids", ids.unsqueeze(1))
        if isinstance(method, Verify):
            self.register_buffer("rows", torch.arange(method.rows))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = self.taken(inputs if self.lookups is None else self.lookups.given(inputs))
        outputs = list(self.inner(*(narrowed(tensor, self.floats) for tensor in given)))
        if self.order is not None:
            found = dict(zip(self.order, outputs, strict=True))
            outputs = [found[place] for place in range(len(found))]
        if self.keeps_all:
            outputs.insert(_KEPT, inputs[1] * 0 + self.rows)  # no constant: an engine binds what a method gives
        for place in (*range(self.results), *((len(outputs) - 1,) if self.hidden else ())):
            outputs[place] = _widened(outputs[place])
        if self.columns is not None:
            outputs[self.columns] = F.embedding(outputs[self.columns], self.ids).squeeze(-1)
        return tuple(outputs)
