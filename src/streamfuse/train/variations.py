"""New E2E prompts by recombination, for a tuned model to answer, since the data set has many answers to few prompts.

The values are those of the training prompts and of the published ontology (Novikova et al., 2017, "The E2E Dataset",
table 1 and its training split), so that a development split, which has only some of them, does not limit the streams.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_FIELD = re.compile(r"([^,\[\]]+)\[([^\]]*)\]")
_ONTOLOGY = {
    "eatType": ("restaurant", "pub", "coffee shop"),
    "food": ("Chinese", "English", "Fast food", "French", "Indian", "Italian", "Japanese"),
    "name": ("Blue Spice", "Giraffe", "Green Man", "Loch Fyne", "Strada", "The Dumpling Tree", "The Olive Grove",
             "The Plough", "The Rice Boat", "The Twenty Two", "The Vaults", "The Waterman", "Zizzi"),
    "near": ("All Bar One", "Avalon", "Café Adriatic", "Café Rouge", "Express by Holiday Inn",
             "Rainbow Vegetarian Café", "The Six Bells", "Yippee Noodle Bar"),
}  # fmt: skip


def vary_e2e(prompts: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` new prompts, all different and not in `prompts`, with the same fields ("name[X], area[Y], ...").

    Values are redrawn from those of the same field: half of the time from those in `prompts`, else from all known ones.

    Raises:
        ValueError: the prompts do not have that form, or are too few for this many variations.
    """
    generator = random.Random(seed)
    shapes = [[(name.strip(), value) for name, value in _FIELD.findall(prompt)] for prompt in sorted(set(prompts))]
    if not all(shapes):
        raise ValueError("an E2E prompt is a list of fields with their values in brackets: name[X], area[Y]")
    seen: dict[str, list[str]] = {}
    for shape in shapes:
        for name, value in shape:
            seen.setdefault(name, []).append(value)
    known = {name: sorted({*values, *_ONTOLOGY.get(name, ())}) for name, values in seen.items()}
    given, made = set(prompts), dict[str, None]()
    for _ in range(20 * count):
        fields = [
            f"{name}[{generator.choice(seen[name] if generator.random() < 0.5 else known[name])}]"
            for name, _ in generator.choice(shapes)
        ]
        if (prompt := ", ".join(fields)) not in given:
            made.setdefault(prompt)
        if len(made) == count:
            return list(made)
    raise ValueError(f"the prompts have too few values for {count} variations")
