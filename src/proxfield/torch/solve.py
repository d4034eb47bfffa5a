"""The fixed point θ = g(softmax(−θ)), certified steps to it, and its derivative, for batches.

States are (B, n, labels): images, variables, labels; an energy of +inf is an impossible label (or a
place that a variable with fewer labels doesn't use).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.base import Rows, Updates
from proxfield.core.engines.plan import damping_for
from proxfield.core.engines.torch.energy import moved, softmax
from proxfield.core.filters.operator import product_range, products_within
from proxfield.core.filters.torch.operator import eigenvalue_range
from proxfield.core.filters.torch.ops import exporting_onnx, plain_precision
from proxfield.core.solve.loop import make_updates
from proxfield.errors import GradientWarning, InputError
from proxfield.torch.inputs import DIVERGED

Function = Callable[[Tensor], Tensor]
Kind = tuple[str, bool, str]
"""Of operators: normalization, self_message and filter, see `proxfield.Gaussian`."""

GRADIENTS = ("exact", "implicit", "unrolled")
IMPLICIT_TOL = 1e-5
"""Relative residual (see `relative_residual`) up to which the implicit gradient is taken.

Chosen by ``benchmarks/implicit_tolerance.py``: of 6,000 runs on random dense fields (1 to 200
updates) the 3,219 below it had gradients with a cosine of at least 0.9999 to the exact ones; at
1e-4 the worst had 0.996. No limit on |softmax(−g(q)) − q| itself does as well (0.82 at 1e-6): where
q is saturated that is tiny long before the gradient has settled. In float32 rounding leaves 1e-6.
"""
SMALLEST_PROBABILITY = 1e-30
"""Smaller ones count as this in a relative residual."""


@dataclass
class Solution:
    """Where an iteration stands.

    Attributes:
        theta: Energies.  # (B, n, c)
        q: Marginals, softmax(−θ).  # (B, n, c)
        iterations: Updates made.
        change: Largest change of a marginal by the last, over the step.
        kept: θ before the updates that were asked for.  # (B, n, c) each
    """

    theta: Tensor
    q: Tensor
    iterations: int = 0
    change: float = np.inf
    kept: list[Tensor] = field(default_factory=list)


class ProximalUpdates(Updates[Tensor, Solution]):
    """θ ← θ − step (θ − g(q)) of all images at once; the plan is the step.

    Args:
        gradient: g; its result may hold +inf.  # (B, n, c) -> (B, n, c)
        keep_every: Keep θ before every so many updates (but not the start); 0: none.
    """

    def __init__(self, gradient: Function, keep_every: int = 0) -> None:
        self.gradient, self.keep_every = gradient, keep_every

    def advance_each(
        self, state: Solution, plan: Tensor, n: int, tol: float, trace: bool,
        wanted: NDArray[np.bool_] | None = None,
    ) -> list[Rows]:  # fmt: skip
        """As in `Updates`; without a ``tol`` only the last change is known: looking waits.

        F is never evaluated, and all images move.
        """
        changes = np.full(n, np.nan)
        for k in range(n):
            if self.keep_every and state.iterations and state.iterations % self.keep_every == 0:
                state.kept.append(state.theta)
            state.theta = moved(state.theta, self.gradient(state.q), plan)
            before, state.q = state.q, softmax(state.theta)
            state.iterations += 1
            if tol > 0 or k == n - 1:
                change = (state.q - before).abs() / plan
                changes[k] = state.change = float(change.max()) if change.numel() else 0.0
                if state.change <= tol:
                    changes = changes[: k + 1]
                    break
        return [Rows(np.full(len(changes), np.nan), changes)]


def fixed_point(
    gradient: Function, theta: Tensor, step: Tensor, iterations: int, tol: float,
    keep_every: int = 0,
) -> Solution:  # fmt: skip
    """θ ← θ − step (θ − g(q)) until q changes by less than ``tol`` times the step; see above.

    With a ``tol`` of 0, as many updates are made as allowed, without a look at the change.
    """
    solution = Solution(theta, softmax(theta))
    make_updates(ProximalUpdates(gradient, keep_every), step, solution, iterations, tol)
    return solution


def unrolled(gradient: Function, theta: Tensor, step: Tensor, updates: int) -> Tensor:
    """θ after so many updates, in operations that autograd records.  # (B, n, c)"""
    for _ in range(updates):
        theta = moved(theta, gradient(softmax(theta)), step)
    return theta


def step_sizes(
    unary: Tensor, features: list[Tensor], tables: Tensor, kind: Kind, step: float | None
) -> Tensor:
    """The step, or 1 / (1 + d) with d = max(0, λ/4 − ½), with which F never rises, of each image.

    It has derivatives.  # (1, 1, 1) or (B, 1, 1)
    """
    if step is not None:
        return unary.new_full((1, 1, 1), step)
    with plain_precision(unary):
        ranges = [eigenvalue_range(f, *kind) for f in features]
        try:
            bound = curvature(ranges, tables, unary.shape[0])
        except torch.linalg.LinAlgError:  # eigenvalues of NaN
            raise InputError(DIVERGED) from None
        return (1 / (1 + damping_for(bound)))[:, None, None]


