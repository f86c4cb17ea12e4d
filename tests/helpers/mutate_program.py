"""Opens and runs damaged copies of a .pte, each in this process: what the engine must survive.

    python tests/helpers/mutate_program.py PROGRAM FOLDER SEED FIRST COUNT

Prints the number of each copy before it is tried, so that whoever watches knows which one ended the process, and its
fate after it. One copy is made again with COUNT 1. Used by tests/kernels/test_kernels_damaged.py.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session

NUMBERS = (0, 1, 2, 4, 8, 16, 64, 255, 4096, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4)
TOKENS = 12


def damaged(whole: bytes, seed: int, number: int) -> bytes:
    """Copy `number`: one to three changes in the part that says what the program does; weights say nothing."""
    choose = random.Random(f"{seed} {number}")
    data = bytearray(whole)
    # ExecuTorch's extended header: "eh00", its length, then the length of the program that stands before the weights.
    end = struct.unpack_from("<Q", whole, 16)[0] if whole[8:12] == b"eh00" else len(whole)
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        place = choose.randrange(end)
        kind = choose.randrange(4)
        if kind == 0:
            data[place] ^= 1 << choose.randrange(8)
        elif kind == 1:
            data[place] = choose.randrange(256)
        elif kind == 2:
            struct.pack_into("<I", data, min(place & ~3, end - 4), choose.choice(NUMBERS))
        else:
            other = choose.randrange(end - 8)
            data[place & ~3 : (place & ~3) + 4] = data[other & ~3 : (other & ~3) + 4]
    return bytes(data)


def fate(path: Path) -> str:
    """What becomes of a program that may be damaged: it runs, or one sentence says why not."""
    try:
        with ExecuTorchProgram(path, num_threads=1) as program:
            spec = ExecuTorchBackend(program).spec
            for width in (None, *(rows for rows, _ in spec.widths.values())):
                with Session(ExecuTorchBackend(program)) as session:
                    config = GenerationConfig(TOKENS, speculative=width is not None, width=width, ignore_eos=True)
                    session.generate([1, 2, 3, 4, 5], config).finish()
    except (BackendError, ValueError) as error:
        sentence = str(error)
        assert sentence, "no sentence"
        assert sentence.isprintable(), repr(sentence)
        return sentence
    return "runs"


def main() -> None:
    program, folder, seed, first, count = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:6])
    whole = Path(program).read_bytes()
    for number in range(first, first + count):
        print(number, flush=True)
        path = folder / "damaged.pte"
        path.write_bytes(damaged(whole, seed, number))
        print(fate(path), flush=True)


if __name__ == "__main__":
    main()
