"""What users hold: equality, copies, what notebooks show, names that are exported."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

import proxfield as pf
from helpers import Chain, repulsive_grid
from random_fields import random_field


def field() -> pf.Field:
    return pf.Field(
        3, 2, [pf.Unary(np.eye(3, 2)), pf.Potts([[0, 1]], 0.5)], names=["a", "b", "c"]
    ).condition({2: 1})


# ---- equality ----


def test_equal_fields() -> None:
    assert field() == field()
    assert field() is not field()
    assert field() == copy.deepcopy(field()) == pickle.loads(pickle.dumps(field()))
    assert pf.Field(2, n_labels=3) == pf.Field([3, 3])
    assert pf.Field([]) == pf.Field([])
    assert field() != 3


@pytest.mark.parametrize(
    "other",
    [
        lambda: pf.Field([2, 2, 3]),
        lambda: field().condition({2: 0}),
        lambda: field().named(["a", "b", "d"]),
        lambda: field().named(label_names=["x", "y"]),
        lambda: field().add(pf.Constant(0.0)),
        lambda: pf.Field(3, 2, field().terms[::-1], names=["a", "b", "c"]).condition({2: 1}),
        lambda: pf.Field(
            3, 2, [field().terms[0], pf.Potts([[0, 1]], 0.25)], names=["a", "b", "c"]
        ).condition({2: 1}),
        lambda: pf.Field(
            3, 2, [field().terms[0], pf.Potts([[1, 0]], 0.5)], names=["a", "b", "c"]
        ).condition({2: 1}),
    ],
)
def test_different_fields(other: Callable[[], pf.Field]) -> None:
    assert field() != other()


def test_kinds_of_fields_differ() -> None:
    p = np.full((2, 2, 2), 0.5)
    crf = pf.DenseCRF(None, p, labels_axis=-1)
    assert crf == pf.DenseCRF(None, p, labels_axis=-1)
    assert crf != pf.Field(4, 2, crf.terms)
    assert crf != pf.DenseCRF(None, p.reshape(1, 4, 2), labels_axis=-1)
    other = pf.DenseCRF(None, np.moveaxis(p, -1, 0), labels_axis=0)
    assert crf != other


@pytest.mark.parametrize("seed", range(30))
def test_the_same_seed_gives_equal_fields(seed: int) -> None:
    one, other = random_field(seed).field, random_field(seed).field
    assert one == other
    assert one != random_field(seed + 1000).field
    if one.terms:
        assert one != pf.Field(one.cardinalities, terms=one.terms[:-1])


def test_unsaveable_terms_are_equal_if_they_are_one() -> None:
    term = Chain(1.0)
    assert pf.Field(3, 2, [term]) == pf.Field(3, 2, [term])
    assert pf.Field(3, 2, [term]) != pf.Field(3, 2, [Chain(1.0)])

    class Says(Chain):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Says) and other.weight == self.weight

        __hash__ = None  # type: ignore[assignment]

    assert pf.Field(3, 2, [Says(1.0)]) == pf.Field(3, 2, [Says(1.0)])
    assert pf.Field(3, 2, [Says(1.0)]) != pf.Field(3, 2, [Says(2.0)])


def test_fields_have_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(field())


def test_results_compare_by_identity() -> None:
    result = pf.infer(field())
    assert result == result
    assert result != pf.infer(field())


# ---- snapshots ----


def test_terms_added_later_do_not_change_a_result() -> None:
    grid = repulsive_grid()
    result, same = pf.infer(grid, "fixed"), pf.infer(grid.snapshot(), "fixed")
    grid.add(pf.Unary(np.tile([0.0, 1e6], (36, 1))))
    grid.add(pf.Constant(5.0))
    grid.add(pf.Gaussian(np.zeros((36, 1)), -1.0, self_message=True))  # −F would be no bound
    assert len(result.field.terms) == 2
    assert result.map_labels.tolist() == same.map_labels.tolist()
    assert result.map_energy == same.map_energy
    assert result.expected_energy == same.expected_energy
    assert result.log_z_bound == same.log_z_bound == -result.free_energy
    assert result.field.free_energy(result.q) == pytest.approx(result.free_energy)
    assert {**result.summary(), "seconds": 0, "setup_seconds": 0} == {
        **same.summary(),
        "seconds": 0,
        "setup_seconds": 0,
    }


def test_terms_appended_by_hand_do_not_change_a_result() -> None:
    grid = repulsive_grid()
    result = pf.infer(grid, "fixed")
    before = result.expected_energy
    grid.terms.append(pf.Constant(5.0))
    assert pf.Result.expected_energy.func(result) == before  # type: ignore[attr-defined]


def test_a_callback_that_adds_terms_does_not_change_its_inference() -> None:
    grid = repulsive_grid()
    plain = pf.infer(grid, "fixed", tol=0, max_iters=200)

    def meddle(progress: pf.Progress) -> None:
        if len(grid.terms) < 5:
            grid.add(pf.Unary(np.tile([0.0, 1e3], (36, 1))))

    result = pf.infer(grid, "fixed", tol=0, max_iters=200, callback=meddle)
    assert len(grid.terms) > 2
    assert len(result.field.terms) == 2
    assert result.q.tobytes() == plain.q.tobytes()
    assert result.map_energy == plain.map_energy


def test_results_of_many_keep_their_fields() -> None:
    fields = [repulsive_grid(), repulsive_grid(4)]
    results = pf.infer_many(fields)
    before = [r.map_energy for r in pf.infer_many([f.snapshot() for f in fields])]
    for each in fields:
        each.add(pf.Constant(5.0))
    assert [r.map_energy for r in results] == before


def test_results_of_images_keep_their_fields() -> None:
    crf = pf.DenseCRF(None, np.full((3, 4, 2), 0.5))
    result = crf.infer()
    crf.add(pf.Constant(5.0))
    assert type(result.field) is pf.DenseCRF
    assert len(result.field.terms) == 2
    assert result.probabilities.shape == (3, 4, 2)


def test_a_snapshot_shares_what_was_lowered() -> None:
    grid = repulsive_grid()
    before = grid.snapshot()
    lowered = before.lower()  # also when the copy is the first to be lowered
    assert grid.lower() is lowered
    grid.add(pf.Constant(1.0))
    assert grid.lower() is not lowered
    assert before.lower() is lowered
    assert grid.condition({0: 1}).lower() is not grid.lower()


def test_evidence_cannot_be_changed_in_place() -> None:
    seen = field()
    with pytest.raises(ValueError, match="read-only"):
        seen.evidence[0] = 1


def test_conditioning_an_image_gives_an_image() -> None:
    crf = pf.DenseCRF(None, np.full((3, 4, 2), 0.5))
    seen = crf.condition({5: 1})
    assert type(seen) is pf.DenseCRF
    assert seen.pixels == (3, 4)
    assert repr(seen) == "DenseCRF(3×4 pixels, 2 labels, 1 observed, terms: unary, gaussian)"
    result = seen.infer()
    assert result.labels.shape == (3, 4)
    assert result.probabilities[1, 1].tolist() == [0.0, 1.0]
    assert (crf.evidence == -1).all()


# ---- what is shown ----


def busy() -> pf.Field:
    kinds = [type(f"T{i}", (Chain,), {"name": f"kind-{i}-{'x' * 30}"}) for i in range(50)]
    names = [f"<b>variable & {i}</b>" for i in range(1000)]
    return pf.Field(1000, 2, [kind(1.0) for kind in kinds], names=names)


def test_reprs_fit_a_screen() -> None:
    assert (
        repr(field()) == "Field(3 variables (a, b, c), 6 entries, 1 observed, terms: unary, potts)"
    )
    assert len(repr(busy())) < 240
    crf = pf.DenseCRF(None, np.full((3, 4, 2), 0.5))
    for _ in range(100):
        crf.add(pf.Constant(1.0))
    assert repr(crf).endswith("terms: unary, gaussian, 100 constant)")


def test_html_of_fields() -> None:
    html = field()._repr_html_()
    for text in ("Field", "<td style='text-align:left'>3</td>", "a, b, c", "unary, potts"):
        assert text in html
    assert "observed" in html
    assert "observed" not in repulsive_grid()._repr_html_()
    mixed = pf.Field([2, 5], label_names=None)._repr_html_()
    assert "2 to 5" in mixed
    assert "none" in mixed
    assert pf.Field([])._repr_html_()


@pytest.mark.parametrize("make", [busy, lambda: pf.infer(busy(), "adhoc", max_iters=1)])
def test_html_is_small_and_escaped(make: Callable[[], pf.Field | pf.Result]) -> None:
    html = make()._repr_html_()
    assert len(html) < 4000
    assert "<b>" not in html
    assert "&lt;b&gt;variable &amp; 0" in html
    assert set(re.findall(r"</?(\w+)", html)) == {"table", "caption", "tbody", "tr", "th", "td"}


def test_html_of_results() -> None:
    lamp = pf.Field([2], names=["lamp"], label_names=["off", "on"])
    result = pf.infer(lamp.add(pf.Unary.from_probabilities([[0.25, 0.75]])), "fixed")
    html = result._repr_html_()
    for text in ("converged", "fixed", "off: 0.250, on: 0.750", "log Z", "at least"):
        assert text in html
    many = pf.infer(pf.Field(100, n_labels=9), "fixed")._repr_html_()
    assert "and of 92 more variables" in many
    assert "…" in many
    nothing = pf.infer(pf.Field([2], terms=[pf.Constant(np.inf)]))._repr_html_()
    assert "no bound" in nothing


def test_plots(tmp_path: pytest.TempPathFactory) -> None:
    pytest.importorskip("matplotlib")
    result = pf.infer(repulsive_grid(), "fixed")
    figure = result.plot(tmp_path / "f.png", title="how F fell")  # type: ignore[operator]
    assert len(figure.axes) == 2
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")  # type: ignore[operator]


def test_traces_as_tables() -> None:
    pandas = pytest.importorskip("pandas")
    trace = pf.infer(repulsive_grid(), "fixed", max_iters=5).trace
    table = trace.to_frame()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == ["iteration", "seconds", "free_energy", "change"]
    np.testing.assert_array_equal(table["free_energy"], trace.free_energy)
    members = pf.infer(repulsive_grid(), max_iters=200).trace.to_frame()
    assert "member" in members.columns


def test_tables_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ImportError, match=r"needs pandas: pip install pandas \(to_csv needs no pandas"
    ):
        pf.Trace().to_frame()


# ---- exports ----


def test_extenders_find_what_they_need() -> None:
    for name in ("Rule", "Layout", "Builder", "Update", "Order", "Custom", "Kind", "Problem"):
        assert getattr(pf, name).__name__ == name
    assert issubclass(pf.UnsupportedError, TypeError)
    assert set(pf._HOME) < set(pf.__all__) == set(dir(pf))
    assert {term.__name__ for term in pf.TERMS.values()} < set(pf.__all__)
    assert all(getattr(pf, name) is not None for name in pf.__all__)


def test_the_package_is_lazy() -> None:
    show = "import proxfield, sys; print([m for m in sys.modules if m.startswith('proxfield.')])"
    found = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['proxfield._version']"


def test_a_rule_of_ones_own_from_the_package_alone() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Half(pf.Rule):
        name = "half"
        summary = "half of the way"

        def plan(self, problem: pf.Problem) -> pf.Update:
            return pf.Update(pf.Kind.PROXIMAL, np.full(problem.n_vars, 0.5))

    ours = pf.infer(repulsive_grid(), Half())
    theirs = pf.infer(repulsive_grid(), "fixed", step=0.5)
    assert ours.q.tobytes() == theirs.q.tobytes()
