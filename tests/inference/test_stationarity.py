"""Fixed points, saddles and minima: what the statuses say is so."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from clock import CountedClock
from helpers import VARIANTS, grid_edges, infer
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.solve.rules.parallel import CustomRule
from proxfield.core.solve.stationarity import Judgement, Verdict, fixed_points, judge
from proxfield.testing import fixed_point_residual

LEAVING = ("auto", "anneal", "restarts", "portfolio")
STAYING = ("sweep", "colored", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam")


def saturated() -> tuple[pf.Field, Any]:
    """q_0 is at the wrong corner, where it hardly moves while θ is far away."""
    field = pf.Field(3, 2).add(pf.Unary([[30.0, 0.0]], [0])).add(pf.Ising([[1, 2]], 20.0))
    return field, [[1 - 1e-12, 1e-12], [0.5, 0.5], [0.5, 0.5]]


def symmetric_grid(side: int = 20, coupling: float = -1.0) -> pf.Field:
    return pf.Field(side * side, 2).add(pf.Ising(grid_edges(side, side), coupling))


# ---- fixed points ----


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saturated_start_is_left(variant: str, kernels: str) -> None:
    field, start = saturated()
    result = infer(field, variant, init=start, kernels=kernels, max_iters=5000)
    if result.status in (pf.Status.CONVERGED, pf.Status.SADDLE):
        assert fixed_point_residual(field, result.q) <= 1e-6
        assert result.free_energy < 0  # 28.6 where the start was taken for the end


@pytest.mark.parametrize("rule", ["momentum", "adam", "fixed"])
def test_dense_ising_fields_from_their_unaries(rule: str) -> None:
    """Scale 30: false in up to 19 of 40 runs while the change of q decided."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n = 12
        pairs = np.stack(np.triu_indices(n, 1), axis=1)
        field = pf.Field(n, 2).add(pf.Unary(30 * rng.normal(size=(n, 2))))
        field.add(pf.Ising(pairs, 30 * rng.normal(size=len(pairs))))
        result = pf.infer(field, rule, init="unary")
        if result.status is pf.Status.CONVERGED:
            assert fixed_point_residual(field, result.q) <= 1e-6, (seed, result)


def test_a_failed_test_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests cost a gradient each: after k failures the next comes 2^k iterations later."""
    at: list[int] = []
    field, start = saturated()

    def never(program: Any, state: Any, tol: float) -> list[bool]:
        at.append(1)
        return [False]

    monkeypatch.setattr("proxfield.core.solve.loop.fixed_points", never)
    result = pf.infer(field, "fixed", init=start, max_iters=200)
    assert result.status is pf.Status.MAX_ITERS
    assert result.iterations == 200
    assert 5 <= len(at) <= 9  # 1 + 2 + 4 + … + 128


def test_tests_do_not_show_in_the_states() -> None:
    """When a test is made must not depend on how many iterations fit between two looks."""
    field, start = saturated()
    a = pf.infer(field, "momentum", init=start, max_iters=300)
    b = pf.infer(field, "momentum", init=start, max_iters=300, callback=lambda p: False)
    assert a.iterations == b.iterations
    np.testing.assert_array_equal(a.q, b.q)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_residual(kernels: str, dtype: str) -> None:
    """Of every kernel set, against the field's own gradient."""
    rng = np.random.default_rng(1)
    field = pf.Field([2, 3, 2, 4], terms=[pf.Potts([[0, 1], [1, 3], [2, 3]], -2.0)])
    field.add(pf.Unary([[0.0, np.inf]], [2])).add(pf.Unary([[0.0, 1.0, 5.0, 2.0]], [3]))
    q = np.concatenate([rng.dirichlet(np.ones(c)) for c in (2, 3, 2, 4)])
    q[5:7] = 1.0, 0.0
    program = compile_program(field.lower(), kernels, dtype)
    state = program.start(q)
    residual, rounding = program.residual(state)
    assert residual == pytest.approx(fixed_point_residual(field, q), abs=1e-6)
    assert 0 < rounding < 1e-4
    assert fixed_points(program, state, 1.0)[0] and not fixed_points(program, state, 1e-3)[0]


