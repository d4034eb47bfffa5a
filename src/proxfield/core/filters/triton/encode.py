# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Points as rows of float16 numbers whose products are exponents.

With xₕ the point rounded to a grid and xₗ the rest, −½‖x − y‖² is

    (xₕ·yₕ − ½‖xₕ‖² − ½‖yₕ‖²) + (xₕ·yₗ + xₗ·yₕ + xₗ·yₗ − xₕ·xₗ − ½‖xₗ‖² − yₕ·yₗ − ½‖yₗ‖²),

a sum of products of something of x with something of y, so one product of matrices gives it for
all pairs. Tensor cores add 16 products at a time. The first bracket comes first: its terms are
large but multiples of one small number, so they cancel without error; the second is small.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, tl, torch
from proxfield.core.devices.tensors import Tensor

BITS = 11
"""Of a float16's significand."""
MAX_COORDINATE = 512.0
"""Largest coordinate that can be encoded, in units of √ln 2 standard deviations."""
MAX_SHORT_COORDINATE = 64.0
"""Largest coordinate for which xₗ·yₗ may be left out, in the narrowest dimensions first."""
MAX_NUMBERS = 26
MAX_SCALED_COORDINATE = 256.0
"""Largest coordinate for which products can be 1024 times exponents."""
ROOT = 32.0
"""What both sides of such products are scaled by."""
ORIGIN = 48128.5
"""What is added to 1024 s, so that bytes 1 and 2 of the float32 sum are the float16 number 2^s but
for its fraction: 2^15 + 1024 · 15, and a half because the last byte is cut off."""


def first_slots(d: int) -> int:
    """Number of values per point for the first bracket."""
    return 16 if d + 6 <= 16 else 32


def slots(d: int, largest: float) -> tuple[int, int, int]:
    """Number of values per point, number of those in the first bracket, and terms kept of xₗ·yₗ.

    Example:
        >>> slots(2, 200.0), slots(5, 20.0), slots(5, 200.0)
        ((32, 16, 2), (32, 16, 2), (64, 16, 5))
    """
    first = first_slots(d)
    need = 2 * d + 4 if largest <= MAX_SHORT_COORDINATE else 3 * d + 4
    total = 32
    while total - first < need:
        total *= 2
    return total, first, min(d, total - first - 2 * d - 4)


class EncodeShape(NamedTuple):
    """What `encode_points` is compiled for."""

    dimensions: int
    slots: int
    first: int  # values of the first bracket
    cross: int  # terms kept of xₗ·yₗ
    bias: int
    half: float  # what is added to what the second bracket gives
    root: float  # what both sides are scaled by
    rows: int  # points of a program


@jit
def put_float16(left, right, row, slot: constexpr, a, b, K: constexpr, inside):
    """One number of each point's rows."""
    tl.store(left + row * K + slot, a.to(tl.float16), mask=inside)
    tl.store(right + row * K + slot, b.to(tl.float16), mask=inside)


@jit
def as_float16(value):
    """Rounded to float16."""
    return value.to(tl.float32).to(tl.float16).to(tl.float64)


@jit
def encode_points(
    points, order, column, left, right, n, padded, rows, step, unit, SHAPE: constexpr
):
    """Rows of points in order (see `encode_in_order`), and zeros for rows from ``padded`` on.

    ``step`` and ``unit`` are powers of two, so nothing is lost where they are float32.
    """
    D: constexpr = SHAPE.dimensions
    K: constexpr = SHAPE.slots
    FIRST: constexpr = SHAPE.first
    ROOT: constexpr = SHAPE.root
    ROWS: constexpr = SHAPE.rows
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    real = row < padded
    at = tl.minimum(tl.load(order + row, mask=real, other=0), n - 1)
    half = tl.zeros((ROWS,), tl.float64)
    rest = tl.zeros((ROWS,), tl.float64)
    for k in tl.static_range(D):
        x = tl.load(points + at * D + tl.load(column + k), mask=real, other=0.0)
        high = tl.floor(x / step + 0.5) * step
        low = as_float16(x - high)
        half -= 0.5 * high * high
        rest -= high * low + 0.5 * low * low
        high *= ROOT
        low *= ROOT
        put_float16(left, right, row, k, high, high, K, inside)
        put_float16(left, right, row, FIRST + k, high, low, K, inside)
        put_float16(left, right, row, FIRST + D + k, low, high, K, inside)
        if k < SHAPE.cross:
            put_float16(left, right, row, FIRST + 2 * D + 4 + k, low, low, K, inside)
    one = tl.full((ROWS,), 1.0, tl.float64)
    a = half + SHAPE.bias
    for k in tl.static_range(3):
        scale = one * unit if k == 0 else one
        p, q = as_float16(a / scale), as_float16(half / scale)
        put_float16(left, right, row, D + k, p, scale * (ROOT * ROOT), K, inside)
        put_float16(left, right, row, D + 3 + k, scale * (ROOT * ROOT), q, K, inside)
        a -= p * scale
        half -= q * scale
    b = rest + SHAPE.half
    one *= ROOT * ROOT
    for k in tl.static_range(2):
        p, q = as_float16(b), as_float16(rest)
        put_float16(left, right, row, FIRST + 2 * D + k, p, one, K, inside)
        put_float16(left, right, row, FIRST + 2 * D + 2 + k, one, q, K, inside)
        b -= p
        rest -= q


def encode_in_order(
    points: Tensor, order: Tensor, more: int, extents: list[float], bias: int, scaled: bool = False
) -> tuple[Tensor, Tensor]:
    """Rows left_i and right_j with left_i · right_j = bias − ½‖x_i − x_j‖², in an order.

    Args:
        points: With no coordinate over ``MAX_COORDINATE`` in size.  # (n, d) float64
        order: Numbers of points; n or more stands for the last one.  # (padded,)
        more: Rows after these, for points at 0.
        extents: Largest size of each coordinate.  # (d,)
        bias: A small whole number.
        scaled: Whether products are 1024 times exponents, plus `ORIGIN`. The first bracket alone
            then gives them of points rounded to the grid, less the half.
    """
    n, d = points.shape
    total, first, cross = slots(d, max(extents))
    step, unit = grids(d, max(extents))
    falling = sorted(range(d), key=lambda k: -extents[k])
    column = torch.tensor(falling, device=points.device)
    rows = len(order) + more
    left = torch.zeros((rows, total), dtype=torch.float16, device=points.device)
    right = torch.zeros_like(left)
    root, extra, half = (ROOT, int(ORIGIN) // 1024, 0.5 / 1024) if scaled else (1.0, 0, 0.0)
    encode_points[(-(-rows // 128),)](
        points, order, column, left, right, n, len(order), rows, step, unit,
        SHAPE=EncodeShape(d, total, first, cross, bias + extra, half, root, 128),
    )  # fmt: skip
    return left, right


def grids(d: int, largest: float) -> tuple[float, float]:
    """What coordinates are rounded to multiples of, and what the first part of ½‖xₕ‖² is."""
    step = 2.0 ** (_exponent(largest) - BITS)
    return step, 2.0 ** max(0, _exponent(0.5 * d * largest * largest) - 15)


def _exponent(value: float) -> int:
    """The smallest e ≥ 0 with value ≤ 2^e.

    Example:
        >>> _exponent(4.0), _exponent(4.1), _exponent(0.0)
        (2, 3, 0)
    """
    significand, e = math.frexp(value)
    return max(0, e - (significand == 0.5))
