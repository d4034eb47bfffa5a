"""The terms a field is made of. A new kind is one file here and one line in `TERMS`."""

from __future__ import annotations

from proxfield.core.terms.base import Layout, Term
from proxfield.core.terms.consistency import Consistency, TabledConsistency
from proxfield.core.terms.cooccurrence import Cooccurrence, LatentCooccurrence, TabledCooccurrence
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.occupancy import ExactOccupancy, Occupancy, RatioOccupancy
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.saving import saveable, saveable_as
from proxfield.core.terms.silhouettes import Boxes, Runs, Silhouettes
from proxfield.core.terms.unary import Constant, Unary

TERMS: dict[str, type[Term]] = {
    term.name: term
    for term in (
        Constant,
        Unary,
        Pairwise,
        Potts,
        Ising,
        Factor,
        Gaussian,
        Consistency,
        Cooccurrence,
        Occupancy,
        GridPairwise,
    )
}

for _term in TERMS.values():
    if _term is not Occupancy:  # each of its models is a class of its own
        saveable_as(_term, _term.name)
for _kind, _form in (  # forms of a term whose class differs
    ("consistency-tables", TabledConsistency),
    ("cooccurrence-variables", LatentCooccurrence),
    ("cooccurrence-tables", TabledCooccurrence),
    ("occupancy", ExactOccupancy),
    ("occupancy-ratio", RatioOccupancy),
):
    saveable_as(_form, _kind)

__all__ = [
    "TERMS",
    "Boxes",
    "Consistency",
    "Constant",
    "Cooccurrence",
    "Factor",
    "Gaussian",
    "GridPairwise",
    "Ising",
    "Layout",
    "Occupancy",
    "Pairwise",
    "Potts",
    "Runs",
    "Silhouettes",
    "Term",
    "Unary",
    "saveable",
]
