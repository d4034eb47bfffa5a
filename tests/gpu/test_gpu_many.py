"""`infer_many` on a GPU: fields that iterate together end as they do alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import FINITE_TABLES
from triton_setup import direct, indirect, run_interpreted

import proxfield as pf
from proxfield.generate import grid

INF = np.inf
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("fixed", {}),
    "local": ("fixed", {"step": "certified-local"}),
    "adaptive": ("adaptive", {}),
    "full-parallel": ("full-parallel", {}),
    "adhoc": ("adhoc", {"eta": 0.4}),
    "momentum": ("momentum", {"gamma": 0.6}),
    "adam": ("adam", {"step": 0.3, "epsilon": 0.1}),
}


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are made from now on."""
    from proxfield.core.solve import many

    sizes: list[int] = []
    solve = many._solve_together

    def counted(members: list[Any], request: Any) -> Any:
        sizes.append(len(members))
        return solve(members, request)

    monkeypatch.setattr(many, "_solve_together", counted)
    return sizes


def impossible() -> pf.Field:
    field = pf.Field(3, n_labels=2).add(pf.Potts([[0, 1], [1, 2]], 1.0))
    return field.add(pf.Unary([[0.0, INF]], [0])).add(pf.Unary([[INF, 0.0]], [0]))


def forbidding() -> pf.Field:
    return pf.Field(2, n_labels=2).add(pf.Pairwise([[0, 1]], [[0.0, INF], [INF, 0.5]]))


def observed() -> pf.Field:
    """All is known: nothing is left to infer."""
    return pf.Field(2, n_labels=2).add(pf.Unary([[0.0, 1.0]], [1])).condition({0: 1, 1: 0})


def dense() -> pf.Field:
    return pf.Field(4, n_labels=2).add(pf.Gaussian(np.arange(4.0)[:, None], weight=0.5))


def examples(*names: str) -> list[pf.Field]:
    return [FINITE_TABLES[name].field() for name in names]


def assert_same(one: pf.Result, other: pf.Result, atol: float = 1e-8) -> None:
    assert one.field == other.field
    assert (one.status, one.iterations) == (other.status, other.iterations)
    assert (one.rule, one.params) == (other.rule, other.params)
    np.testing.assert_allclose(one.q, other.q, atol=atol)
    assert one.free_energy == pytest.approx(other.free_energy, abs=atol)
    np.testing.assert_array_equal(one.trace.iteration, other.trace.iteration)
    np.testing.assert_allclose(one.trace.free_energy, other.trace.free_energy, atol=atol)
    np.testing.assert_allclose(one.trace.change, other.trace.change, atol=atol)
    assert (np.diff(one.trace.seconds) >= 0).all()


@direct
@pytest.mark.parametrize("name", RULES)
def test_as_alone(name: str, batches: list[int]) -> None:
    """Sizes and kinds mixed; some stop early, some at the limit."""
    rule, params = RULES[name]
    fields = [
        *examples("ising-grid", "potts-mixed-cardinalities", "inf-unary-binary"),
        pf.Field(2, n_labels=2).add(pf.Unary([[0.0, 1.0], [0.5, 0.0]])),  # done early
        *examples("inf-unary"),
    ]
    options: dict[str, Any] = {"max_iters": 6, "tol": 1e-2, "dtype": "float64", "init": "random"}
    results = pf.infer_many(fields, rule, device="cuda", **options, **params)
    assert sorted(batches) == [2, 3]
    for field, result in zip(fields, results, strict=True):
        assert_same(result, pf.infer(field, rule, device="cuda", **options, **params))
    if rule in ("fixed", "adaptive", "full-parallel"):
        assert len({r.iterations for r in results}) > 1
        assert len({r.status for r in results}) > 1


@direct
def test_float32_is_the_default(batches: list[int]) -> None:
    fields = [grid(3, 3, strength=2.0, seed=s) for s in range(3)]
    results = pf.infer_many(fields, device="cuda", max_iters=9, tol=1e-3)
    assert batches == [3]
    for field, result in zip(fields, results, strict=True):
        alone = pf.infer(field, "fixed", device="cuda", max_iters=9, tol=1e-3)
        assert_same(result, alone, atol=2e-5)
        assert result.free_energy == pytest.approx(field.free_energy(result.q), abs=1e-12)


@direct
def test_what_can_not_iterate_together(batches: list[int]) -> None:
    """Is done one after another, and in its place."""
    fields = [impossible(), grid(2, 3), dense(), observed(), forbidding(), grid(3, 2)]
    results = pf.infer_many(fields, device="cuda", max_iters=6, dtype="float64")
    assert batches == [2]
    for field, result in zip(fields, results, strict=True):
        alone = pf.infer(field, "fixed", device="cuda", max_iters=6, dtype="float64")
        assert_same(result, alone)
    assert results[0].status is pf.Status.INFEASIBLE
    assert results[0].free_energy == INF


@direct
@pytest.mark.parametrize("rule", ["sweep", "auto"])
def test_other_rules(rule: str, batches: list[int]) -> None:
    fields = [grid(2, 2, seed=s) for s in range(2)]
    results = pf.infer_many(fields, rule, device="cuda", max_iters=4, dtype="float64")
    assert batches == []
    for field, result in zip(fields, results, strict=True):
        alone = pf.infer(field, rule, device="cuda", max_iters=4, dtype="float64")
        assert result.status is alone.status
        np.testing.assert_allclose(result.q, alone.q, atol=1e-8)


