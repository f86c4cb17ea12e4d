"""Fuzz chat templates: python tests/fuzz/templates.py [--seconds 300 | --count N]

Templates come from the grammar of tests/helpers/template_grammar.py, by number. A template that mostly works must
give the text of transformers, or an error; one that grows what it works with must end, within a time and with little
memory. Prints each finding, and exits with 1 where there is one.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import fuzz_batches

_SECONDS = 30  # for one template: some of a second on a machine that does nothing else
_MEMORY = 2 << 30  # beyond what a process has when it begins
_BATCH = 200  # templates of one process


def work(first: int, count: int) -> None:
    from template_grammar import hostile, template
    from template_renders import CHAT, by_streamfuse, by_transformers

    by_streamfuse("{{ 1 }}", CHAT)
    by_transformers("{{ 1 }}", CHAT)
    fuzz_batches.limit_memory(_MEMORY)

    def finding(number: int) -> str | None:
        rng = random.Random(number)
        is_hostile = number % 2 == 1
        source = hostile(rng) if is_hostile else template(rng)
        rendered, text = by_streamfuse(source, CHAT)
        if not rendered and ("no memory" in text or "internal check" in text or "\n" in text):
            return text
        if rendered and not is_hostile and by_transformers(source, CHAT) != (True, text):
            return "another text than transformers gives"
        return None

    fuzz_batches.try_each(first, count, _SECONDS, finding)


if __name__ == "__main__":
    sys.exit(fuzz_batches.run(__file__, __doc__, "templates", _BATCH, work))
