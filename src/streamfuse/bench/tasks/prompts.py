"""The questions of a task bench as token ids: those that fit a bundle's context, and ones that nobody can draft."""

from __future__ import annotations

import numpy as np

from streamfuse.bundle import Manifest
from streamfuse.runtime.text import Tokenizer

ADVERSARIAL_TEMPERATURE = 1.5
ADVERSARIAL_PROMPTS = 16  # where nobody says how many
WORDS, WORD_TOKENS = 24, 2  # of an adversarial prompt


class PromptsError(ValueError):
    """Prompts are not available; the message is one sentence."""


def none_fits(max_new_tokens: int, context: int) -> PromptsError:
    """The error where no prompt leaves room for its answer."""
    return PromptsError(
        f"no prompt with {max_new_tokens} new tokens fits into {context} of context; lower --max-new-tokens"
    )


def fitting(prompts: list[list[int]], manifest: Manifest, max_new_tokens: int) -> list[int]:
    """The places of the prompts that leave room for their answers. PromptsError where there is none."""
    room = manifest.cache.capacity - max_new_tokens
    found = [place for place, prompt in enumerate(prompts) if len(prompt) <= room]
    if not found:
        raise none_fits(max_new_tokens, manifest.cache.capacity)
    return found


def random_words(text: Tokenizer, vocab_size: int, count: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens' texts, the same for the same seed."""
    random = np.random.default_rng(seed)
    prompts = []
    for _ in range(count):
        words = [text.decode(random.integers(vocab_size, size=WORD_TOKENS).tolist()).strip() for _ in range(WORDS)]
        message = " ".join(word for word in words if word)
        prompts.append(
            text.encode_chat([{"role": "user", "content": message}]) if text.can_chat else text.encode(message)
        )
    return prompts
