"""Terms on a device: each adds its gradient to a tensor there, without waiting for the host.

A term that has a class of its own here runs on the device alone; any other one through
`HostTerm`, which works and copies the marginals to the host and back at every iteration.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

import numpy as np

from proxfield.devices.cuda import need, torch
from proxfield.terms.base import Layout, Term, expectation

DEVICE_TERMS: dict[str, tuple[str, str]] = {
    "Gaussian": ("proxfield.backends.triton.terms.gaussian", "GaussianOnDevice"),
    "Cooccurrence": ("proxfield.backends.triton.terms.cooccurrence", "CooccurrenceOnDevice"),
    "LatentCooccurrence": ("proxfield.backends.triton.terms.cooccurrence", "LatentOnDevice"),
    "Consistency": ("proxfield.backends.triton.terms.consistency", "ConsistencyOnDevice"),
}
"""Where the class for each class of terms is: a new one is one class and one line here."""


class DeviceTerm(Protocol):
    """A term on a device, made from (term, layout, dtype, device)."""

    capturable: bool
    """May `add_gradient` be recorded in a CUDA graph? Then it never waits for the host."""

    def add_gradient(self, q: Any, out: Any) -> Any:
        """Add dE/dq at ``q`` to ``out``.

        Args:
            q: Marginals.  # (size,)
            out: Changed in place, of the same type.  # (size,)

        Returns:
            The term's energy, on the device.  # () float64
        """


class HostTerm:
    """Any term, computed on the host: slow, for terms that have no class of their own here."""

    capturable = False

    def __init__(self, term: Term, layout: Layout, dtype: Any, device: Any) -> None:
        self.term, self.layout = term, layout
        self.dtype = np.dtype(dtype)

    def add_gradient(self, q: Any, out: Any) -> Any:
        """See `DeviceTerm`."""
        here = q.detach().cpu().numpy()
        g = np.zeros(self.layout.size, dtype=self.dtype)
        self.term.add_gradient(self.layout, here, g)
        out += torch.from_numpy(g).to(out.device)
        if self.term.degree is None:
            energy = self.term.energy(self.layout, here)
        else:
            energy = expectation(here, g) / self.term.degree
        return torch.tensor(energy, dtype=torch.float64, device=out.device)


def on_device(term: Term, layout: Layout, dtype: Any, device: Any) -> DeviceTerm:
    """A term on a device.

    Args:
        term: The term; what is changed in it later has no effect.
        layout: Of the field.
        dtype: "float32" or "float64": of marginals and gradients.
        device: A device of torch.

    Example:
        >>> there = on_device(Gaussian(features), layout, "float32", "cuda")  # doctest: +SKIP
        >>> energy = there.add_gradient(q, shift)  # doctest: +SKIP
    """
    need("torch")
    name = np.dtype(dtype).name
    place = torch.device(device)
    entry = DEVICE_TERMS.get(type(term).__name__)
    if entry is None:
        return HostTerm(term, layout, name, place)
    made: DeviceTerm = getattr(import_module(entry[0]), entry[1])(term, layout, name, place)
    return made
