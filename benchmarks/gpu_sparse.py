"""Sparse fields on a GPU: bytes moved against the copy bandwidth, batches against the CPU.

Prints tables and writes JSON. Every time is the median of several runs of the difference between
two lengths, so that what a call costs by itself cancels. Run on a machine with a CUDA device:

    python benchmarks/gpu_sparse.py --json gpu_sparse.json

``--quick`` runs tiny sizes in Triton's interpreter, to test this script; ``--tune`` tries
other cuts of the work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

KINDS: dict[str, tuple[str, dict[str, float]]] = {
    "fixed": ("PROXIMAL", {}),
    "momentum": ("MOMENTUM", {"gamma1": 0.95}),
    "adam": ("ADAM", {"gamma1": 0.9, "gamma2": 0.999, "epsilon": 1e-8}),
}
GRIDS = [(20, False)] * 2 + [(20, True)] * 3 + [(40, k >= 4) for k in range(8)]
GRIDS += [(80, k >= 4) for k in range(8)]
"""Sides and wrapping of the 21 grids of the GRID set."""


def main() -> None:
    """Run everything asked for."""
    options = parse()
    if options.quick:
        os.environ["TRITON_INTERPRET"] = "1"
        sys.path.append(str(Path(__file__).parents[1] / "tests" / "gpu"))
        from gpu_cases import mend_interpreter

        mend_interpreter()
    import torch
    import triton

    results: dict[str, Any] = {
        "device": "interpreter" if options.quick else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": options.commit,
    }
    parts = {
        "copy": lambda: copy_bandwidth(options),
        "grid": lambda: grid(options, results.get("copy", {}).get("bytes_per_second", 4.27e12)),
        "tune": lambda: tune(options, results.get("copy", {}).get("bytes_per_second", 4.27e12)),
        "potts": lambda: potts(options, results.get("copy", {}).get("bytes_per_second", 4.27e12)),
        "shared": lambda: shared(options, results.get("copy", {}).get("bytes_per_second", 4.27e12)),
        "tables": lambda: tables(options, results.get("copy", {}).get("bytes_per_second", 4.27e12)),
        "teams": lambda: teams(options),
        "eigenvalues": lambda: eigenvalues(options),
        "batch": lambda: batch(options),
        "launches": lambda: launches(options),
    }
    for name, part in parts.items():
        if options.only and name not in options.only.split(","):
            continue
        if name == "tune" and not options.tune:
            continue
        began = time.perf_counter()
        try:
            results[name] = part()
        except Exception as error:  # the rest is still worth having
            results[name] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{name}: {type(error).__name__}: {error}")
            if options.quick:
                raise
        print(f"({name}: {time.perf_counter() - began:.1f} s)\n", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(results, indent=1))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write results here")
    parser.add_argument("--commit", default="", help="noted in the results")
    parser.add_argument("--only", default="", help="some parts, with commas between")
    parser.add_argument("--side", type=int, default=4096, help="of the large grid")
    parser.add_argument("--data", default="", help="folder of .uai.xz grids, instead of made ones")
    parser.add_argument("--tune", action="store_true", help="try other cuts of the work")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, in the interpreter")
    return parser.parse_args()


# ---- measuring ----


def synchronise() -> None:
    """Wait for the device."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def per_iteration(run: Callable[[int], None], n: int, repeats: int = 5) -> tuple[float, float]:
    """(median, spread) of seconds an iteration, from the difference of two lengths."""
    run(n)
    run(3 * n)
    found = []
    for _ in range(repeats):
        seconds = []
        for length in (n, 3 * n):
            synchronise()
            began = time.perf_counter()
            run(length)
            synchronise()
            seconds.append(time.perf_counter() - began)
        found.append((seconds[1] - seconds[0]) / (2 * n))
    return statistics.median(found), max(found) - min(found)


def plan_for(kind: str, n_vars: int, step: float = 0.2) -> Any:
    """The update of a rule, with one step for all."""
    from proxfield.core.engines.plan import Kind, Update

    name, options = KINDS[kind]
    return Update(Kind[name], np.full(n_vars, step), **options)


def measured(program: Any, kind: str, trace: bool, n: int) -> tuple[float, float]:
    """Seconds an iteration of a program."""
    layout = program.lowered.layout
    state = program.start(np.full(layout.size, 1.0 / layout.common))
    plan = plan_for(kind, layout.n_vars)
    return per_iteration(lambda k: program.advance(state, plan, k, -1.0, trace), n)


