"""The part of a method outside of its delegate, for a processor with narrower types.

The delegate has no int64, no bool and only one float type. Ids, masks and the few numbers that the host reads are
converted before and after it. Caches and new rows are not: in the method's signature they have the delegate's type, so
that an engine binds them once.
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

_WANT_LOGITS = 4  # its index among the inputs of a method
_KEPT = 2  # its index among the outputs of a verify method
_NEXT_TOKEN = 3  # its index among the inputs of a `streams` method that is conditioned on it
_WIDE = {torch.int32: torch.int64, torch.float16: torch.float32}


def narrowed(tensor: Tensor, floats: torch.dtype) -> Tensor:
    """int64 to int32; bool (as ones and zeros) and float32 to `floats`."""
    kinds = {torch.int64: torch.int32, torch.bool: floats, torch.float32: floats}
    return tensor.to(kinds.get(tensor.dtype, tensor.dtype))


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(_WIDE.get(tensor.dtype, tensor.dtype))


def taken(method: Method, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those inputs of the signature that the method's graph uses; a delegate gets no others."""
    if not isinstance(method, Streams):
        inputs = (*inputs[:_WANT_LOGITS], *inputs[_WANT_LOGITS + 1 :])
    # A prefill chunk ends with the last layer's keys and values, before that layer's caches are read.
    return inputs[:-2] if isinstance(method, Plain) and method.head is None else inputs


def keeps_all(method: Method) -> bool:
    """Whether a method verifies without pruning or moving a node, so that `kept` is known without the graph."""
    return isinstance(method, Verify) and method.survivors is None


def results_of(method: Method) -> list[str]:
    """Names of the outputs that the host reads, which precede new keys and values; streams yield columns, not ids."""
    names = [] if isinstance(method, Streams) or method.head is None else ["logits", "best"]
    if isinstance(method, Verify):
        names.append("kept")
    streams = isinstance(method, Streams) or (isinstance(method, Verify) and method.carrying)
    return names + (["columns", "log_probs"] if streams else [])


class BorderTarget(DelegateTarget):
    """A target whose delegate returns columns of the stream vocabulary instead of token ids."""

    def quantize(self) -> dict[str, Method] | None:
        methods = super().quantize()
        if methods is None:
            return None
        ids = self.model.stream_vocab
        return {name: cast("Method", WithIds(method, ids)) for name, method in methods.items()}


class WithIds(nn.Module):
    """Converts the columns of a method's streams to token ids, for running it in PyTorch."""

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
    """Table look-ups by token, kept outside of the delegate, which would copy the tables.

    ids [R] -> rows [R, n], the rows of all tables concatenated.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.place = _NEXT_TOKEN if isinstance(method, Streams) else 0
        known = ((name, getattr(method, name, None)) for name in ("embedding", "candidates"))
        self.tables = nn.ModuleDict({name: table for name, table in known if table is not None})

    def forward(self, ids: Tensor) -> Tensor:
        rows = [table(ids) for table in self.tables.values()]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def given(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A method's inputs, with rows instead of ids."""
        if not self.tables:
            return inputs
        return (*inputs[: self.place], self(inputs[self.place]), *inputs[self.place + 1 :])

    def taken_out(self, method: Method) -> Method:
        """A shallow copy of the method that takes such inputs."""
        inner = copy.copy(method)
        inner._modules = dict(method._modules)
        for i, name in enumerate(self.tables):
            setattr(inner, name, _Part(i, len(self.tables)))
        return inner


class _Part(nn.Module):
    """Replaces a table: selects its columns from the rows that were looked up."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        self.index, self.count = index, count

    def forward(self, rows: Tensor) -> Tensor:
        return rows if self.count == 1 else rows.chunk(self.count, 1)[self.index]


class Narrow(nn.Module):
    """The delegate: a method in the processor's types, on the inputs of `taken`. `count`: inputs of its signature."""

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
    """Wraps the delegate in the method's signature.

    Args:
        inner: the delegate.
        ids: int64 [S], token ids of the columns that streams choose from.
        floats: the delegate's float type.
        order: for each output of the delegate, its index among the outputs of `Narrow`; None: the same order.
        lookups: table look-ups before the delegate.
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
            outputs.insert(
                _KEPT, inputs[1] * 0 + self.rows
            )  # not a constant, so that an engine can bind it as an output
        for place in (*range(self.results), *((len(outputs) - 1,) if self.hidden else ())):
            outputs[place] = _widened(outputs[place])
        if self.columns is not None:
            outputs[self.columns] = F.embedding(outputs[self.columns], self.ids).squeeze(-1)
        return tuple(outputs)
