"""`infer`: marginals of any field as a differentiable function of energies, weights and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from proxfield.core.common.checks import is_real, one_of, whole_number
from proxfield.core.devices.cuda import need_torch, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.plan import Custom, Order, Plan, Update
from proxfield.core.engines.torch.energy import softmax
from proxfield.core.filters.torch.filter import working_dtype
from proxfield.core.filters.torch.ops import exporting, has_batch, require_device, require_tensor
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.request import NEVER, check_limits
from proxfield.core.solve.rules.base import Problem, Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError, UnsupportedError, shown
from proxfield.field import Field
from proxfield.torch.run import (
    UNDER_VMAP,
    GradientRun,
    Model,
    Parameters,
    TablesGiven,
    marginals_function,
)
from proxfield.torch.solve import GRADIENTS, IMPLICIT_TOL, unrolled

INITS = ("uniform", "unary")


def infer(
    field: Field,
    unary: Tensor | None = None,
    rule: str | Rule | type[Rule] = "fixed",
    *,
    weights: Tensor | None = None,
    tables: TablesGiven = None,
    init: str | Tensor = "uniform",
    max_iters: int = 1000,
    tol: float | None = 1e-6,
    gradient: str = "exact",
    adjoint_tol: float | None = None,
    adjoint_max_iters: int = 200,
    seed: int = 0,
    device: TorchDevice = None,
    **params: Any,
) -> Tensor:
    """Marginals of a field, differentiable in its unary energies, edge weights and tables.

    The field gives the structure: variables, terms, evidence. Tensors go in and come out, on the
    unary's device. Gradients are those of the updates made, whatever the rule and wherever it
    stopped; the rule's steps, which may depend on the weights, count as constants.

    Args:
        field: The field. Gaussian terms are summed over all pairs, whatever filter they name.
        unary: Energies to add to the field's own, +inf for impossible labels; several fields of
            the same structure may come as a batch.  # (n, labels), (size,), (B, n, labels) or
            (B, size)
        rule: One of the rules that iterate one plan: fixed, adaptive, full-parallel, adhoc,
            momentum, adam, sweep, colored.
        weights: In place of the weights of the field's Potts and Ising terms, one after another.
            # (edges,) or (B, edges)
        tables: In place of the tables of the field's `Pairwise`, `Factor` and `GridPairwise` terms,
            shaped like these: one tensor per term, or the tensor alone if there is one such term;
            None keeps a term's own. Edges that share a table by the term's index share its
            gradient.  # (T, c_1, …, c_k) or (B, T, c_1, …, c_k) each
        init: "uniform", "unary" (softmax of the unary energies), or marginals, shaped like the
            result; these count as constants.
        max_iters: Maximum number of iterations.
        tol: Stop when the largest change of a marginal, divided by the step, is below it; None:
            never, make ``max_iters`` updates.
        gradient: "exact": of the updates made, with the states before them kept (θ; the moments
            for momentum and adam; q for sweeps). "implicit": of the fixed point, without memory
            for updates, and on a GPU with the iteration in the kernels of the set "cuda". Where
            the updates haven't reached one (a relative residual above
            `proxfield.torch.solve.IMPLICIT_TOL`) the exact one is computed instead, with a
            `proxfield.errors.GradientWarning`, once.
            "unrolled": the exact one of a proximal rule ("fixed", "full-parallel") as recorded by
            autograd, all ``max_iters`` updates.
        adjoint_tol: Relative tolerance of the implicit backward pass; None: 1e-5 (float64: 1e-10).
        adjoint_max_iters: Maximum number of iterations of the implicit backward pass.
        seed: Random seed of the order of sweeps.
        device: Where to compute if no tensor is given.
        **params: Parameters of the rule.

    Returns:
        Marginals, shaped like ``unary`` (without it: (n, labels), or (size,) where variables have
        different numbers of labels).

    Example:
        >>> field = pf.Field(4, n_labels=2).add(pf.Potts([[0, 1], [1, 2]], 1.0))  # doctest: +SKIP
        >>> q = infer(field, torch.randn(4, 2, requires_grad=True))  # doctest: +SKIP
        >>> q[:, 1].sum().backward()  # doctest: +SKIP
    """
    need_torch()
    one_of("gradient", gradient, GRADIENTS)
    chosen = _chosen(make_rule(rule, params))
    check_limits(max_iters, tol, None, None)
    if adjoint_tol is not None and not (is_real(adjoint_tol) and adjoint_tol >= 0):
        raise InputError(f"adjoint_tol={shown(adjoint_tol)}, expected a number, 0 or more")
    whole_number(adjoint_max_iters, "adjoint_max_iters", 1)
    several = [tables] if isinstance(tables, torch.Tensor) else list(tables or [])
    named = [("unary", unary), ("weights", weights), *(("tables", x) for x in several)]
    named = [(name, x) for name, x in named if x is not None]
    given = named[0][1] if named else None
    for name, x in named:
        require_tensor(x, name)
        require_device(x, name, given, named[0][0])
    batched = any(has_batch(x) for _, x in named)
    if batched and gradient != "unrolled":
        raise UnsupportedError(UNDER_VMAP)
    device = torch.device("cpu" if device is None else device) if given is None else given.device
    dtype = working_dtype(torch.get_default_dtype() if given is None else given.dtype)
    parameters = Parameters.read(field, weights, tables, dtype)
    model = Model.make(field, parameters, dtype, device)
    batch, entries = _form_of(field, unary)
    flat = torch.zeros((1, field.layout.size), dtype=dtype, device=device)  # (B, full size)
    if unary is not None:
        flat = unary.to(device, dtype).reshape(1 if batch is None else batch, field.layout.size)
    numbers = parameters.flat
    if numbers is not None and numbers.ndim == 2:
        if len(flat) == 1:
            flat, batch = flat.expand(len(numbers), -1), len(numbers)
        if len(numbers) not in (1, len(flat)):
            raise InputError(
                f"weights or tables for a batch of {len(numbers)} but unary energies for "
                f"{len(flat)}, expected one number"
            )
    if not (batched or torch.compiler.is_compiling()):
        _require_energies(flat, field)
    shape = entries if batch is None else (batch, *entries)
    if not flat.shape[0]:
        return (flat if numbers is None else flat + 0 * numbers.sum()).reshape(shape)
    energies = model.energy.unary + model.pad(flat)  # (B, n, labels)
    plan = _plan(chosen, model, field, seed)
    start = _start(init, energies, model, 1 if batch is None else batch)
    if gradient == "unrolled":
        q = _unrolled(model, energies, numbers, plan, start, max_iters)
    else:
        if adjoint_tol is None:
            adjoint_tol = 1e-10 if dtype == torch.float64 else 1e-5
        run = GradientRun(
            model, plan, start.detach(), isinstance(init, str) and init == "unary", max_iters,
            NEVER if tol is None else tol,
            (IMPLICIT_TOL, adjoint_tol, adjoint_max_iters) if gradient == "implicit" else None,
            learns=gradient == "exact" and torch.is_grad_enabled()
            and any(x is not None and x.requires_grad for x in (energies, numbers)),
        )  # fmt: skip
        q = marginals_function().apply(energies, numbers, run)[0]
    return model.expand(q).reshape(shape)


def _chosen(rule: Rule) -> Rule:
    """The rule, if there is a gradient through it, here."""
    # some versions of torch.compile take it for exporting
    if not torch.compiler.is_dynamo_compiling() and exporting():
        raise UnsupportedError(
            "torch.export can't trace torch.infer, which plans on the host; call it outside of the "
            "exported program, or export torch.DenseCRF"
        )
    if type(rule).solve is not Rule.solve:
        raise UnsupportedError(
            f"{rule.name} runs other rules, through which there is no gradient; expected a rule "
            "such as fixed or adaptive"
        )
    return rule


def _require_energies(flat: Tensor, field: Field) -> None:
    """Raise if energies hold NaN or −inf, and name the first.  # (B, size)"""
    for wrong, what in ((torch.isnan(flat), "NaN"), (torch.isneginf(flat), "-inf")):
        if bool(wrong.any()):
            item, entry = (int(i) for i in wrong.nonzero()[0])
            starts = field.layout.offsets
            variable = int(np.searchsorted(starts, entry, side="right")) - 1
            raise InputError(
                f"unary energies hold {what}, first at batch item {item}, variable {variable}, "
                f"label {entry - int(starts[variable])} (counted from 0); expected numbers or +inf"
            )


