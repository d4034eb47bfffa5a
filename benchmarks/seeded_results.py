"""Results of many seeded runs, to show that a refactoring changes no bit of them.

    python benchmarks/seeded_results.py record before.json    # at one commit
    python benchmarks/seeded_results.py record after.json     # at another, on the same machine
    python benchmarks/seeded_results.py compare before.json after.json

The runs use the public API alone, so that these files (``seeded_*.py``) work at both commits.
They cover all rules on the reference and the CPU kernels, in both types, on small fields of all
kinds of terms and on large ones for the parallel kernels; random fields, batches, curvature,
dense CRFs, the stand-in for pydensecrf and files. ``--torch`` adds the torch kernels, the layer
with its gradients, and the Triton kernels in Triton's interpreter; ``--gpu`` records the Triton
kernels on a GPU, alone.

For each case a file holds numbers as ``float.hex``, and of each array its type and shape, the
SHA-256 of its bytes and a sketch, from which `compare` estimates how far two arrays are apart.
Exit code of `compare`: 0 if all cases are identical, else 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite.binding import get_host_cpu_name
from numba.core import event
from numpy.typing import NDArray

SKETCH = 8
"""Numbers in an array's sketch: the norm of a difference is estimated to within about a third."""
THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "2",
}
"""Set before numpy and numba are imported: sums depend on how many threads share them."""
PARTS = {
    "cpu": THREADS,
    "torch": THREADS,
    "interpreter": {**THREADS, "TRITON_INTERPRET": "1"},
    "gpu": THREADS,
}
"""Parts of the cases, each run in a process of its own, and the environment of that process."""
MAX_RUNS = 3
"""Maximum number of runs of a part until one compiles nothing."""
PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "torch", "triton")


# ---- recording ----


def encode(value: Any) -> Any:
    """A value of a record as JSON: numbers exactly, arrays by their digest and sketch."""
    if isinstance(value, float):
        return value.hex()
    if not isinstance(value, np.ndarray):
        return value
    flat = np.ascontiguousarray(value)
    return {
        "dtype": flat.dtype.name,
        "shape": list(flat.shape),
        "sha256": hashlib.sha256(flat.tobytes()).hexdigest(),
        "sketch": sketch(flat.ravel()),
    }


def sketch(flat: NDArray[Any]) -> list[float]:
    """Sums with random signs: the mean square of the sums' differences estimates ‖a − b‖².

    What isn't finite counts as 0.
    """
    values = flat.astype(np.float64)
    values[~np.isfinite(values)] = 0.0
    return [float(x) for x in signs(len(flat)) @ values]


@cache
def signs(size: int) -> NDArray[np.float64]:
    """# (SKETCH, size)"""
    bits = np.random.default_rng(size).integers(0, 2, (SKETCH, size), dtype=np.int8)
    return (2.0 * bits - 1.0).astype(np.float64)


def describe_machine() -> dict[str, str]:
    """What the bits may depend on besides the code."""
    found = {d.metadata["Name"].lower(): d.version for d in distributions()}
    versions = {name: found.get(name, "none") for name in PACKAGES}
    return {"cpu": get_host_cpu_name(), "python": platform.python_version(), **versions}


def run_cases(part: str, only: str) -> dict[str, Any]:
    """The records of the cases of a part, by name."""
    import proxfield as pf

    if part == "cpu":
        from seeded_cases import cases
    elif part == "torch":
        from seeded_torch import torch_cases as cases
    elif part == "gpu":
        from seeded_torch import gpu_cases as cases
    else:
        from seeded_torch import interpreted_cases as cases
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    out: dict[str, Any] = {}
    begun = shown = time.perf_counter()
    for name, run in cases():
        if not name.startswith(only):
            continue
        assert name not in out, name
        try:
            out[name] = {key: encode(value) for key, value in run().items()}
        except Exception as error:  # not supporting something is behavior, too
            out[name] = {"error": type(error).__name__}
            if not isinstance(error, pf.ProxfieldError):
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        if time.perf_counter() > shown + 15:
            shown = time.perf_counter()
            print(f"{shown - begun:4.0f} s, {len(out)} cases: {name}", file=sys.stderr)
    failed = sum("error" in values for values in out.values())
    spent = time.perf_counter() - begun
    print(f"{part}: {len(out)} cases, {failed} of them errors, {spent:.0f} s", file=sys.stderr)
    return out


