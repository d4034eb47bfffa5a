"""Segments that want to agree: against enumeration, explicit tables and explicit Hessians."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import (
    KERNELS,
    VARIANTS,
    Array,
    energies,
    exact_free_energy,
    exact_hessian,
    exact_log_z,
    infer,
    labellings,
    projected,
    random_marginals,
)
from proxfield.core.terms import consistency as module
from proxfield.errors import UnsupportedError

TOGETHER = [v for v in VARIANTS if not v.startswith(("sweep", "colored"))]
"""Variants that move all variables at once: all that a term without tables allows."""

SEGMENTS: dict[str, Any] = {
    "partition": [0, 0, 1, 1, 0, 1],
    "with-none": [-1, 0, 0, 2, 2, 2],
    "overlapping": [[0, 1, 2, 3, 4], [4, 5], [5, 0, 3], [2]],
    "whole": [0] * 6,
    "pairs": [[0, 1], [2, 3], [4, 5]],
    "nothing": [-1] * 6,
}


def n_segments(name: str) -> int:
    rows = SEGMENTS[name]
    return len(rows) if isinstance(rows[0], list) else max(rows) + 1


def members(name: str) -> list[list[int]]:
    rows = SEGMENTS[name]
    if isinstance(rows[0], list):
        return rows
    return [[i for i, c in enumerate(rows) if c == s] for s in range(max(rows) + 1)]


def weights_of(name: str, kind: str, n_labels: int) -> Any:
    rng = np.random.default_rng(5)
    count = n_segments(name)
    shape = {"one": (), "per-segment": (count,), "per-label": (count, n_labels)}[kind]
    return 2.0 * rng.random(size=shape) + 0.1


def make(
    name: str = "overlapping", kind: str = "per-label", n_labels: int = 3, **options: Any
) -> pf.Field:
    term = pf.Consistency(SEGMENTS[name], weights_of(name, kind, n_labels), **options)
    unary = pf.Unary(np.random.default_rng(1).normal(size=(6, n_labels)))
    return pf.Field(6, n_labels=n_labels, terms=[term, unary])


def only(field: pf.Field) -> pf.Field:
    return pf.Field(field.cardinalities, terms=field.terms[:1])


every_case = pytest.mark.parametrize(
    ("name", "kind"), list(itertools.product(SEGMENTS, ["one", "per-segment", "per-label"]))
)


def edgy_marginals(field: pf.Field, rng: np.random.Generator) -> Array:
    """Some rows in the middle, some next to a corner, some in one."""
    n_labels = field.layout.common
    assert n_labels is not None
    rows = []
    for _ in range(field.n_vars):
        spread = rng.choice([1.0, 0.05, 0.0])
        corner = np.eye(n_labels)[rng.integers(n_labels)]
        rows.append(corner if spread == 0.0 else rng.dirichlet(np.full(n_labels, spread)))
    return np.concatenate(rows)


# ---- energies ----


@every_case
def test_energies_of_labellings(name: str, kind: str) -> None:
    field = only(make(name, kind))
    w = np.broadcast_to(np.array(weights_of(name, kind, 3)).T, (3, n_segments(name))).T
    for x in labellings(field)[::5]:
        expected = 0.0
        for c, segment in enumerate(members(name)):
            seen = {int(x[i]) for i in segment}
            if segment:
                expected += w[c].max() - (w[c, seen.pop()] if len(seen) == 1 else 0.0)
        assert field.energy(x) == pytest.approx(expected)


@every_case
def test_free_energy_is_the_expectation(name: str, kind: str) -> None:
    field = make(name, kind)
    rng = np.random.default_rng(2)
    for _ in range(5):
        for q in (random_marginals(field.layout, rng), edgy_marginals(field, rng)):
            assert field.free_energy(q) == pytest.approx(exact_free_energy(field, q), abs=1e-9)


@every_case
def test_gradient(name: str, kind: str, dtype: str) -> None:
    """Multilinear: the gradient is the difference of two corners of one variable."""
    field = only(make(name, kind))
    term, layout = field.terms[0], field.layout
    rng = np.random.default_rng(3)
    for _ in range(6):
        q = edgy_marginals(field, rng)
        out = np.full(layout.size, 2.0, dtype=dtype)
        term.add_gradient(layout, q.astype(dtype), out)
        assert out.dtype == np.dtype(dtype)
        for i in range(6):
            at = slice(3 * i, 3 * i + 3)
            ends = [q.copy() for _ in range(4)]
            for label, end in enumerate(ends):
                end[at] = np.eye(4)[label, :3]  # the last one: no label at all
            *corner, nothing = (term.energy(layout, end) for end in ends)
            expected = np.array(corner) - nothing
            np.testing.assert_allclose(
                out[at] - 2.0, expected, atol=1e-9 if dtype == "float64" else 1e-6
            )


def test_gradient_where_products_vanish() -> None:
    """Zeros, and products far below the smallest number, among a thousand variables."""
    n = 1000
    field = pf.Field(n, n_labels=3, terms=[pf.Consistency(np.zeros(n, dtype=int), 2.0)])
    q = np.tile([1.0, 1e-3, 0.0], n).reshape(n, 3)
    q[7] = [0.0, 1.0, 0.0]  # alone lacks label 0: it alone is pulled there
    out = np.zeros(3 * n)
    with np.errstate(all="raise"):
        field.terms[0].add_gradient(field.layout, q.ravel(), out)
    pull = out.reshape(n, 3)
    assert pull[7, 0] == -2.0
    assert np.count_nonzero(pull) == 1
    q[7, 0] = 1e-300
    out[:] = 0.0
    field.terms[0].add_gradient(field.layout, q.ravel(), out)
    assert out[21] == pytest.approx(-2.0)
    assert np.abs(np.delete(out, 21)).max() < 1e-299
    assert np.isfinite(field.terms[0].energy(field.layout, q.ravel()))


def test_many_segments_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    segments = rng.integers(-1, 40, size=500)
    field = pf.Field(500, n_labels=4, terms=[pf.Consistency(segments, rng.random(40))])
    q = random_marginals(field.layout, rng)
    values = []
    for chunk in (1 << 18, 100, 1):
        monkeypatch.setattr(module, "CHUNK", chunk)
        out = np.zeros(field.layout.size)
        field.terms[0].add_gradient(field.layout, q, out)
        values.append((out, field.expected_energy(q)))
    for out, e in values[1:]:
        np.testing.assert_allclose(out, values[0][0], atol=1e-12)
        assert e == pytest.approx(values[0][1])
    assert np.abs(values[0][0]).max() > 1e-6


def test_other_variables_may_have_other_labels() -> None:
    """Then entries are found one by one."""
    term = pf.Consistency([[1, 3], [3, 4, 1]], [1.5, 0.5])
    field = pf.Field([2, 3, 4, 3, 3], terms=[term])
    q = random_marginals(field.layout, np.random.default_rng(6))
    assert field.free_energy(q) == pytest.approx(exact_free_energy(field, q))
    tabled = pf.Field([2, 3, 4, 3, 3], terms=[pf.Consistency([[1, 3], [3, 4, 1]], [1.5, 0.5])])
    g = np.zeros((2, field.layout.size))
    term.add_gradient(field.layout, q, g[0])
    for scopes, tables, index in tabled.terms[0].as_tables(field.layout):
        pf.Factor(scopes, tables, index).add_gradient(field.layout, q, g[1])
    np.testing.assert_allclose(field.layout.center(g[0]), field.layout.center(g[1]), atol=1e-12)


# ---- the bound, and kernels ----


@pytest.mark.parametrize("variant", TOGETHER)
def test_results_bound_log_z(variant: str, kernels: str, dtype: str) -> None:
    field = make()
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=30)
    assert result.log_z_bound <= exact_log_z(field) + 1e-4
    assert result.free_energy == pytest.approx(exact_free_energy(field, result.q), abs=1e-4)


@pytest.mark.parametrize("variant", TOGETHER)
def test_kernel_sets_agree(variant: str) -> None:
    field = make("partition", "per-segment")
    ours, theirs = (infer(field, variant, kernels=k, max_iters=20, tol=0.0) for k in KERNELS)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-6)
    np.testing.assert_allclose(ours.trace.free_energy, theirs.trace.free_energy, atol=1e-6)


@every_case
def test_tables_say_the_same(name: str, kind: str) -> None:
    whole, tabled = make(name, kind), make(name, kind, tables=True)
    assert bool(whole.lower().extras) is (name != "nothing") and not tabled.lower().extras
    np.testing.assert_allclose(energies(whole)[::7], energies(tabled)[::7])
    a, b = (pf.infer(f, "full-parallel", max_iters=8, tol=0.0) for f in (whole, tabled))
    np.testing.assert_allclose(a.q, b.q, atol=1e-9)
    for rule in ("sweep", "colored", "auto"):
        assert pf.infer(tabled, rule, max_iters=50).log_z_bound <= exact_log_z(whole) + 1e-9
    if name == "nothing":  # a term of no energy is omitted
        assert pf.infer(whole, "sweep").converged
        return
    with pytest.raises(UnsupportedError, match=r"visits|neighbors"):
        pf.infer(whole, "sweep")


def test_tables_that_would_be_huge_are_refused() -> None:
    field = pf.Field(40, n_labels=3, terms=[pf.Consistency(np.zeros(40, dtype=int), tables=True)])
    with pytest.raises(pf.InputError, match="segment of 40 variables with 3 labels"):
        pf.infer(field, "sweep")


def test_evidence_and_impossible_labels() -> None:
    field = make().condition({0: 2}).add(pf.Unary([[np.inf, 0.0, 1.0]], [3]))
    result = pf.infer(field, "fixed")
    assert result.marginals[0][2] == 1.0
    assert result.marginals[3][0] == 0.0
    assert result.log_z_bound <= exact_log_z(field) + 1e-9


# ---- curvature ----


def complete(n: int, n_labels: int, weight: Any) -> tuple[pf.Field, pf.Consistency]:
    term = pf.Consistency([list(range(n))], weight)
    return pf.Field(n, n_labels=n_labels, terms=[term]), term


def without_constants(field: pf.Field) -> pf.Field:
    """Tables as they are in E: a constant in a table would show off the simplices."""
    out = pf.Field(field.cardinalities)
    for scopes, tables, index in field.terms[0].as_tables(field.layout):
        top = tables.max(axis=tuple(range(1, tables.ndim)), keepdims=True)
        out.add(pf.Factor(scopes, tables - top, index))
    return out


def assert_bounds(field: pf.Field, term: pf.Consistency, q: Array) -> Array:
    """The local bounds and the spectrum against the Hessian at q; returns its eigenvalues."""
    layout = field.layout
    raw = exact_hessian(without_constants(field), q)
    hessian = projected(layout, raw)
    local = term.curvature(layout)
    assert np.linalg.eigvalsh(np.diag(local[layout.owner]) - hessian)[0] >= -1e-9
    ends = np.linalg.eigvalsh(hessian)
    smallest, largest = term.spectrum(layout)
    assert smallest - 1e-9 <= ends[0] and ends[-1] <= largest + 1e-9
    assert np.linalg.norm(raw, 2) <= term.lipschitz(layout) + 1e-9
    return ends


@pytest.mark.parametrize("n_labels", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_bounds_hold_at_every_labelling(n: int, n_labels: int) -> None:
    """Where the eigenvalues are largest; and from four variables on the bounds are attained."""
    field, term = complete(n, n_labels, 1.7)
    ends = np.array([assert_bounds(field, term, corner(field, x)) for x in labellings(field)])
    if n >= 4:
        assert term.spectrum(field.layout) == pytest.approx((ends.min(), ends.max()), abs=1e-9)


def corner(field: pf.Field, x: Array) -> Array:
    q = np.zeros(field.layout.size)
    q[field.layout.offsets[:-1] + x] = 1.0
    return q


@every_case
@pytest.mark.parametrize("n_labels", [2, 3])
def test_bounds_hold_anywhere(name: str, kind: str, n_labels: int) -> None:
    field = only(make(name, kind, n_labels))
    term = field.terms[0]
    assert isinstance(term, pf.Consistency)
    rng = np.random.default_rng(7)
    for _ in range(8):
        assert_bounds(field, term, edgy_marginals(field, rng))
        assert_bounds(field, term, random_marginals(field.layout, rng))


def test_bound_grows_with_the_root_of_a_segment() -> None:
    field, term = complete(101, 2, 3.0)
    assert term.curvature(field.layout) == pytest.approx(np.full(101, 3.0 * 10 / 2))
    assert term.spectrum(field.layout)[0] == pytest.approx(-3.0 * 100 / 2)


@pytest.mark.parametrize("step", ["certified", "certified-local"])
@pytest.mark.parametrize("seed", range(4))
def test_certified_steps_never_raise_f(step: str, seed: int, kernels: str, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    segments = rng.integers(-1, 4, size=60)
    term = pf.Consistency(segments, rng.exponential(5.0, size=(4, 3)))
    pull = np.where(rng.random((60, 1)) < 0.1, 6.0, 1.0)  # some variables stand against the rest
    field = pf.Field(60, n_labels=3, terms=[term, pf.Unary(pull * rng.normal(size=(60, 3)))])
    for init in ("unary", "random"):
        result = pf.infer(
            field, "fixed", step=step, init=init, kernels=kernels, dtype=dtype, max_iters=300
        )
        f = result.trace.free_energy
        slack = (1e-5 if dtype == "float32" else 1e-10) * (1 + np.abs(f).max())
        assert np.diff(f).max() <= slack


def test_full_steps_can_raise_f() -> None:
    """A star: one gives way to three that are about to leave. Damping has something to do."""
    field, _ = complete(4, 2, 30.0)
    field.add(pf.Unary([[9.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    start = np.array([[0.001, 0.999], [0.99, 0.01], [0.99, 0.01], [0.99, 0.01]])
    plain, safe = (pf.infer(field, rule, init=start) for rule in ("full-parallel", "fixed"))
    assert np.diff(plain.trace.free_energy).max() > 0.1
    assert np.diff(safe.trace.free_energy).max() <= 1e-9


def test_agreement_spreads() -> None:
    """A noisy variable follows its segment where Potts edges alone would not reach it."""
    rows = np.tile([0.0, 1.0], (8, 1))
    rows[3] = [1.5, 0.0]
    alone = pf.Field(8, n_labels=2, terms=[pf.Unary(rows)])
    assert pf.infer(alone, "fixed").labels.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    joined = pf.Field(8, n_labels=2, terms=[pf.Unary(rows), pf.Consistency(np.zeros(8, int), 9.0)])
    assert pf.infer(joined, "fixed", init="unary").labels.tolist() == [0] * 8


# ---- making it ----


def test_both_ways_to_give_segments() -> None:
    a = pf.Consistency([1, -1, 0, 1, 0], [2.0, 3.0])
    b = pf.Consistency([[2, 4], [0, 3]], [2.0, 3.0])
    for key in ("members", "starts", "weights"):
        np.testing.assert_array_equal(getattr(a, key), getattr(b, key))


def test_terms_can_be_pickled() -> None:
    for tables in (False, True):
        term = pf.Consistency([0, 0, 1], tables=tables)
        again = pickle.loads(pickle.dumps(term))
        assert type(again) is type(term)
        np.testing.assert_array_equal(again.members, term.members)


@pytest.mark.parametrize(
    ("segments", "weights", "words"),
    [
        ([0, 0, -2], 1.0, "segments hold -2"),
        ([0.0, 1.0], 1.0, "segments must be integers"),
        (np.zeros((2, 2), dtype=int), 1.0, "segments must have 1 dimension"),
        ([[0, 1], [2, 2]], 1.0, "segment 1 names a variable twice"),
        ([[0, 1], [0.5]], 1.0, "segment 1 must be integers"),
        ([0, 0, 1], [1.0], "2 segments but weights of shape (1,)"),
        ([0, 0, 1], np.ones((3, 2)), "2 segments but weights of shape (3, 2)"),
        ([0, 0, 1], np.ones((2, 0)), "weights of shape (2, 0)"),
        ([0, 0, 1], -1.0, "0 or more"),
        ([0, 0, 1], np.nan, "NaN"),
        ([0, 0, 1], np.inf, "+inf"),
    ],
)
def test_bad_arguments(segments: Any, weights: Any, words: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        pf.Consistency(segments, weights)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("cards", "segments", "weights", "words"),
    [
        ([2, 2], [[0, 2]], 1.0, "variable 2, expected 0 to 1"),
        ([2, 2], [[0, -1]], 1.0, "variable -1, expected 0 to 1"),
        ([2, 3], [0, 0], 1.0, "variable 1 has 3 labels, but others in segments have 2"),
        ([2, 2], [0, 0], np.ones((1, 3)), "weights for 3 labels, but variables have 2"),
    ],
)
def test_fields_that_do_not_fit(cards: Any, segments: Any, weights: Any, words: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        pf.Field(cards, terms=[pf.Consistency(segments, weights)])
    assert words in str(caught.value)


def test_weight_0_omits_the_term() -> None:
    field = pf.Field(5, n_labels=2).add(pf.Consistency([0, 0, 0, 1, 1], 0.0))
    assert field.lower().extras == ()
    one = pf.Field(5, n_labels=2).add(pf.Consistency([0, 0, 0, 1, 1], [0.0, 1.0]))
    assert len(one.lower().extras) == 1
