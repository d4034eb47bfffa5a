"""The permutohedral lattice, built by sorting: where points lie, and which vertices there are.

The same lattice as `core.filters.lattice` builds with hash tables. A vertex is known by one
64-bit key, linear in its coordinates, so a step along an axis adds a constant; equal keys are
found by sorting and others by bisection, all in plain torch operations on the points' device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.geometry import (
    MIN_TOUCHED,
    SAMPLE_STRIDE,
    STAR,
    Blur,
    axis_scales,
    choose_blur,
    peak,
    vertex_codes,
)

POINTS_PER_PASS = 1 << 21
"""Points located at a time, each with a dozen numbers of 8 bytes per feature."""
NONE = 2**63 - 1
"""The key of no vertex; sorted after all others."""


@dataclass(frozen=True)
class Vertices:
    """The lattice of some points. Vertices that points touch come first, the bridges after them."""

    corner: Tensor
    """Vertices of each point's simplex.  # (n, d + 1) int32"""
    weight: Tensor
    """Their barycentric weights, times √`peak`.  # (n, d + 1) float32"""
    next_to: Tensor
    """Neighbors along each axis, back and forth; −1 for none.  # (d + 1, 2, vertices) int32"""
    entry: Tensor
    """Entries point · (d + 1) + corner, listed vertex by vertex in no particular order of
    vertices.  # (n · (d + 1),) int64"""
    start: Tensor
    """Where each vertex's list begins.  # (vertices,) int64"""
    count: Tensor
    """How long it is; 0 for bridges.  # (vertices,) int64"""
    needed: Tensor
    """How many vertices there are; of arrays with room for more, those after them are empty."""


@lru_cache(maxsize=64)
def codes(d: int, device: str) -> tuple[Tensor, Tensor]:
    """`vertex_codes` on a device.  # (d + 1,), (d + 1,)"""
    code, stride = vertex_codes(d)
    return torch.from_numpy(code).to(device), torch.from_numpy(stride).to(device)


def suitable_blur(features: Tensor) -> Blur:
    """The blur for some points, from the vertices that a sample of them touches."""
    n, d = features.shape
    return choose_blur(n, d, int(count_touched(features[::SAMPLE_STRIDE])))


def count_touched(features: Tensor) -> Tensor:
    """How many vertices of the coarser lattice some points touch; nothing waits.  # ()"""
    key, _ = locate(features, STAR)
    ordered = torch.sort(key.reshape(-1)).values
    return (ordered[1:] != ordered[:-1]).sum() + 1


def locate(features: Tensor, blur: Blur) -> tuple[Tensor, Tensor]:
    """Keys and weights of the corners of each point's simplex (Adams, Baek, Davis 2010).

    In the types and the order of operations of the CPU's, so that a point on an edge falls on
    the same side.

    Args:
        features: Features in units of standard deviations.  # (n, d)
        blur: The kind of blur, which gives the lattice's spacing.

    Returns:
        Keys and barycentric weights.  # (n, d + 1) int64 and float32
    """
    n, d = features.shape
    device = features.device
    x = features.to(torch.float64).T
    factor = axis_scales(d, blur).tolist()
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
    return key, weight.clamp_(min=0.0) * math.sqrt(peak(d, blur))


def look_up(keys: Tensor, wanted: Tensor) -> Tensor:
    """Where wanted keys are among sorted ones, −1 for those that aren't there."""
    at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[at] == wanted, at, -1)


def places(flags: Tensor, room: int | None) -> Tensor:
    """Where flags are set, in order.

    Args:
        flags: # (n,) bool
        room: How many places to return, whatever their number: the last ones are left out, or n
            stands for none. Without it the host waits for their number.  # (found or room,)
    """
    if room is None:
        return flags.nonzero()[:, 0]
    n = len(flags)
    out = torch.full((room + 1,), n, dtype=torch.int64, device=flags.device)
    to = torch.where(flags, (flags.cumsum(0) - 1).clamp_(max=room), room)
    out[to] = torch.where(flags, torch.arange(n, device=flags.device), n)
    return out[:room]


def build(features: Tensor, blur: Blur, room: int | None = None) -> Vertices:
    """The lattice of at least one point.

    Args:
        features: Features in units of standard deviations, finite.  # (n, d)
        blur: The kind of blur that the lattice is for.
        room: Number of vertices to make arrays for. Those that aren't needed have neither points
            nor neighbors, and nothing waits for the device. If more are `needed`, the lattice is
            of no use. By default as many as there are.
    """
    n, d = features.shape
    device = features.device
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
    # numbers in the order in which points touch vertices: neighbors lie near each other in memory
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
        often = lost != NONE  # the first of a run of MIN_TOUCHED or more
        often[1:] &= lost[1:] != lost[:-1]
        rest = len(lost) - (MIN_TOUCHED - 1)
        often[:rest] &= lost[MIN_TOUCHED - 1 :] == lost[:rest]
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
    needed = touched + bridges
    return Vertices(
        corner.view(n, d + 1), weight, next_to[:, :, :count], entry, start, length, needed
    )


def kept(values: Tensor, at: Tensor, other: int = NONE) -> Tensor:
    """Values at some places, and ``other`` where a place is beyond them.  # (places,)"""
    return torch.where(at < len(values), values[at.clamp(max=len(values) - 1)], other)
