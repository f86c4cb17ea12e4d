"""Questions of several turns: every turn is asked with the model's own answers to the turns before it, and with the
messages that a row of `messages` begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from streamfuse.runtime.text import Conversation, Tokenizer

if TYPE_CHECKING:
    from streamfuse.train.formats import Sample

Answered = Callable[[list[int]], None]  # takes the tokens of an answer
Writer = Callable[[int, Sequence[int]], Sequence[int]]  # number of a prompt and its tokens -> those of the answer


def turns(sample: Sample, text: Tokenizer) -> Iterator[tuple[list[int], Answered]]:
    """The prompt of each turn, and what takes its answer before the next.

    A model that has no chat template is asked the first turn only.
    """
    from streamfuse.train.readers import encode_prompt

    if sample.ids is not None or not text.can_chat:
        yield encode_prompt(sample, text), lambda token_ids: None
        return
    conversation = Conversation(text, history=sample.before, tools=sample.tools)
    for turn in sample.turns:
        yield conversation.ask(turn), conversation.answer


def all_turns(samples: Sequence[Sample], text: Tokenizer, room: int, write: Writer) -> list[tuple[list[int], Sample]]:
    """The prompts of all turns of all samples, one after another, each with the sample up to that turn.

    Answers to last turns are not asked for. Where the context of a turn is longer than `room` tokens, the sample ends
    before it. References are to a last turn, so the samples of earlier ones have none.
    """
    asked: list[tuple[list[int], Sample]] = []
    for sample in samples:
        for number, (prompt, answered) in enumerate(turns(sample, text), 1):
            if len(prompt) > room:
                break
            last = number >= len(sample.turns)
            so_far = sample if last else replace(sample, turns=sample.turns[:number], references=())
            asked.append((prompt, so_far))
            if not last:
                answered(list(write(len(asked) - 1, prompt)))
    return asked


def questions(samples: Sequence[Sample]) -> list[list[int]]:
    """Places of the turns of each question, in samples as `all_turns` gives them."""
    found: list[list[int]] = []
    for place, sample in enumerate(samples):
        if len(sample.turns) > 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found
