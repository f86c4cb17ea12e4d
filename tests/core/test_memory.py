"""Look-up in the answers of earlier sequences: the same text in fewer passes, bounded, private, erasable.

Run: pytest tests/core/test_memory.py
"""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from automata import Automaton
from fakes import ArithmeticBackend, spec

from streamfuse.runtime.backend import BoolArray, IntArray
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.core import CoreError, CoreModel, CoreSession
from streamfuse.runtime.reference.watch import observe
from streamfuse.runtime.statistics import Statistics

PROMPT, COUNT = [5, 11, 23, 42], 30


def model_of(path: Path | None = None, tokens: int = 0, identity: str = "a") -> CoreModel:
    model = CoreModel(spec(), identity=identity)
    model.remember(None if path is None else str(path), tokens)
    return model


def open_session(model: CoreModel) -> CoreSession:
    session = CoreSession(model, ArithmeticBackend(model.spec))
    session.set_costs({"decode": 2.0, "verify_2": 2.1, "verify_4": 2.3, "verify_8": 3.0}, frozen=True)
    return session


def answer(session: CoreSession, prompt: list[int], count: int = COUNT) -> tuple[list[int], Statistics]:
    """The tokens of a text, drafted by look-up alone: in the text and in the memory."""
    session.start(prompt, GenerationConfig(count, sources=("lookup", "memory")))
    tokens = []
    while (token := session.next()) is not None:
        tokens.append(token.id)
    return tokens, session.statistics


