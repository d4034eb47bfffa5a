"""A process forked after its parent has used threads infers as its parent does."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system doesn't fork"
)

FIELDS = """
import json, multiprocessing, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork with threads
import numpy as np
import proxfield as pf
from proxfield.core.compiled import jit

def grid():
    "Large enough for threads."
    rng = np.random.default_rng(0)
    at = np.arange(330 * 330).reshape(330, 330)
    edges = np.concatenate([
        np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1),
        np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1),
    ])
    terms = [pf.Ising(edges, rng.normal(size=len(edges))), pf.Unary(rng.normal(size=(at.size, 2)))]
    return pf.Field(at.size, n_labels=2, terms=terms)

def image():
    "A dense CRF, large enough too."
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), size=(130, 140))
    return pf.DenseCRF(rng.integers(0, 256, size=(130, 140, 3)).astype(np.uint8), p)

FIELDS = {"grid": grid, "image": image}

def solve(name):
    rule, options = {"grid": ("fixed", {"step": 0.5}), "image": ("full-parallel", {})}[name]
    result = pf.infer(FIELDS[name](), rule, max_iters=5, tol=0.0, **options)
    return result.free_energy, np.asarray(result.q), jit.max_threads(), os.getpid()

def again(name):
    "Fork once more: the grandchild has no threads either."
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(solve, (name,))
"""

AFTER = """
name, = sys.argv[1:]
f, q, threads, pid = solve(name)
assert threads == 2, threads
child = multiprocessing.get_context("fork").Process(target=again, args=(name,))
child.start(); child.join()
assert child.exitcode == 0, child.exitcode
found = []
with multiprocessing.get_context("fork").Pool(2) as pool:
    found += pool.map(solve, [name, name])
assert pid not in [row[3] for row in found]
print(json.dumps({
    "threads": [row[2] for row in found],
    "free_energy": max(abs(row[0] - f) for row in found) / abs(f),
    "marginals": max(float(np.abs(row[1] - q).max()) for row in found),
    "parent": jit.max_threads(),
    "again": abs(solve(name)[0] - f),
}))
"""

BEFORE = """
with multiprocessing.get_context("fork").Pool(1) as pool:
    (row,) = pool.map(solve, ["grid"])
print(json.dumps({"threads": row[2]}))
"""


def run(code: str, *args: str) -> dict[str, float]:
    """Run a script in a process of its own; a hang is a failure."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", FIELDS + code, *args],
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Terminating" not in done.stderr
    out: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return out


@pytest.mark.parametrize("name", ["grid", "image"])
def test_children_of_a_parent_with_threads(name: str) -> None:
    found = run(AFTER, name)
    assert found["threads"] == [1, 1]
    assert found["free_energy"] < 1e-6  # sums are taken in another order (float32 in dense CRFs)
    assert found["marginals"] < 1e-4
    assert found["parent"] == 2  # nothing changes for the parent
    assert found["again"] == 0.0


def test_a_child_of_a_parent_without_threads_may_use_its_own() -> None:
    assert run(BEFORE)["threads"] == 2
