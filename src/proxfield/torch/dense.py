"""Dense CRFs as one operator: unaries, features and tables in, energies after the updates out.

The updates and their derivative are opaque to autograd and to compilers, so that neither unrolls
them. ``torch.ops.proxfield.dense_energies`` is what `proxfield.torch.DenseCRF` calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import AutogradContext, Tensor
from proxfield.core.engines.torch.energy import moved, softmax
from proxfield.core.filters.torch.operator import (
    FeatureGradient,
    Operator,
    PlannedOperator,
    differentiable,
)
from proxfield.core.filters.torch.ops import Op, nothing_saved, plain_precision, refuse
from proxfield.errors import InputError, UnsupportedError
from proxfield.torch.inputs import require_features, require_marginals
from proxfield.torch.solve import (
    IMPLICIT_TOL,
    Kind,
    covariance,
    fixed_point,
    implicit,
    step_sizes,
    unrolled,
)

Option: TypeAlias = Any
"""An argument of an operator: a value of `UpdateOptions`, or a tensor."""


class UpdateOptions(NamedTuple):
    """How energies are updated and differentiated; the operators take these in this order.

    Args:
        normalization: See `proxfield.Gaussian`.
        self_message: See `proxfield.Gaussian`.
        filter: "exact", "lattice" or "auto". The gradient for features under a lattice is that
            of the Gaussian it approximates (see `proxfield.core.filters.torch.plans.Lattices`).
        max_iters: Maximum number of iterations.
        tol: Change of q at which to stop; 0: never.
        keep_every: Keep θ before every ``keep_every``-th update; the backward pass repeats those
            between.
        fixed_count: Keep as many θ as all updates need, however many are made.
        implicit_tol: Relative residual max |log softmax(−g(q)) − log q| above which "implicit"
            takes the exact gradient instead, with a warning.
        adjoint_tol: Relative tolerance of the implicit backward pass; None: 1e-5, on a GPU 1e-4
            (float64: 1e-10).
        adjoint_max_iters: Maximum number of iterations of the implicit backward pass.
        check: Raise if a pixel has no marginals, since an input holds NaN for example.
        pixels: Shape of an image, for that message.
    """

    normalization: str = "symmetric"
    self_message: bool = True
    filter: str = "exact"
    max_iters: int = 10
    tol: float = 1e-6
    keep_every: int = 1
    fixed_count: bool = False
    implicit_tol: float = IMPLICIT_TOL
    adjoint_tol: float | None = None
    adjoint_max_iters: int = 50
    check: bool = True
    pixels: Sequence[int] = ()

    @property
    def kind(self) -> Kind:
        """What makes an operator of features."""
        return self.normalization, self.self_message, self.filter

    @property
    def kept(self) -> int:
        """How many θ are kept if all updates are made."""
        return max(0, (self.max_iters - 1) // self.keep_every) if self.keep_every else 0


def dense_energies(
    unary: Tensor,
    features: list[Tensor],
    tables: Tensor,
    *,
    step: float | None = None,
    gradient: str = "exact",
    **options: Option,
) -> tuple[Tensor, Tensor]:
    """θ after updates θ ← θ − step (θ − g(softmax(−θ))) with g(q) = U + Σ_t A_t q M_t.

    The gradient is that of the updates made: θ is kept before each of them, everything else is
    recomputed in the backward pass, with one product with every A_t per update.
    It includes the derivative of the certified step. With ``gradient="implicit"`` it is that of
    the fixed point where the updates reached one, and memory doesn't grow with the updates. With
    "unrolled" autograd records the updates, all ``max_iters`` of them: for comparison.

    Args:
        unary: U, and the first θ; +inf rules a label out.  # (B, n, c)
        features: Features of each term; (1, n, d) if all images share them.  # (B, n, d) each
        tables: M, weight times compatibility; must be symmetric.  # (terms, c, c)
        step: Step of the updates; None: the certified one of each image.
        gradient: "exact", "implicit" or "unrolled".
        options: See `UpdateOptions`.

    Returns:
        θ after the last update, and a tensor of two numbers on the CPU: updates made, change by
        the last; of none if they are recorded.  # (B, n, c), (2,)
    """
    how = UpdateOptions(**options)
    size = step_sizes(unary, features, tables, how.kind, step)
    if gradient == "unrolled":
        with plain_precision(unary):
            operators = [differentiable(f, *how.kind) for f in features]
            update = DenseUpdate(unary, operators, tables, size)
            return update.repeated(how.max_iters), unary.new_empty(0)
    adjoint_tol = how.adjoint_tol
    if adjoint_tol is None:
        # the GPU's sums in float32 have errors of 1e-4: no use in solving to less
        rough = 1e-4 if unary.is_cuda else 1e-5
        adjoint_tol = 1e-10 if unary.dtype == torch.float64 else rough
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (unary, tables, *features))
    how = how._replace(
        keep_every=how.keep_every if learns and gradient == "exact" else 0,
        fixed_count=torch.compiler.is_compiling(),
        implicit_tol=how.implicit_tol if gradient == "implicit" else -1.0,
        adjoint_tol=adjoint_tol,
        pixels=list(how.pixels),
    )
    theta, facts, _ = ENERGIES(unary, features, tables, size, *how)
    return theta, facts


class DenseUpdate(NamedTuple):
    """θ ← θ − size (θ − g(q)) with g(q) = U + Σ_t A_t q M_t."""

    unary: Tensor  # U  (B, n, c)
    operators: Sequence[Operator]  # A
    tables: Tensor  # M  (terms, c, c)
    size: Tensor  # (1, 1, 1) or (B, 1, 1)

    def gradient(self, q: Tensor) -> Tensor:
        """g(q).  # (B, n, c)"""
        return self.hessian(q, self.unary)

    def hessian(self, p: Tensor, out: Tensor | float = 0.0) -> Tensor:
        """Σ_t A_t p M_t, added to ``out``.  # (B, n, c)"""
        for operator, table in zip(self.operators, self.tables, strict=True):
            out = out + operator.apply(p) @ table
        return out if isinstance(out, torch.Tensor) else torch.zeros_like(p)

    def moved(self, theta: Tensor) -> Tensor:
        """θ after an update.  # (B, n, c)"""
        return moved(theta, self.gradient(softmax(theta)), self.size)

    def repeated(self, updates: int) -> Tensor:
        """θ after this many updates from θ = U.  # (B, n, c)"""
        return unrolled(self.gradient, self.unary, self.size, updates)


