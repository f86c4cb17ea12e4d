"""Drafters that learn while they draft: their programs get new weights without an export, and no text changes.

Run: python -m pytest tests/research/test_online.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from export_samples import TEXT, config_for, decode_rows, tiny_model, write_checkpoint
from fakes import ArithmeticBackend

from streamfuse.bundle import open_bundle
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import run_export
from streamfuse.model.checkpoint import load_base, load_stream_fused, save_adapter
from streamfuse.model.streams import StreamFused
from streamfuse.research import online
from streamfuse.research.acceptors import Match, SpeculativeAcceptor
from streamfuse.research.drafters.chain import ChainDrafter
from streamfuse.research.drafters.model import DraftModel
from streamfuse.research.growth import ShapedDrafter, our_tree
from streamfuse.research.online import DraftModelStudent, Learner, Noted, Rejection, StreamsStudent, Watch
from streamfuse.research.replaced import Replaceable, ReplaceError
from streamfuse.runtime.backend import DECODE, Backend, ModelSpec
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.accept import Acceptor
from streamfuse.runtime.reference.draft import Drafter, DraftTables
from streamfuse.runtime.reference.loop import Loop

BASE = {"num_msa_layers": 1, "adapter_rank": 0, "pruner_rank": 0, "parent_rank": 0, "num_streams": 1,
        "base_rank": 4, "base_layers": 3}  # fmt: skip
STREAMS = {"eta_rank": 2, "next_token_rank": 32}
ONE_WIDTH = {"widths": (4,), "default_width": 4, "prune_keep": 4, "schedule": "deferred"}


@dataclass(frozen=True)
class Exported:
    checkpoint: tuple[Path, Path]
    plan: ExportConfig

    @property
    def program(self) -> Path:
        return self.plan.output_dir / "model.pte"

    def model(self) -> StreamFused:
        """As it was exported, with its adapters beside the base."""
        return load_stream_fused(load_base(self.checkpoint[0]), self.checkpoint[1], merge=False)

    def tables(self) -> DraftTables:
        return DraftTables.load(open_bundle(self.plan.output_dir).tables or {})


def _exported(folder: Path, streams: dict[str, int], **more: str | tuple[str, ...]) -> Exported:
    torch.manual_seed(3)
    (folder / "model").mkdir()
    checkpoint = write_checkpoint(folder / "model", tiny_model(streams))
    plan = config_for(checkpoint, folder / "bundle", **ONE_WIDTH, **more)
    run_export(plan)
    return Exported(checkpoint, plan)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return _exported(tmp_path_factory.mktemp("draft"), BASE, merge_adapter="on")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return _exported(tmp_path_factory.mktemp("target"), STREAMS, allow_parity_below=("kernels",))


@dataclass
class Engine:
    """Holds the engine that is in use, as a drafter does."""

    backend: Backend
    closed: list[Backend] = field(default_factory=list)

    def use(self, backend: Backend) -> None:
        self.backend.close()
        self.closed.append(self.backend)
        self.backend = backend


@pytest.fixture
def engine(target: Exported) -> Iterator[Engine]:
    held = Engine(ExecuTorchBackend(target.program))
    yield held
    held.backend.close()


def noted(seed: int = 0, vocab: int = 32, step: int = 1) -> Noted:
    """An answer of 16 tokens after 8, all of whose distributions say one token for certain."""
    random = np.random.default_rng(seed)
    ids = np.tile(step * np.arange(vocab), (16, 1)).astype(np.int64)
    probs = np.zeros((16, vocab), np.float32)
    probs[np.arange(16), random.integers(vocab, size=16)] = 1
    tokens = [*TEXT[:8], *(int(ids[i, probs[i].argmax()]) for i in range(16))]
    return Noted(tokens, 8, ids, probs, [Rejection(place, place) for place in (9, 12, 15, 18)])


def answer(
    backend: Backend, drafter: Drafter | None, acceptor: Acceptor | None = None, watch: Watch | None = None
) -> list[int]:
    backend.truncate(0)
    config = GenerationConfig(24, speculative=drafter is not None, ignore_eos=True, width=4 if drafter else None)
    loop = Loop(backend, list(TEXT[:9]), config, observe=watch)
    if drafter is not None:
        loop.drafter, loop.acceptor = drafter, acceptor or WithLogits()
    list(loop.run())
    return loop.tokens


class WithLogits(Match):
    needs_logits = True


class SpeculativeWithLogits(SpeculativeAcceptor):
    needs_logits = True


def shaken(model: StreamFused, prefix: tuple[str, ...]) -> None:
    """Other weights in the parameters of these names."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(prefix):
                parameter.add_(torch.randn_like(parameter) * 0.1)


