"""`streamfuse research layer-skip`: which sub-layers a model leaves out when it drafts for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared.console import err
from streamfuse.extras import need


def register(research: typer.Typer) -> None:
    research.command("layer-skip")(layer_skip)


def layer_skip(
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="The result; trials go into OUT.json.journal.")],
    model: Annotated[str, typer.Option(help="Hub name or checkpoint folder.")],
    data: Annotated[Path, typer.Option(metavar="ANSWERS.jsonl", help="Greedy answers of `streamfuse data distill`.")],
    answers: Annotated[int, typer.Option(help="Answers to use, spread over the file.")] = 16,
    trials: Annotated[int, typer.Option(help="Trials in all, those of earlier runs included.")] = 200,
    verify: Annotated[
        float, typer.Option(help="Cost of a verify pass over a plain pass; 1.1 is a chain of three with AVX-512.")
    ] = 1.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
) -> None:
    """Search for the sub-layers to leave out in self-speculation.

    The method is Draft & Verify (arXiv 2309.08168): Bayesian optimisation of the expected speed-up: how often the
    shorter model agrees with the text, and the share of a pass that it costs. The same command continues a search
    that was stopped.

    [bold]Examples[/bold]

    streamfuse data distill prompts.jsonl answers.jsonl

    streamfuse research layer-skip build/self.json --model HuggingFaceTB/SmolLM2-135M-Instruct --data answers.jsonl
    """
    for flag, number in (("--answers", answers), ("--trials", trials)):
        if number < 1:
            raise typer.BadParameter(f"{flag} must be at least 1, not {number}")
    need("layer-skip")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.model.checkpoint import load_base
    from streamfuse.model.pull import resolve_model
    from streamfuse.research.layer_skip import Choice, read_texts, search, write

    texts, base = read_texts(data, answers), load_base(resolve_model(model))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err) as bar:
        task = bar.add_task("searching", total=trials)

        def show(done: int, best: Choice) -> None:
            bar.update(task, completed=done, description=f"best: {best.speedup:.2f} times plain decoding")

        out.parent.mkdir(parents=True, exist_ok=True)
        choice = search(base, texts, trials, verify, seed, out.with_name(out.name + ".journal"), show)
    settings = {"model": model, "answers": answers, "trials": trials, "verify": verify, "seed": seed}
    write(choice, settings, out)
    print(
        f"{out}: without {len(choice.skip)} sub-layers the model gives {choice.agreement:.1%} of the tokens at "
        f"{choice.cost:.2f} of the cost; expected {choice.speedup:.2f} times plain decoding"
    )
