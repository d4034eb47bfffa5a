"""Every term × kernel set × floating-point type gives the numbers that enumeration gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import (
    CONTRADICTIONS,
    FINITE_TABLES,
    HARD_LABELS,
    HARD_TABLES,
    POSSIBLE,
    SOFT,
    Example,
)

import proxfield as pf
from helpers import (
    KERNELS,
    SINGLE,
    SOLVERS,
    VARIANTS,
    Array,
    energies,
    exact_free_energy,
    exact_log_z,
    explicit_tables,
    infer,
    labellings,
    probabilities,
    random_marginals,
)
from proxfield.backends import compile_program

ROUNDING = {"float64": 1e-9, "float32": 2e-5}


def over(group: dict[str, Example]) -> pytest.MarkDecorator:
    """Run a test on every field of a group."""
    return pytest.mark.parametrize("name", group)


every_variant = pytest.mark.parametrize("variant", VARIANTS)


def settled(field: pf.Field, q: Array) -> Array:
    """Marginals that agree with the evidence, and leave impossible labels without weight."""
    reduction = field.lower().reduction
    small = reduction.restrict(q)
    small[np.isinf(field.lower().unary)] = 0.0
    layout = reduction.layout
    return reduction.expand(small / layout.sum_by_variable(small)[layout.owner])


def refused(field: pf.Field, variant: str, **options: Any) -> bool:
    """Rules that visit single variables can't run where a term only iterates as a whole.

    Checks that every kernel set says so, with the name of what is missing.
    """
    if variant not in SINGLE or not field.lower().extras:
        return False
    with pytest.raises(TypeError, match=r"has no method 'neighbours'|every term lowered"):
        infer(field, variant, **options)
    return True


def marginals_of(field: pf.Field, seed: int) -> Array:
    """Random marginals that a state of the field can have."""
    return settled(field, random_marginals(field.layout, np.random.default_rng(seed)))


def scale_of(field: pf.Field) -> float:
    """How large finite energies get."""
    e = energies(field)
    return 1.0 + float(np.abs(e[np.isfinite(e)]).max(initial=0.0))


# ---- the registry ----


def test_every_term_has_an_example() -> None:
    shown = {term for e in POSSIBLE.values() for term in e.terms}
    assert shown == set(pf.TERMS)


@over(POSSIBLE | CONTRADICTIONS)
def test_examples_hold_the_terms_they_name(name: str) -> None:
    example = (POSSIBLE | CONTRADICTIONS)[name]
    assert set(example.terms) <= {t.name for t in example.field().terms}


def test_every_rule_has_a_variant() -> None:
    assert {rule for rule, _ in [*VARIANTS.values(), *SOLVERS.values()]} == set(pf.RULES)


# ---- (a) gradients ----


@over(FINITE_TABLES)
def test_gradient_is_the_slope_of_the_energy(name: str, kernels: str, dtype: str) -> None:
    """Along moves of weight between two labels; E is linear in one variable's marginals."""
    field = FINITE_TABLES[name].field()
    lowered = field.lower()
    q = marginals_of(field, 1)
    small = lowered.reduction.restrict(q)
    gradient = compile_program(lowered, kernels, dtype).gradient(small)
    layout = lowered.layout
    assert gradient.shape == (layout.size,)
    possible = np.isfinite(lowered.unary)
    h = 1e-3
    for i in range(layout.n_vars):
        entries = np.arange(layout.offsets[i], layout.offsets[i + 1])
        entries = entries[possible[entries]]
        for entry in entries[1:]:
            move = np.zeros(layout.size)
            move[entry], move[entries[0]] = h, -h
            ends = [lowered.reduction.expand(small + s * move) for s in (1, -1)]
            up, down = (field.expected_energy(np.maximum(end, 0)) for end in ends)
            slope = (up - down) / (2 * h)
            assert gradient[entry] - gradient[entries[0]] == pytest.approx(
                slope, abs=1e3 * ROUNDING["float64"] + ROUNDING[dtype] * scale_of(field)
            )


@over(SOFT)
def test_gradient_along_a_joint_direction(name: str, kernels: str) -> None:
    field = SOFT[name].field()
    lowered = field.lower()
    rng = np.random.default_rng(2)
    small = lowered.reduction.restrict(marginals_of(field, 3))
    move = lowered.layout.centre(rng.normal(size=lowered.layout.size))
    h = 1e-4 * small.min(initial=1.0)
    gradient = compile_program(lowered, kernels).gradient(small)
    up, down = (
        field.expected_energy(lowered.reduction.expand(small + s * h * move)) for s in (1, -1)
    )
    assert gradient @ move == pytest.approx((up - down) / (2 * h), abs=1e-5 * scale_of(field))


