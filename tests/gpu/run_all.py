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
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES: dict[str, tuple[str, str]] = {
    "kernels": ("reference,cuda", "tests/gpu"),
    "layer": ("reference,torch", "tests/torch_layer"),
    "pages": (
        "reference,torch",
        "tests/docs/test_pages.py::test_the_code_of_pages_with_torch_runs",
    ),
    "reliability, cuda": ("reference,cuda", "tests/reliability"),
    "conformance, cuda": ("reference,cuda", "tests/conformance"),
    "conformance, torch": ("reference,torch", "tests/conformance"),
}
"""What is run: the kernel sets that tests compare, and the folder. The interpreter takes seconds
for what a GPU does in milliseconds: there, conformance tests cover fewer combinations and promises
are checked on fewer seeds, unless ``--all`` is given."""


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


def run(title: str, jobs: int, on_gpu: bool, all_of_it: bool) -> tuple[int, str]:
    """One suite; returns the worst exit code and what pytest said at the end."""
    kernels, folder = SUITES[title]
    env = {**os.environ, "PROXFIELD_TEST_KERNELS": kernels, "OMP_NUM_THREADS": "1"}
    if all_of_it:
        env["PROXFIELD_TEST_ALL"] = "1"
    if not on_gpu and "cuda" in kernels:
        env["TRITON_INTERPRET"] = "1"
    begun = time.perf_counter()
    workers = []
    place = tempfile.mkdtemp()
    for k, names in enumerate(split(folder, env, jobs)):
        listed = Path(place) / str(k)
        listed.write_text("\n".join(names))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"@{listed}"]
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        workers.append(subprocess.Popen(command, cwd=ROOT, env=env, **out))
    worst, said = 0, []
    for worker in workers:
        text, _ = worker.communicate()
        worst = max(worst, abs(worker.returncode))
        said.append(text if worker.returncode else text.splitlines()[-1])
    shutil.rmtree(place)
    spent = time.perf_counter() - begun
    return worst, "\n".join([f"== {title}: {spent:.0f} s, exit {worst}", *said])


def main() -> None:
    """Run the suites one after another."""
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
    for title in SUITES:
        if options.only in title:
            code, text = run(title, options.jobs, on_gpu, options.all)
            worst = max(worst, code)
            lines.append(text)
            print(text, flush=True)
    if options.log:
        options.log.write_text("\n".join(lines) + "\n")
    sys.exit(min(worst, 1))


if __name__ == "__main__":
    main()
