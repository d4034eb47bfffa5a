"""Dense CRFs as one operator: unaries, features and tables in, energies after the updates out.

The updates and their derivative are opaque to autograd and to compilers, so that neither unrolls
them. ``torch.ops.proxfield.dense_energies`` is what `proxfield.torch.DenseCRF` calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import AutogradContext, Tensor
from proxfield.core.engines.torch.moves import moved, softmax
from proxfield.core.filters.torch.operator import (
    FeatureGradient,
    Operator,
    PlannedOperator,
    differentiable,
)
from proxfield.core.filters.torch.ops import Op, nothing_saved, plain_precision, refuse
from proxfield.errors import InputError, UnsupportedError
from proxfield.torch.finite import require_features, require_marginals
from proxfield.torch.solve import (
    IMPLICIT_TOL,
    adjoint,
    covariance,
    fixed_point,
    relative_residual,
    warn_fallback,
)
from proxfield.torch.steps import step_sizes


def dense_energies(
    unary: Tensor,
    features: list[Tensor],
    tables: Tensor,
    *,
    normalization: str = "symmetric",
    self_message: bool = True,
    filter: str = "exact",
    step: float | None = None,
    max_iters: int = 10,
    tol: float = 1e-6,
    gradient: str = "exact",
    keep_every: int = 1,
    implicit_tol: float = IMPLICIT_TOL,
    adjoint_tol: float | None = None,
    adjoint_max_iters: int = 50,
    check: bool = True,
    pixels: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """θ after updates θ ← θ − step (θ − g(softmax(−θ))) with g(q) = U + Σ_t A_t q M_t.

    The gradient is that of the updates made: θ is kept before each of them, everything else is
    recomputed in the backward pass, with one product with every A_t per update.
    It includes the derivative of the certified step. With ``gradient="implicit"`` it is that of
    the fixed point where the updates reached one, and memory doesn't grow with the updates.

    Args:
        unary: U, and the first θ; +inf rules a label out.  # (B, n, c)
        features: Features of each term; (1, n, d) if all images share them.  # (B, n, d) each
        tables: M, weight times compatibility; must be symmetric.  # (terms, c, c)
        normalization: See `proxfield.Gaussian`.
        self_message: See `proxfield.Gaussian`.
        filter: "exact", "lattice" or "auto". The gradient for features under a lattice is that
            of the Gaussian it approximates (see `proxfield.core.filters.torch.lattice.Lattices`).
        step: Step of the updates; None: the certified one of each image.
        max_iters: Maximum number of iterations.
        tol: Change of q at which to stop; 0: never.
        gradient: "exact" or "implicit".
        keep_every: Keep θ before every ``keep_every``-th update; the backward pass repeats those
            between.
        implicit_tol: Relative residual max |log softmax(−g(q)) − log q| above which "implicit"
            takes the exact gradient instead, with a warning.
        adjoint_tol: Relative tolerance of the implicit backward pass; None: 1e-5, on a GPU 1e-4
            (float64: 1e-10).
        adjoint_max_iters: Maximum number of iterations of the implicit backward pass.
        check: Raise if a pixel has no marginals, since an input holds NaN for example.
        pixels: Shape of an image, for that message.

    Returns:
        θ after the last update, and a tensor of two numbers on the CPU: updates made, change by
        the last.  # (B, n, c), (2,)
    """
    if adjoint_tol is None:
        # the GPU's sums in float32 have errors of 1e-4: no use in solving to less
        rough = 1e-4 if unary.is_cuda else 1e-5
        adjoint_tol = 1e-10 if unary.dtype == torch.float64 else rough
    given = (unary, tables, *features)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    size = step_sizes(unary, features, tables, normalization, self_message, filter, step)
    theta, facts, _ = ENERGIES(
        unary, features, tables, size, normalization, self_message, filter, max_iters, tol,
        keep_every if learns and gradient == "exact" else 0, torch.compiler.is_compiling(),
        implicit_tol if gradient == "implicit" else -1.0, adjoint_tol, adjoint_max_iters,
        check, list(pixels),
    )  # fmt: skip
    return theta, facts


def unrolled_energies(
    unary: Tensor,
    features: list[Tensor],
    tables: Tensor,
    *,
    normalization: str = "symmetric",
    self_message: bool = True,
    filter: str = "exact",
    step: float | None = None,
    max_iters: int = 10,
) -> Tensor:
    """The same updates in operations that autograd records: for comparison."""
    size = step_sizes(unary, features, tables, normalization, self_message, filter, step)
    with plain_precision(unary):
        operators = [differentiable(f, normalization, self_message, filter) for f in features]
        return _updated(unary, operators, tables, size, max_iters)


def _updated(
    unary: Tensor, operators: Sequence[Operator], tables: Tensor, size: Tensor, updates: int
) -> Tensor:
    """θ after this many updates from θ = U."""
    theta = unary
    for _ in range(updates):
        theta = moved(theta, _gradient(unary, operators, tables, softmax(theta)), size)
    return theta


def _gradient(unary: Tensor, operators: Sequence[Operator], tables: Tensor, q: Tensor) -> Tensor:
    """g(q) = U + Σ_t A_t q M_t.  # (B, n, c)"""
    out = unary
    for operator, table in zip(operators, tables, strict=True):
        out = out + operator.apply(q) @ table
    return out


