"""The filters by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from proxfield.errors import InputError, shown

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from proxfield.core.filters.geometry import Blur
    from proxfield.core.filters.plan import HostPlan

FILTERS: dict[str, tuple[str, str]] = {
    "exact": ("proxfield.core.filters.exact", "ExactFilter"),
    "lattice": ("proxfield.core.filters.lattice", "LatticeFilter"),
}
"""A new filter is one module and one entry here; nothing is imported before it is asked for."""

EXACT_POINTS = 2000
"""Points up to which ``filter="auto"`` computes every pair."""


def choose(name: str, points: int) -> str:
    """ "auto" resolved: every pair for few points, the lattice for many."""
    if name == "auto":
        return "exact" if points <= EXACT_POINTS else "lattice"
    if name not in FILTERS:
        raise InputError(f"unknown filter {shown(name)}, expected auto, {', '.join(FILTERS)}")
    return name


def make_filter(name: str, features: ArrayLike, blur: Blur | None = None) -> HostPlan:
    """A filter by name ("exact" or "lattice"); the lattice's blur, if it isn't to choose."""
    if name not in FILTERS:
        raise InputError(f"unknown filter {shown(name)}, expected {', '.join(FILTERS)}")
    module, kind = FILTERS[name]
    options = {} if blur is None or name != "lattice" else {"blur": blur}
    made: HostPlan = getattr(import_module(module), kind)(features, **options)
    return made
