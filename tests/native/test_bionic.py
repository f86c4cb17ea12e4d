"""The native code calls only what Android's C library has at the lowest version that the app runs on.

Run: pytest tests/native/test_bionic.py
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOWEST = 26
SINCE = {  # functions of the C library that bionic's headers hide below an API level (__INTRODUCED_IN)
    28: "aligned_alloc endhostent fexecve fflush_unlocked fgetc_unlocked fgets_unlocked fputc_unlocked fputs_unlocked "
    "fread_unlocked fwrite_unlocked getentropy getlogin_r getrandom glob globfree hcreate hsearch iconv iconv_open "
    "posix_spawn posix_spawnp pthread_attr_setinheritsched pthread_setschedprio sethostent swab syncfs __freading",
    29: "getloadavg reallocarray timespec_get",
    30: "cnd_wait memfd_create mlock2 mtx_lock pthread_cond_clockwait pthread_mutex_clocklock renameat2 "
    "sem_clockwait statx thrd_create tss_create",
    31: "process_madvise",
    33: "backtrace backtrace_symbols preadv2 pwritev2",
    34: "close_range copy_file_range memset_explicit posix_spawn_file_actions_addchdir_np",
    35: "android_crash_detail_register tcgetwinsize timespec_getres wcsnrtombs_l",
    36: "pthread_getaffinity_np pthread_setaffinity_np qsort_r sig2str str2sig",
}


def sources() -> list[Path]:
    folders = ("core", "kernels/engine", "kernels/ops", "native", "android_demo/streamfuse/src/main/cpp")
    return sorted(path for folder in folders for path in (ROOT / folder).glob("*") if path.suffix in (".h", ".cpp"))


def test_the_lowest_version_is_the_one_that_the_app_names() -> None:
    catalog = (ROOT / "android_demo/gradle/libs.versions.toml").read_text(encoding="utf-8")
    assert re.findall(r'^minSdk = "(\d+)"', catalog, re.MULTILINE) == [str(LOWEST)]


def test_the_native_code_calls_nothing_that_came_later() -> None:
    late = {name for since, names in SINCE.items() if since > LOWEST for name in names.split()}
    pattern = re.compile(rf"\b({'|'.join(sorted(late))})\s*\(")
    found = {path: pattern.findall(path.read_text(encoding="utf-8")) for path in sources()}
    assert {name: calls for name, calls in found.items() if calls} == {}
    assert len(found) > 50


def test_threads_wait_on_the_word_that_the_system_waits_on() -> None:
    """libc++ calls the system for one type alone, and goes through a table of the whole process for others."""
    team = (ROOT / "kernels/ops/team.cpp").read_text(encoding="utf-8")
    waited = set(re.findall(r"(\w+?)(?:\[\w+\])?\.wait\(", team))
    words = set(re.findall(r"std::atomic<WaitWord> (\w+)", team))
    assert waited == words == {"asleep_", "done_"}
