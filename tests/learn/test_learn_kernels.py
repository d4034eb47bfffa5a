"""Compiled kernels of learning against the numpy reference, finite differences and enumeration."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import reference
from learn_cases import CASES, exact_counts, labellings, make_case

import proxfield as pf
from proxfield.learn import (
    LOSSES,
    Parameters,
    kernels,
    marginal_loss,
    prepare,
    pseudo_likelihood,
)
from proxfield.learn.methods import Unrolled
from proxfield.learn.optimize import GibbsChains
from proxfield.learn.structure import Structure


def add_counts(s: Structure, x: np.ndarray, share: float, out: np.ndarray) -> None:
    """Add ``share`` to the entry of each factor's table at a labelling of the free variables."""
    for f in s.factors.values():
        kernels.count_labels(f, x, share, out)


def flat(parameters: Parameters) -> np.ndarray:
    return np.concatenate([value.ravel() for value in parameters.values()])


def assert_derivative(function, parameters: Parameters, tolerance: float) -> None:  # type: ignore[no-untyped-def]
    """The gradient agrees with central differences along random directions, block by block."""
    rng = np.random.default_rng(5)
    _, gradient = function(parameters)
    h = 1e-5
    for name, value in parameters.items():
        way = rng.normal(size=value.shape)
        above = function({**parameters, name: value + h * way})[0]
        below = function({**parameters, name: value - h * way})[0]
        slope = float((gradient[name] * way).sum())
        assert slope == pytest.approx((above - below) / (2 * h), rel=tolerance, abs=tolerance)
        assert np.abs(gradient[name]).max() > 1e-4, name


@pytest.mark.parametrize("kind", CASES)
def test_tables_are_those_of_the_field(kind: str) -> None:
    instances, parameters = make_case(kind, count=1)
    instance, s = instances[0], prepare(instances)
    field, w, rng = instance.field(parameters), s.tables(parameters), np.random.default_rng(1)
    free = np.flatnonzero(instance.observed < 0)
    energies = []
    for _ in range(6):
        x = instance.observed.copy()
        x[free] = (rng.random(len(free)) * instance.cardinalities[free]).astype(int)
        counts = np.zeros(s.n_entries)
        add_counts(s, x[free], 1.0, counts)
        energies.append((field.energy(x), counts @ w, instance.counts(x)))
    # they differ by what observed variables have among themselves
    assert np.ptp([a - b for a, b, _ in energies]) < 1e-10
    for a, _, counts in energies:
        assert sum((counts[k] * parameters[k]).sum() for k in counts) == pytest.approx(a)


