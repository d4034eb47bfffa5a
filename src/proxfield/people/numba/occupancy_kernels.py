"""Compiled kernels for occupancy maps: energy and gradient in one pass over pixels and locations.

Per camera: log p_i is added to a plane at the corners of each silhouette (or at the ends of its
runs) with alternating signs; running sums along columns and rows make log N of it, exp makes N, and
running sums of the image w N make its integral image, whose differences at the same corners are
the sums over silhouettes. Sums along a row depend on one another, so eight rows go side by side.
Logarithms are to base 2 inside, which saves a multiplication per pixel.

Planes have a row before the part of the image that silhouettes cover, and a column on each side;
their strides and numbers of rows are multiples of eight. All cameras' planes follow each other in
one array. Images are *turned*: eight rows at a time, with the eight numbers of a column together.
Positions are unsigned, because numba checks signed ones for negative values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles
from proxfield.core.compiled.jit import exact, inlined, kernel, parallel_kernel
from proxfield.core.compiled.math import LOG2_E, from_bits
from proxfield.core.compiled.simd import LANES, integrate_rows, sum_rows
from proxfield.people.numba import DIRECT, SMALLEST

LOG_DIRECT = float(np.log2(DIRECT))
LOG_SMALLEST = float(np.log2(SMALLEST))
MAGIC = 1.5 * 2.0**52
"""Doubles of this size have no digits after the point."""
LEAST_POWER = -1000.0
"""2 to less than this would be subnormal; such a probability is 0 for every purpose."""
MAX_DIRECT = 8
"""Pixels that are summed one by one at most, as a multiple of those of the image."""
LEVEL = float(np.log2(1e8))
"""Range of p_i, in powers of 2, that one integral image of small N serves."""


class Cameras(NamedTuple):
    """Silhouettes of all cameras: parts of them (a box, or a run), as positions in the planes."""

    height: NDArray[np.int64]  # of what is covered  # (C,)
    width: NDArray[np.int64]
    rows: NDArray[np.int64]  # of a plane, but for the first, rounded up
    stride: NDArray[np.int64]
    plane: NDArray[np.int64]  # where each camera's plane begins  # (C + 1,)
    part: NDArray[np.int64]  # where its parts begin  # (C + 1,)
    boxes: NDArray[np.bool_]  # are the parts boxes?
    corner: NDArray[np.uint32]  # left top, right top, left bottom, right bottom  # (K, 4)
    owner: NDArray[np.uint32]  # location of each part  # (K,)


class Room(NamedTuple):
    """Arrays that one evaluation fills."""

    start: NDArray[np.int64]  # where each camera's plane begins: one for all if 0  # (C,)
    cover: Doubles  # differences of log N; 0 before and after
    total: Doubles  # integral images
    empty: Doubles  # N, turned, where it is needed again
    turned: Doubles  # log N of eight rows, then w N  # (C, LANES · largest stride)
    above: Doubles  # sums of the rows above  # (C, largest stride)
    powers: Doubles  # log2 p_i  # (n,)
    slopes: Doubles  # ∂E/∂p_i  # (n,)
    few: NDArray[np.uint32]  # parts of locations with small p_i  # (K,)


class Ratio(NamedTuple):
    """What the ratio model compares images with."""

    ground: Doubles  # εG  # (C,)
    base: Doubles  # εG + Σ B + Σ (1 − 2B), the second over what is covered  # (C,)
    variance: float


@exact
def exp2_of(x: float) -> Any:
    """2 to the x for |x| up to 1000, without a division; relative error below 1e-13.

    x = k + r with |r| ≤ ½, and a polynomial of degree 9 in r (fitted at Chebyshev points). Adding
    `MAGIC` rounds to a whole number, which is then in the last bits of the sum.
    """
    x = LEAST_POWER if x < LEAST_POWER else x
    shifted = x + MAGIC
    r = x - (shifted - MAGIC)
    p = 1.0205905413765595e-07
    p = p * r + 1.325964524488711e-06
    p = p * r + 1.5252672924850737e-05
    p = p * r + 0.0001540343375125101
    p = p * r + 0.0013333558200794592
    p = p * r + 0.009618129193934313
    p = p * r + 0.05550410866465167
    p = p * r + 0.2402265069564034
    p = p * r + 0.6931471805599462
    p = p * r + 1.0
    return from_bits(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52))


@inlined
def plane_of(array: Doubles, cameras: Cameras, c: int, room: Room) -> Doubles:
    """One camera's part of an array of planes."""
    start = room.start[c]
    return array[start : start + cameras.plane[c + 1] - cameras.plane[c]]


