"""How many cores this process may use: those of its CPU affinity, within the CPU limit of its control group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def group_limit(root: str | Path = "/") -> int | None:
    """The CPU limit of this process's control group in whole cores, as in a container; None without one.

    It is the least of the group's and its parents': `cpu.max` of cgroup v2, `cpu.cfs_quota_us` of v1. It is
    rounded down, and at least 1. The native engine has the same rule (kernels/ops/cores.cpp); this one is for
    engines that choose a number of threads without it. `root` is the folder of `proc` and `sys`.
    """
    try:
        lines = Path(root, "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    limits = [limit for line in lines for limit in _limits(Path(root, "sys/fs/cgroup"), line)]
    return max(int(min(limits)), 1) if limits else None


def allowed() -> set[int]:
    """The numbers of the cores in this process's CPU affinity."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores(root: str | Path = "/") -> int:
    """The number of cores that this process may use."""
    count = len(allowed())
    return min(count, group_limit(root) or count)


def _limits(top: Path, line: str) -> Iterator[float]:
    """Limits in cores of the group in a line "number:controllers:path" and of its parents.

    In a container the path may be that of the host, where nothing is; the limit at the mount point applies.
    """
    _, _, rest = line.partition(":")
    controllers, found, path = rest.partition(":")
    unified = controllers == ""
    if not found or not (unified or "cpu" in controllers.split(",")):
        return
    group = Path(*(part for part in path.split("/") if part)) if path.startswith("/") else Path()
    for folder in (group, *group.parents):
        place = (top if unified else top / "cpu") / folder
        if unified:
            words = _words(place / "cpu.max")
        else:
            words = _words(place / "cpu.cfs_quota_us") + _words(place / "cpu.cfs_period_us")
        if len(words) >= 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[0]) and int(words[1]):
            yield int(words[0]) / int(words[1])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
