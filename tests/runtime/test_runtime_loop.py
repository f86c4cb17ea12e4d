"""How a generation ends, and what is left then. Run: pytest tests/runtime/test_runtime_loop.py"""

from __future__ import annotations

import threading

import pytest
from fakes import ArithmeticBackend, spec

from streamfuse.options import OptionError
from streamfuse.runtime.backend import BackendError, ModelSpec
from streamfuse.runtime.config import NO_VERIFY, OFF_BY_REQUEST, GenerationConfig, PromptError
from streamfuse.runtime.reference.draft import StreamDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.runtime.reference.tree import Tree
from streamfuse.runtime.session import Session

PROMPT = [3, 0, 1]  # its first sixteen greedy tokens are all different


def plain_text(count: int = 40) -> list[int]:
    loop = Loop(ArithmeticBackend(spec()), list(PROMPT), GenerationConfig(count, speculative=False))
    return [one.token for one in loop.run()]


def all_accepted(config: GenerationConfig, **facts: object) -> tuple[Loop, list[Round]]:
    """A loop whose drafts are always right: blocks of four tokens after the first."""
    rounds: list[Round] = []
    backend = ArithmeticBackend(spec(top_k=1, **facts), script=PROMPT + plain_text(60))
    return Loop(backend, list(PROMPT), config, observe=rounds.append), rounds


def assert_consistent(loop: Loop) -> None:
    """All reported tokens but the last are committed."""
    assert loop.backend.cache == loop.tokens[:-1]
    assert loop.counts.generated_tokens == len(loop.tokens) - len(PROMPT)


@pytest.mark.parametrize("place", range(1, 9))
def test_an_end_token_inside_an_accepted_block_cuts_the_block(place: int) -> None:
    text = plain_text()
    assert text[place] not in text[:place]
    loop, rounds = all_accepted(GenerationConfig(40), eos_token_ids=(text[place],))
    assert [one.token for one in loop.run()] == text[:place]
    assert loop.counts.finish_reason == "stop"
    assert_consistent(loop)
    assert rounds[-1].delivered == (place - 1) % 4
    assert len(rounds[-1].walk.tokens) == rounds[-1].delivered + 1, "the walk goes on behind the end token"


def test_an_ignored_end_token_is_a_token_like_others() -> None:
    text = plain_text()
    loop, _ = all_accepted(GenerationConfig(12, ignore_eos=True), eos_token_ids=(text[2],))
    assert [one.token for one in loop.run()] == text[:12]
    assert loop.counts.finish_reason == "length"


@pytest.mark.parametrize("budget", range(2, 7))
def test_a_token_budget_inside_a_block_is_exact(budget: int) -> None:
    loop, _ = all_accepted(GenerationConfig(budget))
    assert [one.token for one in loop.run()] == plain_text()[:budget]
    assert loop.counts.finish_reason == "length"
    assert_consistent(loop)


@pytest.mark.parametrize("budget", range(2, 7))
def test_a_drafter_that_ignores_the_depth_cannot_exceed_the_budget(budget: int) -> None:
    class Deep(StreamDrafter):
        def draft(self, tokens: list[int], width: int, depth: int) -> Tree:
            return super().draft(tokens, width, 99)

    loop, _ = all_accepted(GenerationConfig(budget))
    loop.drafter = Deep()
    assert [one.token for one in loop.run()] == plain_text()[:budget]
    assert_consistent(loop)


@pytest.mark.parametrize("count", range(0, 10))
def test_closing_the_generator_at_any_token_commits_what_was_delivered(count: int) -> None:
    loop, _ = all_accepted(GenerationConfig(40))
    running = loop.run()
    delivered = [next(running).token for _ in range(count)]
    running.close()
    assert delivered == plain_text()[:count] == loop.tokens[len(PROMPT) :]
    assert loop.backend.cache == (loop.tokens[:-1] if count else [])
    assert loop.counts.finish_reason == "stopped"


@pytest.mark.parametrize("count", range(1, 10))
def test_stop_ends_the_text_at_any_token(count: int) -> None:
    loop, _ = all_accepted(GenerationConfig(40))
    delivered = []
    for one in loop.run():
        delivered.append(one.token)
        if len(delivered) == count:
            loop.stop.set()
    assert delivered == plain_text()[:count]
    assert loop.counts.finish_reason == "stopped"
    assert_consistent(loop)


def test_stop_works_from_another_thread() -> None:
    model = spec(capacity=100_000)
    loop = Loop(ArithmeticBackend(model), list(PROMPT), GenerationConfig(90_000))
    arrived = threading.Event()

    def stop_when_running() -> None:
        arrived.wait(10)
        loop.stop.set()

    thread = threading.Thread(target=stop_when_running)
    thread.start()
    for _ in loop.run():
        arrived.set()
    thread.join(10)
    assert loop.counts.finish_reason == "stopped"
    assert 0 < loop.counts.generated_tokens < 90_000
    assert_consistent(loop)


