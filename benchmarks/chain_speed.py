"""Nanoseconds per visit of the chains that `auto` explores with, by degree and temperature.

A visit is one variable of one sweep; a forest move counts as a visit of every variable of the
field, though it samples those of its forest alone. Fields are tori of about 5,000 variables with
couplings of both signs: binary ones of degree 4, 8, 16 and 64, and a Potts field of 4 labels and
degree 4. "Hot" is a temperature at which about a third of the visits change a label, "cold" one at
which about one in a hundred does. CPU time of one thread, the best of several repeats; the time of
one sweep is the difference between many and few, so that set-up doesn't count.

    python benchmarks/chain_speed.py [--peer PYTHON] [--json FILE]

``--peer`` is an interpreter with dwave-samplers and numpy: its annealing visits the same binary
fields at the same temperatures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from proxfield.bench.machine import metadata
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Program
from proxfield.core.engines.plan import Chains
from proxfield.core.terms.base import Doubles, Ints

SIDE = 72
RINGS = {
    4: [(0, 1), (1, 0)],
    8: [(0, 1), (1, 0), (1, 1), (1, -1)],
    16: [(0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0), (2, 2), (2, -2)],
}
HOT_CHANGES, COLD_CHANGES = 1 / 3, 0.01
FEW, MANY = 20, 220

PEER = """
import json, sys, time
import numpy as np
from dwave.samplers import SimulatedAnnealingSampler

data = np.load(sys.argv[1])
h = {i: float(x) for i, x in enumerate(data["h"])}
J = {(int(i), int(j)): float(w) for (i, j), w in zip(data["edges"], data["J"])}
sampler = SimulatedAnnealingSampler()

def seconds(sweeps, beta):
    begun = time.process_time()
    sampler.sample_ising(
        h, J, num_reads=1, seed=1, beta_schedule_type="custom",
        beta_schedule=np.full(sweeps, beta), num_sweeps_per_beta=1, randomize_order=False,
    )
    return time.process_time() - begun

few, many = 100, 2100
out = []
for heat in data["heats"]:
    times = [[seconds(sweeps, 1 / heat) for _ in range(3)] for sweeps in (few, many)]
    out.append(1e9 * (min(times[1]) - min(times[0])) / (many - few) / len(h))