@pytest.mark.parametrize("kind", CASES)
def test_pseudo_likelihood_is_the_reference(kind: str) -> None:
    instances, parameters = make_case(kind)
    s = prepare(instances)
    value, gradient = pseudo_likelihood(s, parameters)
    expected, dw = reference.pseudo_likelihood(s, s.tables(parameters))
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(flat(gradient), flat(s.pull(dw)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", CASES)
def test_pseudo_likelihood_by_enumeration(kind: str) -> None:
    instances, parameters = make_case(kind, count=1)
    instance = instances[0]
    y = np.where(instance.labels < 0, 0, instance.labels)  # all known
    known = type(instance)(instance.cardinalities, instance.blocks, y, instance.observed)
    field, total = instance.field(parameters), 0.0
    for v in np.flatnonzero(instance.observed < 0):
        energy = []
        for label in range(instance.cardinalities[v]):
            x = y.copy()
            x[v] = label
            energy.append(field.energy(x))
        total += energy[y[v]] + np.log(np.exp(-np.array(energy)).sum())
    assert pseudo_likelihood(prepare([known]), parameters)[0] == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("kind", CASES)
def test_gradient_of_pseudo_likelihood(kind: str) -> None:
    instances, parameters = make_case(kind)
    s = prepare(instances)
    assert_derivative(lambda p: pseudo_likelihood(s, p), parameters, 1e-6)


@pytest.mark.parametrize("kind", CASES)
def test_pseudo_likelihood_is_convex(kind: str) -> None:
    instances, one = make_case(kind)
    s, other = prepare(instances), make_case(kind, seed=7)[1]
    for share in (0.1, 0.5, 0.8):
        between = {k: (1 - share) * one[k] + share * other[k] for k in one}
        chord = (1 - share) * pseudo_likelihood(s, one)[0] + share * pseudo_likelihood(s, other)[0]
        assert pseudo_likelihood(s, between)[0] <= chord + 1e-9
    # the gradient is monotone, strictly along a random line
    a, b = (flat(pseudo_likelihood(s, p)[1]) for p in (one, other))
    assert (a - b) @ (flat(one) - flat(other)) > 0


@pytest.mark.parametrize("kind", CASES)
def test_unrolled_updates_are_the_reference(kind: str) -> None:
    instances, parameters = make_case(kind)
    s = prepare(instances)
    w = s.tables(parameters)
    run = Unrolled(s.updates(w), 7, 0.4)
    q, history = reference.unrolled(s, w, 7, 0.4)
    np.testing.assert_allclose(run.q, q, rtol=1e-10, atol=1e-14)
    d = np.random.default_rng(2).normal(size=len(q))
    expected = reference.unrolled_adjoint(s, w, q, history, 0.4, d)
    np.testing.assert_allclose(run.backward(d), expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("kind", CASES)
def test_unrolled_updates_end_at_a_fixed_point_of_mean_field(kind: str) -> None:
    instances, parameters = make_case(kind, count=1)
    weak = {name: 0.3 * value for name, value in parameters.items()}
    s = prepare(instances)
    q = Unrolled(s.updates(s.tables(weak)), 300, 0.5).q
    field = instances[0].field(weak)
    result = pf.infer(field, "sweep", max_iters=3000, tol=1e-12)
    free = np.isin(field.layout.owner, np.flatnonzero(instances[0].observed < 0))
    np.testing.assert_allclose(q, result.q[free], atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", CASES)
def test_adjoint(kind: str, loss: str) -> None:
    instances, parameters = make_case(kind)
    s = prepare(instances)
    weights = np.array([1.0, 0.4, 2.0])[: int(np.diff(s.offsets).max())]
    assert_derivative(
        lambda p: marginal_loss(s, p, loss, n_updates=9, step=0.6, weights=weights),
        parameters,
        1e-5,
    )


def test_adjoint_where_probabilities_are_tiny() -> None:
    instances, parameters = make_case("binary")
    strong = {name: 12.0 * value for name, value in parameters.items()}
    s = prepare(instances)
    assert marginal_loss(s, strong)[0] / s.n_known > 5
    assert_derivative(lambda p: marginal_loss(s, p, n_updates=4), strong, 1e-5)


@pytest.mark.parametrize("kind", CASES)
def test_chains_are_the_reference(kind: str) -> None:
    instances, parameters = make_case(kind)
    s = prepare(instances)
    chains, w = GibbsChains(s, 1, seed=3), s.tables(parameters)
    for _ in range(4):
        before, counter = chains.x[0].copy(), chains.sweeps * s.n_vars
        chains.sweep(w)
        assert (chains.x[0] == reference.gibbs(s, w, before, 3, counter)).all()


@pytest.mark.parametrize("kind", CASES)
def test_chains_expect_what_enumeration_gives(kind: str) -> None:
    instances, parameters = make_case(kind, count=1)
    s, sweeps, n_chains = prepare(instances), 400, 20
    chains, w = GibbsChains(s, n_chains, seed=1), s.tables(parameters)
    chains.sweep(w, 30)
    means = np.zeros((n_chains, s.n_entries))
    for _ in range(sweeps):
        chains.sweep(w)
        for mean, x in zip(means, chains.x, strict=True):
            add_counts(s, x, 1.0 / sweeps, mean)
    found = np.array([flat(s.pull(mean)) for mean in means])
    expected = flat(exact_counts(instances[0], parameters)[0])
    # factors among observed variables count only in the enumeration
    base = np.zeros(s.n_entries)
    x = np.where(instances[0].observed < 0, 0, instances[0].observed)
    add_counts(s, x[instances[0].observed < 0], 1.0, base)
    expected = expected - (flat(instances[0].counts(x)) - flat(s.pull(base)))
    error = found.std(axis=0, ddof=1) / np.sqrt(n_chains)  # chains are independent
    z = (found.mean(axis=0) - expected) / np.maximum(error, 1e-9 + 1e-6 * np.abs(expected))
    assert np.abs(z).max() < 5.5
    assert np.sqrt((z[error > 1e-6] ** 2).mean()) < 1.8


def test_held_labels_stay() -> None:
    instances, parameters = make_case("labels")
    s = prepare(instances)
    chains = GibbsChains(s, 2, seed=0, hold=True)
    before = chains.x.copy()
    chains.sweep(s.tables(parameters), 20)
    known = s.labels >= 0
    assert (chains.x[:, known] == before[:, known]).all()
    assert (chains.x[:, known] == s.labels[known]).all()
    assert (chains.x[:, ~known] != before[:, ~known]).any()


def test_runs_cover_all_edges() -> None:
    instances, _ = make_case("binary")
    s = prepare(instances)
    runs, run_ptr = s.runs
    edges = s.order(2)
    assert runs[0] == 0 and runs[-1] == len(edges.base)
    assert (runs[run_ptr] == edges.ptr).all()
    for first, last in pairwise(runs):
        assert (np.diff(edges.variables[first:last], axis=0) == 1).all()


def test_an_index_is_indicator_features() -> None:
    rng = np.random.default_rng(0)
    from proxfield.learn import Block, TiedField

    edges, which = np.array([[0, 1], [1, 2], [2, 0]]), np.array([0, 2, 2])
    parameters = {"v": rng.normal(size=(3, 2, 2))}
    values = []
    for block in (
        Block("v", edges, index=which, n_tables=3),
        Block("v", edges, features=np.eye(3)[which]),
    ):
        s = prepare([TiedField([2, 2, 2], [block], [0, 1, 1])])
        values.append((pseudo_likelihood(s, parameters), marginal_loss(s, parameters)))
    for one, other in zip(*values, strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-12)
        np.testing.assert_allclose(one[1]["v"], other[1]["v"], atol=1e-12)
    assert len(labellings(np.array([2, 3]))) == 6
