"""The report of `proxfield.tune`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import proxfield as pf
from proxfield.images.search import Fold, Scored, TuneResult, moved
from proxfield.viz.tuning import PANELS, page, tuning_figure, write_report

BEST = pf.DenseSettings(3, 1, 40, 5, 2, 5)


def make_result(**changes: Any) -> TuneResult:
    table = [
        Scored(0.62, BEST),
        Scored(0.61, replace(moved(BEST, "bilateral_weight", 4), max_iters=3)),
        Scored(0.6, replace(moved(BEST, "spatial_weight", 0), max_iters=10)),
        Scored(0.4, pf.DenseSettings(3, 3, 80, 13, 10, 1)),
    ]
    folds = (Fold(table[0], 0.63, 0.6, ("a", "b")), Fold(None, 0.6, 0.6, ("<c>",)))
    values: dict[str, Any] = {
        "improved": True,
        "config": pf.DenseSettings(bilateral_weight=2.0),
        "metric": "miou",
        "baseline": 0.6,
        "held_out": 0.615,
        "best": table[0],
        "folds": folds,
        "table": tuple(table),
        "images": 3,
        "digest": "abc",
        "seed": 0,
        "seconds": 3.0,
    }
    return TuneResult(**{**values, **changes})


def test_the_figure_has_a_panel_per_setting() -> None:
    figure = tuning_figure(make_result())
    assert [axes.get_xlabel() for axes in figure.axes] == list(PANELS.values())
    weight = figure.axes[list(PANELS).index("bilateral_weight")]
    baseline, _, alone, best = weight.lines
    assert list(baseline.get_ydata()) == [0.6, 0.6]
    # trials that differ in this setting alone, in order
    assert list(alone.get_xdata()) == [2, 4] and list(alone.get_ydata()) == [0.62, 0.61]
    assert list(best.get_xdata()) == [2] and list(best.get_ydata()) == [0.62]
    low, high = figure.axes[0].get_ylim()
    assert low < 0.6 and high > 0.62


def test_the_page(tmp_path: Path) -> None:
    text = page(make_result())
    assert text.count("<svg") == 1 and "src=" not in text
    assert "0.6000 without a CRF, 0.6150 with one on images" in text
    rows = text.split("All settings that were tried")[1]
    order = [rows.index(x) for x in ("0.6200", "0.6100", "no CRF", "0.4000")]
    assert order == sorted(order)
    assert "no CRF" in text.split("<h2>Folds</h2>")[1].split("<h2>")[0]
    unhelpful = page(make_result(improved=False, stopped="the time budget was used up"))
    assert "(2 folds): no CRF" in unhelpful and "used up" in unhelpful
    for name in ("x.html", "x.png", "x.svg"):
        write_report(make_result(), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(pf.InputError, match=r"a report is written as \.html, \.png, \.svg, \.pdf"):
        write_report(make_result(), tmp_path / "x.txt")


def test_all_scores_alike() -> None:
    same = (Scored(0.6, BEST),)
    assert tuning_figure(make_result(table=same, best=same[0])).axes