@direct
def test_no_fields(batches: list[int]) -> None:
    assert pf.infer_many([], device="cuda") == []
    assert batches == []


@direct
def test_no_iterations(batches: list[int]) -> None:
    fields = [grid(2, 2, seed=s) for s in range(2)]
    for result in pf.infer_many(fields, device="cuda", max_iters=0, trace=False):
        assert result.status is pf.Status.MAX_ITERS
        assert len(result.trace) == 1
        np.testing.assert_array_equal(result.q, 0.5)
    assert batches == [2]


@direct
def test_large_batches_are_cut(batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.solve import many

    fields = [grid(2, n + 1, seed=n) for n in range(5)]
    monkeypatch.setattr(many, "MAX_FIELDS", 2)
    results = pf.infer_many(fields, device="cuda", max_iters=3)
    assert batches == [2, 2, 1]
    monkeypatch.setattr(many, "MAX_FIELDS", 10)
    monkeypatch.setattr(many, "MAX_ENTRIES", 16)  # 4, 8, 12, 16 and 20 entries
    assert [r.field for r in pf.infer_many(fields, device="cuda", max_iters=3)] == fields
    assert batches[3:] == [2, 1, 1, 1]
    monkeypatch.setattr(many, "MIN_ENTRIES_ALONE", 16)
    again = pf.infer_many(fields, device="cuda", max_iters=3)
    assert batches[7:] == [2, 1]
    for one, other in zip(results, again, strict=True):
        assert_same(one, other, atol=2e-5)


class Clock:
    """In place of the module `time`: updates of batches take a millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from proxfield.core.engines.triton.batch import BatchProgram

        self.now, advance = 0.0, BatchProgram.advance_each

        def timed(*args: Any) -> Any:
            rows = advance(*args)
            self.now += 1e-3 * max(len(r) for r in rows)
            return rows

        monkeypatch.setattr(BatchProgram, "advance_each", timed)
        monkeypatch.setattr("proxfield.core.solve.request.time", self)

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now


@direct
def test_budget(batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    pair = pf.Field(2, n_labels=2).add(pf.Ising([[0, 1]], 3.0)).add(pf.Unary([[0.0, 0.1]], [0]))
    fields = [pf.Field(1, 2).add(pf.Unary([[0.0, 1.0]])), pair]  # it oscillates, always
    options: dict[str, Any] = {"init": "random", "seed": 1}
    quick, slow = pf.infer_many(fields, "full-parallel", device="cuda", budget=0.2, **options)
    assert batches == [2]
    assert quick.status is pf.Status.CONVERGED
    assert slow.status is pf.Status.OSCILLATING  # at the end of its budget
    assert quick.iterations < slow.iterations == len(slow.trace) - 1
    assert 180 <= slow.iterations <= 200
    assert slow.trace.seconds[-1] <= slow.seconds <= 0.2
    assert quick.seconds < 0.1


@direct
def test_ctrl_c(batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.engines.triton.batch import BatchProgram

    advance = BatchProgram.advance_each
    calls: list[int] = []

    def hit(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:  # the first warms up
            raise KeyboardInterrupt
        return advance(self, *args)

    monkeypatch.setattr(BatchProgram, "advance_each", hit)
    done = pf.Field(1, 3).add(pf.Unary([[0.0, 1.0, 0.3]]))
    potts = pf.Field(2, 3).add(pf.Potts([[0, 1]], 1.0)).add(pf.Unary([[0.0, 1.0, 2.0]], [0]))
    fields = [dense(), potts, grid(2, 2), done]
    results = pf.infer_many(fields, "full-parallel", device="cuda", tol=1e-9, dtype="float64")
    assert batches == [2]  # the grid is of a later batch, the dense field of none
    assert [r.status.name for r in results] == ["INTERRUPTED"] * 3 + ["CONVERGED"]
    assert [r.iterations for r in results] == [0, 4, 0, 2]
    assert [r.free_energy < INF for r in results] == [False, True, False, True]
    assert results[1].free_energy == pytest.approx(potts.free_energy(results[1].q), abs=1e-9)


@direct
def test_divergence_stays_with_its_field(
    batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field whose numbers run away ends at its best state, the others don't notice."""
    from proxfield.core.engines.triton.batch import BatchProgram

    advance = BatchProgram.advance_each
    calls: list[int] = []

    def spoiled(self: Any, *args: Any) -> Any:
        rows = advance(self, *args)
        calls.append(1)
        if len(calls) == 3:  # the first warms up
            rows[0].change[:] = rows[0].free_energy[1:] = np.nan
        return rows

    monkeypatch.setattr(BatchProgram, "advance_each", spoiled)
    fields = [grid(3, 3, strength=4.0, seed=s) for s in range(2)]
    options: dict[str, Any] = {"max_iters": 12, "tol": 0, "dtype": "float64", "init": "random"}
    bad, good = pf.infer_many(fields, "momentum", device="cuda", **options)
    assert batches == [2]
    assert bad.status is pf.Status.DIVERGED
    assert bad.iterations == 4 and np.isfinite(bad.trace.free_energy).all()
    assert bad.free_energy < bad.trace.free_energy[0] - 0.01  # of a look, not of the start
    assert bad.free_energy == pytest.approx(bad.field.free_energy(bad.q), abs=1e-8)
    monkeypatch.undo()
    assert_same(good, pf.infer(fields[1], "momentum", device="cuda", **options))
