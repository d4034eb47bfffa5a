"""`infer`: from a field, a rule and limits to a `Result`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from proxfield.backends.base import softmax
from proxfield.backends.cache import program_for
from proxfield.backends.registry import KERNELS, Placement, placed
from proxfield.common.checks import is_real, is_whole
from proxfield.common.logs import log
from proxfield.devices.registry import find
from proxfield.errors import InputError, InputTypeError, UnsupportedError, shown
from proxfield.field import Field
from proxfield.inference.curvature import Curvature
from proxfield.inference.history import Callback
from proxfield.inference.loop import Loop
from proxfield.inference.pace import Clock
from proxfield.inference.progress import watching
from proxfield.inference.session import Session
from proxfield.lowering.lowered import Lowered
from proxfield.result import Result, Status
from proxfield.rules.base import Rule
from proxfield.rules.registry import make_rule
from proxfield.rules.session import Outcome, Problem
from proxfield.terms.base import Floats, Layout

UNLIMITED = 2**62
MAX_THREADS = 2**15
MAX_DOUBLE_CHECK = 2**20
"""Entries up to which F of a float32 result is evaluated again in float64."""
INITS = "expected uniform, possible, unary, random, marginals or a Result"
CURVATURE_SHARE = 0.2
"""Of the budget, for finding λ; where that isn't enough the bound from the tables serves."""


Start = str | Result | ArrayLike | Sequence[ArrayLike]
"""Where to start: a word, a result, or marginals, of each variable where labels differ."""