# ---- (b) free energies ----


@over(FINITE_TABLES)
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_free_energy(name: str, seed: int, kernels: str, dtype: str) -> None:
    field = FINITE_TABLES[name].field()
    q = marginals_of(field, seed)
    expected = exact_free_energy(field, q)
    assert field.free_energy(q) == pytest.approx(expected, abs=1e-9)
    program = compile_program(field.lower(), kernels, dtype)
    state = program.start(field.lower().reduction.restrict(q))
    tolerance = ROUNDING[dtype] * scale_of(field) * field.n_vars
    assert program.free_energy(state) == pytest.approx(expected, abs=tolerance)


@over(HARD_TABLES)
def test_free_energy_of_labellings_with_hard_tables(name: str, kernels: str, dtype: str) -> None:
    """At a corner F is the labelling's energy, +inf where it is forbidden."""
    field = HARD_TABLES[name].field()
    lowered = field.lower()
    program = compile_program(lowered, kernels, dtype)
    for x, energy in zip(labellings(field), energies(field), strict=True):
        q = np.zeros(field.layout.size)
        q[field.layout.offsets[:-1] + x] = 1.0
        assert field.free_energy(q) == pytest.approx(energy)
        if (q[~lowered.reduction.keep] > 0).any():
            assert energy == np.inf  # lowering took out only what can't be
            continue
        state = program.start(lowered.reduction.restrict(q))
        assert program.free_energy(state) == pytest.approx(
            energy, abs=ROUNDING[dtype] * scale_of(field)
        )


@over(HARD_TABLES)
def test_free_energy_between_labellings_with_hard_tables(name: str, kernels: str) -> None:
    """Weight on a forbidden configuration makes F infinite, and only that."""
    field = HARD_TABLES[name].field()
    lowered = field.lower()
    program = compile_program(lowered, kernels)
    rng = np.random.default_rng(7)
    kinds = set()
    for _ in range(200):
        q = random_marginals(lowered.layout, rng) * (rng.random(lowered.layout.size) < 0.6)
        sums = lowered.layout.sum_by_variable(q)
        if (sums <= 0).any():
            continue
        q = q / sums[lowered.layout.owner]
        full = lowered.reduction.expand(q)
        expected = exact_free_energy(field, full)
        kinds.add(np.isfinite(expected))
        assert field.free_energy(full) == pytest.approx(expected)
        assert program.free_energy(program.start(q)) == pytest.approx(expected)
    assert kinds == ({True, False} if lowered.layout.size else {True})


# ---- (c) the bound ----


@over(POSSIBLE)
def test_free_energy_bounds_log_z(name: str) -> None:
    field = POSSIBLE[name].field()
    log_z = exact_log_z(field)
    for seed in range(20):
        assert field.free_energy(marginals_of(field, seed)) >= -log_z - 1e-9


@over(POSSIBLE)
@every_variant
def test_results_bound_log_z(name: str, variant: str, kernels: str, dtype: str) -> None:
    field = POSSIBLE[name].field()
    if refused(field, variant, kernels=kernels, dtype=dtype):
        return
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=30)
    slack = ROUNDING[dtype] * scale_of(field) * field.n_vars
    assert result.log_z_bound <= exact_log_z(field) + slack
    if np.isfinite(result.free_energy):
        expected = exact_free_energy(field, result.q)
        assert result.free_energy == pytest.approx(expected, abs=slack)


# ---- (d) labels have no order ----


def relabelled(field: pf.Field, orders: list[Array]) -> pf.Field:
    """The field as explicit tables; label l of variable v stands for the old ``orders[v][l]``."""
    new = pf.Field(field.cardinalities)
    for scope, table in explicit_tables(field):
        if len(scope) == 0:
            new.add(pf.Constant(float(table)))
            continue
        table = table[np.ix_(*(orders[v] for v in scope))]
        new.add(pf.Unary(table[None], scope) if len(scope) == 1 else pf.Factor(scope, table))
    seen = np.flatnonzero(field.evidence >= 0)
    return new.condition({v: int(orders[v].argsort()[field.evidence[v]]) for v in seen})


