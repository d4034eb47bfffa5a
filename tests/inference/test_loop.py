"""The loop by itself: limits over stages, and what is remembered between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import grid_edges
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Batch, Program, Rows, State
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.solve.history import Limits
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.loop import Loop, make_updates, run_together
from proxfield.core.solve.request import Request, choose_kernels
from proxfield.core.solve.rules.registry import make_rule


def frustrated() -> pf.Field:
    edges = grid_edges(4, 4)
    weights = 3 * np.random.default_rng(0).normal(size=len(edges))
    return pf.Field(16, 2).add(pf.Ising(edges, weights)).add(pf.Unary(np.eye(16, 2)))


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, 1.0), (5.0, 1.0), (np.inf, 1.0), (0.5, 0.5)]
)
def test_limits_are_only_narrowed(seconds: float | None, expected: float) -> None:
    assert Limits(5, 0.0, 1.0).until(seconds=seconds).budget == expected
    assert Limits(5).until(seconds=seconds).budget == (seconds if seconds != np.inf else None)


def test_a_stage_keeps_to_the_limit_of_the_whole() -> None:
    lowered = frustrated().lower()
    program = compile_program(lowered)
    limits = Limits(5, 0.0)
    loop = Loop(limits)
    state, plan = program.start(np.full(32, 0.5)), Update(Kind.PROXIMAL, np.full(16, 0.1))
    assert loop.run(program, plan, state, limits.until(3)) is pf.Status.MAX_ITERS
    assert loop.iterations == 3
    assert loop.run(program, plan, state, limits.until(100)) is pf.Status.MAX_ITERS
    assert loop.iterations == 5


def test_the_best_state_of_earlier_stages_is_kept() -> None:
    limits = Limits(5, 0.0)
    loop = Loop(limits)
    good, worse = np.full(32, 0.25), np.full(32, 0.75)
    loop.remember(-3.0, good)
    loop.begin_stage()
    assert loop.best is None
    loop.remember(-2.0, worse)
    loop.begin_stage()
    assert loop.earlier is not None and loop.earlier.free_energy == -3.0
    assert loop.earlier.recover()[1] is good


def frozen(field: pf.Field) -> tuple[Any, Any]:
    """A program and a plan with small steps."""
    lowered = field.lower()
    steps = np.full(lowered.layout.n_vars, 0.1)
    return compile_program(lowered, "reference"), Update(Kind.PROXIMAL, steps)


class Ticks:
    """A clock of its own: moves a little when it is read, and by so much with each update."""

    def __init__(self, update: float) -> None:
        self.time, self.update = 0.0, update

    def __call__(self) -> float:
        self.time += 1e-6
        return self.time

    def driving(self, monkeypatch: pytest.MonkeyPatch) -> Ticks:
        """The updates of the reference kernels move it from now on."""
        advance = ReferenceProgram.advance

        def timed(*args: Any) -> Rows:
            rows = advance(*args)
            self.time += self.update * len(rows)
            return rows

        monkeypatch.setattr(ReferenceProgram, "advance", timed)
        return self


def test_the_clock_is_the_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    program, plan = frozen(frustrated())
    state = program.start(np.full(32, 0.5))
    loop = Loop(Limits(10**6, 0.0, 1.0), now=Ticks(0.1).driving(monkeypatch))
    assert loop.run(program, plan, state) is pf.Status.BUDGET
    assert 8 <= loop.iterations <= 10
    assert 0.8 < loop.elapsed <= 1.0


def test_a_request_hands_its_clock_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that is timed nothing asks another clock."""
    ticks = Ticks(0.01).driving(monkeypatch)
    place = choose_kernels("cpu", "reference", None)
    for rule in ("fixed", "sweep", "anneal"):
        request = Request(make_rule(rule), *place, now=ticks, tol=0.0, budget=0.1)
        field = frustrated()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.perf_counter", never)
            result = infer_one(field, request, request.open(field))
        assert result.status is pf.Status.BUDGET, rule
        assert 0.05 < result.seconds <= 0.1, rule
        assert 5 <= result.iterations <= 10, rule


def never() -> float:
    raise AssertionError("another clock")


