"""``proxfield doctor`` and ``warmup``: is this installation sound, and are its kernels compiled?"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import click
import numpy as np

from proxfield._version import __version__
from proxfield.cli.main import BUG, report
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.shared import print_json, print_pairs
from proxfield.core.common.extras import install_hint
from proxfield.core.common.memory import available_memory, human_bytes
from proxfield.core.common.records import Record
from proxfield.core.compiled.jit import cache_root, kernel_cache, max_threads, shared_kernels
from proxfield.core.compiled.simd import choose
from proxfield.core.devices.base import DEVICES, find, kind_of
from proxfield.core.solve import infer as inference
from proxfield.errors import ProxfieldError
from proxfield.generate import grid
from proxfield.warming import warmup

PACKAGES = (
    *("numpy", "scipy", "numba", "llvmlite"),
    *("matplotlib", "pillow", "joblib", "torch", "triton"),
)
TOLERANCE = 1e-9


def examine(options: Options) -> int | None:
    """Run ``proxfield doctor``; returns its exit code."""
    with Display() as display:
        display.phase("checking")
        with display.announcing_compilation():
            problem = check_tiny_field()
        data = {
            "versions": versions(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "threads": max_threads(),
            "simd": str(choose()),
            **cache(),
            "memory_available": available_memory(),
            **graphics(),
            "check": "ok" if problem is None else problem,
        }
    if options.as_json:
        print_json(data)
    else:
        print_pairs(describe(data))
    if problem is not None:
        report(f"the tiny field came out wrong: {problem}; please report this")
        return BUG
    return None


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages used; None for missing ones."""

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    own = {"python": platform.python_version(), "proxfield": __version__}
    return {**own, **{name: installed(name) for name in PACKAGES}}


def cache() -> Record:
    """Where compiled kernels are kept."""
    folder, shared, total = kernel_cache(), shared_kernels(), 0
    for path in cache_root().rglob("*"):
        with suppress(OSError):  # it may vanish meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return {
        "cache_folder": str(cache_root()),
        "kernel_folder": str(folder),
        "shared_kernel_folder": None if shared is None else str(shared),
        "cache_bytes": total,
        "cache_writable": folder.is_relative_to(cache_root()) and os.access(folder, os.W_OK),
    }


def graphics() -> Record:
    """The GPUs that can be used, or why there is none. Imports torch if it is installed."""
    gpus: list[Record] = []
    problems = []
    for kind in (kind for kind in DEVICES if kind_of(kind).separate):
        try:
            gpus += [found._asdict() for found in find(kind).list_all()]
        except ProxfieldError as error:  # noqa: PERF203
            problems.append(str(error))
        except Exception as error:  # a broken torch must not hide what else there is to say
            problems.append(" ".join(f"torch fails: {type(error).__name__}: {error}".split()))
    return {"gpus": gpus, "gpu_problem": None if gpus else "; ".join(problems)}


def check_tiny_field() -> str | None:
    """Compare with brute force on a field of 64 labellings; None if all is well."""
    # without couplings mean field is exact, with them it is a bound and F has a slow twin
    for strength in (0.0, 1.5):
        field = grid(2, 3, strength=strength, seed=1)
        labellings = np.array(list(np.ndindex(*field.cardinalities)))
        energies = np.array([field.energy(x) for x in labellings])
        low = float(energies.min())
        log_z = -low + float(np.log(np.exp(low - energies).sum()))
        result = inference.infer(field, "fixed", threads=2)
        if not result.converged:
            return f"status {result.status.label}, expected converged"
        if abs(result.free_energy - field.free_energy(result.marginals)) > TOLERANCE:
            return f"F {result.free_energy!r}, expected {field.free_energy(result.marginals)!r}"
        if result.log_z_bound > log_z + TOLERANCE:
            return f"log Z bound {result.log_z_bound!r} above the exact {log_z!r}"
        if strength == 0 and abs(result.log_z_bound - log_z) > TOLERANCE:
            return f"log Z {result.log_z_bound!r}, expected {log_z!r}"
        if strength == 0 and abs(result.map_energy - low) > TOLERANCE:
            return f"MAP energy {result.map_energy!r}, expected {low!r}"
    return None


def describe(data: Record) -> list[tuple[str, str]]:
    """The findings as rows for people."""
    left = data["memory_available"]
    extra = {"matplotlib": "plot", "pillow": "images", "joblib": "images"}
    extra.update(torch="gpu", triton="gpu")
    gpus = [f"{gpu['name']}, {human_bytes(gpu['memory'])}" for gpu in data["gpus"]]
    hint = {name: f"missing: {install_hint(of)}" for name, of in extra.items()}
    writable = "writable"
    if not data["cache_writable"]:
        used = data["shared_kernel_folder"] is not None
        what = "its kernels are used, new ones" if used else "kernels"
        writable = f"not writable: {what} go to {data['kernel_folder']}; set PROXFIELD_CACHE_DIR"
    return [
        *((name, v or hint.get(name, "missing")) for name, v in data["versions"].items()),
        ("platform", data["platform"]),
        ("cores", str(data["cores"])),
        ("threads", str(data["threads"])),
        ("SIMD", data["simd"]),
        ("cache", f"{data['cache_folder']}, {human_bytes(data['cache_bytes'])}, {writable}"),
        ("memory available", "unknown" if left is None else human_bytes(left)),
        ("GPU", "; ".join(gpus) if gpus else f"none: {data['gpu_problem']}"),
        ("tiny field", data["check"]),
    ]


def compile_ahead(options: Options) -> None:
    """Run ``proxfield warmup``."""
    with Display() as display:
        display.phase("compiling")
        line = "{}: {} kernels, {:.1f} s".format
        done = warmup(options.everything, options.jobs, lambda *made: display.note(line(*made)))
    if options.as_json:
        made = {"kernels": done.kernels, "seconds": done.seconds}
        print_json({**made, "kernel_folder": str(done.folder), "families": done.families})
    else:
        click.echo(f"{done.kernels} kernels compiled in {done.seconds:.1f} s, in {done.folder}")
