"""Kernels compiled ahead of time: for containers, clusters, and a first call without a wait.

Kernels are compiled for types, not for sizes: small fields of every kind are enough. Those of a
*family* share kernels and are compiled in one process, one after another; families don't share any.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from proxfield.core.common.registry import Registry
from proxfield.errors import InputError, shown

LARGE_GRID = 360
"""Side of a binary grid that is iterated on several threads."""
LARGE_GENERAL_GRID = 230
"""Side of a grid of three labels that is iterated on several threads."""


@dataclass(frozen=True)
class Family:
    """Kernels that are compiled together, and which no other family needs."""

    compile: Callable[[bool], None]
    """Runs fields that need the kernels; with True, those of all options."""
    seconds: int
    """About how long it takes; the longest begin first."""
    usual: bool = True
    """Whether `warmup` compiles it by default."""


@dataclass(frozen=True)
class Warmed:
    """What `warmup` has compiled.

    Args:
        kernels: How many kernels; 0 if all were in the cache.
        seconds: Wall time.
        folder: Where they are kept.
        families: Kernels of each family.
    """

    kernels: int
    seconds: float
    folder: Path
    families: dict[str, int]


def warmup(
    all: bool = False,
    jobs: int | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> Warmed:
    """Compile the kernels of this machine's cache ahead of time.

    Args:
        all: Everything within reason: both floating-point types, all rules, fields over several
            threads, normalizations and other terms of dense CRFs, occupancy maps. Otherwise what
            `infer`, `solve_map` and `DenseCRF.infer` use by default.
        jobs: Maximum number of processes; by default one per core.
        progress: Called with (family, kernels, seconds) whenever a family is done.

    Returns:
        How many kernels were compiled, and where they are.

    Example:
        >>> import proxfield as pf
        >>> pf.warmup(jobs=1).kernels >= 0
        True
    """
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from proxfield.core.compiled.jit import kernel_cache, max_threads

    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise InputError(f"jobs={shown(jobs)}, expected a number ≥ 1")
    begun = time.perf_counter()
    longest = sorted(FAMILIES.items(), key=lambda item: -item[1].seconds)
    families = [name for name, family in longest if all or family.usual]
    jobs = min(jobs or max_threads(), len(families))
    found: dict[str, int] = {}

    def note(family: str, kernels: int, seconds: float) -> None:
        found[family] = kernels
        if progress is not None:
            progress(family, kernels, seconds)

    if jobs == 1:
        for family in families:
            note(family, *_compile_family(family, all))
    else:  # spawned: forked processes would inherit locks of numba's
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting = {pool.submit(_compile_family, name, all): name for name in families}
            for done in as_completed(waiting):
                note(waiting[done], *done.result())
    seconds = time.perf_counter() - begun
    return Warmed(sum(found.values()), seconds, kernel_cache(), {f: found[f] for f in families})


def _compile_family(name: str, all: bool) -> tuple[int, float]:
    """Run a family's fields; returns (kernels compiled, seconds)."""
    from proxfield.core.compiled.notice import compiled_kernels, suspended

    begun = time.perf_counter()
    with suspended(), compiled_kernels() as compiled:  # nothing is said on stderr
        FAMILIES[name].compile(all)
    return len(compiled), time.perf_counter() - begun


def _sparse(all: bool, n_labels: int, large: int) -> None:
    from proxfield.core.solve.infer import infer
    from proxfield.core.solve.rules.registry import RULES
    from proxfield.core.solve.solve_map import solve_map
    from proxfield.generate import grid

    small = grid(4, 4, n_labels=n_labels)
    _ = infer(small, max_iters=50, kernels="cpu").map_energy
    solve_map(small, max_iters=50, kernels="cpu")
    for rule in ("fixed", "adam"):  # on large fields `auto` runs the second
        infer(small, rule, max_iters=3, kernels="cpu")
    if not all:
        return
    for dtype in ("float64", "float32"):
        for name, kind in RULES.items():
            if not kind.special:
                infer(small, name, max_iters=3, dtype=dtype, kernels="cpu")
        field = grid(large, large, n_labels=n_labels)
        for rule in ("fixed", "adaptive", "colored"):
            infer(field, rule, max_iters=2, dtype=dtype)


FAMILIES: Registry[Family] = Registry()
"""What to compile, by the names of families."""
for _name, _labels, _large in (("two", 2, LARGE_GRID), ("any", 3, LARGE_GENERAL_GRID)):
    _run = partial(_sparse, n_labels=_labels, large=_large)
    FAMILIES[f"sparse fields, {_name} labels"] = Family(_run, seconds=40)
