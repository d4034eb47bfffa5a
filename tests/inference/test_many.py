"""Many fields in one call: as if each had been given to `infer` by itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import repulsive_grid
from proxfield.core.solve.request import Request
from proxfield.generate import grid

INF = np.inf


def impossible() -> pf.Field:
    """A variable without a possible label."""
    return pf.Field(1, n_labels=2).add(pf.Unary([[0.0, INF]])).add(pf.Unary([[INF, 0.0]]))


def forbidding() -> pf.Field:
    """Two variables that must agree."""
    return pf.Field(2, n_labels=2).add(pf.Pairwise([[0, 1]], [[0.0, INF], [INF, 0.5]]))


def some_fields() -> list[pf.Field]:
    """Of several kinds and sizes."""
    potts = pf.Field([2, 3, 3]).add(pf.Potts([[0, 1], [1, 2]], 0.7))
    dense = pf.Field(4, n_labels=2).add(pf.Gaussian(np.arange(4.0)[:, None], weight=0.5))
    fixed = pf.Field(2, n_labels=2).add(pf.Unary([[0.0, 1.0]], [1])).condition({0: 1, 1: 0})
    return [grid(4, 5, seed=2), impossible(), potts, forbidding(), dense, fixed, repulsive_grid()]


def assert_same(one: pf.Result, other: pf.Result) -> None:
    assert one.field == other.field
    assert (one.status, one.iterations, one.rule) == (other.status, other.iterations, other.rule)
    assert one.params == other.params
    np.testing.assert_allclose(one.q, other.q, atol=1e-10)
    np.testing.assert_allclose(one.trace.free_energy, other.trace.free_energy, atol=1e-10)
    assert one.free_energy == pytest.approx(other.free_energy)


@pytest.mark.parametrize("rule", ["fixed", "sweep", "auto"])
def test_as_one_by_one(rule: str, kernels: str) -> None:
    fields = some_fields()
    if rule == "sweep":
        del fields[4]  # not with Gaussian terms
    options: dict[str, Any] = {"kernels": kernels, "dtype": "float64", "init": "random"}
    options.update(max_iters=40, seed=3)
    results = pf.infer_many(fields, rule, **options)
    for field, result in zip(fields, results, strict=True):
        assert_same(result, pf.infer(field, rule, **options))
    assert results[1].status is pf.Status.INFEASIBLE


def test_no_fields() -> None:
    assert pf.infer_many([]) == []
    assert pf.infer_many(iter(())) == []


def test_parameters_and_starts() -> None:
    fields = [grid(3, 3, seed=s) for s in range(3)]
    first = pf.infer_many(iter(fields), "adhoc", eta=0.3, max_iters=2, trace=False)
    assert [r.params for r in first] == [{"eta": 0.3}] * 3
    assert [r.iterations for r in first] == [2] * 3
    again = pf.infer_many(fields, "adhoc", eta=0.3, max_iters=2, init=first)
    for field, start, result in zip(fields, first, again, strict=True):
        assert_same(result, pf.infer(field, "adhoc", eta=0.3, max_iters=2, init=start))
    mixed = pf.infer_many(fields, init=["uniform", np.full((9, 2), 0.5), first[2]])
    assert all(r.converged for r in mixed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "nonsense"}, "unknown rule"),
        ({"tol": -1}, "tol=-1"),
        ({"budget": 0}, "budget=0"),
        ({"seed": -1}, "seed=-1"),
        ({"threads": 0}, "threads=0"),
        ({"kernels": "tpu"}, "unknown kernels 'tpu'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"dtype": "float16"}, "unknown dtype"),
        ({"gamma": 1}, "fixed has no parameter 'gamma'"),
        ({"init": "middle"}, "init='middle'"),
        ({"init": ["uniform"]}, "1 starts for 2 fields"),
        ({"init": np.full((4, 2), 0.5)}, "a list with one start for each"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str) -> None:
    fields = [grid(2, 2), grid(2, 2)]
    with pytest.raises(pf.InputError, match=words) as caught:
        pf.infer_many(fields, **options)
    assert "\n" not in str(caught.value)


def test_what_are_not_fields() -> None:
    with pytest.raises(pf.InputError, match="not a Field; for one there is infer"):
        pf.infer_many(grid(2, 2))  # type: ignore[arg-type]
    with pytest.raises(pf.InputError, match="number 1 is int"):
        pf.infer_many([grid(2, 2), 3])  # type: ignore[list-item]


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is kept, what isn't begun isn't begun."""
    from proxfield.core.engines.reference import ReferenceProgram

    advance = ReferenceProgram.advance
    calls: dict[int, int] = {}

    def hit(self: Any, *args: Any) -> Any:
        here = id(self.lowered)
        calls[here] = calls.get(here, 0) + 1
        if len(calls) == 2 and calls[here] == 3:
            raise KeyboardInterrupt
        return advance(self, *args)

    monkeypatch.setattr(ReferenceProgram, "advance", hit)
    fields = [repulsive_grid(), repulsive_grid(), repulsive_grid(), impossible()]
    results = pf.infer_many(fields, tol=0, max_iters=30, kernels="reference")
    statuses = [r.status.name for r in results]
    assert statuses == ["MAX_ITERS", "INTERRUPTED", "INTERRUPTED", "INFEASIBLE"]
    assert 0 < results[1].iterations < 30
    assert results[2].iterations == 0 and results[2].free_energy == INF
    np.testing.assert_array_equal(results[2].q, 0.5)


def test_the_torch_layer_is_an_attribute() -> None:
    """It is there without importing PyTorch."""
    code = (
        "import sys, proxfield as pf; before = 'proxfield.torch' in sys.modules;"
        "print(before, pf.torch.__name__, 'torch' in sys.modules, hasattr(pf, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "proxfield.torch", "False", "False"], done.stderr


def test_ctrl_c_while_a_field_is_lowered_keeps_the_other_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = [grid(3, 3, strength=s, seed=1) for s in (0.5, 1.0, 2.0)]
    real, calls = Request.open, [0]

    def interrupted_once(self: Any, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(Request, "open", interrupted_once)
    results = pf.infer_many(fields)
    assert [r.status.name for r in results] == ["CONVERGED", "INTERRUPTED", "INTERRUPTED"]
