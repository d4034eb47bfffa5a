"""Teams of programs that share a binary field: against the reference, and against one program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_gpu_program import EXACT, assert_rows, assert_same, marginals_of, plan_of
from triton_setup import direct, indirect, run_interpreted, torch

import proxfield as pf
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.unary import Unary
from proxfield.generate import grid

PART = 32
"""Variables of a program here: small, so that small fields are shared."""


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def grids(*sides: int, hard: bool = False) -> list[Lowered]:
    """Grids with these sides; with some impossible labels, if hard."""
    out = []
    for k, side in enumerate(sides):
        field = grid(side, side, strength=2.0, wrap=bool(k % 2), seed=k)
        if hard:
            energies = np.zeros((field.n_vars, 2))
            energies[3, 0] = energies[5, 1] = np.inf
            field.add(Unary(energies))
        out.append(field.lower())
    return out


def batch_of(
    fields: list[Lowered], dtype: str = "float64", part: int = PART, form: str | None = "small"
) -> Any:
    from proxfield.core.engines.triton.batch import BatchProgram

    batch = BatchProgram(fields, dtype, form=form)
    if form is None:
        return batch
    batch.pack.share(part)
    assert batch.pack.shared == (2 * part < max(low.layout.n_vars for low in fields))
    return batch


def steps_of(plan: Update, mine: slice) -> Update:
    fallback = None if plan.fallback is None else plan.fallback[mine]
    return Update(
        plan.kind, plan.step[mine], plan.gamma1, plan.gamma2, plan.epsilon, plan.adaptive,
        fallback, plan.inverse_temperature,
    )  # fmt: skip


def check(
    fields: list[Lowered],
    *plans: Update,
    dtype: str = "float64",
    trace: bool = True,
    updates: int = 3,
    tol: float = 1e-12,
    form: str | None = "small",
) -> list[NDArray[np.float64]]:
    """Plan after plan, and each field against the reference; returns the marginals."""
    batch = batch_of(fields, dtype, form=form)
    starts = [marginals_of(low, k) for k, low in enumerate(fields)]
    state = batch.start(starts)
    slow = [ReferenceProgram(low, dtype) for low in fields]
    theirs = [p.start(q) for p, q in zip(slow, starts, strict=True)]
    for plan in plans:
        found = batch.advance_each(state, plan, updates, tol, trace)
        for k in range(len(fields)):
            a, b = batch.joined.bounds[k : k + 2]
            own = steps_of(plan, slice(a, b))
            expected = slow[k].advance(theirs[k], own, updates, tol, trace)
            if trace:
                assert_rows(found[k], expected, EXACT[dtype])
            else:
                assert_same(found[k].change, expected.change, EXACT[dtype])
                assert np.isnan(found[k].free_energy).all()
    q: list[NDArray[np.float64]] = batch.marginals_each(state)
    for k, low in enumerate(fields):
        assert low.layout.size == len(q[k])
        assert_same(q[k], slow[k].marginals(theirs[k]), EXACT[dtype])
    return q


@direct
@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("kind", Kind)
def test_every_kind(kind: Kind, trace: bool) -> None:
    fields = grids(9, 5, 7)  # teams of three, one and two
    check(fields, plan_of(kind, 81 + 25 + 49), trace=trace)


@direct
@pytest.mark.parametrize("kind", [Kind.PROXIMAL, Kind.MOMENTUM, Kind.ADAM])
def test_single_precision_and_one_step_for_all(kind: Kind) -> None:
    fields = grids(9, 8)
    check(fields, plan_of(kind, 81 + 64, flat=True), dtype="float32")


@direct
def test_impossible_labels() -> None:
    fields = grids(9, 6, hard=True)
    check(fields, plan_of(Kind.PROXIMAL, 81 + 36), plan_of(Kind.MEAN, 81 + 36))


@direct
def test_in_turn_with_adaptive_steps() -> None:
    """Some updates are made again, by all members; each rule goes on where the other stopped."""
    n = 81 + 36
    again = Update(Kind.PROXIMAL, np.full(n, 0.95), adaptive=True, fallback=np.full(n, 0.2))
    check(grids(9, 6), plan_of(Kind.PROXIMAL, n), again, plan_of(Kind.MOMENTUM, n), again)


@direct
def test_each_field_stops_by_itself() -> None:
    fields = grids(9, 3, 6)
    plan = plan_of(Kind.PROXIMAL, 81 + 9 + 36)
    batch = batch_of(fields)
    state = batch.start([marginals_of(low, k) for k, low in enumerate(fields)])
    counts = [len(rows) for rows in batch.advance_each(state, plan, 30, 0.05, True)]
    assert len(set(counts)) > 1 and max(counts) < 30
    check(fields, plan, updates=30, tol=0.05)


@direct
def test_some_fields_stay_and_some_are_empty() -> None:
    empty = pf.Field(0, n_labels=2).lower()
    fields = [*grids(9), empty, *grids(7), empty]
    batch = batch_of(fields)
    starts = [marginals_of(low, k) for k, low in enumerate(fields)]
    state = batch.start(starts)
    plan = plan_of(Kind.PROXIMAL, 81 + 49)
    rows = batch.advance_each(state, plan, 7, -1.0, True, np.array([True, True, False, True]))
    assert [len(r) for r in rows][0::2] == [7, 0]
    q = batch.marginals_each(state)
    np.testing.assert_allclose(q[2], starts[2], atol=1e-12)
    slow = ReferenceProgram(fields[0], "float64")
    there = slow.start(starts[0])
    slow.advance(there, steps_of(plan, slice(0, 81)), 7, -1.0, True)
    assert_same(q[0], slow.marginals(there), EXACT["float64"])


@direct
def test_many_updates_in_several_launches_and_a_slot_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from proxfield.core.engines.triton import device_pack as module

    monkeypatch.setattr(module, "CAPACITY", 3)
    fields, plan = grids(9, 7), plan_of(Kind.MOMENTUM, 81 + 49)
    batch = batch_of(fields)
    starts = [marginals_of(low, k) for k, low in enumerate(fields)]
    found = []
    for _ in range(2):
        state = batch.start(starts)
        rows = batch.advance_each(state, plan, 8, -1.0, True)
        assert [len(r) for r in rows] == [8, 8]
        found.append([*batch.marginals_each(state), rows[0].free_energy, rows[1].change])
        del state
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    slow = ReferenceProgram(fields[1], "float64")
    there = slow.start(starts[1])
    slow.advance(there, steps_of(plan, slice(81, 130)), 8, -1.0, True)
    assert_same(found[0][1], slow.marginals(there), EXACT["float64"])


@direct
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fields_too_large_for_one_program(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are shared by default, unless there are too many programs or too many neighbors."""
    from proxfield.core.engines.triton import binary_pack
    from proxfield.core.engines.triton.batch import BatchProgram

    monkeypatch.setattr(binary_pack, "SMALL_BINARY", 60)
    monkeypatch.setattr(binary_pack, "TEAM_PARTS", (PART // 2, PART))
    monkeypatch.setattr(binary_pack, "processors", lambda device: 4)
    fields = grids(9, 5)
    batch = BatchProgram(fields, dtype)
    assert batch.pack.form == "team" and batch.pack.shared and len(batch.pack.whose) == 4
    check(fields, plan_of(Kind.ADAM, 81 + 25), dtype=dtype, form=None)
    one = BatchProgram(grids(8), dtype)  # 64 variables: two programs
    assert one.pack.form == "team" and one.pack.shared
    monkeypatch.setattr(binary_pack, "processors", lambda device: 3)
    assert BatchProgram(fields, dtype).pack.form == "slices"
    star = pf.Field(90, n_labels=2, terms=[pf.Ising([[0, k] for k in range(1, 90)], 0.1)])
    monkeypatch.setattr(binary_pack, "processors", lambda device: 9)
    assert BatchProgram([star.lower()], dtype).pack.form == "slices"


@direct
def test_two_would_wait_longer_than_one_takes() -> None:
    batch = batch_of(grids(8))
    assert not batch.pack.shared and batch.pack.team == 2


@direct
def test_too_many_programs_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then one program has each field."""
    from proxfield.core.engines.triton import binary_pack
    from proxfield.core.engines.triton.batch import BatchProgram

    monkeypatch.setattr(binary_pack, "processors", lambda device: 3)
    batch = BatchProgram(grids(9), form="small")
    batch.pack.share(PART)
    assert batch.pack.shared  # three programs
    batch = BatchProgram(grids(9, 3), form="small")
    batch.pack.share(PART)
    assert not batch.pack.shared


@pytest.mark.skipif(not (torch and torch.cuda.is_available()), reason="no CUDA device here")
@pytest.mark.parametrize("part", [256, 512, 1024, 2048])
@pytest.mark.parametrize("kind", [Kind.PROXIMAL, Kind.MOMENTUM, Kind.ADAM])
def test_thousands_of_updates_with_others_on_the_device(kind: Kind, part: int) -> None:
    """The same as by one program each, and the same bits every time."""
    fields = grids(80, 40, 20, 80)
    plan = Update(kind, np.full(6400 + 1600 + 400 + 6400, 0.05), 0.9, 0.99, 1e-3)
    updates = 3000 if kind != Kind.ADAM else 30  # which makes much of rounding
    found = []
    for size in (8192, part, part):
        batch = batch_of(fields, "float64", size)
        state = batch.start([marginals_of(low, k) for k, low in enumerate(fields)])
        rows = batch.advance_each(state, plan, updates, -1.0, True)
        assert [len(r) for r in rows] == [updates] * 4
        found.append([np.concatenate([r.free_energy for r in rows]), *batch.marginals_each(state)])
    for one, team, again in zip(*found, strict=True):
        np.testing.assert_allclose(team, one, rtol=0, atol=1e-7 * (1 + np.abs(one).max()))
        np.testing.assert_array_equal(team, again)