def environment(folder: Path) -> dict[str, str]:
    """For a process that imports this file."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def fnv1a(content: bytes) -> int:
    total = 0xCBF29CE484222325
    for byte in content:
        total = (total ^ byte) * 0x100000001B3 % (1 << 64)
    return total


def ask(model: CoreModel, prompt: list[int] = PROMPT, count: int = COUNT) -> tuple[list[int], Statistics]:
    with open_session(model) as session:
        return answer(session, prompt, count)


class ForgettingGrammar(Automaton):
    """Allows everything, and has the answers forgotten whenever it is asked."""

    model: CoreModel | None = None

    def allows(self, tokens: IntArray) -> BoolArray:
        assert self.model is not None
        self.model.forget()
        return super().allows(tokens)


def test_a_constraint_may_have_the_answers_forgotten_while_they_are_searched() -> None:
    model = model_of()
    ask(model)
    constraint = ForgettingGrammar([dict.fromkeys(range(64), 0)], [0])
    constraint.model = model
    found: list[int] = []

    def write() -> None:
        with open_session(model) as session:
            session.start(PROMPT, GenerationConfig(COUNT, sources=("lookup", "memory")), constraint)
            while (token := session.next()) is not None:
                found.append(token.id)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(30)
    assert not writer.is_alive(), "it waits for the memory's lock, which its own thread holds"
    assert len(found) == COUNT


def test_a_second_conversation_drafts_from_the_first() -> None:
    model = model_of()
    first, alone = ask(model)
    again, drafted = ask(model)
    assert again == first
    assert drafted.accepted_by_source["memory"] > 0 == alone.accepted_by_source["memory"]
    assert drafted.target_forward_passes < alone.target_forward_passes / 2
    model.forget()
    forgotten, after = ask(model)
    assert (forgotten, after.widths) == (first, alone.widths)


@pytest.mark.parametrize("width", [None, 4])
def test_the_memory_is_a_source_of_its_own(width: int | None) -> None:
    model = model_of()
    first, _ = ask(model)
    for sources in (("lookup",), ("memory",), ("lookup", "memory"), None):
        with open_session(model) as session:
            session.start(PROMPT, GenerationConfig(COUNT, width=width, sources=sources))
            told = list(iter(session.next, None))
            by = session.statistics.accepted_by_source
        assert [token.id for token in told] == first
        for name in ("lookup", "memory"):
            assert by[name] == sum(token.source == name for token in told)
        # at a fixed width, streams are the only source unless they are left out
        assert (by["memory"] > 0) == (width is None if sources is None else "memory" in sources)
        if sources == ("memory",):
            assert by["lookup"] == 0


def drafts(session: CoreSession, prompt: list[int]) -> list[tuple[list[int], list[float]]]:
    """The trees of all passes of a text: tokens and log-probabilities."""
    seen: list[tuple[list[int], list[float]]] = []
    observe(session, lambda one: seen.append((one.tokens, one.log_probs)))
    answer(session, prompt)
    observe(session, None)
    return seen


def test_a_conversation_does_not_draft_from_itself_twice(tmp_path: Path) -> None:
    """Its own answers are in its text; counted again in the memory, one place would look like two that agree. This
    holds for the session that wrote them, for one that restored it, and for one that gets the whole text."""
    path, saved = tmp_path / "memory", tmp_path / "session"
    with open_session(CoreModel(spec(), identity="a")) as session:
        later = [*PROMPT, *answer(session, PROMPT)[0], 7, 7, *PROMPT]
        without = drafts(session, later)
    with open_session(CoreModel(spec(), identity="a")) as session:
        anew = drafts(session, later)
    with open_session(model_of(path)) as session:
        answer(session, PROMPT)
        session.save(str(saved))
        written = path.read_bytes()
        assert drafts(session, later) == without
    for restored in (True, False):
        path.write_bytes(written)
        with open_session(model_of(path)) as session:
            if restored:
                session.restore(str(saved))
            assert drafts(session, later) == anew


def test_a_new_text_of_the_same_session_drafts_from_the_one_before() -> None:
    with open_session(model_of()) as session:
        first, alone = answer(session, PROMPT)
        session.reset()
        again, drafted = answer(session, PROMPT)
    assert again == first
    assert drafted.target_forward_passes < alone.target_forward_passes / 2


def test_a_file_keeps_answers_for_the_next_process_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    first, alone = ask(model_of(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = model_of(path)
    again, drafted = ask(second)
    assert again == first
    assert drafted.target_forward_passes < alone.target_forward_passes / 2
    second.forget()
    assert path.stat().st_size == 0
    assert ask(model_of(path))[1].widths == alone.widths


def test_an_existing_file_becomes_readable_by_its_owner_only(tmp_path: Path) -> None:
    """After it was copied, for example. Only answers: another file keeps its mode."""
    path, photo = tmp_path / "memory", tmp_path / "photo"
    ask(model_of(path))
    photo.write_bytes(b"a picture of a cat")
    for file in (path, photo):
        file.chmod(0o644)
    assert ask(model_of(path))[1].accepted_by_source["memory"] > 0
    with pytest.raises(CoreError, match="is not a memory"):
        model_of(photo)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, photo)] == [0o600, 0o644]


def test_a_relative_name_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the working directory is when an answer is added, or when all are forgotten."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    model, of_adapter = model_of(Path("memory")), model_of(Path("memory.task"), identity="b")
    for one in (model, of_adapter):
        ask(one)
    monkeypatch.chdir(there)
    ask(model, [50, 51, 52, 53])
    assert len(answers_in(here / "memory")) == 2
    model.forget()
    assert [file.stat().st_size for file in here.iterdir()] == [0, 0]
    assert list(there.iterdir()) == []


def test_another_bundle_begins_the_file_anew_and_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    _, alone = ask(model_of(path))
    assert ask(model_of(path, identity="b"))[1].widths == alone.widths
    photo = tmp_path / "photo"
    photo.write_bytes(b"a picture of a cat")
    with pytest.raises(CoreError, match="photo is not a memory of streamfuse; name another file"):
        model_of(photo)
    assert photo.read_bytes() == b"a picture of a cat"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CoreError, match="pipe is not a memory of streamfuse; name another file"):
        model_of(pipe)
    assert pipe.is_fifo()
    with pytest.raises(CoreError, match="cannot be written"):
        model_of(tmp_path / "none" / "memory")
    with pytest.raises(CoreError, match="a memory has 1 to 16777216 tokens"):
        model_of(tokens=1 << 25)


def test_a_file_that_was_cut_off_keeps_its_whole_answers(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    first, alone = ask(model_of(path))
    one = path.stat().st_size
    ask(model_of(path), [50, 51, 52, 53])
    whole = path.read_bytes()
    for size in (one + 3, one + 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        model = model_of(path)
        assert path.read_bytes() == whole[:one], "the next answer is appended to a whole file"
        again, drafted = ask(model)
        assert again == first
        assert drafted.target_forward_passes < alone.target_forward_passes / 2
    damaged = bytearray(whole)
    damaged[16 + 8 + 4] ^= 1  # a token of the first answer: nothing after it is trusted
    path.write_bytes(damaged)
    assert ask(model_of(path))[1].widths == alone.widths


@pytest.mark.parametrize("token", [-1, 64, 1 << 30])
def test_a_token_outside_the_vocabulary_is_never_drafted(tmp_path: Path, token: int) -> None:
    """Its entry is whole and its sum is right: only the vocabulary tells."""
    path = tmp_path / "memory"
    first, alone = ask(model_of(path))
    header = path.read_bytes()[:16]
    tokens = np.array([*PROMPT, token, *first], "<i4").tobytes()
    path.write_bytes(header + struct.pack("<II", len(tokens) // 4, fnv1a(tokens) % (1 << 32)) + tokens)
    again, drafted = ask(model_of(path))
    assert again == first
    assert drafted.widths == alone.widths


def test_the_oldest_answers_make_room(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    model = model_of(path, tokens=100)
    first, alone = ask(model)
    for start in range(20, 28):
        ask(model, [start, 3, start, 9])
        assert path.stat().st_size <= 16 + 4 * 125 + 8 * 5
    kept = path.read_bytes()
    model_of(path, tokens=60)  # drops while it reads
    assert path.stat().st_size < len(kept)
    assert kept.endswith(path.read_bytes()[16:])
    assert ask(model_of(path, tokens=100), [27, 3, 27, 9])[1].target_forward_passes < COUNT / 2
    assert ask(model_of(tmp_path / "other"))[0] == first
    assert ask(model, PROMPT)[1].target_forward_passes > alone.target_forward_passes / 2


def answers_in(path: Path) -> list[tuple[int, ...]]:
    """The answers of a file, which must be whole while nobody writes."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        content, found, at = file.read(), [], 16
    while at < len(content):
        count, total = struct.unpack_from("<II", content, at)
        tokens = content[at + 8 : at + 8 + 4 * count]
        assert len(tokens) == 4 * count
        assert total == fnv1a(tokens) % (1 << 32)
        found.append(struct.unpack(f"<{count}i", tokens))
        at += 8 + 4 * count
    return found


