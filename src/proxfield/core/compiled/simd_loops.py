"""The functions of `simd` as plain loops: slower, and nothing in them is private to numba.

Sums run over eight lanes that are added up in halves, as vector instructions do it, and
products are fused with sums: on most machines the results agree with `simd_llvm` to the bit.
"""

from __future__ import annotations

import numpy as np

from proxfield.core.common.arrays import Array
from proxfield.core.compiled.jit import exact
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
def add_lanes(
    a: float, b: float, c: float, d: float, e: float, f: float, g: float, h: float
) -> float:
    """The sum of eight lanes."""
    return ((a + e) + (c + g)) + ((b + f) + (d + h))


@exact
def smaller(a: float, b: float) -> float:
    """The smaller of two numbers; b where one is NaN."""
    return a if a < b else b


@exact
def lane_least(array: Array, at: int, width: int, lane: int) -> float:
    """The smallest number of one lane."""
    low = array.dtype.type(np.inf)
    for k in range(at + lane, at + width, LANES):
        low = smaller(low, array[k])
    return low


@exact
def least(array: Array, at: int, width: int) -> float:
    """The smallest number of a row."""
    a = smaller(lane_least(array, at, width, 0), lane_least(array, at, width, 4))
    b = smaller(lane_least(array, at, width, 1), lane_least(array, at, width, 5))
    c = smaller(lane_least(array, at, width, 2), lane_least(array, at, width, 6))
    d = smaller(lane_least(array, at, width, 3), lane_least(array, at, width, 7))
    return smaller(smaller(a, c), smaller(b, d))


@exact
def lane_total(array: Array, at: int, width: int, lane: int) -> float:
    """The sum of one lane."""
    out = array.dtype.type(0.0)
    for k in range(at + lane, at + width, LANES):
        out += array[k]
    return out


@exact
def total(array: Array, at: int, width: int) -> float:
    """The sum of a row."""
    return add_lanes(
        lane_total(array, at, width, 0),
        lane_total(array, at, width, 1),
        lane_total(array, at, width, 2),
        lane_total(array, at, width, 3),
        lane_total(array, at, width, 4),
        lane_total(array, at, width, 5),
        lane_total(array, at, width, 6),
        lane_total(array, at, width, 7),
    )


@exact
def lane_expected(
    seen: Array, at: int, q: Array, where: int, unary: Array, n: int, lane: int
) -> float:
    """Σ q · (unary + ½ seen) over one lane."""
    zero, half = seen.dtype.type(0.0), seen.dtype.type(0.5)
    out = zero
    for k in range(lane, n, LANES):
        p = q[where + k]
        energy = p * (unary[where + k] + half * seen[at + k])
        out += energy if p > zero else zero  # 0 · inf is 0
    return out


@exact
def expected(seen: Array, at: int, q: Array, where: int, unary: Array, n: int) -> float:
    """Σ q · (unary + ½ seen) over a row, where q > 0."""
    return add_lanes(
        lane_expected(seen, at, q, where, unary, n, 0),
        lane_expected(seen, at, q, where, unary, n, 1),
        lane_expected(seen, at, q, where, unary, n, 2),
        lane_expected(seen, at, q, where, unary, n, 3),
        lane_expected(seen, at, q, where, unary, n, 4),
        lane_expected(seen, at, q, where, unary, n, 5),
        lane_expected(seen, at, q, where, unary, n, 6),
        lane_expected(seen, at, q, where, unary, n, 7),
    )


@exact
def lane_weighted(e: Array, row: Array, at: int, width: int, lane: int) -> float:
    """Σ e · row over one lane."""
    zero = e.dtype.type(0.0)
    out = zero
    for k in range(at + lane, at + width, LANES):
        product = e[k] * row[k]
        out += product if e[k] > zero else zero
    return out


@exact
def weighted(e: Array, row: Array, at: int, width: int) -> float:
    """Σ e · row over a row, where e > 0."""
    return add_lanes(
        lane_weighted(e, row, at, width, 0),
        lane_weighted(e, row, at, width, 1),
        lane_weighted(e, row, at, width, 2),
        lane_weighted(e, row, at, width, 3),
        lane_weighted(e, row, at, width, 4),
        lane_weighted(e, row, at, width, 5),
        lane_weighted(e, row, at, width, 6),
        lane_weighted(e, row, at, width, 7),
    )


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
