"""How many cores a process may use, from made-up files of Linux. Run: python -m pytest tests/runtime/test_cores.py"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamfuse.runtime.cores import cores, group_limit

SELF, TOP = "proc/self/cgroup", "sys/fs/cgroup/"
ROOTS: list[tuple[str, dict[str, str], int | None]] = [
    ("one core", {SELF: "0::/", TOP + "cpu.max": "100000 100000"}, 1),
    ("two and a half", {SELF: "0::/", TOP + "cpu.max": "250000 100000"}, 2),
    ("half a core", {SELF: "0::/", TOP + "cpu.max": "50000 100000"}, 1),
    ("no limit", {SELF: "0::/", TOP + "cpu.max": "max 100000"}, None),
    (
        "a group in a group that has less",
        {SELF: "0::/app/part", TOP + "app/part/cpu.max": "400000 100000", TOP + "app/cpu.max": "300000 100000"},
        3,
    ),
    (
        "a path of the host, seen from a container",
        {SELF: "0::/system.slice/docker-1.scope", TOP + "cpu.max": "200000 100000"},
        2,
    ),
    (
        "cgroup v1",
        {
            SELF: "12:memory:/\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/",
            TOP + "cpu/docker/1/cpu.cfs_quota_us": "150000",
            TOP + "cpu/docker/1/cpu.cfs_period_us": "50000",
        },
        3,
    ),
    (
        "cgroup v1 without a limit",
        {SELF: "4:cpuacct,cpu:/", TOP + "cpu/cpu.cfs_quota_us": "-1", TOP + "cpu/cpu.cfs_period_us": "100000"},
        None,
    ),
    (
        "cgroup v1 and v2",
        {SELF: "2:cpu:/\n0::/", TOP + "cpu/cpu.cfs_quota_us": "200000", TOP + "cpu/cpu.cfs_period_us": "100000"},
        2,
    ),
    ("garbage", {SELF: "0::/\n::\n:\nx\n0:cpu", TOP + "cpu.max": "?? 5"}, None),
    ("a period of nothing", {SELF: "0::/", TOP + "cpu.max": "100000 0"}, None),
    ("no group", {}, None),
]


@pytest.mark.parametrize(("files", "limit"), [case[1:] for case in ROOTS], ids=[case[0] for case in ROOTS])
def test_the_limit_of_a_control_group_is_read(files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    assert group_limit(tmp_path) == limit
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cores(tmp_path) == min(allowed or 1, limit or allowed or 1)
