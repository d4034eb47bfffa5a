# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Products with the Hessian of the pairwise energies, on the device: what curvature needs.

Everything is float64, and every sum has a fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import jit, torch
from proxfield.core.devices.cuda import tl as tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.device_pack import BinaryTensors, from_numpy
from proxfield.core.engines.triton.planes_pack import BLOCK, PlaneTensors
from proxfield.core.engines.triton.update.general import (
    agreements,
    fetch_marginals,
    own_tables,
    pair_tables,
)
from proxfield.core.engines.triton.update.planes import shared_tables
from proxfield.core.terms.base import Floats

if TYPE_CHECKING:
    from proxfield.core.devices.tensors import constexpr
    from proxfield.core.engines.triton.batch import BatchProgram
else:
    constexpr = str if tl is None else tl.constexpr

COLUMNS = 1 << 22
"""Entries of a basis that are combined at a time."""


@jit
def slice_product(
    source, out, variable, start, length, column, weight, BLOCK: constexpr, WIDE: constexpr
):
    """Σ_j w_ij v_j of binary variables; see `binary.slice_step`."""
    block = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    at = tl.load(variable + block * BLOCK + place)  # −1: nobody
    inside = at >= 0
    first = tl.load(start + block)
    count = tl.load(length + block)
    beside = tl.arange(0, WIDE)[None, :]
    g = tl.zeros((BLOCK,), out.dtype.element_ty)
    for k in range(0, count, WIDE):
        here = (k + beside < count) & inside[:, None]
        edge = first + (k + beside) * BLOCK + place[:, None]
        w = tl.load(weight + edge, mask=here, other=0.0)
        j = tl.load(column + edge, mask=here, other=0)
        g += tl.sum(w * tl.load(source + j, mask=here, other=0.0), 1)
    tl.store(out + at, g, mask=inside)


@jit
def tile_product(
    source, out, variable, offset, cards, common,
    a_start, a_length, a_to, a_both, a_weight, p_start, p_length, p_to, p_count, p_base, p_value,
    table,
    SAME: constexpr, AGREE: constexpr, PAIRS: constexpr, L: constexpr, BLOCK: constexpr,
    M: constexpr, E: constexpr, OWN: constexpr,
):  # fmt: skip
    """The same for any labels, a tile of them; see `general.tile`."""
    block = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    who = tl.load(variable + block * BLOCK + place)
    real = who >= 0
    label = tl.arange(0, L)[None, :]
    if SAME:
        card = tl.zeros((BLOCK, 1), tl.int32) + common
        at = (who.to(tl.int64) * common)[:, None] + label
    else:
        card = tl.load(cards + who, mask=real, other=0)[:, None]
        at = tl.load(offset + who, mask=real, other=0)[:, None] + label
    inside = real[:, None] & (label < card)
    g = tl.zeros((BLOCK, L), out.dtype.element_ty)
    if AGREE:
        g = agreements(
            g, source, block, a_start, a_length, a_to, a_both, a_weight, place, label, inside,
            SAME, BLOCK, True,
        )  # fmt: skip
    if OWN > 0:
        g = own_tables(
            g, source, block, p_start, p_length, p_to, p_count, p_value, place, label,
            OWN, BLOCK, True, M,
        )  # fmt: skip
    elif PAIRS:
        g = pair_tables(
            g, source, block, p_start, p_length, p_to, p_count, p_base, table, place, label, card,
            inside, L, BLOCK, True, M, E,
        )  # fmt: skip
    tl.store(out + at, g, mask=inside)


@jit
def plane_product(
    source, out, start, length, to, weight, t_start, t_length, t_to, table,
    GROUPS: constexpr, T_DEGREE: constexpr, LABELS: constexpr, L: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The same for labels in planes; see `planes.plane_step`."""
    block = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    label = tl.arange(0, L)[None, :]
    inside = (label < LABELS) & (place >= 0)[:, None]
    at = block * (LABELS * BLOCK) + place[:, None] + label * BLOCK
    first = tl.load(start + block)
    g = tl.zeros((BLOCK, L), out.dtype.element_ty)
    for k in range(tl.load(length + block)):
        edge = first + k * BLOCK + place
        w = tl.load(weight + edge)[:, None]
        j = tl.load(to + edge)[:, None]
        g += w * fetch_marginals(source + j + label * BLOCK, inside, True)
    if GROUPS > 0:
        g = shared_tables(
            g, source, block, tl.num_programs(0), t_start, t_length, t_to, table, table,
            place, label, label * BLOCK, inside, GROUPS, T_DEGREE, LABELS, L, BLOCK, True, False,
        )  # fmt: skip
    tl.store(out + at, g, mask=inside)


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
        """The other way."""
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
            return -0.5 * self._couple(pack, v)  # −W is what is stored
        centered = self._center(v)
        if isinstance(pack, PlaneTensors):
            stored = pack.stored(centered)
            out = torch.zeros_like(stored)
            plane_product[(pack.n_blocks,)](
                stored, out, pack.start, pack.length, pack.to, pack.weight, pack.table_start,
                pack.table_length, pack.table_to, pack.table, GROUPS=pack.groups,
                T_DEGREE=pack.table_degree, LABELS=pack.labels, L=pack.lanes, BLOCK=BLOCK,
                num_warps=BLOCK // 32, num_stages=1,
            )  # fmt: skip
            return self._center(pack.listed(out))
        out = torch.zeros_like(centered)
        common = self.batch.joined.common
        for bucket in pack.buckets:
            tile_product[(bucket.n_blocks,)](
                centered, out, bucket.variable, pack.offset, pack.cards, common,
                *bucket.arguments[:11], pack.table, SAME=common > 0, AGREE=bucket.agree,
                PAIRS=bucket.pairs, L=bucket.labels, BLOCK=bucket.block, M=bucket.neighbor_labels,
                E=bucket.edges, OWN=common if bucket.own else 0, num_warps=bucket.warps,
            )  # fmt: skip
        return self._center(out)

    def _couple(self, pack: BinaryTensors, v: Tensor) -> Tensor:
        if pack.form == "diagonals":
            n, front = pack.n, pack.front
            padded, out = self.zeros(pack.stride), self.zeros(n)
            padded[front : front + n] = v
            for row, d in zip(pack.diagonal, pack.distances, strict=True):
                out += row[front : front + n] * padded[front + d : front + d + n]
                before = slice(front - d, front - d + n)
                out += row[before] * padded[before]
            return out
        out = self.zeros(pack.n)
        slice_product[(pack.n_blocks,)](
            v, out, pack.variable, pack.start, pack.length, pack.column, pack.weight,
            BLOCK=pack.block, WIDE=pack.wide, num_warps=pack.warps,
        )  # fmt: skip
        return out

    def _center(self, v: Tensor) -> Tensor:
        """Minus the mean over each variable's labels."""
        natural, common = self.batch.natural, self.batch.joined.common
        total = natural.sums(v, empty=0.0)
        if common:
            return v - total / common
        counts = torch.repeat_interleave(natural.counts, natural.counts, output_size=len(v))
        return v - total / counts
