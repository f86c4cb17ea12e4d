"""The latency bench on the arithmetic model and a clock that only a pass moves: what is timed, and whose time it is.

Run: python -m pytest tests/bench/test_bench_latency.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import CAPACITY, edit_manifest, write_sized_bundle
from engine_fixtures import made_engines
from typer.testing import CliRunner

from streamfuse.bench.latency.measure import OUTSIDE, WAIT, Latency, LatencySettings, measure
from streamfuse.bench.latency.report import latency_report, method_rows, part_tables
from streamfuse.bench.shared import cold_caches, machine
from streamfuse.bench.shared.machine import ReadBandwidth, distance_text
from streamfuse.bench.shared.work import WorkError, weight_bytes, work_of
from streamfuse.bundle import Manifest, open_bundle
from streamfuse.cli import app
from streamfuse.runtime.backend import PassOutput

PASS_MS = {"prefill": 40.0, "decode": 4.0, "verify_4": 5.0, "verify_8": 6.0}
STREAMS_MS = 1.5
COMMIT_MS = 0.25
SIZES = {"embedding": 1000, "attention": 40_000, "mlp": 120_000, "head": 8_000, "streams": 9_000}


class TimedBackend(fakes.ArithmeticBackend):
    """A clock beside the arithmetic model: passes and commits move it, nothing else does."""

    now = 0.0

    def run(self, method: str, *inputs: Any) -> PassOutput:
        self.now += PASS_MS[method] / 1000
        return super().run(method, *inputs)

    def streams(self, index: int, next_token: int) -> PassOutput:
        assert self.calls[-1] == ("decode", 1), "of a node that was just committed"
        assert self.length == 17
        self.now += STREAMS_MS / 1000
        return PassOutput.of_prefill()

    def commit(self, rows: Sequence[int]) -> None:
        self.now += COMMIT_MS / 1000
        super().commit(rows)


class HalfAttention:
    """An engine's profile: half of each pass is attention, a quarter of it waits inside that, an eighth is unnamed or a
    norm, which is of no part."""

    def __init__(self, backend: TimedBackend) -> None:
        self._backend = backend

    def start(self) -> None:
        self._seen = len(self._backend.calls)

    def take(self) -> Callable[[], Mapping[str, float]]:
        ms = sum(PASS_MS[method] for method, _ in self._backend.calls[self._seen :])
        self._seen = len(self._backend.calls)
        times = {"streamfuse::qkv.out": ms / 4, "tree_attention": ms / 4, WAIT: ms / 4}
        return lambda: {**times, "streamfuse::add_normed.out": ms / 16, "mystery": ms / 16}

    def stop(self) -> None:
        del self._seen


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_sized_bundle(tmp_path / "demo", SIZES)


@pytest.fixture
def manifest(bundle: Path) -> Manifest:
    return open_bundle(bundle).manifest


def run(manifest: Manifest, bundle: Path, profiled: bool = True, **settings: int) -> tuple[Latency, TimedBackend]:
    backend = TimedBackend(open_bundle(bundle).spec())
    asked = LatencySettings(**{"repetitions": 4, "context": 16, **settings})
    bandwidth = iter([20.0, 10.0, 40.0] * 100)
    profiler = HalfAttention(backend) if profiled else None
    loop_ms = {"decode": 0.1, "verify_8": 0.2}
    found = measure(backend, manifest, asked, lambda: next(bandwidth), profiler, loop_ms, clock=lambda: backend.now)
    return found, backend


def test_passes_and_commits_are_timed_apart(manifest: Manifest, bundle: Path) -> None:
    found, _ = run(manifest, bundle)
    for name, ms in PASS_MS.items():
        assert found.methods[name].pass_ms.median == pytest.approx(ms)
        assert found.methods[name].parts["commit"].ms == pytest.approx(COMMIT_MS)
    assert found.methods["verify_8"].parts["loop"].ms == 0.2
    assert "loop" not in found.methods["verify_4"].parts


def test_the_parts_of_a_pass_add_up_to_it(manifest: Manifest, bundle: Path) -> None:
    found, _ = run(manifest, bundle)
    parts = found.methods["verify_8"].parts
    assert parts["attention"].ms == pytest.approx(3.0)
    assert parts["waits"].ms == pytest.approx(1.5)
    assert parts["other"].ms == pytest.approx(3.0)
    assert sum(part.ms for name, part in parts.items() if name not in ("waits", *OUTSIDE)) == pytest.approx(6.0)


def test_every_method_meets_the_same_context_and_methods_take_turns(manifest: Manifest, bundle: Path) -> None:
    _, backend = run(manifest, bundle, profiled=False, repetitions=6, settle=3)
    assert backend.length == 16
    calls = [method for method, _ in backend.calls[2:]]  # the first two chunks fill the context
    turns = [calls[:28], calls[28:]]  # four timed passes of each method, then the last two
    for turn, passes in zip(turns, (7, 5), strict=True):
        methods = turn[::passes]
        assert sorted(methods) == sorted(PASS_MS)
        assert turn == [method for method in methods for _ in range(passes)], "all of a method's passes in a row"
    assert turns[0][0] != turns[1][0]
    assert dict(backend.calls[2:]) == {"prefill": 8, "decode": 1, "verify_4": 4, "verify_8": 8}, "full passes"


def test_passes_are_timed_once_the_caches_have_settled(manifest: Manifest, bundle: Path) -> None:
    """A method costs twice as much for three passes after another one, as where programs share the last-level cache."""

    class Settling(TimedBackend):
        def run(self, method: str, *rows: Any) -> Any:
            last = [name for name, _ in self.calls[-3:]]
            started, done = self.now, super().run(method, *rows)
            if last.count(method) < 3:
                self.now += self.now - started
            return done

    backend = Settling(open_bundle(bundle).spec())
    asked = LatencySettings(repetitions=4, context=16)
    found = measure(backend, manifest, asked, lambda: 20.0, None, {}, clock=lambda: backend.now)
    assert {name: method.pass_ms.high for name, method in found.methods.items()} == pytest.approx(PASS_MS)


def test_the_roofline_is_the_weights_over_the_median_bandwidth(manifest: Manifest, bundle: Path) -> None:
    found, _ = run(manifest, bundle)
    assert found.weight_bytes == weight_bytes(manifest) == 168_000
    assert found.roofline_ms == pytest.approx(168_000 / 20e9 * 1000)
    assert found.decode_roofline_fraction == pytest.approx(found.roofline_ms / 4.0)
    assert found.verify_8_cost == pytest.approx(1.5)


def test_deferred_streams_are_a_method_and_part_of_what_verifying_costs(bundle: Path) -> None:
    def defer(manifest: dict[str, Any]) -> None:
        for width in ("verify_4", "verify_8"):
            manifest["methods"][width]["stream_nodes"] = 0
        manifest["methods"]["streams"] = {**manifest["methods"]["decode"], "keep": None}
        manifest["parity"]["streams"] = manifest["parity"]["decode"]
        manifest["speculation"]["schedule"] = "deferred"

    edit_manifest(bundle, defer)
    found, _ = run(open_bundle(bundle).manifest, bundle, profiled=False)
    assert found.methods["streams"].pass_ms.median == pytest.approx(STREAMS_MS)
    assert found.verify_8_cost == pytest.approx((6.0 + STREAMS_MS) / 4.0)


def test_the_json_has_the_keys_that_are_promised(manifest: Manifest, bundle: Path) -> None:
    facts = json.loads(json.dumps(run(manifest, bundle)[0].to_dict()))
    documented = {
        "read_bandwidth_gb_s", "weight_bytes", "roofline_ms", "methods", "decode_roofline_fraction", "verify_8_cost",
    }  # fmt: skip
    assert documented <= facts.keys()
    decode = facts["methods"]["decode"]
    assert set(decode["parts"]) == {
        "embedding", "attention", "mlp", "head", "top_k", "commit", "loop", "waits", "other",
    }  # fmt: skip
    assert decode["parts"]["attention"].keys() == {"ms", "gb_s", "gmac_s"}


def test_work_counts_nodes_below_and_survivors_with_streams_above(manifest: Manifest) -> None:
    work = work_of(manifest, "verify_8", context=10)
    # Two layers, the upper one with streams: 8 nodes below; 4 survivors and 2 x 2 stream rows above.
    assert work["mlp"].macs == 8 * 60_000 + (4 + 2 * 2) * 60_000
    assert work["attention"].macs == 16 * (20_000 + 2 * 4 * 8 * 10)
    assert work["head"].macs == 4 * 258 * 32
    assert work["top_k"].macs == 2 * 2 * 258 * 32
    assert work["head"].bytes == 8_000
    plain = work_of(manifest, "decode", context=10)
    assert plain["mlp"].macs == 120_000
    assert plain["top_k"].bytes == 0
    assert plain["attention"].bytes == 40_000 + 2 * 4 * 2 * 2 * 8 * 10
    assert work_of(manifest, "prefill", context=10)["head"].bytes == 0


@pytest.mark.parametrize(
    ("layout", "dtype", "name", "shape", "position"),
    [
        ("packed", "int8", "key_cache_{}", (2, 0, 34), 2 * (34 + 17 + 4)),  # two heads of up to 32 dimensions
        ("position_head_dim", "float32", "key_cache_{}", (0, 2, 8), 2 * 4 * 2 * 8),
        ("head_position_dim", "float16", "past_key_values.{}.key", (1, 2, 0, 8), 2 * 2 * 2 * 8),
    ],
)
def test_a_layer_with_a_ring_reads_its_window(
    bundle: Path, layout: str, dtype: str, name: str, shape: tuple[int, ...], position: int
) -> None:
    def with_ring(manifest: dict[str, Any]) -> None:
        manifest["cache"] |= {"layout": layout, "capacity": 1024, "dtype": dtype}
        manifest["methods"]["decode"]["inputs"] = [
            {"name": name.format(layer), "dtype": "uint8", "shape": [size or positions for size in shape]}
            for layer, positions in enumerate((288, 1024))
        ]

    def reads(context: int) -> float:
        return work_of(open_bundle(bundle).manifest, "decode", context)["attention"].bytes

    edit_manifest(bundle, with_ring)
    assert reads(20) - reads(0) == 40 * position
    assert reads(900) - reads(0) == (32 + 900) * position


@pytest.mark.parametrize(
    ("layout", "dtype", "name", "shape"),
    [
        ("packed", "int8", "key_cache_{}", (0, 1024, 34)),
        ("position_head_dim", "float32", "key_cache_{}", (1024, 0, 8)),
        ("head_position_dim", "float16", "past_key_values.{}.key", (1, 0, 1024, 8)),
        ("channels_position", "float16", "key_cache_{}", (1, 0, 1, 1024)),
    ],
)
def test_a_layer_with_more_heads_reads_more(
    bundle: Path, layout: str, dtype: str, name: str, shape: tuple[int, ...]
) -> None:
    def reads(heads: int) -> float:
        def with_heads(manifest: dict[str, Any]) -> None:
            manifest["cache"] |= {"layout": layout, "capacity": 1024, "dtype": dtype}
            manifest["methods"]["decode"]["inputs"] = [
                {"name": name.format(layer), "dtype": "uint8", "shape": [size or count for size in shape]}
                for layer, heads in enumerate((2, other))
                for count in [heads * 8 if layout == "channels_position" else heads]
            ]

        other = heads
        edit_manifest(bundle, with_heads)
        manifest = open_bundle(bundle).manifest
        return work_of(manifest, "decode", 100)["attention"].bytes - work_of(manifest, "decode", 0)["attention"].bytes

    assert reads(6) == 2 * reads(2)  # two and six heads, twice two


def test_a_head_without_bytes_of_its_own_is_the_embedding(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["quantization"]["head"].update(bytes=0))
    assert weight_bytes(open_bundle(bundle).manifest) == 161_000


def test_a_head_with_only_the_bytes_of_its_norm_is_the_embedding_too(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["quantization"]["head"].update(bytes=4 * 32))
    manifest = open_bundle(bundle).manifest
    assert weight_bytes(manifest) == 161_000 + 4 * 32
    assert work_of(manifest, "decode", context=10)["head"].bytes == 1_000 + 4 * 32


def test_a_manifest_without_sizes_is_refused(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["quantization"]["mlp"].update(bytes=None))
    with pytest.raises(WorkError, match=r"quantization\.mlp"):
        weight_bytes(open_bundle(bundle).manifest)


def test_tables_show_every_method_and_part(manifest: Manifest, bundle: Path) -> None:
    found, _ = run(manifest, bundle)
    assert [row[0] for row in method_rows(found)[1]] == list(PASS_MS)
    ms, bandwidth, arithmetic = part_tables(found)
    assert ms[0] == ["ms", *PASS_MS]
    assert {"attention", "waits", "other"} == {row[0] for row in ms[1]}
    assert [row[0] for row in bandwidth[1]] == [row[0] for row in arithmetic[1]] == ["attention"], "parts with work"
    assert part_tables(run(manifest, bundle, profiled=False)[0]) == [], "no profile, no parts"


def test_the_report_is_one_page_with_a_chart(manifest: Manifest, bundle: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'streamfuse[bench]'")
    for profiled in (True, False):
        page = latency_report(run(manifest, bundle, profiled)[0], "some <model>", "streamfuse --x <y>").html()
        assert "<svg" in page
        assert "some &lt;model&gt;" in page
        assert "streamfuse --x &lt;y&gt;" in page


fake_engine = made_engines()


def test_the_command_prints_one_json_object(
    bundle: Path, fake_engine: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_caches, "largest_caches_bytes", lambda: 2**20)  # a server's take seconds to evict
    flags = ["--context", "16", "--repetitions", "2", "--json"]
    result = CliRunner().invoke(app, ["bench", "latency", str(bundle), *flags])
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["context"] == 16
    assert facts["verify_8_cost"] > 0
    assert facts["methods"]["decode"]["parts"]["loop"]["ms"] > 0
    assert facts["cold_caches"] is False
    result = CliRunner().invoke(app, ["bench", "latency", str(bundle), *flags, "--cold-caches"])
    assert json.loads(result.stdout)["cold_caches"] is True


def test_the_command_refuses_a_context_that_does_not_fit(bundle: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "latency", str(bundle), "--context", str(CAPACITY)])
    assert result.exit_code == 2
    line = f"--context must be from 1 to {CAPACITY - 8} for this bundle, not {CAPACITY}"
    assert result.stderr == f"error: Invalid value: {line} (see streamfuse bench latency --help)\n"


def test_a_bundle_without_room_behind_its_widest_pass_is_refused(manifest: Manifest) -> None:
    full = manifest.model_copy(update={"cache": manifest.cache.model_copy(update={"capacity": 8})})
    words = r"context of 8 tokens has no room for a pass of 8 rows .*; export with a larger max_context_len"
    with pytest.raises(ValueError, match=words):
        LatencySettings(context=1).check(full)


def test_a_latency_between_cores_that_cannot_be_measured_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "core_distance_ns", lambda: 0.0)
    read = ReadBandwidth(1)
    assert read() > 0
    assert (read.is_native, read.core_distance_ns, distance_text(read.core_distance_ns)) == (True, [], "")


@pytest.mark.alone
def test_the_engine_reads_memory_about_as_fast_as_numpy() -> None:
    engine, numpy = ReadBandwidth(2), ReadBandwidth(2, native=False)
    assert 0.5 < engine() / numpy() < 5
    assert (len(engine.core_distance_ns), numpy.core_distance_ns) == (1, []), "the engine's cores are noted beside it"
