"""Where a sequence's keys and values lie for ONNX Runtime: in the host's memory, or in that of an execution provider.

Both are bound once to each graph, so that no cache is copied in a pass, and take accepted rows in place. A layer with a
sliding window may have fewer positions than the context: position t is at t modulo their number. A convolution's caches
may have a different number of heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import BackendError

from .host import in_cache

Array = npt.NDArray[Any]
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Caches [1, Hkv, C, D], a key and a value per layer, of which the `top` last layers run on kept rows alone.

    `shapes` has the (Hkv, C) of each layer.
    """

    shapes: tuple[tuple[int, int], ...]
    top: int
    dim: int
    dtype: Any

    @property
    def lower(self) -> int:
        """How many caches lie below the top layers."""
        return 2 * (len(self.shapes) - self.top)


def targets_name(heads: int, positions: int) -> str:
    """The input of commit.onnx that says where rows go in caches of this shape."""
    return f"targets.{heads}x{positions}"


class Caches(Protocol):
    device: str  # of IO binding, where outputs may stay until someone asks for them; "": the host's memory

    def inputs(self, session: Any) -> list[tuple[Any, Array]]:
        """Caches among the inputs of a graph that lie in the host's memory."""
        ...

    def bind(self, session: Any, binding: Any) -> Any:
        """Bind the other caches and a graph's new rows; what is returned stands for these rows."""
        ...

    def write(self, new: Any, positions: slice, rows: list[int], places: list[int]) -> None:
        """Copy new rows of the last run: below the top layers they lie by `rows`, in these by `places`."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class HostCaches:
    """Lower and top layers are stored apart. In each, caches of the same shape are one array, and so are new rows with
    the same number of heads."""

    device = ""

    def __init__(self, layout: Layout) -> None:
        self._lower, self._dtype = layout.lower, layout.dtype
        shapes = [shape for shape in layout.shapes for _ in range(2)]
        self._heads = [heads for heads, _ in shapes]
        self._values: dict[int, Array] = {}
        # A commit is one copy for each group: its key in what `bind` returns, the indices of its caches in that array,
        # and the caches [n, Hkv, C, D].
        self._groups: list[tuple[tuple[bool, int], list[int], Array]] = []
        for key, members in self._by_part_and_heads().items():
            for shape in dict.fromkeys(shapes[i] for i in members):
                same = [i for i in members if shapes[i] == shape]
                caches = np.zeros((len(same), *shape, layout.dim), layout.dtype)
                self._values.update(zip(same, caches, strict=True))
                self._groups.append((key, [members.index(i) for i in same], caches))

    def _by_part_and_heads(self) -> dict[tuple[bool, int], list[int]]:
        """Indices of the caches, by whether they are in the top layers and by their heads."""
        found: dict[tuple[bool, int], list[int]] = {}
        for i, heads in enumerate(self._heads):
            found.setdefault((i >= self._lower, heads), []).append(i)
        return found

    def inputs(self, session: Any) -> list[tuple[Any, Array]]:
        return [(tensor, self._values[place(tensor.name)]) for tensor in session.get_inputs() if is_cache(tensor)]

    def bind(self, session: Any, binding: Any) -> dict[tuple[bool, int], Array]:
        new = {place(tensor.name): tensor for tensor in session.get_outputs() if is_new(tensor)}
        if all(tensor.name != "input_ids" for tensor in session.get_inputs()):  # a `streams` pass
            return {}
        bound = {}
        for key, members in self._by_part_and_heads().items():
            tensors = [new[i] for i in members]
            bound[key] = np.zeros((len(tensors), *tensors[0].shape[1:]), self._dtype)
            for tensor, array in zip(tensors, bound[key], strict=True):
                bind_array(tensor, array, binding.bind_output)
        return bound

    def write(self, new: dict[tuple[bool, int], Array], positions: slice, rows: list[int], places: list[int]) -> None:
        for key, members, caches in self._groups:
            is_top, _ = key
            taken = new[key][:, :, places if is_top else rows]
            caches[:, :, in_cache(positions, caches.shape[2])] = taken if len(members) == len(taken) else taken[members]

    def close(self) -> None:
        self._values, self._groups = {}, []


class DeviceCaches:
    """Caches and new rows in a provider's memory. `commit`, the session of commit.onnx, copies from these to those."""

    def __init__(self, commit: Any, layout: Layout, device: str) -> None:
        self.device, self._shapes = device, set(layout.shapes)
        names = [f"{layer}.{kind}" for layer in range(len(layout.shapes)) for kind in ("key", "value")]
        # Only a run makes memory there: the first one puts zeros into caches of zeros.
        self._values: dict[str, Any] = {}
        self._binding, self._commit = commit.io_binding(), commit
        empty = {shape: np.zeros((1, *shape, layout.dim), layout.dtype) for shape in self._shapes}
        for name in names:
            cache = empty[layout.shapes[int(name.partition(".")[0])]]
            self._binding.bind_cpu_input(f"past_key_values.{name}", cache)
            self._binding.bind_cpu_input(f"present.{name}", cache[:, :, :1])
            self._binding.bind_output(f"cache.{name}", device)
        self._run(slice(0, 1), [0], [0])
        self._values = dict(zip(names, self._binding.get_outputs(), strict=True))
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            self._binding.bind_ortvalue_output(f"cache.{name}", value)

    def inputs(self, session: Any) -> list[tuple[Any, Array]]:
        return []

    def bind(self, session: Any, binding: Any) -> tuple[Any, list[str]]:
        for tensor in session.get_inputs():
            if is_cache(tensor):
                binding.bind_ortvalue_input(tensor.name, self._values[tensor.name.removeprefix("past_key_values.")])
        for tensor in session.get_outputs():
            if is_new(tensor):
                binding.bind_output(tensor.name, self.device)
        return binding, [tensor.name for tensor in session.get_outputs() if is_new(tensor)]

    def write(self, new: tuple[Any, list[str]], positions: slice, rows: list[int], places: list[int]) -> None:
        binding, names = new  # its outputs begin with the new rows, which were bound first
        for name, value in zip(names, binding.get_outputs()[: len(names)], strict=True):
            self._binding.bind_ortvalue_input(name, value)
        self._run(positions, rows, places)

    def close(self) -> None:
        self._values, self._binding, self._commit = {}, None, None

    def _run(self, positions: slice, rows: list[int], places: list[int]) -> None:
        for name, values in (("rows", rows), ("places", places)):
            self._binding.bind_cpu_input(name, np.array(values, np.int64))
        for heads, count in self._shapes:
            targets = np.zeros((1, heads, len(rows), 3), np.int64)
            targets[..., 1] = np.arange(heads)[:, None]
            targets[..., 2] = np.arange(positions.start, positions.stop) % count
            self._binding.bind_cpu_input(targets_name(heads, count), targets)
        self._commit.run_with_iobinding(self._binding)


def is_cache(tensor: Any) -> bool:
    return bool(tensor.name.startswith("past_key_values."))


def is_new(tensor: Any) -> bool:
    return bool(tensor.name.startswith("present."))


def place(name: str) -> int:
    """past_key_values.3.value, present.3.value -> 7."""
    _, layer, kind = name.split(".")
    return 2 * int(layer) + ("key", "value").index(kind)


def bind_array(tensor: Any, array: Array, bind: Any) -> None:
    """Bind an input or output to an array of the host. BackendError where type or size differ."""
    if DTYPES.get(tensor.type) != array.dtype.type or np.prod(tensor.shape) != array.size:
        raise BackendError(f"{tensor.name} is {tensor.type} {tensor.shape}, which does not fit the other graphs")
    bind(tensor.name, "cpu", 0, array.dtype.type, tensor.shape, array.ctypes.data)