# ---- saddles ----


@pytest.mark.parametrize("rule", STAYING)
@pytest.mark.parametrize("coupling", [-1.0, 1.0])
def test_symmetric_fields_end_on_a_named_saddle(rule: str, coupling: float) -> None:
    result = pf.infer(symmetric_grid(coupling=coupling), rule)
    assert result.status is pf.Status.SADDLE
    assert not result.converged
    assert "init='random'" in result.message
    assert result.free_energy == pytest.approx(-400 * np.log(2))


@pytest.mark.parametrize("rule", LEAVING)
@pytest.mark.parametrize("limits", [{}, {"max_iters": 20}, {"budget": 0.001}], ids=str)
def test_rules_that_leave_saddles(rule: str, limits: dict[str, Any]) -> None:
    pf.infer(symmetric_grid(4), rule, max_iters=2)  # loads what the clock has to count
    with CountedClock(update=1e-4, look=1e-6):
        result = pf.infer(symmetric_grid(), rule, **limits)
    assert result.status is not pf.Status.SADDLE
    assert result.free_energy < -300  # −277.3 on the saddle
    assert result.iterations <= limits.get("max_iters", 2**62)


@pytest.mark.parametrize("rule", LEAVING)
@pytest.mark.parametrize("limits", [{}, {"max_iters": 20}, {"budget": 0.001}], ids=str)
def test_rules_that_leave_saddles_of_terms_without_tables(
    rule: str, limits: dict[str, Any]
) -> None:
    points = np.linspace(0, 3, 30)[:, None]
    field = pf.Field(30, 3).add(pf.Gaussian(points, 4.0, self_message=False))
    if rule == "restarts":
        rule_params: dict[str, Any] = {"inner": "fixed"}
    elif rule == "portfolio":
        rule_params = {"rules": "anneal,momentum,adam"}
    else:
        rule_params = {}
    saddle = pf.infer(field, "fixed")
    assert saddle.status is pf.Status.SADDLE
    with CountedClock(update=1e-4, look=1e-6):  # ten updates in the budget, on any machine
        result = pf.infer(field, rule, **rule_params, **limits)
    assert result.status is not pf.Status.SADDLE
    assert result.free_energy < saddle.free_energy - 1e-3


def test_a_large_grid_in_a_second() -> None:
    """A sweep takes so long that few fit into the budget."""
    field = symmetric_grid(100)
    pf.infer(field, max_iters=2)
    with CountedClock(update=0.02, look=0.005):
        result = pf.infer(field, budget=1.0)
    assert result.status in (pf.Status.BUDGET, pf.Status.CONVERGED)
    assert result.free_energy < -1.2 * 10_000 * np.log(2)


