"""Task adapters in one bundle with their base: the same bits as in bundles of their own, and the base's unchanged.

Run: python -m pytest tests/export/test_export_tasks.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import app_library
import numpy as np
import pytest
import torch
from bundle_samples import edit_manifest, list_file
from export_samples import (
    STREAM_VOCAB,
    TEXT,
    config_for,
    decode_rows,
    prefill,
    tiny_model,
    verify_rows,
    write_checkpoint,
)
from tiny import fused
from typer.testing import CliRunner, Result

import streamfuse
from streamfuse.api import remove_prefix, store_prefix
from streamfuse.bundle import Bundle, BundleError, open_bundle
from streamfuse.cli import app
from streamfuse.engines import engines_of
from streamfuse.export.adapter import resolve_for_adapter
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import count_steps, run_export
from streamfuse.export.preview import preview
from streamfuse.model.checkpoint import load_base, load_config, read_adapter, save_adapter, save_ngrams
from streamfuse.model.config import CheckpointError, StreamConfig
from streamfuse.options import OptionError
from streamfuse.runtime.core import CoreError
from streamfuse.train.formats import Example
from streamfuse.train.ngram_counts import count_ngrams

# An export compares a text with PyTorch by its widest pass that prunes nothing, or else token by token. So pruners are
# saved and not exported here; test_equality.py prunes with task adapters.
SIZES: dict[str, Any] = {"widths": (4,), "default_width": 4, "prune_keep": 4, "schedule": "deferred"}
STREAMS = {"num_streams": 2, "num_msa_layers": 1, "pruner_rank": 2, "parent_rank": 4}
LORA = StreamConfig.without(base_rank=2, base_layers=1)
TASKS = {
    "frozen": STREAMS,  # streams alone
    "tuned": {**STREAMS, "base_rank": 2, "base_layers": 2, "next_token_rank": 2},
    "lora": asdict(LORA),  # no streams
}
LAYERS = {"num_hidden_layers": 2}
GRAPH_BYTES = 60_000  # at most, of a model's methods without their weights
PROMPT = "the keeper climbed"


class Made:
    """A checkpoint with adapters, and bundles of it."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(5)
        model = tiny_model({"num_msa_layers": 1}, **LAYERS)
        self.checkpoint, self.adapter = write_checkpoint(folder / "checkpoint", model, **LAYERS)
        self.files: dict[str, Path] = {}
        for name, settings in TASKS.items():
            own = fused(model.base, STREAM_VOCAB if settings["num_streams"] else STREAM_VOCAB[:0], **settings)
            self.files[name] = folder / f"{name}.safetensors"
            save_adapter(own, self.files[name], {"chat_template": f"{name}: {{{{ messages[-1].content }}}}"})
        self.folder = folder
        self.whole = self.export("whole", self.adapter, task=self.files)
        self.plain = self.export("plain", self.adapter)
        self.alone = self.export("alone", self.files["tuned"])

    def config(self, name: str, adapter: Path | None, **options: Any) -> ExportConfig:
        return config_for((self.checkpoint, adapter), self.folder / name, **{**SIZES, **options})

    def export(self, name: str, adapter: Path | None, **options: Any) -> Bundle:
        config = self.config(name, adapter, **options)
        expected, words = preview(config), list[str]()
        self.report = run_export(config, words.append)
        assert len(words) == count_steps(expected)
        graphs = GRAPH_BYTES * (1 + len(config.tasks))
        for file, size in expected.files.items():
            assert "selftest" in file or size <= self.report.bytes[file] <= size + graphs, file
        return open_bundle(config.output_dir)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def model(made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[streamfuse.Model]:
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))
    with streamfuse.load(made.whole) as model:
        yield model


def passes(bundle: Bundle, chosen: Bundle) -> list[np.ndarray[Any, Any]]:
    """Logits of plain decoding, of drafted trees, and streams; with an engine of `chosen`."""
    backend = engines_of(bundle, 1)(chosen)
    prefill(backend, TEXT[:10])
    rows = [decode_rows(backend, TEXT[10:20], 10), verify_rows(backend, "verify_4", TEXT[10:20], 10)]
    if not chosen.spec().num_streams:
        backend.close()
        return rows
    backend.run("decode", np.array([5]), np.array([backend.length]), np.ones((1, 1), np.bool_))
    backend.commit([0])
    out = backend.streams(0, 7)
    rows += [out.stream_ids.copy(), out.stream_log_probs.copy()]
    backend.close()
    return rows


