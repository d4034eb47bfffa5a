"""Seeded instances of the paper's three families, for machines without its data.

Sizes, names, weights and ranges of parameters follow the paper's own instances; the numbers
are random. Only the GRID family has the very same distribution: the paper's SEG and DBN models
were learned from pictures, which a generator can't repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.unary import Unary
from proxfield.field import Field
from proxfield.generate import grid, rbm, segmentation

SEED = 2016
RECIPE = "generated-1"
"""Changes whenever a change here changes a field, so that old results aren't taken for new."""
PIXELS = 28
SEGMENTATIONS = 50

GRIDS = [
    (side, strength, wrap)
    for side in (20, 40, 80)
    for strength in (2, 5, 10, 15)
    for wrap in (False, True)
    # the paper's set lacks these
    if (side, strength, wrap) not in [(20, 2, False), (20, 2, True), (20, 5, False)]
]
# hidden units: (how many instances the paper has in spin form and in 0/1 form, and the
# standard deviations of the weights above the pixels, between the hidden layers, below the top)
NETWORKS = {
    20: ((30, 30), (0.72, 1.00, 2.14)),
    50: ((11, 19), (0.55, 0.68, 1.60)),
    100: ((8, 10), (0.41, 0.43, 1.27)),
}

Maker = Callable[[], Field]


def generated(suite: str) -> Iterator[tuple[str, int, Maker]]:
    """Name, weight and maker of each instance of a suite; fields are made when asked for."""
    yield from {"DBN": _networks, "GRID": _grids, "SEG": _segmentations}[suite]()


def small_models() -> Iterator[tuple[str, str, Maker]]:
    """Family, name and maker of models so small that all labellings can be enumerated."""
    for sign in ("attractive", "repulsive", "mixed"):
        for strength in (1, 3):

            def make_grid(sign: str = sign, strength: int = strength) -> Field:
                return grid(4, 4, strength=strength, sign=sign, seed=SEED)

            yield f"grids 4×4, {sign}", f"grid4x4.f{strength}", make_grid
    for k in range(3):

        def make_network(k: int = k) -> Field:
            return rbm(9, 6, strength=1.0, seed=SEED + k)

        def make_picture(k: int = k) -> Field:
            return segmentation(15, seed=SEED + k)

        yield "networks 9 + 6", f"rbm{k}", make_network
        yield "pictures of 15 parts", f"picture{k}", make_picture


def _grids() -> Iterator[tuple[str, int, Maker]]:
    for side, strength, wrap in GRIDS:
        name = f"grid{side}x{side}.f{strength}" + (".wrap" if wrap else "")

        def make(side: int = side, strength: int = strength, wrap: bool = wrap) -> Field:
            # as in the paper's set, grids of one shape differ only by the factor
            seed = SEED + 2 * side + wrap
            return grid(side, side, strength=strength, wrap=wrap, seed=seed)

        yield name, 1, make


def _networks() -> Iterator[tuple[str, int, Maker]]:
    for hidden, (counts, _) in NETWORKS.items():
        for spins, weight in zip((True, False), counts, strict=True):
            name = f"{'rus' if spins else 'rus2'}_{hidden}_{2 * hidden}"

            def make(hidden: int = hidden, spins: bool = spins) -> Field:
                return network(hidden, spins=spins, seed=SEED + hidden)

            yield name, weight, make


def _segmentations() -> Iterator[tuple[str, int, Maker]]:
    for k in range(SEGMENTATIONS):

        def make(k: int = k) -> Field:
            return superpixels(seed=SEED + k)

        yield f"segmentation{k:02d}", 1, make


def network(hidden: int, *, spins: bool, seed: int) -> Field:
    """A deep belief network: 784 pixels and layers of ``hidden``, 2·``hidden`` and 10 units.

    Every unit is joined to every unit of the next layer. Pixels have no energy of their own,
    and those near the border hardly any coupling.

    Args:
        hidden: Units of the first hidden layer: 20, 50 or 100.
        spins: Energies b·s and w·s·t with s, t = ±1; otherwise b·x and w·x·y with x, y = 0 or 1.
        seed: Random seed; the weights are the same in both forms.
    """
    rng = np.random.default_rng(seed)
    sizes = (PIXELS * PIXELS, hidden, 2 * hidden, 10)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    edges, weights = [], []
    for layer, scale in enumerate(NETWORKS[hidden][1]):
        ends = np.meshgrid(
            np.arange(starts[layer], starts[layer + 1]),
            np.arange(starts[layer + 1], starts[layer + 2]),
            indexing="ij",
        )
        edges.append(np.stack([e.ravel() for e in ends], axis=1))
        shape = (sizes[layer], sizes[layer + 1])
        if layer == 0:  # heavy tails: most pixels hardly matter to most units
            center = _center_of_picture()
            drawn = rng.laplace(0.05, scale / np.sqrt(2 * np.mean(center**2)), shape)
            weights.append((drawn * center[:, None]).ravel())
        else:
            weights.append(rng.normal(0.05, scale, shape).ravel())
    bias = np.concatenate(
        [
            np.zeros(sizes[0]),
            np.clip(rng.normal(-0.5, 4.5, sizes[1]), -14, 11),
            np.clip(rng.normal(1.7, 2.0, sizes[2]), -5, 7.5),
            rng.normal(0.0, 0.4, sizes[3]),
        ]
    )
    pairs, w = np.concatenate(edges), np.concatenate(weights)
    field = Field(int(starts[-1]), n_labels=2)
    if spins:
        return field.add(Unary(np.stack([-bias, bias], axis=1))).add(Ising(pairs, w))
    tables = np.zeros((len(w), 2, 2))
    tables[:, 1, 1] = w
    field.add(Unary(np.stack([np.zeros_like(bias), bias], axis=1)))
    return field.add(Pairwise(pairs, tables))


def _center_of_picture() -> NDArray[np.float64]:
    """1 for pixels in the middle of the picture, little for the border.  # (784,)"""
    y, x = np.mgrid[0:PIXELS, 0:PIXELS] - (PIXELS - 1) / 2
    return np.where(np.hypot(x, y) < 0.47 * PIXELS, 1.0, 0.05).ravel()


def superpixels(*, seed: int) -> Field:
    """A segmentation of 221 to 237 superpixels with the paper's ranges of energies.

    Potts weights are about 1.2; unary energies are 0 for the likelier label.
    """
    rng = np.random.default_rng(seed)
    picture = segmentation(int(rng.integers(221, 238)), seed=seed)
    unary, potts = picture.terms
    assert isinstance(unary, Unary) and isinstance(potts, Potts)
    view = unary.energies[:, 1] - unary.energies[:, 0]
    view = 1.56 * (view / view.std()) + rng.normal(0.4, 0.6)
    weights = np.clip(rng.normal(1.215, 0.1, len(potts.edges)), 0.99, 1.45)
    field = Field(picture.n_vars, n_labels=2)
    field.add(Unary(np.stack([np.maximum(-view, 0), np.maximum(view, 0)], axis=1)))
    return field.add(Potts(potts.edges, weights))