def test_a_draft_model_with_replaced_weights_is_the_export_of_the_new_model(draft: Exported, tmp_path: Path) -> None:
    model = draft.model()
    student = DraftModelStudent(model)
    program = Replaceable(draft.program, student.packed())
    shaken(model, ("base_adapters.",))
    changed = program.write(tmp_path / "new.pte", student.packed())
    assert len(changed) == 3 * 4  # three layers: q, k, v in one; output; gate and up in one; down
    assert not program.write(tmp_path / "same.pte", DraftModelStudent(draft.model()).packed())
    assert (tmp_path / "same.pte").read_bytes() == draft.program.read_bytes()
    adapter = tmp_path / "new.safetensors"
    save_adapter(model, adapter)
    again = config_for(
        (draft.checkpoint[0], adapter),
        tmp_path / "again",
        allow_parity_below=("int4",),
        merge_adapter="on",
        **ONE_WIDTH,
    )
    run_export(again)
    rows = []
    for path in (tmp_path / "new.pte", again.output_dir / "model.pte", draft.program):
        with ExecuTorchBackend(path) as backend:
            rows.append(decode_rows(backend, TEXT[:12]))
    # The adapter file keeps float16, so a few weights of the new export may lie one step beside.
    noise = ((rows[0] - rows[1]) ** 2).mean() / ((rows[0] - rows[2]) ** 2).mean()
    assert noise < 0.02


def test_candidates_of_a_target_with_replaced_weights_are_those_of_the_new_streams(
    target: Exported, tmp_path: Path
) -> None:
    model = target.model()
    student = StreamsStudent(model)
    program = Replaceable(target.program, student.packed())
    before = candidates(target.program)
    shaken(model, ("adapters.", "eta.", "stream_embeddings"))
    # Two layers: down and up for q, k and v; for the output; for gate and up; for down. Then eta's two, and embeddings.
    assert len(program.write(tmp_path / "new.pte", student.packed())) == 2 * 4 * 2 + 3
    after = candidates(tmp_path / "new.pte")
    with torch.no_grad():
        frozen = model.frozen_states(torch.tensor([TEXT[:12]]))
        states = model.stream_states(frozen, torch.arange(12)[None]).streams[0]
        wanted = torch.log_softmax(states @ model.head_rows().T, -1)
    slots = {int(token): slot for slot, token in enumerate(model.stream_vocab)}
    change, error = 0.0, 0.0
    for place in range(12):
        for stream in range(3):
            scored = {int(token): float(log) for token, log in zip(*(a[place][stream] for a in after), strict=True)}
            old = {int(token): float(log) for token, log in zip(*(b[place][stream] for b in before), strict=True)}
            for token, log in scored.items():
                error += abs(log - float(wanted[place, stream, slots[token]]))
            for token, log in old.items():
                change += abs(log - float(wanted[place, stream, slots[token]]))
    assert error < 0.1 * change