def test_the_base_has_the_bits_that_it_has_without_adapters(made: Made) -> None:
    for one, other in zip(passes(made.whole, made.whole), passes(made.plain, made.plain), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_task_has_the_bits_of_its_own_bundle(made: Made) -> None:
    chosen, alone = made.whole.adapter("tuned"), made.alone
    for one, other in zip(passes(made.whole, chosen), passes(alone, alone), strict=True):
        np.testing.assert_array_equal(one, other)
    assert chosen.spec() == alone.spec()
    assert chosen.manifest.speculation == alone.manifest.speculation
    assert chosen.manifest.model == alone.manifest.model
    ours, theirs = ({key: value.tobytes() for key, value in (of.tables or {}).items()} for of in (chosen, alone))
    assert ours == theirs != {}


def test_streams_alone_leave_the_base_as_it_is_and_what_tunes_it_does_not(made: Made) -> None:
    base, *others = (passes(made.whole, chosen) for chosen in (made.whole, *map(made.whole.adapter, TASKS)))
    assert [np.array_equal(base[0], other[0]) for other in others] == [True, False, False]
    assert [len(other) for other in others] == [4, 4, 2]  # the last has no streams


def test_texts_and_passes_are_those_of_its_own_bundle(made: Made, model: streamfuse.Model) -> None:
    options: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
    with streamfuse.load(made.alone) as alone:
        for more in ({"width": 4}, {"speculative": False}, {"width": 4, "temperature": 1.0, "seed": 3}):
            ours = model.generate(PROMPT, adapter="tuned", **options, **more)
            theirs = alone.generate(PROMPT, **options, **more)
            assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
            assert ours.statistics.target_forward_passes == theirs.statistics.target_forward_passes
            assert ours.statistics.acceptance_per_depth == theirs.statistics.acceptance_per_depth


@pytest.mark.parametrize("name", [None, *TASKS])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_is_the_same_with_speculation_and_without(
    model: streamfuse.Model, name: str | None, temperature: float
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True, "temperature": temperature, "adapter": name}
    plain, *others = (model.generate(PROMPT, **options, **how) for how in ({"speculative": False}, {"width": 4}, {}))
    assert [other.tokens for other in others] == [plain.tokens] * 2


def test_the_weights_of_the_base_are_in_the_file_once(made: Made) -> None:
    whole = made.whole.file("model.pte").stat().st_size - made.plain.file("model.pte").stat().st_size
    weights = sum(part.bytes or 0 for name, part in made.plain.manifest.quantization if name != "streams")
    assert whole < weights + GRAPH_BYTES * len(TASKS)  # three more models would be three times the weights


def test_the_token_that_ends_a_tasks_answers_ends_those_of_its_bundle(made: Made) -> None:
    """A LoRA of ChatML on a base that ends texts with another token (model/peft.py)."""
    own, file = fused(load_base(made.checkpoint), STREAM_VOCAB, **TASKS["tuned"]), made.folder / "ends.safetensors"
    save_adapter(own, file, {"eos_token_id": "256", "chat_template": "{{ messages[-1].content }}{{ eos_token }}"})
    whole = made.export("ends", None, task={"ends": file})
    assert whole.spec().eos_token_ids == whole.adapter("ends").spec().eos_token_ids == (3, 257, 256)
    alone = made.export("ends-alone", file)
    assert alone.manifest.model.eos_token_ids == (256, 3, 257)  # the first is the template's
    assert alone.tokenizer.render([{"role": "user", "content": "hi"}]) == "hi<|im_start|>"
    save_adapter(own, file, {"eos_token_id": "9999"})
    problem = r"ends\.safetensors: metadata field 'eos_token_id' '9999' is not a token id below 258; convert"
    with pytest.raises(CheckpointError, match=problem):
        made.export("refused", None, task={"ends": file})


def test_adapters_in_int8_are_half_as_large_and_texts_stay_lossless(made: Made) -> None:
    small = made.export("small", made.adapter, task={"tuned": made.files["tuned"]}, adapter_dtype="int8")
    assert np.array_equal(passes(small, small)[0], passes(made.whole, made.whole)[0])
    before, found = (bundle.manifest.adapters["tuned"].quantization.mlp.bytes for bundle in (made.whole, small))
    own = made.whole.manifest.quantization.mlp.bytes
    assert before is not None
    assert found is not None
    assert own is not None
    assert found - own < 0.6 * (before - own)
    exact, rounded = (passes(bundle, bundle.adapter("tuned"))[0][0] for bundle in (made.whole, small))
    assert 0 < float(((exact - rounded) ** 2).sum()) < 0.01 * float((exact**2).sum())
    with streamfuse.load(small) as model:
        chosen = model.adapter("tuned")
        texts = [
            chosen.generate(PROMPT, max_new_tokens=16, ignore_eos=True, speculative=on).tokens for on in (False, True)
        ]
    assert texts[0] == texts[1]


def test_the_report_and_the_manifest_have_the_tasks_parity(made: Made, model: streamfuse.Model) -> None:
    report = json.loads(made.whole.file("export_report.json").read_text())
    assert report["config"]["task"] == {name: str(file) for name, file in made.files.items()}
    for name, adapter in made.whole.manifest.adapters.items():
        assert {"decode", "verify_4"} <= set(report["tasks"][name]["parity"]["lowering"])
        assert adapter.parity["decode"].metrics["snr_db"] > 60
    found = model.adapter("tuned").self_test()
    assert found.passed  # the base's
    with pytest.raises(BundleError, match="an adapter has no self-test"), model.adapter("tuned").bundle.selftest():
        pass


def test_a_chat_belongs_to_its_adapter(made: Made, model: streamfuse.Model, tmp_path: Path) -> None:
    assert model.adapters == list(TASKS)
    assert model.adapter("tuned") is model.adapter("frozen").adapter("tuned")
    with model.chat(adapter="tuned", max_new_tokens=6, ignore_eos=True) as chat:
        first = chat.send("hi")
        assert model.adapter("tuned").encode("hi") == model.tokenizer.encode("tuned: hi")  # its chat template
        chat.save(tmp_path / "chat")
        second = chat.send("and now")
    with model.chat(adapter="tuned", max_new_tokens=6, ignore_eos=True) as again:
        again.restore(tmp_path / "chat")
        assert again.messages[-1]["content"] == first.text
        assert again.send("and now").text == second.text
    with model.chat(adapter="frozen") as other, pytest.raises(CoreError, match="another bundle"):
        other.restore(tmp_path / "chat")
    with pytest.raises(TypeError, match="there is no option adapter"):
        other.send("hi", adapter="tuned")  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="adapter must be one of frozen, tuned, lora, not sql"):
        model.chat(adapter="sql")
    with (
        streamfuse.load(made.plain) as plain,
        pytest.raises(OptionError, match="adapter sql: the bundle has no adapters"),
    ):
        plain.generate("hi", adapter="sql")


