"""Before the clock starts, everything that exploring needs has run once."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import proxfield as pf
from helpers import repulsive_grid
from proxfield.core.engines import compile_program
from random_fields import random_field

LOADED = """
import sys
import numpy as np
import proxfield as pf
from proxfield.core.engines import base, compile_program
from proxfield.core.solve import loop
from proxfield.core.engines.plan import Chains

def loaded():
    "Compiled kernels that this process holds."
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("proxfield."):
            for key, value in vars(module).items():
                if hasattr(value, "signatures") and not isinstance(value, type):
                    found[name, key] = len(value.signatures)
    return found

if sys.argv[1] == "binary":
    field = pf.Field(9, n_labels=2, terms=[pf.Ising([[i, i + 1] for i in range(8)], 1.0)])
else:
    field = pf.Field([2, 3, 4], terms=[pf.Potts([[0, 1], [1, 2]], -2.0)])
"""
SCRIPT = (
    LOADED
    + """
lowered = field.lower()
program = compile_program(lowered, "cpu")
start = np.repeat(1.0 / lowered.layout.cardinalities, lowered.layout.cardinalities)
nothing = loaded()
program.warm_up_chains(start)
before = loaded()
many = Chains.make(np.stack([start] * 5), hot=3.0, sweeps=[1, 2, 3, 4, 5], drawn=True, polish=7)
for threads in (1, program.threads):
    program.explore(many, threads)
program.free_energy(program.start(start))
assert loaded() == before, "loaded after the warm-up"
assert before != nothing, "the warm-up loaded nothing"
"""
)
RULE = (
    LOADED
    + """
seen, plain = [], loop.warm_up

def noted(*args):
    plain(*args)
    seen.append(loaded())

loop.warm_up = noted
pf.infer(field, sys.argv[2], init="random", max_iters=5, tol=0.0)
new = {name for name, count in loaded().items() if count != seen[-1].get(name, 0)}
assert not new, f"loaded after the warm-up: {new}"
"""
)


def test_chains_over_other_kinds_of_terms_are_warmed_up_too() -> None:
    """They run kernels of their own: compiling them mustn't count as seconds of inference."""
    edges = np.array([[0, 1], [1, 2]])
    table = np.random.default_rng(0).normal(size=(3, 3))
    kinds = [
        pf.Potts(edges, 1.0),
        pf.Pairwise(edges, table),
        pf.Factor([[0, 1, 2]], np.random.default_rng(1).normal(size=(3, 3, 3))),
    ]
    fields = [pf.Field(3, 3, [term]) for term in kinds]
    keys = {compile_program(field.lower(), "cpu").kernel_key() for field in fields}
    assert len(keys) == 3


@pytest.mark.parametrize("kind", ["binary", "general"])
def test_exploring_loads_nothing_after_the_warm_up(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind],
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("kind", ["binary", "general"])
def test_searching_for_a_step_loads_nothing_after_the_warm_up(kind: str) -> None:
    """Its kernels are others than those that run many updates in one call."""
    command = [sys.executable, "-c", RULE, kind, "backtracking"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


def test_warm_up_leaves_the_start_alone_and_happens_once(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.core.engines import base

    monkeypatch.setattr(base.Program, "warm", set())
    program = compile_program(repulsive_grid(4).lower(), kernels)
    start = np.full(32, 0.5)
    program.warm_up_chains(start)
    assert (start == 0.5).all()

    def explored(*_: object) -> None:
        raise AssertionError("explored again")

    again = compile_program(repulsive_grid(3).lower(), kernels)
    monkeypatch.setattr(type(again), "explore", explored)
    again.warm_up_chains(np.full(18, 0.5))


def test_warm_up_with_impossible_labels(kernels: str) -> None:
    field = pf.Field(3, n_labels=2, terms=[pf.Unary([[0, np.inf], [1, 0], [0, 2]])])
    field.add(pf.Potts([[0, 1], [1, 2]], 1.0))
    program = compile_program(field.lower(), kernels)
    program.warm_up_chains(np.full(program.lowered.layout.size, 0.5))
    assert np.isfinite(pf.infer(field, kernels=kernels).free_energy)


@pytest.mark.parametrize("seed", range(6))
def test_results_without_a_budget_do_not_depend_on_the_warm_up(seed: int) -> None:
    """Trial chains draw their own numbers."""
    field, _ = random_field(seed, kinds=["unary", "potts", "pairwise"], scale=3.0)
    a, b = (pf.infer(field, max_iters=300, seed=1) for _ in range(2))
    assert a.free_energy == b.free_energy
    assert a.iterations == b.iterations
