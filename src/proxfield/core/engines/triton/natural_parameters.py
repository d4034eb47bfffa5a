"""Between marginals and the natural parameters that states hold, on the device."""

from __future__ import annotations

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.triton.device_pack import Joined
from proxfield.core.engines.triton.update import arithmetic


class Natural:
    """Conversions for the variables of some fields.

    Args:
        joined: The fields.
        device: Where they are.
    """

    def __init__(self, joined: Joined, device: TorchDevice) -> None:
        self.joined, self.device, self.binary = joined, device, joined.binary
        self.bounds: Tensor | None = None
        """Where each variable's entries start, where numbers of labels differ.  # (n + 1,)"""
        if not joined.common:  # now: while a graph is recorded nothing can be copied
            self.bounds = torch.as_tensor(joined.offsets).to(device)
            self.counts = self.bounds.diff()

    def of(self, q: Tensor) -> Tensor:
        """Natural parameters of marginals, as the kernels hold them; float64."""
        if self.binary:
            pairs = q.reshape(-1, 2).clamp(min=1e-30).log()
            return 0.5 * (pairs[:, 0] - pairs[:, 1])
        return torch.where(q > 0, -q.clamp(min=1e-300).log(), arithmetic.START_ZERO)

    def marginals(self, value: Tensor) -> Tensor:
        """Normalized marginals of natural parameters.  # (size,)"""
        if self.binary:
            small = torch.sigmoid(-2.0 * value.abs())
            up = value > 0
            one = torch.where(up, small, 1.0 - small)
            return torch.stack([torch.where(up, 1.0 - small, small), one], 1).ravel()
        q = torch.exp(-value)
        return q / self.sums(q)

    def sums(self, q: Tensor, empty: float = 1.0) -> Tensor:
        """Sum of its variable's entries for each entry.

        Args:
            q: # (size,)
            empty: Instead of sums that aren't positive, to divide by; 0 leaves all as they are.
        """
        if self.joined.common:
            rows = q.reshape(-1, self.joined.common).sum(1, keepdim=True)
            total = rows.expand(-1, self.joined.common).reshape(-1)
        else:
            each = torch.segment_reduce(q, "sum", offsets=self.bounds)
            total = torch.repeat_interleave(each, self.counts, output_size=len(q))
        return total if empty == 0.0 else torch.where(total > 0, total, empty)

    def plain(self, value: Tensor) -> Tensor:
        """What differs by as much as marginals do: m, or q."""
        return 0.5 * torch.tanh(value) if self.binary else torch.exp(-value)

    def most(self, flat: Tensor) -> Tensor:
        """The largest of each variable's entries.  # (n,)"""
        if self.joined.common:
            return flat.reshape(-1, self.joined.common).amax(1)
        return torch.segment_reduce(flat, "max", offsets=self.bounds)