def test_adapters_of_a_closed_model_are_closed(made: Made) -> None:
    with streamfuse.load(made.whole) as model:
        before = model.adapter("tuned")
    for adapter in (before, model.adapter("frozen")):
        with pytest.raises(CoreError, match="this model is closed"):
            adapter.generate("hi")


def test_answers_of_an_adapter_are_remembered_in_a_file_of_their_own(made: Made, tmp_path: Path) -> None:
    with streamfuse.load(made.whole, memory=tmp_path / "memory", cost_cache=False) as model:
        model.generate(PROMPT, adapter="tuned", max_new_tokens=20, ignore_eos=True)
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["memory.tuned"]
        answers = (tmp_path / "memory.tuned").read_bytes()
        model.forget()
        assert (tmp_path / "memory.tuned").stat().st_size < len(answers)
    for name in ("tuned", "sql"):  # an adapter that is not loaded, and one that an earlier version of the bundle had
        (tmp_path / f"memory.{name}").write_bytes(answers)
    with streamfuse.load(made.whole, memory=tmp_path / "memory", cost_cache=False) as model:
        model.forget()
    kept = {path.name: path.stat().st_size for path in tmp_path.iterdir() if path.is_file()}
    assert kept == {"memory": 0, "memory.tuned": 0, "memory.sql": 0}
    (tmp_path / "memory").write_bytes(b"a picture of a cat")
    (tmp_path / "memory.tuned").write_bytes(answers)
    with streamfuse.load(made.whole, memory=tmp_path / "memory", cost_cache=False) as model:
        with pytest.raises(CoreError, match="memory"):
            model.forget()
        assert (tmp_path / "memory").read_bytes() == b"a picture of a cat"
        assert (tmp_path / "memory.tuned").stat().st_size < len(answers), "a foreign file beside it keeps no answers"


