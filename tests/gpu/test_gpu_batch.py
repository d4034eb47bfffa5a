"""Many fields together: each as if it were alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import FINITE_TABLES
from triton_setup import direct, indirect, run_interpreted

from proxfield.core.engines.plan import Kind, Update
from proxfield.core.lowering.lowered import Lowered

BATCHES = {
    "binary": ("ising-grid", "inf-unary-binary", "ising-scattered", "binary-evidence"),
    "mixed": ("potts-mixed-cardinalities", "ising-grid", "inf-unary", "all-terms"),
}


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def fields_of(name: str) -> list[Lowered]:
    return [FINITE_TABLES[each].field().lower() for each in BATCHES[name]]


def starts_of(fields: list[Lowered]) -> list[Any]:
    rng = np.random.default_rng(5)
    return [low.layout.normalize(rng.random(low.layout.size) + 0.1) for low in fields]


def plan_of(fields: list[Lowered], adaptive: bool) -> Update:
    n = sum(low.layout.n_vars for low in fields)
    steps = np.random.default_rng(6).uniform(0.4, 0.9, n)
    return Update(Kind.PROXIMAL, steps, adaptive=adaptive, fallback=np.full(n, 0.3))


@direct
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    ("name", "form"),
    [("binary", "small"), ("binary", "slices"), ("mixed", "small"), ("mixed", "tiles")],
)
def test_each_field_as_if_alone(name: str, form: str, adaptive: bool) -> None:
    from proxfield.core.engines.triton.batch import BatchProgram

    fields = fields_of(name)
    starts, plan = starts_of(fields), plan_of(fields, adaptive)
    batch = BatchProgram(fields, "float64", form=form)
    state = batch.start(starts)
    rows = batch.advance_each(state, plan, 9, 0.2, True)
    assert len({len(r) for r in rows}) > 1  # each stops by itself
    q, f = batch.marginals_each(state), batch.free_energy_each(state)
    first = 0
    for k, low in enumerate(fields):
        mine = slice(first, first + low.layout.n_vars)
        first = mine.stop
        own = Update(
            Kind.PROXIMAL,
            plan.step[mine],
            adaptive=adaptive,
            fallback=np.full(low.layout.n_vars, 0.3),
        )
        alone = BatchProgram([low], "float64")
        there = alone.start([starts[k]])
        expected = alone.advance_each(there, own, 9, 0.2, True)[0]
        np.testing.assert_allclose(rows[k].free_energy, expected.free_energy, atol=1e-10)
        np.testing.assert_allclose(rows[k].change, expected.change, atol=1e-10)
        assert rows[k].period2 == pytest.approx(expected.period2, abs=1e-10)
        np.testing.assert_allclose(q[k], alone.marginals_each(there)[0], atol=1e-10)
        assert f[k] == pytest.approx(alone.free_energy_each(there)[0])


@direct
def test_states_do_not_share() -> None:
    """A slot that comes back from a state gone is as good as new."""
    from proxfield.core.engines.triton.batch import BatchProgram

    fields = fields_of("binary")
    batch = BatchProgram(fields, "float64")
    n = sum(low.layout.n_vars for low in fields)
    plan = Update(Kind.ADAM, np.full(n, 0.5), 0.9, 0.99, 1e-3)
    ends = []
    for _ in range(3):
        state = batch.start(starts_of(fields))
        rows = batch.advance_each(state, plan, 4, 0.0, True)
        ends.append(np.concatenate([r.free_energy for r in rows]))
        del state
    assert len(batch._pool) == 1
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])
