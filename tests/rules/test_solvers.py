"""Rules that run others: anneal, restarts, portfolio, auto; and the chains beneath them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from clock import CountedClock
from conformance.examples import CONTRADICTIONS, POSSIBLE, Example
from helpers import SOLVERS, exact_log_z, infer, random_field, random_marginals, repulsive_grid
from proxfield.core.compiled.math import uniforms
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import Chains, Update
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.rules.anneal import at_temperature
from proxfield.core.solve.rules.base import Problem
from proxfield.core.solve.rules.portfolio import perturbed
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.terms.base import offers

every_solver = pytest.mark.parametrize("solver", SOLVERS)


def over(group: dict[str, Example]) -> Any:
    return pytest.mark.parametrize("example", group.values(), ids=list(group))


# ---- chains ----


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "general"])
@pytest.mark.parametrize("seed", range(5))
def test_chains_are_the_same_in_both_kernel_sets(binary: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    field = repulsive_grid(3, bias=0.3) if binary else random_field(rng)
    lowered = field.lower()
    starts = np.stack([random_marginals(lowered.layout, rng) for _ in range(4)])
    chains = Chains.make(
        starts, hot=[1.0, 2.0, 5.0, 9.0], sweeps=[0, 4, 7, 1], seeds=np.arange(4),
        drawn=[False, True, False, True], polish=60, tol=1e-9,
    )  # fmt: skip
    a, b = (compile_program(lowered, kernels).explore(chains) for kernels in ("reference", "cpu"))
    np.testing.assert_allclose(a.q, b.q, atol=1e-7)
    np.testing.assert_allclose(a.free_energy, b.free_energy, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(a.sweeps, b.sweeps)
    program = compile_program(lowered)
    for q, f in zip(b.q, b.free_energy, strict=True):
        assert program.free_energy(program.start(q)) == pytest.approx(f, rel=1e-9, abs=1e-9)


def test_drawn_chains_sample_the_field() -> None:
    """Long chains at T = 1 visit labels as often as the field gives them probability."""
    field = pf.Field([2, 2]).add(pf.Unary([[0.0, 0.7], [0.2, 0.0]])).add(pf.Ising([[0, 1]], 0.4))
    lowered = field.lower()
    count = 4000
    starts = np.full((count, 4), 0.5)
    chains = Chains.make(starts, sweeps=8, seeds=np.arange(count), drawn=True, polish=0)
    ended = compile_program(lowered).explore(chains)
    weights = np.exp([-field.energy([a, b]) for a in (0, 1) for b in (0, 1)])
    seen = [
        ((ended.q[:, a] == 1) & (ended.q[:, 2 + b] == 1)).mean() for a in (0, 1) for b in (0, 1)
    ]
    np.testing.assert_allclose(seen, weights / weights.sum(), atol=0.03)


def test_random_numbers_are_uniform_and_independent() -> None:
    u = np.stack([uniforms(seed, np.arange(20_000)) for seed in range(3)])
    assert u.min() >= 0 and u.max() < 1
    np.testing.assert_allclose(u.mean(axis=1), 0.5, atol=0.01)
    np.testing.assert_allclose(u.var(axis=1), 1 / 12, atol=0.005)
    assert np.abs(np.corrcoef(u) - np.eye(3)).max() < 0.03
    assert abs(np.corrcoef(u[0, :-1], u[0, 1:])[0, 1]) < 0.03


# ---- every solver on every kind of field ----


@every_solver
@over(POSSIBLE)
def test_bound_holds_and_nothing_is_lost(solver: str, example: Example) -> None:
    field = example.field()
    extras = field.lower().extras
    if solver in ("anneal-sweep", "restarts") and not all(offers(t, "visits") for t in extras):
        with pytest.raises(TypeError, match=r"has no method '(neighbors|visits)'"):  # these sweep
            infer(field, solver, max_iters=60)
        return
    result = infer(field, solver, max_iters=60)
    assert not np.isnan(result.q).any()
    assert not np.isnan(result.trace.free_energy).any()
    assert result.log_z_bound <= exact_log_z(field) + 1e-7 * (1 + abs(result.free_energy))
    if np.isfinite(result.free_energy):
        assert field.condition({}).free_energy(result.q) == pytest.approx(
            result.free_energy, rel=1e-7, abs=1e-7
        )
    assert result.map_labels.shape == (field.n_vars,)


@every_solver
@over(CONTRADICTIONS)
def test_contradictions_are_named(solver: str, example: Example) -> None:
    result = infer(example.field(), solver, max_iters=60)
    assert result.status in (pf.Status.INFEASIBLE, pf.Status.NO_FEASIBLE)
    assert result.log_z_bound == -np.inf


@every_solver
def test_reference_and_cpu_agree(solver: str) -> None:
    field = repulsive_grid(4, weight=1.5, bias=0.4)
    a, b = (infer(field, solver, max_iters=80, kernels=k) for k in ("reference", "cpu"))
    assert a.free_energy == pytest.approx(b.free_energy, rel=1e-7)
    np.testing.assert_allclose(a.q, b.q, atol=1e-5)
    assert a.iterations == b.iterations


@every_solver
def test_limits_are_kept(solver: str) -> None:
    field = repulsive_grid(20, weight=1.0, bias=0.3)
    for limit in (0, 1, 7, 100):
        assert infer(field, solver, max_iters=limit).iterations <= max(limit, 16)
    infer(field, solver, budget=0.01)
    with CountedClock(update=1e-3, look=1e-5) as clock:
        result = infer(field, solver, budget=0.2)
    assert 0.19 < result.seconds < 0.21
    assert clock.now < 0.21  # and nothing is done outside of it


@every_solver
def test_same_seed_same_bits(solver: str) -> None:
    field = repulsive_grid(12, weight=1.5, bias=0.2)
    runs = [infer(field, solver, max_iters=300, seed=5, threads=k) for k in (1, 1, 2)]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0].q, other.q)
        assert runs[0].free_energy == other.free_energy


@pytest.mark.parametrize("solver", ["auto", "portfolio", "restarts", "anneal"])
def test_interrupts_return_the_best_so_far(solver: str) -> None:
    def interrupt(progress: pf.Progress) -> bool:
        raise KeyboardInterrupt

    field = repulsive_grid(30, weight=1.5, bias=0.2)
    with CountedClock(update=1e-4, look=1e-5):
        result = infer(field, solver, budget=5.0, callback=interrupt)
    assert result.status is pf.Status.INTERRUPTED
    assert np.isfinite(result.free_energy)
    assert result.seconds < 0.5


def test_auto_stops_when_the_callback_says_so() -> None:
    seen: list[int] = []
    field = repulsive_grid(30, weight=1.5, bias=0.2)
    with CountedClock(update=1e-4, look=1e-5):
        result = pf.infer(
            field, budget=5.0, callback=lambda p: seen.append(p.iteration) or len(seen) == 3
        )
    assert result.status is pf.Status.STOPPED
    assert len(seen) == 3 and result.seconds < 0.5


# ---- each by itself ----


def test_annealing_beats_its_own_rule_on_a_frustrated_grid() -> None:
    fields = [pf_grid(seed) for seed in range(5)]
    cold = np.mean([pf.infer(f, "fixed", max_iters=1000).free_energy for f in fields])
    annealed = np.mean([pf.infer(f, "anneal", max_iters=1000).free_energy for f in fields])
    assert annealed < cold - 1.0


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_steps_are_certified_for_their_temperature(temperature: float) -> None:
    lowered = repulsive_grid(4, weight=3.0).lower()
    problem = Problem(lowered, Curvature(lowered, kernels="reference"))
    plan = at_temperature(make_rule("fixed").plan(problem), temperature, problem)
    assert isinstance(plan, Update)
    damping = max(0.0, problem.curvature.largest / temperature / 4 - 0.5)
    np.testing.assert_allclose(plan.step, 1 / (1 + damping))
    assert plan.inverse_temperature == 1 / temperature


def test_annealing_does_not_depend_on_the_start() -> None:
    """From T = μ/2 the objective is convex, so every start leads to the same place."""
    field = pf_grid(3)
    ends = [
        pf.infer(field, "anneal", max_iters=3000, init="random", seed=seed).free_energy
        for seed in range(3)
    ]
    plain = [
        pf.infer(field, "fixed", max_iters=3000, init="random", seed=seed).free_energy
        for seed in range(3)
    ]
    assert np.ptp(ends) < 0.2 * np.ptp(plain)


def test_restarts_keep_the_best_start() -> None:
    field = pf_grid(4)
    single = pf.infer(field, "sweep")
    many = pf.infer(field, "restarts", count=8, max_iters=2000)
    assert many.free_energy <= single.free_energy + 1e-9
    assert many.trace.member is not None and many.trace.member[-1].startswith("start ")


def test_portfolio_keeps_the_best_member_and_says_which() -> None:
    field = pf_grid(5)
    rules = ("adam", "sweep")
    single = {rule: pf.infer(field, rule, max_iters=200).free_energy for rule in rules}
    result = pf.infer(field, "portfolio", rules="adam,sweep", max_iters=400)
    assert result.free_energy == pytest.approx(min(single.values()), rel=1e-6)
    assert set(result.trace.member or []) == set(rules)


def test_auto_solves_convex_fields_at_once() -> None:
    """Weak couplings make F convex: one minimum, no search."""
    field = repulsive_grid(10, weight=0.2, bias=0.5)
    with CountedClock(update=1e-3):
        result = pf.infer(field, budget=5.0)
    assert result.converged and result.seconds < 1
    start = pf.infer(field, "fixed", init="random", max_iters=20_000)
    assert result.free_energy == pytest.approx(start.free_energy, abs=1e-8)


def test_auto_searches_where_f_may_have_two_minima() -> None:
    """Two spins with λ = 3: from the worse of two minima a descent alone doesn't leave."""
    field = pf.Field(2, 2).add(pf.Ising([[0, 1]], -1.5)).add(pf.Unary([[0.0, 0.1]] * 2))
    assert Curvature(field.lower()).local.max() == pytest.approx(3.0)
    worse = [[0.1, 0.9], [0.1, 0.9]]
    stays = pf.infer(field, "sweep", init=worse, kernels="reference")
    assert stays.labels.tolist() == [1, 1]
    found = pf.infer(field, init=worse, max_iters=500, kernels="reference")
    assert found.labels.tolist() == [0, 0] and found.free_energy < stays.free_energy - 0.01