@inlined
def spread(cameras: Cameras, c: int, powers: Doubles, cover: Doubles) -> None:
    """Differences of log N of one camera."""
    corner, owner = cameras.corner, cameras.owner
    shifted = cover[1:]  # planes have a column before the image
    if cameras.boxes[c]:
        for k in range(cameras.part[c], cameras.part[c + 1]):
            value = powers[owner[k]]
            shifted[corner[k, 0]] += value
            shifted[corner[k, 1]] -= value
            shifted[corner[k, 2]] -= value
            shifted[corner[k, 3]] += value
    else:
        for k in range(cameras.part[c], cameras.part[c + 1]):
            value = powers[owner[k]]
            shifted[corner[k, 0]] += value
            shifted[corner[k, 1]] -= value


@inlined
def see_camera(
    cameras: Cameras, images: Doubles, c: int, room: Room, direct: bool, ratio: Ratio | None
) -> tuple[float, float, float]:
    """Integral image of w N of one camera; (1 − 2B − Ψ) N in place of it by the ratio model.

    Returns Σ w N (without a meaning by the ratio model), and the ``factor`` and ψ of `gather`.
    """
    height, width, stride = cameras.height[c], cameras.width[c], cameras.stride[c]
    boxes = cameras.boxes[c]
    keep = 1.0 if boxes else 0.0  # sums of runs don't go on from row to row
    image = images[cameras.plane[c] : cameras.plane[c + 1]]
    cover, total = plane_of(room.cover, cameras, c, room), plane_of(room.total, cameras, c, room)
    empty = plane_of(room.empty, cameras, c, room)
    turned, above = room.turned[c], room.above[c]
    spread(cameras, c, room.powers, cover)
    above[:stride] = 0.0
    total[:stride] = 0.0
    energy, nobody, signed = 0.0, 0.0, 0.0
    for y in range(0, cameras.rows[c], LANES):
        at = y * stride
        sum_rows(turned, cover, at, stride, above, keep)
        n, w = empty[at : at + LANES * stride], image[at : at + LANES * stride]
        if ratio is None:
            if direct:
                for x in range(LANES * stride):
                    n[x] = exp2_of(turned[x])
                    turned[x] = w[x] * n[x]
            else:
                for x in range(LANES * stride):
                    turned[x] = w[x] * exp2_of(turned[x])
            integrate_rows(total, at, stride, turned, keep)
            if not boxes:
                for k in range(LANES):
                    energy += total[at + (k + 2) * stride - 1]
        if ratio is not None:
            for x in range(LANES * stride):
                n[x] = exp2_of(turned[x])
            n[:LANES] = 0.0  # what is beside the image counts for nothing
            n[LANES * (width + 1) :] = 0.0
            for row in range(max(0, height - y), LANES):
                for x in range(stride):
                    n[x * LANES + row] = 0.0
            part, with_sign = 0.0, 0.0
            for x in range(LANES * stride):
                part += n[x]
                with_sign += n[x] * w[x]
            nobody += part
            signed += with_sign
    factor, psi = 1.0, 0.0
    if ratio is not None:
        den = ratio.ground[c] + (height * width - nobody)
        psi = (ratio.base[c] - signed) / den
        for y in range(0, cameras.rows[c], LANES):
            at = y * stride
            n, w = empty[at : at + LANES * stride], image[at : at + LANES * stride]
            for x in range(LANES * stride):
                turned[x] = n[x] * (w[x] - psi)
            integrate_rows(total, at, stride, turned, keep)
        factor = -psi / (ratio.variance * den)
    whole = total[(cameras.rows[c] + 1) * stride - 1]
    return whole if boxes else energy, factor, psi