def test_stop_during_prefill_leaves_a_prefix_of_the_prompt() -> None:
    backend = ArithmeticBackend(spec(prefill_rows=4))
    loop = Loop(backend, list(range(20)), GenerationConfig(8))
    commit = backend.commit

    def commit_then_stop(rows: range) -> None:
        commit(rows)
        loop.stop.set()

    backend.commit = commit_then_stop  # type: ignore[method-assign]
    assert list(loop.run()) == []
    assert backend.cache == [0, 1, 2, 3]
    assert loop.counts.finish_reason == "stopped"


def test_an_engine_that_fails_leaves_the_cache_with_the_tokens() -> None:
    loop, _ = all_accepted(GenerationConfig(40))
    run, calls = loop.backend.run, []

    def fail_at_last(*args: object) -> object:
        calls.append(args[0])
        if len(calls) == 4:
            raise BackendError("the engine is on fire")
        return run(*args)

    loop.backend.run = fail_at_last  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="on fire"):
        list(loop.run())
    assert_consistent(loop)


def test_a_prompt_that_fills_the_context_ends_at_once() -> None:
    loop = Loop(ArithmeticBackend(spec(capacity=5)), [1, 2, 3, 4, 5], GenerationConfig(8))
    assert list(loop.run()) == []
    assert loop.counts.finish_reason == "context"
    assert loop.counts.target_forward_passes == 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 97, "the prompt has 97 tokens, but this bundle's context holds 96"),
        ([1, 64], "token 64, outside this bundle's vocabulary of 64"),
        ([-1], "token -1"),
    ],
)
def test_a_prompt_out_of_range_is_refused_before_the_first_pass(prompt: list[int], message: str) -> None:
    backend = ArithmeticBackend(spec())
    with pytest.raises(PromptError, match=message):
        list(Loop(backend, prompt).run())
    assert backend.calls == []


def test_a_width_that_the_bundle_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="width must be one of 2, 4, 8 for this bundle, not 5"):
        list(Loop(ArithmeticBackend(spec()), [1], GenerationConfig(width=5)).run())


@pytest.mark.parametrize(
    ("model", "config", "reason"),
    [
        (spec(), GenerationConfig(5, speculative=False), OFF_BY_REQUEST),
        (spec(widths={}), GenerationConfig(5, width=4), NO_VERIFY),
        (spec(num_streams=0, widths={}), GenerationConfig(5), NO_VERIFY),
    ],
)
def test_plain_decoding_says_why(model: ModelSpec, config: GenerationConfig, reason: str) -> None:
    session = Session(ArithmeticBackend(model))
    generation = session.generate([1, 2], config)
    generation.finish()
    stats = generation.statistics
    assert (stats.speculative, stats.fallback_reason) == (False, reason)
    assert stats.widths == {"decode": 5}
    assert stats.mean_accepted_tokens == 1


def test_the_default_width_is_the_middle_one_or_the_one_the_bundle_names() -> None:
    assert GenerationConfig().width_for(spec()) == 4
    assert GenerationConfig().width_for(spec(default_width=8)) == 8
    assert GenerationConfig(width=2).width_for(spec(default_width=8)) == 2


def test_a_tree_runs_in_the_narrowest_method_that_holds_it() -> None:
    backend = ArithmeticBackend(spec(top_k=1))
    list(Loop(backend, [1, 2], GenerationConfig(9, width=8)).run())
    assert {calls for method, calls in backend.calls if method == "verify_8"} == set()
    assert backend.calls[1] == ("verify_2", 1), "nothing is drafted before the first pass"


def test_the_prompt_is_read_in_chunks_and_its_last_token_is_the_first_root() -> None:
    backend = ArithmeticBackend(spec(prefill_rows=8))
    list(Loop(backend, list(range(20)), GenerationConfig(1)).run())
    assert backend.calls == [("prefill", 8), ("prefill", 8), ("prefill", 3), ("decode", 1)]


def test_each_token_says_whether_it_was_drafted() -> None:
    loop, _ = all_accepted(GenerationConfig(9))
    assert [one.drafted for one in loop.run()] == [False, True, True, True, False, True, True, True, False]


@pytest.mark.parametrize(
    ("setting", "flag", "keyword"),
    [
        ({"max_new_tokens": 0}, "--max-new-tokens must", "max_new_tokens must"),
        ({"stop_strings": ("",)}, "--stop", "stop"),
    ],
)
def test_a_setting_that_cannot_work_is_named_as_flag_and_as_keyword(
    setting: dict[str, object], flag: str, keyword: str
) -> None:
    with pytest.raises(OptionError) as error:
        GenerationConfig(**setting)
    assert error.value.flags.startswith(flag)
    assert str(error.value).startswith(keyword)
