"""What dense CRFs add to the core's registries: the fields that compile their kernels."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from proxfield.warming import FAMILIES, Family

if TYPE_CHECKING:
    from proxfield.images.densecrf import DenseCRF

PIXELS = (64, 64)
"""Size of the images: with 21 labels they are iterated as large ones are."""


def make_image(labels: int, channels: int = 3, blur: str = "separable", **options: Any) -> DenseCRF:
    """A small image with random probabilities, filtered with lattices as large ones are.

    Small images have separable blurs; ``blur`` is that of the bilateral term.
    """
    from proxfield.core.filters.geometry import BLURS
    from proxfield.core.filters.lattice import LatticeFilter
    from proxfield.images.densecrf import DenseCRF

    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, size=(*PIXELS, channels)).astype(np.uint8)
    p = rng.dirichlet(np.ones(labels), size=PIXELS)
    crf = DenseCRF(image, p, filter="lattice", **options)
    bilateral: Any = crf.terms[-1]
    bilateral.filter = LatticeFilter(bilateral.features, BLURS[blur])
    return crf


def compile_dense(all: bool) -> None:
    """Compile what dense CRFs need, or (``all``) what they may need."""
    for labels in (21, 2):
        for blur in ("separable", "star"):
            crf = make_image(labels, blur=blur)
            for rule in ("fixed", "full-parallel"):
                _ = crf.infer(rule, max_iters=2).map_energy
    _compile_filters(np.float32)
    if not all:
        return
    for dtype in ("float32", "float64"):
        _compile_filters(dtype)
        for channels in (1, 3, 6):
            for blur in ("separable", "star"):
                make_image(21, channels, blur).infer(max_iters=2, dtype=dtype)
        for normalization in ("none", "before", "symmetric"):
            crf = make_image(21, normalization=normalization, self_message=normalization != "none")
            for rule, options in (("fixed", {}), ("fixed", {"step": 0.5}), ("adaptive", {})):
                crf.infer(rule, max_iters=2, dtype=dtype, **options)
        matrix = np.ones((21, 21)) - np.eye(21) + np.diag(np.linspace(0, 0.1, 21))
        make_image(21, compatibility=-matrix).infer(max_iters=2, dtype=dtype)
        for labels in (2, 21):  # updates alone, as the stand-in for pydensecrf and the layer make
            crf = make_image(labels)
            crf.infer(max_iters=2, dtype=dtype, trace=False)


def _compile_filters(dtype: DTypeLike) -> None:
    """Products with lattices that are too large for what small images use."""
    from proxfield.core.filters.geometry import BLURS
    from proxfield.core.filters.lattice import LatticeFilter

    rng = np.random.default_rng(0)
    for d, blur in product((2, 5), BLURS.values()):
        lattice = LatticeFilter(rng.normal(size=(500, d)), blur)
        lattice.apply(np.ones((500, 3), dtype=dtype))
        rows = np.zeros(lattice.n_rows)
        here, there = np.zeros((2, lattice.n_vertices + 1))
        lattice.blur_one(rows, here, there, False)


FAMILIES["dense fields"] = Family(compile_dense, seconds=60)
