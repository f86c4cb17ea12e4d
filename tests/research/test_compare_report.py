"""The comparison of methods as Markdown and as a page: its figures stand there, and what is missing is a dash.

Run: python -m pytest tests/research/test_compare_report.py
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from methods_samples import WORDS, made_up

from streamfuse.bench.shared.report import ReportError
from streamfuse.research.compare.charts import costs, online, over_time, ticks
from streamfuse.research.compare.report import to_markdown, to_page, write_page
from streamfuse.research.compare.sample import sample_views
from streamfuse.research.compare.tables import online_table, results_table
from streamfuse.research.compare.views import acceptance, best_lossless, speedups


class Elements(HTMLParser):
    """Attributes of all elements that have one of a name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._found: list[dict[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._found.append({"": tag, **{name: value or "" for name, value in attrs}})

    def having(self, *names: str) -> list[dict[str, str]]:
        return [one for one in self._found if all(name in one for name in names)]


def cells(result: dict[str, Any], method: str, data: str = "e2e") -> dict[str, str]:
    columns, rows = results_table(result, data)
    return dict(zip(columns, next(row for row in rows if row[0] == method), strict=True))


def test_a_row_has_every_figure_with_its_interval() -> None:
    assert cells(made_up(), "streams, ours") == {
        "method": "streams, ours",
        "tokens per pass": "2.62",
        "mean accepted tokens": "2.55",
        "tokens/s (95 % interval)": "315.0 (294.0 to 336.0)",
        "over plain (95 % interval)": "2.10 (1.95 to 2.27)",
        "first token, ms": "31.5",
        "extra parameters": "1,234,567",
        "extra memory, MB": "2.5",
        "peak memory, MB": "1,183",
        "lossless": "yes, same text",
    }


def test_what_a_method_does_to_the_text_is_said() -> None:
    result = made_up()
    words = cells(result, "Medusa heads, typical acceptance")["lossless"]
    assert words == "LOSSY: 62 % of plain's tokens, rougeL 39.0 (plain 41.5)"
    result["methods"]["streams, ours"]["results"]["e2e"]["equal_texts"] = False
    assert cells(result, "streams, ours")["lossless"] == "OUTPUTS DIFFER"
    result["settings"]["temperature"] = 0.8
    assert cells(result, "streams, ours")["lossless"] == "OUTPUTS DIFFER", "the same seed, so the same tokens"
    result["methods"]["streams, ours"]["promises"] = "distribution"
    assert cells(result, "streams, ours")["lossless"] == "yes, in distribution"
    result["methods"]["streams, ours"]["results"]["e2e"]["equal_texts"] = True
    assert cells(result, "streams, ours")["lossless"] == "yes, in distribution", "equal by chance"
    lossy = cells(result, "Medusa heads, typical acceptance")["lossless"]
    assert lossy == "LOSSY: rougeL 39.0 (plain 41.5)", "a sampled text shares tokens by chance alone"


def test_markdown_says_where_it_was_measured_and_marks_what_was_computed() -> None:
    text = to_markdown(made_up())
    assert "made-up/model <1>. 2 cores of Imaginary 9000;" in text
    assert "streamfuse research compare build/demo --data e2e --width 8" in text
    assert text.count("### ") == 3
    assert "### e2e (12 prompts)" in text
    assert "| method | phone A (computed) |" in text
    assert "Computed, not measured" in text
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 5
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)


def test_what_is_null_or_missing_is_a_dash_and_never_an_error() -> None:
    result = made_up()
    result["methods"]["streams, ours"]["results"]["e2e"] = {"speedup": None, "acceptance": [[None, 0.5], []]}
    result["methods"]["prompt look-up"] = {"results": {"e2e": {"tokens_per_second": 3.0}}, "computed": None}
    result["costs"]["phone A"]["target: verify_8"] = None
    assert cells(result, "streams, ours")["over plain (95 % interval)"] == "-"
    assert cells(result, "prompt look-up")["tokens/s (95 % interval)"] == "3.0"
    assert "streams, ours" in to_page(result)
    for missing in [*result, "sample.plain", "sample.methods"]:
        partial = made_up()
        place, _, name = missing.rpartition(".")
        (partial[place] if place else partial)[name] = None
        assert to_markdown(partial)
        assert "</html>" in to_page(partial)
    assert "</html>" in to_page({})


def test_bars_stand_fastest_first_on_one_axis() -> None:
    charts = speedups(made_up())
    assert [(chart.device, chart.data) for chart in charts] == [
        ("here", "e2e"), ("here", "spec-bench"), ("phone A", "e2e"), ("phone A", "spec-bench")
    ]  # fmt: skip
    assert len({chart.top for chart in charts}) == 1
    for chart in charts:
        values = [bar.value for bar in chart.bars]
        assert values == sorted(values, reverse=True)
        assert chart.top >= max(bar.ends[1] if bar.ends else bar.value for bar in chart.bars)
    assert {bar.ends for bar in charts[2].bars} == {None}
    result = made_up()
    result["methods"]["Medusa heads, typical acceptance"]["results"]["e2e"]["speedup"] = 9.0
    assert [(data, bar.method) for data, bar in best_lossless(result)] == [
        ("e2e", "streams, ours"), ("spec-bench", "streams, ours")
    ]  # fmt: skip


def test_acceptance_is_by_rank_and_depth_without_what_never_was() -> None:
    result = made_up()
    rows = result["methods"]["streams, ours"]["results"]["e2e"]
    rows["acceptance"] = [[0.5, 0.25, 0.0], [0.4, 0.1, 0.0], [0.0, 0.0, 0.0]]
    found = next(one for one in acceptance(result) if (one.method, one.data) == ("streams, ours", "e2e"))
    assert found.ranks == [[0.5, 0.4], [0.25, 0.1]]
    assert found.depths == [0.75, 0.5]
    assert "plain" not in {one.method for one in acceptance(result)}


def test_costs_are_in_decodes_and_widths_are_shares_of_the_targets_passes() -> None:
    chart = costs(made_up())[0]
    lines = {line.name: [(point.across, point.up) for point in line.points] for line in chart.lines}
    assert lines["this machine"] == [(1, 1.0), (4, 1.5), (8, 2.5), (16, 4.0)]
    assert lines["phone A"] == [(1, 1.0), (4, 1.1), (8, 1.4), (16, 2.2)]
    row = next(row for row in chart.rows if row.method == "draft model, chain")
    assert [(width, share) for _, width, share in row.dots] == [(1, 0.25), (4, 0.125), (8, 0.625)]
    for line in chart.lines:
        ys = [point.y for point in line.points]
        assert ys == sorted(ys, reverse=True), "dearer is higher"


def test_lines_over_time_are_those_of_methods_with_a_series_and_labels_stand_apart() -> None:
    chart = over_time(made_up())[0]
    assert [line.name for line in chart.lines] == ["streams, ours", "draft model, chain"]
    labels = sorted(line.label_y for line in chart.lines)
    assert labels[1] - labels[0] >= 15
    assert ticks(0, 1200) == [0, 250, 500, 750, 1000]
    assert ticks(0.2, 1.1, 4) == [0.25, 0.5, 0.75, 1.0]
    assert ticks(3, 3) == [3]


def test_what_learns_stands_beside_its_frozen_twin_with_borders_where_the_prompts_change() -> None:
    result = made_up()
    (chart,) = online(result)
    assert chart.data == "streams, online"
    learning, frozen = chart.lines
    assert (learning.name, frozen.name) == ("learning", "frozen")
    assert [point.across for point in learning.points] == [30.0 * count for count in range(1, 37)]
    assert {point.up for point in frozen.points} == {2.0}
    assert learning.points[0].up == 2.0
    assert learning.points[11].up == pytest.approx(8 * 30 / (2 * 14 + 3 * 13 + 3 * 12))
    assert [name for _, name in chart.borders] == ["e2e", "spec-bench", "e2e, again"]
    assert [x for x, _ in chart.borders] == [chart.left, *(learning.points[at].x for at in (11, 23))]
    columns, rows = online_table(result)
    assert columns[3:] == ["learning", "frozen", "learning, second half", "frozen, second half"]
    assert rows[2] == ["streams, online", "e2e, again", "12", "2.22", "2.00", "2.40", "2.00"]
    assert "### Learning online, tokens per pass" in to_markdown(result)
    page = Elements(to_page(result))
    assert [one["data-border"] for one in page.having("data-border")] == ["e2e", "spec-bench", "e2e, again"]
    result["methods"]["streams, online"]["online"]["visits"] = [{"data": "e2e", "answers": [[3, None, 2], 7]}]
    assert online(result) == []
    assert online_table(result)[1] == [["streams, online", "e2e", "0", "-", "-", "-", "-"]]


def test_tokens_of_a_pass_share_its_time_without_gaps() -> None:
    sample = sample_views(made_up())
    assert sample is not None
    lane = sample.lanes[0]
    assert (lane.method, lane.passes, len(lane.tokens)) == ("streams, ours", 7, len(WORDS))
    for before, after in zip(lane.tokens, lane.tokens[1:], strict=False):
        assert after.start == pytest.approx(before.start + before.span)
    assert lane.tokens[0].span == pytest.approx(30 / 4), "the pass that reads the prompt brought four"
    assert lane.tokens[-1].start + lane.tokens[-1].span == pytest.approx(lane.ms)
    assert sample.plain.passes == len(WORDS)
    assert lane.tokens[3].rejected == [(1, "·red"), (2, "↵")]
    assert sample.departs(lane) is None
    result = made_up()
    result["sample"]["methods"]["streams, ours"]["tokens"][5]["text"] = " an"
    changed = sample_views(result)
    assert changed is not None
    assert changed.departs(changed.lanes[0]) == 5


def test_the_page_loads_nothing_and_holds_the_figures(tmp_path: Path) -> None:
    write_page(made_up(), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "made-up/model &lt;1&gt;" in page
    assert "<light>" not in page
    assert re.findall(r"""(?:src|href)=|url\(|@import|https?://|fetch\(""", page) == []
    elements = Elements(page)
    bars = {
        (bar["data-data"], bar["data-device"], bar["data-pick"]): bar
        for bar in elements.having("data-speedup", "data-device")
    }
    ours = bars["e2e", "here", "streams, ours"]
    assert (ours["data-speedup"], ours["data-low"], ours["data-high"]) == ("2.1", "1.953", "2.268")
    assert bars["spec-bench", "phone A", "prompt look-up"]["data-speedup"] == "1.17"
    tokens = elements.having("data-index", "data-source")
    assert len(tokens) == 3 * len(WORDS)
    assert {one["data-source"] for one in tokens} == {"target", "streams", "draft", "lookup"}
    lanes = elements.having("data-lane", "data-ms")
    assert [lane["data-lane"] for lane in lanes][:2] == ["plain", "streams, ours"]


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="nowhere"):
        write_page(made_up(), tmp_path / "nowhere" / "page.html")
