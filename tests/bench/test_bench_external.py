"""llama.cpp and ONNX Runtime GenAI under a constraint, over fakes: what they are told, their clocks, what they refuse.

Run: python -m pytest tests/bench/test_bench_external.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_llama_server as fake
import pytest
import tiny
import torch
from bundle_samples import edit_manifest, write_bundle
from fake_genai import FakeGenai
from fake_llama import FakeLlama

from streamfuse.bench.external import llama_cpp, onnx_genai, opening
from streamfuse.bench.external.onnx_genai import OnnxGenai
from streamfuse.bench.shared.systems import ExternalSystemError, Request
from streamfuse.bundle import open_bundle
from streamfuse.extras import MissingExtra
from streamfuse.model.checkpoint import save_adapter

PROMPT = [3, 1, 4, 1, 5]
SCHEMA = '{"type": "object"}'


def greedy(length: int) -> tuple[int, ...]:
    tokens = [fake.following(PROMPT[-1])]
    while len(tokens) < length:
        tokens.append(fake.following(tokens[-1]))
    return tuple(tokens)


def genai(folder: Path, api: FakeGenai, stop_ids: tuple[int, ...] = (), ff_tokens: bool = False) -> OnnxGenai:
    return OnnxGenai("genai", api, folder, 2, 64, stop_ids, ff_tokens)


def test_genai_decodes_plainly_and_reads_the_prompt_before_its_clock(tmp_path: Path) -> None:
    api = FakeGenai()
    system = genai(tmp_path, api, (greedy(9)[6],))
    answer = system.answer(Request(PROMPT, 9))
    assert api.settings["model"]["decoder"]["session_options"]["intra_op_num_threads"] == 2
    assert api.appended == [PROMPT[:-1], PROMPT[-1:]]
    assert answer.token_ids == greedy(6)
    assert answer.statistics is not None
    assert answer.statistics["target_forward_passes"] == 7, "the pass that ended the text is one"
    assert answer.statistics["mean_accepted_tokens"] == 1
    assert answer.decode_ms >= 7 * 1000 * api.PASS_S > answer.statistics["first_token_ms"] / 2 > 0
    assert system.answer(Request(PROMPT, 3)).token_ids == greedy(3)
    assert api.guidance is None


def test_genai_is_told_the_constraint_in_its_own_words(tmp_path: Path) -> None:
    api = FakeGenai()
    for constraint, kind in (({"regex": "a+"}, "regex"), ({"grammar": 'start: "a"'}, "lark_grammar")):
        assert genai(tmp_path, api).answer(Request(PROMPT, 3, constraint=constraint)).statistics is not None
        assert api.guidance == (kind, *constraint.values(), False)
    answer = genai(tmp_path, api, ff_tokens=True).answer(Request(PROMPT, 3, constraint={"schema": SCHEMA}))
    assert answer.statistics is not None
    assert min(answer.statistics["compile_ms"], answer.statistics["cpu_ms"]) > 0
    assert api.guidance is not None
    kind, schema, ff_tokens = api.guidance
    assert (kind, ff_tokens) == ("json_schema", True)
    assert json.loads(schema) == {**json.loads(SCHEMA), "x-guidance": {"whitespace_flexible": False}}


def test_the_options_that_a_schema_gives_itself_stay() -> None:
    given = '{"x-guidance": {"whitespace_flexible": true, "item_separator": ", "}}'
    assert json.loads(onnx_genai.compact(given)) == json.loads(given)


def test_tokens_that_genai_fast_forwards_are_delivered_and_take_no_pass(tmp_path: Path) -> None:
    asked = Request(PROMPT, 8, constraint={"schema": SCHEMA})
    plain = genai(tmp_path, FakeGenai()).answer(asked)
    forwarded = genai(tmp_path, FakeGenai(), ff_tokens=True).answer(asked)
    assert plain.token_ids == forwarded.token_ids
    assert plain.statistics is not None
    assert forwarded.statistics is not None
    forced = sum(token % 3 == 0 for token in plain.token_ids[:-1])
    assert forced > 0, "or this tests nothing"
    assert plain.statistics["target_forward_passes"] == 8
    assert forwarded.statistics["target_forward_passes"] == 8 - forced


def test_forwarded_tokens_beyond_the_limit_are_not_delivered(tmp_path: Path) -> None:
    for most in range(1, 8):
        asked = Request(PROMPT, most, constraint={"schema": SCHEMA})
        assert len(genai(tmp_path, FakeGenai(), ff_tokens=True).answer(asked).token_ids) == most


def test_what_genai_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExternalSystemError, match="delete it to build it again"):
        genai(tmp_path / "missing", FakeGenai())
    with pytest.raises(ExternalSystemError, match=r"genai stopped in an answer \(the session is lost\); leave it out"):
        genai(tmp_path, FakeGenai(fault=True)).answer(Request(PROMPT, 3))
    refused = Request(PROMPT, 3, constraint={"schema": '{"unknown": 1}'})
    with pytest.raises(ExternalSystemError, match=r"genai refuses the constraint: .*Unimplemented keys"):
        genai(tmp_path, FakeGenai()).answer(refused)


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> FakeLlama:
    api = FakeLlama()
    monkeypatch.setattr(llama_cpp, "library", lambda: api)
    return api


def grammar_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "gbnf_of", lambda schema: text)


def test_llama_computes_on_the_processor(llama: FakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[Any] = []
    monkeypatch.setattr(llama, "llama_model_load_from_file", lambda path, given: settings.append(given) or "model")
    monkeypatch.setattr(llama, "llama_init_from_model", lambda model, given: settings.append(given) or "context")
    llama_system()
    loading, context = settings
    assert loading.n_gpu_layers == 0
    assert context.op_offload is False, "prompts too"


def llama_system() -> llama_cpp.LlamaCpp:
    return llama_cpp.LlamaCpp(Path("some.gguf"), threads=1, capacity=64, stop_ids=[49])


def test_llama_asks_the_grammar_for_all_tokens_only_where_it_refuses_the_best(
    llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar_is("12", monkeypatch)
    answer = llama_system().answer(Request([1, 2, 3], 3, constraint={"schema": SCHEMA}))
    assert answer.token_ids == (6, 13, 25), "the second best where the best is refused"
    assert llama.grammar is not None
    assert llama.grammar.asked == [1, 1, 50, 1]
    assert llama.grammar.accepted == [6, 13, 25]
    assert llama_system().answer(Request([1], 1)).statistics is None, "bench tasks expects those of ours alone"
    assert llama.freed == ["llama_sampler_free"], "freed once, by the constrained answer"
    assert answer.statistics is not None
    assert min(answer.statistics["compile_ms"], answer.statistics["cpu_ms"]) > 0


def test_at_a_temperature_the_grammar_comes_first_in_the_chain_that_frees_it(
    llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar_is("12", monkeypatch)
    llama_system().answer(Request([1], 1, 0.5, seed=3, constraint={"schema": SCHEMA}))
    assert llama.samplers == [llama.grammar, ("temperature", 0.5), ("seed", 3)]
    assert llama.freed == ["llama_sampler_free"]


@pytest.mark.parametrize(
    ("grammar", "constraint", "message"),
    [
        ("", {"grammar": 'start: "a"'}, "takes a JSON schema, and the task has a grammar"),
        ("not a grammar", {"schema": SCHEMA}, "cannot read the grammar"),
        (" ".join(map(str, range(50))), {"schema": SCHEMA}, "allows no token"),
    ],
)
def test_what_llama_refuses_is_one_sentence(
    grammar: str, constraint: dict[str, str], message: str, llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar_is(grammar, monkeypatch)
    with pytest.raises(ExternalSystemError, match=message):
        llama_system().answer(Request([1], 1, constraint=constraint))


def test_a_schema_that_has_no_translation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def translated(schema: str) -> str:
        if "pattern" in schema:
            raise AttributeError("a pattern")
        return f"root ::= {schema}"

    module: Any = ModuleType("llama_cpp.llama_grammar")
    module.json_schema_to_gbnf = translated
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_grammar", module)
    assert llama_cpp.gbnf_of(SCHEMA) == f"root ::= {SCHEMA}"
    with pytest.raises(ExternalSystemError, match=r"llama.cpp refuses the schema \(AttributeError: a pattern\)"):
        llama_cpp.gbnf_of('{"pattern": "a"}')


def test_the_genai_model_is_built_once_per_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def build(checkpoint: Path, folder: Path) -> None:
        made.append(checkpoint)
        folder.mkdir()
        (folder / "model.onnx").touch()

    torch.manual_seed(0)
    checkpoint, other = tmp_path / "models" / "some", tmp_path / "others" / "some"
    for folder in (checkpoint, other):
        tiny.write_base(folder, tiny.base())
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("streamfuse.model.pull.resolve_model", lambda name, offline: checkpoint)
    monkeypatch.setattr(onnx_genai, "build", build)
    monkeypatch.setattr(opening, "need", lambda name: None)
    manifest = open_bundle(str(write_bundle(tmp_path / "bundle"))).manifest
    folders = [opening.onnx_genai_model(manifest, None) for _ in range(2)]
    assert folders[0] == folders[1]
    assert folders[0].parent == tmp_path / "home" / "onnx-genai"
    assert made == [checkpoint]
    assert [path.name for path in folders[0].iterdir()] == ["model.onnx"]
    assert list(folders[0].parent.iterdir()) == [folders[0]], "nothing else is left"
    monkeypatch.setattr("streamfuse.model.pull.resolve_model", lambda name, offline: other)
    assert opening.onnx_genai_model(manifest, None) != folders[0]
    assert made == [checkpoint, other]


def test_the_genai_model_is_built_once_per_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def build(checkpoint: Path, folder: Path) -> None:
        made.append(checkpoint)
        folder.mkdir()

    torch.manual_seed(0)
    base = tiny.base()
    checkpoint = tiny.write_base(tmp_path / "some", base)
    adapters = [tmp_path / name / "adapter.safetensors" for name in ("one", "two")]
    for adapter in adapters:
        adapter.parent.mkdir()
        save_adapter(tiny.fused(base, base_rank=2, base_layers=2), adapter)
        os.utime(adapter, (1e9, 1e9))
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("streamfuse.model.pull.resolve_model", lambda name, offline: checkpoint)
    monkeypatch.setattr(onnx_genai, "build", build)
    monkeypatch.setattr(opening, "need", lambda name: None)
    manifest = open_bundle(str(write_bundle(tmp_path / "bundle"))).manifest
    folders = [opening.onnx_genai_model(manifest, adapter) for adapter in (*adapters, *adapters)]
    assert folders[:2] == folders[2:]
    assert len({*folders}) == len(made) == 2


def test_weights_of_a_local_gguf_are_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(llama_cpp, "check_installed", lambda: None)
    monkeypatch.setattr(opening, "need", lambda name: None)
    bundle = write_bundle(tmp_path / "bundle")
    for name in ("tiny", "tiny.gguf", "some/model"):
        edit_manifest(bundle, lambda manifest, name=name: manifest["model"].update(name=name))
        manifest = open_bundle(bundle).manifest
        with pytest.raises(ExternalSystemError, match=rf"^{name}: .*; name its GGUF with --gguf$"):
            opening.llama_cpp_weights(manifest, None, None)
        assert opening.llama_cpp_weights(manifest, tmp_path / "m.gguf", None) == tmp_path / "m.gguf"


def test_without_genai_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    manifest = open_bundle(str(write_bundle(tmp_path / "bundle"))).manifest
    for use in (onnx_genai.library, lambda: opening.onnx_genai_model(manifest, None)):
        with pytest.raises(MissingExtra, match=r"onnxruntime-genai.*: pip install 'streamfuse\[onnx-genai\]'"):
            use()
