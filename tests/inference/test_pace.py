"""Budgets on a clock that counts: every operation takes as long as the test says."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import grid_edges
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Program, Rows, State, Tangent
from proxfield.core.engines.plan import Order
from proxfield.core.solve.history import Costs, Limits, Pace
from proxfield.core.solve.loop import Loop, advance_in_parts, sweep_parts

SWEEP, UPDATE, RESIDUAL = 10.0, 1.8, 3.0
"""Durations in evaluations of F."""


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class SlowProgram:
    """A program whose operations take the clock's time."""

    def __init__(self, program: Any, clock: Clock, evaluation: float) -> None:
        self.program, self.clock, self.evaluation = program, clock, evaluation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    advance_each = Program.advance_each
    free_energy_each = Program.free_energy_each
    residual_each = Program.residual_each

    def free_energy(self, state: State) -> float:
        self.clock.spend(self.evaluation)
        return float(self.program.free_energy(state))

    def advance(self, state: State, plan: Any, n: int, tol: float, trace: bool) -> Rows:
        rows: Rows = self.program.advance(state, plan, n, tol, trace)
        each = UPDATE
        if isinstance(plan, Order):
            each = SWEEP * len(plan.variables) / self.program.lowered.layout.n_vars
        self.clock.spend(each * len(rows) * self.evaluation)
        return rows

    def residual(self, state: State) -> tuple[float, float]:
        self.clock.spend(RESIDUAL * self.evaluation)
        residual, rounding = self.program.residual(state)
        return float(residual), float(rounding)

    def tangent(self, state: State) -> Tangent:
        tangent: Tangent = self.program.tangent(state)

        def gradient(q: Any) -> Any:
            self.clock.spend(self.evaluation)
            return tangent.gradient(q)

        return Tangent(
            tangent.q, gradient, tangent.sums, tangent.where, tangent.from_host, tangent.to_host
        )

    def descend(self, labels: Any, sweeps: int) -> Any:
        self.clock.spend(SWEEP * sweeps * self.evaluation)
        return self.program.descend(labels, sweeps)

    def explore(self, chains: Any, threads: int | None = None) -> Any:
        ended = self.program.explore(chains, threads)
        self.clock.spend(float(ended.sweeps.sum()) * SWEEP * self.evaluation)
        return ended


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every inference from now on: all that is timed asks the request's."""
    clock = Clock()
    monkeypatch.setattr("proxfield.core.solve.request.time", clock)
    return clock


def slow_down(monkeypatch: pytest.MonkeyPatch, clock: Clock, evaluation: float) -> None:
    def compile_slowly(*args: Any) -> SlowProgram:
        return SlowProgram(compile_program(*args), clock, evaluation)

    monkeypatch.setattr("proxfield.core.solve.session.program_for", compile_slowly)
    monkeypatch.setattr("proxfield.core.solve.forbidden.program_for", compile_slowly)


def symmetric(rows: int) -> pf.Field:
    edges = grid_edges(rows, rows)
    return pf.Field(rows * rows, 2).add(pf.Ising(edges, 1.0))


def mixed(rows: int) -> pf.Field:
    """Large enough that iterations are made one at a time."""
    edges = grid_edges(rows, rows)
    rng = np.random.default_rng(rows)
    field = pf.Field(rows * rows, 3).add(pf.Unary(rng.normal(size=(rows * rows, 3))))
    return field.add(pf.Potts(edges, rng.normal(size=len(edges))))


def coloring(rows: int) -> pf.Field:
    table = np.where(np.eye(3, dtype=bool), np.inf, 0.0)
    return pf.Field(rows * rows, 3).add(pf.Pairwise(grid_edges(rows, rows), table))


@pytest.mark.parametrize("evaluation", [0.003, 0.03, 0.4, 50.0])
@pytest.mark.parametrize("rule", [name for name, rule in pf.RULES.items() if not rule.special])
@pytest.mark.parametrize("make", [symmetric, mixed, coloring])
def test_a_budget_is_kept_whatever_an_evaluation_takes(
    make: Any, rule: str, evaluation: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, clock, evaluation)
    field = make(60)
    for budget in (0.1, 1.0, 10.0):
        if evaluation * 300 < budget:
            continue  # many iterations: nothing that the others don't show
        result = pf.infer(field, rule, budget=budget, tol=0.0)
        assert result.seconds <= 1.1 * budget + 0.02, (budget, result)
        assert result.q.min() >= 0 and np.isfinite(result.q).all()