# ---- the operators ----


def _energies(
    unary: Tensor, features: list[Tensor], tables: Tensor, size: Tensor, *options: Option
) -> tuple[Tensor, Tensor, list[Tensor]]:
    how = UpdateOptions(*options)
    if not unary.numel():
        facts = torch.zeros(2, dtype=torch.float64)
        return unary.clone(), facts, [torch.zeros_like(unary) for _ in range(how.kept)]
    with plain_precision(unary):
        try:
            operators = [PlannedOperator(f, *how.kind) for f in features]
        except InputError:  # of a lattice, which doesn't know of images
            require_features(features, how.pixels)
            raise
        update = DenseUpdate(unary, operators, tables, size)
        found = fixed_point(update.gradient, unary, size, how.max_iters, how.tol, how.keep_every)
        if how.check:
            require_marginals(found.q, unary, features, tables, how.pixels)
        facts = torch.tensor([found.iterations, found.change], dtype=torch.float64)
        kept = found.kept
        if how.fixed_count:  # compiled graphs need shapes that don't depend on when it stopped
            kept += [torch.zeros_like(unary) for _ in range(how.kept - len(kept))]
        return found.theta.clone() if found.theta is unary else found.theta, facts, kept


def _energies_shape(
    unary: Tensor, features: list[Tensor], tables: Tensor, size: Tensor, *options: Option
) -> tuple[Tensor, Tensor, list[Tensor]]:
    kept = [unary.new_empty(unary.shape) for _ in range(UpdateOptions(*options).kept)]
    return unary.new_empty(unary.shape), unary.new_empty(2, dtype=torch.float64, device="cpu"), kept


