"""A draft model that learns while it drafts: its program gets new weights without an export, and no text changes.

Run: python -m pytest tests/unit/test_lab_online.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from export_samples import TEXT, decode_rows, plan_for, tiny_model, write_checkpoint
from fakes import ArithmeticBackend
from streamfuse.export.pipeline import export_bundle
from streamfuse.export.plan import ExportPlan, Schedule
from streamfuse.lab.acceptors import SpeculativeAcceptor
from streamfuse.lab.drafters.chain import ChainDrafter
from streamfuse.lab.drafters.model import DraftModel
from streamfuse.lab.online import OnlineDraft, Rejected, Watch, packed
from streamfuse.lab.replaced import Replaceable, ReplaceError
from streamfuse.model.checkpoint import load_base, load_stream_fused, save_adapter
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.loop import Loop

BASE = {"num_msa_layers": 1, "adapter_rank": 0, "pruner_rank": 0, "parent_rank": 0, "num_streams": 1,
        "base_rank": 4, "base_layers": 3}  # fmt: skip


@dataclass(frozen=True)
class Exported:
    checkpoint: tuple[Path, Path]
    plan: ExportPlan

    @property
    def program(self) -> Path:
        return self.plan.output_dir / "model.pte"

    def model(self) -> StreamFused:
        """As it was exported, with its adapters beside the base."""
        return load_stream_fused(load_base(self.checkpoint[0]), self.checkpoint[1], merge=False)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("online")
    (folder / "model").mkdir()
    checkpoint = write_checkpoint(folder / "model", tiny_model(BASE))
    one = {"widths": (4,), "default_width": 4, "prune_keep": 4, "schedule": Schedule.DEFERRED, "merge_adapter": "on"}
    plan = plan_for(checkpoint, folder / "draft", **one)
    export_bundle(plan)
    return Exported(checkpoint, plan)


def noted(seed: int = 0) -> Rejected:
    """A text whose right tokens, after each of its places, are those of a target that says one token for certain."""
    random = np.random.default_rng(seed)
    at = [4, 9, 14, 19]
    ids = np.tile(np.arange(32), (len(at), 1)).astype(np.int64)
    probs = np.zeros((len(at), 32), np.float32)
    probs[np.arange(len(at)), random.integers(32, size=len(at))] = 1
    return Rejected(list(TEXT[:24]), at, ids, probs)


def test_a_program_with_replaced_weights_is_the_export_of_the_new_model(exported: Exported, tmp_path: Path) -> None:
    model = exported.model()
    program = Replaceable(exported.program, packed(model.merged()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("base_adapters."):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    changed = program.write(tmp_path / "new.pte", packed(model.merged()))
    assert len(changed) == 3 * 4  # three layers: q, k, v in one; output; gate and up in one; down
    assert not program.write(tmp_path / "same.pte", packed(exported.model().merged()))
    assert (tmp_path / "same.pte").read_bytes() == exported.program.read_bytes()
    adapter = tmp_path / "new.safetensors"
    save_adapter(model, adapter)
    one = {"widths": (4,), "default_width": 4, "prune_keep": 4, "schedule": Schedule.DEFERRED, "merge_adapter": "on"}
    again = plan_for((exported.checkpoint[0], adapter), tmp_path / "again", allow_parity_below=("int4",), **one)
    export_bundle(again)
    rows = []
    for path in (tmp_path / "new.pte", again.output_dir / "model.pte", exported.program):
        with ExecuTorchBackend(path) as backend:
            rows.append(decode_rows(backend, TEXT[:12]))
    # The adapter file keeps float16, so a few weights of the new export may lie one step beside.
    noise = ((rows[0] - rows[1]) ** 2).mean() / ((rows[0] - rows[2]) ** 2).mean()
    assert noise < 0.02


def test_weights_of_another_program_are_refused(exported: Exported, tmp_path: Path) -> None:
    other = packed(tiny_model(BASE).merged())
    with pytest.raises(ReplaceError, match=r"model.pte does not hold .*; it was exported from other weights"):
        Replaceable(exported.program, other)
    own = packed(exported.model().merged())
    program = Replaceable(exported.program, own)
    name = next(iter(own))
    with pytest.raises(ReplaceError, match=f"{name} has 3 bytes, and the program has room for"):
        program.write(tmp_path / "x.pte", {**own, name: torch.zeros(3, dtype=torch.uint8)})


def test_a_draft_learns_what_it_is_told_every_few_answers(exported: Exported, tmp_path: Path) -> None:
    online = OnlineDraft(exported.model(), exported.program, tmp_path, every=2, learning_rate=1e-2, steps=4)
    first = online.draft.backend
    online.note(noted())
    assert online.updates == 0
    online.note(noted())
    assert online.updates == 1
    assert online.draft.backend is not first
    for _ in range(3):
        online.note(noted())
        online.note(noted())
    assert online.losses[-1] < 0.6 * online.losses[0]
    assert [path.name for path in tmp_path.glob("*.pte")] == ["draft-4.pte"]
    with online.draft.backend as backend:  # the program says what the model in PyTorch does
        rows = decode_rows(backend, TEXT[:24])
    right = [int(noted().ids[i][noted().probs[i].argmax()]) for i in range(4)]
    said = [int(rows[place].argmax()) for place in noted().at]
    assert sum(a == b for a, b in zip(said, right, strict=True)) >= 3


def test_only_rejected_places_are_noted_and_the_text_is_plain_decodings(exported: Exported) -> None:
    with ExecuTorchBackend(exported.program) as target:
        vocab = target.spec.vocab_size
        plain = Loop(target, list(TEXT[:9]), GenerationConfig(24, speculative=False, ignore_eos=True))
        list(plain.run())
        target.truncate(0)
        spec = ModelSpec(target.spec.capacity, vocab, 0, 0, 16, {"verify_4": (4, 4)})
        watch = Watch()
        loop = Loop(
            target, list(TEXT[:9]), GenerationConfig(24, width=4, ignore_eos=True),
            ChainDrafter(DraftModel(ArithmeticBackend(spec)), length=3), NeedsLogits(), observe=watch,
        )  # fmt: skip
        list(loop.run())
    assert loop.tokens == plain.tokens
    found = watch.rejected(loop.tokens)
    assert found.at == sorted(set(found.at))
    assert len(found.at) > 10  # another model's drafts are hardly ever right
    for place, ids, probs in zip(found.at, found.ids, found.probs, strict=True):
        assert ids[0] == loop.tokens[place + 1], "greedy, the likeliest token is the one that follows"
        assert probs.sum() == pytest.approx(1, abs=1e-5)


class NeedsLogits(SpeculativeAcceptor):
    needs_logits = True
