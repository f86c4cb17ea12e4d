"""What an external system's answer says of itself, in the words of the comparison of methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from streamfuse.bench.shared.systems import Answer


def answer_of(
    tokens: Sequence[int],
    stop_ids: Collection[int],
    emitted: int,
    passes: int,
    decode_ms: float,
    first_token_ms: float,
    program: str = "",
) -> Answer:
    """An answer up to the first token that ends it.

    Args:
        tokens: as the system wrote them, perhaps with the token that ended the text.
        emitted: how many tokens it wrote, one that ended the text counted.
        passes: of the target, the one that ended the text counted.
        decode_ms: from the pass of the last prompt token on.
        first_token_ms: from the prompt to the first token.
        program: its version, and what it computes in where it chose.
    """
    end = next((place for place, token in enumerate(tokens) if token in stop_ids), len(tokens))
    statistics = {
        "first_token_ms": first_token_ms,
        "target_forward_passes": passes,
        "mean_accepted_tokens": emitted / max(passes, 1),
        "passes": {},  # an external system does not say of which kinds they were
        "rounds": [],
        "program": program,
    }
    return Answer(tuple(tokens[:end]), decode_ms, statistics)
