"""How long sweeps, descent and chains take on a GPU; one JSON object a line.

Run it on a machine with a CUDA device:  python benchmarks/gpu_sweeps.py [--shapes] [--forests]

Times are medians of several runs, after a first one that compiles. gb_per_s counts what a sweep
has to move at least (every array of the field once, q read and written, θ written), to be held
against the device's copy bandwidth. With --forests only forest moves are timed. With --shapes a
sweep is also timed for other sizes of the kernels' tiles.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import Chains
from proxfield.core.engines.triton.sweeps import chains as chain_module
from proxfield.core.engines.triton.sweeps import sweeps as sweep_module
from proxfield.core.engines.triton.sweeps.chains import explore
from proxfield.core.engines.triton.sweeps.sweep_kernels import VisitKind
from proxfield.core.engines.triton.sweeps.sweeps import Sweeper
from proxfield.core.lowering.lowered import Lowered

FORESTS = ((40, 2, 512, 200), (80, 2, 512, 100), (40, 5, 512, 100))
"""Side, labels, chains and sweeps of the grids on which forest moves are timed."""


def grid(side: int, n_labels: int) -> Lowered:
    """A grid with couplings of both signs."""
    rng = np.random.default_rng(0)
    at = np.arange(side * side).reshape(side, side)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    edges = np.concatenate([across, down])
    potts = pf.Potts(edges, rng.normal(size=len(edges)))
    unary = pf.Unary(rng.normal(size=(side * side, n_labels)))
    return pf.Field(side * side, n_labels=n_labels, terms=[potts, unary]).lower()


def scattered(n: int, degree: int, n_labels: int, arity: int = 2) -> Lowered:
    """Tables over random variables."""
    rng = np.random.default_rng(1)
    scopes = rng.integers(n, size=(n * degree // arity, arity))
    ordered = np.sort(scopes, axis=1)
    scopes = scopes[(np.diff(ordered, axis=1) > 0).all(axis=1)]
    kinds = rng.normal(size=(64, *[n_labels] * arity))
    term: Any = pf.Pairwise if arity == 2 else pf.Factor
    tables = term(scopes, kinds, rng.integers(64, size=len(scopes)))
    return pf.Field(n, n_labels=n_labels, terms=[tables]).lower()


def median(call: Callable[[], Any], runs: int = 7) -> float:
    """Seconds of one call."""
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def show(what: str, **values: Any) -> None:
    """One line."""
    tidy = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"what": what, **tidy}), flush=True)


def least_bytes(sweeper: Sweeper) -> int:
    """What one sweep moves at least."""
    state = 3 * sweeper.size * sweeper.dtype.itemsize
    return state + sum(a.numel() * a.element_size() for a in sweeper.energies)


def time_sweep(name: str, lowered: Lowered, dtype: str) -> None:
    """A colored sweep, without and with the change of F."""
    start = time.perf_counter()
    sweeper = Sweeper(lowered, dtype)
    packed = time.perf_counter() - start
    visits = sweeper.colors
    q = torch.tensor(uniform(lowered), dtype=sweeper.dtype, device=sweeper.device)
    betas = torch.ones((1, 1), dtype=torch.float64, device=q.device)
    turns = sweeper.turns(visits, betas)
    plain = median(lambda: sweeper.visit(q, visits, turns, VisitKind()))
    whole = median(lambda: sweeper.visit(q, visits, turns, VisitKind(delta=True)))
    show(
        f"colored sweep, {name}", dtype=dtype, groups=len(visits.parts) - 1, pack_s=packed,
        ms=1e3 * plain, ms_with_f=1e3 * whole,
        gb_per_s=least_bytes(sweeper) / whole / 1e9,
        free_energy_ms=1e3 * median(lambda: sweeper.free_energy(q)), **shape_of(sweeper),
    )  # fmt: skip


def shape_of(sweeper: Sweeper) -> dict[str, int]:
    """The tile."""
    return sweeper.working._asdict()


def uniform(lowered: Lowered) -> Any:
    """Uniform marginals."""
    return lowered.layout.normalize(np.ones(lowered.layout.size))


def time_orders(side: int) -> None:
    """Strict orders: by levels and by a single program."""
    lowered = grid(side, 2)
    sweeper = Sweeper(lowered, "float32")
    q = torch.tensor(uniform(lowered), dtype=sweeper.dtype, device=sweeper.device)
    for name, order in (
        ("reading", np.arange(sweeper.n)),
        ("random", np.random.default_rng(0).permutation(sweeper.n)),
    ):
        start = time.perf_counter()
        visits = sweeper.in_order(order)
        prepare = time.perf_counter() - start
        show(
            f"strict sweep, {name} order, {side}x{side}",
            levels=None if visits.starts is None else len(visits.starts) - 1,
            prepare_s=prepare,
            ms=1e3 * median(lambda order=order: sweeper.sweep(q, order), 3),
        )
    kept, sweep_module.GROUPED_FROM = sweep_module.GROUPED_FROM, 10**9
    fresh = Sweeper(lowered, "float32")
    order = np.arange(fresh.n)
    seconds = median(lambda: fresh.sweep(q, None, order), 3)
    show(f"strict sweep, single program, {side}x{side}", us_per_variable=1e6 * seconds / fresh.n)
    sweep_module.GROUPED_FROM = kept


def time_chains(side: int, n_labels: int, count: int, sweeps: int) -> None:
    """Cooling chains, launched one by one and recorded."""
    lowered = grid(side, n_labels)
    sweeper = Sweeper(lowered, "float32")
    starts = np.tile(uniform(lowered), (count, 1))
    chains = Chains.make(starts, hot=4.0, sweeps=sweeps, seeds=np.arange(count), drawn=True)
    kept = chain_module.RECORD_FROM
    found = {}
    for name, limit in (("launched", 10**12), ("recorded", 0), ("default", kept)):
        chain_module.RECORD_FROM = limit
        found[name] = median(lambda: explore(sweeper, chains), 3)
    chain_module.RECORD_FROM = kept
    ended = explore(sweeper, chains)
    visits = count * sweeper.n * float(ended.sweeps.mean())
    show(
        f"chains, {side}x{side}, {n_labels} labels", chains=count, sweeps=sweeps,
        **{f"{name}_s": seconds for name, seconds in found.items()},
        visits_per_s=visits / min(found.values()), best=float(ended.free_energy.min()),
    )  # fmt: skip


def time_forests(side: int, n_labels: int, count: int, sweeps: int) -> None:
    """Chains by single variables and by forests, on the device and on one thread of the host."""
    lowered = grid(side, n_labels)
    starts = np.tile(uniform(lowered), (count, 1))
    few = max(1, 20_000 // lowered.layout.n_vars)
    host = compile_program(lowered, "cpu", "float64", 1)
    for forests in (False, True):
        options = {"hot": 4.0, "sweeps": sweeps, "drawn": True, "forests": forests, "polish": 0}
        chains = Chains.make(starts, seeds=np.arange(count), **options)
        sweeper = Sweeper(lowered, "float32")
        seconds = median(lambda s=sweeper, c=chains: explore(s, c), 3)
        same = Chains.make(starts[:few], seeds=np.arange(few), **options)
        host.explore(same, 1)
        began = time.perf_counter()
        there = host.explore(same, 1)
        slow = (time.perf_counter() - began) / few * count
        exact = explore(Sweeper(lowered, "float64"), same)
        ended = explore(sweeper, chains)
        show(
            f"{'forests' if forests else 'sites'}, {side}x{side}, {n_labels} labels", chains=count,
            sweeps=sweeps, s=seconds, ms_per_sweep=1e3 * seconds / sweeps, cpu_s=slow,
            mean_f=float(ended.free_energy.mean()), best_f=float(ended.free_energy.min()),
            labels_as_on_the_host=float((exact.q == there.q).mean()),
        )  # fmt: skip


def main() -> None:
    """Everything."""
    show("device", name=torch.cuda.get_device_name(), torch=torch.__version__)
    if "--forests" in sys.argv:
        for side, n_labels, count, sweeps in FORESTS:
            time_forests(side, n_labels, count, sweeps)
        return
    fields = {
        "grid 1000x1000, 2 labels": grid(1000, 2),
        "grid 300x300, 21 labels": grid(300, 21),
        "tables, 200,000 variables, degree 6, 8 labels": scattered(200_000, 6, 8),
        "factors of 3, 100,000 variables, 4 labels": scattered(100_000, 3, 4, 3),
    }
    for name, lowered in fields.items():
        for dtype in ("float32", "float64"):
            time_sweep(name, lowered, dtype)
    for side in (64, 500):
        time_orders(side)
    for side, n_labels, count, sweeps in ((6, 2, 4096, 200), (40, 2, 256, 500), (256, 3, 16, 100)):
        time_chains(side, n_labels, count, sweeps)
    for side, n_labels, count, sweeps in FORESTS:
        time_forests(side, n_labels, count, sweeps)
    if "--shapes" in sys.argv:
        for threads in (64, 128, 256):
            for numbers in (512, 1024, 2048):
                sweep_module.THREADS, sweep_module.WORKING_SET = threads, numbers
                for name, lowered in fields.items():
                    time_sweep(f"{name} ({threads} threads, {numbers})", lowered, "float32")


if __name__ == "__main__":
    main()
