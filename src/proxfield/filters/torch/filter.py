"""`gaussian_filter`: the sum over all pairs, as an operator that PyTorch knows.

Registered as ``torch.ops.proxfield.gaussian_filter`` with shapes for tracing and gradients, so
that autograd, ``torch.compile`` and ``torch.export`` take it as one of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

from proxfield.devices.cuda import torch
from proxfield.devices.pytorch import need_torch
from proxfield.devices.tensors import AutogradContext, Tensor, TorchDtype
from proxfield.errors import InputError
from proxfield.filters.torch.plans import PLANS

Function = Callable[..., object]


def gaussian_filter(features: Tensor, values: Tensor) -> Tensor:
    """out_i = Σ_j exp(−½‖f_i − f_j‖²) v_j, differentiable in both.

    With a the gradient that comes in, the gradient for the values is the same filter, K a, since K
    is symmetric; that for the features is −Σ_j k_ij (f_i − f_j) (a_i·v_j + v_i·a_j). Nothing of
    size n² is kept where it would be large. There are no second derivatives with respect to the
    features.

    Args:
        features: In units of standard deviations; one set of points for all images, or one for
            each.  # (n, d), (1, n, d) or (B, n, d)
        values: # (n, c) or (B, n, c)

    Returns:
        The sums, in the type of the values (float32 for half precision). On a CUDA device float32
        has errors of about 1e-4 of Σ_j k_ij |v_j|, float64 is exact but slow; on the CPU both are
        exact.  # (n, c) or (B, n, c)

    Example:
        >>> f = torch.tensor([[0.0], [1.0]])  # doctest: +SKIP
        >>> gaussian_filter(f, torch.tensor([[1.0], [0.0]]))  # doctest: +SKIP
        tensor([[1.0000], [0.6065]])
    """
    need_torch()
    if not (features.is_floating_point() and values.is_floating_point()):
        raise InputError("features and values must be floating-point tensors")
    if features.device != values.device:
        raise InputError(f"features are on {features.device}, values on {values.device}")
    alone = values.ndim == 2
    f = features[None] if features.ndim == 2 else features
    v = values[None] if alone else values
    fits = f.ndim == 3 and v.ndim == 3 and f.shape[1] == v.shape[1] and f.shape[2] > 0
    if not fits or f.shape[0] not in (1, v.shape[0]):
        raise InputError(
            f"features of shape {tuple(features.shape)} and values of shape "
            f"{tuple(values.shape)}, expected ([images,] n, d) and ([images,] n, c)"
        )
    kind = working_dtype(v.dtype)
    out = torch.ops.proxfield.gaussian_filter(f.to(kind), v.to(kind))
    return out[0] if alone else out


def working_dtype(dtype: TorchDtype) -> TorchDtype:
    """float64 stays; everything else is computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def plain_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast off: sums over thousands of neighbors don't fit in half precision."""
    off: AbstractContextManager[object] = torch.autocast(tensor.device.type, enabled=False)
    return off


def _filter(features: Tensor, values: Tensor) -> Tensor:
    with plain_precision(values):
        if values.numel() == 0:
            return torch.zeros_like(values)
        return PLANS.get(features).apply(values)


def _filter_shape(features: Tensor, values: Tensor) -> Tensor:
    return values.new_empty(values.shape)


def _filter_context(ctx: AutogradContext, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _filter_backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    features, values = ctx.saved_tensors
    to_features = to_values = None
    if ctx.needs_input_grad[0]:
        to_features = torch.ops.proxfield.gaussian_filter_pull(features, grad, values)
    if ctx.needs_input_grad[1]:
        to_values = torch.ops.proxfield.gaussian_filter(features, grad)
    return to_features, to_values


def _pull(features: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The gradient of Σ_ij k_ij a_i·b_j with respect to the features."""
    with plain_precision(features):
        if a.numel() == 0:
            return torch.zeros_like(features)
        return PLANS.get(features).pull(a, b)[0]


def _pull_shape(features: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return features.new_empty(features.shape)


def refuse(ctx: AutogradContext, *grads: Tensor) -> NoReturn:
    """The derivative of what has none here."""
    raise RuntimeError(
        "proxfield.torch has no second derivatives with respect to features or through a fixed "
        "point; don't use create_graph=True here"
    )


def define(
    name: str, schema: str, kernel: Function, shape: Function, context: Function, backward: Function
) -> None:
    """Register an operator: its kernel, its shapes for tracing, its gradient."""
    op = torch.library.custom_op(f"proxfield::{name}", kernel, mutates_args=(), schema=schema)
    op.register_fake(shape)
    op.register_autograd(backward, setup_context=context)


def nothing_saved(ctx: AutogradContext, inputs: tuple[object, ...], output: object) -> None:
    """A context for operators whose backward refuses."""


if torch is not None and hasattr(torch.library, "custom_op"):
    define(
        "gaussian_filter", "(Tensor features, Tensor values) -> Tensor",
        _filter, _filter_shape, _filter_context, _filter_backward,
    )  # fmt: skip
    define(
        "gaussian_filter_pull", "(Tensor features, Tensor a, Tensor b) -> Tensor",
        _pull, _pull_shape, nothing_saved, refuse,
    )  # fmt: skip