@app_library.needs_library
def test_an_app_chooses_an_adapter_per_session(made: Made, model: streamfuse.Model) -> None:
    expected = model.generate(PROMPT, adapter="tuned", max_new_tokens=12, ignore_eos=True)
    with app_library.AppModel(made.whole.folder) as app:
        names = [app_library.library().sf_model_adapter_name(app.handle, place) for place in (-1, 0, 2, 3)]
        assert names == [None, b"frozen", b"lora", None]
        chat, completion = app.chat(adapter=b"tuned"), app.completion()
        assert chat.ask(PROMPT, max_new_tokens=12, ignore_eos=1) == expected.text
        assert completion.ask(PROMPT, max_new_tokens=12, ignore_eos=1) != expected.text
        chat.free()
        completion.free()
        with pytest.raises(app_library.LibraryFailure, match="has no adapter 'sql'; it has frozen, tuned, lora"):
            app.chat(adapter=b"sql")
    needs_engine = "adapter needs the native engine: load a bundle for ExecuTorch with own_engine 0"
    with (
        app_library.AppModel(made.whole.folder, own_engine=1) as app,
        pytest.raises(app_library.LibraryFailure, match=needs_engine),
    ):
        app.chat(adapter=b"tuned")


@app_library.needs_library
def test_an_app_forgets_the_answers_of_adapters_that_are_not_loaded(made: Made, tmp_path: Path) -> None:
    def answer(app: app_library.AppModel) -> None:
        chat = app.chat(adapter=b"tuned")
        chat.ask(PROMPT, max_new_tokens=20, ignore_eos=1)
        chat.free()

    memory = tmp_path / "memory"
    with app_library.AppModel(made.whole.folder, memory_file=bytes(memory)) as app:
        answer(app)
    size = (tmp_path / "memory.tuned").stat().st_size
    with app_library.AppModel(made.whole.folder, memory_file=bytes(memory)) as app:
        assert app_library.library().sf_model_forget(app.handle) == 0
        assert (tmp_path / "memory.tuned").stat().st_size < size
        assert not (tmp_path / "memory.frozen").exists()
        answer(app)  # in the file as it is now
        assert (tmp_path / "memory.tuned").stat().st_size == size
        assert app_library.library().sf_model_forget(app.handle) == 0  # of a loaded adapter
        assert (tmp_path / "memory.tuned").stat().st_size < size


def test_a_stored_prefix_belongs_to_its_adapter(made: Made, tmp_path: Path) -> None:
    template = "{{ messages[0].content }}: {{ messages[-1].content }}"
    plain, folder = shutil.copytree(made.whole.folder, tmp_path / "plain"), tmp_path / "bundle"

    def change(manifest: dict[str, Any]) -> None:
        for facts in (manifest["model"], *manifest["adapters"].values()):
            facts["chat_template"] = template

    edit_manifest(plain, change)
    shutil.copytree(plain, folder)
    own = store_prefix(folder, "One", adapter="tuned", name="one")
    assert own.file == folder / "adapters/tuned/prefixes/one.cache"
    base = store_prefix(folder, "One", name="one")
    assert base.tokens == own.tokens
    assert own.file.read_bytes() != base.file.read_bytes()
    assert open_bundle(folder).identity == made.whole.identity
    options: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}
    with streamfuse.load(plain) as without, streamfuse.load(folder) as model:
        for adapter, loaded in (("tuned", own.tokens), ("frozen", 0), (None, base.tokens)):
            with without.chat("One", adapter=adapter) as one, model.chat("One", adapter=adapter) as other:
                expected, found = one.send("hi", **options), other.send("hi", **options)
                assert found.tokens == expected.tokens
                assert (found.statistics.prefix_tokens, found.statistics.prefix_refused) == (loaded, None)
    list_file(folder, "adapters/tuned/prefixes/one.cache", base.file.read_bytes())
    with streamfuse.load(folder) as model, model.chat("One", adapter="tuned", **options) as chat:
        refused = chat.send("hi").statistics
        assert (refused.prefix_tokens, refused.prefix_refused) == (0, f"{own.file} was saved with another bundle")
    remove_prefix(folder, "one", adapter="tuned")
    left = open_bundle(folder).manifest
    assert (list(left.prefixes), list(left.adapters["tuned"].prefixes)) == (["one"], [])


