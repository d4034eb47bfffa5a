"""The step that is found by looking at F."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import KERNELS, random_field, repulsive_grid
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import SMALLEST_STEP, Kind, Search, Update
from scenes import random_scene

CAREFUL = Search()


def rises(result: pf.Result) -> float:
    """The largest rise of F, beyond rounding."""
    f = result.trace.free_energy
    return float((np.diff(f) - 1e-10 * (1 + np.abs(f[:-1]))).max(initial=0.0))


@pytest.mark.parametrize("seed", range(40))
def test_never_rises(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for field in (random_field(rng), random_scene(rng, model=("exact", "ratio")[seed % 2])):
        for largest in (0.7, 1.0):
            result = pf.infer(
                field, "backtracking", first=largest, largest=largest, growth=2.0,
                init="random", seed=seed, max_iters=30, tol=0.0,
            )  # fmt: skip
            assert rises(result) <= 0.0


def test_ends_at_a_fixed_point_that_undamped_updates_never_reach() -> None:
    field = repulsive_grid(6, weight=3.0)
    assert pf.infer(field, "full-parallel", init="random").status is pf.Status.OSCILLATING
    result = pf.infer(field, "backtracking", init="random")
    assert result.status is pf.Status.CONVERGED
    assert rises(result) <= 0.0


def test_step_shrinks_until_f_falls_and_grows_again() -> None:
    """By hand: each trial's F decides."""
    field = repulsive_grid(4, weight=4.0)
    lowered = field.lower()
    program = compile_program(lowered, "reference")
    search = Search(first=1.0, growth=1.5, shrinkage=0.25, largest=1.0)
    rng = np.random.default_rng(1)
    q = lowered.layout.normalize(rng.random(lowered.layout.size))
    state = program.start(q)
    plan = Update(Kind.PROXIMAL, np.ones(lowered.layout.n_vars), search=search)
    theta, size = -np.log(q), 1.0
    tried = 0
    for _ in range(8):
        f = field.free_energy(q)
        residual = theta - program.gradient(q)
        while True:
            trial = theta - size * residual
            new = np.exp(-trial).reshape(-1, 2)
            new = (new / new.sum(axis=1, keepdims=True)).ravel()
            tried += 1
            if field.free_energy(new) <= f + 1e-12 * (1 + abs(f)):
                break
            size *= 0.25
        theta, q, size = trial, new, min(1.0, 1.5 * size)
        program.advance(state, plan, 1, -1.0, True)
        np.testing.assert_allclose(program.marginals(state), q, atol=1e-9)
    assert tried > 8, "no trial was rejected: the test shows nothing"


@pytest.mark.parametrize("kernels", KERNELS[1:])
@pytest.mark.parametrize("model", ["grid", "exact", "ratio"])
def test_chunks_do_not_show(kernels: str, model: str) -> None:
    """The step goes on from one call to the next."""
    rng = np.random.default_rng(5)
    field = repulsive_grid(4, weight=2.0) if model == "grid" else random_scene(rng, model=model)
    lowered = field.lower()
    program = compile_program(lowered, kernels, "float64")
    start = lowered.layout.normalize(rng.random(lowered.layout.size))
    plan = Update(
        Kind.PROXIMAL, np.full(lowered.layout.n_vars, 0.9), search=Search(0.9, 1.3, 0.5, 1.0)
    )
    whole, parts = program.start(start), program.start(start)
    rows = program.advance(whole, plan, 9, -1.0, True)
    pieces = [program.advance(parts, plan, n, -1.0, True) for n in (1, 4, 2, 2)]
    joined = np.concatenate([p.free_energy for p in pieces])
    np.testing.assert_allclose(joined, rows.free_energy, rtol=1e-12)
    np.testing.assert_allclose(program.marginals(parts), program.marginals(whole), atol=1e-12)
    reference = compile_program(lowered, "reference")
    same = reference.start(start)
    np.testing.assert_allclose(
        reference.advance(same, plan, 9, -1.0, True).free_energy, rows.free_energy, rtol=1e-9
    )


def test_a_trial_costs_one_gradient() -> None:
    """Where no trial is rejected, updates take as many evaluations as with a fixed step."""
    counts: dict[str, int] = {}

    class Counted(pf.Term):
        name = "counted"

        def validate(self, layout: pf.Layout) -> None:
            pass

        def labelling_energy(self, layout: pf.Layout, labels: Any) -> float:
            return float(labels.sum())

        def add_gradient(self, layout: pf.Layout, q: Any, out: Any) -> None:
            counts["gradient"] = counts.get("gradient", 0) + 1
            out[1::2] += 1.0

        def energy(self, layout: pf.Layout, q: Any) -> float:
            return float(q[1::2].sum())

    field = pf.Field(3, 2, [Counted()])
    program = compile_program(field.lower(), "cpu")
    state = program.start(np.full(6, 0.5))
    plan = Update(Kind.PROXIMAL, np.full(3, 0.2), search=CAREFUL)
    program.advance(state, plan, 1, -1.0, True)
    counts.clear()
    program.advance(state, plan, 10, -1.0, True)
    assert counts["gradient"] == 10


def test_stops_shrinking() -> None:
    """A term whose energy contradicts its gradient can't trap it."""

    class Wrong(pf.Term):
        name = "wrong"

        def validate(self, layout: pf.Layout) -> None:
            pass

        def labelling_energy(self, layout: pf.Layout, labels: Any) -> float:
            return -100.0 * float(labels.sum())

        def add_gradient(self, layout: pf.Layout, q: Any, out: Any) -> None:
            out[1::2] += 100.0

        def energy(self, layout: pf.Layout, q: Any) -> float:
            return -100.0 * float(q[1::2].sum())

    for kernels in ("reference", "cpu"):
        result = pf.infer(
            pf.Field(2, 2, [Wrong()]), "backtracking", kernels=kernels, max_iters=3, tol=0.0
        )
        assert result.iterations == 3
        assert SMALLEST_STEP < 1e-6


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"first": 0.0}, "first"),
        ({"first": 0.9}, "above largest"),
        ({"growth": 0.5}, "growth"),
        ({"shrinkage": 1.0}, "shrinkage"),
        ({"largest": 1.5}, "largest"),
    ],
)
def test_bad_parameters(params: dict[str, float], message: str) -> None:
    with pytest.raises(pf.InputError, match=message):
        pf.infer(pf.Field(2, 2), "backtracking", **params)


def test_cannot_be_annealed() -> None:
    with pytest.raises(pf.InputError, match="can't be annealed"):
        pf.infer(repulsive_grid(3, weight=2.0), "anneal", inner="backtracking")


def test_auto_uses_it_where_no_step_is_certified() -> None:
    field = random_scene(np.random.default_rng(2), model="ratio")
    result = pf.infer(field, max_iters=300)
    assert result.status is pf.Status.CONVERGED
    best = min(
        pf.infer(field, "backtracking", init=start, max_iters=300).free_energy
        for start in ("uniform", "unary")
    )
    assert (
        result.free_energy <= best + 1e-6
        or result.free_energy <= pf.infer(field, "backtracking", max_iters=300).free_energy + 1e-6
    )
