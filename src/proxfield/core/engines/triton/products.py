"""Products with the Hessian of the pairwise energies, on the device: what curvature needs.

Everything is float64, and every sum has a fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.binary_pack import BinaryTensors
from proxfield.core.engines.triton.device_pack import from_numpy
from proxfield.core.terms.base import Floats

if TYPE_CHECKING:
    from proxfield.core.engines.triton.batch import BatchProgram

COLUMNS = 1 << 22
"""Entries of a basis that are combined at a time."""


class DeviceProducts:
    """P H P of a field's pairwise energies, and the vectors that it is multiplied with.

    Binary fields have one entry per variable: the block J·[[1, −1], [−1, 1]] has the one
    eigenvector (1, −1)/√2, with 2J.

    Args:
        batch: A program of one field.

    Example:
        >>> products = DeviceProducts(program.batch)  # doctest: +SKIP
        >>> products.apply(products.put(np.ones(products.size)))  # doctest: +SKIP
    """

    columns = COLUMNS

    def __init__(self, batch: BatchProgram) -> None:
        self.batch = batch.exact
        self.device = batch.device
        self.size = batch.joined.n if batch.binary else batch.joined.size
        first = self.zeros(2, 2)
        _ = first @ first[0]  # loads the library for that, before anything is timed

    # ---- vectors ----

    def zeros(self, *shape: int) -> Tensor:
        """As `numpy.zeros`, on the device."""
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def put(self, values: Floats) -> Tensor:
        """An array of the host on the device."""
        return from_numpy(np.asarray(values, dtype=np.float64)).to(self.device)

    def get(self, values: Tensor) -> NDArray[np.float64]:
        """A vector as an array of the host."""
        return np.asarray(values.cpu().numpy())

    def length(self, vector: Tensor) -> float:
        """The Euclidean length; squares of large entries don't overflow in it."""
        most = float(vector.abs().max())
        if not 0.0 < most < np.inf:
            return most
        return most * float(torch.linalg.vector_norm(vector / most))

    # ---- the operator ----

    def apply(self, v: Tensor) -> Tensor:
        """P H P v.  # (size,)"""
        pack = self.batch.pack
        if isinstance(pack, BinaryTensors):
            return -0.5 * pack.product(v)  # −W is what is stored
        return self._center(pack.product(self._center(v)))

    def _center(self, v: Tensor) -> Tensor:
        """Minus the mean over each variable's labels."""
        natural, common = self.batch.natural, self.batch.joined.common
        total = natural.sums(v, empty=0.0)
        if common:
            return v - total / common
        counts = torch.repeat_interleave(natural.counts, natural.counts, output_size=len(v))
        return v - total / counts
