"""The cost analysis of streaming against a draft model: values by hand, and points of a result of `research compare`.

Run: python -m pytest tests/research/test_theory.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from methods_samples import made_up
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.research.theory import COST_RATIOS, TOKEN_RATIOS, curves, points, speedup, theory_report, to_dict


@pytest.mark.parametrize(
    ("cost_ratio", "by_token_ratio"),
    [(2, (5.0, 3.75, 3.0, 2.5, 2.14)), (10, (2.33, 1.75, 1.40, 1.17, 1.00)), (100, (1.73, 1.30, 1.04, 0.87, 0.74))],
)
def test_the_curves_are_the_papers(cost_ratio: float, by_token_ratio: tuple[float, ...]) -> None:
    at = COST_RATIOS.index(cost_ratio)
    assert tuple(round(curves()[token][at], 2) for token in TOKEN_RATIOS) == by_token_ratio


def test_costs_of_the_targets_passes_count() -> None:
    assert speedup(4, 0.5, gamma=2, target=1.5, streaming=2.0) == pytest.approx((1.5 + 0.5) / 4 / 0.5 * 2)
    assert speedup(10, 1.4) == pytest.approx(1.0), "parity where the draft model advances 1.4 times the tokens"


def test_streaming_gains_less_the_cheaper_and_the_better_the_draft_model() -> None:
    for values in curves().values():
        assert values == sorted(values, reverse=True)
    for values in zip(*curves().values(), strict=True):
        assert list(values) == sorted(values, reverse=True)
    assert speedup(10, 1, gamma=5) > speedup(10, 1, gamma=4)
    assert speedup(10, 1, streaming=1.5) < speedup(10, 1)
    assert speedup(1e9, 1) == pytest.approx(1.0), "a draft model that costs nothing"
    for wrong in ({"cost_ratio": 0}, {"token_ratio": -1}, {"gamma": -1}, {"streaming": 0}):
        with pytest.raises(ValueError, match="above 0"):
            speedup(**{"cost_ratio": 10, "token_ratio": 1, **wrong})


def measured() -> dict[str, Any]:
    """With figures that are easy by hand: 10 passes of each method, here at 4 ms per plain pass and 1 ms per draft."""
    result = made_up()
    result["costs"] = {"here": {"target: decode": 4.0, "target: verify_8": 8.0, "target: streams": 2.0,
                                "draft model: decode": 1.0}}  # fmt: skip
    for name, ratio, rate, passes in (
        (
            "draft model, chain",
            2.0,
            100.0,
            {"target: verify_8": 10, "draft model: decode": 40, "draft model: prefill": 2},
        ),
        ("streams, ours", 2.5, 150.0, {"target: verify_8": 10, "target: streams": 10}),
    ):
        found = result["methods"][name]["results"]["e2e"]
        found.update(call_reduction_ratio=ratio, tokens_per_second=rate, passes=passes)
    return result


def test_points_take_counted_passes_and_their_costs() -> None:
    point = next(point for point in points(measured()) if point.data == "e2e")
    assert (point.cost_ratio, point.token_ratio, point.gamma) == (4.0, 0.8, 4.0)
    assert (point.target, point.streaming) == (2.0, 2.5)
    assert point.paper == pytest.approx((1 + 1) / 0.8)
    assert point.expected == pytest.approx((2.5 / 2.5) / (2 / (2 + 1)))
    assert point.measured == 1.5


def test_without_both_methods_or_their_costs_there_is_no_point() -> None:
    for path in (("methods", "streams, ours"), ("methods", "draft model, chain"), ("costs", "here")):
        result = measured()
        result[path[0]][path[1]] = None
        assert points(result) == []
    assert points({}) == []


def test_the_report_has_curves_and_points() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'streamfuse[bench]'")
    page = theory_report(points(measured()), "some <model>").html()
    assert "<svg" in page
    assert "some &lt;model&gt;" in page
    assert "<td>1.50</td>" in page


def test_the_command_prints_one_object_and_refuses_what_has_no_points(tmp_path: Path) -> None:
    def run(*words: object) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, ["research", "theory", *map(str, words)])
        return done.exit_code, done.stdout, done.stderr

    code, stdout, _ = run("--json")
    assert (code, json.loads(stdout)) == (0, to_dict([]))
    file = tmp_path / "methods.json"
    file.write_text(json.dumps(measured()), encoding="utf-8")
    code, stdout, _ = run("--measured", file, "--json")
    assert (code, json.loads(stdout)) == (0, to_dict(points(measured())))
    for text, words in (("{}", "draft model, chain"), ("[]", "one JSON object"), ("{", "not JSON")):
        file.write_text(text, encoding="utf-8")
        code, stdout, stderr = run("--measured", file)
        assert (code, stdout) == (2, "")
        assert words in stderr
    assert run("--measured", tmp_path / "nowhere.json")[0] == 2
