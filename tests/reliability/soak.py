"""Every promise on many seeds; writes the table of docs/project/reliability.md.

    python tests/reliability/soak.py [--minutes 30] [--jobs 2] [--only NAME] [--write FILE]

Each promise gets a share of the time in proportion to what its cases take; those that finish early
leave theirs to the others. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import sys
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

BATCH = 20
"""Seeds that a process checks at a time."""
MARK = "<!-- table -->"


def work(task: tuple[str, int, int]) -> tuple[str, int, int, list[str]]:
    """Check some seeds of one promise: its name, cases, claims tested, what is broken."""
    from promises import PROMISES

    warnings.simplefilter("error")
    name, first, end = task
    tested, broken = 0, []
    for seed in range(first, end):
        try:
            tested += PROMISES[name].check(seed)
        except Exception as error:  # noqa: PERF203 (whatever it is, it was not promised)
            broken.append(f"{name}, seed {seed}: {type(error).__name__}: {error}")
    return name, end - first, tested, broken


def tasks(names: list[str], until: float):  # type: ignore[no-untyped-def]
    """Batches of all promises in turn, until the time or the seeds run out."""
    from promises import PROMISES

    begun = dict.fromkeys(names, 0)
    while any(begun[n] < PROMISES[n].soak for n in names):
        for name in names:
            share = max(BATCH, BATCH * PROMISES[name].soak // 10_000)
            first, end = begun[name], min(begun[name] + share, PROMISES[name].soak)
            if first < end:
                if time.time() > until:
                    return
                begun[name] = end
                yield name, first, end


def main() -> None:
    from promises import KERNELS, PROMISES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="promises whose name holds this")
    parser.add_argument("--write", type=Path, help="put the table into this file")
    options = parser.parse_args()
    names = [name for name in PROMISES if options.only in name]
    counts = {name: [0, 0] for name in names}
    failures: list[str] = []
    begun = time.time()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        todo = tasks(names, begun + 60 * options.minutes)
        running = {pool.submit(work, task) for task in islice(todo, 2 * options.jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(work, task) for task in islice(todo, len(done))}
            for name, cases, tested, broken in (future.result() for future in done):
                counts[name][0] += cases
                counts[name][1] += tested
                failures += broken
                for line in broken:
                    print(f"BROKEN {line[:600]}", flush=True)
    lines = ["| promise | check | cases | claims tested | broken |", "|---|---|---|---|---|"]
    for name in names:
        cases, tested = counts[name]
        mine = sum(line.startswith(f"{name},") for line in failures)
        lines.append(f"| {PROMISES[name].says} | `{name}` | {cases:,} | {tested:,} | {mine} |")
    spent = (time.time() - begun) / 60
    lines.append("")
    lines.append(
        f"{time.strftime('%Y-%m-%d')}, {spent:.0f} minutes, {options.jobs} processes, kernel sets "
        f"{', '.join(KERNELS)}, Python {platform.python_version()}, {platform.machine()}."
    )
    table = "\n".join(lines)
    print(table)
    if options.write:
        text = options.write.read_text().split(MARK)
        options.write.write_text(f"{text[0]}{MARK}\n\n{table}\n\n{MARK}{text[-1]}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
