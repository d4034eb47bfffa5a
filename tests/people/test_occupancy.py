"""Occupancy maps: energies, gradients and curvature against plain sums; kernels against those."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import proxfield as pf
from proxfield.core.engines.terms import implementation
from proxfield.core.terms.base import Layout
from proxfield.people.occupancy import DIRECT, SMALLEST

Array = NDArray[Any]
MODELS = ("exact", "ratio")


def scene(
    seed: int, n: int = 7, model: str = "exact", *, missing: bool = False, **options: Any
) -> pf.Occupancy:
    """Cameras of different size, with boxes and with other shapes, soft and hard masks."""
    rng = np.random.default_rng(seed)
    silhouettes: list[pf.Silhouettes] = []
    for height, width in ((11, 9), (6, 14)):
        left, top = rng.integers(0, width - 1, size=n), rng.integers(0, height - 1, size=n)
        right = np.minimum(width, left + rng.integers(0, 6, size=n))  # some can't be seen
        bottom = np.minimum(height, top + rng.integers(1, 7, size=n))
        silhouettes.append(pf.Boxes(height, width, np.stack([left, top, right, bottom], axis=1)))
    silhouettes.append(pf.Runs.from_masks(rng.random((n, 11, 5)) < 0.3))
    masks: list[Any] = [rng.random((s.height, s.width)) for s in silhouettes]
    masks[1] = masks[1] < 0.4
    if missing:
        masks[0] = None
    return pf.Occupancy(silhouettes, masks, model=model, **options)


def marginals(seed: int, n: int, *, corners: bool = False) -> Array:
    """Flat marginals; with corners some locations are certainly, or almost, occupied."""
    rng = np.random.default_rng(seed)
    q = rng.random(n)
    if corners:
        q[:4] = 1.0, 0.0, 1.0 - DIRECT / 3, 1.0 - 1e-12
    return np.stack([1 - q, q], axis=1).ravel()


def plain_energy(term: pf.Occupancy, p: Array) -> float:
    """The formulas, pixel by pixel and location by location."""
    total = 0.0
    for s, mask in term.images():
        area = np.zeros(mask.shape)
        over = np.zeros(mask.shape)
        empty = np.ones(mask.shape)
        for i in range(s.n_locations):
            inside = np.zeros(mask.size, dtype=bool)
            inside[s.pixels(i)] = True
            inside = inside.reshape(mask.shape)
            area += inside * inside.sum()
            over += inside
            empty *= np.where(inside, p[i], 1.0)
        if term.model == "ratio":
            ground = term.floor * mask.size
            wrong = ((1 - empty) * (1 - mask) + empty * mask).sum()
            total += ((ground + wrong) / (ground + (1 - empty).sum())) ** 2 / (2 * term.variance)
            continue
        share = np.where(over > 0, term.strength * over / np.maximum(area, 1), 0.0)
        m, f = term.miss, term.false_alarm
        seen = mask * np.log(1 - m) + (1 - mask) * np.log(m)
        clear = mask * np.log(f) + (1 - mask) * np.log(1 - f)
        total -= float((share * ((1 - empty) * seen + empty * clear)).sum())
    return total


# ---- the term ----


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(4))
def test_energy_is_the_formula(model: str, seed: int) -> None:
    term = scene(seed, model=model, missing=seed == 3)
    q = marginals(seed, 7)
    layout = Layout(np.full(7, 2))
    assert term.energy(layout, q) == pytest.approx(plain_energy(term, q[::2]), rel=1e-10)
    labels = np.arange(7) % 2
    assert term.labelling_energy(layout, labels) == pytest.approx(
        plain_energy(term, 1.0 - labels), rel=1e-9
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(4))
def test_gradient_is_the_slope(model: str, seed: int) -> None:
    term, layout = scene(seed, model=model, missing=seed == 3), Layout(np.full(7, 2))
    q, g, h = marginals(seed, 7), np.zeros(14), 1e-6
    term.add_gradient(layout, q, g)
    assert (g[1::2] == 0).all()
    for i in range(7):
        up, down = q.copy(), q.copy()
        up[2 * i] += h
        down[2 * i] -= h
        slope = (plain_energy(term, up[::2]) - plain_energy(term, down[::2])) / (2 * h)
        assert g[2 * i] == pytest.approx(slope, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_exact_energy_is_an_expectation(seed: int) -> None:
    """Over all labellings, over labellings drawn at random, and from tables."""
    term, layout = scene(seed, strength=3.0), Layout(np.full(7, 2))
    q = marginals(seed, 7)
    labels = np.array(list(itertools.product((0, 1), repeat=7)))
    weight = q[layout.offsets[:-1] + labels].prod(axis=1)
    each = np.array([term.labelling_energy(layout, x) for x in labels])
    energy = term.energy(layout, q)
    assert energy == pytest.approx(float(weight @ each), rel=1e-9)
    drawn = np.random.default_rng(seed).choice(each, size=20_000, p=weight / weight.sum())
    assert abs(drawn.mean() - energy) < 5 * drawn.std() / np.sqrt(len(drawn))
    total = sum(
        float(table[(0, *x[scopes[0]])])
        for x in labels[37:38]
        for scopes, table, _ in term.as_tables(layout)
    )
    assert total == pytest.approx(float(each[37]), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_curvature_bounds_hold(seed: int) -> None:
    """λ_i, L and the relative bound, at marginals anywhere and near the corners."""
    term, layout = scene(seed), Layout(np.full(7, 2))
    rng = np.random.default_rng(seed)
    for drawn in (rng.random(7), rng.random(7) ** 8, 1 - rng.random(7) ** 8):
        q1 = np.clip(drawn, 1e-4, 1 - 1e-4)
        q = np.stack([1 - q1, q1], axis=1).ravel()
        hessian = np.zeros((7, 7))
        for i in range(7):
            for sign in (1, -1):
                move = q.copy()
                move[2 * i] += sign * 1e-7
                g = np.zeros(14)
                term.add_gradient(layout, move, g)
                hessian[i] += sign * g[::2] / 2e-7
        hessian = (hessian + hessian.T) / 2
        size = np.abs(hessian).max()
        for bound in (
            2 * term.curvature(layout),
            term.relative_curvature(layout) / (q1 * (1 - q1)),
        ):
            root = np.sqrt(bound + 1e-5)
            assert np.linalg.eigvalsh(hessian / np.outer(root, root)).max() < 1 + 1e-4
        assert np.abs(np.linalg.eigvalsh(hessian)).max() <= term.lipschitz(layout) + 1e-5 * size


def test_a_missing_camera_counts_for_nothing() -> None:
    boxes = pf.Boxes(2, 2, [[0, 0, 1, 2], [1, 0, 2, 2]])
    mask, layout, q = np.array([[1, 0], [1, 0]]), Layout(np.full(2, 2)), marginals(0, 2)
    alone = pf.Occupancy([boxes], [mask])
    both = pf.Occupancy([boxes, boxes], [None, mask])
    assert both.energy(layout, q) == alone.energy(layout, q)
    nothing = pf.Occupancy([boxes], [None])
    assert nothing.energy(layout, q) == 0.0
    result = pf.infer(pf.Field(2, 2, [nothing, pf.Unary([[0, 1], [0, 2]])]))
    assert result.converged
    np.testing.assert_allclose(result.marginals[:, 1], 1 / (1 + np.exp([1, 2])), atol=1e-6)


def test_an_observed_person_explains_the_mask() -> None:
    boxes = pf.Boxes(4, 4, [[0, 0, 3, 4], [0, 1, 3, 4]])
    field = pf.Field(2, 2, [pf.Occupancy([boxes], [np.ones((4, 4))]), pf.Unary([[0, 5], [0, 5]])])
    somebody, nobody = (pf.infer(field.condition({0: x})) for x in (1, 0))
    assert somebody.marginals[0, 1] == 1.0
    assert nobody.marginals[0, 1] == 0.0
    assert somebody.marginals[1, 1] == pytest.approx(1 / (1 + np.exp(5)), abs=1e-6)
    assert nobody.marginals[1, 1] > 0.9


@pytest.mark.parametrize("model", MODELS)
def test_whether_f_bounds_log_z(model: str) -> None:
    field = pf.Field(7, 2, [scene(1, model=model)])
    result = pf.infer(field, "adhoc", max_iters=50)
    bounded = np.isfinite(result.log_z_bound)
    assert bounded == (model == "exact")


# ---- kernels ----


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("threads", [False, True])
def test_kernels_follow_the_term(
    model: str, dtype: str, corners: bool, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with p → 0, with cameras over threads, and among variables that aren't locations."""
    pytest.importorskip("numba")
    if threads:
        monkeypatch.setattr("proxfield.people.numba.occupancy.PARALLEL_WORK", 0)
        monkeypatch.setattr("proxfield.people.numba.occupancy.current_threads", lambda: 2)
    term, n = scene(5, n=40, model=model, first=2), 40
    layout = Layout(np.array([3, 2, *[2] * n, 4]))
    maker = implementation(term, "cpu")
    assert maker is not None
    own = maker(term, layout, dtype)
    for seed in range(3):  # what is left of one evaluation must not show in the next
        q = np.concatenate(
            [[0.2, 0.3, 0.5, 0.4, 0.6], marginals(seed, n, corners=corners), [0.25] * 4]
        )
        q = q.astype(dtype)
        expected, got = np.zeros(layout.size), np.full(layout.size, 3.0, dtype=dtype)
        term.add_gradient(layout, q, expected)
        energy = own.add_gradient(q, got)
        assert energy == pytest.approx(term.energy(layout, q), rel=1e-9)
        tolerance = {"float64": 1e-8, "float32": 1e-5}[dtype] * (1 + np.abs(expected).max())
        np.testing.assert_allclose(got - 3.0, expected, atol=tolerance)


