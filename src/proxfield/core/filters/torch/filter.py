"""`gaussian_filter`: the sum over all pairs, as an operator that PyTorch knows.

Registered as ``torch.ops.proxfield.gaussian_filter`` with shapes for tracing and gradients, so
that autograd, ``torch.compile`` and ``torch.export`` take it as one of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxfield.core.devices.cuda import need_torch, torch
from proxfield.core.devices.tensors import AutogradContext, Tensor, TorchDtype
from proxfield.core.filters.gaussian import check_shapes, read_sigma
from proxfield.core.filters.plan import SMALLEST_MASS, choose
from proxfield.core.filters.torch import ops
from proxfield.core.filters.torch.plans import PLANS
from proxfield.errors import InputError


def gaussian_filter(
    values: Tensor,
    features: Tensor,
    *,
    sigma: float | Sequence[float] | Tensor = 1.0,
    at: Tensor | None = None,
    normalize: bool = True,
    filter: str = "auto",
    batch: bool = False,
) -> Tensor:
    """`proxfield.gaussian_filter` for tensors: differentiable in values, features and sigma.

    out_i = Σ_j k_ij v_j / Σ_j k_ij with k_ij = exp(−½ ‖(f_i − f_j) / σ‖²). For the sums, with a
    the gradient that comes in, the gradient for the values is the same filter, K a, since K is
    symmetric with both filters; that for the features is −Σ_j k_ij (f_i − f_j) (a_i·v_j + v_i·a_j).
    The exact filter gives both exactly. With the lattice the former is exact, and the latter is the
    derivative of the Gaussian that the lattice approximates, with its sums computed by the lattice.
    Nothing of size n² is kept where it would be large. There are no second derivatives with respect
    to the features.

    Args:
        values: One number per point, or several channels.  # (*points) or (*points, channels)
        features: Where each point lies.  # (*points, features)
        sigma: Standard deviation in units of the features: one number, or one per feature; a
            tensor gets a gradient.
        at: Where to evaluate: features of other points; None: at the points themselves.
            # (*others, features)
        normalize: Divide by Σ_j k_ij; otherwise the sums are returned.
        filter: "exact" (all pairs), "lattice" (permutohedral, for many points) or "auto": exact up
            to 2000 points on the CPU, and on a GPU up to what takes 0.25 s.
        batch: The first axis of all tensors is that of images, which don't see each other; features
            and ``at`` may have 1 there, to be shared by all.

    Returns:
        In the type of the values (float32 for half precision). On a CUDA device the exact filter
        has errors of about 1e-4 of ``Σ_j k_ij |v_j|`` in float32; float64 is exact but slow.
        # (*points[, channels])

    Example:
        >>> f = torch.tensor([[0.0], [1.0]])  # doctest: +SKIP
        >>> gaussian_filter(torch.tensor([1.0, 0.0]), f, normalize=False)  # doctest: +SKIP
        tensor([1.0000, 0.6065])
    """
    need_torch()
    named = {"values": values, "features": features, "at": at}
    tensors = {name: x for name, x in named.items() if x is not None}
    for name, x in tensors.items():
        ops.require_tensor(x, name)
        if not x.is_floating_point():
            raise InputError(f"{name} must be a floating-point tensor, not {x.dtype}")
        ops.require_device(x, name, values, "values")
    choose(filter, 0)
    if not batch:
        tensors = {name: x[None] for name, x in tensors.items()}
    kind = working_dtype(values.dtype)
    v, *where = (x.to(kind) for x in tensors.values())
    images = [x.shape[0] for x in (v, *where) if x.ndim] if batch else [1]
    if any(b not in (1, v.shape[0]) for b in images) or any(x.ndim < 2 for x in where):
        shapes = ", ".join(f"{name} of shape {tuple(x.shape)}" for name, x in tensors.items())
        raise InputError(f"{shapes} with batch=True, expected as many images as values, or 1")
    shape = check_shapes(*(tuple(x.shape[1:]) for x in (v, *where)), *[None] * (at is None))
    d = where[0].shape[-1]
    width = _sigma(sigma, d, v)
    f = [x.flatten(1, -2) / width for x in where]
    n, count = f[0].shape[1], v.shape[0]
    v = v.flatten(1, where[0].ndim - 2)
    v = v.flatten(2) if v.ndim > 2 else v[..., None]
    if normalize:
        v = torch.cat([v, v.new_ones((count, n, 1))], dim=-1)
    if at is not None:
        most = max(x.shape[0] for x in f)
        f = [torch.cat([x.expand(most, -1, -1) for x in f], dim=1)]
        v = torch.cat([v, v.new_zeros((count, f[0].shape[1] - n, v.shape[-1]))], dim=1)
    # contiguous: products of matrices are summed in an order that depends on strides
    out = FILTER(f[0].contiguous(), v.contiguous(), filter)
    if at is not None:
        out = out[:, n:]
    if normalize:
        out = out[..., :-1] / (out[..., -1:] + SMALLEST_MASS)
    return out.reshape(count, *shape) if batch else out.reshape(shape)


def _sigma(sigma: float | Sequence[float] | Tensor, count: int, like: Tensor) -> float | Tensor:
    if isinstance(sigma, (int, float)) and 0 < sigma < float("inf"):
        return sigma  # as compilers follow it
    if not isinstance(sigma, torch.Tensor):
        return like.new_tensor(read_sigma(sigma, count).tolist())
    if sigma.ndim > 1 or (sigma.ndim == 1 and len(sigma) != count):
        raise InputError(
            f"sigma of shape {tuple(sigma.shape)}, expected a number or {count}, one per feature"
        )
    return sigma.to(like)  # above 0 is the caller's business: looking would wait for the device


def working_dtype(dtype: TorchDtype) -> TorchDtype:
    """float64 stays; everything else is computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _filter(features: Tensor, values: Tensor, filter: str) -> Tensor:
    with ops.plain_precision(values):
        if values.numel() == 0:
            return torch.zeros_like(values)
        return PLANS.get(features, filter).apply(values)