def test_models_that_share_a_file_keep_each_others_answers(tmp_path: Path) -> None:
    """Also where one of them drops the oldest answers, holds fewer than the other, or forgets all."""
    path, rng = tmp_path / "memory", np.random.default_rng(3)
    models, given = [model_of(path, tokens=400), model_of(path, tokens=300)], []
    for number in range(60):
        prompt = rng.integers(0, 64, 3).tolist()
        model = models[int(rng.integers(2))]
        given.append((*prompt, *ask(model, prompt, int(rng.integers(3, 30)))[0]))
        kept = answers_in(path)
        assert kept == given[-len(kept) :], f"the latest answers, after {number}"
        assert len(kept) == len(given) or sum(len(one) + 1 for one in kept) > 250
    ask(models[0])
    ask(models[1], [1, 2, 1])
    assert ask(models[1])[1].target_forward_passes < COUNT / 2, "each drafts from what the other one added"
    models[0].forget()
    assert answers_in(path) == []
    ask(models[1], PROMPT)
    assert len(answers_in(path)) == 1, "what one forgot does not come back from the other"


def test_a_process_that_holds_the_file_stops_no_session(tmp_path: Path) -> None:
    """A suspended one may hold it for ever."""
    path = tmp_path / "memory"
    model = model_of(path)
    with path.open("rb") as file, ThreadPoolExecutor() as pool:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            first, alone = pool.submit(ask, model).result(timeout=30)
            again, drafted = pool.submit(ask, model).result(timeout=30)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
    assert again == first
    assert drafted.target_forward_passes < alone.target_forward_passes / 2
    assert answers_in(path) == []
    ask(model, [50, 51, 52, 53])
    assert len(answers_in(path)) == 1


def test_forgetting_empties_the_files_of_adapters_and_no_other(tmp_path: Path) -> None:
    """`FILE.NAME`, whoever has it open, and what a killed process has left; their content tells them from others."""
    path, of_adapter, left = (tmp_path / name for name in ("memory", "memory.task", "memory..tmp"))
    model, adapter = model_of(path), model_of(of_adapter, identity="b")
    ask(model)
    ask(adapter)
    answers = of_adapter.read_bytes()
    left.write_bytes(answers)
    (tmp_path / "memory.folder").mkdir()
    others = {"memory.jpg": b"a picture of a cat", "memory2": answers, "amemory.task": answers, "memory.": b""}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    model.forget()
    assert answers_in(path) == []
    assert of_adapter.stat().st_size == 0
    assert not left.exists()
    assert {name: (tmp_path / name).read_bytes() for name in others} == others
    ask(adapter, [1, 2, 1])
    assert len(answers_in(of_adapter)) == 1, "what was forgotten does not come back"


def test_an_adapter_may_be_called_tmp(tmp_path: Path) -> None:
    path, of_adapter = tmp_path / "memory", tmp_path / "memory.tmp"
    ask(model_of(path))
    ask(model_of(of_adapter, identity="b"))
    answers = of_adapter.read_bytes()
    ask(model_of(path, identity="c"))  # which replaces the file of another bundle
    assert of_adapter.read_bytes() == answers


