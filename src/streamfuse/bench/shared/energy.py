"""Energy counters of the processor: Linux's power capping framework, on processors of Intel and AMD.

A counter is of a whole package: other programs and idle cores are in it.
"""

from __future__ import annotations

from pathlib import Path

_ZONES = Path("/sys/class/powercap")


class EnergyCounter:
    """Joules that all packages of the machine took since this object was made.

    A counter wraps within minutes to hours under load (`max_energy_range_uj`), so `joules` has to be read more often.
    """

    def __init__(self, zones: Path = _ZONES) -> None:
        # Zones below a package (cores, graphics, memory) are a part of it, or of another supply.
        self._packages = [zone for zone in sorted(zones.glob("intel-rapl:*")) if _text(zone / "name")[:7] == "package"]
        self._last = [_count(zone / "energy_uj") for zone in self._packages]
        self._spent = 0

    def joules(self) -> float | None:
        """None: the machine has no counter, or only root may read it."""
        now = [_count(zone / "energy_uj") for zone in self._packages]
        for zone, before, after in zip(self._packages, self._last, now, strict=True):
            if before is None or after is None:
                return None
            wrapped = after < before
            self._spent += after - before + ((_count(zone / "max_energy_range_uj") or 0) if wrapped else 0)
        self._last = now
        return self._spent / 1e6 if self._packages else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _count(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text else None
