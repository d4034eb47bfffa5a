"""Terms on a device: each adds its gradient to a tensor there, without waiting for the host.

A term with an implementation for "cuda" (`proxfield.core.engines.terms`) runs on the device alone;
any other one through `HostTerm`, which copies the marginals to the host and back at every
iteration.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from proxfield.core.devices.cuda import need, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.terms import implementation
from proxfield.core.terms.base import Layout, Term


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
    """
    need("torch")
    name = np.dtype(dtype).name
    place = torch.device(device)
    maker = implementation(term, "cuda") or HostTerm
    made: DeviceTerm = maker(term, layout, name, place)
    return made


def frame_key(term: Term) -> Hashable | None:
    """What terms of several fields have in common that a device can evaluate as one.

    None if there is no such implementation. One that can evaluate terms together offers
    ``frame_key(term)``; ``together(terms, layout, dtype, device)``, which makes a `DeviceTerm` of
    all fields, one after another, whose energy is one number per field, and which has a method
    ``set_terms(terms)``; and ``kept_with(term, device)``, see there.
    """
    key = getattr(implementation(term, "cuda"), "frame_key", None)
    found: Hashable | None = None if key is None else key(term)
    return found


def together(terms: Sequence[Term], layout: Layout, dtype: str, device: TorchDevice) -> DeviceTerm:
    """Terms of several fields with the same layout and `frame_key`, as one term."""
    maker = implementation(terms[0], "cuda")
    assert maker is not None, "they have a key"
    made: DeviceTerm = maker.together(terms, layout, dtype, device)  # type: ignore[attr-defined]
    return made


def kept_with(term: Term, device: TorchDevice) -> dict[Hashable, Any]:
    """Where to keep what should live as long as what a term shares with others of its key."""
    maker = implementation(term, "cuda")
    assert maker is not None, "it has a key"
    kept: dict[Hashable, Any] = maker.kept_with(term, device)  # type: ignore[attr-defined]
    return kept