def test_a_damaged_file_of_an_adapter_is_refused(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(made.whole.folder, folder)
    file = folder / "adapters/tuned/draft.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match=r"adapters/tuned/draft\.safetensors: files.sha256"):
        open_bundle(folder)
    file.unlink()
    edit_manifest(folder, lambda manifest: manifest["files"].pop("adapters/tuned/draft.safetensors"))
    with pytest.raises(BundleError, match=r"files: has no adapters/tuned/draft\.safetensors"):
        open_bundle(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda own: own.update({"../sql": own.pop("tuned")}), r"adapters: the name '\.\./sql' must be 1 to 32 of a-z"),
        (lambda own: own["tuned"]["methods"].pop("decode"), r"adapters\.tuned\.methods\.decode: missing"),
        (
            lambda own: own["tuned"]["speculation"].update(default_width=8),
            r"adapters\.tuned\.speculation.default_width",
        ),
        (lambda own: own["tuned"].update(files={}), r"adapters\.tuned\.files: Extra inputs"),
    ],
)
def test_a_wrong_entry_of_an_adapter_is_named(made: Made, tmp_path: Path, change: Any, problem: str) -> None:
    folder = tmp_path / "edited"
    shutil.copytree(made.whole.folder, folder)
    edit_manifest(folder, lambda manifest: change(manifest["adapters"]))
    with pytest.raises(BundleError, match=problem):
        open_bundle(folder)


def test_the_command_line_chooses_and_lists_adapters(made: Made) -> None:
    def invoke(*words: object) -> Result:
        return CliRunner().invoke(app, list(map(str, words)))

    folder = made.whole.folder
    done = invoke("run", folder, PROMPT, "--adapter", "tuned", "--max-new-tokens", 8, "--json")
    assert json.loads(done.stdout)["generated_tokens"] > 0
    done = invoke("run", folder, PROMPT, "--adapter", "sql")
    assert done.exit_code == 2
    assert "--adapter must be one of frozen, tuned, lora, not sql" in done.stderr
    assert set(TASKS) <= set(invoke("bundle", "inspect", folder).stdout.split())


def test_benches_measure_the_chosen_adapter(made: Made, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in (PROMPT, "a light")))

    def invoke(bench: str, bundle: Bundle, *words: object) -> Any:
        flags = ("--data", data, "--max-new-tokens", 8, "--json", *words)
        done = CliRunner().invoke(app, ["bench", bench, str(bundle.folder), *map(str, flags)])
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    chosen = invoke("acceptance", made.whole, "--adapter", "tuned")
    assert chosen.pop("settings")["adapter"] == "tuned"
    alone = invoke("acceptance", made.alone)
    alone.pop("settings")
    assert chosen == alone
    flags = ("--repetitions", 1, "--systems", "plain,speculative")
    tasks = invoke("tasks", made.whole, "--adapter", "tuned", "--memory", *flags)
    assert (tasks["adapter"], tasks["equal"]) == ("tuned", True)
    assert tasks["weight_bytes"] == invoke("tasks", made.alone, *flags)["weight_bytes"]
    assert tasks["weight_bytes"] > invoke("tasks", made.whole, *flags)["weight_bytes"]


