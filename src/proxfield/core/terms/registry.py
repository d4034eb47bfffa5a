"""The terms by name. A new kind is one file beside this one and one line here."""

from __future__ import annotations

from proxfield.core.common.registry import Registry
from proxfield.core.terms.base import Term

TERMS: Registry[type[Term]] = Registry(
    {
        "constant": "unary:Constant",
        "unary": "unary:Unary",
        "pairwise": "pairwise:Pairwise",
        "potts": "pairwise:Potts",
        "ising": "pairwise:Ising",
        "factor": "factor:Factor",
        "gaussian": "gaussian:Gaussian",
        "consistency": "consistency:Consistency",
        "cooccurrence": "cooccurrence:Cooccurrence",
        "occupancy": "occupancy:Occupancy",
        "grid-pairwise": "grid:GridPairwise",
    },
    package="proxfield.core.terms",
)