def infer(
    field: Field,
    rule: str | Rule | type[Rule] = "auto",
    *,
    init: Start = "uniform",
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
            float32, what its rounding of energies causes is added.
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
    """
    if not isinstance(field, Field):
        raise InputTypeError(f"infer takes a Field, not {type(field).__name__}")
    request = Request.make(
        rule,
        params,
        device,
        init=init,
        max_iters=max_iters,
        tol=tol,
        budget=budget,
        callback=callback,
        seed=seed,
        threads=threads,
        kernels=kernels,
        dtype=dtype,
        keep=keep,
        trace=trace,
    )
    if not isinstance(progress, (bool, np.bool_)):
        raise InputError(f"progress={shown(progress)}, expected True or False")
    field = field.snapshot()  # a callback may add terms to the user's
    with watching(bool(progress), request.rule.name, callback) as showing:
        begun = request.now()
        request = replace(request, callback=showing)
        result = infer_one(field, request, request.open(field))
        result.setup_seconds = max(0.0, request.now() - begun - result.seconds)
    return result


@dataclass(frozen=True)
class Request:
    """What `infer` was asked for, checked; the same for many fields. Arguments as there."""

    rule: Rule
    init: Start
    max_iters: int | None
    tol: float
    budget: float | None
    callback: Callback | None
    seed: int
    threads: int | None
    kernels: str
    dtype: str
    keep: str
    trace: bool
    now: Clock
    """The clock; processes that must agree on when to stop give another one."""

    @classmethod
    def make(
        cls,
        rule: str | Rule | type[Rule],
        params: dict[str, Any],
        device: object,
        *,
        kernels: str | None,
        dtype: DTypeLike | None,
        now: Clock | None = None,
        **rest: Any,
    ) -> Request:
        """A request, or an `InputError` that says what makes no sense."""
        chosen = make_rule(rule, params)
        seed, keep, trace = rest["seed"], rest["keep"], rest["trace"]
        check_limits(rest["max_iters"], rest["tol"], rest["budget"], rest["threads"])
        rest.update(
            max_iters=as_int(rest["max_iters"], UNLIMITED),
            threads=as_int(rest["threads"], MAX_THREADS),
            tol=float(rest["tol"]),
            budget=as_budget(rest["budget"]),
        )
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InputError(f"seed={shown(seed)}, expected a whole number, 0 or more")
        if not isinstance(trace, (bool, np.bool_)):
            raise InputError(f"trace={shown(trace)}, expected True or False")
        if rest["callback"] is not None and not callable(rest["callback"]):
            raise InputError(f"callback={shown(rest['callback'])}, expected a function")
        kernels, dtype = choose_kernels(device, kernels, dtype)
        if not isinstance(keep, str) or keep not in ("last", "best"):
            raise InputError(f"keep={shown(keep)}, expected last or best")
        rest.update(seed=int(seed), trace=bool(trace))
        log.debug("%r on kernels %s in %s, seed %d", chosen, kernels, dtype, rest["seed"])
        clock = time.perf_counter if now is None else now
        return cls(chosen, kernels=kernels, dtype=dtype, now=clock, **rest)

    def open(self, field: Field, init: Start | None = None) -> Session:
        """The session of one field; where no labelling is possible, it starts uniform.

        Args:
            field: The field.
            init: Instead of the request's.
        """
        lowered = field.lower()
        if on_gpu(self.kernels):
            lowered = moved(lowered, self.kernels, self.dtype)
        hurry = np.inf if self.budget is None else CURVATURE_SHARE * self.budget
        host = "cpu" if placed(self.kernels).device.separate else self.kernels  # finds λ
        problem = Problem(lowered, Curvature(lowered, field, host, hurry, self.now), self.seed)
        max_iters = self.max_iters
        if max_iters is None:
            unlimited = self.budget is not None
            max_iters = UNLIMITED if unlimited else self.rule.default_iterations(problem)
        init = self.init if init is None else init
        if lowered.infeasible:
            init = "uniform"
        start = starting_point(field, lowered, init, self.seed, full=lowered.infeasible)
        return Session(
            problem=problem,
            loop=Loop(
                max_iters,
                self.tol,
                self.budget,
                self.callback,
                self.trace,
                lowered.reduction.expand,
                self.now,
            ),
            start=start,
            kernels=self.kernels,
            dtype=self.dtype,
            threads=self.threads,
            keep=self.keep,
            limited=self.max_iters is not None or self.budget is not None,
        )


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
            return completed(field, request, session, done)
        except KeyboardInterrupt:  # outside of an iteration: preparing, between stages, at the end
            best = interrupted(session)
            if done is not None and done.free_energy <= best.free_energy:
                best = replace(done, status=Status.INTERRUPTED)
        return completed(field, request, session, best)


def completed(field: Field, request: Request, session: Session, outcome: Outcome) -> Result:
    """The result of an outcome; of small fields in float32, with F in float64."""
    lowered = session.problem.lowered
    rough = lowered.layout.size <= MAX_DOUBLE_CHECK and not session.program.sums_in_double
    if request.dtype == "float32" and rough and np.isfinite(outcome.free_energy):
        outcome = in_double(outcome, lowered, request.kernels)
    return finish(field, request, session, outcome)


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
    if lowered.hard and lowered.extras:
        names = ", ".join(dict.fromkeys(t.name for t in lowered.extras))
        raise UnsupportedError(
            f"forbidden configurations together with a term that has no tables ({names}) are not "
            "supported; forbid single labels, or use a large finite energy"
        )
    if lowered.hard:
        from proxfield.inference.forbidden import solve_hard

        return solve_hard(session, rule)
    return rule.solve(session)


def on_gpu(kernels: str) -> bool:
    """Do the field's filters move to a device too, and do batches iterate there?"""
    return placed(kernels).kernels.triton


def choose_kernels(device: object, kernels: str | None, dtype: DTypeLike | None) -> tuple[str, str]:
    """Names of the kernel set, with its device unless that is the host, and of the dtype.

    Example:
        >>> choose_kernels("cpu", None, None)
        ('cpu', 'float64')
    """
    if type(device).__module__ == "torch":  # a torch.device, known without importing torch
        device = str(device)
    if not isinstance(device, str):
        raise InputError(f"device={shown(device)}, expected cpu, cuda or cuda:1 and the like")
    if not (kernels is None or isinstance(kernels, str)):
        raise InputError(f"kernels={shown(kernels)}, expected reference, cpu, cuda or torch")
    if device == "cpu":
        place = placed("cpu" if kernels is None else kernels)
        place.device.check()
    else:
        name = "" if kernels is None else kernels.partition(":")[0]
        where = find(device, any_of_torch=name in KERNELS and KERNELS[name].anywhere)
        where.check()
        if name and name not in where.kernel_sets:
            raise InputError(
                f"kernels={kernels!r} don't run on device {device!r}; leave them out, or use "
                "device cpu"
            )
        place = Placement(name or where.kernel_sets[0], where)
    kernels = str(place)
    if dtype is None:
        return kernels, place.device.dtype
    try:
        dtype = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    except Exception:  # numpy raises several kinds, and whatever the repr of a value raises
        raise InputError(f"dtype={shown(dtype)}, expected float32 or float64") from None
    if dtype == "float64" and not place.device.has_double:
        raise InputError(f"dtype='float64': device {place.device.name!r} has float32 only")
    return kernels, dtype


def moved(lowered: Lowered, kernels: str, dtype: str) -> Lowered:
    """The field with its filters on a GPU, so that λ and F are those of what iterates there."""
    from proxfield.backends.triton.attach import attach

    with device_memory(kernels, lowered):
        return attach(lowered, dtype, placed(kernels).device.handle())


def device_memory(kernels: str, *lowereds: Lowered) -> AbstractContextManager[None]:
    """On a device with its own memory, a context that says what would fit when that runs out."""
    device = placed(kernels).device
    if not device.separate:
        return nullcontext()
    n = sum(low.layout.n_vars for low in lowereds)
    held = sum(term.nbytes for low in lowereds for term in low.terms)
    held += 40 * sum(low.layout.size for low in lowereds)
    what = "the field" if len(lowereds) == 1 else f"a batch of {len(lowereds)} fields"
    return device.memory_errors(what, held / max(1, n), n)


def in_double(outcome: Outcome, lowered: Lowered, kernels: str) -> Outcome:
    """The same marginals, normalized in float64, and F of exactly these: a bound must be one."""
    q = lowered.layout.normalize(np.asarray(outcome.q, dtype=np.float64))
    program = program_for(lowered, kernels)
    return replace(outcome, q=q, free_energy=program.free_energy(program.start(q)))


def finish(field: Field, request: Request, session: Session, outcome: Outcome) -> Result:
    """The result of an outcome, in the user's numbering."""
    loop, lowered = session.loop, session.problem.lowered
    q = outcome.q if lowered.infeasible else lowered.reduction.expand(outcome.q)
    result = Result(
        field=field,
        q=q,
        free_energy=float(outcome.free_energy),
        status=outcome.status,
        iterations=loop.iterations,
        seconds=loop.elapsed,
        rule=request.rule.name,
        params=request.rule.params,
        trace=loop.make_trace(),
        feasible=outcome.labels,
        kernels=request.kernels,
    )
    log.debug("%r", result)
    return result


def softmax_of(layout: Layout, energies: Floats) -> NDArray[Any]:
    """q_i = softmax(−energies_i), in the energies' type where all variables are alike."""
    if layout.common is None or layout.common == 1 or layout.size < 2**16:
        return softmax(layout.owner, layout.offsets, energies)
    from proxfield.backends.numba.dense import softmax_rows
    from proxfield.compiled.simd import padded

    out = np.zeros_like(energies)
    softmax_rows(energies, layout.common, padded(layout.common), out)
    return out


def check_limits(max_iters: Any, tol: Any, budget: Any, threads: Any) -> None:
    """Raise `InputError` for limits that make no sense."""
    if max_iters is not None and not (is_whole(max_iters) and max_iters >= 0):
        raise InputError(f"max_iters={shown(max_iters)}, expected a whole number, 0 or more")
    if not is_real(tol) or not tol >= 0:
        raise InputError(f"tol={shown(tol)}, expected a number, 0 or more")
    if budget is not None and not (is_real(budget) and budget > 0):
        raise InputError(f"budget={shown(budget)}, expected seconds above 0")
    if threads is not None and not (is_whole(threads) and threads >= 1):
        raise InputError(f"threads={shown(threads)}, expected a whole number, 1 or more")


def as_int(value: Any, most: int) -> int | None:
    """A whole number as an int, cut to ``most``; None as it is."""
    return None if value is None else min(int(value), most)


def as_budget(value: Any) -> float | None:
    """Seconds as a float; an infinite budget is none."""
    return None if value is None or value == np.inf else float(value)


def starting_point(
    field: Field, lowered: Lowered, init: Start, seed: int, *, full: bool = False
) -> NDArray[np.float64]:
    """Marginals to start from, over the lowered field (or the whole one).  # (size,)"""
    layout = field.layout if full else lowered.layout
    q = named_start(layout, lowered, init, seed) if isinstance(init, str) else None
    if q is None:
        q = lowered.reduction.restrict(given_start(field, init))
    seen = np.flatnonzero(field.evidence >= 0)
    if layout.size == field.layout.size and len(seen):  # nothing was taken out
        q = np.array(q, dtype=np.float64)
        q[np.isin(layout.owner, seen)] = 0.0
        q[layout.offsets[seen] + field.evidence[seen]] = 1.0
    return q


def given_start(field: Field, init: Start) -> NDArray[np.float64]:
    """Marginals that the user gave, checked.  # (field.layout.size,)"""
    if isinstance(init, Result):
        if not np.array_equal(init.field.cardinalities, field.cardinalities):
            raise InputError("init is a result for variables with other numbers of labels")
        return init.q
    try:
        return field.flatten(init)
    except InputError:
        raise
    except (TypeError, ValueError):
        raise InputError(f"init={shown(init)}, {INITS}") from None


def named_start(layout: Layout, lowered: Lowered, init: str, seed: int) -> NDArray[np.float64]:
    """Marginals by one of the words that `infer` knows.  # (layout.size,)"""
    if init == "uniform":
        return np.repeat(1.0 / layout.cardinalities, layout.cardinalities)
    if init == "possible":
        weight = np.isfinite(lowered.unary).astype(np.float64)
        return layout.normalize(weight)
    if init == "unary":
        return softmax_of(layout, lowered.unary)
    if init == "random":
        noise = np.random.default_rng(seed).exponential(size=layout.size)
        return layout.normalize(noise)
    raise InputError(f"init={shown(init)}, {INITS}")
