# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The permutohedral lattice on a GPU: Gaussian filtering in time linear in the number of points.

The operator of `proxfield.core.filters.lattice` with the same blurs: symmetric and without negative
eigenvalues by construction. Everything is a gather: a vertex adds up the entries in its list
(splat), then reads its neighbors, two along each axis or all at once (blur), and a point reads its
corners (slice). Nothing is added atomically, so the same values give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxfield.core.devices.cuda import constexpr, jit, need, tl, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.geometry import SEPARABLE, STAR, Blur
from proxfield.core.filters.plan import Plan
from proxfield.core.filters.triton.lattice_build import Vertices, build, suitable_blur
from proxfield.core.filters.triton.segments import SegmentSum, channel_block, has_kernels
from proxfield.errors import InputError

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
def blur_star(
    source, target, near, stride, n, c, KEEP: constexpr, SHARE: constexpr, SIDES: constexpr,
    ROWS: constexpr, C: constexpr,
):  # fmt: skip
    """A vertex keeps KEEP of itself and gets SHARE of each neighbor, along all axes."""
    vertex = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    inside = vertex < n
    real = inside[:, None] & (channel < c)[None, :]
    own = tl.load(source + vertex[:, None] * c + channel[None, :], mask=real, other=0.0)
    total = tl.zeros_like(own)
    for side in range(SIDES):
        at = tl.load(near + side * stride + vertex, mask=inside, other=-1).to(tl.int64)
        there = real & (at >= 0)[:, None]
        total += tl.load(source + at[:, None] * c + channel[None, :], mask=there, other=0.0)
    total = own * KEEP + total * SHARE
    tl.store(target + vertex[:, None] * c + channel[None, :], total, mask=real)


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


def add_neighbors(sides: Iterable[Tensor], source: Tensor) -> Tensor:
    """The sum of each vertex's neighbors on some sides, in plain torch.  # (vertices, channels)"""
    near = torch.zeros_like(source)
    for at in sides:
        near += torch.where((at >= 0)[:, None], source[at.clamp(min=0)], 0.0)
    return near


class LatticePlan(Plan):
    """K @ values with the lattice's kernel over fixed points, on any device of torch.

    On a CUDA device by Triton's kernels, elsewhere by plain torch operations. The result has
    the values' floating-point type, and that of the CPU's lattice up to rounding.

    Args:
        features: A floating-point tensor, in units of standard deviations.  # (n, d)
        blur: The kind of blur; by default it is chosen by how sparse the points are.
        room: Number of vertices to make arrays for, by default as many as there are. With it
            nothing waits for the device, so that a CUDA graph can hold the plan and all that
            follows; `needed` says afterwards whether it was enough.
    """

    name = "lattice"

    def __init__(self, features: Tensor, blur: Blur | None = None, room: int | None = None) -> None:
        need("torch")
        if features.ndim != 2 or not features.is_floating_point() or not features.shape[1]:
            raise InputError("features must be a floating-point tensor of shape (points, features)")
        self.features = features
        self.n, self.d = features.shape
        self.device = features.device
        self.n_vertices = 0
        self.blur = SEPARABLE if blur is None else blur
        if self.n:
            # keys of other numbers are out of range; a graph can't wait to look at them
            if room is None and not bool(torch.isfinite(features).all()):
                raise InputError("features hold NaN or infinite values")
            self.blur = suitable_blur(features) if blur is None else blur
            self._take(build(features, self.blur, room), room is not None)

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
        from proxfield.core.filters.lattice import LatticeFilter  # compiles with numba

        found = LatticeFilter(self.features.cpu().numpy(), self.blur).diagonal()
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
        if self.blur is STAR:
            share = self.blur.share(self.d)
            self._blur_star(2 * share, share, here, there)
            self._blur_star(0.5, self.blur.middle_share(self.d), there, here)
            self._blur_star(2 * share, share, here, there)
            return self._slice(there)
        axes = range(self.d + 1)
        for axis in (*reversed(axes), *axes):
            self._blur_axis(axis, here, there)
            here, there = there, here
        return self._slice(here)

    def _blur_axis(self, axis: int, source: Tensor, target: Tensor) -> None:
        n, c = source.shape
        back, forth = self.next_to[axis]
        share = self.blur.share(self.d)
        if has_kernels(source):
            block = channel_block(c)
            blur_axis[(-(-n // ROWS), -(-c // block))](
                source, target, back, forth, n, c, SHARE=share, ROWS=ROWS, C=block
            )
            return
        target.copy_((1.0 - 2.0 * share) * source + share * add_neighbors((back, forth), source))

    def _blur_star(self, keep: float, share: float, source: Tensor, target: Tensor) -> None:
        n, c = source.shape
        sides = self.next_to.flatten(0, 1)
        if has_kernels(source):
            block = channel_block(c)
            blur_star[(-(-n // ROWS), -(-c // block))](
                source, target, sides, sides.stride(0), n, c,
                KEEP=keep, SHARE=share, SIDES=len(sides), ROWS=ROWS, C=block,
            )  # fmt: skip
            return
        target.copy_(keep * source + share * add_neighbors(sides, source))

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
