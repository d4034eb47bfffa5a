# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Co-occurrence terms on a device: one small program looks at the classes, many add to pixels."""

from __future__ import annotations

import numpy as np

from proxfield.core.devices.cuda import constexpr, jit, tl, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.filters.triton.segments import has_kernels
from proxfield.core.terms import cooccurrence
from proxfield.core.terms.base import Layout
from proxfield.core.terms.cooccurrence import Cooccurrence, LatentCooccurrence

MAX_CLASSES = 64
"""Maximum number of classes whose weights one program holds."""
STATES = 64
"""States of the presences looked at together."""
PRECISION = 1e-13
"""Coordinate descent ends when no presence changes by more."""


@jit
def pair_energy(y, weights, m, M: constexpr, ROWS: constexpr):
    """½ yᵀ w y for each row of y.  # (ROWS, M) -> (ROWS,)"""
    klass = tl.arange(0, M)
    total = tl.zeros((ROWS,), tl.float64)
    for k in range(m):
        row = tl.load(weights + k * M + klass)
        mine = tl.sum(tl.where((klass == k)[None, :], y, 0.0), 1)
        total += mine * tl.sum(y * row[None, :], 1)
    return 0.5 * total


@jit
def presences(first, turn, left, on, ROWS: constexpr):
    """States ``first`` and on: y of decided classes as it is, of the others by bits."""
    state = first + tl.arange(0, ROWS)
    bit = ((state[:, None] >> turn[None, :]) & 1).to(tl.float64)
    return tl.where(left[None, :], bit, on.to(tl.float64)[None, :])


@jit
def softplus(x):
    """log(1 + eˣ)."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@jit
def descend(
    start, free, cost, base, weights, rank, m, M: constexpr, MAX_SWEEPS: constexpr, PRECISION
):
    """Coordinate descent over independent presences; returns P(y = 1), classes in rank's order."""
    klass = tl.arange(0, M)
    on = start
    sweep = 0
    moved = PRECISION + 1.0
    while (sweep < MAX_SWEEPS) & (moved > PRECISION):
        before = on
        for k in range(m):
            here = free & (rank == k)
            number = tl.sum(tl.where(here, klass, 0), 0)
            row = tl.load(weights + number * M + klass)
            price = tl.sum(tl.where(here, base - cost, 0.0), 0)
            price += tl.sum(tl.where(free, row * on, 0.0), 0)
            on = tl.where(here, tl.exp(-softplus(price)), on)
        moved = tl.max(tl.abs(on - before), 0)
        sweep += 1
    return on


@jit
def settle(on, free, cost, base, weights, m, M: constexpr):
    """Energy less entropy of independent presences, and P(y = 0)."""
    klass = tl.arange(0, M)
    price = base - cost
    for k in range(m):
        row = tl.load(weights + k * M + klass)
        price += row * tl.sum(tl.where(free & (klass == k), on, 0.0), 0)
    log_on, log_off = -softplus(price), -softplus(-price)
    y, off = tl.exp(log_on), tl.exp(log_off)
    y = tl.where(free, y, 0.0)
    off = tl.where(free, off, 0.0)
    energy = tl.sum(cost * off + base * y + y * log_on + off * log_off, 0)
    pairs = pair_energy(tl.broadcast_to(y[None, :], (2, M)), weights, m, M, 2)
    return energy + tl.max(pairs, 0), off


@jit
def envelope_of(
    absent, weights, order, out_off, out_energy, count, limits,
    M: constexpr, EXACT: constexpr, SWEEPS: constexpr, STATES: constexpr,
):  # fmt: skip
    """`proxfield.core.terms.cooccurrence.envelope` in one program.

    Up to EXACT open presences have their states summed one by one.
    absent: (M,), 0 beyond m; weights: (M, M); order: each class's place, largest absent first;
    count: m, in memory: Triton 3.6 fails to compile the loops for a number that it knows to be 1.
    """
    m = tl.load(count)
    klass = tl.arange(0, M)
    real = klass < m
    cost = tl.load(absent + klass)
    rank = tl.load(order + klass)
    limit = tl.load(limits)
    on = klass < 0
    off = klass >= m
    grown = 1
    while grown > 0:  # both sets only grow
        most, least = -cost, -cost
        for k in range(m):
            row = tl.load(weights + k * M + klass)
            here = klass == k
            most += row * tl.max((here & (off == 0)).to(tl.float64), 0)
            least += row * tl.max((here & on).to(tl.float64), 0)
        more_on = on | (real & (most <= -limit))
        more_off = off | (real & (least >= limit))
        grown = tl.sum((more_on ^ on).to(tl.int32) + (more_off ^ off).to(tl.int32), 0)
        on, off = more_on, more_off
    left = (on | off) == 0
    open_ones = tl.sum(left.to(tl.int32), 0)
    if open_ones <= EXACT:
        turn = tl.maximum(tl.cumsum(left.to(tl.int32), 0) - 1, 0)
        total = 1 << open_ones
        low = tl.sum(tl.where(off, cost, 0.0), 0) + 1e300
        for first in range(0, total, STATES):
            y = presences(first, turn, left, on, STATES)
            e = tl.sum((1.0 - y) * cost[None, :], 1) + pair_energy(y, weights, m, M, STATES)
            e = tl.where(first + tl.arange(0, STATES) < total, e, 1e300)
            low = tl.minimum(low, tl.min(e, 0))
        mass = low * 0.0
        gone = cost * 0.0
        for first in range(0, total, STATES):
            y = presences(first, turn, left, on, STATES)
            e = tl.sum((1.0 - y) * cost[None, :], 1) + pair_energy(y, weights, m, M, STATES)
            p = tl.where(first + tl.arange(0, STATES) < total, tl.exp(low - e), 0.0)
            mass += tl.sum(p, 0)
            gone += tl.sum((1.0 - y) * p[:, None], 0)
        tl.store(out_energy, low - tl.log(mass))
        tl.store(out_off + klass, gone / mass)
    else:
        decided = on.to(tl.float64)
        fixed = tl.sum(tl.where(off, cost, 0.0), 0)
        fixed += tl.max(pair_energy(tl.broadcast_to(decided[None, :], (2, M)), weights, m, M, 2), 0)
        base = cost * 0.0
        for k in range(m):
            row = tl.load(weights + k * M + klass)
            base += row * tl.sum(tl.where(klass == k, decided, 0.0), 0)
        stop = tl.load(limits + 1)
        free = left.to(tl.float64)
        up = descend(free, left, cost, base, weights, rank, m, M, SWEEPS, stop)
        down = descend(free * 0.0, left, cost, base, weights, rank, m, M, SWEEPS, stop)
        first_energy, first_off = settle(up, left, cost, base, weights, m, M)
        other_energy, other_off = settle(down, left, cost, base, weights, m, M)
        better = first_energy <= other_energy
        gone = tl.where(better, first_off, other_off)
        tl.store(out_energy, fixed + tl.where(better, first_energy, other_energy))
        tl.store(out_off + klass, tl.where(off & real, 1.0, tl.where(left, gone, 0.0)))


