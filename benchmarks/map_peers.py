"""MAP of binary fields, next to the simulated annealing of dwave-samplers in equal CPU time.

    python benchmarks/map_peers.py --peer PYTHON --grids FOLDER --dtf FILE.mat --json FILE

``--peer`` names a Python in which dwave-samplers can be imported (``pip install dwave-samplers``).
``--grids`` holds UAI models (the paper's GRID set), ``--dtf`` names a decision tree field
(`dtf_models.py`); two fields are made here: a dense random Ising field of 1,000 spins
(Sherrington and Kirkpatrick) and a periodic 20×20×20 grid of spins with couplings ±1.

Both sides have one thread and are measured by the CPU time of their process, without reading,
lowering and converting models; the two take turns. The peer is called as its users call it:
geometric schedule, its default range of temperatures. It gets as many sweeps as fit into the time,
found by two trial runs, in one cooling and shared by several (``--reads``); of these settings, the
one with the lowest mean energy over the seeds counts, for each model and time. Its energies are
evaluated here from the labels that it returns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TRIAL_VISITS = 2e6
"""Visits of variables in the peer's first trial run."""
TIE = 1e-6
"""Relative difference of mean energies below which neither side has won."""


# ---- the peer ----


def serve_peer() -> None:
    """Answer each line of JSON on stdin with one: the peer's labels and CPU seconds."""
    import dimod
    from dwave.samplers.sa import sampler as module

    core, spent = module.simulated_annealing, [0.0]

    def timed(*args: Any, **options: Any) -> Any:
        begun = time.process_time()
        try:
            return core(*args, **options)
        finally:
            spent[0] += time.process_time() - begun

    module.simulated_annealing = timed
    sampler, models = module.SimulatedAnnealingSampler(), {}

    def anneal(path: str, sweeps: int, reads: int, seed: int) -> tuple[np.ndarray, float]:
        if path not in models:
            data = np.load(path)
            ends = data["edges"]
            models[path] = dimod.BinaryQuadraticModel.from_numpy_vectors(
                data["fields"], (ends[:, 0], ends[:, 1], data["couplings"]), 0.0, "SPIN"
            )
        spent[0] = 0.0
        found = sampler.sample(models[path], num_reads=reads, num_sweeps=sweeps, seed=seed)
        best = found.first.sample
        return np.array([best[i] for i in range(len(best))]), spent[0]

    paces: dict[tuple[str, float, int], float] = {}
    for line in sys.stdin:
        ask = json.loads(line)
        path, budget, reads = ask["path"], ask["budget"], ask["reads"]
        key = path, budget, reads
        if key not in paces:  # late sweeps are faster than early ones: the second trial is as long
            n = len(np.load(path)["fields"])
            sweeps = max(1, int(TRIAL_VISITS / n))
            for _ in range(2):
                _, seconds = anneal(path, sweeps, reads, 0)
                pace = sweeps / max(seconds, 1e-6)
                sweeps = max(1, int(pace * budget))
            paces[key] = pace
        sweeps = max(1, int(paces[key] * budget))
        spins, seconds = anneal(path, sweeps, reads, ask["seed"])
        paces[key] = sweeps / max(seconds, 1e-6)  # follows the machine
        answer = {"spins": spins.tolist(), "seconds": seconds, "sweeps": sweeps}
        print(json.dumps(answer), flush=True)


