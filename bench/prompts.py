"""The questions of a task bench, as token ids: a data file's, or ones that no drafter can foresee."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamfuse.bundle import Manifest
from streamfuse.text_io import TextIO

if TYPE_CHECKING:
    from .tasks import TaskSettings

ADVERSARIAL = "adversarial"
ADVERSARIAL_TEMPERATURE = 1.5
_ADVERSARIAL_PROMPTS = 16
_WORDS, _WORD_TOKENS = 24, 2


class PromptsError(ValueError):
    """Prompts that cannot be had, said in one sentence."""


def read_prompts(
    data: str, text: TextIO, manifest: Manifest, limit: int | None, settings: TaskSettings
) -> tuple[list[list[int]], int]:
    """Token ids of `limit` prompts spread evenly over the data, and how many did not fit with their answers.

    Questions with several turns are asked their first one. `data` is a file of JSON lines or `adversarial`.

    Raises:
        DataError: the file cannot be used.
        PromptsError: no prompt fits.
    """
    if data == ADVERSARIAL:
        prompts = random_words(text, manifest.model.vocab_size, limit or _ADVERSARIAL_PROMPTS, settings.seed)
    else:
        from streamfuse.train.readers import encode_prompt, merged, read_samples

        samples = merged(read_samples(data))
        count = min(limit or len(samples), len(samples))
        prompts = [encode_prompt(samples[i * len(samples) // count], text) for i in range(count)]
    room = manifest.cache.capacity - settings.max_new_tokens
    fitting = [prompt for prompt in prompts if len(prompt) <= room]
    if not fitting:
        raise PromptsError(
            f"{data}: no prompt with {settings.max_new_tokens} new tokens fits into the bundle's context"
        )
    return fitting, len(prompts) - len(fitting)


def random_words(text: TextIO, vocab_size: int, count: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens' texts, the same for the same seed."""
    random = np.random.default_rng(seed)
    prompts = []
    for _ in range(count):
        words = [text.decode(random.integers(vocab_size, size=_WORD_TOKENS).tolist()).strip() for _ in range(_WORDS)]
        said = " ".join(word for word in words if word)
        prompts.append(text.encode_chat([{"role": "user", "content": said}]) if text.can_chat else text.encode(said))
    return prompts
