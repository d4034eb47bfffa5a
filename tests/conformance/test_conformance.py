"""Every term × kernel set × floating-point type gives the numbers that enumeration gives.

Which of the combinations are run is in `conformance_cases`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from conformance_cases import (
    STARTS,
    TESTED,
    cases_over,
    form_of,
    is_refused,
    needs_curvature,
    over,
    parametrized,
)
from covering import Case, cover
from examples import (
    CONTRADICTIONS,
    FINITE,
    FINITE_TABLES,
    HARD_LABELS,
    HARD_TABLES,
    NOT_EXPECTED,
    POSSIBLE,
    SOFT,
)

import proxfield as pf
from helpers import (
    DTYPES,
    INTERPRETED,
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
from proxfield.core.engines import compile_program

ROUNDING = {"float64": 1e-9, "float32": 2e-5}
TO_THE_END = ["sweep", "fixed", "adhoc"] if INTERPRETED else [*VARIANTS]
"""Variants that are run until they converge."""


def a_few(iterations: int) -> int:
    """So many iterations, or what the interpreter has time for."""
    return min(iterations, 3) if INTERPRETED else iterations


def settled(field: pf.Field, q: Array) -> Array:
    """Marginals that agree with the evidence, and leave impossible labels without weight."""
    reduction = field.lower().reduction
    small = reduction.restrict(q)
    small[np.isinf(field.lower().unary)] = 0.0
    layout = reduction.layout
    return reduction.expand(small / layout.sum_by_variable(small)[layout.owner])


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


def test_examples_hold_the_terms_they_name() -> None:
    for name, example in (POSSIBLE | NOT_EXPECTED | CONTRADICTIONS).items():
        assert set(example.terms) <= {t.name for t in example.field().terms}, name


def test_every_rule_has_a_variant() -> None:
    every = {name for name, rule in pf.RULES.items() if not rule.special}
    assert {rule for rule, _ in [*VARIANTS.values(), *SOLVERS.values()]} == every


# ---- (a) gradients ----


@over(FINITE_TABLES, kernels=TESTED, dtype=DTYPES)
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


@over(SOFT | NOT_EXPECTED, by="nothing", kernels=TESTED)
def test_gradient_along_a_joint_direction(name: str, kernels: str) -> None:
    field = FINITE[name].field()
    lowered = field.lower()
    rng = np.random.default_rng(2)
    small = lowered.reduction.restrict(marginals_of(field, 3))
    move = lowered.layout.center(rng.normal(size=lowered.layout.size))
    layout = lowered.layout
    observed = layout.sum_by_variable(np.isinf(lowered.unary)) > 0  # but not taken out
    free = ~observed[layout.owner]
    move[~free] = 0.0
    h = 1e-4 * small[free].min(initial=1.0)
    gradient = np.where(free, compile_program(lowered, kernels).gradient(small), 0.0)
    up, down = (
        field.expected_energy(lowered.reduction.expand(small + s * h * move)) for s in (1, -1)
    )
    assert gradient @ move == pytest.approx((up - down) / (2 * h), abs=1e-5 * scale_of(field))


# ---- (b) free energies ----


@over(FINITE_TABLES, kernels=TESTED, dtype=DTYPES)
def test_free_energy(name: str, kernels: str, dtype: str) -> None:
    field = FINITE_TABLES[name].field()
    program = compile_program(field.lower(), kernels, dtype)
    tolerance = ROUNDING[dtype] * scale_of(field) * field.n_vars
    for seed in (4, 5, 6):
        q = marginals_of(field, seed)
        expected = exact_free_energy(field, q)
        assert field.free_energy(q) == pytest.approx(expected, abs=1e-9)
        state = program.start(field.lower().reduction.restrict(q))
        assert program.free_energy(state) == pytest.approx(expected, abs=tolerance)


@over(NOT_EXPECTED, kernels=TESTED, dtype=DTYPES)
def test_free_energy_of_what_is_no_expectation(name: str, kernels: str, dtype: str) -> None:
    """At a corner it is the labelling's energy; between corners kernels follow the term."""
    field = NOT_EXPECTED[name].field()
    program = compile_program(field.lower(), kernels, dtype)
    tolerance = ROUNDING[dtype] * scale_of(field) * field.n_vars
    corners = [np.eye(2)[x].ravel() for x in labellings(field)[::7]]
    for x, corner in zip(labellings(field)[::7], corners, strict=True):
        assert field.free_energy(corner) == pytest.approx(field.energy(x), abs=1e-9)
    for q in [*corners, *(marginals_of(field, seed) for seed in (4, 5))]:
        state = program.start(field.lower().reduction.restrict(q))
        assert program.free_energy(state) == pytest.approx(field.free_energy(q), abs=tolerance)


