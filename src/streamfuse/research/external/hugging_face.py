"""Hugging Face transformers: plain `generate`, assisted generation and prompt look-up, on the processor.

Needs transformers (extra `research`). Weights are the checkpoint's own, in float32 or bfloat16 (`fastest`). All runs
in a `Child`: `open_system` is called there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from streamfuse.bench.external.answers import answer_of
from streamfuse.bench.shared.systems import Answer, ExternalSystemError, Request
from streamfuse.extras import need

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PLAIN, ASSISTED, LOOK_UP = "plain", "assisted", "look-up"
DTYPES = ("float32", "bfloat16")
_TRIAL_PROMPT, _TRIAL_TOKENS = range(1, 9), 24  # any tokens: time does not depend on which


def open_system(
    name: str, kind: str, folder: str, draft: str | None, drafted: int, threads: int, stop_ids: Sequence[int]
) -> HuggingFace:
    """One of the ways to generate, for a child. What it loads once serves all of them.

    Args:
        kind: `PLAIN`, `ASSISTED` by the checkpoint in `draft`, or by prompt `LOOK_UP`.
        drafted: tokens that are drafted at most.

    Raises:
        ExternalSystemError: as `load`.
    """
    import torch

    torch.set_num_threads(threads)
    model = _target(folder)
    options: dict[str, Any] = {}
    if kind == ASSISTED:
        assert draft is not None, "it is what assists"
        assistant = load(Path(draft), dtype_of(model))
        assistant.generation_config.num_assistant_tokens = drafted
        options["assistant_model"] = assistant
    elif kind == LOOK_UP:
        options["prompt_lookup_num_tokens"] = drafted
    return HuggingFace(name, model, stop_ids, options)


@cache
def _target(folder: str) -> PreTrainedModel:
    return fastest(Path(folder))


def fastest(folder: Path) -> PreTrainedModel:
    """A checkpoint folder in float32 or bfloat16, whichever decodes faster here: a few tokens of each, twice.

    Raises:
        MissingExtra, ExternalSystemError: as `load`.
    """
    asked = Request(_TRIAL_PROMPT, _TRIAL_TOKENS)
    models = [load(folder, dtype) for dtype in DTYPES]
    ms = [min(HuggingFace("trial", model, ()).answer(asked).decode_ms for _ in range(2)) for model in models]
    return models[ms.index(min(ms))]


def load(folder: Path, dtype: str = DTYPES[0]) -> PreTrainedModel:
    """A checkpoint folder, ready to generate. `dtype` is one of `DTYPES`.

    Raises:
        MissingExtra: transformers is not installed.
        ExternalSystemError: transformers cannot load it.
    """
    need("peer-hugging-face")
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        line = next(iter(str(error).strip().splitlines()), "")
        raise ExternalSystemError(
            f"{folder}: transformers cannot load this checkpoint ({line}); drop it from --peers"
        ) from None
    loaded: PreTrainedModel = model.eval()
    return loaded


class HuggingFace:
    """A model's `generate`. Several may share one model, as they take turns.

    `generate` reads the whole prompt in its first pass, after the first drafts are made, and keeps no cache that
    assisted generation could begin with. So the clock runs from the end of the first pass, and that pass is counted as
    the median of the later rounds: a round is from the end of one pass of the target to the end of the next, drafting
    included. What the draft model needs to read the prompt is not in it.

    Args:
        stop_ids: tokens that end an answer, as in the bundle that it is compared with.
        options: of `generate`: `assistant_model`, or `prompt_lookup_num_tokens`.
    """

    def __init__(
        self, name: str, model: PreTrainedModel, stop_ids: Sequence[int], options: Mapping[str, Any] | None = None
    ) -> None:
        import transformers

        self.name = name
        self._program = f"transformers {transformers.__version__}, {dtype_of(model)}"
        self._model, self._stop_ids, self._options = model, list(stop_ids), dict(options or {})

    def answer(self, request: Request) -> Answer:
        import torch

        prompt = torch.tensor([list(request.prompt_ids)])
        generate: Any = self._model.generate
        options: dict[str, Any] = {**self._options, "do_sample": request.temperature > 0}
        if request.temperature > 0:
            options |= {"temperature": request.temperature, "top_k": 0, "top_p": 1.0}
            torch.manual_seed(request.seed)
        ends: list[float] = []
        hook = self._model.register_forward_hook(lambda *_: ends.append(time.perf_counter()))
        start = time.perf_counter()
        try:
            with torch.inference_mode():
                text = generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=request.max_new_tokens,
                    eos_token_id=self._stop_ids, pad_token_id=next(iter(self._stop_ids), 0), **options,
                )  # fmt: skip
        except (RuntimeError, ValueError, TypeError) as error:
            line = next(iter(str(error).strip().splitlines()), "")
            raise ExternalSystemError(f"{self.name}: {line}; drop it from --peers") from None
        finally:
            hook.remove()
        end = time.perf_counter()
        tokens = text[0, prompt.shape[1] :].tolist()
        first_ms = 1000 * (ends[0] - start)
        spent = decode_ms(start, ends, end)
        return answer_of(tokens, self._stop_ids, len(tokens), len(ends), spent, first_ms, self._program)


def dtype_of(model: PreTrainedModel) -> str:
    """One of `DTYPES`."""
    return str(model.dtype).removeprefix("torch.")


def decode_ms(start: float, ends: Sequence[float], end: float) -> float:
    """The clock of `HuggingFace`, of seconds.

    Args:
        ends: when each pass of the target ended. One alone counts whole, the prompt with it.
    """
    rounds = [after - before for before, after in pairwise(ends)]
    return 1000 * (end - ends[0] + median(rounds) if rounds else end - start)
