"""Estimates the latency of passes of the default model on ARM processors; none of it was measured on one.

    python tools/arm_cycles.py                # the table of kernels/README.md

Model. A product of one group of a tile (32 inputs, 16 outputs) needs `fixed` instructions for its weights and `per_row`
for each row, some of which use a vector pipe. A core takes as many cycles as the busier of its dispatch and its vector
pipes; cores share a pass in proportion to their speed; a pass takes as long as the slower of arithmetic and memory. A
fifth is added to the arithmetic for attention, norms, rounding and SiLU (as on x86, LOG.md 2026-11-23), and HANDOVER_MS
for the points where threads wait for each other.

Counts: `fixed` and `per_row` were counted by a qemu plugin (kernels/README.md, products of 1,536 x 576 at 4 and 8
rows); those on vector pipes were counted in the loops of kernels/ops/groups.h. Assumptions, none measured: prefetching
hides all cache misses, every vector instruction runs on any vector pipe with a throughput of one per cycle, clocks do
not drop, and CPU cores reach a fixed share of the memory's peak bandwidth. Widths and pipes are from ARM's optimization
guides and from published reverse engineering of Apple's cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GROUP_TILES = (106_168_320 + 28_311_552) / 512  # of the layers and the head: weights / (32 inputs * 16 outputs)
WEIGHT_BYTES = 96.6e6
STREAMS_SHARE = 0.27  # share of the weights that a `streams` pass reads
STREAMS_ROWS = 4
OTHER_WORK = 1.2
HANDOVER_MS = 0.15  # 120 operators, about a microsecond each


@dataclass(frozen=True)
class Loop:
    """Instructions of a product of one group of a tile."""

    fixed: float
    per_row: float
    fixed_vector: float
    per_row_vector: float


# neon_i8mm. On vector pipes, per row: 16 smmla, 8 to part a pair's rows, 4 conversions, 4 products of scales, 8 fused
# steps.
LOOP = Loop(140, 61, 72, 40)


@dataclass(frozen=True)
class Core:
    ghz: float
    width: int  # instructions dispatched per cycle
    pipes: int  # vector pipes of 128 bits

    def ms(self, rows: int) -> float:
        """Milliseconds of all products of a pass with this many rows on this core alone."""
        instructions = LOOP.fixed + LOOP.per_row * rows
        vector = LOOP.fixed_vector + LOOP.per_row_vector * rows
        return GROUP_TILES * max(instructions / self.width, vector / self.pipes) / self.ghz / 1e6


@dataclass(frozen=True)
class Phone:
    cores: Sequence[Core]
    gb_per_second: float  # memory bandwidth of all cores together

    def pass_ms(self, rows: int, share: float = 1.0) -> float:
        speed = sum(1 / core.ms(rows) for core in self.cores)
        return max(share * OTHER_WORK / speed, share * WEIGHT_BYTES / self.gb_per_second / 1e6) + share * HANDOVER_MS

    @property
    def streams_ms(self) -> float:
        return self.pass_ms(STREAMS_ROWS, STREAMS_SHARE)

    @property
    def costs(self) -> tuple[float, tuple[float, float, float], float, float]:
        """Milliseconds of decode, of verify_4, verify_8 and verify_16, of noise (0) and of streams, as in
        plan_simulation.Device."""
        return self.pass_ms(1), (self.pass_ms(4), self.pass_ms(8), self.pass_ms(16)), 0.0, self.streams_ms


X4, A720, APPLE = Core(3.3, 10, 4), Core(3.0, 5, 2), Core(3.8, 9, 4)
PHONES = {
    "Cortex-X4 and three A720": Phone((X4, A720, A720, A720), 50.0),
    "three A720": Phone((A720, A720, A720), 35.0),
    "two Apple cores (A17)": Phone((APPLE, APPLE), 40.0),
}


def main() -> None:
    print(f"{'ms':26}   decode  verify_4  verify_8  verify_16  streams  8 and streams, decodes")
    for name, phone in PHONES.items():
        decode, four, eight, sixteen = (phone.pass_ms(rows) for rows in (1, 4, 8, 16))
        ratio = (eight + phone.streams_ms) / decode
        print(f"{name:26} {decode:8.2f} {four:9.2f} {eight:9.2f} {sixteen:10.2f} {phone.streams_ms:8.2f}  {ratio:.2f}")


if __name__ == "__main__":
    main()
