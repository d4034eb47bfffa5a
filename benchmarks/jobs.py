"""What does an item of `proxfield.core.jobs.run_jobs` cost, beside the work itself?

Each engine runs a function that does nothing on N small items, in a process of its own, for two
values of N. CPU seconds are those of that process and all it started (workers, and for Dask the
scheduler); the difference divided by the difference of N is the cost of an item, and what is left
at N = 0 the cost of starting. Items are 1 kB and, to compare, arrays of 3 MB.

    python benchmarks/jobs.py [--items 1000] [--repeats 3] [--json FILE]

Timings depend on what else the machine does; CPU seconds do so less than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from proxfield.bench.machine import metadata

ENGINES = ("serial", "loky", "dask")
FEW = 50
ARRAYS = 60
"""Items that are arrays, in place of small ones."""


def look(item: object) -> int:
    """The work: nothing."""
    return len(item)  # type: ignore[arg-type]


def run(engine: str, count: int, size: int) -> None:
    """Do it once, and print the CPU seconds of all processes."""
    from proxfield.core.jobs.running import run_jobs

    items = (bytes(size) for _ in range(count))
    if engine == "dask":
        import distributed
        import joblib

        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
            ) as cluster,
            distributed.Client(cluster) as client,
            joblib.parallel_config("dask", client=client),
        ):
            done = sum(1 for _ in run_jobs(look, items))
    else:
        done = sum(1 for _ in run_jobs(look, items, 2 if engine == "loky" else 1))
    assert done == count
    spent = os.times()  # children count once they have ended
    print(json.dumps(spent.user + spent.system + spent.children_user + spent.children_system))


def measure(engine: str, count: int, size: int) -> float:
    """CPU seconds of a run in a fresh process."""
    command = [sys.executable, __file__, "--engine", engine, "--items", str(count)]
    out = subprocess.check_output([*command, "--size", str(size)], text=True)
    return float(json.loads(out.splitlines()[-1]))


def main() -> None:
    """Measure all engines, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--size", type=int, default=1000)
    options = parser.parse_args()
    if options.engine is not None:
        run(options.engine, options.items, options.size)
        return
    found = []
    for engine in ENGINES:
        for size, many in ((1000, options.items), (3_000_000, FEW + ARRAYS)):
            each, start = [], []
            for _ in range(options.repeats):
                few, more = (measure(engine, n, size) for n in (FEW, many))
                each.append((more - few) / (many - FEW))
                start.append(few - FEW * each[-1])
            row = {
                "engine": engine,
                "item_bytes": size,
                "items": many,
                "cpu_ms_per_item": round(1000 * statistics.median(each), 3),
                "all_cpu_ms_per_item": [round(1000 * x, 3) for x in each],
                "start_cpu_s": round(statistics.median(start), 2),
            }
            found.append(row)
            print(f"{engine:7} {size:8} bytes: {row['cpu_ms_per_item']:8.2f} CPU ms an item, "
                  f"{row['start_cpu_s']:.2f} CPU s to start", flush=True)  # fmt: skip
    if options.json is not None:
        data = {"machine": metadata(None, 1), "rows": found}
        options.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