def test_tasks_that_cannot_be_exported_are_refused(made: Made) -> None:
    for options, problem in (
        ({"task": {"SQL": made.files["tuned"]}}, "--task SQL: the name must be 1 to 32 of a-z, 0-9"),
        (
            {"task": {f"t{n}": made.files["tuned"] for n in range(65)}},
            "--task: a bundle has at most 64 adapters, not 65",
        ),
        ({"backend": "xnnpack"}, "--task goes with --backend kernels, not with --backend xnnpack"),
        ({"merge_adapter": "on"}, "--task needs the base model's own weights"),
        ({"schedule": "fused", "stream_nodes": "all"}, "--task tuned=tuned needs --schedule deferred, not fused"),
    ):
        adapter = made.files["tuned"] if "merge_adapter" in options else made.adapter
        with pytest.raises(OptionError) as caught:
            made.config("refused", adapter, **{"task": made.files, **options})
        assert caught.value.flags.startswith(problem)
    assert made.config("whole", None, task=made.files, num_streams=1).num_streams is None  # it is the tasks'
    asked = made.config("whole", None, task=made.files, widths=(1, 4, 8))
    assert (asked.widths, {task.widths for task in asked.tasks.values()}) == ((4, 8), {(1, 4, 8), (4, 8)})


def usual(made: Made, adapter: Path | None, **options: Any) -> ExportConfig:
    """With the default widths and streams, of a context that the model has."""
    config = ExportConfig(made.checkpoint, adapter, made.folder / "usual", max_context_len=128, **options)
    return resolve_for_adapter(config)


def test_the_base_of_tasks_is_not_merged(made: Made) -> None:
    """Eight bits merge what tunes the base, in an adapter with streams or without, and streams alone tune nothing."""
    for name in ("tuned", "lora"):
        with pytest.raises(OptionError, match=f"needs the base model's own weights, which adapter {name} changes"):
            usual(made, made.files[name], task=made.files, quantize="q8_0", top_k=5)
        apart = usual(made, made.files[name], task=made.files, quantize="q8_0", merge_adapter="off", top_k=5)
        assert not apart.merges(read_adapter(made.files[name])[0])
    assert usual(made, made.adapter, task=made.files, quantize="q8_0", top_k=5).tasks.keys() == made.files.keys()


def test_an_adapter_without_streams_can_be_merged_or_kept_separate(made: Made) -> None:
    for merge, grid in (("on", "q4_1"), ("off", "q8_0")):
        config = usual(made, made.files["lora"], merge_adapter=merge, quantize=grid)
        assert config.merges(LORA) == (merge == "on")
        assert (preview(config).warning is not None) == (merge == "on")
    with pytest.raises(OptionError, match="schedule is about streams"):
        usual(made, made.files["lora"], schedule="both")
    with pytest.raises(OptionError, match="merge_adapter is about streams, and this export has none"):
        usual(made, None, merge_adapter="on")


@pytest.mark.parametrize(
    ("adapter", "options"),
    [
        (None, {"task": True, "num_streams": 1, "scheme": {"streams": "q4_1"}, "top_k": 5}),
        ("tiny", {"task": True, "num_streams": 1, "top_k": 5}),
        ("tiny", {"task": True, "widths": (4, 8), "prune_keep": {8: 4}, "top_k": 5}),
        ("tuned", {"top_k": 5}),
        ("lora", {"merge_adapter": "on"}),
        ("ngrams", {"ngram_table_mb": 0.001}),
    ],
)
def test_the_options_in_a_report_repeat_the_export(
    adapter: str | None, options: dict[str, Any], made: Made, tmp_path: Path
) -> None:
    table = made.folder / "ngrams.safetensors"
    texts = np.random.default_rng(0).integers(0, 20, (40, 12)).tolist()
    config = load_config(made.checkpoint)
    save_ngrams(table, config, count_ngrams([Example(text, 1) for text in texts], config.vocab_size), {})
    files = {**made.files, "tiny": made.adapter, "ngrams": table}
    if "task" in options:
        options = {**options, "task": made.files}
    first = usual(made, files[adapter] if adapter else None, **options)
    expected = json.loads(json.dumps({**first.to_dict(), **preview(first).to_dict()}))
    given = {name: str(value) for name, value in options["task"].items()} if "task" in options else {}
    assert expected.items() >= json.loads(json.dumps({**options, "task": given})).items()
    (tmp_path / "again.yaml").write_text(json.dumps(first.to_dict()))
    command = ["export", "-o", str(tmp_path / "again"), "--config", str(tmp_path / "again.yaml"), "--dry-run", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    del found["output_dir"]
    assert found == expected
