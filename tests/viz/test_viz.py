"""Pictures of convergence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import InputError, MissingDependencyError
from proxfield.generate import grid
from proxfield.result import Trace
from proxfield.viz import convergence_figure, save_figure
from proxfield.viz.charts import _spread, rule_style

pytest.importorskip("matplotlib")


RULES = [name for name, rule in pf.RULES.items() if not rule.special]


@pytest.fixture(scope="module")
def results() -> dict[str, pf.Result]:
    field = grid(8, 8, strength=3.0, sign="repulsive")
    return {name: pf.infer(field, name, max_iters=300) for name in RULES}


def with_trace(result: pf.Result, f: list[float]) -> pf.Result:
    """The same result with another F; seconds are the iterations."""
    t = np.arange(len(f))
    trace = Trace(t, t.astype(float), np.array(f, dtype=float), np.zeros(len(f)))
    return pf.Result(**{**vars(result), "trace": trace})


def curves_of(axes: Any) -> list[Any]:
    """The lines that belong to methods."""
    return [line for line in axes.lines if (line.get_gid() or "").startswith("curve-")]


def test_two_panels_with_a_curve_and_a_name_for_each(results: dict[str, pf.Result]) -> None:
    figure = convergence_figure(results, title="a grid")
    left, right = figure.axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("iterations", "seconds")
    for axes in (left, right):
        assert len(curves_of(axes)) == 2 * len(results)  # a curve and its last point
    assert [t.get_text() for t in right.texts] == list(results)
    colors = [t.get_color() for t in right.texts]
    assert colors == [rule_style(name, k).color for k, name in enumerate(results)]


def test_heights_are_f_above_the_lowest(results: dict[str, pf.Result]) -> None:
    lowest = min(np.nanmin(r.trace.free_energy) for r in results.values())
    left, _ = convergence_figure(results).axes
    said = left.get_title(loc="right")
    assert said == f"0 = lowest F seen: {lowest:.2f}".replace("-", "−")
    for curve, result in zip(curves_of(left)[::2], results.values(), strict=True):
        assert curve.get_ydata()[-1] == pytest.approx(result.trace.free_energy[-1] - lowest)
        assert curve.get_xdata()[-1] == result.iterations


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_files(results: dict[str, pf.Result], tmp_path: Path, ending: str, magic: bytes) -> None:
    path = tmp_path / f"a.{ending}"
    save_figure(convergence_figure(results), path)
    assert path.read_bytes().startswith(magic)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_bad_names(results: dict[str, pf.Result], tmp_path: Path) -> None:
    figure = convergence_figure(results)
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        save_figure(figure, tmp_path / "a.gif")
    with pytest.raises(InputError, match="folder"):
        save_figure(figure, tmp_path / "no" / "a.png")
    with pytest.raises(InputError, match="at least one"):
        convergence_figure({})


def test_infinite_parts_are_left_out(results: dict[str, pf.Result], tmp_path: Path) -> None:
    some = with_trace(results["fixed"], [np.inf, np.inf, 3.0, 1.0])
    none = with_trace(results["fixed"], [np.inf, np.inf])
    figure = convergence_figure({"some": some, "none": none})
    left, _ = figure.axes
    assert curves_of(left)[0].get_ydata().tolist() == [2.0, 0.0]
    assert len(curves_of(left)) == 2
    save_figure(figure, tmp_path / "a.png")
    figure = convergence_figure({"none": none})
    assert "+inf" in figure.axes[0].texts[0].get_text()
    save_figure(figure, tmp_path / "b.png")


@pytest.mark.parametrize("f", [[5.0], [5.0, 5.0], [1.0, 0.0], [1e-300, 0.0], [-1e300, 1e300, 0.0]])
def test_strange_traces(results: dict[str, pf.Result], tmp_path: Path, f: list[float]) -> None:
    figure = convergence_figure({"a": with_trace(results["fixed"], f)})
    save_figure(figure, tmp_path / "a.png")


def test_long_traces_are_thinned_but_keep_their_ends(results: dict[str, pf.Result]) -> None:
    f = np.linspace(1.0, 0.0, 200_000).tolist()
    left, _ = convergence_figure({"a": with_trace(results["fixed"], f)}).axes
    x = left.lines[0].get_xdata()
    assert len(x) <= 600
    assert (x[0], x[-1]) == (1, 199_999)


def test_names_never_overlap() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        heights = rng.uniform(0, 1, rng.integers(1, 12)).round(1).tolist()
        placed = _spread(heights, 0.05)
        order = np.argsort(placed)
        assert (np.diff(np.array(placed)[order]) > 0.05 - 1e-9).all()
        assert (np.diff(np.array(heights)[order]) >= 0).all()
        assert min(placed) >= -1e-9


def test_missing_matplotlib_names_the_remedy(
    results: dict[str, pf.Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "proxfield\[plot\]"'):
        convergence_figure(results)


def test_importing_viz_loads_no_matplotlib() -> None:
    code = "import sys, proxfield.viz; assert 'matplotlib' not in sys.modules"
    src = str(Path(pf.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": src, "PATH": ""})


def test_no_pyplot(results: dict[str, pf.Result]) -> None:
    convergence_figure(results)
    assert "matplotlib.pyplot" not in sys.modules