@over(FINITE_TABLES)
@every_variant
def test_label_permutations_permute_marginals(name: str, variant: str, kernels: str) -> None:
    field = FINITE_TABLES[name].field()
    if refused(field, variant, kernels=kernels):
        return
    rng = np.random.default_rng(8)
    orders = [rng.permutation(int(c)) for c in field.cardinalities]
    flat = np.concatenate(
        [o + order for o, order in zip(field.layout.offsets, orders, strict=False)]
    )
    other = relabelled(field, orders)
    step = str(pf.RULES[VARIANTS[variant][0]](**VARIANTS[variant][1]).params)
    if "certified" in step or "lipschitz" in step or "adaptive" in variant:
        # bounds on curvature (adaptive falls back on one) depend on how an energy is said, so
        # say both with tables
        field = relabelled(field, [np.arange(c) for c in field.cardinalities])
    options: dict[str, Any] = {"kernels": kernels, "max_iters": 5, "tol": 0.0}
    a, b = infer(field, variant, **options), infer(other, variant, **options)
    np.testing.assert_allclose(b.q, a.q[flat], atol=1e-7)
    assert b.free_energy == pytest.approx(a.free_energy, abs=1e-7)


# ---- (e) kernel sets agree ----


def rows(values: Array, count: int) -> Array:
    """A column of a trace, with its last value repeated for rows that weren't needed."""
    return np.concatenate([values, np.full(count - len(values), values[-1])])


def assert_same_run(a: pf.Result, b: pf.Result, tolerance: float) -> None:
    """The same states, up to when rounding lets one of the two stop earlier."""
    for result in (a, b):
        if result.status is pf.Status.CONVERGED:
            assert result.trace.change[-1] <= tolerance
    count = max(len(a.trace), len(b.trace))
    for column in ("free_energy", "change"):
        ours, theirs = (rows(getattr(r.trace, column), count) for r in (a, b))
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=column)
    np.testing.assert_allclose(a.q, b.q, atol=tolerance)
    assert a.free_energy == pytest.approx(b.free_energy, abs=tolerance, rel=tolerance)


@over(FINITE_TABLES)
@every_variant
def test_cpu_does_what_reference_does(name: str, variant: str) -> None:
    field = FINITE_TABLES[name].field()
    if refused(field, variant):
        return
    ours, theirs = (
        infer(field, variant, kernels=k, max_iters=20, tol=0.0, seed=9) for k in KERNELS
    )
    # adam divides by small numbers: where a set keeps θ in another form, rounding grows
    loose = "adam" in variant and "cuda" in KERNELS
    assert_same_run(ours, theirs, 1e-4 if loose else 1e-6)
    assert ours.map_energy == pytest.approx(theirs.map_energy, abs=1e-9)


@over(FINITE_TABLES)
@every_variant
def test_float32_follows_float64(name: str, variant: str, kernels: str) -> None:
    """Over a few iterations: rounding grows with them, and `adam` divides by small numbers."""
    field = FINITE_TABLES[name].field()
    if refused(field, variant, kernels=kernels):
        return
    options: dict[str, Any] = {"kernels": kernels, "max_iters": 8, "tol": 0.0, "seed": 9}
    single, double = (infer(field, variant, dtype=d, **options) for d in ("float32", "float64"))
    np.testing.assert_allclose(single.q, double.q, atol=2e-3 if "adam" in variant else 2e-4)
    assert single.free_energy == pytest.approx(double.free_energy, abs=2e-3 * scale_of(field))


@over(HARD_TABLES)
@every_variant
def test_kernel_sets_agree_on_hard_tables(name: str, variant: str) -> None:
    field = HARD_TABLES[name].field()
    ours, theirs = (infer(field, variant, kernels=k, max_iters=60) for k in KERNELS)
    assert ours.free_energy == pytest.approx(theirs.free_energy, abs=1e-6)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-5)
    assert ours.map_energy == pytest.approx(theirs.map_energy)


@over({k: SOFT[k] for k in ("strong-repulsion", "strong-repulsion-binary")})
def test_the_safeguard_is_needed(name: str, kernels: str) -> None:
    """Without it the same step raises F: what the runs above compare includes redone steps."""
    field = SOFT[name].field()
    options: dict[str, Any] = {"step": 0.9, "max_iters": 20, "tol": 0.0, "kernels": kernels}
    options["dtype"] = "float64"
    assert np.diff(pf.infer(field, "fixed", **options).trace.free_energy).max() > 0.1
    assert np.diff(pf.infer(field, "adaptive", **options).trace.free_energy[:-1]).max() < 1e-9


# ---- (f) the user's numbering ----


@every_variant
def test_one_label_variables_come_back(variant: str, kernels: str, dtype: str) -> None:
    field = SOFT["one-label-variables"].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=50)
    assert [len(row) for row in result.marginals] == [1, 2, 1, 3, 2]
    assert result.marginals[0] == result.marginals[2] == 1.0
    assert (result.labels[[0, 2]] == 0).all()
    assert (result.map_labels[[0, 2]] == 0).all()
    for row in result.marginals:
        assert row.sum() == pytest.approx(1.0, abs=1e-6)


