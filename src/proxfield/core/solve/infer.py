"""`infer`: from a field, a rule and limits to a `Result`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from proxfield.core.common.logs import log
from proxfield.core.engines.registry import program_for
from proxfield.core.solve.history import Callback
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.progress import watching
from proxfield.core.solve.request import (
    Request,
    Start,
    check,
    choose_kernels,
    device_memory,
    on_gpu,
)
from proxfield.core.solve.rules.base import Outcome, Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.session import Session
from proxfield.errors import InputError, InputTypeError, UnsupportedError
from proxfield.field import Field
from proxfield.result import Result, Status

if TYPE_CHECKING:
    from proxfield.core.solve.search.cells import Cell

MAX_DOUBLE_CHECK = 2**20
"""Entries up to which F of a float32 result is evaluated again in float64."""


def infer(
    field: Field,
    rule: str | Rule | type[Rule] = "auto",
    *,
    init: Start = "uniform",
    max_iters: int | None = None,
    tol: float | None = 1e-6,
    budget: float | None = None,
    callback: Callback | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    kernels: str | None = None,
    dtype: str | None = None,
    keep: str = "last",
    modes: int = 1,
    trace: bool = True,
    progress: bool = False,
    **params: Any,
) -> Result:
    """Mean-field inference: marginals, a labelling and a certified bound on log Z.

    Args:
        field: The field.
        rule: A name (see `proxfield.RULES`), a rule's class, or a rule.
        init: "uniform" (over all labels, as in the paper), "possible" (over labels whose
            unary energy is finite), "unary" (softmax of the unary energies), "random"
            (seeded), marginals in any accepted form, or a `Result` to continue from.
        max_iters: Maximum number of updates (sweeps, for sweep and colored). By default
            unlimited if there is a budget, else the rule's default (1000 for most).
        tol: Stop at a fixed point: where no entry of softmax(−g(q)) differs from q by more. In
            float32, what its rounding of energies causes is added. None: test nothing and make
            ``max_iters`` updates, as published dense CRFs do.
        budget: Time budget in seconds, excluding what `Result.setup_seconds` holds: building,
            loading, compilation, and F of the start. What isn't expected to end in time is not
            begun, so a budget shorter than an iteration returns the start; a sweep may be cut.
        callback: Called about 20 times a second with a `Progress`; returning something
            true stops the inference.
        seed: Random seed.
        threads: Maximum number of threads; all cores by default. Small fields use one.
        device: "cpu", "cuda" or "cuda:1" (with the extra ``gpu``); for the kernels "torch", any
            device of torch ("mps").
        kernels: "cpu" (numba), "reference" (numpy), "cuda" (Triton) or "torch" (plain torch);
            by default what suits the device.
        dtype: "float64" or "float32" (half the memory, float64 sums); by default float64 on the
            CPU and float32 on a GPU.
        keep: "last" returns the last state; "best" the one of lowest F seen, for rules that may
            go up.
        modes: Maximum number of modes, with the rule auto. Above 1, the result is a mixture of mean
            fields over disjoint cells of all labellings (`Result.modes`): a better bound, and
            marginals that know several minima of F.
        trace: Keep F of every state; False saves some time per iteration.
        progress: Show a bar: in a notebook, or on stderr if that is a terminal.
        **params: Parameters of a rule given by name or class.

    Returns:
        A `Result`. Ctrl-C returns the state of lowest F seen, with the status INTERRUPTED; while
        the field is still being built there is none, and KeyboardInterrupt is raised.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(4, n_labels=2).add(pf.Unary([[0, 1.0]] * 4))
        >>> field = field.add(pf.Potts([[0, 1], [1, 2], [2, 3], [3, 0]], -2.0))
        >>> result = pf.infer(field, "fixed", init="random")
        >>> result.converged, result.map_labels.sum()
        (True, np.int64(2))
        >>> result = pf.infer(field, modes=2)
        >>> sorted(mode.labels.tolist() for mode in result.modes)
        [[0, 1, 0, 1], [1, 0, 1, 0]]
        >>> bool(result.log_z_bound > pf.infer(field).log_z_bound)
        True
    """
    if not isinstance(field, Field):
        raise InputTypeError(f"infer takes a Field, not {type(field).__name__}")
    request = Request(
        make_rule(rule, params),
        *choose_kernels(device, kernels, dtype),
        kernels is not None,
        init=init,
        max_iters=max_iters,
        tol=tol,
        budget=budget,
        callback=callback,
        seed=seed,
        threads=threads,
        keep=keep,
        trace=trace,
    )
    check_modes(modes, request.rule)
    check(progress=progress)
    field = field.snapshot()  # a callback may add terms to the user's
    with watching(bool(progress), request.rule.name, callback) as showing:
        begun = request.now()
        request = replace(request, callback=showing)
        result = None
        if on_gpu(request.kernels):
            from proxfield.core.solve.whole import infer_whole

            result = infer_whole(field, request)
        if result is None:
            session = request.open(field)
            if modes > 1:
                from proxfield.core.solve.search.modes import infer_modes

                result = infer_modes(field, request, session, int(modes))
            else:
                result = infer_one(field, request, session)
            request.note_compiled(session)
        result.setup_seconds = max(0.0, request.now() - begun - result.seconds)
    return result


def check_modes(modes: int, rule: Rule) -> None:
    """Raise `InputError` unless this is a number of modes that the rule can look for."""
    check(modes=modes)
    if modes > 1 and not rule.explores:
        raise InputError(f"modes={modes} needs the rule auto, not {rule.name}")


def infer_one(field: Field, request: Request, session: Session) -> Result:
    """The result of a request for one field, in the session that it was opened for."""
    lowered = session.problem.lowered
    if lowered.infeasible:
        outcome = Outcome(session.start, np.inf, Status.INFEASIBLE)
        return finish(field, request, session, outcome)
    done: Outcome | None = None
    with device_memory(request.kernels, lowered):
        try:
            done = solve(session, request.rule)
            return finish(field, request, session, accurate(done, request, session))
        except KeyboardInterrupt:  # outside of an iteration: preparing, between stages, at the end
            best = interrupted(session)
            if done is not None and done.free_energy <= best.free_energy:
                best = replace(done, status=Status.INTERRUPTED)
        return finish(field, request, session, accurate(best, request, session))


def accurate(
    outcome: Outcome, request: Request, session: Session, cell: Cell | None = None
) -> Outcome:
    """An outcome whose bound is one: of small fields in float32, F is evaluated in float64.

    It is F of exactly these marginals, normalized in float64 (within a cell, if one is given).
    """
    lowered = session.problem.lowered
    exact = request.dtype != "float32" or session.program.sums_in_double
    if exact or lowered.layout.size > MAX_DOUBLE_CHECK or not np.isfinite(outcome.free_energy):
        return outcome
    q = outcome.q if cell is None else cell.condition(lowered.layout, outcome.q)
    q = lowered.layout.normalize(np.asarray(q, dtype=np.float64))
    program = program_for(lowered, session.kernels)
    return replace(outcome, q=q, free_energy=program.free_energy(program.start(q)))


def interrupted(session: Session) -> Outcome:
    """The best of what is known when Ctrl-C comes between two stages of an inference."""
    loop, program = session.loop, session.program
    known = [(program.free_energy(program.start(session.start)), session.start)]
    if loop.live is not None:
        live, state = loop.live
        known.append((live.free_energy(state), live.marginals(state)))
    known += [seen.recover() for seen in (loop.best, loop.earlier) if seen is not None]
    f, q = min((k for k in known if not np.isnan(k[0])), key=lambda item: item[0])
    return Outcome(q, f, Status.INTERRUPTED)


def solve(session: Session, rule: Rule) -> Outcome:
    """Run a rule; where configurations are forbidden, around them."""
    lowered = session.problem.lowered
    if not lowered.hard:
        return rule.solve(session)
    if lowered.extras:
        names = ", ".join(dict.fromkeys(t.name for t in lowered.extras))
        raise UnsupportedError(
            f"forbidden configurations together with a term that has no tables ({names}) are not "
            "supported; forbid single labels, or use a large finite energy"
        )
    from proxfield.core.solve.forbidden import solve_hard

    return solve_hard(session, rule)


def finish(field: Field, request: Request, session: Session, outcome: Outcome) -> Result:
    """The result of an outcome, in the user's numbering."""
    lowered = session.problem.lowered
    if not lowered.infeasible:
        outcome = replace(outcome, q=lowered.reduction.expand(outcome.q))
    return result_of(field, request, session.loop, outcome)


def result_of(field: Field, request: Request, loop: Loop, outcome: Outcome) -> Result:
    """The result of an outcome whose marginals are those of the user's variables."""
    result = Result(
        field=field,
        q=outcome.q,
        free_energy=float(outcome.free_energy),
        status=outcome.status,
        iterations=loop.iterations,
        seconds=loop.elapsed,
        rule=request.rule.name,
        params=request.rule.params,
        trace=loop.make_trace(),
        feasible=outcome.labels,
        kernels=request.kernels,
        asked=request.asked(outcome.status),
    )
    log.debug("%r", result)
    return result
