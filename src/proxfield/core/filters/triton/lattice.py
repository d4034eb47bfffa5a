# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The permutohedral lattice on a GPU: Gaussian filtering in time linear in the number of points.

The operator of `proxfield.core.filters.lattice` with the same blurs: symmetric and without negative
eigenvalues by construction. Everything is a gather: a vertex adds up the entries in its list
(splat), then reads its neighbors, two along each axis or all at once (blur), and a point reads its
corners (slice). Nothing is added atomically, so the same values give the same bits.

The same lattice as on the CPU, but built by sorting. A vertex is known by one 64-bit key, linear in
its coordinates, so a step along an axis adds a constant; equal keys are found by sorting and others
by bisection, all in plain torch operations on the points' device.
"""

from __future__ import annotations

import math
from functools import lru_cache

from proxfield.core.devices.cuda import constexpr, jit, need, tl, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters import geometry
from proxfield.core.filters.geometry import SAMPLE_STRIDE, SEPARABLE, STAR, Blur, choose_blur
from proxfield.core.filters.plan import Plan
from proxfield.core.filters.triton.segments import SegmentSum, channel_block, has_kernels
from proxfield.errors import InputError

ROWS = 32
"""Vertices or points of a program."""
POINTS_PER_PASS = 1 << 21
"""Points located at a time, each with a dozen numbers of 8 bytes per feature."""
NONE = 2**63 - 1
"""The key of no vertex; sorted after all others."""


@jit
def blur_vertices(
    source, target, near, stride, n, c, KEEP: constexpr, SHARE: constexpr, SIDES: constexpr,
    ROWS: constexpr, C: constexpr,
):  # fmt: skip
    """A vertex keeps KEEP of itself and gets SHARE of each neighbor, along one axis or all."""
    vertex = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    inside = vertex < n
    real = inside[:, None] & (channel < c)[None, :]
    own = tl.load(source + vertex[:, None] * c + channel[None, :], mask=real, other=0.0)
    total = tl.zeros_like(own)
    for side in tl.static_range(SIDES):
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


class LatticePlan(Plan):
    """K @ values with the lattice's kernel over fixed points, on any device of torch.

    On a CUDA device by Triton's kernels, elsewhere by plain torch operations. The result has
    the values' floating-point type, and that of the CPU's lattice up to rounding.

    The kind of blur is chosen by how sparse the points are, unless it is given. With ``room``
    arrays are made for so many vertices and nothing waits for the device, so that a CUDA graph can
    hold the plan and all that follows; `needed` says afterwards whether it was enough.
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
            if blur is None:
                touched = count_touched(features[::SAMPLE_STRIDE])
                self.blur = choose_blur(self.n, self.d, int(touched))
            self._build(features, room)

    def _build(self, features: Tensor, room: int | None) -> None:
        """Find the vertices: those that points touch come first, the bridges after them.

        With ``room`` those that aren't needed have neither points nor neighbors. If more are
        `needed`, the lattice is of no use.
        """
        n, d, device, blur = self.n, self.d, self.device, self.blur
        parts = [
            locate(features[first : first + POINTS_PER_PASS], blur)
            for first in range(0, n, POINTS_PER_PASS)
        ]
        key, weight = (torch.cat(side) for side in zip(*parts, strict=True))
        ordered, entry = torch.sort(key.view(-1), stable=True)
        entries = len(entry)
        fresh = torch.ones(entries, dtype=torch.bool, device=device)
        fresh[1:] = ordered[1:] != ordered[:-1]
        order = fresh.cumsum(0)
        touched = order[-1]
        begin = places(fresh, room)  # of each vertex, by key
        own = kept(ordered, begin)
        # numbers in the order in which points touch vertices: neighbors lie near each other
        slots = torch.arange(len(begin), device=device)
        first = kept(entry, begin, entries)
        earliest = torch.zeros(entries + 1, dtype=torch.int64, device=device)
        earliest.index_fill_(0, first, 1)
        number = torch.where(begin < entries, earliest.cumsum(0)[first] - 1, slots)
        corner = torch.empty(entries, dtype=torch.int32, device=device)
        corner[entry] = number[(order - 1).clamp_(max=len(begin) - 1)].to(torch.int32)

        stride = codes(d, str(device))[1]
        both = torch.stack([-stride, stride], dim=1)[:, :, None]  # (d + 1, 2, 1)
        added, bridges = own[:0], torch.zeros_like(touched)
        if blur.bridged:
            wanted = own + both
            there = (look_up(own, wanted) >= 0) | (own == NONE)
            lost = torch.sort(torch.where(there, NONE, wanted).view(-1)).values
            often = lost != NONE  # the first of a run of geometry.MIN_TOUCHED or more
            often[1:] &= lost[1:] != lost[:-1]
            rest = len(lost) - (geometry.MIN_TOUCHED - 1)
            often[:rest] &= lost[geometry.MIN_TOUCHED - 1 :] == lost[:rest]
            often[rest:] = False
            added = kept(lost, places(often, room))
            bridges = often.sum()
        keys, which = torch.sort(torch.cat([own, added]))
        later = touched + torch.arange(len(added), device=device)
        count = len(keys) if room is None else room
        named = torch.cat([number, later])[which]  # number of each sorted key
        named = torch.where(keys == NONE, count, named).clamp_(max=count)
        # by key first, then by number
        at = look_up(keys, keys + both)
        near = torch.where(at < 0, -1, named[at.clamp(min=0)]).to(torch.int32)
        next_to = torch.full((d + 1, 2, count + 1), -1, dtype=torch.int32, device=device)
        next_to[:, :, named] = near
        start, length = torch.zeros((2, count), dtype=torch.int64, device=device)
        end = torch.cat([begin[1:], begin.new_full((1,), entries)])
        start[number] = begin
        length[number] = end - begin
        self.corner, self.weight = corner.view(n, d + 1), weight
        self.next_to = next_to[:, :, :count]
        """Neighbors along each axis, back and forth; −1 for none.  # (d + 1, 2, vertices) int32"""
        self.n_vertices, self.needed = count, touched + bridges
        """Room for vertices, and on the device how many there are.  # ()"""
        point = torch.div(entry, d + 1, rounding_mode="floor").to(torch.int32)
        self.splat = SegmentSum(start, length, point, weight.view(-1)[entry], room is not None)

    def ones(self) -> Tensor:
        return torch.ones((self.n, 1), dtype=torch.float64, device=self.device)

    def diagonal(self) -> Tensor:
        if not self.n:
            return self.ones()[:, 0]
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
        share = self.blur.share(self.d)
        if self.blur is STAR:
            sides = self.next_to.flatten(0, 1)
            self._blur(2 * share, share, sides, here, there)
            self._blur(0.5, self.blur.middle_share(self.d), sides, there, here)
            self._blur(2 * share, share, sides, here, there)
            return self._slice(there)
        axes = range(self.d + 1)
        for axis in (*reversed(axes), *axes):
            self._blur(1.0 - 2.0 * share, share, self.next_to[axis], here, there)
            here, there = there, here
        return self._slice(here)

    def _blur(
        self, keep: float, share: float, sides: Tensor, source: Tensor, target: Tensor
    ) -> None:
        """From each vertex and its neighbors on some sides.  # (sides, vertices)"""
        n, c = source.shape
        if has_kernels(source):
            block = channel_block(c)
            blur_vertices[(-(-n // ROWS), -(-c // block))](
                source, target, sides, sides.stride(0), n, c,
                KEEP=keep, SHARE=share, SIDES=len(sides), ROWS=ROWS, C=block,
            )  # fmt: skip
            return
        near = torch.zeros_like(source)
        for at in sides:
            near += torch.where((at >= 0)[:, None], source[at.clamp(min=0)], 0.0)
        target.copy_(keep * source + share * near)

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


@lru_cache(maxsize=64)
def codes(d: int, device: str) -> tuple[Tensor, Tensor]:
    """`vertex_codes` on a device.  # (d + 1,), (d + 1,)"""
    code, stride = geometry.vertex_codes(d)
    return torch.from_numpy(code).to(device), torch.from_numpy(stride).to(device)


def count_touched(features: Tensor) -> Tensor:
    """How many vertices of the coarser lattice some points touch; nothing waits.  # ()"""
    key, _ = locate(features, STAR)
    ordered = torch.sort(key.reshape(-1)).values
    return (ordered[1:] != ordered[:-1]).sum() + 1


def locate(features: Tensor, blur: Blur) -> tuple[Tensor, Tensor]:
    """Keys and weights of the corners of each point's simplex (Adams, Baek, Davis 2010).

    In the types and the order of operations of the CPU's, so that a point on an edge falls on
    the same side. The kind of blur gives the lattice's spacing.
    # (n, d) -> (n, d + 1) int64, (n, d + 1) float32
    """
    n, d = features.shape
    device = features.device
    x = features.to(torch.float64).T
    factor = geometry.axis_scales(d, blur).tolist()
    inverse = 1.0 / (d + 1)
    total = torch.zeros(n, dtype=torch.float64, device=device)
    place = torch.empty((d + 1, n), dtype=torch.float64, device=device)
    for k in range(d, 0, -1):  # onto the plane on which coordinates sum to 0
        scaled = x[k - 1] * factor[k - 1]
        place[k] = (total - k * scaled) * inverse
        total = total + scaled
    place[0] = total * inverse
    nearest = torch.floor(place + 0.5)
    left = (place - nearest).to(torch.float32)  # from here on as exact as the weights
    rank = torch.empty((d + 1, n), dtype=torch.int64, device=device)
    for k in range(d + 1):  # 0: the coordinate with most left; of equal ones the first
        rank[k] = (left[:k] >= left[k]).sum(0) + (left[k + 1 :] > left[k]).sum(0)
    whole = nearest.to(torch.int64)
    rank += whole.sum(0)  # off the plane: step back onto it
    turn = (rank < 0).to(torch.int64) - (rank > d).to(torch.int64)
    rank += turn * (d + 1)
    whole += turn
    left -= turn
    code = codes(d, str(device))[0]
    base = (d + 1) * (whole * code[:, None]).sum(0)
    # by rank, falling; the code of the coordinate that has each rank
    down = torch.empty_like(left).scatter_(0, rank, left)
    ranked = torch.empty_like(rank).scatter_(0, rank, code[:, None].expand(-1, n))
    weight = torch.empty((n, d + 1), dtype=torch.float32, device=device)
    weight[:, 0] = (down[d] + 1.0) - down[0]
    weight[:, 1:] = (down[:-1] - down[1:]).flip(0).T
    key = torch.empty((n, d + 1), dtype=torch.int64, device=device)
    key[:, 0] = base
    # the next corner: all coordinates + 1, that of one rank − (d + 1)
    steps = code.sum() - (d + 1) * ranked.flip(0)[:d]
    key[:, 1:] = (base + steps.cumsum(0)).T
    return key, weight.clamp_(min=0.0) * math.sqrt(geometry.peak(d, blur))


def look_up(keys: Tensor, wanted: Tensor) -> Tensor:
    """Where wanted keys are among sorted ones, −1 for those that aren't there."""
    at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[at] == wanted, at, -1)


def places(flags: Tensor, room: int | None) -> Tensor:
    """Where flags are set, in order.  # (n,) bool -> (found or room,)

    With ``room`` so many places, whatever their number: the last ones are left out, or n stands for
    none. Without it the host waits for their number.
    """
    if room is None:
        return flags.nonzero()[:, 0]
    n = len(flags)
    out = torch.full((room + 1,), n, dtype=torch.int64, device=flags.device)
    to = torch.where(flags, (flags.cumsum(0) - 1).clamp_(max=room), room)
    out[to] = torch.where(flags, torch.arange(n, device=flags.device), n)
    return out[:room]


def kept(values: Tensor, at: Tensor, other: int = NONE) -> Tensor:
    """Values at some places, and ``other`` where a place is beyond them.  # (places,)"""
    return torch.where(at < len(values), values[at.clamp(max=len(values) - 1)], other)
