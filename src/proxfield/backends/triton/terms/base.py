"""Terms on a device: each adds its gradient to a tensor there, without waiting for the host.

A term with an implementation for "cuda" (`proxfield.backends.terms`) runs on the device alone;
any other one through `HostTerm`, which copies the marginals to the host and back at every
iteration.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from proxfield.backends.terms import implementation
from proxfield.devices.cuda import need, torch
from proxfield.devices.tensors import Tensor, TorchDevice
from proxfield.terms.base import Layout, Term


class DeviceTerm(Protocol):
    """A term on a device, made from (term, layout, dtype, device)."""

    capturable: bool
    """Whether `add_gradient` may be recorded in a CUDA graph: it never waits for the host.

    An implementation that doesn't say is never recorded.
    """

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """Add dE/dq at ``q`` to ``out``.

        Args:
            q: Marginals.  # (size,)
            out: Changed in place, of the same type.  # (size,)

        Returns:
            The term's energy, on the device.  # () float64
        """


class HostTerm:
    """Any term, computed on the host: slow, for terms without an implementation for "cuda"."""

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
    """A term on a device.

    Args:
        term: The term; what is changed in it later has no effect.
        layout: Layout of the field.
        dtype: "float32" or "float64": of marginals and gradients.
        device: A device of torch.

    Example:
        >>> there = on_device(Gaussian(features), layout, "float32", "cuda")  # doctest: +SKIP
        >>> energy = there.add_gradient(q, shift)  # doctest: +SKIP
    """
    need("torch")
    name = np.dtype(dtype).name
    place = torch.device(device)
    maker = implementation(term, "cuda") or HostTerm
    made: DeviceTerm = maker(term, layout, name, place)
    return made
