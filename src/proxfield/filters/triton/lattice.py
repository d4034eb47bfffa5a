# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The permutohedral lattice on a GPU: Gaussian filtering in time linear in the number of points.

The operator of `proxfield.filters.lattice`, K = S C Cᵀ Sᵀ: symmetric and without negative
eigenvalues by construction. Everything is a gather: a vertex adds up the entries in its list
(splat), then reads its two neighbors along each axis (blur), and a point reads its corners
(slice). Nothing is added atomically, so the same values give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxfield.devices.cuda import jit, need, tl, torch
from proxfield.devices.tensors import Tensor
from proxfield.errors import InputError
from proxfield.filters.geometry import NEIGHBOR_SHARE
from proxfield.filters.plan import Plan
from proxfield.filters.triton.lattice_build import Vertices, build
from proxfield.filters.triton.segments import SegmentSum, channel_block, has_kernels

if TYPE_CHECKING:
    from proxfield.devices.tensors import constexpr
else:
    constexpr = str if tl is None else tl.constexpr

ROWS = 32
"""Vertices or points of a program."""


@jit
def blur_axis(source, target, back, forth, n, c, SHARE: constexpr, ROWS: constexpr, C: constexpr):
    """A vertex keeps 1 − 2·SHARE of itself and gets SHARE of both neighbors."""
    vertex = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    inside = vertex < n
    real = inside[:, None] & (channel < c)[None, :]
    a = tl.load(back + vertex, mask=inside, other=-1).to(tl.int64)
    b = tl.load(forth + vertex, mask=inside, other=-1).to(tl.int64)
    own = tl.load(source + vertex[:, None] * c + channel[None, :], mask=real, other=0.0)
    left = real & (a >= 0)[:, None]
    right = real & (b >= 0)[:, None]
    near = tl.load(source + a[:, None] * c + channel[None, :], mask=left, other=0.0)
    near += tl.load(source + b[:, None] * c + channel[None, :], mask=right, other=0.0)
    own = own * (1.0 - 2.0 * SHARE) + near * SHARE
    tl.store(target + vertex[:, None] * c + channel[None, :], own, mask=real)


@jit
def slice_corners(
    vertices, corner, weight, out, n, c, CORNERS: constexpr, ROWS: constexpr, C: constexpr
):
    """out_i = Σ_k weight_ik · vertices[corner_ik]."""
    point = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    inside = point < n
    real = inside[:, None] & (channel < c)[None, :]
    total = tl.zeros((ROWS, C), vertices.dtype.element_ty)
    for k in range(CORNERS):
        at = tl.load(corner + point * CORNERS + k, mask=inside, other=0).to(tl.int64)
        w = tl.load(weight + point * CORNERS + k, mask=inside, other=0.0).to(total.dtype)
        v = tl.load(vertices + at[:, None] * c + channel[None, :], mask=real, other=0.0)
        total += w[:, None] * v
    tl.store(out + point[:, None] * c + channel[None, :], total, mask=real)


class LatticePlan(Plan):
    """K @ values with the lattice's kernel over fixed points, on any device of torch.

    On a CUDA device by Triton's kernels, elsewhere by plain torch operations. The result has
    the values' floating-point type, and that of the CPU's lattice up to rounding.

    Args:
        features: A floating-point tensor, in units of standard deviations.  # (n, d)
        room: Number of vertices to make arrays for, by default as many as there are. With it
            nothing waits for the device, so that a CUDA graph can hold the plan and all that
            follows; `needed` says afterwards whether it was enough.

    Example:
        >>> plan = LatticePlan(tensor([[0.0], [0.1], [50.0]]))  # doctest: +SKIP
        >>> seen = plan.apply(tensor([[1.0], [0.0], [0.0]]))  # doctest: +SKIP
        >>> bool(seen[1] > 0.9), float(seen[2])  # doctest: +SKIP
        (True, 0.0)
    """

    name = "lattice"

    def __init__(self, features: Tensor, room: int | None = None) -> None:
        need("torch")
        if features.ndim != 2 or not features.is_floating_point() or not features.shape[1]:
            raise InputError("features must be a floating-point tensor of shape (points, features)")
        self.features = features
        self.n, self.d = features.shape
        self.device = features.device
        self.n_vertices = 0
        if self.n:
            self._take(build(features, room), room is not None)

    def _take(self, made: Vertices, fixed: bool) -> None:
        self.corner, self.weight, self.next_to = made.corner, made.weight, made.next_to
        self.n_vertices = len(made.start)
        self.needed = made.needed
        """How many vertices there are, on the device.  # ()"""
        point = torch.div(made.entry, self.d + 1, rounding_mode="floor").to(torch.int32)
        self.splat = SegmentSum(
            made.start, made.count, point, made.weight.view(-1)[made.entry], fixed
        )

    @property
    def nbytes(self) -> int:
        """Bytes the plan holds; an application needs two numbers a vertex and channel more."""
        if not self.n:
            return 0
        held = (self.corner, self.weight, self.next_to)
        return sum(int(x.numel() * x.element_size()) for x in held) + self.splat.nbytes

    def ones(self) -> Tensor:
        return torch.ones((self.n, 1), dtype=torch.float64, device=self.device)

    def diagonal(self) -> Tensor:
        from proxfield.filters.lattice import LatticeFilter  # compiles with numba

        found = LatticeFilter(self.features.cpu().numpy()).diagonal()
        return torch.from_numpy(found).to(self.device)

    def apply(self, values: Tensor) -> Tensor:
        """K @ values, in their type.  # (n, c) -> (n, c)"""
        if values.ndim != 2 or len(values) != self.n:
            raise InputError(
                f"values of shape {tuple(values.shape)} for {self.n} points, expected "
                f"({self.n}, channels)"
            )
        if values.numel() == 0:
            return torch.zeros_like(values)
        here = self.splat(values)
        there = torch.empty_like(here)
        axes = range(self.d + 1)
        for axis in (*reversed(axes), *axes):
            self._blur(axis, here, there)
            here, there = there, here
        return self._slice(here)

    def _blur(self, axis: int, source: Tensor, target: Tensor) -> None:
        n, c = source.shape
        back, forth = self.next_to[axis]
        if has_kernels(source):
            block = channel_block(c)
            blur_axis[(-(-n // ROWS), -(-c // block))](
                source, target, back, forth, n, c, SHARE=NEIGHBOR_SHARE, ROWS=ROWS, C=block
            )
            return
        near = torch.zeros_like(source)
        for at in (back, forth):
            near += torch.where((at >= 0)[:, None], source[at.clamp(min=0)], 0.0)
        target.copy_((1.0 - 2.0 * NEIGHBOR_SHARE) * source + NEIGHBOR_SHARE * near)

    def _slice(self, vertices: Tensor) -> Tensor:
        c = vertices.shape[1]
        if has_kernels(vertices):
            out = torch.empty((self.n, c), dtype=vertices.dtype, device=vertices.device)
            block = channel_block(c)
            slice_corners[(-(-self.n // ROWS), -(-c // block))](
                vertices, self.corner, self.weight, out, self.n, c,
                CORNERS=self.d + 1, ROWS=ROWS, C=block,
            )  # fmt: skip
            return out
        out = torch.zeros((self.n, c), dtype=vertices.dtype, device=vertices.device)
        for k in range(self.d + 1):
            out += self.weight[:, k, None].to(out.dtype) * vertices[self.corner[:, k]]
        return out
