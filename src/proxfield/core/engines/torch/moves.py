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


def moved(theta: Tensor, target: Tensor, step: Tensor) -> Tensor:
    """θ − step (θ − θ*), where +inf in θ* rules a label out.  # (B, n, c)"""
    impossible = torch.isinf(target)
    target = torch.where(impossible, torch.zeros_like(target), target)
    theta = torch.where(impossible | torch.isinf(theta), target, theta)
    out = theta - step * (theta - target)
    return torch.where(impossible, torch.full_like(out, torch.inf), out)