class _Pixels:
    """The block of pixels that both forms share."""

    def __init__(self, term: Cooccurrence, layout: Layout, dtype: str, device: TorchDevice) -> None:
        self.term = term
        self.device = torch.device(device)
        common = layout.common
        start = int(layout.offsets[term.first]) if common is None else term.first * common
        self.at = slice(start, start + term.pixels * term.n_labels)
        self.classes = torch.from_numpy(np.array(term.classes)).to(self.device)
        self.weights = torch.from_numpy(np.array(term.weights)).to(self.device)

    def _absent(self, q: Tensor) -> Tensor:
        """κ Σ_i q_il.  # (m,) float64"""
        rows = q[self.at].view(-1, self.term.n_labels)
        return self.term.kappa * rows.sum(0, dtype=torch.float64)[self.classes]

    def _add_to_pixels(self, energies: Tensor, out: Tensor) -> None:
        """Add an energy per class to every pixel.  energies: (m,)"""
        row = torch.zeros(self.term.n_labels, dtype=out.dtype, device=out.device)
        row[self.classes] = energies.to(out.dtype)
        out[self.at].view(-1, self.term.n_labels).add_(row)


class CooccurrenceOnDevice(_Pixels):
    """`Cooccurrence` with ``latent="implicit"``: see there.

    Up to 64 classes are looked at by one program on the device; more of them, or a machine without
    Triton, by the host, which an iteration then waits for.
    """

    def __init__(self, term: Cooccurrence, layout: Layout, dtype: str, device: TorchDevice) -> None:
        super().__init__(term, layout, dtype, device)
        m = len(term.classes)
        self.fused = has_kernels(self.weights) and 0 < m <= MAX_CLASSES
        self.capturable = self.fused or m == 0
        if self.fused:
            self.padded = max(2, 1 << (m - 1).bit_length())
            self.count = torch.tensor(m, dtype=torch.int32, device=self.device)
            self.table = torch.zeros((self.padded,) * 2, dtype=torch.float64, device=self.device)
            self.table[:m, :m] = self.weights
            # a tensor: numbers given to a kernel would be rounded to float32
            limits = (cooccurrence.SATURATION_ENERGY, PRECISION)
            self.limits = torch.tensor(limits, dtype=torch.float64, device=self.device)

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """See `DeviceTerm`."""
        absent = self._absent(q)
        if self.fused:
            m, size = len(absent), self.padded
            cost = torch.zeros(size, dtype=torch.float64, device=self.device)
            cost[:m] = absent
            order = torch.argsort(absent, descending=True, stable=True)
            rank = torch.full((size,), size, dtype=torch.int64, device=self.device)
            rank[order] = torch.arange(m, device=self.device)
            least, gone = torch.empty_like(cost[:1]), torch.empty_like(cost)
            envelope_of[(1,)](
                cost, self.table, rank, gone, least, self.count, self.limits,
                M=size, EXACT=cooccurrence.MAX_EXACT_CLASSES, SWEEPS=cooccurrence.MAX_SWEEPS,
                STATES=STATES,
            )  # fmt: skip
            energy, off = least[0], gone[:m]
        else:
            least, gone = cooccurrence.envelope(absent.cpu().numpy(), self.term.weights)
            energy = torch.tensor(least, dtype=torch.float64, device=self.device)
            off = torch.from_numpy(gone).to(self.device)
        self._add_to_pixels(self.term.kappa * off, out)
        return energy


class LatentOnDevice(_Pixels):
    """`Cooccurrence` with ``latent="variables"``: see there."""

    capturable = True

    def __init__(
        self, term: LatentCooccurrence, layout: Layout, dtype: str, device: TorchDevice
    ) -> None:
        super().__init__(term, layout, dtype, device)
        self.off = torch.from_numpy(np.array(term._off(layout))).to(self.device)

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """See `DeviceTerm`."""
        absent = self._absent(q)
        off, on = q[self.off].to(torch.float64), q[self.off + 1].to(torch.float64)
        pairs = self.weights @ on
        self._add_to_pixels(self.term.kappa * off, out)
        out[self.off] = out[self.off] + absent.to(out.dtype)
        out[self.off + 1] = out[self.off + 1] + pairs.to(out.dtype)
        return absent @ off + 0.5 * (on @ pairs)