def _filter_context(
    ctx: AutogradContext, inputs: tuple[Tensor, Tensor, str], output: Tensor
) -> None:
    features, values, ctx.filter = inputs
    ctx.save_for_backward(features, values)
    ctx.save_for_forward(features, values)


def _filter_backward(
    ctx: AutogradContext, grad: Tensor
) -> tuple[Tensor | None, Tensor | None, None]:
    features, values = ctx.saved_tensors
    to_features = to_values = None
    if ctx.needs_input_grad[0]:
        to_features = PULL(features, grad, values, ctx.filter)
    if ctx.needs_input_grad[1]:
        to_values = FILTER(features, grad, ctx.filter)
    return to_features, to_values, None


def _filter_jvp(
    ctx: AutogradContext, to_features: Tensor | None, to_values: Tensor | None, _: None
) -> Tensor:
    """Σ_j k_ij v̇_j − Σ_j k_ij (f_i − f_j)·(ḟ_i − ḟ_j) v_j, from products with K."""
    features, values = ctx.saved_tensors
    out = torch.zeros_like(values) if to_values is None else FILTER(features, to_values, ctx.filter)
    if to_features is None:
        return out
    f = features - features.mean(dim=1, keepdim=True)  # for precision
    own = (f * to_features).sum(-1, keepdim=True)  # (Bf, n, 1)
    factors = torch.cat([torch.ones_like(own), own, to_features, f], dim=-1)  # (Bf, n, 2 + 2d)
    scaled = (factors[..., None] * values[..., None, :]).flatten(2)
    seen = FILTER(features, scaled, ctx.filter).unflatten(2, (factors.shape[-1], -1))
    signs = torch.cat([-own, -torch.ones_like(own), f, to_features], dim=-1)
    return out + (signs[..., None] * seen).sum(2)


def _pull(features: Tensor, a: Tensor, b: Tensor, filter: str) -> Tensor:
    """The gradient of Σ_ij k_ij a_i·b_j with respect to the features."""
    with ops.plain_precision(features):
        if a.numel() == 0:
            return torch.zeros_like(features)
        return PLANS.get(features, filter).pull(a, b)[0]


def _diagonal(features: Tensor, filter: str) -> Tensor:
    """K_ii; a constant to autograd, as a Gaussian's is.  # (B, n, d) -> (B, n)"""
    if features.numel() == 0:
        return features.new_ones(features.shape[:2])
    return PLANS.get(features, filter).diagonal().to(features.dtype, copy=True)


FILTER = ops.Op(
    "gaussian_filter", "(Tensor features, Tensor values, str filter) -> Tensor",
    _filter, lambda features, values, filter: values.new_empty(values.shape),
    _filter_context, _filter_backward, images=((1,), (0,), (True,)), jvp=_filter_jvp,
)  # fmt: skip
PULL = ops.Op(
    "gaussian_filter_pull", "(Tensor features, Tensor a, Tensor b, str filter) -> Tensor",
    _pull, lambda features, a, b, filter: features.new_empty(features.shape),
    ops.nothing_saved, ops.refuse,
)  # fmt: skip
DIAGONAL = ops.Op(
    "gaussian_diagonal", "(Tensor features, str filter) -> Tensor",
    _diagonal, lambda features, filter: features.new_empty(features.shape[:2]),
    lambda ctx, inputs, output: ctx.save_for_forward(output),
    lambda ctx, grad: (None, None), images=((0,), (), (True,)),
    jvp=lambda ctx, *tangents: torch.zeros_like(ctx.saved_tensors[0]),
)  # fmt: skip