def copy_bandwidth(options: argparse.Namespace) -> dict[str, float]:
    """Bytes per second of a large copy, read and written."""
    import torch

    size = 1 << (10 if options.quick else 28)
    device = "cpu" if options.quick else "cuda"
    source = torch.ones(size, dtype=torch.float32, device=device)
    target = torch.empty_like(source)

    def run(n: int) -> None:
        for _ in range(n):
            target.copy_(source)

    seconds, _ = per_iteration(run, 20)
    rate = 8.0 * size / seconds
    print(f"copy of {4 * size / 2**20:.0f} MiB: {rate / 1e12:.2f} TB/s")
    return {"bytes": 8.0 * size, "seconds": seconds, "bytes_per_second": rate}


# ---- one large field ----


def plain_grid(side: int, n_labels: int = 2, seed: int = 0) -> Any:
    """A lowered grid with random couplings, made without looking for what can be merged."""
    from proxfield.core.lowering.lowered import Lowered
    from proxfield.core.lowering.reduction import Untouched
    from proxfield.core.terms.base import Layout
    from proxfield.core.terms.pairwise import Ising, Potts
    from proxfield.generate import grid_edges

    rng = np.random.default_rng(seed)
    edges = grid_edges(side, side)
    layout = Layout(np.full(side * side, n_labels))
    unary = rng.uniform(-1, 1, layout.size).astype(np.float32)
    weights = rng.uniform(-1, 1, len(edges))
    term = {"ising": Ising(edges, weights)} if n_labels == 2 else {"potts": Potts(edges, weights)}
    return Lowered(Untouched(layout), 0.0, unary, **term)


def binary_bytes(kind: str, diagonals: int) -> dict[str, int]:
    """Bytes of each array that one variable's update must move, each once."""
    arrays = {"x read": 4, "x written": 4, "bias": 4, "couplings": 4 * diagonals}
    if kind in ("momentum", "adam"):
        arrays["first moment read and written"] = 8
    if kind == "adam":
        arrays["second moment read and written"] = 8
    return arrays


def grid(options: argparse.Namespace, copy: float) -> list[dict[str, Any]]:
    """The large grid: every rule, with and without F."""
    from proxfield.core.engines.triton.program import GpuProgram

    side = 16 if options.quick else options.side
    lowered = plain_grid(side)
    program = GpuProgram(lowered, form="diagonals" if options.quick else None)
    print(f"grid {side}×{side}, 2 labels, float32, {program.batch.pack.form}")
    print(
        f"{'rule':10} {'F':4} {'ms':>9} {'spread':>8} {'bytes/var':>9} {'TB/s':>6} {'of copy':>8}"
    )
    rows = []
    for kind in KINDS:
        arrays = binary_bytes(kind, len(program.batch.pack.distances))
        moved = sum(arrays.values()) * side * side
        for trace in (False, True):
            seconds, spread = measured(program, kind, trace, 2 if options.quick else 64)
            rows.append(
                {
                    "rule": kind, "trace": trace, "ms": 1e3 * seconds, "spread_ms": 1e3 * spread,
                    "bytes": arrays, "fraction": moved / seconds / copy,
                }
            )  # fmt: skip
            print(
                f"{kind:10} {'yes' if trace else 'no':4} {1e3 * seconds:9.4f} {1e3 * spread:8.4f} "
                f"{sum(arrays.values()):9} {moved / seconds / 1e12:6.2f} "
                f"{moved / seconds / copy:8.1%}",
                flush=True,
            )
    check_sum(program)
    return rows


def check_sum(program: Any) -> None:
    """F as the iterations see it against F in float64."""
    layout = program.lowered.layout
    state = program.start(np.full(layout.size, 1.0 / layout.common))
    plan = plan_for("fixed", layout.n_vars)
    program.advance(state, plan, 30, -1.0, False)
    exact = program.free_energy(state)
    seen = program.advance(state, plan, 1, -1.0, True).free_energy[0]
    print(f"F in float64 {exact:.6f}, in the iterations {seen:.6f} ({seen / exact - 1:.1e})")


