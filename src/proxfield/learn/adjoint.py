"""Damped updates of mean field and their exact adjoint.

θ_0 = 0, q_t = softmax(θ_t) and θ_{t+1} = (1 − s)·θ_t − s·g(q_t), with g the gradient of the
expected energy. With a_t = dL/dθ_t, going back: dL/dg_t = −s·a_{t+1}, and
a_t = (1 − s)·a_{t+1} + J(q_t)·(dg/dq)ᵀ·(−s·a_{t+1}), where J(q) = diag(q) − q qᵀ of each variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.checks import is_real, whole_number
from proxfield.errors import InputError, shown
from proxfield.learn.structure import Structure

if TYPE_CHECKING:
    from proxfield.learn.device import TorchUnrolled


class Unrolled:
    """Damped updates of all instances, from uniform marginals.

    Args:
        structure: The instances.
        w: Their tables.  # (n_entries,)
        n_updates: Number of updates, 1 or more.
        step: The step s, above 0 and at most 1.

    Attributes:
        q: Marginals after the last update, flat.
    """

    q: Doubles

    def __init__(self, structure: Structure, w: Doubles, n_updates: int, step: float) -> None:
        from proxfield.learn import kernels

        self.structure, self.w, self.step = structure, w, float(step)
        s, one = structure, structure.order(1)
        unary = np.zeros(s.offsets[-1])
        kernels.add_rows(w, one.variables, one.base, one.kind, s.strides, s.offsets, unary)
        if s.binary:
            self._run_binary(unary, n_updates)
        else:
            self._run(unary, n_updates)

    def _run_binary(self, unary: Doubles, n_updates: int) -> None:
        from proxfield.learn import binary_kernels as kernels

        s, f = self.structure, self.structure.order(2)
        h = 0.5 * (unary[1::2] - unary[0::2])
        self.j, self.m = np.empty(len(f.base)), np.empty((n_updates + 1, s.n_vars))
        kernels.couplings(self.w, f.base, f.kind, s.strides, f.variables, self.j, h)
        theta, (runs, run_ptr) = np.zeros(s.n_vars), s.runs
        kernels.forward(h, f.variables, self.j, runs, run_ptr, s.ptr, self.step, self.m, theta)
        # from θ, not from m: small probabilities keep all their digits
        self.q = np.empty(2 * s.n_vars)
        self.q[0::2], self.q[1::2] = expit(-2.0 * theta), expit(2.0 * theta)

    def _run(self, unary: Doubles, n_updates: int) -> None:
        from proxfield.learn import kernels

        s = self.structure
        several = [f for k, f in sorted(s.factors.items()) if k > 1]
        theta = np.zeros_like(unary)
        self.history = np.empty((n_updates + 1, len(unary)))
        kernels.softmax(theta, s.offsets, self.history[0])
        for t in range(n_updates):
            g = unary.copy()
            for f in several:
                kernels.add_gradient(
                    self.w, f.variables, f.base, f.kind, s.strides, s.offsets, self.history[t], g
                )
            theta = (1.0 - self.step) * theta - self.step * g
            kernels.softmax(theta, s.offsets, self.history[t + 1])
        self.q = self.history[-1].copy()

    @property
    def change(self) -> float:
        """Mean change of a label's probability by the last update, divided by the step."""
        if self.structure.binary:
            moved = 0.5 * np.abs(self.m[-1] - self.m[-2])
        else:
            moved = np.abs(self.history[-1] - self.history[-2])
        return float(moved.mean()) / self.step

    def backward(self, d: Doubles) -> Doubles:
        """From the gradient of a loss in q to the one in the tables.  # (size,) -> (n_entries,)"""
        from proxfield.learn import kernels

        s, one = self.structure, self.structure.order(1)
        dw = np.zeros_like(self.w)
        unary = self._back_binary(d, dw) if s.binary else self._back(d, dw)
        kernels.pull_rows(unary, one.variables, one.base, one.kind, s.strides, s.offsets, dw)
        return dw

    def _back_binary(self, d: Doubles, dw: Doubles) -> Doubles:
        from proxfield.learn import binary_kernels as kernels

        s, f = self.structure, self.structure.order(2)
        dh, dj = np.empty(s.n_vars), np.zeros(len(f.base))
        runs, run_ptr = s.runs
        a = 2.0 * self.q[0::2] * self.q[1::2] * (d[1::2] - d[0::2])
        kernels.backward(a, self.m, f.variables, self.j, runs, run_ptr, s.ptr, self.step, dh, dj)
        kernels.pull_couplings(dj, dh, f.base, f.kind, s.strides, f.variables, dw)
        return np.stack([-0.5 * dh, 0.5 * dh], axis=1).ravel()

    def _back(self, d: Doubles, dw: Doubles) -> Doubles:
        from proxfield.learn import kernels

        s = self.structure
        several = [f for k, f in sorted(s.factors.items()) if k > 1]
        a, total = np.empty_like(d), np.zeros_like(d)
        kernels.pull_softmax(self.history[-1], np.ascontiguousarray(d), s.offsets, a)
        for t in range(len(self.history) - 2, -1, -1):
            dg = -self.step * a
            total += dg
            q, back, moved = self.history[t], np.zeros_like(d), np.empty_like(d)
            for f in several:
                kernels.add_adjoint(
                    self.w, f.variables, f.base, f.kind, s.strides, s.offsets, q, dg, back, dw
                )
            kernels.pull_softmax(q, back, s.offsets, moved)
            a = (1.0 - self.step) * a + moved
        return total


def check_updates(n_updates: int, step: float) -> None:
    """Raise `InputError` unless these are a number of updates and a step."""
    whole_number(n_updates, "n_updates", 1)
    if not is_real(step) or not 0 < step <= 1:
        raise InputError(f"step={shown(step)}, expected a number above 0, at most 1")


def unroll(
    structure: Structure, w: Doubles, n_updates: int, step: float, device: str = "cpu"
) -> Unrolled | TorchUnrolled:
    """The damped updates on a device; arguments are checked."""
    check_updates(n_updates, step)
    if device == "cpu":
        return Unrolled(structure, w, n_updates, step)
    from proxfield.learn.device import TorchUnrolled

    return TorchUnrolled(structure, w, n_updates, step, device)