def test_minima_are_not_called_saddles(kernels: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        field = pf.Field(9, 3).add(pf.Unary(rng.normal(size=(9, 3))))
        field.add(pf.Potts(grid_edges(3, 3), rng.normal(size=12)))
        result = pf.infer(field, "fixed", init="random", kernels=kernels, seed=seed)
        assert result.status is pf.Status.CONVERGED


def test_a_saddle_that_concerns_few_of_many_variables() -> None:
    """One symmetric pair among 5,000 certain variables."""
    n = 5000
    field = pf.Field(n, 2).add(pf.Unary(np.tile([0.0, 8.0], (n - 2, 1)), np.arange(n - 2)))
    field.add(pf.Ising([[n - 2, n - 1]], -1.5))
    result = pf.infer(field, "fixed")
    assert result.status is pf.Status.SADDLE
    assert pf.infer(field, "auto", max_iters=100).free_energy < result.free_energy - 0.1


def test_saddles_of_factors_over_several_variables(kernels: str) -> None:
    """The Hessian depends on q there, and products with it are differences."""
    same = np.full((2, 2, 2), 3.0)
    same[0, 0, 0] = same[1, 1, 1] = 0.0
    field = pf.Field(3, 2).add(pf.Factor([[0, 1, 2]], same))
    assert pf.infer(field, "fixed", kernels=kernels).status is pf.Status.SADDLE
    assert pf.infer(field, "fixed", init="random", kernels=kernels).converged
    weak = pf.Field(3, 2).add(pf.Factor([[0, 1, 2]], 0.1 * same))
    assert pf.infer(weak, "fixed", kernels=kernels).converged


def test_the_test_leaves_the_state_alone(kernels: str) -> None:
    field = symmetric_grid(4)
    program = compile_program(field.lower(), kernels)
    state = program.start(np.full(32, 0.5))
    found = judge(program, state)
    assert found.verdict is Verdict.SADDLE
    assert found.lower is not None and found.free_energy < program.free_energy(state)
    assert found.free_energy == pytest.approx(field.free_energy(found.lower))
    np.testing.assert_array_equal(program.marginals(state), 0.5)


def test_a_test_without_time_decides_nothing() -> None:
    program = compile_program(pf.infer(symmetric_grid(6), "fixed").field.lower())
    state = program.start(np.full(72, 0.5))
    assert judge(program, state, max_products=1).verdict in (Verdict.UNDECIDED, Verdict.SADDLE)
    stable = compile_program(symmetric_grid(6, coupling=0.1).lower())
    undecided = judge(stable, stable.start(np.full(72, 0.5)), max_products=1)
    assert undecided.verdict is Verdict.UNDECIDED


# ---- the state of lowest F ----


@pytest.mark.parametrize("rule", ["momentum", "adam", "full-parallel", "adhoc", "anneal"])
def test_ctrl_c_returns_the_lowest_free_energy_seen(rule: str) -> None:
    rng = np.random.default_rng(0)
    field = pf.Field(100, 2).add(pf.Ising(grid_edges(10, 10), 4 * rng.normal(size=180)))
    field.add(pf.Unary(rng.normal(size=(100, 2))))

    def interrupt(progress: pf.Progress) -> None:
        if progress.iteration > 60:
            raise KeyboardInterrupt

    result = pf.infer(field, rule, tol=0.0, max_iters=500, init="random", callback=interrupt)
    assert result.status is pf.Status.INTERRUPTED
    lowest = np.nanmin(result.trace.free_energy)
    assert result.free_energy == pytest.approx(lowest, abs=1e-8)
    assert result.free_energy == pytest.approx(field.free_energy(result.q), abs=1e-8)


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_the_best_state_that_a_rule_went_on_from(rule: str, kernels: str) -> None:
    rng = np.random.default_rng(3)
    field = pf.Field(36, 2).add(pf.Ising(grid_edges(6, 6), 4 * rng.normal(size=60)))
    field.add(pf.Unary(rng.normal(size=(36, 2))))
    best = pf.infer(field, rule, keep="best", max_iters=3000, kernels=kernels)
    assert best.free_energy == pytest.approx(np.nanmin(best.trace.free_energy), abs=1e-8)
    if best.status is pf.Status.CONVERGED:
        assert fixed_point_residual(field, best.q) <= 1e-6


def test_an_update_is_never_cut_in_two() -> None:
    """Ctrl-C that arrives during an update is raised after it."""
    import signal

    from proxfield.core.common.interrupts import finish_first

    done = []
    with pytest.raises(KeyboardInterrupt), finish_first():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1]
    with pytest.raises(KeyboardInterrupt), finish_first():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the second one at once
        done.append(2)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_plans_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while λ is sought: the start, not an exception."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("proxfield.core.solve.curvature.Curvature.steps", interrupt)
    result = pf.infer(symmetric_grid(4), "fixed", init="random")
    assert result.status is pf.Status.INTERRUPTED
    assert np.isfinite(result.free_energy)


