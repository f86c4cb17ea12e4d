"""What `compare` and `online` both take: data sets by name, and the bundles of other methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.api import Model

if TYPE_CHECKING:
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.bench.shared.systems import System
    from streamfuse.research.compare.measure import DataSet
    from streamfuse.train.formats import Sample

DataSets = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME=]DATA", help="Data set, named after its folder by default. Repeat the flag for several."
    ),
]
BundlesFolder = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="Bundles of the other methods; missing ones are exported there, once for each BUNDLE."
    ),
]


def read_sets(sources: Sequence[str], limit: Callable[[int], int]) -> list[tuple[str, list[Sample]]]:
    """Name and samples of each `--data`, of which the one at a place has at most `limit(place)` samples.

    Raises:
        typer.BadParameter: two of them have one name.
    """
    from streamfuse.train.readers import merged, read_samples, spread

    found: dict[str, list[Sample]] = {}
    for place, source in enumerate(sources):
        given, _, path = source.rpartition("=")
        name = given or Path(path).parent.name or path
        if name in found:
            raise typer.BadParameter(f"--data: two data sets are called {name}; name them: --data NAME={path}")
        found[name] = spread(merged(read_samples(path)), limit(place))
    return list(found.items())


def data_set(name: str, samples: list[Sample], model: Model, settings: TaskSettings, plain: System) -> DataSet:
    from streamfuse.bench.shared.turns import all_turns
    from streamfuse.research.compare.measure import DataSet

    room = model.manifest.cache.capacity - settings.max_new_tokens
    asked = all_turns(
        samples, model.tokenizer, room, lambda number, prompt: plain.answer(settings.request(number, prompt)).token_ids
    )
    if not asked:
        raise typer.BadParameter(
            f"--data {name}: no prompt with {settings.max_new_tokens} new tokens fits into the context"
        )
    return DataSet(name, [prompt for prompt, _ in asked], [sample for _, sample in asked])