@over(HARD_TABLES, kernels=TESTED, dtype=DTYPES)
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


@over(HARD_TABLES, kernels=TESTED)
def test_free_energy_between_labellings_with_hard_tables(name: str, kernels: str) -> None:
    """Weight on a forbidden configuration makes F infinite, and only that."""
    field = HARD_TABLES[name].field()
    lowered = field.lower()
    program = compile_program(lowered, kernels)
    rng = np.random.default_rng(7)
    kinds = {True: 0, False: 0}
    for _ in range(200):
        q = random_marginals(lowered.layout, rng) * (rng.random(lowered.layout.size) < 0.6)
        sums = lowered.layout.sum_by_variable(q)
        if (sums <= 0).any():
            continue
        q = q / sums[lowered.layout.owner]
        full = lowered.reduction.expand(q)
        expected = exact_free_energy(field, full)
        kinds[bool(np.isfinite(expected))] += 1
        assert field.free_energy(full) == pytest.approx(expected)
        if kinds[bool(np.isfinite(expected))] <= a_few(200):
            assert program.free_energy(program.start(q)) == pytest.approx(expected)
    assert kinds[True] and (kinds[False] or not lowered.layout.size)


# ---- (c) the bound ----


@pytest.mark.parametrize("name", POSSIBLE)
def test_free_energy_bounds_log_z(name: str) -> None:
    field = POSSIBLE[name].field()
    log_z = exact_log_z(field)
    for seed in range(20):
        assert field.free_energy(marginals_of(field, seed)) >= -log_z - 1e-9


@over(POSSIBLE, variants=[*VARIANTS], kernels=TESTED, dtype=DTYPES, init=STARTS)
def test_results_bound_log_z(name: str, variant: str, init: str, kernels: str, dtype: str) -> None:
    field = POSSIBLE[name].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype, init=init, max_iters=a_few(30))
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


@over(FINITE_TABLES, variants=[*VARIANTS], kernels=TESTED)
def test_label_permutations_permute_marginals(name: str, variant: str, kernels: str) -> None:
    field = FINITE_TABLES[name].field()
    rng = np.random.default_rng(8)
    orders = [rng.permutation(int(c)) for c in field.cardinalities]
    flat = np.concatenate(
        [o + order for o, order in zip(field.layout.offsets, orders, strict=False)]
    )
    other = relabelled(field, orders)
    orderly = variant == "sweep-random" and field.lower().extras  # observed variables stay in
    if orderly or needs_curvature(variant):
        # bounds on curvature and random orders depend on how an energy is said, so say both
        # with tables
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


def compared() -> list[Case]:
    """Runs to compare with the reference kernels in float64.

    Every variant is paired with every form for each of the other kernel sets; the reference kernels
    in float32 need less. Runs that start at their fixed point would show nothing. adam divides by
    small numbers, and by rounding where a variable starts at its fixed point: from starts other
    than the uniform one its runs can't be compared.
    """

    def allowed(case: Case) -> bool:
        if form_of(str(case["name"])) == "alone" and case["init"] == "unary":
            return False
        return "adam" not in str(case["variant"]) or case["init"] == "uniform"

    group = {name: e for name, e in FINITE.items() if form_of(name) != "nothing"}
    everything: dict[str, Any] = {"variants": [*VARIANTS], "init": STARTS, "allowed": allowed}
    by = "rule" if INTERPRETED else "variant"
    cases = [
        case
        for kernels in KERNELS[1:]
        for case in cases_over(group, by=by, kernels=[kernels], dtype=DTYPES, **everything)
    ]
    if KERNELS[0] in TESTED:
        alone: dict[str, Any] = {"kernels": KERNELS[:1], "dtype": ["float32"]}
        cases += cases_over(group, by="nothing", **alone, **everything)
    return cases


