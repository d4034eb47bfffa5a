"""A binary grid over several processes of this machine: bytes per variable, shares of time.

    python benchmarks/distributed_grid.py --side 10000 --ranks 2 --updates 5

Each process makes its own slab, in float32, and updates it with one thread. Peak memory is the
sum of all processes' resident peaks, interpreters and compiled kernels included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def energies(box: tuple[slice, ...]) -> np.ndarray:
    """Random unary energies of some rows, the same whoever makes them."""
    columns = box[1].stop - box[1].start
    out = np.zeros((box[0].stop - box[0].start, columns, 2), dtype=np.float32)
    for k, row in enumerate(range(box[0].start, box[0].stop)):
        generator = np.random.default_rng([7, row])
        out[k, :, 1] = generator.standard_normal(columns, dtype=np.float32)
    return out


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def work(args: argparse.Namespace) -> None:
    """One rank."""
    from proxfield.distributed import connect, grid_partition, infer

    clock = time.process_time
    with connect(args.backend, timeout=600) as transport:
        base, begun = peak_bytes(), clock()
        shape = (args.side, args.side) if args.rows is None else (args.rows, args.side)
        parts = (transport.size, 1)
        part = grid_partition(transport, shape, energies, 0.4, parts=parts, dtype=args.dtype)
        built, build = peak_bytes(), clock() - begun
        settings = {"max_iters": args.updates, "tol": 0.0, "threads": 1, "dtype": args.dtype,
                    "device": args.device}  # fmt: skip
        if args.rule == "fixed":
            settings["step"] = 0.5
        if args.warm:  # compiles, and is not counted
            infer(part, args.rule, **{**settings, "max_iters": 2})
        before = clock()
        result = infer(part, args.rule, reduce_every=args.every, **settings)
        record = {
            "rank": transport.rank, "variables": part.field.n_vars, "start_bytes": base,
            "built_bytes": built, "peak_bytes": peak_bytes(), "build_cpu": build,
            "process_cpu": clock() - before, "seconds": result.seconds,
            "free_energy": result.free_energy, "bytes_sent": result.bytes_sent,
            "cpu": vars(result.cpu_seconds), "wall": vars(result.wall_seconds),
        }  # fmt: skip
        print(json.dumps(record), flush=True)


def main() -> None:
    """Start the ranks and show what they report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rule", default="fixed")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backend", default="sockets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--warm", action="store_true")
    args = parser.parse_args()
    if "RANK" in os.environ:
        work(args)
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(args.ranks), "MASTER_PORT": str(port),
              "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    started = [
        subprocess.Popen(command, env={**common, "RANK": str(r)}, stdout=subprocess.PIPE, text=True)
        for r in range(args.ranks)
    ]
    records = [json.loads(p.communicate()[0].splitlines()[-1]) for p in started]
    n = sum(r["variables"] for r in records)
    for name in ("start_bytes", "built_bytes", "peak_bytes"):
        print(f"{name:12} {sum(r[name] for r in records) / n:8.1f} per variable")
    updates = args.updates * n
    kernel = sum(r["cpu"]["kernel"] for r in records)
    share = sum(r["cpu"][name] for r in records for name in ("cut", "exchange")) / kernel
    print(f"build        {1e9 * sum(r['build_cpu'] for r in records) / n:8.1f} CPU ns per variable")
    for name in ("kernel", "cut", "exchange", "reduce"):
        cpu = sum(r["cpu"][name] for r in records)
        wall = sum(r["wall"][name] for r in records) / len(records)
        print(f"{name:12} {1e9 * cpu / updates:8.2f} CPU ns per variable and update, {wall:.2f} s")
    others = sum(r["process_cpu"] for r in records) - kernel
    print(f"exchange and cut {100 * share:.1f} % of the kernel's CPU time; all that isn't kernel, "
          f"start, end and other threads included, {100 * others / kernel:.1f} %")  # fmt: skip
    print(
        f"F            {records[0]['free_energy']:.10g}, {n:,} variables, "
        f"{records[0]['seconds']:.1f} s, {records[0]['bytes_sent']:,} bytes sent by rank 0"
    )


if __name__ == "__main__":
    main()