def test_a_sweep_that_does_not_fit_is_cut(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, clock, 0.2)  # a sweep takes 2 seconds
    field = mixed(60)
    start = pf.infer(field, "sweep", max_iters=0).free_energy
    result = pf.infer(field, "sweep", budget=1.0)
    whole = pf.infer(field, "sweep", max_iters=1).free_energy
    assert result.status is pf.Status.BUDGET and result.iterations == 1
    assert whole < result.free_energy < start
    assert 0.7 < result.seconds <= 1.0
    assert result.trace.free_energy[0] == pytest.approx(start)


def test_without_time_for_an_iteration_the_start_comes_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, clock, 5.0)
    field = mixed(60)
    result = pf.infer(field, "fixed", budget=1.0, init="random", seed=3)
    start = pf.infer(field, "fixed", max_iters=0, init="random", seed=3)
    assert result.status is pf.Status.BUDGET and result.iterations == 0 and result.seconds == 0
    np.testing.assert_array_equal(result.q, start.q)
    assert result.free_energy == start.free_energy


@pytest.mark.parametrize("rule", ["auto", "anneal", "restarts", "portfolio"])
def test_without_time_for_a_test_symmetric_starts_are_left_all_the_same(
    rule: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, clock, 5.0)
    result = pf.infer(symmetric(60), rule, budget=1.0)
    assert result.status is pf.Status.BUDGET
    assert not np.allclose(result.q, 0.5, atol=1e-3)


@pytest.mark.parametrize("starts", [None, np.array([0, 40, 100])])
def test_the_parts_of_a_sweep_are_the_sweep(starts: Any) -> None:
    rng = np.random.default_rng(0)
    field = mixed(10)
    program = compile_program(field.lower())
    order = Order(rng.permutation(100), starts)
    q = np.full(300, 1 / 3)
    whole, parts = program.start(q), program.start(q)
    row = program.advance(whole, order, 1, -1.0, True)
    found, cut = advance_in_parts(
        lambda part: program.advance(parts, part, 1, -1.0, True),
        sweep_parts(order),
        np.inf,
        time.perf_counter,
    )
    assert not cut
    np.testing.assert_array_equal(program.marginals(parts), program.marginals(whole))
    np.testing.assert_array_equal(found.free_energy, row.free_energy)
    np.testing.assert_array_equal(found.change, row.change)


def test_only_sweeps_in_a_fixed_order_have_parts() -> None:
    assert [p.variables.tolist() for p in sweep_parts(Order(np.arange(3)))] == [[0], [1], [2]]
    assert sweep_parts(Order(np.arange(5), shuffle=np.random.default_rng(0))) == []
    assert sum(len(p.variables) for p in sweep_parts(Order(np.arange(1000)))) == 1000


def test_a_look_at_the_clock_comes_after_more_iterations_where_they_are_short() -> None:
    pace = Pace()
    first = pace.next(np.inf, 1000)
    pace.learn(first, 1e-3)
    assert (first, pace.next(np.inf, 1000)) == (4, 16)


def test_limits_of_a_stage_are_the_earlier_ones() -> None:
    limits = Limits(100, budget=2.0)
    assert limits.until(iterations=40, seconds=3.0) == Limits(40, budget=2.0)
    assert limits.until(seconds=1.0, tol=0.0) == Limits(100, 0.0, 1.0)


def test_the_pace_reserves_the_last_evaluation() -> None:
    pace = Pace(per_iteration=1.0, ending=2.0)
    assert not pace.too_late(3.0) and pace.too_late(2.9)
    assert not pace.too_late(2.5, part=0.5) and pace.too_late(2.4, part=0.5)
    assert Pace(chunk=9, per_iteration=1.0, ending=2.0).next(6.0, 100) == 4


def test_f_is_not_evaluated_again_where_it_was_told() -> None:
    loop = Loop(Limits(10))
    q = np.full(27, 1 / 3)
    loop.tell(q, 7.0)
    assert loop.known_at(q) == 7.0
    assert loop.known_at(q.copy()) is None


def test_durations_are_guessed_until_they_are_known() -> None:
    costs, order = Costs(evaluation=1.0), Order(np.arange(3))
    assert costs.iteration(order) == 12.0
    costs.iterations[Order] = 0.1
    assert costs.iteration(order) == 0.1
    guess = costs.test()
    assert guess > 1.0
    costs.residual = 0.25
    assert costs.test() == 0.25
