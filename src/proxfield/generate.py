"""Seeded random fields: grids, restricted Boltzmann machines and synthetic segmentations.

Each generator gives the same field for the same arguments. They need numpy alone.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.memory import check_memory
from proxfield.core.terms.base import Ints
from proxfield.core.terms.grid import Shift
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError, refuse_keywords, shown
from proxfield.field import Field

if TYPE_CHECKING:
    from typing_extensions import Never

SIGNS = ("mixed", "attractive", "repulsive")
PIXELS_PER_REGION = 48
"""Pixels of the synthetic picture for each superpixel."""
EDGE_BYTES = 100
"""About what one edge takes while a field is made: its ends, its weight and copies of them."""


def grid_edges(rows: int, cols: int, wrap: bool = False) -> Ints:
    """Edges of a grid whose variable (r, c) has the number r · cols + c.

    Args:
        rows: Number of rows.
        cols: Number of columns.
        wrap: Join the last row to the first and the last column to the first. A side
            shorter than 3 isn't joined: it has that edge already.

    Returns:
        Pairs of variables, the edges along rows first.  # (m, 2)

    Example:
        >>> grid_edges(2, 2).tolist()
        [[0, 1], [2, 3], [0, 2], [1, 3]]
    """
    _check_counts(rows=rows, cols=cols)
    check_memory(2 * EDGE_BYTES * rows * cols, f"a grid of {rows:,} × {cols:,}")
    at = np.arange(rows * cols, dtype=np.int64).reshape(rows, cols)
    along, across = [(at[:, :-1], at[:, 1:])], [(at[:-1], at[1:])]
    if wrap and cols > 2:
        along.append((at[:, -1], at[:, 0]))
    if wrap and rows > 2:
        across.append((at[-1], at[0]))
    pairs = [np.stack([a.ravel(), b.ravel()], axis=1) for a, b in along + across]
    return np.concatenate(pairs)


def grid(
    rows: int,
    cols: int,
    *,
    strength: float = 1.0,
    n_labels: int = 2,
    wrap: bool = False,
    sign: str = "mixed",
    seed: int = 0,
    **unknown: Never,
) -> Field:
    """A grid with random couplings and random unary energies.

    With two labels: spins s = ±1 with E = Σ h_i s_i + Σ J_ij s_i s_j, h uniform in [−1, 1] and J
    uniform in [−strength, strength]. With more labels: unary energies uniform in [−1, 1] and
    Potts weights uniform in [−strength, strength].

    Args:
        rows: Number of rows.
        cols: Number of columns.
        strength: The largest coupling.
        n_labels: Number of labels of each variable, 2 or more.
        wrap: Join opposite borders.
        sign: "mixed", "attractive" (neighbors want to agree) or "repulsive".
        seed: Random seed.

    Returns:
        The field.

    Example:
        >>> grid(20, 20, strength=3.0, sign="repulsive", seed=1)
        Field(400 variables, 800 entries, terms: unary, ising)
    """
    refuse_keywords("grid", unknown, {"labels": "n_labels"})
    _check_size("strength", strength)
    if sign not in SIGNS:
        raise InputError(f"sign={shown(sign)}, expected one of: {', '.join(SIGNS)}")
    if n_labels < 2:
        raise InputError(f"n_labels={shown(n_labels)}, expected 2 or more")
    edges = grid_edges(rows, cols, wrap)
    rng = _generator(seed)
    field = Field(rows * cols, n_labels=n_labels)
    if n_labels == 2:
        field.add(_spin_unary(rng.uniform(-1, 1, rows * cols)))
    else:
        field.add(Unary(rng.uniform(-1, 1, (rows * cols, n_labels))))
    weights = rng.uniform(-strength, strength, len(edges))
    if sign != "mixed":
        # a positive Ising coupling repels, a positive Potts weight attracts
        weights = np.abs(weights) if (sign == "repulsive") == (n_labels == 2) else -np.abs(weights)
    return field.add(Ising(edges, weights) if n_labels == 2 else Potts(edges, weights))


def rbm(visible: int, hidden: int, *, strength: float = 0.2, seed: int = 0) -> Field:
    """A restricted Boltzmann machine: two layers of spins, all pairs across them coupled.

    E = Σ h_i s_i + Σ J_ij s_i s_j with h uniform in [−1, 1] and J uniform in
    [−strength, strength]; the visible spins come first.

    Args:
        visible: Spins of the first layer.
        hidden: Spins of the second layer.
        strength: The largest coupling.
        seed: Random seed.

    Returns:
        The field, with visible · hidden edges.

    Example:
        >>> rbm(6, 3).terms[1].edges.shape
        (18, 2)
    """
    _check_counts(visible=visible, hidden=hidden)
    _check_size("strength", strength)
    check_memory(EDGE_BYTES * visible * hidden, f"{visible * hidden:,} edges")
    rng = _generator(seed)
    n = visible + hidden
    field = Field(n, n_labels=2).add(_spin_unary(rng.uniform(-1, 1, n)))
    ends = np.meshgrid(np.arange(visible), visible + np.arange(hidden), indexing="ij")
    edges = np.stack([e.ravel() for e in ends], axis=1)
    return field.add(Ising(edges, rng.uniform(-strength, strength, len(edges))))


def segmentation(
    regions: int, *, strength: float = 1.0, noise: float = 1.0, seed: int = 0
) -> Field:
    """Foreground and background of a synthetic picture, over superpixels.

    A smooth picture with a bright and a dark part is cut into regions (the Voronoi cells of
    random points). The unary energies are noisy views of the regions' brightness; regions that
    touch attract each other, the more so the more alike they are and the longer their common
    border is. Label 0 is dark, label 1 bright.

    Args:
        regions: Number of superpixels, hence of variables.
        strength: Scale of the attraction between regions.
        noise: Standard deviation of the noise of the unary energies.
        seed: Random seed.

    Returns:
        The field.

    Example:
        >>> segmentation(300)
        Field(300 variables, 600 entries, terms: unary, potts)
    """
    _check_counts(regions=regions)
    _check_size("strength", strength)
    _check_size("noise", noise)
    check_memory(150 * PIXELS_PER_REGION * regions, f"a picture of {regions:,} regions")
    rng = _generator(seed)
    side = math.ceil(math.sqrt(regions * PIXELS_PER_REGION))
    picture = _two_region_picture(side, rng)
    cells = _voronoi(side, rng.choice(side * side, regions, replace=False))
    bright = np.bincount(cells.ravel(), weights=picture.ravel()) / np.bincount(cells.ravel())
    view = 4.0 * (bright - 0.5) + noise * rng.normal(size=regions)  # log odds of label 1
    edges, border = _touching(cells)
    contrast = bright[edges[:, 0]] - bright[edges[:, 1]]
    alike = np.exp(-0.5 * (contrast / 0.2) ** 2)
    weights = strength * alike * border / border.mean() if len(edges) else np.zeros(0)
    field = Field(regions, n_labels=2).add(Unary(np.stack([view / 2, -view / 2], axis=1)))
    return field.add(Potts(edges, weights))


def _two_region_picture(side: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Brightness in 0..1: low waves of random phase through a steep sigmoid.  # (side, side)"""
    y, x = np.mgrid[0:side, 0:side] / side
    waves = np.zeros((side, side))
    for kx in range(4):
        for ky in range(4):
            size, phase = rng.normal() / (1 + kx * kx + ky * ky), rng.uniform(0, 2 * np.pi)
            waves += size * np.cos(2 * np.pi * (kx * x + ky * y) + phase)
    waves -= np.median(waves)  # both parts get half of the picture
    return np.asarray(1 / (1 + np.exp(-6 * waves / (waves.std() + 1e-9))))


