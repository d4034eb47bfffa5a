"""Fields whose tables forbid configurations: a feasible labelling, a bound, or a clear no."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from clock import CountedClock
from helpers import VARIANTS, energies, exact_free_energy, exact_log_z, grid_edges, infer
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve import forbidden as hard
from proxfield.core.solve.history import Limits
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.session import Session
from proxfield.core.solve.stationarity import Judgement, Verdict
from proxfield.result import one_hot

INF = np.inf
DIFFERENT = {c: np.where(np.eye(c, dtype=bool), INF, 0.0) for c in (2, 3, 4)}


def coloring(edges: object, n: int, colors: int) -> pf.Field:
    return pf.Field(n, n_labels=colors, terms=[pf.Pairwise(edges, DIFFERENT[colors])])


def complete(n: int, colors: int) -> pf.Field:
    return coloring(list(itertools.combinations(range(n), 2)), n, colors)


def parity(n: int, checks: int, seed: int) -> pf.Field:
    """Random unaries and checks x_i + x_j + x_k = 0 (mod 2), which x = 0 satisfies."""
    rng = np.random.default_rng(seed)
    even = np.where(np.indices((2, 2, 2)).sum(axis=0) % 2, INF, 0.0)
    scopes = np.stack([rng.choice(n, size=3, replace=False) for _ in range(checks)])
    return pf.Field(
        n, n_labels=2, terms=[pf.Factor(scopes, even), pf.Unary(rng.normal(size=(n, 2)))]
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(4))
def test_parity_checks_give_a_bound(seed: int, variant: str) -> None:
    field = parity(9, 6, seed)
    result = infer(field, variant)
    assert result.log_z_bound <= exact_log_z(field) + 1e-9
    assert result.log_z_bound >= -energies(field).max(initial=0, where=np.isfinite(energies(field)))
    assert result.free_energy == pytest.approx(exact_free_energy(field, result.q))
    assert np.isfinite(result.map_energy)


@pytest.mark.parametrize("seed", range(40))
def test_random_hard_fields(seed: int) -> None:
    """A valid bound where a labelling exists, and a clear status where none does."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    cards = rng.integers(2, 4, size=n)
    field = pf.Field(cards)
    for _ in range(int(rng.integers(2, 6))):
        scope = rng.choice(n, size=int(rng.integers(2, 4)), replace=False)
        table = rng.normal(size=cards[scope])
        field.add(pf.Factor(scope, np.where(rng.random(table.shape) < 0.45, INF, table)))
    log_z = exact_log_z(field)
    result = pf.infer(field, ["fixed", "adhoc", "sweep", "momentum"][seed % 4])
    if log_z == -INF:
        assert result.status in (pf.Status.INFEASIBLE, pf.Status.NO_FEASIBLE)
        assert result.log_z_bound == -INF
    else:
        assert np.isfinite(result.free_energy)
        assert result.log_z_bound <= log_z + 1e-9
        assert np.isfinite(result.map_energy)
        assert result.free_energy == pytest.approx(exact_free_energy(field, result.q), abs=1e-8)


def test_a_large_coloring_is_found() -> None:
    field = coloring(grid_edges(20, 20), 400, 3)
    result = pf.infer(field, "fixed")
    assert np.isfinite(result.map_energy)
    assert np.isfinite(result.free_energy)
    assert result.log_z_bound >= 0.0  # at least the one labelling


def test_contradiction_that_propagation_sees() -> None:
    field = complete(3, 2).condition({0: 0})
    result = pf.infer(field)
    assert result.status is pf.Status.INFEASIBLE
    assert result.log_z_bound == -INF
    assert "contradict" in result.message


@pytest.mark.parametrize("variant", ["fixed", "adhoc", "sweep", "adam"])
def test_contradiction_that_only_search_sees(variant: str, kernels: str) -> None:
    """Four variables, all different, three labels: each pair alone is possible."""
    with CountedClock(look=1e-3) as clock:
        result = infer(complete(4, 3), variant, kernels=kernels)
    assert clock.now < 2.0  # some updates and looks, not all the seconds that a search may take
    assert result.status in (pf.Status.INFEASIBLE, pf.Status.NO_FEASIBLE)
    assert result.free_energy == INF
    assert np.isfinite(result.q).all()


