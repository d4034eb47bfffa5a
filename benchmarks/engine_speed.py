"""Speed of one parallel iteration, as ratios against a named peer or a counted floor.

Three questions, each answered in one run on one machine:

1. A binary 80×80 grid: proxfield's iteration against scipy CSR × vector plus a numpy
   sigmoid of the same sizes and type, on one thread.
2. A field of 40 variables and 400 edges: microseconds an iteration.
3. A 1000×1000 grid: one thread against two.

Run ``python benchmarks/engine_speed.py`` (add ``--json FILE`` to keep the numbers). Timings are
the best of several repeats, interleaved so that a slow moment of the machine hits both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy
import scipy.sparse

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.solve.curvature import Curvature


def grid_field(side: int, strength: float, seed: int) -> pf.Field:
    """A binary grid with couplings of both signs."""
    rng = np.random.default_rng(seed)
    at = np.arange(side * side).reshape(side, side)
    right = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    edges = np.concatenate([right, down])
    field = pf.Field(side * side, n_labels=2)
    field.add(pf.Unary(rng.normal(size=(side * side, 2))))
    return field.add(pf.Ising(edges, rng.uniform(-strength, strength, len(edges))))


def random_field(n: int, m: int, seed: int) -> pf.Field:
    """A binary field with m distinct random edges."""
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(n) for j in range(i + 1, n)])
    edges = pairs[rng.choice(len(pairs), m, replace=False)]
    field = pf.Field(n, n_labels=2).add(pf.Unary(rng.normal(size=(n, 2))))
    return field.add(pf.Ising(edges, rng.normal(size=m)))


def iterate(field: pf.Field, dtype: str, threads: int, trace: bool) -> Callable[[int], None]:
    """A function that makes n iterations of the certified rule."""
    lowered = field.lower()
    program = compile_program(lowered, "cpu", dtype, threads)
    plan = Update(Kind.PROXIMAL, Curvature(lowered, field).steps("certified"))
    state = program.start(np.full(lowered.layout.size, 0.5))

    def run(n: int) -> None:
        program.advance(state, plan, n, -1.0, trace)

    run(2)
    return run


def scipy_peer(field: pf.Field, dtype: str) -> Callable[[int], None]:
    """CSR × vector, plus bias, through a numpy sigmoid: the usual way to write it."""
    lowered = field.lower()
    n = lowered.layout.n_vars
    assert lowered.ising is not None
    i, j = lowered.ising.edges.T
    w = 4 * lowered.ising.weights
    matrix = scipy.sparse.csr_matrix(
        (np.r_[w, w], (np.r_[i, j], np.r_[j, i])), shape=(n, n), dtype=dtype
    )
    bias = (lowered.unary[1::2] - lowered.unary[::2]).astype(dtype)
    m = np.full(n, 0.5, dtype=dtype)

    def run(count: int) -> None:
        nonlocal m
        for _ in range(count):
            m = 1 / (1 + np.exp(matrix @ m + bias))

    run(2)
    return run


def best_of(functions: dict[str, Callable[[int], None]], n: int, repeats: int) -> dict[str, float]:
    """Best seconds an iteration of each function, taken in turns."""
    best = dict.fromkeys(functions, np.inf)
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.perf_counter()
            function(n)
            best[name] = min(best[name], (time.perf_counter() - begin) / n)
    return best


def cpu_name() -> str:
    """The processor, where the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    out: dict[str, object] = {
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": {
            "proxfield": pf.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }
    for dtype in ("float64", "float32"):
        field = grid_field(80, 1.0, 0)
        times = best_of(
            {
                "peer": scipy_peer(field, dtype),
                "proxfield": iterate(field, dtype, 1, False),
                "with F": iterate(field, dtype, 1, True),
            },
            500,
            args.repeats,
        )
        micro = {k: round(1e6 * v, 2) for k, v in times.items()}
        ratio = times["peer"] / times["proxfield"]
        ratio_f = times["peer"] / times["with F"]
        print(f"80×80 grid, {dtype}, one thread: scipy + numpy {micro['peer']} µs per iteration, "
              f"proxfield {micro['proxfield']} µs ({ratio:.2f}×), "
              f"with F traced {micro['with F']} µs ({ratio_f:.2f}×)")  # fmt: skip
        out[f"grid80_{dtype}"] = {
            **micro,
            "ratio": round(ratio, 3),
            "ratio with F": round(ratio_f, 3),
        }
    small = random_field(40, 400, 0)
    times = best_of(
        {"plain": iterate(small, "float64", 1, False), "F": iterate(small, "float64", 1, True)},
        20_000, args.repeats,
    )  # fmt: skip
    micro = {k: round(1e6 * v, 3) for k, v in times.items()}
    print(f"40 variables, 400 edges: {micro['plain']} µs per iteration, {micro['F']} with F traced")
    out["small"] = micro
    for dtype in ("float64", "float32"):
        large = grid_field(1000, 1.0, 0)
        times = best_of(
            {
                "1 thread": iterate(large, dtype, 1, True),
                "2 threads": iterate(large, dtype, 2, True),
            },
            10, args.repeats,
        )  # fmt: skip
        milli = {k: round(1e3 * v, 2) for k, v in times.items()}
        gain = times["1 thread"] / times["2 threads"]
        print(f"1000×1000 grid, {dtype}: {milli['1 thread']} ms on one thread, "
              f"{milli['2 threads']} ms on two ({gain:.2f}×)")  # fmt: skip
        out[f"grid1000_{dtype}"] = {**milli, "gain": round(gain, 3)}
    if args.json:
        args.json.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
