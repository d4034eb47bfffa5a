"""Compiled kernels for occupancy maps: energy and gradient in one pass over pixels and locations.

Per camera: log p_i is added to a plane at the corners of each silhouette (or at the ends of its
runs) with alternating signs; running sums along columns and rows make log N of it, exp makes N, and
running sums of the image w N make its integral image, whose differences at the same corners are
the sums over silhouettes. Sums along a row depend on one another, so four rows go side by side.

A plane has a column and a row more than the part of the image that silhouettes cover; all
cameras' planes follow each other in one array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.compiled.jit import exact, inlined, kernel, parallel_kernel
from proxfield.compiled.math import FLOOR, LOG2_E, from_bits
from proxfield.terms.base import Doubles
from proxfield.terms.occupancy import DIRECT

LOG_DIRECT = float(np.log(DIRECT))
LN2 = float(np.log(2.0))
MAGIC = 1.5 * 2.0**52
"""Doubles of this size have no digits after the point."""
MAX_DIRECT = 4
"""Pixels that are summed one by one at most, as a multiple of those of the image."""
ROWS = 4
"""Rows that are summed side by side."""


class Cameras(NamedTuple):
    """Silhouettes of all cameras: parts of them (a box, or a run), as positions in the planes."""

    height: NDArray[np.int64]  # of what is covered  # (C,)
    width: NDArray[np.int64]
    plane: NDArray[np.int64]  # where each camera's plane begins  # (C + 1,)
    part: NDArray[np.int64]  # where its parts begin  # (C + 1,)
    boxes: NDArray[np.bool_]  # are the parts boxes?
    corner: NDArray[np.int32]  # left top, right top, left bottom, right bottom  # (K, 4)
    owner: NDArray[np.int32]  # location of each part  # (K,)
    image: Doubles  # w, or 1 − 2B, as large as the planes


class Room(NamedTuple):
    """Arrays that one evaluation fills."""

    start: NDArray[np.int64]  # where each camera's plane begins: one for all if 0  # (C,)
    cover: Doubles  # differences of log N, then N
    total: Doubles  # integral images
    rows: Doubles  # log N of a few rows, then w N  # (C, ROWS + 1, largest stride)
    inverse: Doubles  # 1/p_i  # (n,)
    slopes: Doubles  # ∂E/∂p_i  # (n,)


@exact
def exp_of(x: float) -> Any:
    """exp(x) for |x| below 700, without a division; relative error below 1e-12.

    x = k·ln 2 + r with |r| ≤ ln 2 / 2, and the Taylor polynomial of degree 10 in r. Adding
    `MAGIC` rounds to a whole number, which is then in the last bits of the sum. exp(−700) below.
    """
    x = FLOOR if x < FLOOR else x
    shifted = x * LOG2_E + MAGIC
    r = x - (shifted - MAGIC) * LN2
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0))
    middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0))
    high = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (1.0 / 3628800.0)
    scale = from_bits((np.float64(shifted).view(np.int64) + 1023) << 52)
    return (low + r4 * (middle + r4 * high)) * scale


@inlined
def planes(room: Room, c: int, size: int) -> tuple[Doubles, Doubles]:
    """Where one camera's log N or N and its integral image are."""
    start = room.start[c]
    return room.cover[start : start + size], room.total[start : start + size]


@inlined
def spread(cameras: Cameras, c: int, logs: Doubles, cover: Doubles) -> None:
    """Differences of log N of one camera."""
    corner, owner = cameras.corner, cameras.owner
    cover[:] = 0.0
    if cameras.boxes[c]:
        for k in range(cameras.part[c], cameras.part[c + 1]):
            value = logs[owner[k]]
            cover[corner[k, 0]] += value
            cover[corner[k, 1]] -= value
            cover[corner[k, 2]] -= value
            cover[corner[k, 3]] += value
    else:
        for k in range(cameras.part[c], cameras.part[c + 1]):
            value = logs[owner[k]]
            cover[corner[k, 0]] += value
            cover[corner[k, 1]] -= value