def _plan(rule: Rule, model: Model, field: Field, seed: int) -> Update | Order:
    """How the states move: for a batch of weights, with the least of the steps."""
    plans = []
    for full in model.fulls:
        if "curvature" not in full.differentiable:  # λ takes many products with H
            full.differentiable["curvature"] = Curvature(full, field, "cpu")
        plans.append(rule.plan(Problem(full, full.differentiable["curvature"], seed)))
    plan = plans[0]
    if isinstance(plan, Custom):
        raise UnsupportedError("rules that are Python functions need proxfield.infer")
    if isinstance(plan, Update) and len(plans) > 1:
        updates = [p for p in plans if isinstance(p, Update)]
        safe = [p.fallback for p in updates if p.fallback is not None]
        plan = replace(
            plan,
            step=np.min([p.step for p in updates], axis=0),
            fallback=np.min(safe, axis=0) if safe else None,
        )
    return plan


def _form_of(field: Field, unary: Tensor | None) -> tuple[int | None, tuple[int, ...]]:
    """In which form marginals come and go: a batch or None, and the shape of one field's."""
    layout = field.layout
    rows = None if layout.common is None else (layout.n_vars, layout.common)
    if unary is None:
        return None, (layout.size,) if rows is None else rows
    shape = tuple(unary.shape)
    if shape == rows or shape == (layout.size,):
        return None, shape
    if len(shape) > 1 and shape[1:] in (rows, (layout.size,)):
        return shape[0], shape[1:]
    forms = f"({layout.size},)" if rows is None else f"{rows} or ({layout.size},)"
    raise InputError(f"unary of shape {shape}, expected {forms}, or a batch of these")