def test_what_is_left_of_a_result_without_a_feasible_labelling() -> None:
    result = pf.infer(complete(4, 3))
    assert result.labels.shape == (4,)
    assert result.map_labels.shape == (4,)
    assert result.map_energy == INF
    assert result.summary()["log_z_bound"] == -INF
    assert len(result.trace) == result.iterations + 1


def test_trace_is_infinite_until_exact_descent() -> None:
    result = pf.infer(complete(3, 3), "fixed")
    f = result.trace.free_energy
    assert f[0] == INF
    assert np.isfinite(f[-1])
    finite = f[np.isfinite(f)]
    assert (np.diff(finite) <= 1e-9).all()
    assert np.isinf(f[: len(f) - len(finite)]).all()


def test_limits_hold_for_hard_fields() -> None:
    field = parity(40, 30, 1)
    few = pf.infer(field, "fixed", max_iters=5)
    assert few.iterations <= 5
    assert few.status is pf.Status.MAX_ITERS
    assert np.isfinite(few.free_energy)
    none = pf.infer(field, "fixed", max_iters=0)
    assert none.iterations == 0
    stopped = pf.infer(field, "fixed", tol=0.0, callback=lambda p: True)
    assert stopped.status is pf.Status.STOPPED

    def interrupt(progress: pf.Progress) -> None:
        raise KeyboardInterrupt

    assert pf.infer(field, "fixed", tol=0.0, callback=interrupt).status is pf.Status.INTERRUPTED
    brief = pf.infer(field, "fixed", tol=0.0, budget=1e-6)
    assert brief.status in (pf.Status.BUDGET, pf.Status.NO_FEASIBLE)


def test_hard_fields_follow_the_seed() -> None:
    field = parity(12, 9, 2)
    a, b = (pf.infer(field, "fixed", seed=4, init="random") for _ in range(2))
    np.testing.assert_array_equal(a.q, b.q)


def test_evidence_can_make_tables_soft() -> None:
    field = pf.Field(3, n_labels=2, terms=[pf.Pairwise([[0, 1]], [[0.0, INF], [1.0, 2.0]])])
    assert field.lower().hard
    assert not field.condition({0: 1}).lower().hard
    decided = pf.infer(field.condition({0: 0}))
    assert decided.marginals[1].tolist() == [1.0, 0.0]
    assert decided.free_energy == pytest.approx(-np.log(2))


# ---- the parts ----


def session_of(field: pf.Field) -> Session:
    request = Request(make_rule("fixed"))
    return request.open(field)


def watch(lowered: Lowered) -> hard.Deadline:
    limits = Limits(1000)
    return hard.Deadline(Loop(limits), limits, np.zeros(lowered.layout.size))


def test_backtracking_finds_what_exists() -> None:
    field = coloring(grid_edges(3, 3), 9, 2)
    lowered = field.lower()
    q = np.full(lowered.layout.size, 0.5)
    labels, _ = hard.backtrack(lowered, q, watch(lowered))
    assert np.isfinite(lowered.energy(labels))
    impossible = complete(4, 3).lower()
    found = hard.backtrack(impossible, np.full(12, 1 / 3), watch(impossible))
    assert found == (None, True)  # and that is a proof


def test_backtracking_prefers_likely_labels() -> None:
    lowered = coloring([[0, 1]], 2, 3).lower()
    q = np.array([0.1, 0.2, 0.7, 0.1, 0.6, 0.3])
    labels, _ = hard.backtrack(lowered, q, watch(lowered))
    assert labels.tolist() == [2, 1]


def test_backtracking_respects_its_deadline() -> None:
    lowered = complete(4, 4).lower()
    over = watch(lowered)
    over.seconds = 0.0
    assert hard.backtrack(lowered, np.full(16, 0.25), over) == (None, False)


def test_search_repairs_bad_marginals() -> None:
    field = coloring(grid_edges(4, 4), 16, 2)
    finder = hard.Finder(session_of(field))
    finder.q = np.tile([1.0, 0.0], 16)
    assert finder.search(None) == (None, False)
    assert finder.labels is not None and np.isfinite(field.energy(finder.labels))


def test_the_finder_keeps_the_labelling_of_lower_energy() -> None:
    field = coloring([[0, 1]], 2, 2).add(pf.Unary([[0.0, 5.0]], [0]))
    finder = hard.Finder(session_of(field))
    finder.energy = np.inf  # forget the rounding of the start
    for q, energy in (([0, 1, 1, 0], 5.0), ([1, 0, 0, 1], 0.0), ([0, 1, 1, 0], 0.0)):
        finder.steep.descend = lambda q, sweeps: q  # type: ignore[method-assign]
        assert finder.round(np.array(q, dtype=float))
        assert field.energy(finder.labels) == energy


