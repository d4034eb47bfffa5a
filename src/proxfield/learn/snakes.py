"""Snakes: a task whose labels only the picture as a whole decides (after Nowozin et al., 2011).

A snake is ten pixels long. The color of each of its pixels says in which direction the snake moved
when it came there, so it points away from the pixel before it; the rest of the picture is black.
The task is to number the snake's pixels from tail to head. A single pixel doesn't tell which it
is: one has to follow the snake to its tail, whose color points away from a black pixel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from proxfield.core.common.arrays import Ints
from proxfield.core.common.checks import whole_number
from proxfield.errors import InputError
from proxfield.generate import grid_edges
from proxfield.io.files import Source, Target
from proxfield.learn.crf import Graph
from proxfield.learn.estimator import read_arrays, write_arrays

LENGTH = 10
N_LABELS = LENGTH + 1
"""Background, and the positions 1 to 10 from tail to head."""
N_COLORS = 5
"""Black, and the directions up, down, left and right."""
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
NEIGHBORHOOD = 9
"""Pixels of the 3 × 3 window around a pixel."""
Pictures = list[NDArray[np.int64]]


def make_snakes(count: int, seed: int = 0) -> tuple[Pictures, Pictures]:
    """Pictures of snakes, and their labels.

    Args:
        count: Number of pictures.
        seed: Random seed.

    Returns:
        Colors 0 to 4 and labels 0 to 10 of each picture, which is as large as the snake plus a
        margin of one pixel.  # lists of (rows, columns)

    Example:
        >>> pictures, labels = make_snakes(3)
        >>> sorted(labels[0][labels[0] > 0].tolist())
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    """
    whole_number(count, "count", 1)
    rng = np.random.default_rng(whole_number(seed, "seed", 0))
    pictures: Pictures = []
    numbered: Pictures = []
    while len(pictures) < count:
        # a walk of one more pixel, whose first isn't drawn: the tail came from somewhere
        moves = rng.integers(0, 4, LENGTH)
        path = np.cumsum(np.concatenate([[[0, 0]], MOVES[moves]]), axis=0)
        if len(np.unique(path, axis=0)) < len(path):
            continue
        path -= path.min(axis=0) - 1
        picture = np.zeros(path.max(axis=0) + 2, dtype=np.int64)
        labels = np.zeros_like(picture)
        picture[tuple(path[1:].T)] = 1 + moves
        labels[tuple(path[1:].T)] = np.arange(1, LENGTH + 1)
        pictures.append(picture)
        numbered.append(labels)
    return pictures, numbered


def snake_graph(picture: NDArray[np.int64]) -> Graph:
    """The picture as an instance: features of pixels and edges are colors around them.

    A pixel has 45 features, the colors of its 3 × 3 window as indicators. An edge has 180: those of
    its two ends, in places of their own for horizontal and for vertical edges.

    Args:
        picture: Colors 0 to 4.  # (rows, columns)

    Example:
        >>> graph = snake_graph(make_snakes(1)[0][0])
        >>> graph.nodes.shape[1], graph.edge_features.shape[1]
        (45, 180)
    """
    rows, columns = picture.shape
    padded = np.pad(picture, 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).reshape(-1, NEIGHBORHOOD)
    width = NEIGHBORHOOD * N_COLORS
    on = np.arange(NEIGHBORHOOD) * N_COLORS + windows  # (pixels, 9)
    edges = grid_edges(rows, columns)
    vertical = np.arange(len(edges)) >= rows * (columns - 1)
    start = 2 * width * vertical[:, None]
    both = np.concatenate([on[edges[:, 0]] + start, on[edges[:, 1]] + start + width], axis=1)
    return Graph(_indicators(on, width), edges, edge_features=_indicators(both, 4 * width))


def _indicators(on: Ints, width: int) -> sparse.csr_matrix:
    """Rows of features that are 1 at some places and 0 elsewhere."""
    ptr = np.arange(len(on) + 1) * on.shape[1]
    return sparse.csr_matrix((np.ones(on.size), on.ravel(), ptr), shape=(len(on), width))


def write_snakes(path: Target, parts: dict[str, tuple[Pictures, Pictures]], seed: int) -> None:
    """Write pictures and labels, by name of the part ("train", "test"), to an npz file."""
    arrays = {}
    for name, (pictures, labels) in parts.items():
        arrays[f"{name}/shapes"] = np.array([picture.shape for picture in pictures])
        arrays[f"{name}/colors"] = np.concatenate([p.ravel() for p in pictures]).astype(np.uint8)
        arrays[f"{name}/labels"] = np.concatenate([y.ravel() for y in labels]).astype(np.uint8)
    write_arrays(path, "snakes", {"parts": list(parts), "seed": seed}, arrays)


def read_snakes(source: Source) -> dict[str, tuple[Pictures, Pictures]]:
    """Read what `write_snakes` (``proxfield make snakes``) wrote.

    Args:
        source: A path or an open binary file.

    Returns:
        Pictures and labels by name of the part: "train" and "test".

    Example:
        >>> pictures, labels = read_snakes("snakes.npz")["train"]  # doctest: +SKIP
    """
    header, arrays = read_arrays(source, "snakes")
    out = {}
    for name in header["parts"]:
        shapes = arrays[f"{name}/shapes"]
        ends = np.cumsum(shapes.prod(axis=1))
        both = []
        for key in ("colors", "labels"):
            flat = arrays[f"{name}/{key}"].astype(np.int64)
            if len(ends) == 0 or len(flat) != ends[-1]:
                raise InputError(
                    "sizes of pictures and pixels don't fit together: the file is damaged"
                )
            parts = np.split(flat, ends[:-1])
            both.append([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])
        out[str(name)] = both[0], both[1]
    return out
