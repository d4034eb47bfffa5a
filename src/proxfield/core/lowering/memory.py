"""How many bytes inference takes beside the field, from above."""

from __future__ import annotations

from collections.abc import Sequence

from proxfield.core.terms.base import Ints, Layout, Term, offers
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.core.terms.unary import Constant, Unary

BASE_BYTES = 1 << 18
"""What even the smallest field takes."""
SPIN_BYTES = 90
"""State per entry of a binary field: a state and its copy while kernels warm up, marginals."""
ENTRY_BYTES = 200
"""State per entry of any other field."""
SECOND_ORDER_BYTES = 200
"""Vectors of the test that tells minima from saddles."""
LANCZOS_BYTES = 200
"""Per entry: 25 vectors (of half the length where spins stand for two entries)."""
CHAIN_BYTES = 40
"""Per entry and chain: start, marginals, natural parameters and result."""
EXTRA_BYTES = 50
"""Per entry, if a term adds its own gradient."""
REDUCTION_BYTES = 60
"""Per entry, if variables or labels are taken out: numbers old and new."""


LEAST_BYTES = 16
"""Per entry of a dense field in float32, a few iterations of one rule, states in place."""


def needed_memory(layout: Layout, terms: Sequence[Term], evidence: Ints, chains: int) -> int:
    """Bytes below which inference is refused before it begins.

    The upper bound for fields of tables. Dense fields have many entries, and most of what the
    bound counts (float64, the second-order test) a few iterations on an image never take, so that
    they are refused only if even the least doesn't fit.
    """
    present = [t for t in terms if not t.omitted]
    if all(offers(t, "lower") for t in present):
        return estimate_memory(layout, terms, evidence, chains)
    return BASE_BYTES + LEAST_BYTES * layout.size + sum(t.workspace(layout) for t in present)


def estimate_memory(layout: Layout, terms: Sequence[Term], evidence: Ints, chains: int) -> int:
    """An upper bound on the bytes that inference takes in addition to the field; see `Field`."""
    terms = [t for t in terms if not t.omitted]
    spins = layout.common == 2 and all(
        isinstance(t, (Constant, Unary, Ising, Potts, GridPairwise))
        or (isinstance(t, Factor) and t.degree <= 2 and not t.hard)
        for t in terms
    )
    hard = any(isinstance(t, Factor) and t.hard for t in terms)
    per_entry = SPIN_BYTES if spins else ENTRY_BYTES
    extras = not all(offers(t, "lower") for t in terms)
    per_entry += EXTRA_BYTES if extras else 0
    search = 0 if extras else CHAIN_BYTES * chains
    if any(t.degree == 2 and not offers(t, "spectrum") for t in terms):
        search = max(search, LANCZOS_BYTES // 2 if spins else LANCZOS_BYTES)
    per_entry += max(search, SECOND_ORDER_BYTES)
    if hard or bool((evidence >= 0).any()):
        per_entry += REDUCTION_BYTES
    return BASE_BYTES + per_entry * layout.size + sum(t.workspace(layout) for t in terms)
