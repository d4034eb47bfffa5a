"""Stand-ins for the published files that a public clone doesn't hold, made when they are needed.

They have the form of the published ones, and what tests ask of those has to hold for them too. What
the paper reports of its own instances can't be asked of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import proxfield as pf
from proxfield.generate import grid, rbm, segmentation
from proxfield.io import format_mar, format_pr, write_evidence, write_model
from proxfield.testing import enumerate_field

DATA = Path(os.environ.get("PROXFIELD_DATA", Path(__file__).resolve().parents[2] / "shared/data"))
"""Where the published files are, if they are there."""


def coloring() -> pf.Field:
    """Forbidden configurations only: a wheel of five in four colors."""
    different = np.where(np.eye(4, dtype=bool), np.inf, 0.0)
    rim = [[i, (i + 1) % 5] for i in range(5)]
    return pf.Field(6, 4).add(pf.Pairwise([*rim, *([i, 5] for i in range(5))], different))


def pedigree() -> pf.Field:
    """Tables over three variables of different sizes, with zeros of probability."""
    rng = np.random.default_rng(4)
    field = pf.Field([2, 3, 4, 3, 2, 2])
    for scope in ([0, 1, 2], [2, 3, 4], [1, 3, 5]):
        table = rng.normal(size=field.cardinalities[scope])
        field.add(pf.Factor(scope, np.where(rng.random(table.shape) < 0.3, np.inf, table)))
    return field


def detection() -> pf.Field:
    """Few variables with many labels, all connected."""
    rng = np.random.default_rng(5)
    pairs = np.stack(np.triu_indices(5, 1), axis=1)
    tables = pf.Pairwise(pairs, rng.normal(scale=2.0, size=(len(pairs), 7, 7)))
    return pf.Field(5, 7).add(pf.Unary(rng.normal(size=(5, 7)))).add(tables)


EXACT: dict[str, tuple[Callable[[], pf.Field], dict[int, int]]] = {
    "CSP": (coloring, {5: 2}),
    "DBN": (lambda: rbm(8, 4, strength=1.0, seed=1), {0: 1, 3: 0}),
    "Grids": (lambda: grid(3, 5, strength=3.0, seed=2), {}),
    "ObjectDetection": (detection, {}),
    "Pedigree": (pedigree, {4: 1}),
    "Segmentation": (lambda: segmentation(14, strength=2.0, seed=3), {0: 1}),
}
"""Fields small enough to be enumerated, with evidence, by the name of a published family."""


def write_exact(name: str, folder: Path) -> Path:
    """Write a model of `EXACT` with its evidence, log Z and marginals; returns the model's path."""
    make, evidence = EXACT[name]
    field = make()
    exact = enumerate_field(field.condition(evidence))
    path = folder / f"{name}.uai"
    write_model(field, path)
    write_evidence(evidence, f"{path}.evid")
    Path(f"{path}.PR").write_text(format_pr(exact.log_z))
    Path(f"{path}.MAR").write_text(format_mar(list(field.layout.split(exact.marginals))))
    return path


def annotated_scene(seed: int, unsure: bool) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A picture of three flat regions with noise, and a rough annotation of it in colors.

    Args:
        seed: Random seed.
        unsure: Whether most pixels are black, which means not annotated; otherwise one in five is
            annotated wrongly.

    Returns:
        Both as (height, width, 3).
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:40, :50]
    truth = np.where((x - 20 - 5 * seed) ** 2 + (y - 18) ** 2 < 120, 2, (x + y > 55).astype(int))
    paint = np.array([[60, 110, 180], [200, 180, 70], [150, 40, 60]])
    image = (paint[truth] + rng.normal(scale=6.0, size=(*truth.shape, 3))).clip(0, 255)
    colors = np.array([[0, 0, 128], [128, 128, 0], [128, 0, 0]])
    wrong = rng.integers(3, size=truth.shape)
    marks = colors[np.where(rng.random(truth.shape) < 0.3, wrong, truth)]
    if unsure:
        marks = np.where((rng.random(truth.shape) < 0.6)[..., None], 0, colors[truth])
    return image.astype(np.uint8), marks.astype(np.uint8)