@inlined
def difference(total: Doubles, corner: NDArray[np.uint32], k: int, boxes: bool) -> Any:
    """Sum over one part of a silhouette, from the integral image."""
    if boxes:
        return (total[corner[k, 3]] - total[corner[k, 1]]) - (
            total[corner[k, 2]] - total[corner[k, 0]]
        )
    return total[corner[k, 1]] - total[corner[k, 0]]


@inlined
def gather(
    cameras: Cameras, images: Doubles, c: int, room: Room, direct: bool, factor: float, psi: float,
    out: Doubles,
) -> None:  # fmt: skip
    """Add ``factor`` · Σ_{R_i} (image − ψ) N to ``out``; the integral image holds the sums."""
    boxes = cameras.boxes[c]
    total = plane_of(room.total, cameras, c, room)
    if not boxes:
        total = total[cameras.stride[c] :]  # the row of the run itself
    corner, owner = cameras.corner, cameras.owner
    first, last = cameras.part[c], cameras.part[c + 1]
    if not direct:
        for k in range(first, last):
            out[owner[k]] += factor * difference(total, corner, k, boxes)
        return
    few = room.few[first:last]
    count = 0
    for k in range(first, last):
        i = owner[k]
        if room.powers[i] < LOG_DIRECT:
            few[count] = k
            count += 1
        else:
            out[i] += factor * difference(total, corner, k, boxes)
    if count > 0:
        gather_small(cameras, images, c, room, few[:count], factor, psi, out)


@inlined
def sum_part(
    image: Doubles, empty: Doubles, psi: float, stride: int, first: int, n_rows: int, n_columns: int
) -> float:
    """Σ (image − ψ) N over a box, pixel by pixel; ``first`` is its left top corner."""
    top = first // stride
    left = first - top * stride + 1
    y, end = top, top + n_rows
    value = 0.0
    while y < end:
        group = y // LANES
        at, y = (group * stride + left) * LANES, (group + 1) * LANES
        w, n = image[at : at + n_columns * LANES], empty[at : at + n_columns * LANES]
        low, high = max(top - group * LANES, 0), min(end - group * LANES, LANES)
        if high - low == LANES:
            for x in range(n_columns * LANES):
                value += (w[x] - psi) * n[x]
        else:
            for row in range(low, high):
                for x in range(n_columns):
                    value += (w[x * LANES + row] - psi) * n[x * LANES + row]
    return value


@inlined
def gather_small(
    cameras: Cameras, images: Doubles, c: int, room: Room, few: NDArray[np.uint32], factor: float,
    psi: float, out: Doubles,
) -> None:  # fmt: skip
    """`gather` for p_i below `DIRECT`, where differences of integral images lose their digits.

    Their pixels are summed one by one, unless these would be more than the image has a few times:
    then from integral images of the pixels with small N alone, one for each `LEVEL`. All pixels of
    a silhouette have N ≤ p_i, so the rest of the image doesn't belong to it, and an integral image
    of what is at most t has errors of about 1e-16 · t · Σ|w|: relative to a p_i of at least
    t · 1e-8, a slope is wrong by 1e-8 · Σ|w| at most, and p_i itself by that times p_i.
    """
    stride, boxes = cameras.stride[c], cameras.boxes[c]
    keep = 1.0 if boxes else 0.0
    image = images[cameras.plane[c] : cameras.plane[c + 1]]
    total, empty = plane_of(room.total, cameras, c, room), plane_of(room.empty, cameras, c, room)
    corner, owner, powers = cameras.corner, cameras.owner, room.powers
    area = 0
    for j in range(len(few)):
        k = few[j]
        n_rows = np.int64(corner[k, 2] - corner[k, 0]) // stride if boxes else 1
        area += n_rows * np.int64(corner[k, 1] - corner[k, 0])
    if area <= MAX_DIRECT * cameras.rows[c] * stride:
        for j in range(len(few)):
            k = few[j]
            n_rows = np.int64(corner[k, 2] - corner[k, 0]) // stride if boxes else 1
            n_columns = np.int64(corner[k, 1] - corner[k, 0])
            value = sum_part(image, empty, psi, stride, np.int64(corner[k, 0]), n_rows, n_columns)
            out[owner[k]] += factor * value
        return
    turned = room.turned[c]
    seen = total if boxes else total[stride:]
    top = LOG_DIRECT
    while top > LOG_SMALLEST:
        low = top - LEVEL if top - LEVEL > LOG_SMALLEST + 1.0 else -np.inf
        limit = exp2_of(top) * (1.0 + 1e-6)  # N may have been rounded up
        for y in range(0, cameras.rows[c], LANES):
            at = y * stride
            w, n = image[at : at + LANES * stride], empty[at : at + LANES * stride]
            for x in range(LANES * stride):
                turned[x] = (w[x] - psi) * n[x] if n[x] < limit else 0.0
            integrate_rows(total, at, stride, turned, keep)
        for j in range(len(few)):
            k = few[j]
            i = owner[k]
            if low <= powers[i] < top:
                out[i] += factor * difference(seen, corner, k, boxes)
        top = low


