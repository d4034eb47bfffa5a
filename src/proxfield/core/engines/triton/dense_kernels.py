# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""One update of all pixels of a dense CRF, and what is known of the last state."""

from __future__ import annotations

from proxfield.core.devices.cuda import constexpr, jit, tl
from proxfield.core.devices.tensors import Tensor

ENTRIES = 2048
"""Pixels times labels of a program."""


@jit
def row_softmax(energy, inside):
    """q = softmax(−energy) of rows, and log q as a difference of two numbers."""
    low = tl.where(inside, tl.min(energy, 1), 0.0)[:, None]
    weight = tl.exp(low - energy)
    total = tl.where(inside, tl.sum(weight, 1), 1.0)[:, None]
    return weight / total, low - energy, tl.log(total)


@jit
def advance(theta, unary, gradient, q, step, parts, n, L: constexpr, ROWS: constexpr, C: constexpr):
    """θ ← θ − step (θ − g) and q = softmax(−θ), in place.

    Each program leaves ⟨q, U + log q⟩ of the marginals before, and the largest change over the
    step.
    """
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    label = tl.arange(0, C)
    real = (at < n)[:, None] & (label < L)[None, :]
    entry = at[:, None] * L + label[None, :]
    before = tl.load(theta + entry, mask=real, other=float("inf"))
    u = tl.load(unary + entry, mask=real, other=0.0)
    g = tl.load(gradient + entry, mask=real, other=float("inf"))
    size = tl.load(step)
    p, less, log_total = row_softmax(before, at < n)
    share = p.to(tl.float64) * (u + less - log_total).to(tl.float64)
    share = tl.where(real, share, 0.0)
    after = tl.where(real, before - size.to(before.dtype) * (before - g), float("inf"))
    new, _, _ = row_softmax(after, at < n)
    tl.store(theta + entry, after, mask=real)
    tl.store(q + entry, new, mask=real)
    change = tl.where(real, tl.abs(new - p), 0.0)
    tl.store(parts + 2 * tl.program_id(0), tl.sum(tl.sum(share, 1), 0))
    tl.store(parts + 2 * tl.program_id(0) + 1, tl.max(tl.max(change, 1), 0).to(tl.float64) / size)


@jit
def conclude(theta, unary, q, out, best, parts, n, L: constexpr, ROWS: constexpr, C: constexpr):
    """Marginals in float64 and in the type of ``out``, and the largest entry's first label.

    Each program leaves ⟨q, U + log q⟩.
    """
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    label = tl.arange(0, C)
    real = (at < n)[:, None] & (label < L)[None, :]
    entry = at[:, None] * L + label[None, :]
    energy = tl.load(theta + entry, mask=real, other=float("inf")).to(tl.float64)
    u = tl.load(unary + entry, mask=real, other=0.0).to(tl.float64)
    p, less, log_total = row_softmax(energy, at < n)
    share = tl.where(real, p * (u + less - log_total), 0.0)
    tl.store(q + entry, p, mask=real)
    rounded = p.to(out.dtype.element_ty)
    tl.store(out + entry, rounded, mask=real)
    most = tl.max(tl.where(real, rounded, -1.0), 1)[:, None]
    first = tl.min(tl.where(real & (rounded == most), label[None, :], C), 1)
    tl.store(best + at, first.to(tl.int64), mask=at < n)
    tl.store(parts + tl.program_id(0), tl.sum(tl.sum(share, 1), 0))


def grid(n: int, labels: int) -> tuple[int, int, int]:
    """Programs, rows of each and labels rounded up.

    Example:
        >>> grid(100, 21)
        (2, 64, 32)
    """
    width = max(2, 1 << (labels - 1).bit_length())
    rows = max(1, ENTRIES // width)
    return -(-n // rows), rows, width


def update(
    theta: Tensor, unary: Tensor, gradient: Tensor, q: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """One update in place; ⟨q, U + log q⟩ before it, and the change over the step.  # (), ()"""
    n, labels = theta.shape
    programs, rows, width = grid(n, labels)
    parts = theta.new_empty((programs, 2), dtype=step.dtype)
    advance[(programs,)](theta, unary, gradient, q, step, parts, n, L=labels, ROWS=rows, C=width)
    return parts[:, 0].sum(), parts[:, 1].amax()