def assert_same_rounding(ours: pf.Result, theirs: pf.Result) -> None:
    """The same energy; on a GPU, which visits variables in another order, what is promised."""
    if ours.kernels != "cuda":
        assert ours.map_energy == pytest.approx(theirs.map_energy, abs=1e-9)
    elif np.isfinite(ours.free_energy) and not INTERPRETED:  # there, tests/gpu has a few
        assert ours.map_energy <= ours.expected_energy + 1e-9 * scale_of(ours.field)


@parametrized(compared())
def test_runs_follow_the_reference(
    name: str, variant: str, init: str, kernels: str, dtype: str
) -> None:
    """In float32 over a few iterations: rounding grows with them."""
    field = FINITE[name].field()
    options: dict[str, Any] = {"tol": 0.0, "seed": 9, "init": init}
    options["max_iters"] = a_few(20 if dtype == "float64" else 8)
    ours = infer(field, variant, kernels=kernels, dtype=dtype, **options)
    theirs = infer(field, variant, kernels=KERNELS[0], dtype="float64", **options)
    adam = "adam" in variant  # divides by small numbers
    if dtype == "float64":
        # where a set keeps θ in another form, rounding grows
        assert_same_run(ours, theirs, 1e-4 if adam and "cuda" in KERNELS else 1e-6)
        assert_same_rounding(ours, theirs)
    else:
        assert_same_run(ours, theirs, 2e-3 if adam else 2e-4)


@over(HARD_TABLES, variants=[*VARIANTS], kernels=KERNELS[1:])
def test_kernel_sets_agree_on_hard_tables(name: str, variant: str, kernels: str) -> None:
    field = HARD_TABLES[name].field()
    ours, theirs = (
        infer(field, variant, kernels=k, max_iters=5 if INTERPRETED else 60)
        for k in (kernels, KERNELS[0])
    )
    assert ours.free_energy == pytest.approx(theirs.free_energy, abs=1e-6)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-5)
    assert_same_rounding(ours, theirs)


WHOLE = {name: example for name, example in FINITE.items() if is_refused(name, SINGLE[0])}
"""Fields with a term that only iterates as a whole."""


@parametrized(cover({"variant": SINGLE, "name": [*WHOLE], "kernels": TESTED}))
def test_single_variables_of_whole_terms_are_refused(name: str, variant: str, kernels: str) -> None:
    """Every kernel set says so, with the name of what is missing."""
    with pytest.raises(TypeError, match=r"has no method '(neighbors|visits)'|every term lowered"):
        infer(WHOLE[name].field(), variant, kernels=kernels)


@over({k: SOFT[k] for k in ("strong-repulsion", "strong-repulsion-binary")}, kernels=TESTED)
def test_the_safeguard_is_needed(name: str, kernels: str) -> None:
    """Without it the same step raises F: what the runs above compare includes redone steps."""
    field = SOFT[name].field()
    options: dict[str, Any] = {"step": 0.9, "max_iters": a_few(20), "tol": 0.0, "kernels": kernels}
    options["dtype"] = "float64"
    assert np.diff(pf.infer(field, "fixed", **options).trace.free_energy).max() > 0.1
    assert np.diff(pf.infer(field, "adaptive", **options).trace.free_energy[:-1]).max() < 1e-9


# ---- (f) the user's numbering ----


@over(by="nothing", variants=[*VARIANTS], kernels=TESTED, dtype=DTYPES)
def test_one_label_variables_come_back(variant: str, kernels: str, dtype: str) -> None:
    field = SOFT["one-label-variables"].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=a_few(50))
    assert [len(row) for row in result.marginals] == [1, 2, 1, 3, 2]
    assert result.marginals[0] == result.marginals[2] == 1.0
    assert (result.labels[[0, 2]] == 0).all()
    assert (result.map_labels[[0, 2]] == 0).all()
    for row in result.marginals:
        assert row.sum() == pytest.approx(1.0, abs=1e-6)


@over(by="nothing", variants=TO_THE_END, kernels=TESTED, dtype=DTYPES)
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


