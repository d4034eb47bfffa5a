"""The Gaussian term, against explicit pairs; descent on fields that hold it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import Array, exact_hessian, explicit_tables, projected, random_marginals
from lattice_reference import lattice_matrix
from proxfield.core.compiled.jit import thread_count
from proxfield.core.filters.exact import ExactFilter
from proxfield.core.solve.curvature import Curvature
from proxfield.core.terms.base import Layout
from proxfield.core.terms.gaussian import NORMALIZATIONS
from proxfield.errors import InputError

N, LABELS = 9, 3
KERNEL = {"exact": lambda f: ExactFilter(f).matrix(), "lattice": lattice_matrix}
COMPATIBILITY: dict[str, Any] = {
    "potts": None,
    "diagonal": [0.5, -1.2, 2.0],
    "full": [[0.3, 1.0, -0.4], [0.2, -1.5, 0.7], [2.0, 0.1, 0.9]],
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small fields: no thread is worth waking."""
    with thread_count(1):
        yield


normalizations = pytest.mark.parametrize("normalization", NORMALIZATIONS)
compatibilities = pytest.mark.parametrize("compatibility", COMPATIBILITY)
filters = pytest.mark.parametrize("filter", KERNEL)
selves = pytest.mark.parametrize("self_message", [False, True], ids=["others", "self"])


def every(test: Any) -> Any:
    """All kinds of the term."""
    return normalizations(compatibilities(filters(selves(test))))


