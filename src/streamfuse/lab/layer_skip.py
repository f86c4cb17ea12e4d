"""Which sub-layers a model leaves out when it drafts for itself (Draft & Verify, Zhang et al., 2023, arXiv 2309.08168).

The authors search with Bayesian optimisation for the tokens per second of a few prompts. Here the search is the same
(Optuna's TPE sampler), and its objective is computed from two things that need no export: how often the shorter model
agrees with the text, and what share of a pass it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streamfuse.extras import need
from streamfuse.model.config import ModelConfig
from streamfuse.model.transformer import Transformer, attend_causal

if TYPE_CHECKING:
    import optuna

LONGEST = 8  # tokens drafted at most
_KINDS = ("attention", "mlp")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a search found.

    Attributes:
        skip: names of sub-layers, as `export --draft-skip` takes them.
        agreement: share of the text's tokens that the shorter model gives.
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
    sizes = {"attention": h * (2 * query + 2 * kv), "mlp": 3 * h * config.intermediate_size}
    # The head's weights have 8 bits where those of the layers have 4.
    head, layers = 2 * config.vocab_size * h, config.num_layers * sum(sizes.values())
    return 1 - sum(sizes[name.split(".")[0]] for name in skip) / (layers + head)


@torch.inference_mode()
def agreement(base: Transformer, texts: Sequence[tuple[list[int], int]], skip: Sequence[str]) -> float:
    """Share of the tokens of `texts` from each one's start on that the model without `skip` would draft."""
    left_out, hits, total = set(skip), 0, 0
    for ids, start in texts:
        x: Tensor = base.embed_tokens(torch.tensor([ids[:-1]]))
        cos, sin = base.rotary(torch.arange(len(ids) - 1))
        for i, block in enumerate(base.blocks):
            if f"attention.{i}" not in left_out:
                x = x + block.self_attn.o_proj(attend_causal(*block.qkv(x, cos, sin)))
            if f"mlp.{i}" not in left_out:
                x = block.feed_forward(x)
        said = base.lm_head(base.norm(x))[0, start - 1 :].argmax(-1)
        hits += int((said == torch.tensor(ids[start:])).sum())
        total += len(said)
    return hits / max(total, 1)


def search(
    base: Transformer,
    texts: Sequence[tuple[list[int], int]],
    trials: int = 200,
    verify: float = 1.33,
    seed: int = 0,
    progress: Callable[[int, Choice], None] = lambda done, best: None,
) -> Choice:
    """The best sub-layers to leave out, over the model's own greedy texts (token ids, where its answer begins).

    Args:
        verify: what verifying a chain costs over a plain pass.
        progress: gets the number of trials done and the best choice so far.

    Raises:
        MissingExtra: Optuna is not installed.
    """
    need("layer-skip")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = [f"{kind}.{i}" for i in range(base.config.num_layers) for kind in _KINDS]
    best = Choice((), 1.0, 1.0, 0.0)

    def measure(trial: optuna.Trial) -> float:
        nonlocal best
        skip = tuple(name for name in names if trial.suggest_float(name, 0.0, 1.0) > 0.5)  # as the authors draw them
        if len(skip) == len(names):
            return 0.0
        share, cost = agreement(base, texts, skip), cost_of(base.config, skip)
        found = Choice(skip, share, cost, expected_speedup(share, cost, verify))
        best = max(best, found, key=lambda choice: choice.speedup)
        progress(trial.number + 1, best)
        return found.speedup

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    middle = range(base.config.num_layers // 3, base.config.num_layers - 2)
    for part in (middle[::2], middle[::3], middle[::4]):
        study.enqueue_trial({name: float(int(name.split(".")[1]) in part) for name in names})
    study.optimize(measure, n_trials=trials)
    return best
