"""The terms a field is made of. A new kind is one file here and one line in `TERMS`."""

from __future__ import annotations

from proxfield.core.common.registry import Registry
from proxfield.core.terms.base import Layout, Term
from proxfield.core.terms.consistency import Consistency, TabledConsistency
from proxfield.core.terms.cooccurrence import Cooccurrence, LatentCooccurrence, TabledCooccurrence
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.saving import saveable, saveable_as
from proxfield.core.terms.unary import Constant, Unary

TERMS: Registry[type[Term]] = Registry(
    (term.name, term)
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
        GridPairwise,
    )
)

for _term in TERMS.known.values():
    saveable_as(_term, _term.name)
for _kind, _form in (  # forms of a term whose class differs
    ("consistency-tables", TabledConsistency),
    ("cooccurrence-variables", LatentCooccurrence),
    ("cooccurrence-tables", TabledCooccurrence),
):
    saveable_as(_form, _kind)

__all__ = [
    "TERMS",
    "Consistency",
    "Constant",
    "Cooccurrence",
    "Factor",
    "Gaussian",
    "GridPairwise",
    "Ising",
    "Layout",
    "Pairwise",
    "Potts",
    "Term",
    "Unary",
    "saveable",
]
