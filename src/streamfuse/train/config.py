"""The settings of a training run, checked on construction and saved in the run's config.json.

Each is declared once: it is a flag of `streamfuse train` and a key of a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from streamfuse.model.config import WIDENS, StreamConfig
from streamfuse.options import OptionError, check, check_choice, flag_of, option

STEPS, LOSS, DATA, CHECKPOINTS = "Steps", "Loss and learning rates", "Data", "Checkpoints"
Mode = Literal["lossless", "shared", "base"]
Task = Literal["chat", "e2e", "sql", "dialogsum"]
Dtype = Literal["auto", "float32", "bfloat16"]
OptimizerName = Literal["adamw", "muon"]


# Groups of settings by name, for `--preset` and the key `preset` of a recipe's stage. Explicit settings override them.
PRESETS: dict[str, dict[str, Any]] = {
    "small": {  # few layers with large ranks: a short pass, for CPUs
        "num_msa_layers": 2,
        "adapter_rank": 128,
        "adapter_alpha": 128.0,
        "eta_rank": 64,
        "next_token_rank": 256,
        "parent_rank": 64,
        "pruner_rank": 0,
        "stream_decay": 0.7,
        "optimizer": "muon",
        "embedding_learning_rate": 4e-3,
        "batch_size": 32,
    },
}

# What `--base-adapter` brings.
BASE_SIZES = frozenset({"base_rank", "base_layers", "base_alpha"})


def with_preset(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's settings, overridden by `settings`.

    Raises:
        OptionError: there is no preset of that name, or it does not fit what is trained.
    """
    check_choice("--preset", name, tuple(PRESETS))
    if (mode := settings.get("mode", "lossless")) != "lossless":
        raise OptionError(f"--preset is for --mode lossless, not {mode}")
    if "init_adapter" in settings:
        raise OptionError("--init-adapter brings its own stream settings, so --preset does not go with it")
    return {**PRESETS[name], **settings}


def default_streams(mode: str) -> StreamConfig:
    """The streams of a new adapter. If the base is tuned, its adapters are also used for the stream rows."""
    if mode == "lossless":
        return StreamConfig(stream_vocab_size=8192)
    tuned: dict[str, Any] = {"base_rank": 24, "base_layers": 12}
    if mode == "shared":
        return StreamConfig(stream_vocab_size=8192, adapter_rank=0, **tuned)
    return StreamConfig.without(**tuned)


