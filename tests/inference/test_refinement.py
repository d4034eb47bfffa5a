"""Certified rules begin at once, and go on with a larger certified step when it is found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import exact_hessian
from proxfield.core.engines.plan import Update
from proxfield.core.solve import curvature as curvatures
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.lanczos import (
    BASIS,
    PRODUCTS,
    Lanczos,
    StepRefinement,
    iterations_between,
)
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.registry import make_rule

# ---- Lanczos ----


def symmetric(size: int, seed: int) -> np.ndarray:
    a = np.random.default_rng(seed).normal(size=(size, size))
    return a + a.T


@pytest.mark.parametrize("size", [1, 2, 3, BASIS - 1, BASIS, BASIS + 1, 64, 300])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_lanczos_finds_the_largest_eigenvalue(size: int, sign: float) -> None:
    matrix = sign * symmetric(size, size)
    lanczos = Lanczos(lambda v: matrix @ v, size)
    while not lanczos.exhausted:
        before = lanczos.value
        lanczos.advance(PRODUCTS)
        assert lanczos.value >= before
    largest = np.linalg.eigvalsh(matrix)[-1]
    assert lanczos.converged
    assert largest * (1 - 1e-3 * np.sign(largest)) <= lanczos.value <= largest + 1e-9


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_lanczos_ends_in_an_invariant_space(rank: int) -> None:
    diagonal = np.zeros(50)
    diagonal[:rank] = 1.0 + np.arange(rank)
    lanczos = Lanczos(lambda v: diagonal * v, 50)
    lanczos.advance(BASIS)
    assert lanczos.converged
    assert lanczos.products <= rank + 2
    assert lanczos.value == pytest.approx(float(rank), abs=1e-9)


def test_lanczos_stops_when_it_is_late_and_goes_on() -> None:
    matrix = symmetric(200, 0)
    whole, cut = (Lanczos(lambda v: matrix @ v, 200) for _ in range(2))
    whole.advance(10)
    looks = iter([False, False, False, True])
    cut.advance(10, lambda: next(looks))
    assert cut.products == 3
    cut.advance(7)
    assert (cut.products, cut.value) == (10, whole.value)


# ---- the certificate ----


def dense_field(n: int, labels: int, seed: int, strength: float = 3.0) -> pf.Field:
    """Couplings of both signs between all pairs: λ_i are far above what is needed."""
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(n), 2)))
    field = pf.Field(n, labels).add(pf.Unary(rng.normal(size=(n, labels))))
    tables = strength * rng.normal(size=(len(pairs), labels, labels))
    return field.add(pf.Factor(pairs, tables))


def refine(field: pf.Field) -> StepRefinement:
    found = Curvature(field.lower(), field, stepwise=True).refinement()
    assert found is not None
    while not found.ended:
        found.advance(lambda: False)
    return found


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("extra", [False, True])
def test_what_is_found_bounds_the_hessian(labels: int, extra: bool) -> None:
    n = 24
    field = dense_field(n, labels, labels)
    if extra:  # a factor of degree 3 has bounds of its own, for any q
        table = 30.0 * np.random.default_rng(0).normal(size=(labels,) * 3)
        field.add(pf.Factor([[0, 1, 2], [3, 4, 5]], table))
    local = Curvature(field.lower(), field).steps("certified-local")
    step = refine(field).step
    assert step is not None
    assert (step >= local).all()
    assert step.mean() > 1.1 * local.mean()
    bound = 4.0 * (1.0 / step - 1.0 + 0.5)  # d = λ/4 − ½
    center = np.kron(np.eye(n), np.eye(labels) - 1.0 / labels)
    rng = np.random.default_rng(1)
    for _ in range(3):
        q = rng.dirichlet(np.ones(labels), size=n).ravel()
        hessian = center @ exact_hessian(field, q) @ center
        gap = np.diag(np.repeat(bound, labels)) - hessian
        assert np.linalg.eigvalsh(gap)[0] > 0


def test_a_search_that_cannot_gain_ends_early() -> None:
    """Attractive couplings of equal degree: ρ is 1, and nothing is above λ_i."""
    n = 300
    ring = np.stack([np.arange(n), (np.arange(n) + 1) % n], axis=1)
    field = pf.Field(n, 2).add(pf.Ising(ring, 3.0))
    found = refine(field)
    assert found.step is None
    assert found.lanczos.products < 60


def test_variables_without_edges() -> None:
    field = dense_field(20, 2, 0)
    larger = pf.Field(25, 2, field.terms[1:])
    step = refine(larger).step
    assert step is not None
    assert (step[20:] == 1.0).all()
    assert refine(pf.Field(3, 2, [pf.Ising([[0, 1]], 1e-300)])).step is None


@pytest.mark.parametrize(
    "field",
    [
        pf.Field(3, 2),
        pf.Field(3, 2).add(pf.Factor([0, 1, 2], np.arange(8.0).reshape(2, 2, 2))),
        pf.Field(3, 2)
        .add(pf.Factor([0, 1], [[0.0, np.inf], [1.0, 0.0]]))
        .add(pf.Ising([[0, 2]], 1)),
    ],
    ids=["no terms", "no pairs", "forbidden"],
)
def test_nothing_to_refine(field: pf.Field) -> None:
    assert Curvature(field.lower(), field, stepwise=True).refinement() is None


def test_the_search_belongs_to_sessions_on_the_host() -> None:
    field = dense_field(20, 2, 0)
    curvature = Curvature(field.lower(), field)
    assert curvature.refinement() is None
    known = replace(curvature, stepwise=True)
    assert known.largest > 0
    assert known.refinement() is None  # λ costs nothing any more


# ---- runs ----


def often(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """A search whose pieces come after so many iterations."""
    monkeypatch.setattr(curvatures, "iterations_between", lambda lowered: every)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """The plans that CPU programs advance by, as a test goes on."""
    from proxfield.core.engines.numba.programs import BinaryProgram

    seen: list[Update] = []
    advance = BinaryProgram.advance

    def watched(self: Any, state: Any, plan: Any, *args: Any) -> Any:
        seen.append(plan)
        return advance(self, state, plan, *args)

    monkeypatch.setattr(BinaryProgram, "advance", watched)
    return seen


@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
@pytest.mark.parametrize("seed", range(4))
def test_steps_grow_and_f_never_rises(
    rule: str, seed: int, plans: list[Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch, 3)
    field = dense_field(80, 2, seed, 0.8)
    result = pf.infer(field, rule, max_iters=200, budget=1000.0, tol=1e-12)
    f = result.trace.free_energy
    assert (np.diff(f) <= 1e-9 * (1 + np.abs(f[1:]))).all()
    steps = {float(plan.step.mean()) for plan in plans if plan.refinement is not None}
    assert len(steps) == 2
    last = plans[-1]
    assert last.step.mean() == max(steps)
    assert last.fallback is None or last.fallback is last.step


@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
def test_the_first_update_waits_for_no_product(
    rule: str, plans: list[Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("a product")

    monkeypatch.setattr(Lanczos, "advance", fail)
    field = dense_field(80, 2, 0, 0.8)
    few = iterations_between(field.lower()) - 1
    pf.infer(field, rule, max_iters=few, budget=1000.0, tol=0)
    local = Curvature(field.lower(), field).steps("certified-local")
    np.testing.assert_array_equal(plans[0].step, local)


def solve(field: pf.Field, rule: str, now: Callable[[], float], **limits: Any) -> pf.Result:
    request = Request(make_rule(rule), now=now, threads=1, **limits)
    return infer_one(field, request, request.open(field))


@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
def test_a_run_does_not_depend_on_the_clock(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many iterations come between two looks at the clock must not show in any bit."""
    often(monkeypatch, 7)
    field = dense_field(80, 2, 1, 0.8)
    results = []
    for tick in (1e-9, 1e-3, 0.02, 5.0):
        clock = itertools.count()
        now = lambda: tick * next(clock)  # noqa: B023, E731
        results.append(solve(field, rule, now, max_iters=150, budget=1e9, tol=1e-12))
    for other in results[1:]:
        assert other.q.tobytes() == results[0].q.tobytes()
        assert other.trace.free_energy.tobytes() == results[0].trace.free_energy.tobytes()


