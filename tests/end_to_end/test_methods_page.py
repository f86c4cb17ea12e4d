"""The page of the methods in a browser: its script runs, its figures can be read back, and it is painted.

Run: python -m pytest tests/end_to_end/test_methods_page.py
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from browser import browse, needs_browser
from methods_samples import DATA, WORDS, made_up

from streamfuse.research.compare.report import write_page

image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed: pip install 'streamfuse[bench]'")
pytestmark = needs_browser
BLUE = {"light": (0x2A, 0x78, 0xD6), "dark": (0x39, 0x87, 0xE5)}  # bars of lossless methods


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "methods.html"
    write_page(made_up(), path)
    return path


def test_figures_are_read_back_from_what_the_browser_made_of_the_page(page: Path) -> None:
    document = browse(page, "--dump-dom")
    assert 'data-ready="true"' in document, "the script ran to its end"
    result = made_up()
    for data in DATA:
        for name, method in result["methods"].items():
            row = re.search(
                f'<div class="bar-row[^>]*data-pick="{name}"[^>]*data-device="here" data-data="{data}" '
                'data-speedup="([^"]*)"[^>]*>',
                document,
            )
            assert row is not None, (data, name)
            assert float(row[1]) == method["results"][data]["speedup"]
    visible = [panel for panel in re.findall(r'<div class="panel"[^>]*>', document) if "hidden" not in panel]
    assert {found for panel in visible for found in re.findall(r'data-panel-data="([^"]*)"', panel)} == {"e2e"}
    assert {found for panel in visible for found in re.findall(r'data-panel-device="([^"]*)"', panel)} == {"here"}
    shown = [found for panel in visible for found in re.findall(r'data-panel-method="([^"]*)"', panel)]
    assert shown == ["streams, ours"], "one answer of those that are there"
    answer = re.search(r'data-answer="streams, ours">(.*?)</p>', document, re.DOTALL)
    assert answer is not None
    without_tips = re.sub(r'<span class="tip".*?</span></span>', "</span>", answer[1], flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", "", without_tips).replace("&lt;", "<").replace("&gt;", ">")
    assert text == "".join(WORDS)
    heat = re.search(r'<table class="heat[^>]*data-method="streams, ours" data-data="e2e".*?</table>', document, re.S)
    assert heat is not None
    shares = [float(share) for share in re.findall(r'data-rank="1" data-share="([^"]*)"', heat[0])]
    assert shares == [row[0] for row in result["methods"]["streams, ours"]["results"]["e2e"]["acceptance"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_painted_by_day_and_by_night(page: Path, scheme: str) -> None:
    shot = page.parent / f"{scheme}.png"
    night = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(page, *night, "--window-size=1200,1600", f"--screenshot={shot}")
    pixels = np.round(255 * image.imread(shot)[:, :, :3]).astype(int)
    assert pixels.shape == (1600, 1200, 3)
    assert (np.median(pixels) < 60) == (scheme == "dark"), "the background"
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    blue = (np.abs(pixels - np.array(BLUE[scheme])) <= 2).all(axis=2)
    assert blue.mean() > 0.005, "bars of lossless methods"
    rows = np.abs(np.diff(pixels.sum(axis=2), axis=1)).sum(axis=1) > 0
    assert rows.mean() > 0.4, "most lines of the picture show something"
