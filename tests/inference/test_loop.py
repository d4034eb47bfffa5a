"""The loop by itself: limits over stages, and what is remembered between them."""

from __future__ import annotations

import numpy as np

import proxfield as pf
from helpers import grid_edges
from proxfield.backends import compile_program
from proxfield.inference.loop import Loop
from proxfield.rules.plan import Kind, Update


def frustrated() -> pf.Field:
    edges = grid_edges(4, 4)
    weights = 3 * np.random.default_rng(0).normal(size=len(edges))
    return pf.Field(16, 2).add(pf.Ising(edges, weights)).add(pf.Unary(np.eye(16, 2)))


def test_a_stage_keeps_to_the_limit_of_the_whole() -> None:
    lowered = frustrated().lower()
    program = compile_program(lowered)
    loop = Loop(5, 0.0)
    state, plan = program.start(np.full(32, 0.5)), Update(Kind.PROXIMAL, np.full(16, 0.1))
    assert loop.run(program, plan, state, limit=3) is pf.Status.MAX_ITERS
    assert loop.iterations == 3
    assert loop.run(program, plan, state, limit=100) is pf.Status.MAX_ITERS
    assert loop.iterations == 5


def test_the_best_state_of_earlier_stages_is_kept() -> None:
    loop = Loop(5, 0.0)
    good, worse = np.full(32, 0.25), np.full(32, 0.75)
    loop.remember(-3.0, good)
    loop.begin_stage()
    assert loop.best is None
    loop.remember(-2.0, worse)
    loop.begin_stage()
    assert loop.earlier is not None and loop.earlier.free_energy == -3.0
    assert loop.earlier.recover()[1] is good