def tune(options: argparse.Namespace, copy: float) -> list[dict[str, Any]]:
    """Other cuts of the large grid."""
    from proxfield.core.engines.triton.program import GpuProgram

    side = 16 if options.quick else options.side
    lowered = plain_grid(side)
    rows = []
    cuts = [(w, r, k) for w in (256, 512, 1024) for r in (4, 8, 16, 32) for k in (4, 8)]
    print(f"{'width':>6} {'rows':>5} {'warps':>6} {'fixed':>9} {'F':>9} {'adam F':>9} (ms)")
    program = GpuProgram(lowered, form="diagonals" if options.quick else None)
    for width, height, warps in cuts[:1] if options.quick else cuts:
        program.batch.pack.cut(width, height, warps)
        program.batch._pool.clear()
        times = [
            1e3 * measured(program, kind, trace, 2 if options.quick else 32)[0]
            for kind, trace in (("fixed", False), ("fixed", True), ("adam", True))
        ]
        rows.append({"width": width, "rows": height, "warps": warps, "ms": times})
        print(f"{width:6} {height:5} {warps:6} " + " ".join(f"{t:9.4f}" for t in times), flush=True)
    return rows


def potts(options: argparse.Namespace, copy: float) -> list[dict[str, Any]]:
    """A grid with 21 labels, stored label by label and variable by variable."""
    from proxfield.core.engines.triton.program import GpuProgram

    side, n_labels = (6, 5) if options.quick else (1024, 21)
    lowered = plain_grid(side, n_labels)
    rows: list[dict[str, Any]] = []
    for form in ("planes", "tiles"):
        program = GpuProgram(lowered, form=form)
        print(f"Potts grid {side}×{side}, {n_labels} labels, float32, {form}")
        for kind in KINDS:
            # θ read and written, unary energies, moments; a weight and a number per neighbor
            each = 12 + (8 if kind != "fixed" else 0) + (8 if kind == "adam" else 0)
            moved = side * side * (each * n_labels + 4 * 8)
            for trace in (False, True):
                seconds, spread = measured(program, kind, trace, 2 if options.quick else 64)
                rows.append({"form": form, "rule": kind, "trace": trace, "ms": 1e3 * seconds,
                             "spread_ms": 1e3 * spread, "bytes": moved,
                             "fraction": moved / seconds / copy})  # fmt: skip
                print(f"{kind:10} F {'yes' if trace else 'no':4} {1e3 * seconds:9.4f} ms "
                      f"{moved / seconds / copy:6.1%} of copy", flush=True)  # fmt: skip
        check_sum(program)
        del program
    return rows


def table_grid(side: int, n_labels: int, count: int, symmetric: bool) -> Any:
    """A lowered grid whose edges share some tables, made like `plain_grid`."""
    from proxfield.core.lowering.lowered import Lowered
    from proxfield.core.lowering.reduction import Untouched
    from proxfield.core.terms.base import Layout
    from proxfield.core.terms.factor import Factor
    from proxfield.generate import grid_edges

    rng = np.random.default_rng(count)
    edges = grid_edges(side, side)
    layout = Layout(np.full(side * side, n_labels))
    unary = rng.uniform(-1, 1, layout.size).astype(np.float32)
    energies = rng.normal(size=(count, n_labels, n_labels))
    if symmetric:
        energies = energies + energies.transpose(0, 2, 1)
    factor = Factor.trusted(edges, energies, rng.integers(count, size=len(edges)))
    return Lowered(Untouched(layout), 0.0, unary, factors=(factor,))


def shared(options: argparse.Namespace, copy: float) -> list[dict[str, Any]]:
    """Grids with 21 labels whose edges share one table, or four with an index."""
    from proxfield.core.engines.triton.program import GpuProgram

    side, n_labels = (6, 5) if options.quick else (1024, 21)
    rows: list[dict[str, Any]] = []
    for count, symmetric, form in (
        (1, True, "planes"), (1, False, "planes"), (4, True, "planes"), (4, False, "planes"),
        (1, False, "tiles"),
    ):  # fmt: skip
        lowered = table_grid(side, n_labels, count, symmetric)
        program = GpuProgram(lowered, form=form)
        kind_of = "symmetric" if symmetric else "any"
        print(f"grid {side}×{side}, {n_labels} labels, tables: {count} ({kind_of}), {form}")
        for rule in KINDS if count == 1 and form == "planes" else ("fixed",):
            # as of a Potts field; 12 bytes for each neighbor, as tiles read them (planes: 4)
            each = 12 + (8 if rule != "fixed" else 0) + (8 if rule == "adam" else 0)
            edges = len(lowered.factors[0].scopes)
            moved = side * side * (each * n_labels + 4) + 2 * edges * 12
            for trace in (False, True):
                seconds, spread = measured(program, rule, trace, 2 if options.quick else 64)
                rows.append({"form": form, "tables": count, "symmetric": symmetric, "rule": rule,
                             "trace": trace, "ms": 1e3 * seconds, "spread_ms": 1e3 * spread,
                             "bytes": moved, "fraction": moved / seconds / copy})  # fmt: skip
                print(f"{rule:10} F {'yes' if trace else 'no':4} {1e3 * seconds:9.4f} ms "
                      f"{moved / seconds / copy:6.1%} of copy", flush=True)  # fmt: skip
        check_sum(program)
        del program
    return rows


