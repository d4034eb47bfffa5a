"""The fixed point θ = g(softmax(−θ)) and its derivative, for batches of fields.

States are (B, n, labels): images, variables, labels; an energy of +inf is an impossible label (or a
place that a variable with fewer labels doesn't use).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxfield.gpu.backend import torch

Function = Callable[[Any], Any]


def softmax(theta: Any) -> Any:
    """q = softmax(−θ); +inf gives 0, and all +inf gives zeros, not NaN.  # (B, n, c)"""
    low = theta.amin(dim=-1, keepdim=True)
    low = torch.where(torch.isinf(low), torch.zeros_like(low), low)
    e = torch.exp(low - theta)
    total = e.sum(dim=-1, keepdim=True)
    return e / torch.where(total > 0, total, torch.ones_like(total))


def moved(theta: Any, target: Any, step: Any) -> Any:
    """θ − step (θ − θ*), where +inf in θ* rules a label out.  # (B, n, c)"""
    impossible = torch.isinf(target)
    target = torch.where(impossible, torch.zeros_like(target), target)
    theta = torch.where(impossible | torch.isinf(theta), target, theta)
    out = theta - step * (theta - target)
    return torch.where(impossible, torch.full_like(out, torch.inf), out)


@dataclass(frozen=True)
class Solution:
    """Where an iteration ended.

    Attributes:
        theta: Energies; the marginals are softmax(−θ).  # (B, n, c)
        iterations: Updates made.
        change: Largest change of a marginal by the last, over the step.
    """

    theta: Any
    iterations: int
    change: float


def fixed_point(gradient: Function, theta: Any, step: Any, iterations: int, tol: float) -> Solution:
    """θ ← θ − step (θ − g(q)) until q changes by less than ``tol`` times the step.

    Args:
        gradient: g; its result may hold +inf.  # (B, n, c) -> (B, n, c)
        theta: Where to start.  # (B, n, c)
        step: A number, or one for each image.  # (B, 1, 1)
        iterations: Most updates.
        tol: 0 for as many updates as allowed, without a look at the change.
    """
    q = softmax(theta)
    change = torch.inf
    done = 0
    while done < iterations:
        theta = moved(theta, gradient(q), step)
        new = softmax(theta)
        done += 1
        if tol > 0 or done == iterations:  # looking waits for the device
            change = float(((new - q).abs() / step).max()) if q.numel() else 0.0
        q = new
        if change <= tol:
            break
    return Solution(theta, done, change)


def certified_step(curvature: Any) -> Any:
    """1 / (1 + d) with d = max(0, λ/4 − ½): no such step raises F.  # (B,) -> (B, 1, 1)"""
    return (1 / (1 + (curvature / 4 - 0.5).clamp(min=0)))[:, None, None]


def covariance(q: Any, x: Any) -> Any:
    """S x, S = diag(q) − q qᵀ for each variable.  # (B, n, c)"""
    return q * (x - (q * x).sum(dim=-1, keepdim=True))


def adjoint(hessian: Function, q: Any, grad: Any, tol: float, iterations: int) -> Any:
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
        iterations: Most iterations.

    Returns:
        y.  # (B, n, c)
    """

    def dot(a: Any, b: Any) -> Any:
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
            _warn(f"not solved to {tol:g} in {iterations} iterations")
    if bool(saddle.any()):
        _warn("the forward pass didn't reach a minimum of F; more iterations or a smaller tol help")
    return grad - x


_told: set[str] = set()


def _warn(what: str) -> None:
    """Say it once: a training loop would say it thousands of times."""
    if what not in _told:
        _told.add(what)
        text = f"proxfield.torch: the backward pass gives approximate gradients: {what}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