@inlined
def sum_up(cover: Doubles, at: int, stride: int, rows: Doubles, count: int, boxes: bool) -> None:
    """log N of ``count`` rows, 1 or `ROWS`, into the first rows of ``rows``."""
    above = rows[ROWS]
    r0, r1, r2, r3 = rows[0], rows[1], rows[2], rows[3]
    if not boxes:
        above[:stride] = 0.0
    d0 = cover[at : at + stride]
    a0 = 0.0
    if count == 1:
        for x in range(stride):
            a0 += d0[x]
            r0[x] = above[x] + a0
            above[x] = r0[x]
        return
    d1 = cover[at + stride : at + 2 * stride]
    d2 = cover[at + 2 * stride : at + 3 * stride]
    d3 = cover[at + 3 * stride : at + 4 * stride]
    a1, a2, a3 = 0.0, 0.0, 0.0
    if boxes:
        for x in range(stride):
            a0 += d0[x]
            a1 += d1[x]
            a2 += d2[x]
            a3 += d3[x]
            value = above[x] + a0
            r0[x] = value
            value += a1
            r1[x] = value
            value += a2
            r2[x] = value
            value += a3
            r3[x] = value
            above[x] = value
    else:
        for x in range(stride):
            a0 += d0[x]
            a1 += d1[x]
            a2 += d2[x]
            a3 += d3[x]
            r0[x] = a0
            r1[x] = a1
            r2[x] = a2
            r3[x] = a3


@inlined
def integrate(rows: Doubles, total: Doubles, at: int, stride: int, count: int, boxes: bool) -> None:
    """Add rows of an image to its integral image, whose row at ``at`` is the one before them."""
    r0, r1, r2, r3 = rows[0], rows[1], rows[2], rows[3]
    before = total[at : at + stride]
    t0 = total[at + stride : at + 2 * stride]
    keep = 1.0 if boxes else 0.0  # sums of runs don't go on from row to row
    t0[0] = 0.0
    a0 = 0.0
    if count == 1:
        for x in range(stride - 1):
            a0 += r0[x]
            t0[x + 1] = keep * before[x + 1] + a0
        return
    t1 = total[at + 2 * stride : at + 3 * stride]
    t2 = total[at + 3 * stride : at + 4 * stride]
    t3 = total[at + 4 * stride : at + 5 * stride]
    t1[0] = t2[0] = t3[0] = 0.0
    a1, a2, a3 = 0.0, 0.0, 0.0
    if boxes:
        for x in range(stride - 1):
            a0 += r0[x]
            a1 += r1[x]
            a2 += r2[x]
            a3 += r3[x]
            value = before[x + 1] + a0
            t0[x + 1] = value
            value += a1
            t1[x + 1] = value
            value += a2
            t2[x + 1] = value
            value += a3
            t3[x + 1] = value
    else:
        for x in range(stride - 1):
            a0 += r0[x]
            a1 += r1[x]
            a2 += r2[x]
            a3 += r3[x]
            t0[x + 1] = a0
            t1[x + 1] = a1
            t2[x + 1] = a2
            t3[x + 1] = a3


@inlined
def exact_camera(cameras: Cameras, c: int, room: Room, logs: Doubles, direct: bool) -> float:
    """Integral image of w N of one camera; returns Σ w N."""
    start, end = cameras.plane[c], cameras.plane[c + 1]
    height, stride, boxes = cameras.height[c], cameras.width[c] + 1, cameras.boxes[c]
    image = cameras.image[start:end]
    cover, total = planes(room, c, end - start)
    rows = room.rows[c]
    spread(cameras, c, logs, cover)
    rows[ROWS, :stride] = 0.0
    total[:stride] = 0.0
    energy = 0.0
    y = 0
    while y < height:
        count = ROWS if y + ROWS <= height else 1
        at = y * stride
        sum_up(cover, at, stride, rows, count, boxes)
        for k in range(count):
            row, w = rows[k], image[at + k * stride : at + (k + 1) * stride]
            if direct:
                n = cover[at + k * stride : at + (k + 1) * stride]
                for x in range(stride):
                    n[x] = exp_of(row[x])
                    row[x] = w[x] * n[x]
            else:
                for x in range(stride):
                    row[x] = w[x] * exp_of(row[x])
        integrate(rows, total, at, stride, count, boxes)
        if not boxes:
            for k in range(count):
                energy += total[at + (k + 2) * stride - 1]
        y += count
    return total[(height + 1) * stride - 1] if boxes else energy


