"""Run a chat that is longer than the context, with and without speculation: compare answers, and time dropped turns.

    python tools/long_chat.py build/demo --tokens 10000
    python tools/long_chat.py build/demo --tokens 10000 --context-policy fail    # ends where the context is full

Two chats of one model get the same questions, in turns: built-in ones or those of `--data`, repeated as needed. A chat
ends when its questions and answers have `--tokens` tokens, not counting the chat template. The context length is the
bundle's (`streamfuse export --max-context-len`). Prints JSON; the exit code is 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, get_args

from streamfuse.api import Chat, Model, load
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.session import Result
from streamfuse.runtime.text import ContextPolicy
from streamfuse.train.general_prompts import PROMPTS
from streamfuse.train.readers import read_samples

SYSTEMS = {"speculative": True, "plain": False}
_STRIDE = 37  # between built-in questions, so that neighbours have other topics and tasks


@dataclass
class Answers:
    """The answers of one chat, and the wall time of each in seconds."""

    results: list[Result] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def ask(self, chat: Chat, question: str) -> None:
        start = time.perf_counter()
        self.results.append(chat.send(question))
        self.seconds.append(time.perf_counter() - start)

    def report(self) -> dict[str, Any]:
        """Median times in seconds, of answers that dropped turns and of the others, and tokens per pass."""
        dropping = [result.statistics.dropped_turns > 0 for result in self.results]
        statistics = [result.statistics for result in self.results]
        passes = sum(one.target_forward_passes for one in statistics)
        return {
            "seconds": _median(self.seconds, [not drops for drops in dropping]),
            "seconds_with_dropped_turns": _median(self.seconds, dropping),
            "prefill_seconds_with_dropped_turns": _median([one.prefill_ms / 1000 for one in statistics], dropping),
            "tokens_per_pass": round(sum(one.generated_tokens for one in statistics) / max(passes, 1), 2),
        }


def _median(values: Sequence[float], chosen: Sequence[bool]) -> float | None:
    some = [value for value, is_chosen in zip(values, chosen, strict=True) if is_chosen]
    return round(median(some), 3) if some else None


def compare(
    model: Model, questions: Sequence[str], tokens: int, max_new_tokens: int, policy: ContextPolicy
) -> dict[str, Any]:
    """Ask until the chat has `tokens` tokens, or until a question does not fit and `policy` is "fail"."""
    answers = {name: Answers() for name in SYSTEMS}
    plain, drafted = (answers[name].results for name in ("plain", "speculative"))
    total, refused = 0, None
    with ExitStack() as stack:
        chats = {
            name: stack.enter_context(
                model.chat(context_policy=policy, max_new_tokens=max_new_tokens, speculative=speculative)
            )
            for name, speculative in SYSTEMS.items()
        }
        for chat in chats.values():
            chat.prepare()
        for question in cycle(questions):
            if total >= tokens:
                break
            try:
                for name, chat in chats.items():
                    answers[name].ask(chat, question)
            except PromptError as error:
                refused = str(error)
                break
            total += len(model.tokenizer.encode(question)) + len(plain[-1].tokens)
    pairs = zip(plain, drafted, strict=False)  # a question that one of them refuses has no pair
    same = sum((a.tokens, a.finish_reason) == (b.tokens, b.finish_reason) for a, b in pairs)
    reread = [one.statistics.reread_tokens for one in plain if one.statistics.dropped_turns]
    return {
        "context": model.context_length,
        "context_policy": policy,
        "max_new_tokens": max_new_tokens,
        "tokens": total,
        "questions": max(len(plain), len(drafted)),
        "equal_answers": same,
        "questions_with_dropped_turns": len(reread),
        "dropped_turns": sum(one.statistics.dropped_turns for one in plain),
        "reread_tokens": sum(reread),
        "median_reread_tokens": median(reread) if reread else 0,
        "longest_prompt": max((one.statistics.prompt_tokens for one in plain), default=0),
        "refused": refused,
        **{name: answers[name].report() for name in SYSTEMS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=10000, help="of questions and answers")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    policies = [policy.replace("_", "-") for policy in get_args(ContextPolicy)]
    parser.add_argument("--context-policy", choices=policies, default="drop-oldest")
    parser.add_argument("--data", help="rows with prompts (docs/training.md); default: built-in questions")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    built_in = [PROMPTS[place * _STRIDE % len(PROMPTS)] for place in range(len(PROMPTS))]
    questions = [turn for sample in read_samples(given.data) for turn in sample.turns] if given.data else built_in
    with load(given.bundle, threads=given.threads) as model:
        policy = given.context_policy.replace("-", "_")
        found = compare(model, questions, given.tokens, given.max_new_tokens, policy)
    print(json.dumps(found, indent=2))
    sys.exit(0 if found["equal_answers"] == found["questions"] else 1)


if __name__ == "__main__":
    main()
