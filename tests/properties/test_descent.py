"""Rules that promise never to raise F keep the promise on thousands of random fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proxfield as pf
from helpers import (
    MONOTONE,
    VARIANTS,
    energy_tensor,
    exact_log_z,
    infer,
    log_sum_exp,
    random_field,
    random_marginals,
    repulsive_grid,
)

BATCH = 50
BATCHES = 60
"""Seeds 0 to 2999, in batches so that processes can share them."""


def assert_never_rises(result: pf.Result, what: str) -> None:
    """F along the trace falls or stays, beyond rounding."""
    f = result.trace.free_energy
    assert not np.isnan(f).any(), f"{what}: {result} has NaN in its trace"
    finite = f[np.isfinite(f)]
    assert np.isfinite(f[len(f) - len(finite) :]).all(), f"{what}: F became infinite again"
    rise = np.diff(finite) - 1e-9 * (1 + np.abs(finite[:-1]))
    worst = int(rise.argmax()) if len(rise) else 0
    assert (rise <= 0).all(), (
        f"{what}: F rose by {np.diff(finite)[worst]:.3g} from row {worst} of {len(f)} of {result}"
    )


def assert_promises(
    field: pf.Field,
    log_z: float,
    what: str,
    init: str = "random",
    variants: Sequence[str] = MONOTONE,
) -> None:
    """Monotone variants descend, and every F is what it says and a bound."""
    for variant in variants:
        result = infer(field, variant, max_iters=25, tol=0.0, init=init, seed=3)
        assert_never_rises(result, f"{what}, {variant}")
        slack = 1e-8 * (1 + abs(result.free_energy))
        assert result.free_energy >= -log_z - slack, f"{what}, {variant}: no bound"
        assert result.free_energy == pytest.approx(field.free_energy(result.q), abs=slack)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_on_random_fields(batch: int) -> None:
    """Half of the variants on each field, 1500 fields for each of the variants."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        field = random_field(np.random.default_rng(seed))
        log_z = log_sum_exp(-energy_tensor(field).ravel())
        assert_promises(field, log_z, f"seed {seed}", variants=MONOTONE[seed % 2 :: 2])


@pytest.mark.parametrize("sign", [-1.0, 0.0, 1.0], ids=["repulsive", "mixed", "attractive"])
@pytest.mark.parametrize("n_labels", [(2,), (3,), (2, 3, 4)], ids=str)
def test_promises_on_larger_fields(sign: float, n_labels: tuple[int, ...]) -> None:
    """Ten variables, many couplings; log Z by enumeration only where that is cheap."""
    for seed in range(10_000, 10_010):
        rng = np.random.default_rng(seed)
        field = random_field(rng, n_labels=n_labels, n_vars=(10, 10), arity=3, sign=sign)
        log_z = np.inf
        if n_labels == (2,):
            log_z = log_sum_exp(-energy_tensor(field).ravel())
        assert_promises(field, log_z, f"seed {seed}", init="uniform")


@pytest.mark.parametrize("batch", range(6))
def test_promises_with_impossible_labels(batch: int) -> None:
    """Unary energies of +inf: row 0 of a uniform start is infinite, and F falls from then on."""
    for seed in range(20_000 + batch * BATCH, 20_000 + (batch + 1) * BATCH):
        rng = np.random.default_rng(seed)
        n_labels = (2,) if seed % 3 == 0 else (2, 3, 4)
        field = random_field(rng, n_labels=n_labels, arity=2 if seed % 3 == 0 else 4)
        for v, c in enumerate(field.cardinalities):
            if rng.random() < 0.4:
                row = np.zeros(c)
                row[rng.integers(c)] = np.inf
                field.add(pf.Unary(row[None], [v]))
        log_z = log_sum_exp(-energy_tensor(field).ravel())
        assert_promises(field, log_z, f"seed {seed}", init="uniform")