@pytest.mark.parametrize("cause", ["late", "seconds", "slow products"])
def test_a_search_ends_when_its_time_is_over(cause: str) -> None:
    field, clock = dense_field(80, 2, 1, 0.8), itertools.count()
    curvature = Curvature(
        field.lower(), field, "cpu", 2.5, lambda: 1.0 * next(clock), stepwise=True
    )
    if cause == "slow products":
        curvature.prepare()  # one takes a second
    found = curvature.refinement()
    assert found is not None
    pieces = 0
    while not found.ended:
        found.advance(lambda: cause == "late")
        pieces += 1
    assert found.step is None
    assert pieces == {"late": 1, "seconds": 3, "slow products": 0}[cause]
    assert found.lanczos.products == {"late": 0, "seconds": 15, "slow products": 0}[cause]


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("labels", [2, 3])
def test_kernel_sets_agree(kernels: str, labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    often(monkeypatch, 2)
    field = dense_field(30, labels, 5, 0.5)
    expected = pf.infer(field, "fixed", max_iters=2000, tol=1e-9)
    found = pf.infer(field, "fixed", max_iters=2000, budget=1000.0, tol=1e-9, kernels=kernels)
    assert found.converged
    np.testing.assert_allclose(found.q, expected.q, atol=1e-6)


def test_without_a_budget_lambda_comes_first(plans: list[Update]) -> None:
    field = dense_field(80, 2, 0, 0.8)
    pf.infer(field, "fixed", max_iters=3)
    curvature = Curvature(field.lower(), field)
    np.testing.assert_array_equal(plans[0].step, curvature.steps("certified"))
    assert plans[0].refinement is None


def test_many_fields_get_what_each_gets() -> None:
    fields = [dense_field(30, 2, seed, 0.6) for seed in range(3)]
    together = pf.infer_many(fields, "fixed", max_iters=50, budget=1000.0)
    for field, result in zip(fields, together, strict=True):
        alone = pf.infer(field, "fixed", max_iters=50, budget=1000.0)
        assert result.q.tobytes() == alone.q.tobytes()


def test_lanczos_ends_where_products_overflow() -> None:
    lanczos = Lanczos(lambda v: np.where(v > 0, np.inf, 1.0), 50)
    lanczos.advance(5)
    assert lanczos.exhausted and not lanczos.converged
    assert lanczos.value == -np.inf