def _start(init: str | Tensor, energies: Tensor, model: Model, rows: int) -> Tensor:
    """Marginals to start from.  # (B, n, labels)"""
    if isinstance(init, str):
        if init not in INITS:
            raise InputError(f"init={init!r}, expected {', '.join(INITS)} or marginals")
        if init == "unary":
            return softmax(energies)
        counts = model.energy.lowered.layout.cardinalities
        flat = model.energy.tensor(np.repeat(1 / counts, counts))[None]
        return model.energy.padding.pad(flat.expand(len(energies), -1), 0.0)
    flat = torch.as_tensor(init).detach().to(energies).reshape(rows, len(model.decided))
    q = model.pad(flat.expand(len(energies), -1), 0.0)
    return q / q.sum(dim=-1, keepdim=True)


def _unrolled(
    model: Model, energies: Tensor, numbers: Tensor | None, plan: Plan, q: Tensor, iterations: int
) -> Tensor:
    if not isinstance(plan, Update) or not plan.proximal or plan.watches:
        raise UnsupportedError('gradient="unrolled" needs the rule "fixed" or "full-parallel"')
    step = model.energy.tensor(plan.step)[None, :, None]
    theta = -torch.log(q.clamp(min=1e-30))
    given = model.split(numbers)

    def gradient(q: Tensor) -> Tensor:
        return model.energy.gradient(q, energies, *given)

    return softmax(unrolled(gradient, theta, step, iterations))