def _context(
    ctx: AutogradContext, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, list[Tensor]]
) -> None:
    unary, features, tables, size, *options = inputs
    theta, facts, kept = output
    ctx.save_for_backward(unary, tables, size, theta, facts, *features, *kept)
    ctx.save_for_forward(unary, tables, size, theta, facts, *features, *kept)
    ctx.terms = len(features)
    ctx.options = UpdateOptions(*options)
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
        grad, theta, facts, kept, unary, features, tables, size, learns, bool(wanted[3]),
        *ctx.options,
    )  # fmt: skip
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
    how: UpdateOptions = ctx.options

    def run(u: Tensor, m: Tensor, s: Tensor, *f: Tensor) -> Tensor:
        operators = [differentiable(x, *how.kind) for x in f]
        return DenseUpdate(u, operators, m, s).repeated(int(facts[0]))

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
    features: list[Tensor], tables: Tensor, size: Tensor, learns: bool, sized: bool,
    *options: Option,
) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:  # fmt: skip
    if not theta.numel():
        to_unary, *to_features = (torch.zeros_like(x) for x in (unary, *features))
        return to_unary, to_features, torch.zeros_like(tables), torch.zeros_like(size)
    how = UpdateOptions(*options)
    with plain_precision(theta):
        operators = [PlannedOperator(f, *how.kind) for f in features]
        update = DenseUpdate(unary, operators, tables, size)
        grad = torch.where(torch.isinf(theta), torch.zeros_like(grad), grad)
        sums = [FeatureGradient(operator) for operator in operators] if learns else []
        found = None
        if how.implicit_tol >= 0:  # gradients of the fixed point θ = g(q), where it is near
            q = softmax(theta)
            assert how.adjoint_tol is not None
            limits = how.implicit_tol, how.adjoint_tol, how.adjoint_max_iters
            y = implicit(update.hessian, q, update.gradient(q), grad, limits)
            if y is not None:
                products = [torch.einsum("bnc,bnd->cd", q, o.apply(y)) for o in operators]
                for mine, table in zip(sums, tables, strict=False):
                    mine.add(y, q @ table)
                found = y, torch.stack(products), torch.zeros_like(size)
        if found is None:
            states = [unary, *kept], how.keep_every or max(1, int(facts[0])), int(facts[0])
            found = _exact(update, grad, theta, states, sums, sized)
        to_unary, to_tables, to_size = found
        to_features = (
            [s.total() for s in sums] if learns else [torch.zeros_like(f) for f in features]
        )
        return to_unary, to_features, to_tables, to_size


def _exact(
    update: DenseUpdate, grad: Tensor, theta: Tensor, states: tuple[list[Tensor], int, int],
    sums: list[FeatureGradient], sized: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the updates made for U, M and the step, from that for the last θ.

    An update is θ⁺ = (1 − s) θ + s (U + Σ_t A_t q M_t) with q = softmax(−θ). With a the gradient
    for θ⁺, b = s a and p_t = A_t b, one product per term: U gets b, M_t gets qᵀ p_t since A_t is
    symmetric, q gets Σ_t p_t M_tᵀ, and θ gets (1 − s) a less S times what q gets. The features'
    gradients are sums over pairs of b and q M_t (`FeatureGradient`).

    ``states`` are θ before every so many updates; how many; and how many updates were made.
    """
    kept, every, made = states
    to_unary, to_tables = torch.zeros_like(update.unary), torch.zeros_like(update.tables)
    to_size = torch.zeros_like(update.size)
    after = theta
    for first in reversed(range(0, made, every)):
        some = [kept[first // every]]
        while len(some) < min(every, made - first):  # those that weren't kept
            some.append(update.moved(some[-1]))
        while some:
            before = some.pop()
            q = softmax(before)
            b = update.size * grad
            to_unary += b
            if sized:  # ∂θ⁺/∂s = (θ⁺ − θ)/s
                move = torch.where(torch.isinf(before), torch.zeros_like(b), after - before)
                to_size += (grad * move).sum(dim=(1, 2), keepdim=True) / update.size
            to_q = torch.zeros_like(q)
            for k, (operator, table) in enumerate(
                zip(update.operators, update.tables, strict=True)
            ):
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
    to_unary, to_tables, to_size = (x.new_empty(x.shape) for x in (theta, tables, size))
    return to_unary, [f.new_empty(f.shape) for f in features], to_tables, to_size


def _repeated(args: list[Option]) -> list[Option]:
    """Calls whose results are stacked keep equally many θ."""
    args[4:] = UpdateOptions(*args[4:])._replace(fixed_count=True)
    return args


OPTIONS = (
    "str normalization, bool self_message, str filter, int max_iters, float tol, int keep_every, "
    "bool fixed_count, float implicit_tol, float adjoint_tol, int adjoint_max_iters, bool check, "
    "SymInt[] pixels"
)
"""`UpdateOptions` in a schema."""

ENERGIES = Op(
    "dense_energies",
    f"(Tensor unary, Tensor[] features, Tensor tables, Tensor size, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor[])",
    _energies, _energies_shape, _context, _backward,
    images=((0,), (1, 3), (True, False, True)), repeated=_repeated, jvp=_jvp,
)  # fmt: skip
ADJOINT = Op(
    "dense_adjoint",
    "(Tensor grad, Tensor theta, Tensor facts, Tensor[] kept, Tensor unary, "
    f"Tensor[] features, Tensor tables, Tensor size, bool learns, bool sized, {OPTIONS}) "
    "-> (Tensor, Tensor[], Tensor, Tensor)",
    _adjoint, _adjoint_shape, nothing_saved, refuse,
)  # fmt: skip
