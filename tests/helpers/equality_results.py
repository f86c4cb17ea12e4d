"""The results of tools/equality.py: a file that a stopped run continues, and what is counted in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_COUNTED = (
    "engine", "adapter", "way", "form", "temperature", "widths", "planner", "sources", "threads", "kind", "memory",
    "restored", "finish",
)  # fmt: skip


class ResultsError(Exception):
    """A file of results that this run cannot continue; the message is one sentence."""


class Results:
    """A file of JSON lines: the settings of the run, then a line per case.

    A line is written in one call, so a stopped run leaves whole lines; a damaged last one, after a crash of the system,
    is dropped when the file is opened. One process at a time.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """ResultsError if the file has other settings, is damaged before its last line, or is in use."""
        self._path, self._records = path, dict[int, Record]()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            found = self._read()
            if not found:
                self._write(dict(settings))
            elif found[0] != settings:
                names = ", ".join(name for name in settings if found[0].get(name) != settings[name])
                raise ResultsError(f"{path} is of a run with other {names}; remove it, or give another --results")
            self._records = {record["number"]: record for record in found[1:]}
        except BaseException:
            os.close(self._file)
            raise

    def find(self, number: int) -> Record | None:
        return self._records.get(number)

    def add(self, record: Record) -> None:
        self._write(record)
        self._records[record["number"]] = record

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(f"{self._path} is being written by another process; give another --results") from None

    def _read(self) -> list[Record]:
        lines = self._path.read_bytes().splitlines(keepends=True)
        records, end = list[Record](), 0
        for place, line in enumerate(lines):
            record = _record_of(line)
            if record is None and place + 1 < len(lines):
                raise ResultsError(f"{self._path}, line {place + 1}, is damaged; remove it, or give another --results")
            if record is not None:
                records.append(record)
                end += len(line)
        os.ftruncate(self._file, end)
        return records

    def _write(self, record: Record) -> None:
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self._path}: the disk is full; make room, then the same command continues")

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _record_of(line: bytes) -> Record | None:
    """None for a line that is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and line.endswith(b"\n") else None


@dataclass(slots=True)
class Summary:
    """Counts over records. A case whose number was counted before is a repetition; it counts in all but `cases`."""

    numbers: set[int] = field(default_factory=set)
    repetitions: int = 0
    generations: int = 0
    tokens: int = 0
    passes: int = 0
    plain_passes: int = 0
    delivered_by: Counter[str] = field(default_factory=Counter)
    by: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    differences: list[Record] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.repetitions += record["number"] in self.numbers
        self.numbers.add(record["number"])
        for name in ("generations", "tokens", "passes", "plain_passes"):
            setattr(self, name, getattr(self, name) + record[name])
        self.delivered_by.update(record["delivered_by"])
        for name in _COUNTED:
            self.by[name][_value(record, name)] += 1
        if record["difference"] is not None:
            self.differences.append(record)

    @property
    def cases(self) -> int:
        """Different ones."""
        return len(self.numbers)

    def to_dict(self, command: str) -> dict[str, Any]:
        """`command` repeats a case when its number is appended."""
        return {
            "cases": self.cases, "repetitions": self.repetitions, "generations": self.generations,
            "tokens": self.tokens, "passes": self.passes, "plain_passes": self.plain_passes,
            "delivered_by": dict(self.delivered_by.most_common()),
            "by": {name: dict(counts.most_common()) for name, counts in self.by.items()},
            "differences": [
                {"case": one["number"], "difference": one["difference"], "command": f"{command} {one['number']}"}
                for one in self.differences
            ],
        }  # fmt: skip

    def lines(self, command: str) -> list[str]:
        """The same for people."""
        found = [_listed(name, counts) for name, counts in self.by.items()]
        found.append(_listed("tokens delivered by", self.delivered_by))
        for one in self.differences:
            found += [f"case {one['number']}: {one['difference']}", f"    {command} {one['number']}"]
        repeated = f" and {self.repetitions:,} repetitions" if self.repetitions else ""
        found.append(
            f"{self.cases:,} cases{repeated}, {self.generations:,} generations, {self.tokens:,} speculative tokens in "
            f"{self.passes:,} passes (plain: {self.plain_passes:,}), {len(self.differences)} differences"
        )
        return found


def _listed(name: str, counts: Counter[str]) -> str:
    return f"{name}: " + ", ".join(f"{value} {count:,}" for value, count in counts.most_common())


def _value(record: Record, name: str) -> str:
    value = record["options"]["temperature"] if name == "temperature" else record[name]
    if name == "widths":
        value = value[:1] if record["way"] == "text" else value
        return " then ".join("planned" if width is None else str(width) for width in value)
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "all"
    return "base" if value is None else str(value)