def test_auto_beats_the_paper_rules_on_frustrated_grids() -> None:
    fields = [pf_grid(seed) for seed in range(4)]
    best = min(
        np.mean([pf.infer(f, rule, max_iters=1000).free_energy for f in fields])
        for rule in ("sweep", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam")
    )
    assert np.mean([pf.infer(f).free_energy for f in fields]) < best - 1.0


def test_more_iterations_never_make_auto_worse() -> None:
    fields = [pf_grid(seed) for seed in range(6)]
    means = [
        np.mean([pf.infer(f, max_iters=limit).free_energy for f in fields])
        for limit in (100, 1000, 10_000)
    ]
    assert means[0] >= means[1] >= means[2]


def test_auto_ends_at_a_local_minimum() -> None:
    field = pf_grid(6)
    result = pf.infer(field)
    assert result.converged
    again = pf.infer(field, "sweep", init=result, max_iters=5)
    assert again.free_energy == pytest.approx(result.free_energy, abs=1e-6)


def test_auto_shows_which_chain_found_it() -> None:
    trace = pf.infer(pf_grid(7), max_iters=500).trace
    assert trace.member is not None
    assert any("from T=" in member for member in trace.member)
    assert trace.iteration[0] == 0
    assert (np.diff(trace.iteration) >= 0).all() and (np.diff(trace.seconds) >= 0).all()
    assert (np.diff(trace.free_energy) <= 1e-9 * (1 + abs(trace.free_energy[-1]))).all()


@pytest.mark.parametrize(
    ("rule", "params", "message"),
    [
        ("anneal", {"inner": "auto"}, "runs other rules"),
        ("anneal", {"inner": "fast"}, "unknown rule 'fast'"),
        ("anneal", {"levels": 0}, "levels=0"),
        ("anneal", {"hot": -1.0}, "hot=-1.0"),
        ("restarts", {"count": 0}, "count=0"),
        ("restarts", {"noise": 0.0}, "noise=0.0"),
        ("portfolio", {"rules": ","}, "rules is empty"),
        ("portfolio", {"rules": "sweep,x"}, "unknown rule 'x'"),
    ],
)
def test_bad_parameters(rule: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(pf.InputError, match=message):
        make_rule(rule, params)


def test_custom_rules_can_not_be_annealed() -> None:
    with pytest.raises(pf.InputError, match="unknown rule 'custom'"):
        make_rule("anneal", {"inner": "custom"})


def test_perturbed_starts_are_distributions() -> None:
    layout = pf.Field([2, 3, 4]).layout
    q = random_marginals(layout, np.random.default_rng(0))
    shaken = perturbed(q, layout, 0.5, seed=1)
    np.testing.assert_allclose(layout.sum_by_variable(shaken), 1.0)
    assert np.abs(shaken - q).max() > 0.01
    np.testing.assert_array_equal(shaken, perturbed(q, layout, 0.5, seed=1))


def pf_grid(seed: int) -> pf.Field:
    """A frustrated binary grid: couplings of both signs."""
    from proxfield.generate import grid

    return grid(12, 12, strength=3.0, seed=seed)


@pytest.mark.parametrize("rule", ["auto", "fixed"])
def test_budgets_hold_on_fields_too_large_to_explore(rule: str) -> None:
    """λ gives way to its bound from the tables, exploring to one descent."""
    field = repulsive_grid(60, weight=1.0, bias=0.3)
    pf.infer(field, rule, max_iters=2)
    with CountedClock(update=0.015, look=0.005):  # as if there were a million variables
        result = pf.infer(field, rule, budget=0.3)
    assert result.iterations > 0
    assert result.seconds < 0.35
    assert (np.diff(result.trace.free_energy) <= 1e-9 * abs(result.free_energy)).all()


def test_chains_from_labels_that_are_impossible(kernels: str) -> None:
    """All weight of a start on an impossible label: the possible ones share it."""
    field = pf.Field(3, 3).add(pf.Unary([[np.inf, 0.0, 1.0]] * 3)).add(pf.Potts([[0, 1]], 5.0))
    start = np.tile([1.0, 0.0, 0.0], (3, 1))
    for rule in ("restarts", "auto"):
        result = pf.infer(field, rule, init=start, kernels=kernels, max_iters=100)
        assert np.isfinite(result.free_energy) and np.isfinite(result.q).all()
