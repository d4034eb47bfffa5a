# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Gaussian terms on a device."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from proxfield.core.devices.cuda import constexpr, jit, resolved, tl, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.filters.geometry import BLURS
from proxfield.core.filters.operator import Operator
from proxfield.core.filters.torch.plans import DeviceFilter
from proxfield.core.filters.triton.exact import ExactPlan
from proxfield.core.filters.triton.segments import has_kernels
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Layout, Term
from proxfield.core.terms.gaussian import Gaussian

POINTS = 64
"""Points of a program."""
MAX_LABELS = 256
"""Maximum number of labels for which a program holds whole rows."""


class PottsShape(NamedTuple):
    """What `add_potts` is compiled for."""

    labels: int
    width: int  # of the rows of ``seen``
    pair: bool  # is the sum in two parts?
    rows: int  # points of a program
    padded: int  # labels rounded up to a power of two


@jit
def add_potts(seen, q, outward, own, out, energy, n, weight, SHAPE: constexpr):
    """out += weight · (Σ_m s_m − s_l) for s = A q, and each program's share of ⟨q, that⟩.

    Rows of ``seen`` hold K (in · q), and for a pair the second half of a sum after it.
    """
    L: constexpr = SHAPE.labels
    WIDTH: constexpr = SHAPE.width
    ROWS: constexpr = SHAPE.rows
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    label = tl.arange(0, SHAPE.padded)
    inside = at < n
    real = inside[:, None] & (label < L)[None, :]
    s = tl.load(seen + at[:, None] * WIDTH + label[None, :], mask=real, other=0.0)
    p = tl.load(q + at[:, None] * L + label[None, :], mask=real, other=0.0)
    if outward is not None:
        s *= tl.load(outward + at, mask=inside, other=0.0)[:, None]
    if SHAPE.pair:
        s += tl.load(seen + at[:, None] * WIDTH + L + label[None, :], mask=real, other=0.0)
    if own is not None:
        s -= p * tl.load(own + at, mask=inside, other=0.0)[:, None]
    w = tl.load(weight)
    g = w * (tl.sum(s, 1)[:, None] - s)
    to = out + at[:, None] * L + label[None, :]
    tl.store(to, tl.load(to, mask=real, other=0.0) + g, mask=real)
    share = tl.where(real, p.to(tl.float64) * g.to(tl.float64), 0.0)
    tl.store(energy + tl.program_id(0), tl.sum(tl.sum(share, 1), 0))


def filter_of(term: Gaussian, double: bool, device: TorchDevice) -> DeviceFilter:
    """A term's filter on a device: its own if that is there already, in both types."""
    held = vars(term).get("filter")
    if isinstance(held, DeviceFilter) and held.features.device == device:
        return held  # F in float64 is that of the operator iterated with
    features = term.features
    if features is None:  # dropped once the host's lattice was there
        raise ValueError("a Gaussian term without features can't move to a device")
    blur = None if term.blur is None else BLURS[term.blur]
    return DeviceFilter(features, term.filter_name, double, device, blur)


def attach(lowered: Lowered, dtype: str, device: TorchDevice) -> Lowered:
    """A lowered field whose Gaussian terms filter on a device.

    λ, total weights and energies are then those of the operator that the device iterates with,
    whichever filter it chose, and nothing is computed for all pairs on the host. Terms on the
    device share the filter, in both types. The terms that were given stay as they are; those
    that already filter there are kept.
    """
    if not lowered.extras:
        return lowered
    double = np.dtype(dtype) == np.float64
    place = resolved(device)

    def moved(term: Term) -> Term:
        if not isinstance(term, Gaussian) or term.features is None or term.n_points == 0:
            return term
        made = filter_of(term, double, place)
        if made is vars(term).get("filter"):
            return term
        out = copy.copy(term)  # total weights and bounds on eigenvalues follow the filter
        for name in ("operator", "kernel_range"):
            vars(out).pop(name, None)
        out.filter_name = made.name
        vars(out)["filter"] = made
        return out

    return replace(lowered, extras=tuple(moved(term) for term in lowered.extras))


class GaussianOnDevice:
    """A `Gaussian` term on a device: the same energy, and the same gradient on the simplices.

    With Potts compatibility the constant Σ_j a_ij is taken as Σ_l of what the variable sees,
    which it is as long as marginals sum to 1: it costs no application of its own.

    The term's filter is used if that is already on this device.
    """

    capturable = True

    def __init__(self, term: Gaussian, layout: Layout, dtype: str, device: TorchDevice) -> None:
        self.n = term.n_points
        double = np.dtype(dtype) == np.float64
        self.dtype = torch.float64 if double else torch.float32
        self.device = resolved(device)
        if self.n == 0:
            return
        self.labels = int(layout.cardinalities[term.first])
        start = layout.start(term.first)
        self.at = slice(start, start + self.n * self.labels)
        self.filter = filter_of(term, double, self.device)
        self.plan = self.filter.plan
        self.weight = torch.tensor(term.weight, dtype=self.dtype, device=self.device)
        self.matrix: Tensor | None = None
        """weight · μ; None for Potts.  # (labels, labels)"""
        if term.matrix is not None:
            self.matrix = torch.as_tensor(term.matrix).to(self.device, self.dtype)
        mass = None if term.normalization == "none" else self.filter.device_mass
        self.normalize(term.normalization, term.self_message, mass)

    def normalize(self, normalization: str, self_message: bool, mass: Tensor | None) -> None:
        """Make the operator, in this term's type, from the total weights of its plan."""
        operator = Operator(self.plan, normalization, self_message, mass)
        self.operator = operator.in_type_of(self.weight)
        self.own = None if self_message else self.operator.own
        """a_ii, where the self-message (i = j) is left out.  # (n, 1)"""
        # of marginals, which are at most 1: the exact filter needn't look for the largest
        most = torch.ones(self.labels, device=self.device)
        scale = self.operator.scale
        scaled = most if scale is None else most * scale.max().to(torch.float32)
        self.most = torch.cat([most, scaled]) if self.operator.pair else scaled

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """Add dE/dq to ``out``; returns the energy.  # (size,), (size,) -> () float64"""
        if self.n == 0:
            return torch.zeros((), dtype=torch.float64, device=q.device)
        mine = q[self.at].view(self.n, self.labels)
        given = self.operator.spread(mine)
        if isinstance(self.plan, ExactPlan):
            seen = self.plan.apply(given, self.most)
        else:
            seen = self.plan.apply(given)
        seen = seen.to(q.dtype)
        target = out[self.at].view(self.n, self.labels)
        if self.matrix is None and has_kernels(q) and self.labels <= MAX_LABELS:
            width = max(2, 1 << (self.labels - 1).bit_length())
            rows = max(1, min(POINTS, 2048 // width))
            programs = -(-self.n // rows)
            energy = torch.empty(programs, dtype=torch.float64, device=mine.device)
            add_potts[(programs,)](
                seen, mine, self.operator.scale, self.own, target, energy, self.n, self.weight,
                SHAPE=PottsShape(self.labels, seen.shape[1], self.operator.pair, rows, width),
            )  # fmt: skip
            return 0.5 * energy.sum()
        seen = self.operator.gather(seen)
        if self.own is not None:
            seen = seen - self.own * mine
        if self.matrix is None:
            g = self.weight * (seen.sum(1, keepdim=True) - seen)
        else:
            g = seen @ self.matrix
        target += g
        return 0.5 * (mine.to(torch.float64) * g).sum()
