"""Which sub-layers a model leaves out when it drafts for itself (Draft & Verify, Zhang et al., 2023, arXiv 2309.08168).

The authors search with Bayesian optimisation for the tokens per second of a few prompts. Here the search is the same
(Optuna's Gaussian process), and its objective is computed from two things that need no export: how often the shorter
model agrees with the text, and what share of a pass it costs. As in the engine, the shorter model reads the keys and
values that the whole model left in the cache. `streamfuse research layer-skip` searches over the answers that
`streamfuse data distill` wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from streamfuse.durable import write_text
from streamfuse.extras import need
from streamfuse.model.config import ModelConfig
from streamfuse.model.transformer import SharedKV, Transformer, attend_causal, hidden_in
from streamfuse.train.readers import read_samples, spread

if TYPE_CHECKING:
    import optuna

LONGEST = 8  # tokens drafted at most
_KINDS = ("attention", "mlp")
Text = tuple[list[int], int]  # token ids, and where the model's answer begins in them


@dataclass(frozen=True, slots=True)
class Choice:
    """What a search found.

    Attributes:
        skip: names of sub-layers, as `streamfuse research export --leave-out` takes them.
        agreement: share of the texts' tokens that the shorter model drafts (the function `agreement`).
        cost: its pass over the target's, by bytes of weights.
        speedup: expected over plain decoding, at the best length of a chain.
    """

    skip: tuple[str, ...]
    agreement: float
    cost: float
    speedup: float


def expected_speedup(agreement: float, cost: float, verify: float, longest: int = LONGEST) -> float:
    """Leviathan et al. (2211.17192, theorem 3.8), for the best chain of at most `longest` tokens.

    (1 - a^(g+1)) / (1 - a) tokens for g passes of `cost` and one of `verify`, both over a plain pass.
    """
    return max(
        sum(agreement**i for i in range(length + 1)) / (length * cost + verify) for length in range(1, longest + 1)
    )


def cost_of(config: ModelConfig, skip: Sequence[str]) -> float:
    """Bytes that a draft's pass reads over those of a whole one: its layers and the head."""
    h, kv = config.hidden_size, config.num_kv_heads * config.head_dim
    query = config.num_heads * config.head_dim
    sizes = {"attention": h * (2 * query + 2 * kv), "mlp": 3 * h * config.layer_mlp_sizes[0]}
    # The head's weights have 8 bits where those of the layers have 4.
    head, layers = 2 * config.vocab_size * h, config.num_layers * sum(sizes.values())
    return 1 - sum(sizes[name.split(".")[0]] for name in skip) / (layers + head)


@dataclass(frozen=True, slots=True)
class Context:
    """A text and what the whole model leaves of it in its cache.

    Attributes:
        ids: token ids.
        start: where the model's answer begins in them.
        caches: of each layer, rotated keys and values [1, len(ids) - 1, num_kv_heads, head_dim].
    """

    ids: list[int]
    start: int
    caches: list[tuple[Tensor, Tensor]]


@torch.inference_mode()
def read(base: Transformer, texts: Sequence[Text]) -> list[Context]:
    """The texts with the whole model's keys and values, which every trial of a search reads.

    Raises:
        OptionError: a layer is a convolution.
    """
    base.config.require_attention("research layer-skip")
    contexts = []
    for ids, start in texts:
        x: Tensor = base.embed(torch.tensor([ids[:-1]]))
        rotary = base.rotary(torch.arange(len(ids) - 1))
        caches = []
        for block in base.blocks:
            q, k, v = SharedKV().resolve(block, *block.qkv(x, *rotary[block.rotary]))
            caches.append((k, v))
            x = block.finish(x, attend_causal(q, k, v, block.window))
        contexts.append(Context(ids, start, caches))
    return contexts


@torch.inference_mode()
def agreement(base: Transformer, contexts: Sequence[Context], skip: Sequence[str]) -> float:
    """Share of the answers' tokens that the model without `skip` would draft as the first token after the text so far.

    Each row attends to the whole model's keys and values of the rows before it, and to its own of the shorter model.
    """
    left_out, hits, total = set(skip), 0, 0
    for context in contexts:
        ids, start = context.ids, context.start
        x: Tensor = base.embed(torch.tensor([ids[:-1]]))
        rotary = base.rotary(torch.arange(len(ids) - 1))
        for i, (block, cache) in enumerate(zip(base.blocks, context.caches, strict=True)):
            if f"attention.{i}" not in left_out:
                attended = _attend_cached(
                    *SharedKV().resolve(block, *block.qkv(x, *rotary[block.rotary])), *cache, block.window
                )
                x = block.add_attention(x, attended)
            if f"mlp.{i}" not in left_out:
                x = block.feed_forward(x)
        drafted = base.lm_head(base.norm(x))[0, start - 1 :].argmax(-1)
        hits += int((drafted == torch.tensor(ids[start:])).sum())
        total += len(drafted)
    return hits / max(total, 1)


