"""The n-gram objective against a slow sum over tokens; that training lowers it and leaves the base alone.

Run: python -m pytest tests/train/test_train_objective.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional as F

from streamfuse.model.streams import Segments, StreamFused
from streamfuse.runtime.reference.draft import grow
from streamfuse.train.data import Example, FrozenStates, StreamDataset, collate, draw_anchors
from streamfuse.train.evaluate import draft_tables
from streamfuse.train.objective import NGramObjective

EXAMPLES = [Example([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], 4), Example([2, 7, 1, 8, 2, 8, 1, 8, 2], 3)]


def batch_of(model: StreamFused, folder: Path) -> dict[str, torch.Tensor]:
    dataset = StreamDataset(EXAMPLES, FrozenStates(model, EXAMPLES, folder / "frozen"))
    return collate([dataset[i] for i in range(len(EXAMPLES))])


@pytest.mark.parametrize(("parent_rank", "told", "decay"), [(0, 0, 1.0), (4, 0, 0.5), (4, 2, 1.0)])
def test_the_loss_per_token_is_what_a_slow_sum_gives(parent_rank: int, told: int, decay: float, tmp_path: Path) -> None:
    vocab = torch.tensor([1, 2, 3, 5, 8])
    model = tiny.fused(tiny.base(), vocab, parent_rank=parent_rank, pruner_rank=0, next_token_rank=told)
    batch = batch_of(model, tmp_path)
    after = torch.cat([torch.tensor(example.input_ids[example.start :]) for example in EXAMPLES])
    segments = Segments(batch["segments"])
    packed = model.stream_states(batch["frozen"][None], batch["at"][None], segments, known=after[None]).streams[0]
    states = packed.split([carrying for _, carrying in batch["segments"]])
    losses = []
    for b, example in enumerate(EXAMPLES):
        text = example.input_ids
        for p, t in enumerate(range(example.start - 1, len(text) - 1)):
            for j in (1, 2, 3):
                if t + 1 + j >= len(text) or text[t + 1 + j] not in vocab.tolist():
                    continue
                target = torch.tensor(vocab.tolist().index(text[t + 1 + j]))
                plain = states[b][p, j - 1] @ model.head_rows().T
                loss = F.cross_entropy(plain, target)
                if parent_rank:
                    left = model.parent.left_rows(model.base.embed_tokens.weight[text[t + j]][None])[0]
                    term = (left * model.parent.gate[j - 1]) @ model.parent.right_rows(model.head_rows()).T
                    loss = 0.5 * loss + 0.5 * F.cross_entropy(plain + term, target)
                losses.append(loss * decay ** (j - 1))
    out = NGramObjective(model, alpha_streams=0.2, stream_decay=decay)(**batch)
    tokens = sum(len(example.input_ids) - example.start for example in EXAMPLES)
    assert int(out["tokens"]) == tokens
    torch.testing.assert_close(out["loss"], 0.2 * torch.stack(losses).sum() / tokens, atol=1e-5, rtol=1e-5)
    assert int(out["streams"][2].sum()) == len(losses)
    assert bool((out["streams"][:2] <= out["streams"][2]).all())


def test_shared_mode_adds_the_next_token_loss_of_the_tuned_base(tmp_path: Path) -> None:
    model = tiny.fused(tiny.base(), pruner_rank=0, base_rank=2, base_layers=3)
    batch = batch_of(model, tmp_path)
    merged = model.merged()
    losses = []
    for example in EXAMPLES:
        logits = merged.base(torch.tensor([example.input_ids]))[0]
        targets = torch.tensor(example.input_ids[example.start :])
        losses.append(F.cross_entropy(logits[example.start - 1 : -1], targets, reduction="none"))
    expected = torch.cat(losses)
    alone = NGramObjective(model, alpha_main=2.0, alpha_streams=0.0)(**batch)
    torch.testing.assert_close(alone["loss"], 2.0 * expected.mean(), atol=1e-3, rtol=1e-3)  # float16 states
    streams = NGramObjective(model, alpha_main=0.0, alpha_streams=0.3)(**batch)
    both = NGramObjective(model, alpha_main=2.0, alpha_streams=0.3)(**batch)
    torch.testing.assert_close(both["loss"], alone["loss"] + streams["loss"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(both["main"][0], expected.sum(), atol=1e-2, rtol=1e-3)
    both["loss"].backward()
    untouched = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert untouched == []


def test_a_packed_batch_has_the_loss_of_its_texts(tmp_path: Path) -> None:
    model = tiny.fused(tiny.base(), pruner_rank=0)
    dataset = StreamDataset(EXAMPLES, FrozenStates(model, EXAMPLES, tmp_path / "frozen"))
    objective = NGramObjective(model)
    both, *single = (objective(**collate(rows)) for rows in ([dataset[0], dataset[1]], [dataset[0]], [dataset[1]]))
    counts = [out["tokens"].item() for out in single]
    mean = sum(out["loss"].item() * n for out, n in zip(single, counts, strict=True)) / sum(counts)
    assert both["loss"].item() == pytest.approx(mean, abs=1e-5)
    assert torch.equal(both["streams"], single[0]["streams"] + single[1]["streams"])


def test_anchors_lose_what_they_lose_among_all_tokens(tmp_path: Path) -> None:
    model = tiny.fused(tiny.base(), parent_rank=4)
    dataset = StreamDataset(EXAMPLES, FrozenStates(model, EXAMPLES, tmp_path / "frozen"))
    objective, rows = NGramObjective(model, stream_decay=0.5), [dataset[0]]
    torch.manual_seed(1)
    some = draw_anchors(collate(rows), 0.5)
    single = [collate(rows) for _ in some["at"]]
    for batch, place, left in zip(single, some["at"], some["left"], strict=True):
        batch["at"], batch["left"], batch["segments"] = place[None], left[None], [(len(batch["ids"]), 1)]
    one_by_one = [objective(**batch) for batch in single]
    out = objective(**some)
    torch.testing.assert_close(out["loss"], torch.stack([one["loss"] for one in one_by_one]).mean())
    assert torch.equal(out["streams"], torch.stack([one["streams"] for one in one_by_one]).sum(0))


def test_a_few_steps_lower_the_loss_and_leave_the_base_as_it_was(tmp_path: Path) -> None:
    base = tiny.base()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = tiny.fused(base)
    objective, batch = NGramObjective(model), batch_of(model, tmp_path)
    optimizer = torch.optim.AdamW(model.extra_parameters(), lr=2e-2)
    losses = []
    for _ in range(25):
        loss = objective(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(parameter.grad is None for parameter in base.parameters())
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    untouched = [
        name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    assert untouched == []


def test_a_softmax_pruner_learns_the_next_token(tmp_path: Path) -> None:
    model = tiny.fused(tiny.base(), parent_rank=0, pruner_score="softmax")
    batch = batch_of(model, tmp_path)
    without = StreamFused(model.base, replace(model.streams_config, pruner_rank=0))
    without.load_state_dict(model.state_dict(), strict=False)
    states = model.stream_states(batch["frozen"][None], batch["at"][None], Segments(batch["segments"])).below[0]
    losses = []
    for t in batch["at"].tolist():
        logits = model.pruner.early_exit(model.base.norm(states[t])) @ model.base.lm_head.weight.T
        losses.append(-torch.log_softmax(logits, -1)[batch["ids"][t + 1]])
    with_pruner, streams = (NGramObjective(one, alpha_streams=0.1)(**batch) for one in (model, without))
    torch.testing.assert_close(with_pruner["loss"] - streams["loss"], 0.1 * torch.stack(losses).mean())
    with_pruner["loss"].backward()
    assert model.pruner.low_rank.up.grad is not None
    assert model.pruner.low_rank.up.grad.any()


def test_streams_that_are_told_half_of_the_time_learn_both(tmp_path: Path) -> None:
    """Each of the tokens is told or not; all of them told and none of them are the two ends."""
    model = tiny.fused(tiny.base(), pruner_rank=0, next_token_rank=2)
    batch = batch_of(model, tmp_path)
    always, half, never = (NGramObjective(model, next_token_dropout=part) for part in (0.0, 0.5, 1.0))
    packed = batch["frozen"][None], batch["at"][None], Segments(batch["segments"])
    untold = model.stream_states(*packed).streams
    known = batch["ids"][batch["at"] + 1]
    told = model.stream_states(*packed, known[None]).streams
    assert torch.equal(model.stream_states(*packed, never.told(batch["ids"], batch["at"])[None]).streams, untold)
    assert torch.equal(always.told(batch["ids"], batch["at"]), known)
    torch.manual_seed(2)
    drawn = half.told(batch["ids"], batch["at"])
    some = model.stream_states(*packed, drawn[None]).streams
    assert 0 < int((drawn >= 0).sum()) < len(drawn)
    torch.testing.assert_close(some, torch.where((drawn >= 0)[:, None, None], told, untold))
    losses = [objective(**batch)["loss"].item() for objective in (always, never)]
    assert losses[0] != losses[1]
    torch.manual_seed(2)
    assert half(**batch)["loss"].item() not in losses


def test_the_pruner_learns_without_moving_the_streams(tmp_path: Path) -> None:
    model = tiny.fused(tiny.base(), parent_rank=0)
    batch = batch_of(model, tmp_path)
    objective = NGramObjective(model)
    with_pruner = objective(**batch)["loss"]
    with_pruner.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    plain = tiny.fused(model.base, parent_rank=0, pruner_rank=0)
    plain.load_state_dict({n: v for n, v in model.extra_state().items() if not n.startswith("pruner.")}, strict=False)
    NGramObjective(plain)(**batch)["loss"].backward()
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-5)


def test_its_state_is_the_adapters_and_refuses_another_vocabulary() -> None:
    base = tiny.base()
    one = NGramObjective(tiny.fused(base, torch.arange(0, 20)))
    state = {name: value.clone() for name, value in one.state_dict().items()}
    assert state.keys() == one.model.extra_state().keys()
    again = NGramObjective(tiny.fused(base, torch.arange(0, 20)))
    result = again.load_state_dict(state, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())
    with pytest.raises(ValueError, match="another stream vocabulary"):
        NGramObjective(tiny.fused(base, torch.arange(1, 21))).load_state_dict(state)
    with pytest.raises(ValueError, match="other parts"):
        NGramObjective(tiny.fused(base, torch.arange(0, 20), pruner_rank=0)).load_state_dict(state)


def test_the_parent_term_is_what_the_tables_of_the_host_say() -> None:
    """What training minds along the true path, and what growth of a full tree says of the same path."""
    model = tiny.fused(tiny.base(), parent_rank=4)
    tables = draft_tables(model)
    text, t = EXAMPLES[0].input_ids, 4
    states = model.stream_states(model.frozen_states(torch.tensor([text])), torch.tensor([[t]])).streams[0, 0]
    plain = states.float() @ model.head_rows().T
    ids = np.tile(np.arange(tiny.VOCAB_SIZE), (3, 1))
    tree = grow(text[t + 1], ids, torch.log_softmax(plain, -1).detach().numpy(), 40**3, 3, tables)
    row, chain = 0, []
    for token in text[t + 2 : t + 5]:
        child = tree.child(row, token)
        assert child is not None
        chain.append(tree.log_probs[child] - tree.log_probs[row])
        row = child
    rows = model.parent.left_rows(model.base.embed_tokens.weight[torch.tensor(text[t + 1 : t + 4])])
    term = (rows * model.parent.gate) @ model.parent.right_rows(model.head_rows()).T
    expected = torch.log_softmax(plain + term, -1)[range(3), text[t + 2 : t + 5]]
    torch.testing.assert_close(torch.tensor(chain), expected.detach().double(), atol=2e-2, rtol=0)  # float16 tables


def test_soft_targets_mix_the_text_with_what_the_base_says(tmp_path: Path) -> None:
    vocab = torch.tensor([1, 2, 3, 5, 8])
    model = tiny.fused(tiny.base(), vocab, parent_rank=0, pruner_rank=0)
    batch = batch_of(model, tmp_path)
    packed = model.stream_states(batch["frozen"][None], batch["at"][None], Segments(batch["segments"])).streams[0]
    states = packed.split([carrying for _, carrying in batch["segments"]])
    losses = []
    for b, example in enumerate(EXAMPLES):
        text = example.input_ids
        probabilities = torch.softmax(model.base(torch.tensor([text]))[0][:, vocab], -1)
        for p, t in enumerate(range(example.start - 1, len(text) - 1)):
            for j in (1, 2, 3):
                if t + 1 + j < len(text) and text[t + 1 + j] in vocab.tolist():
                    hard = F.one_hot(torch.tensor(vocab.tolist().index(text[t + 1 + j])), 5)
                    target = 0.25 * hard + 0.75 * probabilities[t + j]
                    losses.append(F.cross_entropy(states[b][p, j - 1] @ model.head_rows().T, target))
    out = NGramObjective(model, alpha_streams=0.2, soft_targets=0.75)(**batch)
    tokens = sum(len(example.input_ids) - example.start for example in EXAMPLES)
    expected = 0.2 * torch.stack(losses).sum() / tokens
    torch.testing.assert_close(out["loss"], expected, atol=2e-3, rtol=2e-3)  # frozen states in float16
