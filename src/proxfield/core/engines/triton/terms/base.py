"""Terms on a device: each adds its gradient to a tensor there, without waiting for the host.

A term with an implementation for "cuda" (`proxfield.core.engines.terms`) runs on the device alone;
any other one through `HostTerm`, which copies the marginals to the host and back at every
iteration.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.terms import implementation
from proxfield.core.filters.triton.segments import SegmentSum
from proxfield.core.terms.base import Layout, Term
from proxfield.core.terms.consistency import LOG_TINY, Consistency


class DeviceTerm(Protocol):
    """A term on a device, made from (term, layout, dtype, device)."""

    capturable: bool
    """Whether `add_gradient` may be recorded in a CUDA graph: it never waits for the host.

    An implementation that doesn't say is never recorded.
    """

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """Add dE/dq at ``q`` to ``out``, of the same type; returns the energy.  # () float64"""


class HostTerm:
    """A term computed on the host: slow, for terms without an implementation for "cuda"."""

    capturable = False

    def __init__(self, term: Term, layout: Layout, dtype: str, device: TorchDevice) -> None:
        self.term, self.layout = term, layout
        self.dtype = np.dtype(dtype)

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """See `DeviceTerm`."""
        here = q.detach().cpu().numpy()
        g = np.zeros(self.layout.size, dtype=self.dtype)
        energy = self.term.evaluate(self.layout, here, g)
        out += torch.from_numpy(g).to(out.device)
        return torch.tensor(energy, dtype=torch.float64, device=out.device)


def on_device(term: Term, layout: Layout, dtype: str, device: TorchDevice) -> DeviceTerm:
    """A term on a device; what is changed in it later has no effect."""
    maker = implementation(term, "cuda") or HostTerm
    made: DeviceTerm = maker(term, layout, np.dtype(dtype).name, torch.device(device))
    return made


def frames_class(term: Term) -> Any:
    """The class that evaluates terms of several fields as one on a device; None if there is none.

    An implementation that has one names it so. It is made of (terms, layout, dtype, device), a
    `DeviceTerm` of all fields, one after another, with one energy per field. It offers
    ``frame_key(term)``, what terms have in common that can be one, and ``kept_with(term, device)``,
    where to keep what should live as long as what they share; its objects have ``set_terms(terms)``
    and ``take_frames(other)``.
    """
    return getattr(implementation(term, "cuda"), "frames_class", None)


class ConsistencyOnDevice:
    """A `Consistency` term on a device: products as sums of logarithms, zeros counted apart.

    Sums run over lists of members by segment, and over lists of memberships by variable where
    segments overlap: nothing is added atomically.
    """

    capturable = True

    def __init__(self, term: Consistency, layout: Layout, dtype: str, device: TorchDevice) -> None:
        self.device = torch.device(device)
        self.members = len(term.members)
        if self.members == 0:
            return
        labels = int(layout.cardinalities[term.members[0]])
        sizes = term.sizes
        self.weights = self._put(term.weights)  # (S, labels) or (S, 1)
        self.constant = float(term.weights.max(axis=1).sum())
        self.owner = self._put(np.repeat(np.arange(len(sizes)), sizes))  # segment of each member
        self.by_segment = SegmentSum(self._put(term.starts[:-1]), self._put(sizes))
        # a variable's entries follow each other, so the first ones tell them all
        first = layout.offsets[term.members]
        label = np.arange(labels)
        self.entry = self._put(first[:, None] + label)  # (members, labels)
        self.by_variable: SegmentSum | None = None
        self.target = self.entry
        if term.overlapping:
            order = np.argsort(term.members, kind="stable")
            _, begin, count = np.unique(term.members[order], return_index=True, return_counts=True)
            self.by_variable = SegmentSum(
                self._put(begin), self._put(count), self._put(order.astype(np.int32))
            )
            self.target = self._put(first[order[begin]][:, None] + label)

    def _put(self, values: Floats | Ints | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(np.array(values)).to(self.device)

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """See `DeviceTerm`."""
        if self.members == 0:
            return torch.zeros((), dtype=torch.float64, device=q.device)
        p = q[self.entry].to(torch.float64)  # (members, labels)
        zero = (p <= 0).to(torch.float64)
        logs = torch.log(p + zero)
        labels = p.shape[1]
        sums = self.by_segment(torch.cat([logs, zero], dim=1))  # (S, 2 · labels)
        total, zeros = sums[:, :labels], sums[:, labels:]
        agree = torch.where((zeros < 0.5) & (total > LOG_TINY), torch.exp(total), 0.0)
        energy = self.constant - (self.weights * agree).sum()
        others = total[self.owner] - logs
        alive = (others > LOG_TINY) & (zeros[self.owner] - zero < 0.5)
        product = torch.where(alive, torch.exp(others.clamp(min=LOG_TINY)), 0.0)
        added = -self.weights[self.owner] * product
        if self.by_variable is not None:
            added = self.by_variable(added)
        out[self.target] = out[self.target] + added.to(out.dtype)
        return energy
