"""Softmax and the proximal step over batches of variables, in plain torch."""

from __future__ import annotations

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor


def softmax(theta: Tensor) -> Tensor:
    """q = softmax(−θ); +inf gives 0, and all +inf gives zeros, not NaN.  # (B, n, c)"""
    low = theta.amin(dim=-1, keepdim=True)
    low = torch.where(torch.isinf(low), torch.zeros_like(low), low)
    e = torch.exp(low - theta)
    total = e.sum(dim=-1, keepdim=True)
    return e / torch.where(total > 0, total, torch.ones_like(total))


def possible(theta: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finite θ and θ*, and where θ* was +inf, which rules a label out.  # (B, n, c) each"""
    impossible = torch.isinf(target)
    target = torch.where(impossible, torch.zeros_like(target), target)
    return torch.where(impossible | torch.isinf(theta), target, theta), target, impossible


def moved(theta: Tensor, target: Tensor, step: Tensor) -> Tensor:
    """θ − step (θ − θ*), where +inf in θ* rules a label out.  # (B, n, c)"""
    theta, target, impossible = possible(theta, target)
    out = theta - step * (theta - target)
    return torch.where(impossible, torch.full_like(out, torch.inf), out)