@inlined
def ratio_camera(
    cameras: Cameras, c: int, room: Room, logs: Doubles, ground: float, base: float
) -> tuple[float, float]:
    """N of one camera, and the integral image of (1 − 2B − Ψ) N; returns Ψ and den.

    ``ground`` is εG, and ``base`` εG + Σ B + Σ (1 − 2B), the second over what is covered.
    """
    start, end = cameras.plane[c], cameras.plane[c + 1]
    height, stride, boxes = cameras.height[c], cameras.width[c] + 1, cameras.boxes[c]
    image = cameras.image[start:end]
    cover, total = planes(room, c, end - start)
    rows = room.rows[c]
    spread(cameras, c, logs, cover)
    rows[ROWS, :stride] = 0.0
    total[:stride] = 0.0
    empty, signed = 0.0, 0.0
    y = 0
    while y < height:
        count = ROWS if y + ROWS <= height else 1
        at = y * stride
        sum_up(cover, at, stride, rows, count, boxes)
        for k in range(count):
            row, sign = rows[k], image[at + k * stride : at + (k + 1) * stride]
            n = cover[at + k * stride : at + (k + 1) * stride]
            part, with_sign = 0.0, 0.0
            for x in range(stride - 1):
                n[x] = exp_of(row[x])
                part += n[x]
                with_sign += n[x] * sign[x]
            empty += part
            signed += with_sign
        y += count
    den = ground + (height * (stride - 1) - empty)
    psi = (base - signed) / den
    y = 0
    while y < height:
        count = ROWS if y + ROWS <= height else 1
        at = y * stride
        for k in range(count):
            row, sign = rows[k], image[at + k * stride : at + (k + 1) * stride]
            n = cover[at + k * stride : at + (k + 1) * stride]
            for x in range(stride - 1):
                row[x] = n[x] * (sign[x] - psi)
        integrate(rows, total, at, stride, count, boxes)
        y += count
    return psi, den


@inlined
def difference(total: Doubles, corner: NDArray[np.int32], k: int, stride: int, boxes: bool) -> Any:
    """Sum over one part of a silhouette, from the integral image."""
    if boxes:
        return (total[corner[k, 3]] - total[corner[k, 1]]) - (
            total[corner[k, 2]] - total[corner[k, 0]]
        )
    return total[corner[k, 1] + stride] - total[corner[k, 0] + stride]


@inlined
def gather(
    cameras: Cameras, c: int, room: Room, logs: Doubles, direct: bool, factor: float, psi: float,
    out: Doubles,
) -> None:  # fmt: skip
    """Add ``factor`` · Σ_{R_i} (image − ψ) N/p_i to ``out``; the integral image holds the sums."""
    start, end = cameras.plane[c], cameras.plane[c + 1]
    stride, boxes = cameras.width[c] + 1, cameras.boxes[c]
    _, total = planes(room, c, end - start)
    corner, owner, inverse = cameras.corner, cameras.owner, room.inverse
    for k in range(cameras.part[c], cameras.part[c + 1]):
        i = owner[k]
        if direct and logs[i] < LOG_DIRECT:
            continue
        out[i] += factor * inverse[i] * difference(total, corner, k, stride, boxes)
    if direct:
        gather_small(cameras, c, room, logs, factor, psi, out)