@pytest.mark.parametrize("seed", range(30_000, 30_060))
def test_promises_hold_in_the_reference(seed: int) -> None:
    field = random_field(np.random.default_rng(seed), n_vars=(2, 4))
    for variant in MONOTONE:
        result = infer(field, variant, max_iters=12, kernels="reference", init="random", seed=3)
        assert_never_rises(result, f"seed {seed}, {variant}")


@pytest.mark.parametrize("seed", range(40_000, 40_100))
def test_every_rule_gives_a_bound(seed: int) -> None:
    """Also rules that may go up; and F ≥ −log Z for any marginals."""
    rng = np.random.default_rng(seed)
    field = random_field(rng)
    log_z = log_sum_exp(-energy_tensor(field).ravel())
    for variant in VARIANTS:
        f = infer(field, variant, max_iters=25, init="random").free_energy
        assert f >= -log_z - 1e-8 * (1 + abs(f)), variant
    for _ in range(5):
        assert field.free_energy(random_marginals(field.layout, rng)) >= -log_z - 1e-8


# ---- fields that hypothesis makes ----

energies_up_to_20 = st.floats(-20, 20, allow_subnormal=False)


@st.composite
def fields(draw: Callable) -> pf.Field:  # type: ignore[type-arg]
    """Up to five variables with any tables over up to four of them."""
    cards = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    field = pf.Field(cards)
    variables = st.permutations(range(len(cards)))
    for _ in range(draw(st.integers(0, 5))):
        scope = draw(variables)[: draw(st.integers(1, 4))]
        shape = tuple(cards[v] for v in scope)
        size = int(np.prod(shape))
        values = draw(st.lists(energies_up_to_20, min_size=size, max_size=size))
        field.add(pf.Factor(scope, np.array(values).reshape(shape)))
    return field


@settings(deadline=None, max_examples=150, derandomize=True)
@given(field=fields())
def test_promises_on_fields_that_hypothesis_makes(field: pf.Field) -> None:
    assert_promises(field, exact_log_z(field), repr(field))


# ---- rules that promise nothing, and what tol means ----


def test_full_parallel_raises_f_and_oscillates() -> None:
    result = pf.infer(repulsive_grid(), "full-parallel", max_iters=200)
    assert np.diff(result.trace.free_energy).max() > 1.0
    assert result.status is pf.Status.OSCILLATING
    assert "fixed" in result.message
    assert pf.infer(repulsive_grid(), "fixed", max_iters=2000).converged


def test_small_steps_do_not_fake_convergence() -> None:
    """Each update moves q by less than tol, but q is far from a fixed point."""
    field, tol = repulsive_grid(), 1e-2
    result = pf.infer(field, "fixed", step=1e-3, tol=tol, max_iters=30)
    states = [pf.infer(field, "fixed", step=1e-3, tol=0.0, max_iters=t).q for t in (28, 29, 30)]
    assert max(np.abs(np.diff(states, axis=0)).max(axis=1)) < tol
    assert result.status is pf.Status.MAX_ITERS
    assert result.trace.change[-1] > tol


@pytest.mark.parametrize(
    ("rule", "params"),
    [
        ("fixed", {}),
        ("fixed", {"step": 0.05}),
        ("fixed", {"step": "lipschitz"}),
        ("adaptive", {}),
        ("adaptive", {"step": 0.05}),
        ("adhoc", {"eta": 0.05}),
        ("adhoc", {"eta": 0.3}),
        ("sweep", {}),
        ("colored", {}),
    ],
    ids=str,
)
def test_converged_means_near_a_fixed_point(
    rule: str, params: dict[str, float], kernels: str
) -> None:
    """q* = softmax(−gradient) is within a few tol of q, whatever the damping."""
    field, tol = repulsive_grid(4, weight=1.5), 1e-4
    result = pf.infer(field, rule, tol=tol, max_iters=20_000, kernels=kernels, **params)
    assert result.converged
    gradient = np.zeros(field.layout.size)
    for term in field.terms:
        term.add_gradient(field.layout, result.q, gradient)
    rows = np.exp(-gradient.reshape(-1, 2))
    target = rows / rows.sum(axis=1, keepdims=True)
    assert np.abs(target.ravel() - result.q).max() < 4 * tol