def candidates(program: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of the first 12 tokens: ids [3, 5] of each, and their log-probabilities."""
    ids, logs = [], []
    with ExecuTorchBackend(program) as backend:
        for place, token in enumerate(TEXT[:12]):
            backend.run(DECODE, np.array([token]), np.array([place]), np.ones((1, 1), np.bool_))
            backend.commit([0])
            output = backend.streams(0, 0)
            ids.append(np.array(output.stream_ids[0]))
            logs.append(np.array(output.stream_log_probs[0]))
    return ids, logs


def test_weights_of_another_program_are_refused(draft: Exported, tmp_path: Path) -> None:
    other = DraftModelStudent(tiny_model(BASE)).packed()
    with pytest.raises(ReplaceError, match=r"model.pte does not hold .*; it was exported from other weights"):
        Replaceable(draft.program, other)
    own = dict(DraftModelStudent(draft.model()).packed())
    program = Replaceable(draft.program, own)
    name = next(iter(own))
    with pytest.raises(ReplaceError, match=f"{name} has 3 bytes, and the program has room for"):
        program.write(tmp_path / "x.pte", {**own, name: torch.zeros(3, dtype=torch.uint8)})


def test_a_draft_model_learns_what_it_is_told_every_few_answers(draft: Exported, tmp_path: Path) -> None:
    model = DraftModel(ExecuTorchBackend(draft.program))
    first = model.backend
    schedule = online.Schedule(every=2, learning_rate=1e-2, replayed=0)
    learner = Learner(DraftModelStudent(draft.model()), draft.program, tmp_path, model.use, schedule)
    learner.note(noted())
    assert learner.updates == 0
    learner.note(noted())
    assert learner.updates == 1
    assert model.backend is not first
    for _ in range(6):
        learner.note(noted())
    assert learner.losses[-1] < 0.6 * learner.losses[0]
    assert [path.name for path in tmp_path.glob("*.pte")] == ["program-4.pte"]
    with model.backend as backend:  # the program says what the model in PyTorch does
        rows = decode_rows(backend, noted().tokens)
    taught = [(one.last, noted().tokens[one.last + 1]) for one in noted().rejections]
    assert sum(int(rows[place].argmax()) == token for place, token in taught) >= 3


def test_streams_learn_what_follows_where_their_trees_were_left(
    target: Exported, engine: Engine, tmp_path: Path
) -> None:
    schedule = online.Schedule(every=2, learning_rate=1e-2, steps=8)
    learner = Learner(StreamsStudent(target.model()), target.program, tmp_path, engine.use, schedule)
    for _ in range(6):
        learner.note(noted(step=2))  # every second token is in the stream vocabulary
    assert learner.updates == 3
    assert len(engine.closed) == 3
    assert learner.losses[-1] < 0.7 * learner.losses[0]


def test_the_text_is_plain_decodings_while_streams_learn(target: Exported, engine: Engine, tmp_path: Path) -> None:
    plain = answer(engine.backend, None)
    model = target.model()
    base = {name: value.clone() for name, value in model.base.state_dict().items()}
    schedule = online.Schedule(every=1, learning_rate=1e-2, steps=4)
    learner = Learner(StreamsStudent(model), target.program, tmp_path, engine.use, schedule)
    for _ in range(5):
        watch = Watch()
        text = answer(engine.backend, ShapedDrafter(our_tree(target.tables())), watch=watch)
        assert text == plain
        learner.note(watch.noted(text))
    assert learner.updates == 5
    assert learner.losses[-1] < 0.9 * learner.losses[0], "the same text again and again is learnt"
    assert all(torch.equal(value, base[name]) for name, value in model.base.state_dict().items())


def test_notes_are_of_rejected_trees_and_have_the_distribution_of_each_token(draft: Exported) -> None:
    with ExecuTorchBackend(draft.program) as backend:
        spec = ModelSpec(backend.spec.capacity, backend.spec.vocab_size, 0, 0, 16, {"verify_4": (4, 4)})
        plain = answer(backend, None)
        watch = Watch()
        drafter = ChainDrafter(DraftModel(ArithmeticBackend(spec)), length=3)
        text = answer(backend, drafter, SpeculativeWithLogits(), watch)
        rows = decode_rows(backend, text)
    assert text == plain
    one = watch.noted(text)
    assert (one.start, len(one.ids)) == (9, 24)
    assert len(one.rejections) > 10  # another model's drafts are hardly ever right
    assert one.rejections == sorted(set(one.rejections))
    assert all(root <= last < len(text) - 1 for root, last in one.rejections)
    for place, (ids, probs) in enumerate(zip(one.ids, one.probs, strict=True), one.start):
        assert ids[0] == text[place], "greedy, the likeliest token is the one that follows"
        assert probs.sum() == pytest.approx(1, abs=1e-5)
        scores = rows[place - 1][ids]
        assert scores.tolist() == sorted(rows[place - 1].tolist())[:-33:-1]
        sharp = np.exp((scores - scores[0]) / online.GREEDY)
        np.testing.assert_allclose(probs, sharp / sharp.sum(), rtol=1e-3, atol=1e-6)


def test_an_interrupted_update_leaves_the_old_program_and_weights(
    target: Exported, engine: Engine, tmp_path: Path
) -> None:
    def fails(path: Path) -> Backend:
        raise KeyboardInterrupt

    first, model = engine.backend, target.model()
    before = {name: value.clone() for name, value in model.extra_state().items()}
    schedule = online.Schedule(every=2, learning_rate=1e-2)
    learner = Learner(StreamsStudent(model), target.program, tmp_path, engine.use, schedule, fails)
    learner.note(noted(step=2))
    with pytest.raises(KeyboardInterrupt):
        learner.note(noted(step=2))
    assert engine.backend is first
    assert (learner.updates, learner.buffer.fresh) == (0, 2)
    assert not list(tmp_path.iterdir())
    assert all(torch.equal(value, before[name]) for name, value in model.extra_state().items())


def test_a_full_buffer_drops_the_oldest_and_older_notes_are_replayed() -> None:
    buffer = online.Buffer(size=4)
    notes = [noted(seed) for seed in range(6)]
    for one in notes[:4]:
        buffer.add(one)
    buffer.learned()
    for one in notes[4:]:
        buffer.add(one)
    assert (len(buffer), buffer.fresh) == (4, 2)
    assert buffer.lesson(0) == notes[4:]
    assert {id(one) for one in buffer.lesson(9)} == {id(one) for one in notes[2:]}
    assert len(buffer.lesson(1)) == 3


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer must be at least 8, the answers between updates, not 4"):
        online.Schedule(buffer=4)
    with pytest.raises(ValueError, match="learning_rate must be positive, not 0"):
        online.Schedule(learning_rate=0)
    with pytest.raises(ValueError, match="streams learn online with an adapter of lossless mode"):
        StreamsStudent(tiny_model(BASE))