def _attend_cached(q: Tensor, k: Tensor, v: Tensor, cached_k: Tensor, cached_v: Tensor, window: int | None) -> Tensor:
    """[1, R, Hq * D]: row i attends to cached rows 0..i-1, in its window, and to its own key and value."""
    rows, group = q.shape[1], q.shape[2] // k.shape[2]
    q = q.unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4) * q.shape[-1] ** -0.5  # [1, Hkv, group, R, D]
    k, v, cached_k, cached_v = (part.transpose(1, 2).unsqueeze(2) for part in (k, v, cached_k, cached_v))
    not_before = hidden_in(rows, window, q.device) | torch.eye(rows, dtype=torch.bool)
    before = (q @ cached_k.transpose(-1, -2)).masked_fill(not_before, float("-inf"))
    weights = torch.softmax(torch.cat([before, (q * k).sum(-1, keepdim=True)], -1), -1)
    out = weights[..., :-1] @ cached_v + weights[..., -1:] * v
    return out.permute(0, 3, 1, 2, 4).flatten(2)


def search(
    base: Transformer,
    texts: Sequence[Text],
    trials: int,
    verify: float,
    seed: int = 0,
    journal: Path | None = None,
    progress: Callable[[int, Choice], None] = lambda done, best: None,
) -> Choice:
    """The best sub-layers to leave out, over the model's own greedy texts.

    Args:
        trials: in all, those that `journal` has included.
        verify: what verifying a chain costs over a plain pass.
        journal: file that every trial is written to as it ends. A search of the same model, texts, `verify` and `seed`
            goes on from there; it draws other numbers than one that was never stopped.
        progress: gets the number of trials done and the best choice so far, first before the first trial of this run
            where the journal has some.

    Raises:
        MissingExtra: Optuna is not installed.
    """
    need("layer-skip")
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = [f"{kind}.{i}" for i in range(base.config.num_layers) for kind in _KINDS]
    contexts = read(base, texts)

    def measure(trial: optuna.Trial) -> float:
        skip = tuple(name for name in names if trial.suggest_float(name, 0.0, 1.0) > 0.5)  # as the authors draw them
        if len(skip) == len(names):
            return 0.0
        share, cost = agreement(base, contexts, skip), cost_of(base.config, skip)
        found = Choice(skip, share, cost, expected_speedup(share, cost, verify))
        trial.set_user_attr("choice", asdict(found))
        return found.speedup

    def done() -> list[optuna.trial.FrozenTrial]:
        return study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))

    def best() -> Choice:
        found = [one.user_attrs["choice"] for one in done() if "choice" in one.user_attrs]
        choices = [Choice(**{**one, "skip": tuple(one["skip"])}) for one in found]
        return max(choices, key=lambda choice: choice.speedup, default=Choice((), 1.0, 1.0, 0.0))

    storage = None if journal is None else optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
    name = _digest(base, texts, verify, seed)
    study = optuna.create_study(direction="maximize", storage=storage, study_name=name, load_if_exists=True)
    before = len(done())
    study.sampler = optuna.samplers.GPSampler(seed=seed + before)
    if before:
        progress(before, best())
    elif not study.trials:
        middle = range(base.config.num_layers // 3, base.config.num_layers - 2)
        for part in (middle[::2], middle[::3], middle[::4]):
            study.enqueue_trial({name: float(int(name.split(".")[1]) in part) for name in names})
    study.optimize(measure, max(trials - before, 0), callbacks=[lambda *_: progress(len(done()), best())])
    return best()


def _digest(base: Transformer, texts: Sequence[Text], verify: float, seed: int) -> str:
    """Name of a search: what two of them must share for one to go on where the other stopped."""
    norm = base.norm.weight.float().numpy().tobytes()  # no two models end in the same one
    return hashlib.sha256(norm + repr((base.config, list(texts), verify, seed)).encode()).hexdigest()


def read_texts(path: Path, limit: int) -> list[Text]:
    """`limit` answers of a file of `streamfuse data distill`, evenly from all. DataError for any other file."""
    found = [sample.ids for sample in spread(read_samples(path, "distilled"), limit)]
    return [(one.input_ids, one.start) for one in found if one is not None]


def write(choice: Choice, facts: dict[str, Any], path: Path) -> None:
    """`choice` and what it was found with as JSON, in one step."""
    record = asdict(choice)
    record |= {name: round(record[name], 4) for name in ("agreement", "cost", "speedup")}
    write_text(path, json.dumps({**record, **facts}, indent=2) + "\n")
