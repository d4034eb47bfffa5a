"""Small random scenes of occupancy maps, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import proxfield as pf


def random_boxes(rng: np.random.Generator, n: int, height: int, width: int) -> pf.Boxes:
    """Rectangles that overlap; about one in ten isn't visible."""
    x = np.sort(rng.integers(0, width + 1, (n, 2)), axis=1)
    y = np.sort(rng.integers(0, height + 1, (n, 2)), axis=1)
    return pf.Boxes(height, width, np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1))


def random_scene(
    rng: np.random.Generator, n: int | None = None, *, model: str = "exact", **options: Any
) -> pf.Field:
    """A field with one occupancy term over some cameras, and priors of all sizes."""
    n = int(rng.integers(1, 15)) if n is None else n
    silhouettes, masks = [], []
    for _ in range(int(rng.integers(1, 4))):
        height, width = rng.integers(2, 10, 2).tolist()
        silhouettes.append(random_boxes(rng, n, height, width))
        soft = rng.random((height, width))
        masks.append(soft if rng.random() < 0.5 else (soft < rng.random()).astype(float))
    options = {"strength": float(rng.choice([1.0, 8.0, 40.0])), **options}
    term = pf.Occupancy(silhouettes, masks, model=model, **options)
    return pf.Field(n, 2, [term, pf.Unary(rng.normal(size=(n, 2)) * rng.choice([0.3, 3.0]))])
