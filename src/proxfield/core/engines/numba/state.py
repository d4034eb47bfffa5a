"""The states of CPU programs, in the kernels' layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from proxfield.core.common.arrays import Doubles
from proxfield.core.engines.numba.binary import BinaryArrays, BinaryPack
from proxfield.core.engines.numba.general import GeneralArrays, GeneralPack

PackT = TypeVar("PackT", bound=BinaryPack | GeneralPack)
"""A field as its kernels read it."""
ArraysT = TypeVar("ArraysT", bound=BinaryArrays | GeneralArrays)
"""A state as its kernels read and write it."""


@dataclass
class Known:
    """Numbers that belong to the present marginals of a state; see `CpuState.forget`."""

    entropy: float | None = None
    f: float | None = None  # F
    gradient: bool = False  # does ``g`` hold the gradient that belongs to F?
    entropies: Doubles | None = None  # of each variable, for sweeps
    carried: float | None = None  # F as sweeps have carried it on, with the entropies


@dataclass
class CpuState(Generic[ArraysT]):
    """Arrays in the kernels' layout, the buffer in use, and what is known about it.

    An update first takes what was known by `forget`, and in the end says what is known then.
    What depends on unary energies is forgotten when those change (`version`).
    """

    arrays: ArraysT
    phase: int = 0
    known: Known = field(default_factory=Known)
    natural: bool = False  # do the natural parameters say all about the marginals?
    size: float | None = None  # the next step of a `Search`
    version: int = 0  # of the unary energies that F belongs to
    pending: bool = False  # do impossible labels still have weight (so that F is +inf)?

    def forget(self) -> Known:
        """What was known about the marginals, which are about to move."""
        known, self.known = self.known, Known()
        return known

    def see_unary(self, version: int) -> None:
        """Forget what belongs to other unary energies than those of this version."""
        if self.version != version:
            self.version = version
            self.known = Known(entropy=self.known.entropy)
