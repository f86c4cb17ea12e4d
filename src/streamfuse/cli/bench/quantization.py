"""`streamfuse bench quantization`: the error of each weight format, part by part."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfuse.adapters import DEFAULT
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need

if TYPE_CHECKING:
    from streamfuse.bench.quantization import Texts
    from streamfuse.runtime.text import Tokenizer

CHOICES = (
    "float",
    "",  # everything on the kernels' grids
    "attention=int8,mlp=int8,embedding=int8,head=int8,streams=int8",
    "embedding=int8,head=int8,streams=int8",
    "embedding=int4,head=int4,streams=int4",
    "head=int4,streams=int4",
    "streams=int4",
    "attention=int4,mlp=int4",
    "attention=int4:32:symmetric,mlp=int4:32:symmetric",
    "attention=int4:64,mlp=int4:64",
    "attention=int4:channel,mlp=int4:channel",
    "attention=int8,mlp=int4",
    "attention=int4,mlp=int8",
)

_COLUMNS = (
    "stored as",
    "MB",
    "attention\ndB",
    "mlp\ndB",
    "head\ndB",
    "perplexity\nown",
    "best\ntoken",
    "perplexity\nother",
    "tokens\nper pass",
)
_MAX_TOKENS = 512  # per text
_MOST_TEXTS = 200


def register(bench: typer.Typer) -> None:
    bench.command("quantization")(quantization)


def quantization(
    data: Annotated[
        list[str],
        typer.Option(
            metavar="DATA", help="Files or data sets; files of `streamfuse data distill` count as the model's own text."
        ),
    ],
    model: options.BaseModel = DEFAULT_MODEL,
    adapter: options.AdapterName = DEFAULT,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=SCHEME,...",
            help="Schemes as in `streamfuse export --scheme`, or q4_1, q8_0, for example mlp=int4:64. Other parts keep "
            "the formats of the kernels; `float` alone rounds nothing. Repeat the flag for several choices.",
            show_default="thirteen choices",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Approximate number of tokens per kind of text.")] = 2000,
    width: Annotated[int, typer.Option(min=2, help="Nodes per tree, including the root.")] = 16,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Append one line of JSON per choice to this file."),
    ] = None,
    format_: options.DataFormat = None,
    json_: options.Json = False,
) -> None:
    """Compare weight formats: error and size per part, perplexity, acceptance.

    Weights are rounded in PyTorch; activations stay in float32.

    [bold]Examples[/bold]

    streamfuse bench quantization --data build/train/chat-own.jsonl --data valid.jsonl

    streamfuse bench quantization --data own.jsonl --choice "mlp=int4:64" --choice "mlp=int4:64:symmetric"
    """
    need("bench-quantization")
    from streamfuse.bench.quantization import Bench, parse_choice
    from streamfuse.model.checkpoint import load_with_adapter
    from streamfuse.model.pull import resolve_model
    from streamfuse.options import OptionError

    names = list(choice or CHOICES)
    try:
        choices = {name or "kernels": parse_choice(name) for name in names}
    except OptionError as error:
        raise typer.BadParameter(error.flags) from None
    adapter_path = options.adapter_file("--adapter", adapter)
    options.check_place("--output", output)
    options.check_not_read("--output", output, "--data", data)
    folder = resolve_model(model)
    texts = _texts(folder, adapter_path, data, format_, tokens)
    bench = Bench(load_with_adapter(folder, adapter_path), texts, width)
    found: dict[str, Any] = {}
    stopped_by: BaseException | None = None
    try:
        for name, schemes in choices.items():
            started = time.process_time()
            found[name] = {**bench.measure(schemes), "cpu_seconds": round(time.process_time() - started, 1)}
            if output is not None:
                with output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"choice": name, **found[name]}) + "\n")
            if not json_ and err.is_terminal:
                err.print(f"{name}: {found[name]['perplexity']}", highlight=False)
    except (KeyboardInterrupt, Exception) as error:  # the choices before it have their figures
        if not found:
            raise
        stopped_by = error
    if json_:
        print_json(found)
    else:
        out.print(tables.figures(_COLUMNS, [_row(name, row) for name, row in found.items()]))
        for name, kind in (("own", texts.own), ("other", texts.other)):
            count = sum(len(text.input_ids) - text.start for text in kind)
            out.print(f"{name}: {count} tokens of {len(kind)} texts", markup=False)
    if stopped_by is not None:
        raise stopped_by


def _row(name: str, row: dict[str, Any]) -> list[str]:
    def decibels(part: str) -> str:
        value = row["parts"][part]["snr_db"]
        return "exact" if value is None else f"{value:.1f}"

    def figure(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    return [
        name.replace(",", ",\n"),
        f"{row['bytes'] / 1e6:.1f}",
        *(decibels(part) for part in ("attention", "mlp", "head")),
        figure(row["perplexity"].get("own"), 3),
        figure(row.get("best_token"), 3),
        figure(row["perplexity"].get("other"), 2),
        figure(row.get("call_reduction"), 2),
    ]


def _texts(folder: Path, adapter: Path, data: list[str], format_: str | None, tokens: int) -> Texts:
    """For each kind, evenly spread texts of about `tokens` tokens in total; text by people is read from its start.

    Only text by people needs the tokenizer and the chat template.
    """
    from streamfuse.bench.quantization import Texts
    from streamfuse.model.checkpoint import ending_as
    from streamfuse.model.config import ModelConfig
    from streamfuse.train.formats import Example, Sample
    from streamfuse.train.prompts import open_text
    from streamfuse.train.readers import merged, read_samples, spread, to_examples

    own: list[Sample] = []
    other: list[Sample] = []
    for source in data:
        for sample in merged(read_samples(source, format_)):
            (other if sample.ids is None else own).append(sample)

    eos, source = ending_as(ModelConfig.load(folder), adapter).eos_token_id, ", ".join(data)

    def chosen(samples: list[Sample], text: Tokenizer | None) -> list[Example]:
        if not samples:
            return []
        one_answer = [replace(sample, references=sample.references[:1]) for sample in spread(samples, _MOST_TEXTS)]
        found = to_examples(one_answer, text, eos, _MAX_TOKENS, source=source)
        if text is not None:
            found = [Example(example.input_ids, 1) for example in found]
        total = sum(len(example.input_ids) - example.start for example in found)
        return spread(found, math.ceil(tokens * len(found) / total))

    return Texts(chosen(own, None), chosen(other, open_text(folder, adapter) if other else None))