@inlined
def gather_small(
    cameras: Cameras, c: int, room: Room, logs: Doubles, factor: float, psi: float, out: Doubles
) -> None:
    """The same for p_i below `DIRECT`, where differences of integral images lose their digits.

    Their pixels are summed one by one, unless these would be more than the image has a few times:
    then from integral images of the pixels with small N alone, one for each factor of `DIRECT`.
    """
    start, end = cameras.plane[c], cameras.plane[c + 1]
    height, stride, boxes = cameras.height[c], cameras.width[c] + 1, cameras.boxes[c]
    image = cameras.image[start:end]
    cover, total = planes(room, c, end - start)
    corner, owner, inverse = cameras.corner, cameras.owner, room.inverse
    first, last = cameras.part[c], cameras.part[c + 1]
    area = 0
    for k in range(first, last):
        if logs[owner[k]] < LOG_DIRECT:
            n_rows = (corner[k, 2] - corner[k, 0]) // stride if boxes else 1
            area += n_rows * (corner[k, 1] - corner[k, 0])
    if area <= MAX_DIRECT * (end - start):
        for k in range(first, last):
            i = owner[k]
            if logs[i] < LOG_DIRECT:
                n_rows = (corner[k, 2] - corner[k, 0]) // stride if boxes else 1
                value = 0.0
                for y in range(n_rows):
                    a, b = corner[k, 0] + y * stride, corner[k, 1] + y * stride
                    for x in range(a, b):
                        value += (image[x] - psi) * cover[x]
                out[i] += factor * inverse[i] * value
        return
    rows = room.rows[c]
    top = LOG_DIRECT
    while top > 6 * LOG_DIRECT:
        low = top + LOG_DIRECT
        limit = exp_of(top) * (1.0 + 1e-6)  # N may have been rounded up
        y = 0
        while y < height:
            count = ROWS if y + ROWS <= height else 1
            at = y * stride
            for k in range(count):
                row, w = rows[k], image[at + k * stride : at + (k + 1) * stride]
                n = cover[at + k * stride : at + (k + 1) * stride]
                for x in range(stride - 1):
                    row[x] = (w[x] - psi) * n[x] if n[x] < limit else 0.0
            integrate(rows, total, at, stride, count, boxes)
            y += count
        for k in range(first, last):
            i = owner[k]
            if low <= logs[i] < top:
                out[i] += factor * inverse[i] * difference(total, corner, k, stride, boxes)
        top = low


@inlined
def invert(logs: Doubles, inverse: Doubles) -> bool:
    """1/p_i of each location; returns whether some p_i is too small for integral images."""
    few = 0
    for i in range(len(logs)):
        inverse[i] = exp_of(-logs[i])
        few += logs[i] < LOG_DIRECT
    return few > 0


@kernel
def exact_serial(cameras: Cameras, room: Room, logs: Doubles) -> float:
    """∂E/∂p_i into ``room.slopes``; returns Σ w N."""
    direct = invert(logs, room.inverse)
    room.slopes[:] = 0.0
    energy = 0.0
    for c in range(len(cameras.height)):
        energy += exact_camera(cameras, c, room, logs, direct)
        gather(cameras, c, room, logs, direct, 1.0, 0.0, room.slopes)
    return energy


@kernel
def ratio_serial(
    cameras: Cameras, room: Room, logs: Doubles, ground: Doubles, base: Doubles, variance: float
) -> float:
    """∂E/∂p_i into ``room.slopes``; returns the energy."""
    direct = invert(logs, room.inverse)
    room.slopes[:] = 0.0
    energy = 0.0
    for c in range(len(cameras.height)):
        psi, den = ratio_camera(cameras, c, room, logs, ground[c], base[c])
        energy += psi * psi / (2.0 * variance)
        gather(cameras, c, room, logs, direct, -psi / (variance * den), psi, room.slopes)
    return energy


@parallel_kernel
def exact_parallel(
    cameras: Cameras, room: Room, logs: Doubles, slopes: Doubles, energies: Doubles
) -> None:
    """Cameras over threads, each with its own slopes and energy.  # slopes: (C, n)"""
    direct = invert(logs, room.inverse)
    for c in numba.prange(len(energies)):
        slopes[c] = 0.0
        energies[c] = exact_camera(cameras, c, room, logs, direct)
        gather(cameras, c, room, logs, direct, 1.0, 0.0, slopes[c])


@parallel_kernel
def ratio_parallel(
    cameras: Cameras, room: Room, logs: Doubles, ground: Doubles, base: Doubles, variance: float,
    slopes: Doubles, energies: Doubles,
) -> None:  # fmt: skip
    """Likewise."""
    direct = invert(logs, room.inverse)
    for c in numba.prange(len(energies)):
        slopes[c] = 0.0
        psi, den = ratio_camera(cameras, c, room, logs, ground[c], base[c])
        energies[c] = psi * psi / (2.0 * variance)
        gather(cameras, c, room, logs, direct, -psi / (variance * den), psi, slopes[c])
