"""Learning through marginals in plain torch, on a GPU or any other device of torch.

The same damped updates as in `adjoint`, differentiated by autograd. Factors of the same kind and
the same numbers of labels are one einsum.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.devices.base import find
from proxfield.core.devices.cuda import torch
from proxfield.core.devices.pytorch import need_torch
from proxfield.learn.structure import Structure


class TorchUnrolled:
    """Damped updates of all instances on a device of torch; see `Unrolled`.

    Args:
        structure: The instances.
        w: Their tables.  # (n_entries,)
        n_updates: Number of updates.
        step: The step.
        device: A device of torch: "cuda", "cpu".
    """

    q: Doubles

    def __init__(
        self, structure: Structure, w: Doubles, n_updates: int, step: float, device: str
    ) -> None:
        groups = structure_on(structure, device)
        self.w = torch.tensor(w, dtype=torch.float64, device=groups.device, requires_grad=True)
        tables = [self.w[group.entries] for group in groups.factors]
        theta = torch.zeros(int(structure.offsets[-1]), dtype=torch.float64, device=groups.device)
        for _ in range(n_updates):
            q = groups.softmax(theta)
            g = torch.zeros_like(theta)
            for group, table in zip(groups.factors, tables, strict=True):
                g = group.add_gradient(table, q, g)
            theta = (1.0 - step) * theta - step * g
        self._q = groups.softmax(theta)
        self.q = self._q.detach().cpu().numpy()

    def backward(self, d: Doubles) -> Doubles:
        """From the gradient of a loss in q to the one in the tables.  # (size,) -> (n_entries,)"""
        self._q.backward(torch.as_tensor(d, device=self._q.device))
        return np.asarray(self.w.grad.cpu().numpy())


class _Group:
    """Factors of one kind whose variables have the same numbers of labels."""

    def __init__(
        self, base: Ints, strides: Ints, first: Ints, shape: tuple[int, ...], device: Any
    ) -> None:
        k = len(shape)
        at = base.reshape(-1, *(1,) * k)
        for p, labels in enumerate(shape):
            axis = [1] * (k + 1)
            axis[p + 1] = labels
            at = at + strides[p] * np.arange(labels).reshape(axis)
        self.entries = torch.as_tensor(at, device=device)  # of w  (m, K_1, …)
        self.places = [
            torch.as_tensor(first[:, p, None] + np.arange(labels), device=device)
            for p, labels in enumerate(shape)
        ]
        letters = string.ascii_letters[1 : k + 1]
        self.specs = [
            ",".join(["a" + letters, *(f"a{letters[r]}" for r in range(k) if r != p)])
            + f"->a{letters[p]}"
            for p in range(k)
        ]

    def add_gradient(self, tables: Any, q: Any, g: Any) -> Any:
        own = [q[at] for at in self.places]
        for p, (spec, at) in enumerate(zip(self.specs, self.places, strict=True)):
            others = [x for r, x in enumerate(own) if r != p]
            message = torch.einsum(spec, tables, *others)
            g = g.index_add(0, at.reshape(-1), message.reshape(-1))
        return g


class _OnDevice:
    """A structure's index arrays on a device."""

    def __init__(self, s: Structure, device: str) -> None:
        need_torch()
        self.device = (
            torch.device("cpu") if device == "cpu" else find(device, any_of_torch=True).handle()
        )
        cards = np.diff(s.offsets)
        self.owner = torch.as_tensor(np.repeat(np.arange(s.n_vars), cards), device=self.device)
        self.n_vars, self.factors = s.n_vars, []
        for k, f in sorted(s.factors.items()):
            shapes = cards[f.variables]
            keys, which = np.unique(np.column_stack([f.kind, shapes]), axis=0, return_inverse=True)
            for number, key in enumerate(keys):
                part = np.flatnonzero(which.ravel() == number)
                self.factors.append(
                    _Group(
                        f.base[part].astype(np.int64),
                        s.strides[key[0], :k],
                        s.offsets[f.variables[part]],
                        tuple(int(c) for c in key[1:]),
                        self.device,
                    )
                )

    def softmax(self, theta: Any) -> Any:
        top = torch.full((self.n_vars,), -torch.inf, dtype=theta.dtype, device=theta.device)
        top = top.scatter_reduce(0, self.owner, theta.detach(), "amax")
        weights = torch.exp(theta - top[self.owner])
        total = torch.zeros_like(top).index_add(0, self.owner, weights)
        return weights / total[self.owner]


def structure_on(s: Structure, device: str) -> _OnDevice:
    """The index arrays of a structure on a device, made once."""
    kept = vars(s).setdefault("_devices", {})
    if device not in kept:
        kept[device] = _OnDevice(s, device)
    found: _OnDevice = kept[device]
    return found
