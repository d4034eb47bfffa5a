"""`infer`: from a field, a rule and limits to a `Result`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.curvature import Curvature
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.kernels import compile_program
from proxfield.kernels.base import softmax
from proxfield.loop import Callback, Loop
from proxfield.lowering import Lowered
from proxfield.registry import make_rule
from proxfield.result import Result, Status
from proxfield.rules import Rule
from proxfield.session import Outcome, Problem, Session
from proxfield.terms.base import Layout

UNLIMITED = 2**62
DOUBLE_CHECKED = 2**20
"""Entries up to which F of a float32 result is evaluated again in float64."""
CURVATURE_SHARE = 0.2
"""Of the budget, for finding λ; where that isn't enough the bound from the tables serves."""


def infer(
    field: Field,
    rule: str | Rule | type[Rule] = "auto",
    *,
    init: str | Result | Any = "uniform",
    max_iters: int | None = None,
    tol: float = 1e-6,
    budget: float | None = None,
    callback: Callback | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    kernels: str | None = None,
    dtype: str | None = None,
    keep: str = "last",
    trace: bool = True,
    **params: Any,
) -> Result:
    """Mean-field inference: marginals, a labelling and a certified bound on log Z.

    Args:
        field: The field.
        rule: A name (see `proxfield.RULES`), a rule's class, or a rule.
        init: "uniform" (over all labels, as in the paper), "possible" (over labels whose
            unary energy is finite), "unary" (softmax of the unary energies), "random"
            (seeded), marginals in any accepted form, or a `Result` to continue from.
        max_iters: Most updates (sweeps, for sweep and colored). By default unlimited if
            there is a budget, else what the rule finds fit (1000 for most).
        tol: Stop when the largest change of a marginal, divided by the step, is below it.
        budget: Most seconds of iterating, without loading and compiling.
        callback: Called about 20 times a second with a `Progress`; returning something
            true stops the inference.
        seed: Of everything random.
        threads: Most threads; all cores by default. Small fields use one.
        device: "cpu", "cuda" or "cuda:1" (with the extra ``gpu``).
        kernels: "cpu" (numba), "reference" (numpy), "cuda" (Triton) or "torch" (plain torch);
            by default what suits the device.
        dtype: "float64" or "float32" (half the memory, float64 sums); by default float64 on the
            CPU and float32 on a GPU.
        keep: "last" returns the last state; "best" the one of lowest F seen at a look, for
            rules that may go up.
        trace: Keep F of every state; False saves some time per iteration.
        **params: Parameters of a rule given by name or class.

    Returns:
        A `Result`. Ctrl-C returns the best so far, with the status INTERRUPTED.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(4, labels=2).add(pf.Unary([[0, 1.0]] * 4))
        >>> field = field.add(pf.Potts([[0, 1], [1, 2], [2, 3], [3, 0]], -2.0))
        >>> result = pf.infer(field, "fixed", init="random")
        >>> result.converged, result.map_labels.sum()
        (True, np.int64(2))
    """
    if not isinstance(field, Field):
        raise TypeError(f"infer takes a Field, not {type(field).__name__}")
    chosen = make_rule(rule, params)
    check_limits(max_iters, tol, budget, threads)
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed={seed!r}, expected a whole number, 0 or more")
    kernels, dtype = choose_kernels(device, kernels, dtype)
    if keep not in ("last", "best"):
        raise InputError(f"keep={keep!r}, expected last or best")
    if budget is not None and np.isinf(budget):
        budget = None
    lowered = field.lower()
    if on_gpu(kernels):
        lowered = moved(lowered, kernels, dtype)
    hurry = np.inf if budget is None else CURVATURE_SHARE * budget
    host = "cpu" if on_gpu(kernels) else kernels  # λ is found on the host
    problem = Problem(lowered, Curvature(lowered, field, host, hurry), seed)
    limited = max_iters is not None or budget is not None
    if max_iters is None:
        max_iters = chosen.default_iterations(problem) if budget is None else UNLIMITED
    loop = Loop(lowered, max_iters, tol, budget, callback, trace)
    if lowered.infeasible:
        q = starting_point(field, lowered, "uniform", seed, full=True)
        return _result(field, loop, chosen, q, Outcome(q, np.inf, Status.INFEASIBLE))
    session = Session(
        problem=problem,
        loop=loop,
        start=starting_point(field, lowered, init, seed),
        kernels=kernels,
        dtype=dtype,
        threads=threads,
        keep=keep,
        limited=limited,
    )
    with device_memory(kernels, lowered):
        outcome = solve(session, chosen)
    rough = lowered.layout.size <= DOUBLE_CHECKED and not session.program.sums_in_double
    if dtype == "float32" and rough and np.isfinite(outcome.free_energy):
        outcome = in_double(outcome, lowered, kernels)
    return _result(field, loop, chosen, lowered.reduction.expand(outcome.q), outcome)


