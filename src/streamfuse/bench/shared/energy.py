"""Energy counters (RAPL) of Intel and AMD processors, as Linux's powercap framework shows them.

A counter covers a whole package, so it includes other programs and idle cores.
"""

from __future__ import annotations

from pathlib import Path

_ZONES = Path("/sys/class/powercap")


class EnergyCounter:
    """Energy used by all processor packages since construction.

    A counter wraps at `max_energy_range_uj`, under load after minutes to hours, so call `joules` more often than that.

    Args:
        zones: the powercap folder of sysfs.
    """

    def __init__(self, zones: Path = _ZONES) -> None:
        # Other zones (cores, graphics, memory) are parts of a package, or have a supply of their own.
        domains = sorted(zones.glob("intel-rapl:*"))  # AMD's too
        self._packages = [zone for zone in domains if _text(zone / "name").startswith("package")]
        self._last = [_count(zone / "energy_uj") for zone in self._packages]
        self._spent = 0

    def joules(self) -> float | None:
        """Joules so far; None if the machine has no counters, or this user may not read them."""
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