def test_copies_of_states_move_on_their_own(kernels: str) -> None:
    field = symmetric_grid(4)
    program = compile_program(field.lower(), kernels)
    rng = np.random.default_rng(0)
    start = np.stack([1 - (p := rng.random(16)), p], axis=1).ravel()
    plan = Update(Kind.MOMENTUM, np.ones(16), gamma1=0.9)
    state = program.start(start)
    program.advance(state, plan, 3, -1.0, True)
    copy = program.copy(state)
    before = program.marginals(state)
    program.advance(copy, plan, 4, -1.0, True)
    np.testing.assert_array_equal(program.marginals(state), before)
    program.advance(state, plan, 4, -1.0, True)
    np.testing.assert_allclose(program.marginals(state), program.marginals(copy), atol=1e-12)


def frustrated(seed: int) -> pf.Field:
    """Energies of scale 30, where the change of q is small long before the end."""
    rng = np.random.default_rng(seed)
    pairs = np.stack(np.triu_indices(12, 1), axis=1)
    field = pf.Field(12, 2).add(pf.Unary(30 * rng.normal(size=(12, 2))))
    return field.add(pf.Ising(pairs, 30 * rng.normal(size=len(pairs))))


@pytest.mark.parametrize("rule", ["momentum", "fixed"])
def test_results_do_not_depend_on_the_looks_at_the_clock(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test for a fixed point in the middle of a wait would depend on the machine's speed."""
    for seed in range(12):
        ends = set()
        for chunk in (1, 3, 1000):
            monkeypatch.setattr(
                "proxfield.core.solve.history.Pace.next",
                lambda self, left, most, n=chunk: min(n, most),
            )
            result = pf.infer(frustrated(seed), rule, init="unary")
            ends.add((result.iterations, result.status, result.q.tobytes()))
        assert len(ends) == 1, seed


def test_keep_best_at_a_fixed_point_is_converged() -> None:
    """States around it whose F is lower by rounding are no reason to say OVERSHOT."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        field = pf.Field(36, 2).add(pf.Ising(grid_edges(6, 6), rng.normal(size=60)))
        field.add(pf.Unary(rng.normal(size=(36, 2))))
        result = pf.infer(field, "momentum", keep="best", max_iters=3000)
        if result.status is pf.Status.OVERSHOT:
            assert result.trace.free_energy[-1] > result.free_energy + 1e-10
        elif result.status is pf.Status.CONVERGED:
            assert fixed_point_residual(field, result.q) <= 1e-6


@pytest.mark.parametrize("rule", LEAVING)
def test_float32_rounding_is_no_overshoot(rule: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        field = pf.Field(36, 2).add(pf.Ising(grid_edges(6, 6), 3 * rng.normal(size=60)))
        field.add(pf.Unary(rng.normal(size=(36, 2))))
        result = pf.infer(field, rule, dtype="float32", max_iters=300)
        assert result.status in (pf.Status.CONVERGED, pf.Status.MAX_ITERS)


@pytest.mark.parametrize(
    ("rule", "params"),
    [
        ("auto", {}),
        ("anneal", {}),
        ("restarts", {"inner": "momentum"}),
        ("portfolio", {"rules": "momentum"}),
    ],
)
def test_converged_needs_a_decision_where_a_minimum_is_promised(
    rule: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    undecided = Judgement(Verdict.UNDECIDED)
    monkeypatch.setattr("proxfield.core.solve.session.judge", lambda *a, **k: undecided)
    result = pf.infer(frustrated(0), rule, **params)
    assert result.status is pf.Status.MAX_ITERS


def interrupt_at(monkeypatch: pytest.MonkeyPatch, target: str, call: int) -> None:
    """Raise KeyboardInterrupt when a function is called so many times."""
    module, name = target.rsplit(".", 1)
    real, calls = getattr(sys.modules[module], name), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(target, counted)


def test_ctrl_c_in_a_later_member_keeps_the_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second member is worse; Ctrl-C comes in its second-order test."""
    field = symmetric_grid(6)
    full = pf.infer(field, "portfolio", rules="anneal,fixed")
    interrupt_at(monkeypatch, "proxfield.core.solve.session.judge", 3)
    result = pf.infer(field, "portfolio", rules="anneal,fixed")
    assert result.status is pf.Status.INTERRUPTED
    assert result.free_energy == pytest.approx(full.free_energy)
    assert result.free_energy == pytest.approx(field.free_energy(result.q))


def test_ctrl_c_before_the_polish_keeps_what_auto_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    field = pf.Field(100, 2).add(pf.Ising(grid_edges(10, 10), 4 * rng.normal(size=180)))
    full = pf.infer(field, "auto", max_iters=2000)
    interrupt_at(monkeypatch, "proxfield.core.solve.rules.portfolio.prefers_search", 1)
    result = pf.infer(field, "auto", max_iters=2000)
    assert result.status is pf.Status.INTERRUPTED
    assert result.free_energy == pytest.approx(full.free_energy, abs=1e-2)


def test_ctrl_c_while_polishing_keeps_the_best_of_the_cooling() -> None:
    """Momentum passes states of lower F while it cools than those that it polishes."""
    rng = np.random.default_rng(0)
    field = pf.Field(100, 2).add(pf.Ising(grid_edges(10, 10), 4 * rng.normal(size=180)))

    def interrupt(progress: pf.Progress) -> None:
        if progress.iteration > 401:  # 400 of 500 cool
            raise KeyboardInterrupt

    result = pf.infer(field, "anneal", inner="momentum", tol=0.0, max_iters=500, callback=interrupt)
    assert result.status is pf.Status.INTERRUPTED
    assert result.free_energy == pytest.approx(np.nanmin(result.trace.free_energy), abs=1e-8)


def test_memory_of_a_custom_rule_need_not_be_copyable() -> None:
    def half(theta: Any, q: Any, g: Any, memory: dict[str, Any]) -> Any:
        memory.setdefault("lock", threading.Lock())
        return theta - 0.5 * (theta - g)

    rng = np.random.default_rng(0)
    field = pf.Field(9, 2).add(pf.Ising(grid_edges(3, 3), rng.normal(size=12)))
    result = pf.infer(field.add(pf.Unary(rng.normal(size=(9, 2)))), CustomRule(half))
    assert result.status is pf.Status.CONVERGED


def test_no_test_after_a_limit_while_q_still_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a large field a residual takes longer than the rest of the budget."""

    def never(*_: Any) -> bool:
        raise AssertionError("tested although the last update changed q")

    monkeypatch.setattr("proxfield.core.solve.loop.fixed_points", never)
    result = pf.infer(symmetric_grid(), "auto", max_iters=8, init="random")
    assert result.status is pf.Status.MAX_ITERS


def test_ctrl_c_at_the_very_end_keeps_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    full = pf.infer(frustrated(1), "momentum")
    interrupt_at(monkeypatch, "proxfield.core.solve.infer.finish", 1)
    result = pf.infer(frustrated(1), "momentum")
    assert result.status is pf.Status.INTERRUPTED
    assert result.free_energy <= full.free_energy + 1e-9
    assert result.free_energy == pytest.approx(np.nanmin(result.trace.free_energy), abs=1e-8)


def test_random_orders_do_not_depend_on_the_looks_at_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Orders drawn for sweeps that weren't made must not be missing later."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        field = pf.Field(16, 2).add(pf.Unary(rng.normal(size=(16, 2))))
        field.add(pf.Ising(grid_edges(4, 4), 3 * rng.normal(size=24)))
        ends = set()
        for chunk in (1, 1000):
            monkeypatch.setattr(
                "proxfield.core.solve.history.Pace.next",
                lambda self, left, most, n=chunk: min(n, most),
            )
            result = pf.infer(field, "sweep", order="random", init="random", tol=1e-3, seed=seed)
            ends.add((result.iterations, result.q.tobytes()))
        assert len(ends) == 1, seed