@every_variant
def test_isolated_variables_get_their_own_distribution(
    variant: str, kernels: str, dtype: str
) -> None:
    field = SOFT["isolated-variables"].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=3000, tol=1e-7)
    own = field.terms[1].energies[0]
    expected = np.exp(-own) / np.exp(-own).sum()
    np.testing.assert_allclose(result.marginals[1], [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(result.marginals[4], np.full(3, 1 / 3), atol=1e-6)
    if variant not in ("momentum-printed", "adam", "adam-printed"):  # these may circle around it
        np.testing.assert_allclose(result.marginals[3], expected, atol=2e-5)


@over({k: SOFT[k] for k in ("all-terms-with-evidence", "all-observed", "binary-evidence")})
@every_variant
def test_observed_variables_keep_their_label(name: str, variant: str, kernels: str) -> None:
    field = SOFT[name].field()
    result = infer(field, variant, kernels=kernels, max_iters=20)
    for v in np.flatnonzero(field.evidence >= 0):
        assert result.marginals[v][field.evidence[v]] == 1.0
        assert result.marginals[v].sum() == 1.0
        assert result.map_labels[v] == result.labels[v] == field.evidence[v]


# ---- (g) what can't be ----


def assert_no_nan(result: pf.Result) -> None:
    assert np.isfinite(result.q).all()
    assert not np.isnan(result.free_energy)
    assert not np.isnan(result.trace.free_energy).any()
    assert not np.isnan(result.trace.change[1:]).any()


@over(HARD_LABELS | HARD_TABLES)
@every_variant
def test_impossible_labels_get_nothing(name: str, variant: str, kernels: str, dtype: str) -> None:
    field = POSSIBLE[name].field()
    if refused(field, variant, kernels=kernels, dtype=dtype):
        return
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=20, tol=0.0)
    assert_no_nan(result)
    assert np.isfinite(result.free_energy)
    for term in field.terms:
        if isinstance(term, pf.Unary):
            at = field.layout.entries(term.variables, term.energies.shape[1])
            assert (result.q[at[np.isinf(term.energies)]] == 0.0).all()
    weight = probabilities(field, result.q)
    assert (weight[np.isinf(energies(field))] == 0.0).all()
    assert np.isfinite(result.map_energy)
    if not field.lower().extras:  # otherwise each label is rounded by itself
        assert result.map_energy <= result.expected_energy + 1e-6


@over(HARD_LABELS)
@every_variant
def test_impossible_labels_can_converge(name: str, variant: str, kernels: str) -> None:
    """A label that is gone must not keep the change above tol."""
    if variant in ("momentum-printed", "adam", "adam-printed", "adam-slow", "momentum"):
        pytest.skip("these rules need not converge")
    field = HARD_LABELS[name].field()
    if refused(field, variant, kernels=kernels):
        return
    result = infer(field, variant, kernels=kernels, max_iters=3000, tol=1e-6)
    assert result.status is pf.Status.CONVERGED


@over(HARD_TABLES)
@every_variant
def test_hard_tables_give_a_valid_bound(name: str, variant: str, kernels: str, dtype: str) -> None:
    field = HARD_TABLES[name].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype)
    assert_no_nan(result)
    assert result.status is not pf.Status.INFEASIBLE
    if result.status is pf.Status.NO_FEASIBLE:
        assert result.log_z_bound == -np.inf
    else:
        lightest = -energies(field).min()
        assert result.log_z_bound <= exact_log_z(field) + 1e-4
        assert result.log_z_bound >= lightest - 20  # and it says something


@over(CONTRADICTIONS)
@every_variant
def test_contradictions_are_infeasible(name: str, variant: str, kernels: str, dtype: str) -> None:
    field = CONTRADICTIONS[name].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype)
    assert_no_nan(result)
    assert result.status is pf.Status.INFEASIBLE
    assert result.log_z_bound == -np.inf
    assert result.iterations == 0
    assert (result.trace.free_energy == np.inf).all()


@every_variant
def test_empty_field(variant: str, kernels: str, dtype: str) -> None:
    field = pf.Field([], terms=[pf.Constant(3.0)])
    result = infer(field, variant, kernels=kernels, dtype=dtype)
    assert result.converged
    assert result.free_energy == 3.0
    assert len(result.q) == len(result.labels) == len(result.map_labels) == 0