class Peer:
    """A process of the peer's Python."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its answer to one question."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the peer ended without an answer")
        return dict(json.loads(line))


# ---- this library ----


def solve(field: Any, budget: float, seed: int) -> tuple[float, float]:
    """Energy and CPU seconds of one search."""
    from proxfield.core.solve.request import Request
    from proxfield.core.solve.search.labelling import MapSearch
    from proxfield.core.solve.solve_map import answer

    request = Request(
        MapSearch(), tol=0.0, budget=budget, seed=seed, threads=1, now=time.process_time
    )
    result = answer(field, request)
    return result.energy, result.seconds


# ---- models ----


def spin_glass(n: int = 1000, seed: int = 0) -> Any:
    """Every pair of spins, coupled at random."""
    import proxfield as pf

    rng = np.random.default_rng(seed)
    edges = np.stack(np.triu_indices(n, 1), axis=1)
    field = pf.Field(n, n_labels=2)
    return field.add(pf.Ising(edges, rng.normal(size=len(edges)) / np.sqrt(n)))


def cube(side: int = 20, seed: int = 0) -> Any:
    """A periodic cubic grid of spins with couplings ±1."""
    import proxfield as pf

    rng = np.random.default_rng(seed)
    at = np.arange(side**3).reshape(side, side, side)
    pairs = [np.stack([at.ravel(), np.roll(at, -1, axis).ravel()], axis=1) for axis in range(3)]
    edges = np.sort(np.concatenate(pairs), axis=1)
    field = pf.Field(side**3, n_labels=2)
    return field.add(pf.Ising(edges, rng.choice([-1.0, 1.0], size=len(edges))))


def models(options: argparse.Namespace) -> dict[str, Any]:
    """Fields by name; those of one set first."""
    import proxfield as pf

    out = {}
    if options.grids:
        for path in sorted(options.grids.glob("*.uai*")):
            out[path.name.split(".uai")[0]] = pf.read_uai(path)
    if options.dtf:
        from dtf_models import load

        out[options.dtf.stem] = load(options.dtf)
    out["spin glass 1000"] = spin_glass()
    out["cube 20"] = cube()
    return {name: field for name, field in out.items() if options.only in name}


def as_spins(field: Any, path: Path) -> None:
    """Write a binary field as fields and couplings of spins; label 1 is spin +1."""
    lowered = field.lower()
    unary = lowered.unary.reshape(-1, 2)
    if lowered.potts or lowered.factors or lowered.extras or not np.isfinite(unary).all():
        raise SystemExit(f"{path.stem} isn't an Ising field")
    np.savez(
        path,
        fields=0.5 * (unary[:, 1] - unary[:, 0]),
        edges=lowered.ising.edges,
        couplings=lowered.ising.weights,
    )


# ---- the comparison ----


def compare(name: str, field: Any, peer: Peer, path: Path, options: argparse.Namespace) -> list:
    """Rows of one model, one per budget."""
    rows = []
    as_spins(field, path)
    lowered = field.lower()
    assert len(lowered.reduction.free) == field.n_vars
    for budget in options.budgets:
        ours: list[tuple[float, float]] = []
        theirs: dict[int, list[tuple[float, float]]] = {reads: [] for reads in options.reads}
        for seed in range(options.seeds):
            ours.append(solve(field, budget, seed))
            for reads in options.reads:
                said = peer.ask(path=str(path), budget=budget, reads=reads, seed=seed + 1)
                labels = (np.array(said["spins"]) + 1) // 2
                theirs[reads].append((field.energy(labels), said["seconds"]))
        best = min(options.reads, key=lambda r: np.mean([e for e, _ in theirs[r]]))
        mean, other = (float(np.mean([e for e, _ in runs])) for runs in (ours, theirs[best]))
        margin = TIE * (1 + abs(other))
        rows.append(
            {
                "model": name,
                "n_vars": field.n_vars,
                "budget": budget,
                "ours": mean,
                "peer": other,
                "peer_reads": best,
                "winner": "ours" if mean < other - margin else "peer" if mean > other + margin
                else "neither",
                "our_energies": [e for e, _ in ours],
                "peer_energies": {r: [e for e, _ in runs] for r, runs in theirs.items()},
                "our_seconds": float(np.mean([s for _, s in ours])),
                "peer_seconds": float(np.mean([s for _, s in theirs[best]])),
            }
        )  # fmt: skip
        row = rows[-1]
        print(
            f"{name:22} {budget:4g} s  ours {mean:12.2f} ({row['our_seconds']:.3f} s)  "
            f"peer {other:12.2f} ({row['peer_seconds']:.3f} s, {best} reads)  {row['winner']}",
            flush=True,
        )
    return rows


def summary(rows: list[dict[str, Any]], budgets: list[float]) -> list[dict[str, Any]]:
    """Mean energies and models won over the sets of models, by budget."""
    out = []
    made = ("spin glass 1000", "cube 20")
    for budget in budgets:
        some = [r for r in rows if r["budget"] == budget and r["model"] not in made]
        if some:
            won = [sum(r["winner"] == who for r in some) for who in ("ours", "neither", "peer")]
            out.append(
                {
                    "budget": budget,
                    "models": len(some),
                    "ours": float(np.mean([r["ours"] for r in some])),
                    "peer": float(np.mean([r["peer"] for r in some])),
                    "won": won[0],
                    "neither": won[1],
                    "lost": won[2],
                }
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help="a Python that has dwave-samplers")
    parser.add_argument("--grids", type=Path)
    parser.add_argument("--dtf", type=Path)
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--reads", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.serve:
        serve_peer()
        return
    if options.peer is None:
        parser.error("--peer PYTHON is needed")
    peer, rows = Peer(options.peer), []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, field) in enumerate(models(options).items()):
            solve(field, 0.01, 0)  # compiles and loads
            rows += compare(name, field, peer, Path(folder, f"{number}.npz"), options)
            if options.json:
                about = {
                    "machine": platform.platform(), "processor": platform.processor(),
                    "numpy": np.__version__, "seeds": options.seeds, "reads": options.reads,
                    "clock": "CPU time of the process", "threads": 1,
                }  # fmt: skip
                data = {"about": about, "summary": summary(rows, options.budgets), "rows": rows}
                options.json.write_text(json.dumps(data, indent=1) + "\n")
    for line in summary(rows, options.budgets):
        print(line)


if __name__ == "__main__":
    main()