@pytest.mark.parametrize("model", MODELS)
def test_kernels_where_almost_all_locations_are_occupied(model: str) -> None:
    """Too many pixels to sum one by one: p from 1 down to below `SMALLEST`."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(1)
    boxes = [[0, 0, 4, 9]] * 200 + [[x, y, x + 1, y + 2] for x in range(5, 11) for y in (0, 2, 7)]
    term = pf.Occupancy([pf.Boxes(9, 11, boxes)], [rng.random((9, 11))], model=model)
    n = len(boxes)
    layout = Layout(np.full(n, 2))
    maker = implementation(term, "cpu")
    assert maker is not None
    own = maker(term, layout, "float64")
    p = 10.0 ** rng.uniform(-33, 0, size=n)
    q = np.stack([p, 1 - p], axis=1).ravel()
    expected, got = np.zeros(2 * n), np.zeros(2 * n)
    term.add_gradient(layout, q, expected)
    assert own.add_gradient(q, got) == pytest.approx(term.energy(layout, q), rel=1e-9)
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-8)
    assert (np.abs(expected[400::2]) > 1e-4).all()  # those that are alone


@pytest.mark.parametrize("model", MODELS)
def test_kernels_of_binary_programs(model: str) -> None:
    """From log p_i, with the sign of a difference between labels; −inf counts as `SMALLEST`."""
    pytest.importorskip("numba")
    term, layout = scene(6, n=9, model=model, first=1), Layout(np.full(12, 2))
    maker = implementation(term, "cpu")
    assert maker is not None
    own = maker(term, layout, "float64")
    p = np.random.default_rng(0).random(12)
    p[3] = 0.0
    q = np.stack([p, 1 - p], axis=1).ravel()
    g, out = np.zeros(24), np.ones(12)
    term.add_gradient(layout, q, g)
    with np.errstate(divide="ignore"):
        energy = own.add_binary_gradient(np.log(p), out)
    assert energy == pytest.approx(term.energy(layout, q), rel=1e-9)
    np.testing.assert_allclose(out, 1.0 - g[::2], rtol=1e-8, atol=1e-8)
    assert SMALLEST > 0


@pytest.mark.parametrize("model", MODELS)
def test_less_than_the_smallest_makes_no_difference(model: str) -> None:
    """The energy and all marginals' targets are those of p_i itself, far below `SMALLEST`."""
    term, n = scene(7, n=12, model=model), 12
    layout = Layout(np.full(n, 2))
    p = np.random.default_rng(0).random(n)
    p[2:6] = 1e-30, 1e-20, 1e-15, 0.0
    q = np.stack([p, 1 - p], axis=1).ravel()
    assert term.energy(layout, q) == pytest.approx(plain_energy(term, p), rel=1e-12)
    g, alone = np.zeros(2 * n), np.zeros(n)
    term.add_gradient(layout, q, g)
    for i in range(n):  # multilinear, or almost: the exact slope of others
        ends = [plain_energy(term, np.where(np.arange(n) == i, x, p)) for x in (1.0, 0.0)]
        alone[i] = ends[0] - ends[1]
    if model == "exact":
        np.testing.assert_allclose(g[::2], alone, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("model", MODELS)
def test_frames_of_a_scene_share_what_is_packed(model: str) -> None:
    pytest.importorskip("numba")
    from proxfield.people.numba import occupancy as module

    first, n = scene(8, n=15, model=model), 15
    layout, rng = Layout(np.full(n, 2)), np.random.default_rng(0)
    q = marginals(0, n)
    seen = []
    for missing in (None, 0, None):
        masks: list[Any] = [rng.random((s.height, s.width)) for s in first.silhouettes]
        if missing is not None:
            masks[missing] = None
        term = pf.Occupancy(first.silhouettes, masks, model=model)
        own = module.OccupancyOnCpu(term, layout, "float64")
        g, expected = np.zeros(2 * n), np.zeros(2 * n)
        assert own.add_gradient(q, g) == pytest.approx(term.energy(layout, q), rel=1e-9)
        term.add_gradient(layout, q, expected)
        np.testing.assert_allclose(g, expected, rtol=1e-8, atol=1e-8)
        seen.append(own.cameras.corner)
    assert seen[0] is seen[2] and len(seen[1]) < len(seen[0])
    del first, term, own
    gc.collect()
    module._packed((pf.Boxes(2, 3, [[0, 0, 1, 1]]),))
    kept = [cameras.corner for _, (cameras, _) in module._scenes]
    assert not any(corner is seen[0] for corner in kept)  # with the scene, it is gone


def test_the_exponential_of_the_kernels() -> None:
    numba = pytest.importorskip("numba")
    from proxfield.people.numba.occupancy_kernels import exp2_of as helper

    @numba.njit
    def exp2_of(x: float) -> float:
        return helper(x)

    x = np.concatenate([np.linspace(-999, 110, 4001), [0.0, 0.5, -0.5, 1e-14, -1e-300]])
    found = np.array([exp2_of(float(v)) for v in x])
    np.testing.assert_allclose(found, np.exp2(x), rtol=1e-13)
    assert exp2_of(0.0) == 1.0
    assert exp2_of(-1e9) < 1e-300
    assert np.isnan(exp2_of(np.nan))


def test_other_silhouettes_are_left_to_the_term() -> None:
    class Disc(pf.Runs):
        pass

    disc = Disc(2, 3, [[0, 1, 2]], [0, 1])
    term = pf.Occupancy([disc], [np.zeros((2, 3))])
    assert implementation(term, "cpu") is None
    assert pf.infer(pf.Field(1, 2, [term])).converged


# ---- bad input ----

BOXES = pf.Boxes(2, 3, [[0, 0, 1, 1]])
BLANK = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.Occupancy([], []), "at least one camera"),
        (lambda: pf.Occupancy([BOXES], []), "1 cameras but 0 masks"),
        (
            lambda: pf.Occupancy([BOXES, pf.Boxes(2, 3, [])], [BLANK] * 2),
            "different numbers of loc",
        ),
        (lambda: pf.Occupancy([BOXES], [BLANK.T]), "mask of camera 0 has 2×3 pixels"),
        (lambda: pf.Occupancy([BOXES] * 2, [None, BLANK + 2]), "mask of camera 1 has values"),
        (lambda: pf.Occupancy([BOXES], [BLANK * np.nan]), "mask of camera 0 hold"),
        (lambda: pf.Occupancy([BOXES], [BLANK], model="other"), "expected one of: exact, ratio"),
        (lambda: pf.Occupancy([BOXES], [BLANK], miss=0), "miss=0"),
        (lambda: pf.Occupancy([BOXES], [BLANK], miss=0.6, false_alarm=0.5), "add up to 1 or more"),
        (lambda: pf.Occupancy([BOXES], [BLANK], strength=-1), "strength=-1"),
        (lambda: pf.Occupancy([BOXES], [BLANK], first=-1), "first=-1"),
        (lambda: pf.Boxes(2, 3, [[0, 0, 4, 1]]), "location 0, [0, 0, 4, 1], is outside"),
        (lambda: pf.Boxes(2, 3, [[0, 0, 1]]), "4 columns"),
        (lambda: pf.Boxes(0, 3, []), "height=0, expected a whole number, 1 or more"),
        (lambda: pf.Runs(2, 3, [[2, 0, 1]], [0, 1]), "run 0, [2, 0, 1], isn't inside"),
        (lambda: pf.Runs(2, 3, [[1, 0, 1]], [0, 2]), "don't divide the runs"),
        (lambda: pf.Runs.from_masks(BLANK), "3 dimensions"),
    ],
)
def test_bad_input_gets_one_line(make: Any, message: str) -> None:
    with pytest.raises(pf.InputError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_fields_that_do_not_fit() -> None:
    term = pf.Occupancy([BOXES], [BLANK], first=1)
    with pytest.raises(pf.InputError, match="1 locations but 0 variables after variable 1"):
        pf.Field(1, 2, [term])
    with pytest.raises(pf.InputError, match="variable 1 has 3 labels; a location has 2"):
        pf.Field([2, 3], terms=[term])
    many = pf.Occupancy([pf.Boxes(2, 3, [[0, 0, 1, 1]] * 13)], [BLANK])
    with pytest.raises(TypeError, match="more than 12 locations cover one pixel"):
        list(many.as_tables(Layout(np.full(13, 2))))
