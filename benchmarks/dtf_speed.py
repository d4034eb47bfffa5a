"""A field of 32 diagonals: nanoseconds per edge of a parallel iteration, and lowering.

The model is a decision tree field (see `dtf_models`): a binary grid whose variables have up to
64 neighbors. All times are CPU milliseconds or nanoseconds of one thread.

- ``iteration``: one update of all variables by each rule, with F traced, in float64 and float32;
  along diagonals, and in compressed rows (as fields with more distances run).
- ``lowering``: `Field.lower` and packing, with tables given by an index, one per edge, and as one
  `GridPairwise` term per offset; and with half of the variables observed.

    python benchmarks/dtf_speed.py TST_test_0009_64_80.mat [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import dtf_models
import proxfield as pf
from proxfield.bench.machine import metadata
from proxfield.core.engines import compile_program
from proxfield.core.engines.numba import pack
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.lowering.lowered import Lowered, lower


def iteration(lowered: Lowered, dtype: str, plan: Update, repeats: int) -> float:
    """CPU nanoseconds per edge, the median of some repeats."""
    program = compile_program(lowered, "cpu", dtype, 1)
    state = program.start(np.full(lowered.layout.size, 0.5))
    program.advance(state, plan, 2, -1.0, True)
    assert lowered.ising is not None
    edges, times = len(lowered.ising.edges), []
    for _ in range(repeats):
        begun = time.thread_time()
        program.advance(state, plan, 50, -1.0, True)
        times.append((time.thread_time() - begun) / 50)
    return round(1e9 * float(np.median(times)) / edges, 3)


def lowering(field: pf.Field, repeats: int) -> dict[str, float]:
    """CPU milliseconds of lowering and packing, medians."""
    times = []
    for _ in range(repeats):
        begun = time.thread_time()
        lowered = lower(field.layout, field.terms, field.evidence)
        middle = time.thread_time()
        compile_program(lowered, "cpu", "float64", 1)
        times.append((middle - begun, time.thread_time() - middle))
    first, second = 1e3 * np.median(times, axis=0)
    return {"lower": round(float(first), 2), "pack": round(float(second), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lowered = dtf_models.load(args.model).lower()
    step = np.full(lowered.layout.n_vars, 0.2)
    plans = {
        "fixed": Update(Kind.PROXIMAL, step),
        "adaptive": Update(Kind.PROXIMAL, step, adaptive=True, fallback=step),
        "adam": Update(Kind.ADAM, np.ones_like(step), 0.9, 0.999, 1e-8),
    }
    out: dict[str, Any] = metadata("none", 1)
    out["command"] = "python benchmarks/dtf_speed.py TST_test_0009_64_80.mat"
    most = pack.MAX_DIAGONALS
    for form, limit in (("diagonals", most), ("rows", 0)):
        pack.MAX_DIAGONALS = limit
        for dtype in ("float64", "float32"):
            row = {k: iteration(lowered, dtype, plan, args.repeats) for k, plan in plans.items()}
            out[f"iteration, {form}, {dtype}, ns per edge"] = row
    pack.MAX_DIAGONALS = most
    forms = {
        "tables by an index": dtf_models.load(args.model),
        "a table per edge": dtf_models.load(args.model, distinct=False),
        "a grid per offset": dtf_models.load(args.model, grid=True),
    }
    for name in ("tables by an index", "a grid per offset"):
        field = forms[name]
        observed = dict.fromkeys(range(0, field.n_vars, 2), 0)
        forms[f"{name}, half of the variables observed"] = field.condition(observed)
    for name, field in forms.items():
        out[f"lowering, {name}, ms"] = lowering(field, args.repeats)
    for key, value in out.items():
        if isinstance(value, dict) and key.startswith(("iteration", "lowering")):
            print(f"{key}: {value}")
    if args.json:
        text = json.dumps(out, indent=1, ensure_ascii=False)
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