def run_part(part: str, only: str) -> dict[str, Any]:
    """`run_cases` in a process with the environment that the part needs.

    Where that process had to compile kernels it is run again: the process that compiles one may
    use other machine code (and round differently in the last bit) than those that load it.
    """
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "found.json"
        command = [sys.executable, __file__, "run", part, str(path), "--only", only]
        for _ in range(MAX_RUNS):
            done = subprocess.run(command, env={**os.environ, **PARTS[part]}, check=False)
            if done.returncode:
                sys.exit(done.returncode)
            found = json.loads(path.read_text())
            if not found["compiled"]:
                break
            print(f"{found['compiled']} kernels were compiled: once more", file=sys.stderr)
        else:
            sys.exit(f"kernels were compiled in each of {MAX_RUNS} runs: is their cache writable?")
    cases: dict[str, Any] = found["cases"]
    return cases


class Compilations(event.Listener):  # type: ignore[misc]
    """Counts kernels that numba compiles instead of loading them."""

    count = 0

    def on_start(self, event: Any) -> None:
        self.count += 1

    def on_end(self, event: Any) -> None:
        pass


# ---- comparing ----


def difference(before: Any, after: Any) -> str:
    """How two values differ, in words."""
    if before is None or after is None:
        return "only after" if before is None else "only before"
    if isinstance(before, dict) and isinstance(after, dict):
        for key in ("dtype", "shape"):
            if before[key] != after[key]:
                return f"{key} {before[key]} -> {after[key]}"
        gaps = np.subtract(before["sketch"], after["sketch"])
        apart = float(np.sqrt(np.mean(gaps**2)))
        return f"about {apart:.1e} apart (norm)" if apart > 0 else "in the last bits only"
    if isinstance(before, str) and isinstance(after, str):
        try:
            a, b = float.fromhex(before), float.fromhex(after)
        except ValueError:
            return f"{before} -> {after}"
        relative = abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a - b) and a != b else math.nan
        return f"{a!r} -> {b!r} ({b - a:+.1e}, relative {relative:.1e})"
    return f"{before} -> {after}"


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print all differences; returns how many cases differ."""
    for key, value in before["machine"].items():
        other = after["machine"].get(key)
        if value != other:
            print(f"not the same machine: {key} {value} -> {other}")
    old, new = before["cases"], after["cases"]
    same = changed = 0
    kinds: Counter[str] = Counter()
    for name, values in old.items():
        if values == new.get(name):
            same += 1
            continue
        changed += 1
        if name not in new:
            print(f"{name}: only before")
            continue
        print(name)
        for key in dict.fromkeys([*values, *new[name]]):
            a, b = values.get(key), new[name].get(key)
            if a != b:
                kinds[key] += 1
                print(f"    {key}: {difference(a, b)}")
    added = [name for name in new if name not in old]
    for name in added:
        print(f"{name}: only after")
    if kinds:
        print("cases by what differs: " + ", ".join(f"{k} {n}" for k, n in kinds.most_common()))
    print(f"{same} of {len(old)} cases are identical, {changed} differ, {len(added)} are new")
    return changed + len(added)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run all cases and write what they give")
    recording.add_argument("target", type=Path, metavar="OUT.json")
    recording.add_argument("--torch", action="store_true", help="also torch and Triton")
    recording.add_argument("--gpu", action="store_true", help="the kernels of a GPU, on one")
    running = commands.add_parser("run", help="one part, in this process (what record starts)")
    running.add_argument("part", choices=PARTS)
    running.add_argument("target", type=Path, metavar="OUT.json")
    for each in (recording, running):
        each.add_argument("--only", default="", help="cases whose name starts with this")
    comparing = commands.add_parser("compare", help="say what differs between two files")
    comparing.add_argument("before", type=Path, metavar="BEFORE.json")
    comparing.add_argument("after", type=Path, metavar="AFTER.json")
    options = parser.parse_args()
    if options.command == "compare":
        files = (json.loads(path.read_text()) for path in (options.before, options.after))
        sys.exit(min(1, compare(*files)))
    found: dict[str, Any]
    if options.command == "run":
        compiled = Compilations()
        event.register("numba:compile", compiled)
        found = {"cases": run_cases(options.part, options.only)}
        found["compiled"] = compiled.count
    else:
        found = {"machine": describe_machine(), "cases": {}}
        parts = ("cpu", "torch", "interpreter") if options.torch else ("cpu",)
        for part in ("gpu",) if options.gpu else parts:
            found["cases"].update(run_part(part, options.only))
    options.target.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