def solve(session: Session, rule: Rule) -> Outcome:
    """Run a rule; where configurations are forbidden, around them."""
    if session.problem.lowered.hard:
        from proxfield.hard import solve_hard

        return solve_hard(session, rule)
    return rule.solve(session)


def on_gpu(kernels: str) -> bool:
    """Is this the kernel set of a GPU?"""
    return kernels.partition(":")[0] == "cuda"


def choose_kernels(device: Any, kernels: str | None, dtype: Any) -> tuple[str, str]:
    """Names of the kernel set and the floating-point type for a device.

    Example:
        >>> choose_kernels("cpu", None, None)
        ('cpu', 'float64')
    """
    device = str(device)
    if device != "cpu":
        from proxfield.gpu.backend import find_device

        find_device(device)
        if kernels is not None and not on_gpu(kernels):
            raise InputError(f"kernels={kernels!r} don't run on device {device!r}")
        kernels = device
    kernels = "cpu" if kernels is None else kernels
    if dtype is None:
        return kernels, "float32" if on_gpu(kernels) else "float64"
    return kernels, dtype if isinstance(dtype, str) else np.dtype(dtype).name


def moved(lowered: Lowered, kernels: str, dtype: str) -> Lowered:
    """The field with its filters on a GPU, so that λ and F are those of what iterates there."""
    from proxfield.gpu.backend import find_device
    from proxfield.gpu.plans import attach

    with device_memory(kernels, lowered):
        return attach(lowered, dtype, find_device(kernels))


def device_memory(kernels: str, lowered: Lowered) -> AbstractContextManager[None]:
    """On a GPU, a context that says what would fit when its memory runs out."""
    if not on_gpu(kernels):
        return nullcontext()
    from proxfield.gpu.backend import memory_errors

    n = lowered.layout.n_vars
    held = sum(term.nbytes for term in lowered.terms) + 40 * lowered.layout.size
    return memory_errors("the field", held / max(1, n), n)


def in_double(outcome: Outcome, lowered: Lowered, kernels: str) -> Outcome:
    """The same marginals, normalised in float64, and F of exactly these: a bound must be one."""
    q = lowered.layout.normalise(np.asarray(outcome.q, dtype=np.float64))
    program = compile_program(lowered, kernels)
    return replace(outcome, q=q, free_energy=program.free_energy(program.start(q)))


def _result(
    field: Field, loop: Loop, rule: Rule, q: NDArray[np.float64], outcome: Outcome
) -> Result:
    return Result(
        field=field,
        q=q,
        free_energy=float(outcome.free_energy),
        status=outcome.status,
        iterations=loop.iterations,
        seconds=loop.elapsed,
        rule=rule.name,
        params=rule.params,
        trace=loop.make_trace(),
        feasible=outcome.labels,
    )


def softmax_of(layout: Layout, energies: NDArray[Any]) -> NDArray[Any]:
    """q_i = softmax(−energies_i), in the energies' type where all variables are alike."""
    if layout.common is None or layout.common == 1 or layout.size < 2**16:
        return softmax(layout.owner, layout.offsets, energies)
    from proxfield.kernels.dense import softmax_rows
    from proxfield.kernels.simd import padded

    out = np.zeros_like(energies)
    softmax_rows(energies, layout.common, padded(layout.common), out)
    return out


def check_limits(
    max_iters: int | None, tol: float, budget: float | None, threads: int | None
) -> None:
    """Raise `InputError` for limits that make no sense."""
    whole = max_iters is None or (max_iters >= 0 and int(max_iters) == max_iters)
    if isinstance(max_iters, bool) or not whole:
        raise InputError(f"max_iters={max_iters!r}, expected a whole number, 0 or more")
    if not tol >= 0:
        raise InputError(f"tol={tol!r}, expected 0 or more")
    if budget is not None and not budget > 0:
        raise InputError(f"budget={budget!r}, expected seconds above 0")
    if threads is not None and threads < 1:
        raise InputError(f"threads={threads!r}, expected 1 or more")


def starting_point(
    field: Field, lowered: Lowered, init: Any, seed: int, *, full: bool = False
) -> NDArray[np.float64]:
    """Marginals to start from, over the lowered field (or the whole one).  # (size,)"""
    layout = field.layout if full else lowered.layout
    if isinstance(init, Result):
        if not np.array_equal(init.field.cardinalities, field.cardinalities):
            raise InputError("init is a result for variables with other numbers of labels")
        return lowered.reduction.restrict(init.q)
    if not isinstance(init, str):
        return lowered.reduction.restrict(field.flatten(init))
    if init == "uniform":
        return np.repeat(1.0 / layout.cardinalities, layout.cardinalities)
    if init == "possible":
        weight = np.isfinite(lowered.unary).astype(np.float64)
        return layout.normalise(weight)
    if init == "unary":
        return softmax_of(layout, lowered.unary)
    if init == "random":
        noise = np.random.default_rng(seed).exponential(size=layout.size)
        return layout.normalise(noise)
    raise InputError(
        f"init={init!r}, expected uniform, possible, unary, random, marginals or a Result"
    )