class Pair(Batch[Update, list[State]]):
    """Two fields by two programs, as a batch."""

    fields = 2

    def __init__(self, *programs: Program) -> None:
        self.programs, self.moved = programs, [0, 0]

    def advance_each(
        self, state: Any, plan: Any, n: int, tol: float, trace: bool, wanted: Any
    ) -> list[Rows]:
        out = [Rows(np.zeros(0), np.zeros(0)) for _ in range(2)]
        for k in np.flatnonzero(wanted):
            out[k] = self.programs[k].advance(state[k], plan, n, tol, trace)
            self.moved[k] += len(out[k])
        return out

    def free_energy_each(self, state: Any) -> Any:
        return np.array([p.free_energy(s) for p, s in zip(self.programs, state, strict=True)])

    def marginals_each(self, state: Any) -> Any:
        return [p.marginals(s) for p, s in zip(self.programs, state, strict=True)]

    def residual_each(self, state: Any) -> Any:
        found = [p.residual(s) for p, s in zip(self.programs, state, strict=True)]
        return tuple(np.array(x) for x in zip(*found, strict=True))

    def copy(self, state: Any) -> Any:
        return [p.copy(s) for p, s in zip(self.programs, state, strict=True)]

    def warm_up(self, plan: Any, state: Any, trace: bool) -> None:
        pass


@pytest.mark.parametrize("kind", [Kind.PROXIMAL, Kind.MOMENTUM])
def test_fields_that_iterate_together_end_as_if_alone(kind: Kind) -> None:
    easy = pf.Field(16, 2).add(pf.Unary(np.eye(16, 2)))
    hard = frustrated()
    programs = [compile_program(f.lower(), "reference") for f in (easy, hard)]
    plan = Update(kind, np.full(16, 0.3), gamma1=0.5)
    starts = [np.full(32, 0.5), np.tile([0.3, 0.7], 16)]
    alone = []
    for program, q in zip(programs, starts, strict=True):
        loop = Loop(Limits(2000))
        state = program.start(q)
        status = loop.run(program, plan, state, keep_best=True)
        alone.append((status, loop.iterations, loop.last, program.marginals(state), loop))
    pair, loops = Pair(*programs), [Loop(Limits(2000)), Loop(Limits(2000))]
    states = [p.start(q) for p, q in zip(programs, starts, strict=True)]
    found = run_together(loops, pair, plan, states, keep_best=True)
    for k, (status, iterations, f, q, loop) in enumerate(alone):
        assert (found[k], loops[k].iterations, loops[k].last) == (status, iterations, f)
        np.testing.assert_array_equal(programs[k].marginals(states[k]), q)
        mine, theirs = loops[k].make_trace(), loop.make_trace()
        np.testing.assert_array_equal(mine.free_energy, theirs.free_energy)
        assert pair.moved[k] == iterations  # one that has stopped stays
    assert alone[0][1] != alone[1][1]


def test_the_limits_of_fields_that_iterate_together_are_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, plan = frozen(frustrated())
    ticks = Ticks(0.02).driving(monkeypatch)
    loops = [Loop(limits, now=ticks) for limits in (Limits(3, 0.0), Limits(50, 0.0, 0.5))]
    states = [program.start(np.full(32, 0.5)) for _ in range(2)]
    found = run_together(loops, Pair(program, program), plan, states)
    assert found == [pf.Status.MAX_ITERS, pf.Status.BUDGET]
    assert loops[0].iterations == 3 < loops[1].iterations < 50
    assert loops[0].elapsed < loops[1].elapsed


def test_updates_alone_stop_at_a_small_change_and_raise_ctrl_c() -> None:
    program, plan = frozen(frustrated())
    start = np.tile([0.3, 0.7], 16)
    states = [program.start(start), program.start(start)]
    make_updates(program, plan, states[0], 1000, 1e-3)
    changes = program.advance(states[1], plan, 1000, 1e-3, trace=False).change
    assert changes[-1] <= 1e-3 < changes[-2]
    np.testing.assert_array_equal(*map(program.marginals, states))

    class Stopped(Pair):
        def advance_each(self, *args: Any) -> list[Rows]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_updates(Stopped(program, program), plan, states, 5)