print(json.dumps(out))
"""


def torus(degree: int) -> Ints:
    """Edges of a torus in which every variable has ``degree`` neighbors.  # (m, 2)"""
    offsets = RINGS.get(degree)
    if offsets is None:  # all offsets of one half-plane, the nearest first
        near = [(y, x) for y in range(7) for x in range(-6, 7) if (y, x) > (0, 0)]
        offsets = sorted(near, key=lambda o: o[0] ** 2 + o[1] ** 2)[: degree // 2]
    at = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    there = [np.roll(at, (-y, -x), axis=(0, 1)).ravel() for y, x in offsets]
    return np.concatenate([np.stack([at.ravel(), other], axis=1) for other in there])


def binary_field(degree: int) -> tuple[pf.Field, Doubles, Ints, Doubles]:
    """A spin glass; also its fields, edges and couplings over spins."""
    rng = np.random.default_rng(degree)
    n, edges = SIDE * SIDE, torus(degree)
    h, J = 0.3 * rng.normal(size=n), rng.normal(size=len(edges))
    unary = np.stack([h, -h], axis=1)  # label 0 is spin +1
    field = pf.Field(n, n_labels=2, terms=[pf.Unary(unary), pf.Ising(edges, J)])
    return field, h, edges, J


def potts_field() -> pf.Field:
    """Four labels, degree 4."""
    rng = np.random.default_rng(0)
    n, edges = SIDE * SIDE, torus(4)
    unary, weight = 0.3 * rng.normal(size=(n, 4)), 2 * rng.normal(size=len(edges))
    return pf.Field(n, n_labels=4, terms=[pf.Unary(unary), pf.Potts(edges, weight)])


def seconds(program: Program, heat: float, sweeps: int, forests: bool, start: Doubles) -> float:
    """CPU seconds of a chain at one temperature."""
    chains = Chains.make(
        start, hot=heat, cold=heat, sweeps=sweeps, seeds=1, drawn=True, forests=forests, polish=0
    )
    begun = time.process_time()
    program.explore(chains, 1)
    return time.process_time() - begun


def at_equilibrium(program: Program, heat: float, forests: bool) -> Doubles:
    """The end of a cooling to a temperature.  # (1, size)"""
    layout = program.lowered.layout
    start = layout.normalize(np.ones(layout.size))[None]
    chains = Chains.make(
        start, hot=max(heat, 20.0), cold=heat, sweeps=300, drawn=True, forests=forests, polish=0
    )
    return program.explore(chains, 1).q


def changes(program: Program, heat: float) -> float:
    """Share of visits that change a label at a temperature."""
    before = at_equilibrium(program, heat, False)
    chains = Chains.make(before, hot=heat, cold=heat, sweeps=1, seeds=3, drawn=True, polish=0)
    labels = program.lowered.layout.best_labels
    return float((labels(program.explore(chains, 1).q[0]) != labels(before[0])).mean())


def temperature_of(program: Program, share: float) -> float:
    """The temperature at which so many visits change a label, by bisection."""
    low, high = 0.02, 60.0
    for _ in range(9):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if changes(program, middle) < share else (low, middle)
    return low


def measure(field: pf.Field, repeats: int) -> dict[str, Any]:
    """Nanoseconds per visit, hot and cold, single variables and forests."""
    lowered = field.lower()
    program = compile_program(lowered, threads=1)
    heats = [temperature_of(program, share) for share in (HOT_CHANGES, COLD_CHANGES)]
    out: dict[str, Any] = {"heats": heats}
    for name, forests in (("sites", False), ("forests", True)):
        for kind, heat in zip(("hot", "cold"), heats, strict=True):
            start = at_equilibrium(program, heat, forests)
            few, many = (
                min(seconds(program, heat, sweeps, forests, start) for _ in range(repeats))
                for sweeps in (FEW, MANY)
            )
            out[f"{name}, {kind}"] = 1e9 * (many - few) / (MANY - FEW) / lowered.layout.n_vars
    return out


def measure_peer(python: str, h: Doubles, edges: Ints, J: Doubles, heats: list[float]) -> Any:
    """The peer's nanoseconds per visit, at each temperature."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "field.npz"
        np.savez(path, h=h, edges=edges, J=J, heats=heats)
        done = subprocess.run(
            [python, "-c", PEER, str(path)], capture_output=True, text=True, check=True
        )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="interpreter with dwave-samplers")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    columns = ("sites, hot", "sites, cold", "forests, hot", "forests, cold")
    peers = ("peer, hot", "peer, cold") if options.peer else ()
    print("| field | " + " | ".join((*columns, *peers)) + " |")
    print("|---" * (1 + len(columns) + len(peers)) + "|")
    for name, degree in [(f"binary, degree {d}", d) for d in (4, 8, 16, 64)] + [
        ("Potts, 4 labels", 0)
    ]:
        if degree:
            field, h, edges, J = binary_field(degree)
            row = measure(field, options.repeats)
            if options.peer:
                row |= zip(
                    peers, measure_peer(options.peer, h, edges, J, row["heats"]), strict=True
                )
        else:
            row = measure(potts_field(), options.repeats)
        rows[name] = row
        shown = [f"{row[c]:.1f}" if c in row else "" for c in (*columns, *peers)]
        print(f"| {name} | " + " | ".join(shown) + " |", flush=True)
    if options.json:
        about = metadata(None, 1)
        text = json.dumps({**about, "nanoseconds per visit": rows}, indent=1)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
