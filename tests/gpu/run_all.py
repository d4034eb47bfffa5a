"""All tests of the GPU kernels and the torch layer, on a GPU or without one.

With a GPU the kernels run there. Without one they run in Triton's interpreter, which has to be
chosen before Triton is imported: hence a script that starts pytest once for each way of running.

    python tests/gpu/run_all.py [--jobs N] [--log FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES: dict[str, tuple[str, str]] = {
    "kernels": ("reference,cuda", "tests/gpu"),
    "conformance, cuda": ("reference,cuda", "tests/conformance"),
    "layer": ("reference,torch", "tests/torch_layer"),
    "reliability, cuda": ("reference,cuda", "tests/reliability"),
    "conformance, torch": ("reference,torch", "tests/conformance"),
    "pages": (
        "reference,torch",
        "tests/docs/test_pages.py::test_the_code_of_pages_with_torch_runs",
    ),
}
"""What is run, what takes long first: the kernel sets that tests compare, and the folder. The
interpreter takes seconds for what a GPU does in milliseconds: there, conformance tests cover fewer
combinations and promises are checked on fewer seeds, unless ``--all`` is given."""


TOGETHER = "tests/gpu/test_gpu_filter.py"
"""Its tests look at what one long run of the interpreter gave; each process would repeat it."""


def split(folder: str, env: dict[str, str], jobs: int) -> list[list[str]]:
    """The tests of a folder, dealt out to several processes.

    Those of the reference kernels alone are left to the main suite.
    """
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", folder],
        cwd=ROOT, env=env, text=True, capture_output=True, check=False,
    )  # fmt: skip
    names = [line for line in found.stdout.splitlines() if "::" in line]
    names = [name for name in names if "reference" not in re.split(r"[\[\]-]", name)]
    if found.returncode or not names:
        sys.exit(f"no tests were found:\n{found.stdout}{found.stderr}")
    kept = [name for name in names if name.startswith(TOGETHER)]
    others = [name for name in names if not name.startswith(TOGETHER)]
    parts = [others[k::jobs] for k in range(jobs)]
    parts[-1] += kept
    return [part for part in parts if part]


class Suite:
    """One suite, in as many parts as there are processes.

    Args:
        title: Its name.
        jobs: Number of parts.
        on_gpu: Whether there is a GPU; the interpreter is used otherwise.
        all_of_it: As with a GPU, also without one.
    """

    def __init__(self, title: str, jobs: int, on_gpu: bool, all_of_it: bool) -> None:
        self.title, self.jobs = title, jobs
        kernels, self.folder = SUITES[title]
        self.env = {**os.environ, "PROXFIELD_TEST_KERNELS": kernels, "OMP_NUM_THREADS": "1"}
        if all_of_it:
            self.env["PROXFIELD_TEST_ALL"] = "1"
        if not on_gpu and "cuda" in kernels:
            self.env["TRITON_INTERPRET"] = "1"

    def collect(self) -> list[list[str]]:
        """The names of the tests of each part."""
        return split(self.folder, self.env, self.jobs)

    def run(self, names: list[str]) -> tuple[int, float, str]:
        """One part: exit code, seconds, and what pytest said (its last line if all is well)."""
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "names"
            listed.write_text("\n".join(names))
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"@{listed}"]
            done = subprocess.run(
                command, cwd=ROOT, env=self.env, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        code = abs(done.returncode)
        said = done.stdout if code else done.stdout.splitlines()[-1]
        return code, time.perf_counter() - begun, said


def main() -> None:
    """Run the suites."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--log", type=Path, help="keep what is printed")
    parser.add_argument("--all", action="store_true", help="as with a GPU, also without one")
    parser.add_argument("--only", default="", help="suites whose name holds this")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("torch is not installed: make test-gpu installs it")
    import torch

    on_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else "Triton's interpreter, on the CPU"
    lines = [f"torch {torch.__version__}, {name}"]
    print(lines[0], flush=True)
    worst = 0
    suites = [
        Suite(title, options.jobs, on_gpu, options.all) for title in SUITES if options.only in title
    ]
    # parts of a suite take different times: no process waits for the others' suite to end
    with ThreadPoolExecutor(options.jobs) as pool:
        collected = [pool.submit(suite.collect) for suite in suites]
        running = [
            [pool.submit(suite.run, names) for names in parts.result()]
            for suite, parts in zip(suites, collected, strict=True)
        ]
        for suite, parts in zip(suites, running, strict=True):
            found = [part.result() for part in parts]
            worst = max(worst, *(code for code, *_ in found))
            lines.append(f"== {suite.title}")
            lines += [
                f"{said} (process: {spent:.0f} s, exit {code})" for code, spent, said in found
            ]
            print("\n".join(lines[-1 - len(found) :]), flush=True)
    if options.log:
        options.log.write_text("\n".join(lines) + "\n")
    sys.exit(min(worst, 1))


if __name__ == "__main__":
    main()
