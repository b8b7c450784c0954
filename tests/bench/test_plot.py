"""Tests of plots: a sweep with its lines, a roofline with its ceilings."""

import dataclasses
import importlib
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

import vkq
from tests.bench.test_compare import row, run
from vkq.bench import plot
from vkq.bench.cases import expand
from vkq.check.cases import Case

CASES = [Case(p) for p in expand("linear[M=8,1,64,K=4,N=4]")]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    module = plot.library()
    real = module.Figure

    def figure(*arguments: Any, **options: Any) -> Any:
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(module, "Figure", figure)
    return made


def test_a_sweep_draws_a_line_for_each_path_in_order_of_size(figures: list[Any], tmp_path: Path) -> None:
    rows = [row(c.name, 10.0 * c.problem.gemm_m, path=p) for p in ("portable", "dot_s8s8") for c in CASES]
    plot.draw(run(*rows), CASES, tmp_path / "m.png")
    upper, lower = figures[0].axes
    assert [line.get_label() for line in upper.lines] == ["portable", "dot_s8s8"]
    assert list(lower.lines[0].get_xdata()) == [1, 8, 64]
    assert list(lower.lines[0].get_ydata()) == [r.median_us for r in (rows[1], rows[0], rows[2])]
    assert lower.get_xlabel() == "M"
    assert upper.get_xscale() == lower.get_yscale() == "log"
    assert "linear[M,K=4,N=4]" in figures[0].get_suptitle()
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"


def test_other_cases_draw_a_roofline(figures: list[Any], tmp_path: Path) -> None:
    cases = [Case(p) for p in expand("linear[M=8,K=4,8,N=4,8]")]
    found = run(*(row(c.name, 10) for c in cases))
    found.rows[3] = dataclasses.replace(found.rows[3], operations=100_000)
    found.ceilings = {"dot_s8s8": 5.0, "fp32_fma": None, "copy": 1.0}
    plot.draw(found, cases, tmp_path / "roof.svg")
    (axes,) = figures[0].axes
    assert [line.get_label() for line in axes.lines] == ["ceiling dot_s8s8, copy"]
    # three points coincide; their names are placed around them
    names = ["8x4x4", "8x4x8", "8x8x4", "8x8x8", "dot_s8s8 5 GOP/s"]
    assert sorted(text.get_text() for text in axes.texts) == names
    assert max(axes.lines[0].get_ydata()) == 5.0
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "<svg" in (tmp_path / "roof.svg").read_text()


def test_labels_do_not_cover_each_other(figures: list[Any], tmp_path: Path) -> None:
    """Labels do not overlap. There are 40 points close together, ceilings 5 % apart, and one ceiling above
    all points."""
    cases = [Case(p) for p in expand("linear[M=8:47,K=64,N=64]")]
    rows = [
        dataclasses.replace(row(c.name, 10 + i % 7), operations=20_000 * (i + 1)) for i, c in enumerate(cases)
    ]
    found = run(*rows)
    found.ceilings = {"dot_s8s8": 95.0, "u8s8": 100.0, "coopmat": 1e9, "copy": 1.0}
    plot.draw(found, cases[:1] + [Case(p) for p in expand("linear[M=1,K=4,N=9]")], tmp_path / "roof.png")
    (figure,) = figures
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    boxes["legend"] = axes.get_legend().get_window_extent()
    pairs = itertools.combinations(boxes, 2)
    assert [pair for pair in pairs if boxes[pair[0]].overlaps(boxes[pair[1]])] == []
    inside = axes.get_window_extent()
    assert [name for name, box in boxes.items() if box.x0 < inside.x0 or box.x1 > inside.x1] == []
    assert len(boxes) > 6
    assert not any("coopmat" in name for name in boxes), "its height is not in the picture"
    for text in axes.texts:
        name, height = text.get_text().split()[0], text.xy[1]
        assert height == found.ceilings.get(name, height)


def test_memory_alone_is_a_roof(figures: list[Any], tmp_path: Path) -> None:
    found = run(row(CASES[0].name, 10))
    found.ceilings = {"dot_s8s8": 1e9, "copy": 1.0}
    plot.draw(found, (), tmp_path / "roof.png")
    (line,) = figures[0].axes[0].lines
    assert line.get_label() == "ceiling copy"
    assert list(line.get_ydata()) == list(line.get_xdata())


def test_sizes_are_told_as_powers_of_two(figures: list[Any], tmp_path: Path) -> None:
    cases = [Case(p) for p in expand("linear[M=1,2,4,8,16,64,K=4,N=4]")]
    plot.draw(run(*(row(c.name, 10) for c in cases)), cases, tmp_path / "m.png")
    axes = figures[0].axes[1]
    figures[0].draw_without_rendering()
    shown = [text.get_text() for text in axes.get_xticklabels() if text.get_text()]
    assert {"1", "2", "4", "8", "16", "32", "64"} <= set(shown)
    assert all(float(text) == 2 ** round(math.log2(float(text))) for text in shown)


def test_no_rows_and_no_matplotlib_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(vkq.ArgumentError, match="there is no row to draw"):
        plot.draw(run(), CASES, tmp_path / "x.png")
    monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError("none")))
    with pytest.raises(vkq.ArgumentError, match=r"pip install 'vkq\[plot\]'"):
        plot.library()


def test_bars_stand_beside_each_other(figures: list[Any], tmp_path: Path) -> None:
    groups = {"resnet50, batch 1": {"vkq": 0.5, "PyTorch": 0.85}, "resnet50, batch 8": {"vkq": 0.8}}
    for theme in plot.THEMES:
        plot.bars("networks", groups, tmp_path / f"{theme}.svg", theme)
    axes = figures[0].axes[0]
    assert [bar.get_width() for bar in axes.patches if bar.get_width()] == [0.5, 0.85, 0.8]
    assert [text.get_text() for text in axes.texts] == ["0.5", "0.85   1.70 x", "0.8"]
    light, dark = ((tmp_path / f"{theme}.svg").read_text() for theme in plot.THEMES)
    assert light != dark
    assert len(light) < 60_000
    with pytest.raises(vkq.ArgumentError, match="the theme is 'blue'"):
        plot.bars("networks", groups, tmp_path / "x.svg", "blue")


def test_a_picture_is_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plot.draw(run(*(row(c.name, 10) for c in CASES)), CASES, tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_what_only_moves_data_is_swept_in_bytes(figures: list[Any], tmp_path: Path) -> None:
    cases = [Case(p) for p in expand("transpose[N=1,2,C=16,H=8,W=8,block=4]")]
    rows = [dataclasses.replace(row(c.name, 10), operations=0) for c in cases]
    plot.draw(run(*rows), cases, tmp_path / "x.svg")
    assert figures[0].axes[0].get_ylabel() == "GB/s"
    with pytest.raises(vkq.ArgumentError, match="no row does arithmetic"):
        plot.draw(run(rows[0]), cases[:1], tmp_path / "x.svg")
    model = dataclasses.replace(row("model.onnx", 10), operations=1000)
    plot.draw(run(rows[0], model), (), tmp_path / "x.svg")
    assert [text.get_text() for text in figures[-1].axes[0].texts] == ["model.onnx"]