def test_forgetting_needs_no_room_on_the_disk(tmp_path: Path) -> None:
    path, of_adapter = tmp_path / "memory", tmp_path / "memory.task"
    model = model_of(path)
    _, alone = ask(model)
    ask(model_of(of_adapter, identity="b"))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        model.forget()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.stat().st_size == of_adapter.stat().st_size == 0
    assert ask(model)[1].widths == alone.widths
    assert len(answers_in(path)) == 1, "the next answer is stored again"


def test_a_file_that_cannot_be_emptied_keeps_no_other_from_it(tmp_path: Path) -> None:
    path, of_adapter = tmp_path / "memory", tmp_path / "memory.task"
    model = model_of(path)
    ask(model_of(of_adapter, identity="b"))
    path.unlink()
    path.mkdir()
    with pytest.raises(CoreError, match=f"{path} cannot be written"):
        model.forget()
    assert of_adapter.stat().st_size == 0


def test_a_folder_that_cannot_be_listed_is_named_and_the_own_file_is_emptied(tmp_path: Path) -> None:
    model = model_of(path := tmp_path / "memory")
    ask(model)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))  # nothing can be opened besides what is open
    try:
        with pytest.raises(CoreError, match=f"{tmp_path} cannot be listed; delete remembered answers of adapters"):
            model.forget()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert path.stat().st_size == 0


_WRITER = """
import sys
from pathlib import Path
from test_memory import answers_in, ask, model_of
path, tokens, own = Path(sys.argv[1]), *map(int, sys.argv[2:])
model = model_of(path, tokens=tokens)
for number in range(60):
    ask(model, [own, number, 63 - number], 12)
    kept = {one[:2] for one in answers_in(path)}
    assert {(own, before) for before in range(max(0, number - 1), number + 1)} <= kept, (number, kept)
"""


@pytest.mark.parametrize("tokens", [10_000, 640])
def test_processes_that_write_one_file_lose_no_answer(tmp_path: Path, tokens: int) -> None:
    """With room for all answers, and where both drop the oldest ones again and again."""
    path = tmp_path / "memory"
    arguments = [sys.executable, "-c", _WRITER, str(path), str(tokens)]
    folder = Path(__file__).parent
    writers = [subprocess.Popen([*arguments, str(number)], cwd=folder, env=environment(folder)) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    kept = answers_in(path)
    of_writer = [[one[1] for one in kept if one[0] == number] for number in range(3)]
    for numbers in of_writer:
        assert numbers == list(range(60 - len(numbers), 60)), "the latest ones of each, in order"
    if tokens == 10_000:
        assert len(kept) == 180
    else:
        assert 640 - 17 < sum(len(one) + 1 for one in kept) <= 800


_FORKED = """
import fcntl, os, sys
from pathlib import Path
from test_memory import answers_in, ask, model_of

def is_memory(number):
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False

path = Path(sys.argv[1])
model = model_of(path)
ask(model)
before = path.stat().st_size
(own,) = filter(is_memory, range(256))
fcntl.flock(own, fcntl.LOCK_EX)  # as during an answer that this process adds
child = os.fork()
if child == 0:
    ask(model, [1, 2, 1])
    os._exit(0)
assert os.waitpid(child, 0) == (child, 0)
assert path.stat().st_size == before, "it does not write without a lock of its own"
fcntl.flock(own, fcntl.LOCK_UN)
ask(model, [7, 9, 3])
assert len(answers_in(path)) == 2
"""


def test_a_forked_process_takes_a_lock_of_its_own(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _FORKED, str(tmp_path / "memory")]
    folder = Path(__file__).parent
    done = subprocess.run(arguments, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tokens", [1, 2, 5, 9, 12])
def test_a_memory_smaller_than_an_answer_keeps_its_end(tmp_path: Path, tokens: int) -> None:
    path = tmp_path / "memory"
    model = model_of(path, tokens=tokens)
    for _ in range(3):
        first, _ = ask(model)
        assert [list(one) for one in answers_in(path)] == ([first[-(tokens - 1) :]] if tokens > 3 else [])
    assert model_of(path, tokens=tokens) is not None


def test_a_file_that_was_overwritten_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    model = model_of(path)
    first, alone = ask(model)
    picture = b"a picture of a cat" * 100
    path.write_bytes(picture)
    for _ in range(2):
        again, drafted = ask(model)
        assert again == first
        assert drafted.target_forward_passes < alone.target_forward_passes / 2
    assert path.read_bytes() == picture


def test_a_memory_that_cannot_be_written_ends_no_text(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    model = model_of(path)
    path.unlink()
    first, alone = ask(model)
    again, drafted = ask(model)
    assert again == first
    assert drafted.target_forward_passes < alone.target_forward_passes / 2
    assert not path.exists()
    model.forget()
    assert path.exists()
