"""Kernels compiled ahead of time: for containers, clusters, and a first call without a wait.

Kernels are compiled for types, not for sizes: small fields of every kind are enough. Those of a
*family* share kernels and are compiled in one process, one after another; families don't share any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.errors import InputError, shown

PIXELS = (64, 64)
"""Size of the images: with 21 labels they are iterated as large ones are."""
LARGE_GRID = 360
"""Side of a binary grid that is iterated on several threads."""
LARGE_GENERAL_GRID = 230
"""Side of a grid of three labels that is iterated on several threads."""


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
    from proxfield.core.compiled.jit import kernel_cache, max_threads

    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise InputError(f"jobs={shown(jobs)}, expected a number ≥ 1")
    begun = time.perf_counter()
    families = list(FAMILIES) if all else list(USUAL)
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
    begun = time.perf_counter()
    with _counting() as compiled:
        FAMILIES[name](all)
    return len(compiled), time.perf_counter() - begun


@contextmanager
def _counting() -> Iterator[list[str]]:
    """The names of kernels that are compiled meanwhile; nothing is said on stderr."""
    from proxfield.core.compiled.notice import compiled_kernels, suspended

    with suspended(), compiled_kernels() as names:
        yield names


# ---- the families ----


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
        for rule in RULES:
            if rule != "original":  # for occupancy maps
                infer(small, rule, max_iters=3, dtype=dtype, kernels="cpu")
        field = grid(large, large, n_labels=n_labels)
        for rule in ("fixed", "adaptive", "colored"):
            infer(field, rule, max_iters=2, dtype=dtype)


def _binary(all: bool) -> None:
    _sparse(all, 2, LARGE_GRID)


def _general(all: bool) -> None:
    _sparse(all, 3, LARGE_GENERAL_GRID)


def _image(labels: int, channels: int = 3, blur: str = "separable", **options: Any) -> Any:
    """A small image with random probabilities, filtered with lattices as large ones are.

    Small images have separable blurs; ``blur`` is that of the bilateral term.
    """
    from proxfield.core.filters.geometry import BLURS
    from proxfield.core.filters.lattice import LatticeFilter
    from proxfield.images.densecrf import DenseCRF

    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, size=(*PIXELS, channels)).astype(np.uint8)
    p = rng.dirichlet(np.ones(labels), size=PIXELS)
    crf = DenseCRF(image, p, filter="lattice", **options)
    bilateral: Any = crf.terms[-1]
    bilateral.filter = LatticeFilter(bilateral.features, BLURS[blur])
    return crf


def _dense(all: bool) -> None:
    for labels in (21, 2):
        for blur in ("separable", "star"):
            crf = _image(labels, blur=blur)
            for rule in ("fixed", "full-parallel"):
                _ = crf.infer(rule, max_iters=2).map_energy
    _filters(np.float32)
    if not all:
        return
    for dtype in ("float32", "float64"):
        _filters(np.dtype(dtype))
        for channels in (1, 3, 6):
            for blur in ("separable", "star"):
                _image(21, channels, blur).infer(max_iters=2, dtype=dtype)
        for normalization in ("none", "before", "symmetric"):
            crf = _image(21, normalization=normalization, self_message=normalization != "none")
            for rule, options in (("fixed", {}), ("fixed", {"step": 0.5}), ("adaptive", {})):
                crf.infer(rule, max_iters=2, dtype=dtype, **options)
        matrix = np.ones((21, 21)) - np.eye(21) + np.diag(np.linspace(0, 0.1, 21))
        _image(21, compatibility=-matrix).infer(max_iters=2, dtype=dtype)
        for labels in (2, 21):  # updates alone, as the stand-in for pydensecrf and the layer make
            crf = _image(labels)
            crf.infer(max_iters=2, dtype=dtype, trace=False)


def _filters(dtype: Any) -> None:
    """Products with lattices that are too large for what small images use."""
    from proxfield.core.filters.geometry import BLURS
    from proxfield.core.filters.lattice import LatticeFilter

    rng = np.random.default_rng(0)
    for d, blur in product((2, 5), BLURS.values()):
        lattice = LatticeFilter(rng.normal(size=(500, d)), blur)
        lattice.apply(np.ones((500, 3), dtype=dtype))
        rows = np.zeros(lattice.n_rows)
        here, there = np.zeros((2, lattice.n_vertices + 1))
        lattice.blur_one(rows, here, there, False)


def _occupancy(all: bool) -> None:
    from proxfield.core.solve.infer import infer
    from proxfield.core.terms.occupancy import Occupancy
    from proxfield.core.terms.silhouettes import Boxes
    from proxfield.core.terms.unary import Unary
    from proxfield.field import Field

    boxes = Boxes(4, 8, [[0, 0, 2, 3], [2, 0, 4, 3], [4, 1, 7, 4]])
    masks = [np.eye(4, 8, dtype=bool)] * 2
    for model in ("exact", "ratio"):
        term = Occupancy([boxes, boxes], masks, model=model)
        field = Field(3, 2, [term, Unary(np.tile([0.0, 3.0], (3, 1)))])
        for dtype in ("float64", "float32"):
            for rule in ("adam", "backtracking", "original" if model == "ratio" else "sweep"):
                infer(field, rule, max_iters=3, dtype=dtype)


FAMILIES: dict[str, Callable[[bool], None]] = {
    "dense fields": _dense,
    "sparse fields, two labels": _binary,
    "sparse fields, any labels": _general,
    "occupancy maps": _occupancy,
}
"""Each runs fields that need its kernels; the longest first."""
USUAL = ("dense fields", "sparse fields, two labels", "sparse fields, any labels")
