"""What the heap of this process holds: unlike resident memory, free memory that was not returned does not count."""

from __future__ import annotations

import ctypes
import gc

_NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Facts(ctypes.Structure):
    """mallinfo2 of malloc.h."""

    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


def heap_bytes() -> int | None:
    """Bytes in use, of all threads, after Python's garbage was collected; None where the C library is not glibc 2.33 or
    newer. Python's own small objects are not in this heap."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Facts
    gc.collect()
    facts = mallinfo2()
    return int(facts.uordblks + facts.hblkhd)
