"""Dense CRFs as one operator: unaries, features and tables in, energies at the fixed point out.

The iteration and its derivative are opaque to autograd and to compilers, so that neither unrolls
them. ``torch.ops.proxfield.dense_energies`` is what `proxfield.torch.DenseCRF` calls.
"""

from __future__ import annotations

from typing import Any

from proxfield.gpu.backend import torch
from proxfield.torch.filter import define, nothing_saved, plain_precision, refuse
from proxfield.torch.operator import Operator, PlannedOperator, differentiable
from proxfield.torch.solve import adjoint, certified_step, fixed_point, moved, softmax


def dense_energies(
    unary: Any,
    features: list[Any],
    tables: Any,
    *,
    normalization: str = "symmetric",
    self_message: bool = True,
    step: float | None = None,
    iterations: int = 10,
    tol: float = 1e-6,
    adjoint_tol: float | None = None,
    adjoint_iterations: int = 50,
) -> Any:
    """θ with θ = U + Σ_t A_t softmax(−θ) M_t, differentiable by the implicit function theorem.

    Args:
        unary: U; +inf rules a label out.  # (B, n, c)
        features: Of each term; (1, n, d) if all images share them.  # (B, n, d) each
        tables: M, weight times compatibility; must be symmetric.  # (terms, c, c)
        normalization: See `proxfield.Gaussian`.
        self_message: See `proxfield.Gaussian`.
        step: Of the updates; None: certified for each image.
        iterations: Most updates.
        tol: Change of q at which to stop; 0: never.
        adjoint_tol: Of the backward pass, relative; None: 1e-5, on a GPU 1e-4 (float64: 1e-10).
        adjoint_iterations: Most iterations of the backward pass.

    Returns:
        θ after the last update, and a tensor of two numbers on the CPU: updates made, change by
        the last.  # (B, n, c), (2,)
    """
    if adjoint_tol is None:
        # the GPU's sums in float32 have errors of 1e-4: no use in solving to less
        rough = 1e-4 if unary.is_cuda else 1e-5
        adjoint_tol = 1e-10 if unary.dtype == torch.float64 else rough
    return torch.ops.proxfield.dense_energies(
        unary, features, tables, normalization, self_message, 0.0 if step is None else step,
        iterations, tol, adjoint_tol, adjoint_iterations,
    )  # fmt: skip


def unrolled_energies(
    unary: Any,
    features: list[Any],
    tables: Any,
    *,
    normalization: str = "symmetric",
    self_message: bool = True,
    step: float | None = None,
    iterations: int = 10,
) -> Any:
    """The same iteration in operations that autograd records: memory grows with each update."""
    operators = [differentiable(f, normalization, self_message) for f in features]
    size: Any = step
    if step is None:
        with torch.no_grad():
            size = certified_step(curvature(operators, tables.detach(), len(unary)))
    theta = unary
    for _ in range(iterations):
        theta = moved(theta, _gradient(unary, operators, tables, softmax(theta)), size)
    return theta


def _gradient(unary: Any, operators: list[Any], tables: Any, q: Any) -> Any:
    """g(q) = U + Σ_t A_t q M_t.  # (B, n, c)"""
    out = unary
    for operator, table in zip(operators, tables, strict=True):
        out = out + operator.apply(q) @ table
    return out


def curvature(operators: list[Operator] | list[PlannedOperator], tables: Any, images: int) -> Any:
    """A bound λ on the curvature of the energy of each image.  # (B,)

    The Hessian of a term is A ⊗ M, so on centred blocks its eigenvalues are products of one of A
    (within its range) and one of the centred M. Potts tables that attract have none above 0, and
    A, with the own message and normalised symmetrically, none below 0: λ = 0, the full step.
    """
    total = tables.new_zeros(images)
    labels = tables.shape[-1]
    centring = torch.eye(labels, dtype=tables.dtype, device=tables.device) - 1 / labels
    for operator, table in zip(operators, tables, strict=True):
        values = torch.linalg.eigvalsh(centring @ table @ centring)
        low, high = operator.range()
        ends = [k * m for k in (low, high) for m in (values[0], values[-1])]
        total = total + torch.stack(ends).amax(dim=0).clamp(min=0)
    return total


def _energies(
    unary: Any, features: Any, tables: Any, normalization: str, self_message: bool, step: float,
    iterations: int, tol: float, adjoint_tol: float, adjoint_iterations: int,
) -> Any:  # fmt: skip
    with plain_precision(unary):
        operators = [PlannedOperator(f, normalization, self_message) for f in features]
        size = step if step > 0 else certified_step(curvature(operators, tables, len(unary)))
        found = fixed_point(
            lambda q: _gradient(unary, operators, tables, q), unary, size, iterations, tol
        )
        facts = torch.tensor([found.iterations, found.change], dtype=torch.float64)
        return found.theta.clone() if found.theta is unary else found.theta, facts


def _energies_shape(unary: Any, *others: Any) -> Any:
    return unary.new_empty(unary.shape), unary.new_empty(2, dtype=torch.float64, device="cpu")


def _context(ctx: Any, inputs: Any, output: Any) -> None:
    _, features, tables, normalization, self_message, _, _, _, *limits = inputs
    ctx.save_for_backward(output[0], tables, *features)
    ctx.options = (normalization, self_message, *limits)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Any, _: Any) -> Any:
    theta, tables, *features = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    learns = any(wanted[1]) if isinstance(wanted[1], (list, tuple)) else bool(wanted[1])
    unary, to_features, to_tables = torch.ops.proxfield.dense_adjoint(
        grad, theta, features, tables, *ctx.options, learns
    )
    given = to_features if learns else [None] * len(features)
    return (unary, given, to_tables, *[None] * 7)


def _adjoint(
    grad: Any, theta: Any, features: Any, tables: Any, normalization: str, self_message: bool,
    tol: float, iterations: int, learns: bool,
) -> Any:  # fmt: skip
    with plain_precision(theta):
        operators = [PlannedOperator(f, normalization, self_message) for f in features]
        q = softmax(theta)
        grad = torch.where(torch.isinf(theta), torch.zeros_like(grad), grad)

        def hessian(p: Any) -> Any:
            return _gradient(torch.zeros_like(p), operators, tables, p)

        y = adjoint(hessian, q, grad, tol, iterations)
        to_tables = torch.zeros_like(tables)
        to_features = []
        for k, (operator, f) in enumerate(zip(operators, features, strict=True)):
            to_tables[k] = torch.einsum("bnc,bnd->cd", operator.apply(q), y)
            to_features.append(operator.pull(y, q @ tables[k]) if learns else torch.zeros_like(f))
        return y, to_features, to_tables


def _adjoint_shape(grad: Any, theta: Any, features: Any, tables: Any, *others: Any) -> Any:
    return (
        theta.new_empty(theta.shape),
        [f.new_empty(f.shape) for f in features],
        tables.new_empty(tables.shape),
    )


if torch is not None and hasattr(torch.library, "custom_op"):
    define(
        "dense_energies",
        "(Tensor unary, Tensor[] features, Tensor tables, str normalization, bool self_message, "
        "float step, int iterations, float tol, float adjoint_tol, int adjoint_iterations) "
        "-> (Tensor, Tensor)",
        _energies, _energies_shape, _context, _backward,
    )  # fmt: skip
    define(
        "dense_adjoint",
        "(Tensor grad, Tensor theta, Tensor[] features, Tensor tables, str normalization, "
        "bool self_message, float tol, int iterations, bool learns) "
        "-> (Tensor, Tensor[], Tensor)",
        _adjoint, _adjoint_shape, nothing_saved, refuse,
    )  # fmt: skip