def _voronoi(side: int, points: Ints) -> Ints:
    """The nearest of some pixels for each pixel, by jump flooding.  # (side, side)

    Jump flooding asks only 8 pixels at a time, at distances that halve, so it costs
    side² · log(side) for any number of points. It may miss the nearest point by a little;
    that doesn't matter for superpixels, and a point's own pixel is always right.
    """
    row, col = np.divmod(points, side)
    best = np.full((side, side), -1, dtype=np.int64)
    best[row, col] = np.arange(len(points))
    y, x = np.mgrid[0:side, 0:side]
    distance = np.where(best >= 0, 0, np.iinfo(np.int64).max)
    jump = 1 << max(0, (side - 1).bit_length() - 1)
    while jump:
        for offset in itertools.product((-jump, 0, jump), repeat=2):
            shift = Shift((side, side), offset)
            here, there = shift.here, shift.there
            offer = best[there].copy()
            away = (row[offer] - y[here]) ** 2 + (col[offer] - x[here]) ** 2
            nearer = (offer >= 0) & (away < distance[here])
            best[here] = np.where(nearer, offer, best[here])
            distance[here] = np.where(nearer, away, distance[here])
        jump //= 2
    return best


def _touching(cells: Ints) -> tuple[Ints, Ints]:
    """Pairs of cells with a common border, and its length in pixels.  # (m, 2), (m,)"""
    n = int(cells.max()) + 1
    a, b = np.sort(cells.ravel()[grid_edges(*cells.shape)], axis=1).T
    found, border = np.unique((a * n + b)[a != b], return_counts=True)
    return np.stack(np.divmod(found, n), axis=1), border


def _spin_unary(h: NDArray[np.float64]) -> Unary:
    """E = h·s for spins: label 0 is s = −1.  # (n,)"""
    return Unary(np.stack([-h, h], axis=1))


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"seed={shown(seed)}, expected 0 or more")
    return np.random.default_rng(seed)


def _check_counts(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise InputError(f"{name}={shown(value)}, expected 1 or more")


def _check_size(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name}={shown(value)}, expected a finite number, 0 or more")
