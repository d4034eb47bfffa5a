"""What occupancy maps add to the core's registries: a term, a rule, fields that compile kernels."""

from __future__ import annotations

import numpy as np

from proxfield.core.terms.unary import Unary
from proxfield.field import Field
from proxfield.people import original as original  # registers its rule
from proxfield.people.occupancy import Occupancy  # registers itself and its kernels
from proxfield.people.silhouettes import Boxes
from proxfield.warming import FAMILIES, Family


def compile_occupancy(all: bool) -> None:
    """Compile what occupancy maps need."""
    from proxfield.core.solve.infer import infer

    boxes = Boxes(4, 8, [[0, 0, 2, 3], [2, 0, 4, 3], [4, 1, 7, 4]])
    masks = [np.eye(4, 8, dtype=bool)] * 2
    for model in ("exact", "ratio"):
        term = Occupancy([boxes, boxes], masks, model=model)
        field = Field(3, 2, [term, Unary(np.tile([0.0, 3.0], (3, 1)))])
        for dtype in ("float64", "float32"):
            for rule in ("adam", "backtracking", "original" if model == "ratio" else "sweep"):
                infer(field, rule, max_iters=3, dtype=dtype)


FAMILIES["occupancy maps"] = Family(compile_occupancy, seconds=20, usual=False)
