"""The functions of `simd` as plain loops: slower, and nothing in them is private to numba.

Sums run over eight lanes that are added up in halves, as vector instructions do it, and
products are fused with sums: on most machines the results agree with `simd_llvm` to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Array
from proxfield.core.compiled.jit import Compiled, exact
from proxfield.core.compiled.simd import LANES

# ---- one group of lanes ----


@exact
def clear(to: Array, at: int) -> None:
    """to = 0."""
    for l in range(LANES):
        to[at + l] = 0.0


@exact
def put_scaled(to: Array, at: int, source: Array, where: int, w: float) -> None:
    """to = w · source."""
    w = to.dtype.type(w)
    for l in range(LANES):
        to[at + l] = w * source[where + l]


@exact
def add_scaled(to: Array, at: int, source: Array, where: int, w: float) -> None:
    """to += w · source."""
    w = to.dtype.type(w)
    for l in range(LANES):
        to[at + l] += w * source[where + l]


@exact
def blend(to: Array, at: int, source: Array, a: int, b: int, c: int, m: float, s: float) -> None:
    """to = m · source[a] + s · (source[b] + source[c])."""
    middle, side = to.dtype.type(m), to.dtype.type(s)
    for l in range(LANES):
        to[at + l] = middle * source[a + l] + side * (source[b + l] + source[c + l])


@exact
def add_masked(to: Array, at: int, source: Array, where: int, count: int, fill: float) -> None:
    """to += source in ``count`` lanes; else fill."""
    for l in range(LANES):
        if l < count:
            to[at + l] += source[where + l]
        else:
            to[at + l] = fill


@exact
def scale(to: Array, at: int, factor: float, plus: float) -> None:
    """to = to · factor + plus."""
    factor, plus = to.dtype.type(factor), to.dtype.type(plus)
    for l in range(LANES):
        to[at + l] = to[at + l] * factor + plus


# ---- sums over a row: one number per lane, then halves of the lanes at a time ----


@exact
def smaller(a: float, b: float) -> float:
    """The smaller of two numbers; b where one is NaN."""
    return a if a < b else b


@exact
def plus(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


def over_lanes(combine: Compiled) -> Callable[[Callable[..., float]], Compiled]:
    """Make a function of a row of one that has the number of a lane as its first argument."""

    def made(function: Callable[..., float]) -> Compiled:
        lane = exact(function)

        @exact
        def row(*args: Any) -> float:
            a, b = combine(lane(0, *args), lane(4, *args)), combine(lane(1, *args), lane(5, *args))
            c, d = combine(lane(2, *args), lane(6, *args)), combine(lane(3, *args), lane(7, *args))
            return combine(combine(a, c), combine(b, d))

        return row

    return made


@over_lanes(smaller)
def least(lane: int, array: Array, at: int, width: int) -> float:
    """The smallest number of a row."""
    low = array.dtype.type(np.inf)
    for k in range(at + lane, at + width, LANES):
        low = smaller(low, array[k])
    return low


@over_lanes(plus)
def total(lane: int, array: Array, at: int, width: int) -> float:
    """The sum of a row."""
    out = array.dtype.type(0.0)
    for k in range(at + lane, at + width, LANES):
        out += array[k]
    return out


@over_lanes(plus)
def expected(lane: int, seen: Array, at: int, q: Array, where: int, unary: Array, n: int) -> float:
    """Σ q · (unary + ½ seen) over a row, where q > 0."""
    zero, half = seen.dtype.type(0.0), seen.dtype.type(0.5)
    out = zero
    for k in range(lane, n, LANES):
        p = q[where + k]
        energy = p * (unary[where + k] + half * seen[at + k])
        out += energy if p > zero else zero  # 0 · inf is 0
    return out


@over_lanes(plus)
def weighted(lane: int, e: Array, row: Array, at: int, width: int) -> float:
    """Σ e · row over a row, where e > 0."""
    zero = e.dtype.type(0.0)
    out = zero
    for k in range(at + lane, at + width, LANES):
        product = e[k] * row[k]
        out += product if e[k] > zero else zero
    return out


# ---- rows with and without padding ----


@exact
def store_row(to: Array, where: int, source: Array, at: int, n: int) -> None:
    """n numbers from a padded row to an unpadded one."""
    for k in range(n):
        to[where + k] = source[at + k]


@exact
def load_row(to: Array, at: int, source: Array, where: int, n: int) -> None:
    """n numbers to a padded row, 0 in its padding."""
    for k in range(n):
        to[at + k] = source[where + k]
    for k in range(n, (n + LANES - 1) // LANES * LANES):
        to[at + k] = 0.0


@exact
def replace_row(
    peak: Array, new: Array, at: int, old: Array, before: Array, where: int, n: int
) -> None:
    """n numbers of ``before`` become those of ``new``; the largest changes are kept, and NaN."""
    for k in range(n):
        lane = k % LANES
        fresh = new[at + k]
        gap, gap_before = abs(fresh - old[where + k]), abs(fresh - before[where + k])
        # NaN loses every comparison: a new one is larger, and one that was seen stays
        if not gap <= peak[lane] and peak[lane] == peak[lane]:
            peak[lane] = gap
        if not gap_before <= peak[LANES + lane] and peak[LANES + lane] == peak[LANES + lane]:
            peak[LANES + lane] = gap_before
        before[where + k] = fresh


# ---- corners of a lattice ----


@exact
def gather_row(
    to: Array, at: int, source: Array, width: int, row: Array, weight: Array, where: int,
    corners: int, begin: int, factor: float,
) -> None:  # fmt: skip
    """Add to the row to[at:] the rows begin + row[where + k] of ``source``, weighted."""
    factor = to.dtype.type(factor)
    for l in range(width):
        seen = to.dtype.type(0.0)
        for k in range(where, where + corners):
            seen += to.dtype.type(weight[k]) * source[(begin + row[k]) * width + l]
        to[at + l] += factor * seen


@exact
def scatter_row(
    to: Array, source: Array, at: int, width: int, row: Array, weight: Array, where: int,
    corners: int, begin: int, factor: float,
) -> None:  # fmt: skip
    """Add the row source[at:] to the rows begin + row[where + k] of ``to``, weighted."""
    factor = to.dtype.type(factor)
    for k in range(where, where + corners):
        w = to.dtype.type(weight[k])
        there = (begin + row[k]) * width
        for l in range(width):
            to[there + l] += w * (factor * source[at + l])


@exact
def sum_listed(
    to: Array, at: int, source: Array, width: int, row: Array, where: int, count: int, factor: float
) -> None:
    """The row to[at:] becomes the sum of the rows row[where + k] of ``source``, times a factor."""
    factor = to.dtype.type(factor)
    for l in range(width):
        seen = to.dtype.type(0.0)
        for k in range(where, where + count):
            seen += source[np.int64(row[k]) * width + l]
        to[at + l] = factor * seen


# ---- eight rows of an image ----


@exact
def sum_rows(to: Array, source: Array, at: int, stride: int, above: Array, keep: float) -> None:
    """Eight rows summed down and along the rows, turned; ``source`` becomes 0."""
    keep, zero = to.dtype.type(keep), to.dtype.type(0.0)
    for x in range(stride):
        down = above[x]
        for l in range(LANES):
            here = at + l * stride + x
            down = keep * down + source[here]
            source[here] = zero
            to[x * LANES + l] = (zero if x == 0 else to[(x - 1) * LANES + l]) + down
        above[x] = down


@exact
def integrate_rows(to: Array, at: int, stride: int, source: Array, keep: float) -> None:
    """Eight turned rows summed along the rows and down, after the row at ``at``."""
    keep, zero = to.dtype.type(keep), to.dtype.type(0.0)
    for l in range(LANES):
        along = zero
        for x in range(stride):
            along = along + source[x * LANES + l]
            here = at + l * stride + x
            to[here + stride] = keep * to[here] + along
