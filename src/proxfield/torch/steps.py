"""Certified steps of dense CRFs over batches, with their derivatives."""

from __future__ import annotations

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.operator import product_range, products_within
from proxfield.core.filters.torch.operator import eigenvalue_range
from proxfield.core.filters.torch.ops import exporting_onnx, plain_precision
from proxfield.errors import InputError
from proxfield.torch.finite import DIVERGED
from proxfield.torch.solve import certified_step


def step_sizes(
    unary: Tensor,
    features: list[Tensor],
    tables: Tensor,
    normalization: str,
    self_message: bool,
    filter: str,
    step: float | None,
) -> Tensor:
    """The step, or those that are certified, with their derivatives.  # (1, 1, 1) or (B, 1, 1)"""
    if step is not None:
        return unary.new_full((1, 1, 1), step)
    with plain_precision(unary):
        ranges = [eigenvalue_range(f, normalization, self_message, filter) for f in features]
        try:
            return certified_step(curvature(ranges, tables, unary.shape[0]))
        except torch.linalg.LinAlgError:  # eigenvalues of NaN
            raise InputError(DIVERGED) from None


def curvature(ranges: list[tuple[Tensor, Tensor]], tables: Tensor, images: int) -> Tensor:
    """A bound λ on the curvature of the energy of each image.  # (B,)

    The Hessian of a term is A ⊗ M. Potts tables that attract have no eigenvalue above 0, and A,
    with the own message and normalized symmetrically, none below 0: λ = 0, the full step.

    Args:
        ranges: Bounds on the eigenvalues of each A.  # (B or 1,), (B or 1,) each
        tables: # (terms, c, c)
        images: B.
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
