"""Online speculative decoding in the comparison: one pass over a mix of prompts that shifts from set to set."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamfuse.adapters import find
from streamfuse.lab.acceptors import SpeculativeAcceptor
from streamfuse.lab.drafters.chain import ChainDrafter
from streamfuse.lab.online import OnlineDraft, Watch
from streamfuse.runtime.backend import Backend

from .methods import DataSet, MethodsResult, figures
from .methods_bundles import ADAPTERS, DRAFT_LAYERS
from .methods_costs import DEVICES, computed_speedup
from .methods_list import BASELINE, DRAFT, ONLINE, SAME_DISTRIBUTION, SAME_TOKENS
from .methods_system import LoopSystem
from .systems import Answer
from .tasks import TaskSettings

_CHAIN, _EVERY, _STEPS = 4, 4, 4  # tokens per chain; answers between updates, and steps of each
_LEARNING_RATE = 1e-3  # ten times the paper's, as low-rank products learn and few answers are written


class _Noted(SpeculativeAcceptor):
    needs_logits = True  # what the target says where a draft is rejected is what the draft learns from


@contextmanager
def opened(model: str, program: Path) -> Iterator[OnlineDraft]:
    """The draft model of the comparison, ready to learn; its files live as long as the block.

    Args:
        model: name or folder of the target's checkpoint.
        program: the draft model's exported file.
    """
    from streamfuse.lab.first_layers import write_first_layers
    from streamfuse.model.checkpoint import load_base, load_stream_fused
    from streamfuse.model.pull import resolve_model

    with tempfile.TemporaryDirectory(prefix="streamfuse-online-") as name:
        folder = Path(name)
        write_first_layers(resolve_model(model), DRAFT_LAYERS, folder / "checkpoint")
        draft = load_stream_fused(load_base(folder / "checkpoint"), find(ADAPTERS[DRAFT]), merge=False)
        online = OnlineDraft(draft, program, folder, _EVERY, _LEARNING_RATE, _STEPS)
        try:
            yield online
        finally:
            online.draft.backend.close()


def row(
    online: OnlineDraft,
    target: Backend,
    result: MethodsResult,
    settings: TaskSettings,
    extra: Mapping[str, Any],
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Answer all prompts once, set after set, learning on the way; a row of `MethodsResult.to_dict`.

    Each prompt is asked once, as learning would see a second time what it was taught. So speeds have no interval. An
    update stands between two answers, outside of their clocks.
    """
    results: dict[str, Any] = {}
    tokens = 0
    for one in result.data:
        answers = list(_answers(online, target, one, settings, progress))
        plain = result.answers(BASELINE, one.name)
        found = figures(one, answers, plain, result.text, True, tokens)
        ms, plain_ms = (sum(answer.decode_ms for answer in some) for some in (answers, plain))
        rate, plain_rate = found["generated_tokens"] / ms, sum(len(a.token_ids) for a in plain) / plain_ms
        results[one.name] = {
            **found, "tokens_per_second": 1000 * rate, "tokens_per_second_interval": None,
            "speedup": rate / plain_rate, "speedup_interval": None,
        }  # fmt: skip
        tokens += found["generated_tokens"]
    return {
        "about": f"the chain's draft model, distilled every {_EVERY} answers on what was rejected",
        "source": "Liu et al., 2023, arXiv 2310.07177",
        "drafter": "model",
        "acceptor": SpeculativeAcceptor.name,
        "tree": "chain",
        "lossless": True,
        "promises": SAME_DISTRIBUTION if settings.temperature else SAME_TOKENS,
        **extra,
        "updates": online.updates,
        "results": results,
        "computed": {
            device: {
                data: computed_speedup(said["passes"], said["generated_tokens"], result.costs[device])
                for data, said in results.items()
            }
            for device in DEVICES
        },
    }


def _answers(
    online: OnlineDraft, target: Backend, data: DataSet, settings: TaskSettings, progress: Callable[[str], None]
) -> Iterator[Answer]:
    for number, prompt in enumerate(data.prompts):
        progress(f"{ONLINE}, {data.name}: prompt {number + 1} of {len(data.prompts)}")
        watch, passes = Watch(), online.draft.passes
        system = LoopSystem(
            ONLINE, target, lambda sampling: ChainDrafter(online.draft, sampling, length=_CHAIN), _Noted(), 8,
            own_passes=lambda passes=passes: Counter(passes), observe=watch,  # type: ignore[misc]
        )  # fmt: skip
        answer = system.answer(settings.request(number, prompt))
        yield answer
        online.note(watch.rejected([*prompt, *answer.token_ids]))