@over(
    {k: SOFT[k] for k in ("all-terms-with-evidence", "all-observed", "binary-evidence")},
    variants=[*VARIANTS],
    kernels=TESTED,
)
def test_observed_variables_keep_their_label(name: str, variant: str, kernels: str) -> None:
    field = SOFT[name].field()
    result = infer(field, variant, kernels=kernels, max_iters=a_few(20))
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


@over(HARD_LABELS | HARD_TABLES, variants=[*VARIANTS], kernels=TESTED, dtype=DTYPES, init=STARTS)
def test_impossible_labels_get_nothing(
    name: str, variant: str, init: str, kernels: str, dtype: str
) -> None:
    field = POSSIBLE[name].field()
    options: dict[str, Any] = {"init": init, "max_iters": a_few(20), "tol": 0.0}
    result = infer(field, variant, kernels=kernels, dtype=dtype, **options)
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


CONVERGENT = [
    v for v in TO_THE_END if "adam" not in v and v not in ("momentum", "momentum-printed")
]


CHEAP = {name: HARD_LABELS[name] for name in ("inf-unary", "inf-unary-binary")}
"""Examples whose updates the interpreter has time for until they converge."""


@over(CHEAP if INTERPRETED else HARD_LABELS, variants=CONVERGENT, kernels=TESTED)
def test_impossible_labels_can_converge(name: str, variant: str, kernels: str) -> None:
    """A label that is gone must not keep the change above tol."""
    field = HARD_LABELS[name].field()
    result = infer(field, variant, kernels=kernels, max_iters=3000, tol=1e-6)
    assert result.status is pf.Status.CONVERGED


@over(HARD_TABLES, variants=[*VARIANTS], kernels=TESTED, dtype=DTYPES)
def test_hard_tables_give_a_valid_bound(name: str, variant: str, kernels: str, dtype: str) -> None:
    field = HARD_TABLES[name].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=a_few(1000))
    assert_no_nan(result)
    assert result.status is not pf.Status.INFEASIBLE
    if result.status is pf.Status.NO_FEASIBLE:
        assert result.log_z_bound == -np.inf
    else:
        lightest = -energies(field).min()
        assert result.log_z_bound <= exact_log_z(field) + 1e-4
        assert result.log_z_bound >= lightest - 20  # and it says something


@over(CONTRADICTIONS, by="nothing", variants=[*VARIANTS], kernels=TESTED, dtype=DTYPES)
def test_contradictions_are_infeasible(name: str, variant: str, kernels: str, dtype: str) -> None:
    field = CONTRADICTIONS[name].field()
    result = infer(field, variant, kernels=kernels, dtype=dtype)
    assert_no_nan(result)
    assert result.status is pf.Status.INFEASIBLE
    assert result.log_z_bound == -np.inf
    assert result.iterations == 0
    assert (result.trace.free_energy == np.inf).all()


@over(by="nothing", variants=[*VARIANTS], kernels=TESTED, dtype=DTYPES)
def test_empty_field(variant: str, kernels: str, dtype: str) -> None:
    field = pf.Field([], terms=[pf.Constant(3.0)])
    result = infer(field, variant, kernels=kernels, dtype=dtype)
    assert result.converged
    assert result.free_energy == 3.0
    assert len(result.q) == len(result.labels) == len(result.map_labels) == 0


# ---- what is put together ----


def test_every_pair_is_compared() -> None:
    """Counted without the code that chose the cases."""
    cases = compared()
    for kernels in KERNELS[1:]:
        runs = [case for case in cases if case["kernels"] == kernels]
        paired = {(form_of(str(case["name"])), str(case["variant"])) for case in runs}
        rules = {(form, VARIANTS[variant][0]) for form, variant in paired}
        moving = [name for name in FINITE if form_of(name) != "nothing"]
        for name, variant in itertools.product(moving, VARIANTS):
            if not is_refused(name, variant):
                assert (form_of(name), VARIANTS[variant][0]) in rules
                assert INTERPRETED or (form_of(name), variant) in paired
        for axis, values in (("name", moving), ("variant", VARIANTS), ("init", STARTS)):
            pairs = {(case[axis], case["dtype"]) for case in runs}
            assert pairs == set(itertools.product(values, DTYPES))
