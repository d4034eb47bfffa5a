"""The permutohedral lattice in plain numpy and scipy: slow, readable, the oracle of the kernels.

K = (S C) M (S C)ᵀ: S holds the barycentric weights of each point at the corners of its simplex,
and C and M blur over the vertices. For separable and coarse blurs C = B_d … B_0, one factor for
each of the lattice's d + 1 axes, over the vertices that points touch and those between them, and
M = 1. For stars C and M are blurs along all axes at once, over the vertices that points touch.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.filters.geometry import (
    MIN_TOUCHED,
    SAMPLE_STRIDE,
    SEPARABLE,
    STAR,
    Blur,
    axis_scales,
    choose_blur,
    peak,
)
from proxfield.core.filters.plan import check_features

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Vertex = tuple[int, ...]


def lattice_matrix(features: ArrayLike, blur: Blur | None = None) -> NDArray[np.float64]:
    """K as a dense array: what `LatticeFilter` multiplies with.  # (n, n)

    Without a blur it is the one that `LatticeFilter` chooses.

    Example:
        >>> k = lattice_matrix([[0.0], [0.1], [50.0]])
        >>> bool(k[0, 1] > 0.9), float(k[0, 2])
        (True, 0.0)
    """
    half, middle = lattice_factors(features, blur)
    return np.asarray((half @ middle @ half.T).toarray())


def lattice_factors(features: ArrayLike, blur: Blur | None = None) -> tuple[csr_matrix, csr_matrix]:
    """S C and M, sparse.  # (n, n_vertices), (n_vertices, n_vertices)"""
    from scipy import sparse

    points = check_features(features).astype(np.float64)
    n, d = points.shape
    blur = suitable_blur(points) if blur is None else blur
    corners, weights = simplices(points, blur)
    touched, where = np.unique(corners.reshape(-1, d + 1), axis=0, return_inverse=True)
    number = {tuple(key): i for i, key in enumerate(touched.tolist())}
    for vertex in bridges(list(number)) if blur.bridged else ():
        number[vertex] = len(number)
    scaled = (weights * np.float32(np.sqrt(peak(d, blur)))).astype(np.float64)
    point = np.repeat(np.arange(n), d + 1)
    shape = (n, len(number))
    half = sparse.csr_matrix((scaled.ravel(), (point, where.ravel())), shape=shape)
    share = blur.share(d)
    if blur is STAR:
        return half @ star(number, d, 2 * share, share), star(number, d, 0.5, blur.middle_share(d))
    for axis in range(d, -1, -1):
        half = half @ axis_blur(number, axis, share)
    return half, sparse.identity(len(number), format="csr")


def suitable_blur(points: NDArray[np.float64]) -> Blur:
    """The blur that is chosen for some points."""
    n, d = points.shape
    corners, _ = simplices(points[::SAMPLE_STRIDE], STAR)
    return choose_blur(n, d, len(np.unique(corners.reshape(-1, d + 1), axis=0)))


def simplices(
    points: NDArray[np.float64], blur: Blur = SEPARABLE
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The corners of each point's simplex, and barycentric weights (Adams, Baek, Davis 2010).

    Vertices have d + 1 whole coordinates that sum to 0 and are equal modulo d + 1.
    # (n, d) -> (n, corners, coordinates), (n, corners)
    """
    n, d = points.shape
    x = points * axis_scales(d, blur)
    total = np.zeros(n)
    place = np.empty((n, d + 1))
    for k in range(d, 0, -1):  # onto the plane on which coordinates sum to 0
        place[:, k] = (total - k * x[:, k - 1]) / (d + 1)
        total += x[:, k - 1]
    place[:, 0] = total / (d + 1)
    nearest = np.floor(place + 0.5)
    left = (place - nearest).astype(np.float32)  # from here on as exact as the weights
    order = np.argsort(-left, axis=1, kind="stable")
    rank = np.empty((n, d + 1), dtype=np.int64)  # 0: the coordinate with most left
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(d + 1), (n, d + 1)), axis=1)
    rank += nearest.sum(axis=1).astype(np.int64)[:, None]  # off the plane: step back onto it
    turn = (rank < 0).astype(np.int64) - (rank > d)
    rank += turn * (d + 1)
    nearest += turn
    left -= turn.astype(np.float32)
    corner = np.arange(d + 1)[None, :, None]
    steps = np.where(rank[:, None, :] <= d - corner, corner, corner - (d + 1))
    corners = (d + 1) * nearest.astype(np.int64)[:, None, :] + steps
    weights = np.empty((n, d + 1), dtype=np.float32)
    down = np.take_along_axis(left, np.argsort(rank, axis=1), axis=1)  # by rank, falling
    weights[:, 0] = (down[:, d] + 1) - down[:, 0]
    for c in range(1, d + 1):
        weights[:, c] = down[:, d - c] - down[:, d + 1 - c]
    return corners, np.maximum(weights, 0)


def step(vertex: Vertex, axis: int, side: int) -> Vertex:
    """The next vertex along an axis, forwards (side 1) or back (−1)."""
    moved = [x + side for x in vertex]
    moved[axis] -= side * len(vertex)
    return tuple(moved)


def bridges(touched: list[Vertex]) -> list[Vertex]:
    """Vertices that no point touches, but that are a neighbor of touched ones often enough."""
    known = set(touched)
    near = Counter(
        other
        for vertex in touched
        for axis in range(len(vertex))
        for side in (-1, 1)
        if (other := step(vertex, axis, side)) not in known
    )
    return [vertex for vertex, count in near.items() if count >= MIN_TOUCHED]


def links(number: dict[Vertex, int], axis: int) -> csr_matrix:
    """1 for every two vertices that are neighbors along an axis.  # (vertices, vertices)"""
    from scipy import sparse

    m = len(number)
    pairs = [(i, number.get(step(vertex, axis, 1), -1)) for vertex, i in number.items()]
    at = np.array([p for p in pairs if p[1] >= 0], dtype=np.int64).reshape(-1, 2)
    there = sparse.csr_matrix((np.ones(len(at)), (at[:, 0], at[:, 1])), shape=(m, m))
    return there + there.T


def axis_blur(number: dict[Vertex, int], axis: int, share: float) -> csr_matrix:
    """B: a vertex gives a share to each neighbor that exists, and keeps 1 − 2 shares."""
    from scipy import sparse

    middle = (1 - 2 * share) * sparse.identity(len(number), format="csr")
    return middle + share * links(number, axis)


def star(number: dict[Vertex, int], d: int, keep: float, share: float) -> csr_matrix:
    """A vertex gives a share to each neighbor along any axis that exists, and keeps a part."""
    from scipy import sparse

    out = keep * sparse.identity(len(number), format="csr")
    for axis in range(d + 1):
        out = out + share * links(number, axis)
    return out
