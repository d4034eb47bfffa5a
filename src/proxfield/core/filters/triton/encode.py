"""Points as rows of float16 numbers whose products are exponents.

With xₕ the point rounded to a grid and xₗ the rest, −½‖x − y‖² is

    (xₕ·yₕ − ½‖xₕ‖² − ½‖yₕ‖²) + (xₕ·yₗ + xₗ·yₕ + xₗ·yₗ − xₕ·xₗ − ½‖xₗ‖² − yₕ·yₗ − ½‖yₗ‖²),

a sum of products of something of x with something of y, so one product of matrices gives it for
all pairs. Tensor cores add 16 products at a time. The first bracket comes first: its terms are
large but multiples of one small number, so they cancel without error; the second is small.
"""

from __future__ import annotations

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.triton.order_kernels import encode_points

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


def _pieces(value: Tensor, count: int) -> list[Tensor]:
    """A number as a sum of float16 numbers, the largest first."""
    out = []
    for _ in range(count):
        piece = value.to(torch.float16).to(value.dtype)
        out.append(piece)
        value = value - piece
    return out


def encode(points: Tensor, bias: float) -> tuple[Tensor, Tensor]:
    """Rows left_i and right_j with left_i · right_j = bias − ½‖x_i − x_j‖²; the plain way.

    Args:
        points: With no coordinate over ``MAX_COORDINATE`` in size.  # (n, d) float64
        bias: A small whole number.

    Returns:
        Both.  # 2 × (n, slots) float16
    """
    n, d = points.shape
    largest = float(points.abs().max()) if n else 0.0
    total, first, cross = slots(d, largest)
    points = points[:, points.abs().amax(0).argsort(descending=True)]
    step, unit = grids(d, largest)
    high = torch.round(points / step) * step
    low = (points - high).to(torch.float16).to(points.dtype)
    half = -0.5 * (high * high).sum(1)
    rest = -(high * low).sum(1) - 0.5 * (low * low).sum(1)
    one = torch.ones_like(half)
    left = torch.zeros((n, total), dtype=torch.float16, device=points.device)
    right = torch.zeros_like(left)

    def put(at: int, a: list[Tensor], b: list[Tensor]) -> None:
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            left[:, at + k] = x
            right[:, at + k] = y

    def halves(value: Tensor) -> list[Tensor]:
        big = (value / unit).to(torch.float16).to(value.dtype)
        return [big, *_pieces(value - big * unit, 2)]

    put(0, [*high.T], [*high.T])
    put(d, [*halves(half + bias), unit * one, one, one], [unit * one, one, one, *halves(half)])
    put(first, [*high.T, *low.T], [*low.T, *high.T])
    parts = _pieces(rest, 2)
    put(first + 2 * d, [*parts, one, one], [one, one, *parts])
    put(first + 2 * d + 4, [*low.T[:cross]], [*low.T[:cross]])
    return left, right


def encode_in_order(
    points: Tensor, order: Tensor, more: int, extents: list[float], bias: int, scaled: bool = False
) -> tuple[Tensor, Tensor]:
    """The same of points in an order, by one kernel.

    Args:
        points: # (n, d) float64
        order: Numbers of points; n or more stands for the last one.  # (padded,)
        more: Rows after these, for points at 0.
        extents: Largest size of each coordinate.  # (d,)
        bias: A small whole number.
        scaled: Whether products are 1024 times exponents, plus `ORIGIN`. The first bracket alone
            then gives them of points rounded to the grid, less the half.

    Returns:
        Both.  # 2 × (padded + more, slots) float16
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
        BIAS=bias + extra, HALF=half, ROOT=root, D=d, K=total, FIRST=first, CROSS=cross, ROWS=128,
    )  # fmt: skip
    return left, right


def grids(d: int, largest: float) -> tuple[float, float]:
    """What coordinates are rounded to multiples of, and what the first part of ½‖xₕ‖² is."""
    step = 2.0 ** (max(0, _exponent(largest)) - BITS)
    return step, 2.0 ** max(0, _exponent(0.5 * d * largest * largest) - 15)


def _exponent(value: float) -> int:
    """The smallest e with value ≤ 2^e.

    Example:
        >>> _exponent(4.0), _exponent(4.1), _exponent(0.0)
        (2, 3, 0)
    """
    e = 0
    while value > 2.0**e:
        e += 1
    return e
