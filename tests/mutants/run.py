"""Put one small fault after another into the package: do the tests notice?

    python tests/mutants/run.py [NAMES] [--jobs N] [--torch-python PATH] [--report FILE]

Tests run on a copy of the tree that keeps its place, so that compiled kernels are found again;
faults are put in when a module is imported. Before that, the tests have to pass without a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from mutant import Mutant, MutantError
from mutants_inference import MUTANTS as INFERENCE
from mutants_modes import MUTANTS as MODES
from mutants_structure import MUTANTS as STRUCTURE
from worker import Task

MUTANTS: list[Mutant] = [*INFERENCE, *MODES, *STRUCTURE]
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "proxfield"
COPIED = ("src", "tests", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md")
"""What tests read."""
KERNELS = ("core/compiled/", "core/filters/numba/", "core/engines/numba/", "core/engines/plan.py")
"""Files whose faults must not get into the kernels that others use."""
TEST_SECONDS = 900.0
"""Time limit of the tests of one mutant."""
MIN_CAUGHT = 58
"""Mutants that have to be caught where all are run."""
PASSED, FAILED, TOO_LONG = 0, 1, -1
"""Exit codes of pytest, and what a worker says of tests that don't end."""
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--tb=line")


@dataclass(frozen=True)
class Outcome:
    """How the tests of a mutant ended.

    Attributes:
        mutant: The fault.
        verdict: "caught", "survived", "skipped" (tests need what isn't installed) or "error".
        seconds: Duration.
        detail: The test that failed, or what went wrong.
    """

    mutant: Mutant
    verdict: str
    seconds: float
    detail: str


def copy_tree(folder: Path) -> None:
    """Copy what tests need; times of files are kept, because caches of kernels depend on them."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if target.is_dir():
            shutil.rmtree(target)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@dataclass
class Job:
    """Runs tests on the copy, one after another.

    Args:
        number: Of this job.
        folder: The copy of the tree.
        scratch: A folder for what it writes.
        torch_python: The interpreter for mutants that need torch, if there is one.
    """

    number: int
    folder: Path
    scratch: Path
    torch_python: str | None
    workers: dict[bool, subprocess.Popen[str]] = field(default_factory=dict)

    def worker(self, torch: bool) -> subprocess.Popen[str]:
        """The process that runs tests, with or without torch; started when first needed."""
        if torch not in self.workers:
            python = self.torch_python if torch and self.torch_python else sys.executable
            self.workers[torch] = subprocess.Popen(
                [python, str(self.folder / "tests" / "mutants" / "worker.py")],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(self.folder / "src")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self.workers[torch]

    def test(
        self, nodes: Sequence[str], torch: bool, mutant: Mutant | None = None
    ) -> tuple[int, str]:
        """Run some tests until one fails; returns pytest's exit code and what it wrote."""
        output, cache = self.scratch / f"output-{self.number}.txt", self.scratch / "cache"
        path, source = Path(), ""
        if mutant is not None:
            path = self.folder / "src" / "proxfield" / mutant.path
            source = mutant.mutate(path.read_text(encoding="utf-8"))
            if mutant.path.startswith(KERNELS):
                cache = self.scratch / "caches" / mutant.name
        task: Task = {
            "output": str(output),
            "arguments": [*OPTIONS, *nodes],
            "seconds": TEST_SECONDS,
            "cache": str(cache),
            "path": str(path) if source else "",
            "source": source,
        }
        output.unlink(missing_ok=True)  # never read what other tests wrote
        worker = self.worker(torch)
        assert worker.stdin is not None and worker.stdout is not None
        print(json.dumps(task), file=worker.stdin, flush=True)
        code = int(worker.stdout.readline())
        return code, output.read_text(encoding="utf-8", errors="replace")

    def try_mutant(self, mutant: Mutant) -> Outcome:
        """Run the tests of a mutant."""
        begun = time.perf_counter()
        try:
            verdict, detail = judge(*self.test(mutant.nodes, mutant.needs_torch, mutant))
        except MutantError as error:
            verdict, detail = "error", str(error)
        return Outcome(mutant, verdict, time.perf_counter() - begun, detail)

    def close(self) -> None:
        """End the processes that run tests."""
        for worker in self.workers.values():
            worker.communicate()