def curvature(ranges: list[tuple[Tensor, Tensor]], tables: Tensor, images: int) -> Tensor:
    """A bound λ on the curvature of the energy of each image.  # (B,)

    The Hessian of a term is A ⊗ M. Potts tables that attract have no eigenvalue above 0, and A,
    with the own message and normalized symmetrically, none below 0: λ = 0, the full step.
    ``ranges`` bound the eigenvalues of each A.  # (B or 1,), (B or 1,) each
    """
    total = tables.new_zeros(images)
    for (low, high), table in zip(ranges, tables, strict=True):
        if exporting_onnx():  # it has no eigenvalues; a centered Potts table has this one, and 0
            same = table[0, 0]
            found = products_within(low, high, same, same)
        else:
            found = product_range(low, high, table)
        total = total + found[1]
    return total


def covariance(q: Tensor, x: Tensor) -> Tensor:
    """S x, S = diag(q) − q qᵀ for each variable.  # (B, n, c)"""
    return q * (x - (q * x).sum(dim=-1, keepdim=True))


def relative_residual(q: Tensor, target: Tensor) -> float:
    """The largest |log softmax(−g(q)) − log q|: 0 at a fixed point; ``target`` is g(q)."""
    if not q.numel():
        return 0.0
    ends = [x.clamp(min=SMALLEST_PROBABILITY).log() for x in (softmax(target), q)]
    return float((ends[0] - ends[1]).abs().max())


def adjoint(
    hessian: Function, q: Tensor, grad: Tensor, tol: float, iterations: int
) -> tuple[Tensor, str]:
    """y = (I + S H)⁻¹ grad: the gradient for the unaries, from that for θ.

    At a fixed point θ = U + …(q), dθ = dU + H dq and dq = −S dθ, so dθ = (I + H S)⁻¹ dU and the
    gradient for U is y = (I + S H)⁻¹ grad = grad − x, where (S⁺ + H) x = H grad. S⁺ + H is the
    Hessian of F on the simplices: positive definite at a minimum of F. So conjugate gradients
    apply, with S as the preconditioner. S⁺ is never needed: each direction is S times a vector
    that is carried along. One product with H an iteration, the cost of a forward update.

    Args:
        hessian: p ↦ H p.  # (B, n, c) -> (B, n, c)
        q: Marginals.  # (B, n, c)
        grad: The gradient for θ, finite.  # (B, n, c)
        tol: On the residual in the norm of S, relative to its start.
        iterations: Maximum number of iterations.

    Returns:
        y, and what is wrong with it: "" where it was solved.  # (B, n, c)
    """

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(dim=(1, 2), keepdim=True)  # (B, 1, 1)

    x = torch.zeros_like(grad)
    residual = hessian(grad)
    z = covariance(q, residual)
    direction, under = z, residual  # direction = S under
    size = dot(residual, z).clamp(min=0)
    # relative to the larger of what comes in and what it causes: below that it is rounding
    goal = tol**2 * torch.maximum(size, dot(grad, covariance(q, grad)).clamp(min=0))
    saddle = torch.zeros_like(size, dtype=torch.bool)
    for _ in range(iterations):
        going = (size > goal) & ~saddle
        if not bool(going.any()):
            break
        ahead = under + hessian(direction)
        bend = dot(direction, ahead)
        saddle = saddle | (going & ~(bend > 0))
        going = going & ~saddle
        alpha = torch.where(going, size / torch.where(going, bend, torch.ones_like(bend)), 0.0)
        x = x + alpha * direction
        residual = residual - alpha * ahead
        z = covariance(q, residual)
        new = dot(residual, z).clamp(min=0)
        beta = torch.where(going, new / torch.where(going, size, torch.ones_like(size)), 0.0)
        direction, under = z + beta * direction, residual + beta * under
        size = torch.where(going, new, size)
    else:
        if bool(((size > 1e4 * goal) & ~saddle).any()):
            return grad - x, f"it was not solved to {tol:g} in {iterations} iterations"
    if bool(saddle.any()):
        return grad - x, "the updates did not reach a minimum of F"
    return grad - x, ""


_told: set[str] = set()
"""What this process has warned of."""


def implicit(
    hessian: Function, q: Tensor, target: Tensor, grad: Tensor, limits: tuple[float, float, int]
) -> Tensor | None:
    """The gradient for the unaries at a fixed point; None, and a warning, where there isn't one.

    Args:
        hessian: As for `adjoint`.
        q: Marginals.  # (B, n, c)
        target: g(q).  # (B, n, c)
        grad: As for `adjoint`.
        limits: The largest relative residual; tolerance and number of iterations of `adjoint`.
    """
    most, tol, iterations = limits
    away, y = relative_residual(q, target), None
    trouble = f"relative residual {away:.1e}, limit {most:.1e}: not converged"
    if away <= most:
        y, trouble = adjoint(hessian, q, grad, tol, iterations)
    if trouble and "fallback" not in _told:  # once: a training loop would warn thousands of times
        _told.add("fallback")
        text = (
            f"proxfield.torch: the implicit gradient would be wrong ({trouble}); "
            "the exact gradient of the updates made is used instead"
        )
        warnings.warn(text, GradientWarning, stacklevel=2)
    return None if trouble else y
