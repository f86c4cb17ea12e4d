"""New weights for an exported program without a new export: the bytes of its constants are replaced where they lie.

A graph says how weights are used, and they lie in the file as they were packed. So weights of the same shapes, packed
in the same way, go to the same places; everything else of the file stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_LEAST_BYTES = 256  # shorter ones might stand anywhere in a file by chance


class ReplaceError(ValueError):
    """Weights that are not those of the program; the message names the tensor."""


class Replaceable:
    """A .pte file and where each of its weights lies.

    Args:
        program: the file.
        weights: tensors by name as they are in it, for example the state of `export.weights.Weights`; short ones are
            left as they are.

    Raises:
        ReplaceError: a tensor is not in the file, or is there twice with other weights to come.
        OSError: the file cannot be read.
    """

    def __init__(self, program: Path, weights: Mapping[str, Tensor]) -> None:
        self._bytes = program.read_bytes()
        self._places: dict[str, tuple[int, int]] = {}
        for name, tensor in weights.items():
            own = _bytes_of(tensor)
            if len(own) < _LEAST_BYTES:
                continue
            place = self._bytes.find(own)
            if place < 0:
                raise ReplaceError(f"{program.name} does not hold {name}; it was exported from other weights")
            self._places[name] = place, len(own)

    def write(self, path: Path, weights: Mapping[str, Tensor]) -> list[str]:
        """The program with these weights, to another file; the names of those that changed.

        ReplaceError for a tensor of another size, or two different ones for one place.
        """
        found, changed, taken = bytearray(self._bytes), [], dict[int, bytes]()
        for name, (place, size) in self._places.items():
            own = _bytes_of(weights[name])
            if len(own) != size:
                raise ReplaceError(f"{name} has {len(own)} bytes, and the program has room for {size}")
            if taken.setdefault(place, own) != own:
                raise ReplaceError(f"{name} shares its place in the program with another tensor, which is different")
            if found[place : place + size] != own:
                found[place : place + size] = own
                changed.append(name)
        path.write_bytes(found)
        return changed


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""