def features_of(n: int = N, d: int = 2, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(scale=1.2, size=(n, d))


def make(normalization: str, compatibility: str, filter: str, self_message: bool) -> pf.Gaussian:
    return pf.Gaussian(
        features_of(), 1.7, COMPATIBILITY[compatibility],
        normalization=normalization, self_message=self_message, filter=filter,
    )  # fmt: skip


def weights_of(term: pf.Gaussian) -> Array:
    """a_ij by its definition, the diagonal too.  # (n, n)"""
    k = KERNEL[term.filter_kind](term.features)
    total = k.sum(axis=1)
    if term.normalization == "symmetric":
        return k / np.sqrt(total[:, None] * total)
    if term.normalization == "none":
        return k
    return 0.5 * (k / total[:, None] + k / total)  # the symmetric part of both


def mu_of(term: pf.Gaussian, n_labels: int, given: Any) -> Array:
    """weight · μ by its definition, with the constant of Potts."""
    if given is None:
        return term.weight * (1 - np.eye(n_labels))
    table = np.asarray(given, dtype=float)
    table = np.diag(table) if table.ndim == 1 else table
    return term.weight * (table + table.T) / 2


def rounding(term: pf.Gaussian) -> float:
    """Total weights of the lattice are kept in float32."""
    return 1e-11 if term.filter_kind == "exact" or term.normalization == "none" else 3e-6


# ---- the energy ----


@every
def test_energy_of_labellings_is_the_sum_over_pairs(
    normalization: str, compatibility: str, filter: str, self_message: bool
) -> None:
    term = make(normalization, compatibility, filter, self_message)
    a, mu = weights_of(term), mu_of(term, LABELS, COMPATIBILITY[compatibility])
    field = pf.Field(N, n_labels=LABELS, terms=[term])
    for x in np.random.default_rng(1).integers(0, LABELS, size=(10, N)):
        pairs = itertools.combinations(range(N), 2)
        expected = sum(a[i, j] * mu[x[i], x[j]] for i, j in pairs)
        if self_message:  # the pair (i, i) counts once where the others count twice
            expected += sum(0.5 * a[i, i] * mu[x[i], x[i]] for i in range(N))
        assert field.energy(x) == pytest.approx(expected, abs=20 * rounding(term))


@every
def test_gradient_is_the_slope_of_the_energy(
    normalization: str, compatibility: str, filter: str, self_message: bool
) -> None:
    term = make(normalization, compatibility, filter, self_message)
    layout = Layout(np.full(N, LABELS))
    rng = np.random.default_rng(2)
    q = random_marginals(layout, rng)
    gradient = np.zeros(layout.size)
    term.add_gradient(layout, q, gradient)
    h = 1e-3
    for _ in range(5):  # differences of a quadratic are exact
        move = layout.center(rng.normal(size=layout.size))
        slope = (term.energy(layout, q + h * move) - term.energy(layout, q - h * move)) / (2 * h)
        assert gradient @ move == pytest.approx(slope, abs=1e-9)


@every
def test_gradient_by_its_definition(
    normalization: str, compatibility: str, filter: str, self_message: bool
) -> None:
    """And added to what is there, in both precisions."""
    term = make(normalization, compatibility, filter, self_message)
    layout = Layout(np.full(N, LABELS))
    q = random_marginals(layout, np.random.default_rng(3))
    a = weights_of(term) * (1 if self_message else 1 - np.eye(N))
    mu = mu_of(term, LABELS, COMPATIBILITY[compatibility])
    expected = 5.0 + a @ q.reshape(N, LABELS) @ mu
    for dtype, tolerance in (("float64", rounding(term)), ("float32", 1e-5)):
        out = np.full(layout.size, 5.0, dtype=dtype)
        term.add_gradient(layout, q.astype(dtype), out)
        np.testing.assert_allclose(out.reshape(N, LABELS), expected, atol=20 * tolerance)


@normalizations
@compatibilities
@filters
def test_tables_say_the_same(normalization: str, compatibility: str, filter: str) -> None:
    term = make(normalization, compatibility, filter, False)
    field = pf.Field(N + 2, n_labels=LABELS)
    field.add(term)
    tables = list(explicit_tables(field))
    assert len(tables) == N * (N - 1) // 2
    for x in np.random.default_rng(4).integers(0, LABELS, size=(10, N + 2)):
        total = sum(table[tuple(x[scope])] for scope, table in tables)
        assert field.energy(x) == pytest.approx(total, abs=1e-10)


# ---- bounds on curvature ----


def dense_hessian(term: pf.Gaussian, given: Any) -> tuple[Array, Array]:
    """A ⊗ μ, and P (A ⊗ μ) P."""
    a = weights_of(term) * (1 if term.self_message else 1 - np.eye(N))
    h = np.kron(a, mu_of(term, LABELS, given))
    return h, projected(Layout(np.full(N, LABELS)), h)


@pytest.mark.parametrize("weight", [1.7, -2.5])
@every
def test_bounds_hold_against_the_dense_hessian(
    normalization: str, compatibility: str, filter: str, self_message: bool, weight: float
) -> None:
    given = COMPATIBILITY[compatibility]
    layout = Layout(np.full(N, LABELS))
    for seed in range(4):
        features = features_of(seed=seed) * [0.3, 1, 3, 10][seed]  # total weights differ
        term = pf.Gaussian(
            features, weight, given,
            normalization=normalization, self_message=self_message, filter=filter,
        )  # fmt: skip
        h, centered = dense_hessian(term, given)
        values = np.linalg.eigvalsh(centered)
        slack = 1e-9 if rounding(term) < 1e-9 else 1e-5
        low, high = term.spectrum(layout)
        assert low <= 0 <= high
        assert low <= values[0] + slack
        assert high >= values[-1] - slack
        local = term.curvature(layout)
        assert np.linalg.eigvalsh(centered - np.diag(np.repeat(local, LABELS)))[-1] <= slack
        assert term.lipschitz(layout) >= np.abs(np.linalg.eigvalsh(h)).max() - slack


@filters
@selves
def test_bounds_say_something(filter: str, self_message: bool) -> None:
    """Attractive Potts curves F upwards by next to nothing; repulsive, by at most its weight."""
    layout = Layout(np.full(N, LABELS))
    for sign in (1, -1):
        term = pf.Gaussian(features_of(), sign * 2.0, filter=filter, self_message=self_message)
        low, high = term.spectrum(layout)
        near = sorted([-sign * 2.0, 0.0])
        assert high - low <= 2.0 * (1.0 + term.own.max()) + 1e-9
        assert low >= near[0] - 2.0 * term.own.max() - 1e-9
        assert high <= near[1] + 2.0 * term.own.max() + 1e-9
    assert term.curvature(layout) == pytest.approx(high)


def test_hessian_of_the_tables_is_that_of_the_gradient() -> None:
    """The curvature that a field reports, from terms and from tables."""
    field = pf.Field(N, n_labels=LABELS, terms=[make("none", "full", "exact", False)])
    values = np.linalg.eigvalsh(projected(field.layout, exact_hessian(field)))
    info = Curvature(field.lower(), field)
    assert info.largest >= values[-1] - 1e-9
    assert info.smallest >= -values[0] - 1e-9
    assert info.lipschitz >= np.abs(np.linalg.eigvalsh(exact_hessian(field))).max() - 1e-9


# ---- where it applies ----


@filters
@selves
def test_first_shifts_the_variables(filter: str, self_message: bool) -> None:
    """Variables before and after are left alone, and may have other numbers of labels."""
    options: dict[str, Any] = {"filter": filter, "self_message": self_message}
    there = pf.Gaussian(features_of(), -1.3, COMPATIBILITY["full"], first=2, **options)
    alone = pf.Gaussian(features_of(), -1.3, COMPATIBILITY["full"], **options)
    layout = Layout(np.array([2, 5, *[LABELS] * N, 4]))
    there.validate(layout)
    q = random_marginals(layout, np.random.default_rng(5))
    inside = slice(7, 7 + N * LABELS)
    g, own = np.zeros(layout.size), np.zeros(N * LABELS)
    there.add_gradient(layout, q, g)
    alone.add_gradient(Layout(np.full(N, LABELS)), q[inside], own)
    np.testing.assert_array_equal(g[inside], own)
    assert (np.delete(g, np.arange(7, 7 + N * LABELS)) == 0).all()
    x = np.random.default_rng(6).integers(0, 2, size=layout.n_vars)
    small = Layout(np.full(N, LABELS))
    assert there.labelling_energy(layout, x) == alone.labelling_energy(small, x[2:-1])
    assert there.spectrum(layout) == alone.spectrum(small)
    local = there.curvature(layout)
    assert (local[2:-1] > 0).all()
    assert (local[[0, 1, -1]] == 0).all()
    for scopes, _, _ in there.as_tables(layout):
        assert (scopes.min(), scopes.max()) == (2, N + 1)


def test_several_terms_add_up() -> None:
    rng = np.random.default_rng(7)
    terms: list[pf.Term] = [pf.Unary(rng.normal(size=(N, LABELS)))]
    terms += [make("symmetric", "potts", "exact", False), make("none", "full", "lattice", True)]
    terms += [make("before", "diagonal", "lattice", False)]
    field = pf.Field(N, n_labels=LABELS, terms=terms)
    parts = [pf.Field(N, n_labels=LABELS, terms=[t]) for t in terms]
    x = rng.integers(0, LABELS, size=N)
    assert field.energy(x) == pytest.approx(sum(p.energy(x) for p in parts))
    q = random_marginals(field.layout, rng)
    assert field.expected_energy(q) == pytest.approx(sum(p.expected_energy(q) for p in parts))


def test_before_and_after_are_the_same() -> None:
    q = random_marginals(Layout(np.full(N, LABELS)), np.random.default_rng(8))
    a, b = (make(kind, "full", "exact", False) for kind in ("before", "after"))
    layout = Layout(np.full(N, LABELS))
    assert a.energy(layout, q) == b.energy(layout, q)


def test_wrong_variables() -> None:
    rows = np.zeros((4, 2))
    with pytest.raises(InputError, match=r"variables 0 to 3 needs as many rows.*field has 3"):
        pf.Field(3, n_labels=2).add(pf.Gaussian(rows))
    with pytest.raises(InputError, match=r"variables 2 to 5 needs as many rows.*field has 5"):
        pf.Field(5, n_labels=2).add(pf.Gaussian(rows, first=2))
    with pytest.raises(InputError, match="first=-1, expected a whole number, 0 or more"):
        pf.Gaussian(rows, first=-1)
    with pytest.raises(InputError, match="equal numbers of labels"):
        pf.Field([2, 2, 3, 2]).add(pf.Gaussian(rows))
    pf.Field([2, 2, 2, 2, 3]).add(pf.Gaussian(rows))
    with pytest.raises(InputError, match="compatibility for 3 labels, but the variables have 2"):
        pf.Field(4, n_labels=2).add(pf.Gaussian(rows, 1.0, np.zeros(3)))
    with pytest.raises(InputError, match="compatibility for 3 labels, but the variables have 4"):
        pf.Field(4, n_labels=4).add(pf.Gaussian(rows, 1.0, np.zeros((3, 3))))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"normalization": "both"}, "unknown normalization 'both', expected one of: none, before"),
        ({"filter": "grid"}, "unknown filter 'grid', expected auto, exact, lattice"),
        ({"compatibility": np.zeros((2, 3))}, r"square matrix.*not of shape \(2, 3\)"),
        ({"compatibility": np.zeros((2, 2, 2))}, "square matrix"),
        ({"compatibility": 3.0}, r"a vector.*not of shape \(\)"),
        ({"compatibility": [1.0, np.nan]}, "compatibilities hold NaN"),
        ({"compatibility": [1.0, np.inf]}, r"compatibilities hold \+inf"),
        ({"weight": np.nan}, "weight of a Gaussian term hold NaN"),
        ({"weight": np.inf}, r"hold \+inf"),
    ],
)
def test_wrong_parameters(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        pf.Gaussian(np.zeros((2, 2)), **options)


def test_filter_is_chosen_by_the_number_of_points() -> None:
    kinds = [pf.Gaussian(np.zeros((n, 1))).filter_kind for n in (2000, 2001)]
    assert kinds == ["exact", "lattice"]


def test_dropping_the_features() -> None:
    """The lattice doesn't need them any more; the exact filter does."""
    layout = Layout(np.full(N, LABELS))
    q = random_marginals(layout, np.random.default_rng(9))
    for filter in KERNEL:
        kept, built = (make("symmetric", "potts", filter, False) for _ in range(2))
        assert built.build(drop_features=True) is built
        assert (built.features is None) == (filter == "lattice")
        assert built.nbytes == (0 if filter == "lattice" else kept.nbytes)
        assert built.energy(layout, q) == kept.energy(layout, q)
        assert built.spectrum(layout) == kept.spectrum(layout)
    assert kept.build().features is not None


@filters
def test_no_points(filter: str) -> None:
    field = pf.Field([2, 3]).add(pf.Gaussian(np.zeros((0, 2)), 2.0, filter=filter))
    assert field.energy([1, 2]) == 0.0
    assert list(explicit_tables(field)) == []
    assert pf.infer(field, "fixed").free_energy == pytest.approx(-np.log(6))


# ---- descent ----


def random_dense_field(rng: np.random.Generator, filter: str, self_message: bool) -> pf.Field:
    """Few points, one or two terms, weights from 0.3 to 30 of both signs."""
    n, n_labels = int(rng.integers(2, 13)), int(rng.integers(2, 5))
    field = pf.Field(n, n_labels=n_labels)
    field.add(pf.Unary(rng.normal(scale=rng.choice([0.01, 1.0, 3.0]), size=(n, n_labels))))
    for _ in range(int(rng.integers(1, 3))):
        table = rng.normal(size=(n_labels, n_labels))
        scale = 10 ** rng.uniform(-0.5, 1.5)
        choice = [None, None, rng.normal(size=n_labels), table][int(rng.integers(4))]
        features = rng.normal(size=(n, int(rng.integers(1, 5)))) * 10 ** rng.uniform(-1, 0.7)
        field.add(
            pf.Gaussian(
                features,
                scale * rng.choice([-1, 1]),
                choice,
                normalization=str(rng.choice(NORMALIZATIONS)),
                filter=filter,
                self_message=self_message,
            )
        )
    return field


@filters
@selves
@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
def test_certified_steps_never_raise_the_free_energy(
    filter: str, self_message: bool, rule: str
) -> None:
    """Attractive and repulsive, all normalizations: 50 fields of each kind."""
    rng = np.random.default_rng([len(filter), self_message])
    moved = 0
    for k in range(50):
        field = random_dense_field(rng, filter, self_message)
        result = pf.infer(field, rule, init="random", seed=k, max_iters=30, tol=0.0)
        f = result.trace.free_energy
        assert np.isfinite(f).all()
        rise = np.diff(f).max(initial=-np.inf)
        assert rise <= 1e-10 * (1 + np.abs(f).max()), f"field {k}"
        moved += f[0] - f[-1] > 1e-3
    assert moved > 45


@filters
@selves
def test_full_steps_would_raise_it(filter: str, self_message: bool) -> None:
    """On many of the same fields: the test above has something to see."""
    rng = np.random.default_rng([len(filter), self_message])
    rose = 0
    for k in range(50):
        field = random_dense_field(rng, filter, self_message)
        result = pf.infer(field, "full-parallel", init="random", seed=k, max_iters=30, tol=0.0)
        rose += np.diff(result.trace.free_energy).max() > 1e-3
    assert rose > 5


@filters
@selves
def test_repulsion_flips_for_ever_under_full_steps(filter: str, self_message: bool) -> None:
    """Two labels that nobody prefers by much: all points go to and fro together."""
    n = 12
    term = pf.Gaussian(
        features_of(n, seed=3) * 0.1, -3.0,
        normalization="none", filter=filter, self_message=self_message,
    )  # fmt: skip
    unary = np.tile([0.0, 1e-3], (n, 1))
    field = pf.Field(n, n_labels=2, terms=[pf.Unary(unary), term])
    full = pf.infer(field, "full-parallel", max_iters=200)
    assert full.status is pf.Status.OSCILLATING
    one_more = pf.infer(field, "full-parallel", max_iters=1, tol=0.0, init=full)
    assert (one_more.labels != full.labels).all()
    for rule in ("fixed", "adaptive"):
        good = pf.infer(field, rule, max_iters=20000, tol=1e-5)
        assert good.status is pf.Status.CONVERGED, rule
        assert good.free_energy < full.free_energy


@pytest.mark.parametrize("compatibility", [None, [1.0, -2.0], [[0.0, 1.0], [1.0, 0.5]]])
def test_tables_with_the_self_message(compatibility: object) -> None:
    term = pf.Gaussian([[0.0], [0.5], [2.0]], 1.3, compatibility, self_message=True, filter="exact")
    field, tables = pf.Field(3, n_labels=2).add(term), pf.Field(3, n_labels=2)
    for scopes, energies, _ in term.as_tables(field.layout):
        one = scopes.shape[1] == 1
        tables.add(pf.Unary(energies, scopes[:, 0]) if one else pf.Pairwise(scopes, energies))
    for labels in np.ndindex(2, 2, 2):
        assert tables.energy(labels) == pytest.approx(field.energy(labels))


def test_a_bound_only_where_it_is_certain() -> None:
    points = [[0.0], [9.0], [18.0]]
    attract = pf.Field(3, n_labels=2).add(pf.Gaussian(points, 6.0, self_message=True))
    repel = pf.Field(3, n_labels=2).add(pf.Gaussian(points, 6.0, [1.0, 1.0], self_message=True))
    without = pf.Field(3, n_labels=2).add(pf.Gaussian(points, 6.0, [1.0, 1.0]))
    assert pf.infer(attract, "fixed").log_z_bound <= np.log(8)
    assert pf.infer(repel, "fixed").log_z_bound == -np.inf
    assert pf.infer(without, "fixed").log_z_bound == pytest.approx(np.log(8), abs=1e-6)


# ---- weight 0, and the name of Potts ----


@pytest.mark.parametrize("rule", ["auto", "fixed", "sweep"])
@pytest.mark.parametrize("compatibility", ["potts", [1.0, -2.0, 0.5]])
def test_weight_0_omits_the_term(
    rule: str, compatibility: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a filter was built")

    monkeypatch.setattr("proxfield.core.terms.gaussian.make_filter", refuse)
    rng = np.random.default_rng(4)
    terms = [pf.Unary(rng.normal(size=(8, 3))), pf.Potts([[i, i + 1] for i in range(7)], -0.8)]
    none = pf.Gaussian(rng.normal(size=(8, 2)), 0.0, compatibility, self_message=True)
    without, field = (pf.Field(8, n_labels=3, terms=t) for t in (terms, [*terms, none]))
    labels = rng.integers(0, 3, 8)
    assert len(field.terms) == 3
    assert field.energy(labels) == without.energy(labels)
    assert field.memory_estimate() == without.memory_estimate()
    assert field.lower().extras == ()
    ours, theirs = (pf.infer(f, rule, kernels="reference", max_iters=20) for f in (field, without))
    assert ours.status is theirs.status
    assert (ours.q == theirs.q).all()
    assert ours.free_energy == theirs.free_energy
    assert ours.log_z_bound == theirs.log_z_bound
    assert pf.Curvature(field.lower(), field).lipschitz == pf.Curvature(
        without.lower(), without
    ).lipschitz  # fmt: skip


def test_a_subclass_of_another_energy_is_not_omitted() -> None:
    class Biased(pf.Gaussian):
        def add_gradient(self, layout: pf.Layout, q: Array, out: Array) -> None:
            out += 1.0

    assert not Biased(np.zeros((2, 1)), 0.0).omitted
    assert pf.Gaussian(np.zeros((2, 1)), 0.0).omitted
    assert pf.Gaussian(np.zeros((2, 1)), 1.0, np.zeros((2, 2))).omitted


def test_potts_has_a_name() -> None:
    points = features_of(6, seed=1)
    plain, named, none = (
        pf.Field(6, n_labels=3).add(pf.Gaussian(points, 1.5, *given))
        for given in ((), ("potts",), (None,))
    )
    assert plain == named == none
    with pytest.raises(pf.InputError, match="compatibility='pots', expected potts, a vector or"):
        pf.Gaussian(points, 1.5, "pots")