@inlined
def begin(logs: Doubles, room: Room) -> bool:
    """log2 p_i of each location; returns whether some p_i is too small for integral images."""
    powers, few = room.powers, 0
    for i in range(len(logs)):
        power = logs[i] * LOG2_E
        power = LOG_SMALLEST if power < LOG_SMALLEST else power
        powers[i] = power
        few += power < LOG_DIRECT
    return few > 0


@inlined
def finish(powers: Doubles, slopes: Doubles) -> None:
    """Sums over silhouettes, divided by p_i."""
    for i in range(len(powers)):
        slopes[i] *= exp2_of(-powers[i])


@kernel
def evaluate(
    cameras: Cameras, images: Doubles, room: Room, logs: Doubles, ratio: Ratio | None
) -> float:
    """∂E/∂p_i into ``room.slopes``; returns the energy, without its constant."""
    direct = begin(logs, room)
    room.slopes[:] = 0.0
    energy = 0.0
    for c in range(len(cameras.height)):
        own, factor, psi = see_camera(cameras, images, c, room, direct, ratio)
        if ratio is not None:
            own = psi * psi / (2.0 * ratio.variance)
        energy += own
        gather(cameras, images, c, room, direct, factor, psi, room.slopes)
    finish(room.powers, room.slopes)
    return energy


@parallel_kernel
def evaluate_apart(
    cameras: Cameras, images: Doubles, room: Room, logs: Doubles, ratio: Ratio | None,
    slopes: Doubles, energies: Doubles,
) -> None:  # fmt: skip
    """Cameras over threads, each with its own slopes and energy.  # slopes: (C, n)"""
    direct = begin(logs, room)
    for c in numba.prange(len(energies)):
        slopes[c] = 0.0
        energy, factor, psi = see_camera(cameras, images, c, room, direct, ratio)
        if ratio is not None:
            energy = psi * psi / (2.0 * ratio.variance)
        energies[c] = energy
        gather(cameras, images, c, room, direct, factor, psi, slopes[c])


@kernel
def finish_apart(slopes: Doubles, room: Room) -> None:
    """∂E/∂p_i from those of the cameras, summed in their order.  # slopes: (C, n)"""
    out = room.slopes
    out[:] = 0.0
    for c in range(len(slopes)):
        out += slopes[c]
    finish(room.powers, out)


@kernel
def turn_image(
    mask: Doubles, shares: Doubles, low: float, high: float, origin: tuple[int, int],
    cameras: Cameras, c: int, out: Doubles,
) -> None:  # fmt: skip
    """One camera's image, turned, from what silhouettes cover of its mask: share times ``low`` for
    the background to ``high`` for the foreground. Shares of one pixel only are those of all.
    """
    top, left = origin
    stride, width = cameras.stride[c], cameras.width[c]
    for y in range(cameras.height[c]):
        row = mask[top + y, left : left + width]
        at = cameras.plane[c] + ((y // LANES) * stride + 1) * LANES + y % LANES
        to = out[at:]
        if shares.size == 1:
            share = shares[0, 0]
            for x in range(width):
                to[x * LANES] = (row[x] * (high - low) + low) * share
        else:
            parts = shares[top + y, left : left + width]
            for x in range(width):
                to[x * LANES] = (row[x] * (high - low) + low) * parts[x]