def test_rounding_falls_back_on_the_feasible_labelling() -> None:
    """A cycle in two colors where no single change helps: two edges have equal ends."""
    ring = [[k, (k + 1) % 6] for k in range(6)]
    result = pf.infer(coloring(ring, 6, 2), "sweep")
    assert result.feasible is not None
    stuck = one_hot(result.field.layout.offsets, np.array([0, 0, 1, 0, 1, 1])).astype(float)
    alone = replace(result, q=stuck, feasible=None)
    assert alone.map_energy == INF
    both = replace(result, q=stuck)
    assert both.map_labels.tolist() == result.feasible.tolist() and both.map_energy == 0.0


# ---- limits in every stage ----


def hard_coloring(seed: int = 0) -> pf.Field:
    """3-coloring near the threshold: a feasible labelling isn't found at once, or at all."""
    rng = np.random.default_rng(seed)
    edges = np.sort(rng.integers(200, size=(900, 2)), axis=1)
    edges = np.unique(edges[edges[:, 0] < edges[:, 1]], axis=0)
    return coloring(rng.permutation(edges)[:466], 200, 3)


def test_the_search_keeps_to_the_budget() -> None:
    """5.2 s for 0.1 where the search had a clock of its own."""
    with CountedClock(update=1e-5, look=1e-3) as clock:
        result = pf.infer(hard_coloring(), "fixed", budget=0.1)
    assert 0.1 <= clock.now < 0.3
    assert result.seconds < 0.2
    assert result.status in (pf.Status.NO_FEASIBLE, pf.Status.BUDGET)


def test_a_callback_stops_the_search() -> None:
    seen: list[pf.Progress] = []

    def stop(progress: pf.Progress) -> bool:
        seen.append(progress)
        return progress.seconds > 0.3

    with CountedClock(update=1e-5, look=1e-3):
        result = pf.infer(hard_coloring(), "fixed", callback=stop)
    assert result.status is pf.Status.STOPPED
    assert result.log_z_bound == -INF or np.isfinite(result.log_z_bound)
    assert 0.3 < seen[-1].seconds < 0.5


@pytest.mark.parametrize("stage", ["penalize", "round", "backtrack", "Loop"])
def test_ctrl_c_in_every_stage(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    target = hard.Finder if stage == "round" else hard
    monkeypatch.setattr(target, stage, interrupt)  # "Loop": sweeps in another order
    field = coloring(grid_edges(4, 4), 16, 2) if stage == "Loop" else complete(4, 3)
    assert pf.infer(field, "fixed").status is pf.Status.INTERRUPTED


@pytest.mark.parametrize("rule", ["auto", "anneal", "restarts", "portfolio"])
@pytest.mark.parametrize("limits", [{}, {"max_iters": 400}], ids=str)
def test_converged_needs_a_decision_where_a_minimum_is_promised(
    rule: str, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    field = pf.Field(6, 2).add(pf.Ising([[0, 1], [1, 2], [3, 4], [4, 5]], 3.0))
    field.add(pf.Factor([[0, 3]], [[0.0, 1.0], [1.0, np.inf]]))
    assert pf.infer(field, rule, **limits).status is pf.Status.CONVERGED
    undecided = Judgement(Verdict.UNDECIDED)
    monkeypatch.setattr("proxfield.core.solve.session.judge", lambda *a, **k: undecided)
    assert pf.infer(field, rule, **limits).status is pf.Status.MAX_ITERS


def test_ctrl_c_between_orders_and_search_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another order of sweeps found a lower F than the first; auto's search hasn't begun."""
    rng = np.random.default_rng(0)
    edges = grid_edges(6, 6)
    field = pf.Field(36, 2).add(pf.Ising(edges, 2 * rng.normal(size=len(edges))))
    field.add(pf.Factor(edges[:30], [[0.0, 1.0], [1.0, np.inf]]))

    def interrupt(self: Any, start: Any, f: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("proxfield.core.solve.search.minimum.MinimumSearch.run", interrupt)
    result = pf.infer(field)
    lowest = result.trace.free_energy[np.isfinite(result.trace.free_energy)].min()
    assert result.status is pf.Status.INTERRUPTED
    assert result.free_energy <= lowest + 1e-9  # other orders aren't in the trace
