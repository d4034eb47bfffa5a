"""The terms a field is made of. A new kind is one file here and one line in `TERMS`."""

from __future__ import annotations

from proxfield.terms.base import Layout, Term
from proxfield.terms.consistency import Consistency
from proxfield.terms.cooccurrence import Cooccurrence
from proxfield.terms.factor import Factor
from proxfield.terms.gaussian import Gaussian
from proxfield.terms.pairwise import Ising, Pairwise, Potts
from proxfield.terms.unary import Constant, Unary

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
    )
}

__all__ = [
    "TERMS",
    "Consistency",
    "Constant",
    "Cooccurrence",
    "Factor",
    "Gaussian",
    "Ising",
    "Layout",
    "Pairwise",
    "Potts",
    "Term",
    "Unary",
]