def tables(options: argparse.Namespace, copy: float) -> list[dict[str, Any]]:
    """Random graphs with a table of its own for each edge, and triples."""
    import proxfield as pf
    from proxfield.core.engines import compile_program
    from proxfield.core.engines.triton.program import GpuProgram

    rng = np.random.default_rng(1)
    rows = []
    # 30,000 variables with 21 labels are too few to fill an H200: 46 % of copy
    for name, n, n_labels in (("pairs", 100_000, 8), ("pairs", 100_000, 21), ("triples", 10**5, 3)):
        if options.quick:
            n, n_labels = 12, 3
        field = pf.Field(n, n_labels=n_labels)
        if name == "pairs":
            edges = np.unique(np.sort(rng.integers(0, n, (2 * n, 2)), axis=1), axis=0)
            edges = edges[edges[:, 0] < edges[:, 1]]
            field.add(pf.Pairwise(edges, rng.normal(size=(len(edges), n_labels, n_labels))))
            # each table for both of its variables, with two numbers of 4 bytes and one of 8
            moved = 2 * len(edges) * (4 * n_labels**2 + 16) + n * (12 * n_labels + 4)
        else:
            base = rng.permutation(n)[: 3 * (n // 3)].reshape(-1, 3)
            field.add(pf.Factor(base, rng.normal(size=(len(base), 3, 3, 3))))
            moved = 3 * len(base) * (4 * 27 + 36) + n * (12 * 3 + 4)
        lowered = field.lower()
        seconds, _ = measured(GpuProgram(lowered), "fixed", True, 2 if options.quick else 64)
        host = compile_program(lowered, "cpu", "float32", 1)
        slow, _ = measured(host, "fixed", True, 2)
        rows.append(
            {"field": name, "variables": n, "labels": n_labels, "ms": 1e3 * seconds,
             "bytes": moved, "fraction": moved / seconds / copy, "cpu_ms": 1e3 * slow}
        )  # fmt: skip
        print(f"{name}, {n} variables, {n_labels} labels: {1e3 * seconds:.4f} ms, "
              f"{moved / seconds / copy:.1%} of copy; one CPU thread {1e3 * slow:.3f} ms",
              flush=True)  # fmt: skip
    return rows


# ---- binary fields too large for one multiprocessor ----


def ring(n: int, degree: int, seed: int = 0) -> Any:
    """A binary field of n variables on a circle, each with neighbors at some random distances."""
    from proxfield.core.lowering.lowered import Lowered
    from proxfield.core.lowering.reduction import Untouched
    from proxfield.core.terms.base import Layout
    from proxfield.core.terms.pairwise import Ising

    rng = np.random.default_rng(seed)
    at = np.arange(n)
    gaps = rng.choice(np.arange(2, n // 2), degree // 2, replace=False)
    edges = np.concatenate([np.stack([at, (at + gap) % n], axis=1) for gap in gaps])
    edges = np.unique(np.sort(edges, axis=1), axis=0)
    layout = Layout(np.full(n, 2))
    ising = Ising(edges, rng.uniform(-1, 1, len(edges)))
    return Lowered(Untouched(layout), 0.0, rng.uniform(-1, 1, layout.size), ising=ising)


def teams(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Single binary fields: two launches per iteration, and many iterations per launch."""
    from proxfield.core.engines.plan import Kind, Update
    from proxfield.core.engines.triton.program import GpuProgram

    sides = (4, 5) if options.quick else (96, 150, 220, 300, 362, 500)
    fields = [(f"grid {side}×{side}", plain_grid(side)) for side in sides]
    if not options.quick:
        fields += [(f"degree {d}", ring(50_000, d)) for d in (8, 12)]
    rows = []
    print("µs per iteration: without F, with F, adaptive")
    for name, lowered in fields:
        n = lowered.layout.n_vars
        adaptive = Update(Kind.PROXIMAL, np.full(n, 0.9), adaptive=True, fallback=np.full(n, 0.2))
        chosen = GpuProgram(lowered).batch.pack.form
        for form in ("slices", "team"):
            program = GpuProgram(lowered, form=form)
            pack = program.batch.pack
            if form == "team" and not pack.shared:
                continue
            many = 2 if options.quick else 512
            times = [1e6 * measured(program, "fixed", trace, many)[0] for trace in (False, True)]
            state = program.start(np.full(lowered.layout.size, 0.5))

            def run(k: int, p: Any = program, s: Any = state, u: Any = adaptive) -> None:
                p.advance(s, u, k, -1.0, True)

            times.append(1e6 * per_iteration(run, many // 2)[0])
            state = program.start(np.full(lowered.layout.size, 0.5))
            last = program.advance(state, plan_for("fixed", n), 50, -1.0, True).free_energy[-1]
            programs = len(pack.whose) if form == "team" else pack.n_blocks
            launches = 2.0 if form == "slices" else 1.0 / 4096  # states.CAPACITY
            rows.append({"field": name, "variables": n, "form": form, "chosen": chosen,
                         "programs": programs, "launches_per_iteration": launches,
                         "us": times, "free_energy": float(last)})  # fmt: skip
            print(f"{name:14} {n:7} {form:7} {programs:5} programs "
                  + " ".join(f"{t:7.2f}" for t in times)
                  + f"  F {last:.4f}", flush=True)  # fmt: skip
    return rows


def eigenvalues(options: argparse.Namespace) -> list[dict[str, Any]]:
    """λ of large fields, on the host and on the device."""
    from proxfield.core.engines.registry import program_for
    from proxfield.core.solve import curvature as module
    from proxfield.core.solve.curvature import Curvature

    sizes = ((5, 2), (4, 3)) if options.quick else ((300, 2), (1000, 2), (2048, 2), (512, 21))
    if options.quick:
        module.MIN_DEVICE_SIZE = 1
    rows = []
    for side, n_labels in sizes:
        lowered = plain_grid(side, n_labels)
        host = Curvature(lowered)
        there = Curvature(lowered, program=lambda low: program_for(low, "cuda", "float32"))
        found = []
        for curvature in (there, host):
            began = time.perf_counter()
            curvature.prepare()
            prepared = time.perf_counter()
            value = curvature.largest
            found.append((value, time.perf_counter() - prepared, prepared - began))
        (a, fast, packed), (b, slow, also) = found
        rows.append({"side": side, "labels": n_labels, "device": a, "host": b,
                     "device_seconds": fast, "host_seconds": slow, "device_prepare": packed,
                     "host_prepare": also})  # fmt: skip
        print(f"λ of a grid {side}×{side}, {n_labels} labels: device {a:.9f} in {fast:.4f} s "
              f"(preparing {packed:.3f}), host {b:.9f} in {slow:.4f} s ({also:.3f})",
              flush=True)  # fmt: skip
    return rows


# ---- many small fields ----


def grids(options: argparse.Namespace) -> list[Any]:
    """The 21 grids: read from a folder, or made in the same sizes."""
    from proxfield.generate import grid as made

    if options.data:
        from proxfield.io.uai import read_model

        return [read_model(p).lower() for p in sorted(Path(options.data).glob("*.uai*"))]
    if options.quick:
        return [made(side, side, wrap=wrap).lower() for side, wrap in ((3, False), (4, True))]
    strengths = (2.0, 5.0, 10.0, 15.0)
    return [
        made(side, side, strength=strengths[k % 4], wrap=wrap, seed=k).lower()
        for k, (side, wrap) in enumerate(GRIDS)
    ]


def batch(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All grids together on the device, and one after another on one CPU thread."""
    from proxfield.core.engines import compile_program
    from proxfield.core.engines.triton.batch import BatchProgram

    fields = grids(options)
    total = sum(low.layout.n_vars for low in fields)
    many = 2 if options.quick else 2000
    print(f"{len(fields)} grids, {total} variables: µs per iteration of all")
    print("rule       F      GPU f32   CPU f32   CPU f64   times   times")
    rows = []
    program = BatchProgram(fields)
    step = 0.05
    for kind in KINDS:
        for trace in (False, True):
            state = program.start([np.full(low.layout.size, 0.5) for low in fields])
            plan = plan_for(kind, total, step)
            fast, spread = per_iteration(
                lambda k, s=state, p=plan, t=trace: program.advance_each(s, p, k, -1.0, t), many
            )
            slow = []
            for dtype in ("float32", "float64"):
                seconds = 0.0
                for low in fields:
                    host = compile_program(low, "cpu", dtype, 1)
                    begin = host.start(np.full(low.layout.size, 0.5))
                    own = plan_for(kind, low.layout.n_vars, step)
                    seconds += per_iteration(
                        lambda k, h=host, b=begin, p=own, t=trace: h.advance(b, p, k, -1.0, t),
                        2 if options.quick else 100,
                        3,
                    )[0]
                slow.append(seconds)
            rows.append({"rule": kind, "trace": trace, "gpu_us": 1e6 * fast,
                         "spread_us": 1e6 * spread, "cpu_float32_us": 1e6 * slow[0],
                         "cpu_float64_us": 1e6 * slow[1]})  # fmt: skip
            print(f"{kind:10} {'yes' if trace else 'no':4} {1e6 * fast:9.3f} {1e6 * slow[0]:9.1f} "
                  f"{1e6 * slow[1]:9.1f} {slow[0] / fast:7.1f} {slow[1] / fast:7.1f}",
                  flush=True)  # fmt: skip
    rows += alone(options, fields)
    return rows


def alone(options: argparse.Namespace, fields: list[Any]) -> list[dict[str, Any]]:
    """One field of each size by itself, on one multiprocessor and shared by several."""
    from proxfield.core.engines.triton.batch import BatchProgram
    from proxfield.core.engines.triton.binary_pack import PART

    rows = []
    seen: set[int] = set()
    for low in fields:
        n = low.layout.n_vars
        if n in seen:
            continue
        seen.add(n)
        for part in (low.layout.n_vars, PART):
            program = BatchProgram([low])
            program.pack.share(part)
            programs = len(program.pack.whose)
            times = [1e6 * small_seconds(program, trace, options) for trace in (False, True)]
            rows.append({"variables": n, "programs": programs, "us": times})
            print(
                f"alone: {n} variables on {programs} multiprocessors: {times[0]:.3f} µs, "
                f"with F {times[1]:.3f} µs",
                flush=True,
            )
            if n <= PART:
                break
    return rows


def small_seconds(program: Any, trace: bool, options: argparse.Namespace) -> float:
    """Seconds an iteration of a batch that runs inside one launch."""
    layouts = [low.layout for low in program.joined.lowereds]
    state = program.start([np.full(layout.size, 0.5) for layout in layouts])
    plan = plan_for("fixed", program.joined.n, 0.05)
    many = 2 if options.quick else 2000
    return per_iteration(lambda k: program.advance_each(state, plan, k, -1.0, trace), many, 3)[0]


def launches(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A field of 40 variables, and a medium one: all in one launch, graphs, single launches."""
    import proxfield as pf
    from proxfield.core.engines.triton import device_pack as state
    from proxfield.core.engines.triton.program import GpuProgram

    rng = np.random.default_rng(2)
    small = pf.Field(40, n_labels=3)
    small.add(pf.Potts([[i, (i + 1) % 40] for i in range(40)], rng.normal(size=40)))
    small.add(pf.Unary(rng.normal(size=(40, 3))))
    side = 5 if options.quick else 300
    rows = []
    for name, lowered, forms in (
        ("40 variables, 3 labels", small.lower(), ("small", "tiles")),
        (f"grid {side}×{side}", plain_grid(side), ("diagonals", "slices")),
    ):
        for form in forms:
            for enabled in (True, False) if form != "small" else (True,):
                state.ENABLED = enabled
                program = GpuProgram(lowered, form=form)
                seconds, _ = measured(program, "fixed", True, 2 if options.quick else 128)
                state.ENABLED = True
                how = "one launch" if form == "small" else ("graphs" if enabled else "launches")
                rows.append({"field": name, "form": form, "how": how, "us": 1e6 * seconds})
                print(f"{name:24} {form:10} {how:10} {1e6 * seconds:9.2f} µs", flush=True)
    return rows


if __name__ == "__main__":
    main()
