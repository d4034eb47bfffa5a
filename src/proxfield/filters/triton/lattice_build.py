"""The permutohedral lattice, built by sorting: where points lie, and which vertices there are.

The same lattice as `proxfield.filters.lattice` builds with hash tables. A vertex is known by one
64-bit key, linear in its coordinates, so a step along an axis adds a constant; equal keys are
found by sorting and others by bisection, all in plain torch operations on the points' device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from proxfield.devices.cuda import torch
from proxfield.devices.tensors import Tensor
from proxfield.filters.geometry import (
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


def suitable_blur(features: Tensor) -> Blur:
    """The blur for some points, from the vertices that a sample of them touches."""
    n, d = features.shape
    key, _ = locate(features[::SAMPLE_STRIDE], STAR)
    return choose_blur(n, d, len(torch.unique(key)))


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
    code = torch.tensor(vertex_codes(d)[0].tolist(), device=device)
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


def build(features: Tensor, blur: Blur) -> Vertices:
    """The lattice of at least one point.

    Args:
        features: Features in units of standard deviations, finite.  # (n, d)
        blur: The kind of blur that the lattice is for.
    """
    n, d = features.shape
    device = features.device
    parts = [
        locate(features[first : first + POINTS_PER_PASS], blur)
        for first in range(0, n, POINTS_PER_PASS)
    ]
    key, weight = (torch.cat(side) for side in zip(*parts, strict=True))
    ordered, entry = torch.sort(key.view(-1), stable=True)
    fresh = torch.ones(len(entry), dtype=torch.bool, device=device)
    fresh[1:] = ordered[1:] != ordered[:-1]
    begin = fresh.nonzero()[:, 0]  # of each vertex, by key
    touched = len(begin)
    own = ordered[begin]
    # numbers in the order in which points touch vertices: neighbors lie near each other in memory
    by_touch = torch.argsort(entry[begin])
    number = torch.empty_like(by_touch)
    number[by_touch] = torch.arange(touched, device=device)
    corner = torch.empty(len(entry), dtype=torch.int32, device=device)
    corner[entry] = number[fresh.cumsum(0) - 1].to(torch.int32)

    stride = torch.tensor(vertex_codes(d)[1].tolist(), device=device)
    both = torch.stack([-stride, stride], dim=1)[:, :, None]  # (d + 1, 2, 1)
    added = own[:0]
    if blur.bridged:
        wanted = own + both
        lost = wanted[look_up(own, wanted) < 0]
        near, times = torch.unique_consecutive(torch.sort(lost).values, return_counts=True)
        added = near[times >= MIN_TOUCHED]
    keys, which = torch.sort(torch.cat([own, added]))
    later = torch.arange(touched, touched + len(added), device=device)
    number = torch.cat([number, later])
    # by key first, then by number
    at = look_up(keys, keys + both)
    named = number[which]  # number of each sorted key
    next_to = torch.empty(at.shape, dtype=torch.int32, device=device)
    next_to[:, :, named] = torch.where(at < 0, -1, named[at.clamp(min=0)]).to(torch.int32)
    start, count = (torch.zeros(len(keys), dtype=torch.int64, device=device) for _ in range(2))
    end = torch.cat([begin[1:], begin.new_full((1,), len(entry))])
    start[:touched] = begin[by_touch]
    count[:touched] = (end - begin)[by_touch]
    return Vertices(corner.view(n, d + 1), weight, next_to, entry, start, count)