# ---- the operators ----


def _energies(
    unary: Tensor, features: list[Tensor], tables: Tensor, size: Tensor, normalization: str,
    self_message: bool, filter: str, max_iters: int, tol: float, keep_every: int, fixed_count: bool,
    implicit_tol: float, adjoint_tol: float, adjoint_max_iters: int, check: bool, pixels: list[int],
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    if not unary.numel():
        facts = torch.zeros(2, dtype=torch.float64)
        kept = [torch.zeros_like(unary) for _ in range(_most(max_iters, keep_every))]
        return unary.clone(), facts, kept
    with plain_precision(unary):
        try:
            operators = [PlannedOperator(f, normalization, self_message, filter) for f in features]
        except InputError:  # of a lattice, which doesn't know of images
            require_features(features, pixels)
            raise
        found = fixed_point(
            lambda q: _gradient(unary, operators, tables, q), unary, size, max_iters, tol,
            keep_every,
        )  # fmt: skip
        if check:
            require_marginals(found.q, unary, features, tables, pixels)
        facts = torch.tensor([found.iterations, found.change], dtype=torch.float64)
        kept = found.kept
        if fixed_count:  # compiled graphs need shapes that don't depend on when it stopped
            missing = _most(max_iters, keep_every) - len(kept)
            kept += [torch.zeros_like(unary) for _ in range(missing)]
        return found.theta.clone() if found.theta is unary else found.theta, facts, kept


def _most(max_iters: int, keep_every: int) -> int:
    """How many θ are kept if all updates are made."""
    return max(0, (max_iters - 1) // keep_every) if keep_every else 0


def _energies_shape(
    unary: Tensor, features: list[Tensor], tables: Tensor, size: Tensor, normalization: str,
    self_message: bool, filter: str, max_iters: int, tol: float, keep_every: int, *others: object,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    kept = [unary.new_empty(unary.shape) for _ in range(_most(max_iters, keep_every))]
    return unary.new_empty(unary.shape), unary.new_empty(2, dtype=torch.float64, device="cpu"), kept


def _context(
    ctx: AutogradContext, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, list[Tensor]]
) -> None:
    unary, features, tables, size, normalization, self_message, filter, *rest = inputs
    _, _, every, _, *limits, _, _ = rest
    theta, facts, kept = output
    ctx.save_for_backward(unary, tables, size, theta, facts, *features, *kept)
    ctx.save_for_forward(unary, tables, size, theta, facts, *features, *kept)
    ctx.terms = len(features)
    ctx.options = (normalization, self_message, filter, every, *limits)
    ctx.mark_non_differentiable(facts, *kept)
    ctx.set_materialize_grads(False)  # no zeros for each θ that was kept


def _backward(ctx: AutogradContext, grad: Tensor | None, *_: Tensor) -> tuple[object, ...]:
    unary, tables, size, theta, facts, *rest = ctx.saved_tensors
    features, kept = rest[: ctx.terms], rest[ctx.terms :]
    wanted = ctx.needs_input_grad
    learns = any(wanted[1]) if isinstance(wanted[1], (list, tuple)) else bool(wanted[1])
    if grad is None:
        grad = torch.zeros_like(theta)
    to_unary, to_features, to_tables, to_size = ADJOINT(
        grad,
        theta,
        facts,
        kept,
        unary,
        features,
        tables,
        size,
        *ctx.options,
        learns,
        bool(wanted[3]),
    )
    given = to_features if learns else [None] * len(features)
    return (to_unary, given, to_tables, to_size, *[None] * 12)


def _jvp(
    ctx: AutogradContext, unary: Tensor | None, features: list[Tensor | None],
    tables: Tensor | None, size: Tensor | None, *_: None,
) -> tuple[Tensor, None, list[None]]:  # fmt: skip
    """Derivatives of the updates made, forward, in operations that have them."""
    u, m, s, theta, facts, *rest = ctx.saved_tensors
    primals = (u, m, s, *rest[: ctx.terms])
    given = (unary, tables, size, *features)
    tangents = tuple(
        torch.zeros_like(x) if t is None else t for x, t in zip(primals, given, strict=True)
    )
    normalization, self_message, filter, *_rest = ctx.options

    def run(u: Tensor, m: Tensor, s: Tensor, *f: Tensor) -> Tensor:
        operators = [differentiable(x, normalization, self_message, filter) for x in f]
        return _updated(u, operators, m, s, int(facts[0]))

    with plain_precision(theta):
        try:
            _, out = torch.func.jvp(run, primals, tangents)
        except RuntimeError as error:
            if "Nested forward mode" not in str(error):
                raise
            raise UnsupportedError(
                "no derivatives forward under torch.autograd.forward_ad; use torch.func.jvp, or "
                'gradient="unrolled"'
            ) from error
    return out, None, [None] * (len(rest) - ctx.terms)


def _adjoint(
    grad: Tensor, theta: Tensor, facts: Tensor, kept: list[Tensor], unary: Tensor,
    features: list[Tensor], tables: Tensor, size: Tensor, normalization: str, self_message: bool,
    filter: str, keep_every: int, implicit_tol: float, adjoint_tol: float, adjoint_max_iters: int,
    learns: bool, sized: bool,
) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:  # fmt: skip
    if not theta.numel():
        none = (torch.zeros_like(x) for x in (unary, tables, size))
        to_unary, to_tables, to_size = none
        return to_unary, [torch.zeros_like(f) for f in features], to_tables, to_size
    with plain_precision(theta):
        operators = [PlannedOperator(f, normalization, self_message, filter) for f in features]
        grad = torch.where(torch.isinf(theta), torch.zeros_like(grad), grad)
        sums = [FeatureGradient(operator) for operator in operators] if learns else []
        found = None
        if implicit_tol >= 0:
            found = _implicit(
                grad, theta, unary, operators, tables, size, sums,
                implicit_tol, adjoint_tol, adjoint_max_iters,
            )  # fmt: skip
        if found is None:
            found = _exact(
                grad, theta, int(facts[0]), kept, keep_every, unary, operators, tables, size, sums,
                sized,
            )  # fmt: skip
        to_unary, to_tables, to_size = found
        to_features = (
            [s.total() for s in sums] if learns else [torch.zeros_like(f) for f in features]
        )
        return to_unary, to_features, to_tables, to_size


def _implicit(
    grad: Tensor, theta: Tensor, unary: Tensor, operators: list[PlannedOperator], tables: Tensor,
    size: Tensor, sums: list[FeatureGradient], implicit_tol: float, tol: float, max_iters: int,
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Gradients of the fixed point θ = g(q) for U, M and the step; None where it isn't near."""
    q = softmax(theta)
    away = relative_residual(q, _gradient(unary, operators, tables, q))
    if not away <= implicit_tol:
        warn_fallback(f"relative residual {away:.1e}, limit {implicit_tol:.1e}: not converged")
        return None

    def hessian(p: Tensor) -> Tensor:
        return _gradient(torch.zeros_like(p), operators, tables, p)

    y, trouble = adjoint(hessian, q, grad, tol, max_iters)
    if trouble:
        warn_fallback(trouble)
        return None
    to_tables = torch.stack([torch.einsum("bnc,bnd->cd", q, o.apply(y)) for o in operators])
    for mine, table in zip(sums, tables, strict=False):
        mine.add(y, q @ table)
    return y, to_tables, torch.zeros_like(size)


def _exact(
    grad: Tensor, theta: Tensor, made: int, kept: list[Tensor], keep_every: int, unary: Tensor,
    operators: list[PlannedOperator], tables: Tensor, size: Tensor, sums: list[FeatureGradient],
    sized: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the updates made for U, M and the step, from that for the last θ.

    An update is θ⁺ = (1 − s) θ + s (U + Σ_t A_t q M_t) with q = softmax(−θ). With a the gradient
    for θ⁺, b = s a and p_t = A_t b, one product per term: U gets b, M_t gets qᵀ p_t since A_t is
    symmetric, q gets Σ_t p_t M_tᵀ, and θ gets (1 − s) a less S times what q gets. The features'
    gradients are sums over pairs of b and q M_t (`FeatureGradient`).
    """
    every = keep_every or max(1, made)
    to_unary = torch.zeros_like(unary)
    to_tables = torch.zeros_like(tables)
    to_size = torch.zeros_like(size)
    after = theta
    for first in reversed(range(0, made, every)):
        states = [unary if first == 0 else kept[first // every - 1]]
        while len(states) < min(every, made - first):  # those that weren't kept
            target = _gradient(unary, operators, tables, softmax(states[-1]))
            states.append(moved(states[-1], target, size))
        while states:
            before = states.pop()
            q = softmax(before)
            b = size * grad
            to_unary += b
            if sized:  # ∂θ⁺/∂s = (θ⁺ − θ)/s
                move = torch.where(torch.isinf(before), torch.zeros_like(b), after - before)
                to_size += (grad * move).sum(dim=(1, 2), keepdim=True) / size
            to_q = torch.zeros_like(q)
            for k, (operator, table) in enumerate(zip(operators, tables, strict=True)):
                p = operator.apply(b)
                to_tables[k] += torch.einsum("bnc,bnd->cd", q, p)
                to_q += p @ table.mT
                if sums:
                    sums[k].add(b, q @ table)
            grad = (grad - b) - covariance(q, to_q)
            after = before
    to_unary += grad
    return to_unary, to_tables, to_size


def _adjoint_shape(
    grad: Tensor, theta: Tensor, facts: Tensor, kept: list[Tensor], unary: Tensor,
    features: list[Tensor], tables: Tensor, size: Tensor, *others: object,
) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:  # fmt: skip
    return (
        theta.new_empty(theta.shape),
        [f.new_empty(f.shape) for f in features],
        tables.new_empty(tables.shape),
        size.new_empty(size.shape),
    )


def _repeated(args: list[Any]) -> list[Any]:
    """Calls whose results are stacked keep equally many θ."""
    args[FIXED_COUNT] = True
    return args


FIXED_COUNT = 10
"""The argument of ``dense_energies`` that says to keep as many θ as all updates need."""

ENERGIES = Op(
    "dense_energies",
    "(Tensor unary, Tensor[] features, Tensor tables, Tensor size, str normalization, "
    "bool self_message, str filter, int max_iters, float tol, int keep_every, "
    "bool fixed_count, float implicit_tol, float adjoint_tol, int adjoint_max_iters, "
    "bool check, SymInt[] pixels) -> (Tensor, Tensor, Tensor[])",
    _energies, _energies_shape, _context, _backward,
    images=((0,), (1, 3), (True, False, True)), repeated=_repeated, jvp=_jvp,
)  # fmt: skip
ADJOINT = Op(
    "dense_adjoint",
    "(Tensor grad, Tensor theta, Tensor facts, Tensor[] kept, Tensor unary, "
    "Tensor[] features, Tensor tables, Tensor size, str normalization, bool self_message, "
    "str filter, int keep_every, float implicit_tol, float adjoint_tol, int adjoint_max_iters, "
    "bool learns, bool sized) -> (Tensor, Tensor[], Tensor, Tensor)",
    _adjoint, _adjoint_shape, nothing_saved, refuse,
)  # fmt: skip
