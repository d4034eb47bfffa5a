"""Terms over many variables on a device: segments that agree, classes that occur together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.filters.triton.segments import SegmentSum
from proxfield.core.terms.base import Layout
from proxfield.core.terms.consistency import LOG_TINY, Consistency
from proxfield.core.terms.cooccurrence import Cooccurrence, LatentCooccurrence, envelope


class ConsistencyOnDevice:
    """A `Consistency` term on a device: products as sums of logarithms, zeros counted apart.

    Sums run over lists of members by segment, and over lists of memberships by variable where
    segments overlap: nothing is added atomically.

    Args:
        term: The term.
        layout: Layout of the field.
        dtype: "float32" or "float64".
        device: A device of torch.
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


class CooccurrenceOnDevice:
    """`Cooccurrence` with ``latent="implicit"``: pixels on the device, classes on the host.

    Args:
        term: The term.
        layout: Layout of the field.
        dtype: Type of the marginals.
        device: A device of torch.
    """

    capturable = False

    def __init__(self, term: Cooccurrence, layout: Layout, dtype: str, device: TorchDevice) -> None:
        self.term = term
        self.device = torch.device(device)
        common = layout.common
        start = int(layout.offsets[term.first]) if common is None else term.first * common
        self.at = slice(start, start + term.pixels * term.n_labels)
        self.classes = torch.from_numpy(np.array(term.classes)).to(self.device)

    def _absent(self, q: Tensor) -> Tensor:
        """κ Σ_i q_il.  # (m,) float64"""
        rows = q[self.at].view(-1, self.term.n_labels)
        return self.term.kappa * rows.sum(0, dtype=torch.float64)[self.classes]

    def _add_to_pixels(self, energies: Tensor, out: Tensor) -> None:
        """Add an energy per class to every pixel.  energies: (m,)"""
        row = torch.zeros(self.term.n_labels, dtype=out.dtype, device=out.device)
        row[self.classes] = energies.to(out.dtype)
        out[self.at].view(-1, self.term.n_labels).add_(row)

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """See `DeviceTerm`."""
        energy, off = envelope(self._absent(q).cpu().numpy(), self.term.weights)
        self._add_to_pixels(self.term.kappa * torch.from_numpy(off).to(self.device), out)
        return torch.tensor(energy, dtype=torch.float64, device=self.device)


class LatentOnDevice(CooccurrenceOnDevice):
    """`Cooccurrence` with ``latent="variables"``, all of it on the device."""

    capturable = True

    def __init__(
        self, term: LatentCooccurrence, layout: Layout, dtype: str, device: TorchDevice
    ) -> None:
        super().__init__(term, layout, dtype, device)
        self.weights = torch.from_numpy(np.array(term.weights)).to(self.device)
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