def streams_of(mode: str, given: Mapping[str, Any]) -> StreamConfig:
    """The default streams of the mode, with the settings in `given`.

    Raises:
        OptionError: there is no such mode; a setting is out of range, or is one of streams, which mode base does not
            have.
        TypeError: there is no setting of that name.
    """
    check_choice("--mode", mode, get_args(Mode))
    if mode == "base" and (others := given.keys() - BASE_SIZES):
        raise OptionError(f"--mode base trains no streams, so {flag_of(min(others))} does not go with it")
    return replace(default_streams(mode), **given)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Defaults are those of the shipped chat adapter.

    Attributes:
        model: checkpoint folder of the base.
        data: files, folders or data sets of the hub (`readers.read_samples`). In lossless mode, which learns to
            draft the base's own text, it should be that text (`streamfuse data distill`).
        out_dir: checkpoints, metrics.jsonl, TensorBoard events (runs/), and the cached frozen states.
        adapter: the adapter file, written at each evaluation.
        task: its chat template is stored in the adapter file and used by bundles exported with it.
        dtype: of the activations too; trained weights are always float32.
        streams: settings of the streams; ignored with init_adapter.
        widen: with init_adapter, larger sizes (`model.config.WIDENS`); the existing weights are kept.
    """

    model: Path
    data: tuple[str, ...]
    out_dir: Path
    adapter: Path
    format: str | None = option(
        None, "Row format. docs/training.md lists the formats.", shown="detected from the fields"
    )
    task: Task = option("chat", "Prompt template. Bundles with this adapter use it too.", common=True)
    mode: Mode = option(
        "lossless",
        "lossless: train the streams; shared: streams and base; base: only the base.",
        common=True,
    )
    init_adapter: Path | None = option(
        None,
        "Adapter to continue from, with its weights and stream settings: a file or a shipped name; ranks may grow.",
    )
    base_adapter: Path | None = option(
        None, "Adapter whose tuned base new streams are trained on: a file or a shipped name."
    )
    dtype: Dtype = option("auto", "Type of the frozen base; auto: bfloat16 if fast on its device, else float32.")
    epochs: float = option(3.0, "Passes over the data.", STEPS, above=0, common=True)
    max_steps: int = option(
        0, "Training steps, in place of --epochs; 0: off.", STEPS, least=0, most=1 << 62, common=True
    )
    batch_size: int = option(8, "Examples per step and process.", STEPS, least=1, common=True)
    seed: int = option(0, "Seed of initial weights and data order.", STEPS, least=0, most=(1 << 32) - 1)
    optimizer: OptimizerName = option(
        "adamw", "Optimizer of the low-rank adapters; muon suits large ranks. All else is trained by AdamW.", LOSS
    )
    learning_rate: float | None = option(
        None,
        "Peak learning rate of the low-rank adapters. 30 warm-up steps, then linear decay to 0.",
        LOSS,
        shown="0.001; with muon 0.04",
        above=0,
        common=True,
    )
    embedding_learning_rate: float = option(
        1e-2, "Peak learning rate of stream embeddings, parent term and pruner.", LOSS, above=0
    )
    alpha_main: float = option(1.0, "Weight of the next-token loss; unused in lossless mode.", LOSS, above=0)
    alpha_streams: float = option(0.3, "Weight of each stream's loss; unused in base mode.", LOSS, above=0)
    stream_decay: float = option(
        1.0, "Weight of each stream's loss relative to the stream before, at most 1.", LOSS, above=0, most=1
    )
    next_token_dropout: float = option(
        0.0, "Fraction of tokens, 0 to 1, whose streams are not conditioned on the next token.", LOSS, least=0, most=1
    )
    soft_targets: float = option(
        0.0, "Weight, 0 to 1, of the base's own distribution in a stream's target.", LOSS, least=0, most=1
    )
    anchors: float = option(
        1.0, "Fraction of an answer's tokens whose streams are trained, sampled in each step.", LOSS, above=0, most=1
    )
    max_tokens: int = option(320, "Truncate examples, including the prompt, to this many tokens.", DATA, least=1)
    limit: int = option(0, "Rows of each source, evenly spread; 0: all.", DATA, least=0, most=1 << 62)
    valid: str | None = option(
        None,
        "Held-out data; of a folder or data set, its split validation.",
        DATA,
        shown="every n-th row of --data",
        metavar="SOURCE",
    )
    held_out: int = option(40, "Number of held-out examples, not trained on.", DATA, least=1)
    log_every: int = option(10, "Steps between rows of metrics.", CHECKPOINTS, least=1)
    evaluate_every: int = option(60, "Steps between evaluations with checkpoints.", CHECKPOINTS, least=1)
    streams: StreamConfig = field(default_factory=lambda: default_streams("lossless"))
    widen: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if not self.init_adapter and bool(self.streams.num_streams) == (self.mode == "base"):
            raise OptionError(
                "--mode base trains no streams, so --num-streams does not go with it"
                if self.mode == "base"
                else "--num-streams must be from 1 to 8, not 0"
            )
        if self.mode != "lossless" and not (self.streams.base_rank or self.init_adapter or self.base_adapter):
            raise OptionError(f"--mode {self.mode} tunes the base, so --base-rank and --base-layers must be positive")
        tuned_before = self.init_adapter or self.base_adapter
        if self.mode == "lossless" and self.streams.base_rank and not tuned_before:
            raise OptionError("--mode lossless does not tune the base, so --base-rank does not go with it")
        if self.init_adapter and self.base_adapter:
            raise OptionError("--init-adapter brings its own base, so --base-adapter does not go with it")
        others = {"--valid": self.valid, "--init-adapter": self.init_adapter, "--base-adapter": self.base_adapter}
        for flag, read in (*(("--data", source) for source in self.data), *others.items()):
            if read and Path(read).resolve() == self.adapter.resolve():
                raise OptionError(
                    f"{flag} {read} would be overwritten by the trained adapter; give another --adapter, or another "
                    "--output-dir"
                )
        if self.optimizer == "muon" and self.mode != "lossless":
            raise OptionError(f"--optimizer muon is for streams, which --mode {self.mode} does not train alone")
        if self.widen and not self.init_adapter:
            raise OptionError("widen goes with --init-adapter; a new adapter has the sizes of its settings")
        if other := sorted(self.widen.keys() - set(WIDENS)):
            raise OptionError(
                f"--init-adapter brings its own stream settings, so {flag_of(other[0])} does not go with it"
            )
        if self.anchors < 1 and (self.mode != "lossless" or self.soft_targets):
            raise OptionError(
                "--anchors below 1 go with --mode lossless without --soft-targets, which need every token's row"
            )

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate that is given, or that of the optimizer."""
        return self.learning_rate or {"adamw": 1e-3, "muon": 0.04}[self.optimizer]


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """How the model writes answers and prompts: `streamfuse data distill` and `synthesize`, and stages of recipes."""

    batch_size: int = option(128, "Prompts processed together.", least=1)
    max_prompt_tokens: int = option(144, "Skip longer prompts; `synthesize --after` skips longer chats.", least=1)
    max_new_tokens: int = option(
        128,
        "Maximum tokens to generate per text. Answers end there; `synthesize` drops longer prompts.",
        least=1,
        common=True,
    )
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.", least=0, common=True)
    top_p: float = option(
        1.0, "Nucleus sampling: keep the likeliest tokens up to this total probability; 1: off.", above=0, most=1
    )
    seed: int = option(0, "Random seed for the order of the prompts and for sampling.", least=0, most=(1 << 32) - 1)
    dtype: Dtype = option("auto", "Number type of the model; auto: bfloat16 if fast on its device, else float32.")

    def __post_init__(self) -> None:
        check(self)


SYNTHESIZE = DistillConfig(temperature=1.0, top_p=0.95, max_new_tokens=96)  # the defaults if prompts are written