def judge(code: int, text: str) -> tuple[str, str]:
    """The verdict on a mutant, and a detail, from what pytest said.

    Example:
        >>> judge(1, "FAILED tests/test_a.py::test_b - assert 1 == 2")
        ('caught', 'tests/test_a.py::test_b')
        >>> judge(0, "3 skipped in 0.1s")[0], judge(0, "3 passed in 0.1s")[0]
        ('skipped', 'survived')
        >>> judge(4, "ERROR: not found: tests/test_a.py::test_b")[0]
        'error'
    """
    lines = text.strip().splitlines() or [""]
    if code == FAILED:
        failed = [line.split()[1] for line in lines if line.startswith("FAILED ")]
        return ("caught", failed[0]) if failed else ("error", lines[-1])
    if code == PASSED:
        said = ("survived", "passed"), ("skipped", "skipped")
        return next((v for v, word in said if word in lines[-1]), "error"), lines[-1]
    return "error", f"no end within {TEST_SECONDS:g} s" if code == TOO_LONG else lines[-1]


def check_without_faults(job: Job, mutants: Sequence[Mutant]) -> None:
    """Exit unless all tests pass as long as nothing is wrong."""
    for torch in (False, True):
        nodes = {n for mutant in mutants if mutant.needs_torch is torch for n in mutant.nodes}
        if nodes and (job.torch_python or not torch):
            code, text = job.test(sorted(nodes), torch)
            if code != PASSED:
                sys.exit(f"{text}\nthe tests fail without a fault")


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes in Markdown."""
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    ran = sum(outcome.verdict != "skipped" for outcome in outcomes)
    rows = [
        "# Mutants",
        "",
        "Small faults, put into the package one at a time (`make mutants`), and the test that",
        f"noticed each: {caught} of {ran} were caught.",
        "",
        "| fault | file | verdict | noticed by |",
        "|---|---|---|---|",
    ]
    for outcome in outcomes:
        mutant, by = outcome.mutant, outcome.detail.partition("::")[2]
        noticed = f"`{by.partition('[')[0]}`" if outcome.verdict == "caught" else outcome.detail
        rows.append(f"| {mutant.name} | `{mutant.path}` | {outcome.verdict} | {noticed} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run the command line; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="names of mutants, or parts of them; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="maximum number of tests at a time")
    parser.add_argument("--torch-python", help="interpreter with torch, for the torch layer")
    parser.add_argument("--report", type=Path, help="file to write the table to")
    parser.add_argument("--scratch", type=Path, help="folder for the copy and its kernels")
    parser.add_argument("--unchecked", action="store_true", help="don't test without a fault first")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if not args.names or any(part in m.name for part in args.names)]
    scratch = (args.scratch or Path(tempfile.gettempdir()) / "proxfield-mutants").absolute()
    copy_tree(scratch / "copy")
    torch_python = str(Path(args.torch_python).absolute()) if args.torch_python else None
    jobs: SimpleQueue[Job] = SimpleQueue()
    for number in range(args.jobs):
        jobs.put(Job(number, scratch / "copy", scratch, torch_python))

    def work(mutant: Mutant) -> Outcome:
        job = jobs.get()
        try:
            outcome = job.try_mutant(mutant)
        finally:
            jobs.put(job)
        line = f"{outcome.verdict:9}{outcome.seconds:6.1f} s  {mutant.name}: {outcome.detail}"
        print(line, flush=True)
        return outcome

    if not args.unchecked:
        first = jobs.get()
        check_without_faults(first, chosen)
        jobs.put(first)
    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(work, chosen))
    while not jobs.empty():
        jobs.get().close()
    if args.report:
        args.report.write_text(table(outcomes), encoding="utf-8")
    verdicts = [outcome.verdict for outcome in outcomes]
    counts = {kind: verdicts.count(kind) for kind in ("caught", "survived", "skipped", "error")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    enough = counts["survived"] == 0 if args.names else counts["caught"] >= MIN_CAUGHT
    return 0 if enough and not counts["error"] else 1


if __name__ == "__main__":
    sys.exit(main())
