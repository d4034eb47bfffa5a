"""What a CPU program holds: its modules of kernels, and states in the kernels' layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.compiled.jit import ParallelKernel
from proxfield.core.engines.numba.binary import BinaryArrays, BinaryPack
from proxfield.core.engines.numba.general import GeneralArrays, GeneralPack

PackT = TypeVar("PackT", bound=BinaryPack | GeneralPack)
"""A field as its kernels read it."""
ArraysT = TypeVar("ArraysT", bound=BinaryArrays | GeneralArrays)
"""A state as its kernels read and write it."""


class Kernels(Protocol):
    """A module of kernels: `binary` or `general`, whose functions have the same arguments."""

    @property
    def run(self) -> Callable[..., tuple[int, int, float, float, float]]:
        """Many iterations of a small field."""

    @property
    def evaluate(self) -> Callable[..., tuple[float, float]]:
        """Energy and entropy; the gradient is left in ``g``."""

    @property
    def energy_only(self) -> Callable[..., float]:
        """The energy alone; the gradient is left in ``g``."""

    @property
    def entropy_parallel(self) -> ParallelKernel:
        """The entropy of each block."""

    @property
    def update_only(self) -> Callable[..., tuple[float, float, float]]:
        """An update from the gradient in ``g``, on one thread."""

    @property
    def update_parallel(self) -> ParallelKernel:
        """An update from the gradient in ``g``."""


class SweepKernels(Protocol):
    """A module of sweeps: `binary_sweep` or `general_sweep`."""

    @property
    def GROUP(self) -> int:
        """Variables of a color that one thread takes at a time."""

    @property
    def sweep(self) -> Callable[..., tuple[int, float]]:
        """Whole sweeps in given orders."""

    @property
    def color_parallel(self) -> ParallelKernel:
        """Variables that don't interact."""


@dataclass
class CpuState(Generic[ArraysT]):
    """Arrays in the kernels' layout, the buffer in use, and what is known about it."""

    arrays: ArraysT
    phase: int = 0
    entropy: float | None = None
    known_f: float | None = None  # F, if the gradient in ``g`` is the present one too
    cached_f: float | None = None  # F, whether or not the gradient is kept
    h: NDArray[np.float64] | None = None  # entropy of each variable, for sweeps
    order_f: float | None = None  # F as sweeps have carried it on
    natural: bool = False  # do the natural parameters say all about the marginals?
    size: float | None = None  # the next step of a `Search`
    version: int = 0  # of the unary energies that the numbers above belong to
    pending: bool = False  # do impossible labels still have weight (so that F is +inf)?
