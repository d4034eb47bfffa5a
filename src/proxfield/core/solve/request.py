"""What `infer` is asked for, checked: start, limits, kernels, device; and its session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from dataclasses import field as field_of
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from proxfield.core.common.checks import is_real, is_whole
from proxfield.core.common.logs import log
from proxfield.core.devices.base import find
from proxfield.core.engines.base import softmax, softmax_rows
from proxfield.core.engines.registry import ENGINES, Placement, on_host, placed, program_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.history import Callback, Clock, Limits
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.rules.base import Problem, Rule
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Doubles, Layout
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.result import Result, Status

UNLIMITED = 2**62
MAX_THREADS = 2**15
NEVER = -1.0
"""A tolerance that no change of q is below: nothing is tested for being a fixed point."""
CURVATURE_SHARE = 0.2
"""Of the budget, for finding λ; where that isn't enough the bound from the tables serves."""
INITS = "expected uniform, possible, unary, random, marginals or a Result"
Start = str | Result | ArrayLike | Sequence[ArrayLike]
"""Where to start: a word, a result, or marginals, of each variable where labels differ."""
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_iters": (lambda x: x is None or (is_whole(x) and x >= 0), "a whole number, 0 or more"),
    "tol": (lambda x: x is None or bool(is_real(x) and x >= 0), "a number, 0 or more"),
    "budget": (lambda x: x is None or bool(is_real(x) and x > 0), "seconds above 0"),
    "threads": (lambda x: x is None or (is_whole(x) and x >= 1), "a whole number, 1 or more"),
    "seed": (
        lambda x: isinstance(x, (int, np.integer)) and not isinstance(x, bool) and bool(x >= 0),
        "a whole number, 0 or more",
    ),
    "callback": (lambda x: x is None or callable(x), "a function"),
    "keep": (lambda x: isinstance(x, str) and x in ("last", "best"), "last or best"),
    "modes": (lambda x: is_whole(x) and x >= 1, "a whole number, 1 or more"),
    "trace": (lambda x: isinstance(x, (bool, np.bool_)), "True or False"),
    "progress": (lambda x: isinstance(x, (bool, np.bool_)), "True or False"),
}
"""Arguments of `infer` and its like: what is valid, and how messages call it."""


@dataclass(frozen=True)
class Request:
    """What `infer` was asked for; the same for many fields. Checked when it is made."""

    rule: Rule
    kernels: str = "cpu"
    """The kernel set, with its device unless that is the host; see `choose_kernels`."""
    dtype: str = "float64"
    by_user: bool = False
    """Whether the user chose the kernel set."""
    init: Start = "uniform"
    max_iters: int | None = None
    tol: float | None = 1e-6
    budget: float | None = None
    callback: Callback | None = None
    seed: int = 0
    threads: int | None = None
    keep: str = "last"
    trace: bool = True
    now: Clock = field_of(default_factory=lambda: time.perf_counter)

    def __post_init__(self) -> None:
        check_limits(self.max_iters, self.tol, self.budget, self.threads)
        check(seed=self.seed, trace=self.trace, callback=self.callback, keep=self.keep)
        most, threads = self.max_iters, self.threads
        vars(self).update(
            max_iters=None if most is None else min(int(most), UNLIMITED),
            threads=None if threads is None else min(int(threads), MAX_THREADS),
            budget=as_budget(self.budget),
            seed=int(self.seed),
            trace=bool(self.trace),
        )

    @property
    def tolerance(self) -> float:
        """The tolerance as a number; no change of q is below that of None."""
        return NEVER if self.tol is None else float(self.tol)

    def asked(self, status: Status) -> str:
        """`Result.asked` of a result with this status."""
        if status is not Status.MAX_ITERS or self.tol is not None:
            return ""
        return "the rule's default number" if self.max_iters is None else "as asked"

    def note_compiled(self, session: Session) -> None:
        """Remember, for later requests, that the rule's kernels for such fields are compiled."""
        if self.kernels == "cpu" and session.made is not None:
            from proxfield.core.engines.lazy import note_rule

            note_rule(session.made, self.rule.name)

    def open(self, field: Field, init: Start | None = None) -> Session:
        """The session of one field, from ``init`` or the request's start.

        Where no labelling is possible, it starts uniform.
        """
        log.debug("%r on kernels %s in %s, seed %d", self.rule, self.kernels, self.dtype, self.seed)
        lowered = field.lower()
        if on_gpu(self.kernels):
            lowered = moved(lowered, self.kernels, self.dtype)
        kernels = self.kernels
        # a small field perhaps by numpy, while nothing is compiled, unless the user chose kernels
        # or a budget in which compiled ones would do more
        if kernels == "cpu" and not self.by_user and self.budget is None:
            from proxfield.core.engines.lazy import suits  # imports numba

            kernels = "lazy" if suits(lowered, self.dtype, self.rule.name) else kernels
        engine, host = placed(self.kernels).engine, on_host(kernels)
        curvature = Curvature(lowered, field, host, now=self.now)
        if self.budget is not None:
            curvature.seconds = CURVATURE_SHARE * self.budget
            curvature.stepwise = host == kernels
        if engine.triton:  # finds λ of large fields
            made = partial(program_for, kernels=kernels, dtype=self.dtype, threads=self.threads)
            curvature.program = made
        problem = Problem(lowered, curvature, self.seed, engine.plain_chains)
        limited = self.max_iters is not None or self.budget is not None
        most = self.max_iters
        if most is None:
            most = UNLIMITED if limited else self.rule.default_iterations(problem)
        limits = Limits(most, self.tolerance, self.budget)
        loop = Loop(limits, self.callback, self.trace, lowered.reduction.expand, self.now)
        impossible = lowered.infeasible
        init = "uniform" if impossible else self.init if init is None else init
        start = starting_point(field, lowered, init, self.seed, full=impossible)
        dtype, threads = self.dtype, self.threads
        return Session(problem, loop, limits, start, kernels, dtype, threads, self.keep, limited)


def on_gpu(kernels: str) -> bool:
    """Do the field's filters move to a device too, and do batches iterate there?"""
    return placed(kernels).engine.triton


def choose_kernels(device: object, kernels: str | None, dtype: DTypeLike | None) -> tuple[str, str]:
    """Names of the engine, with its device unless that is the host, and of the dtype."""
    if type(device).__module__ == "torch":  # a torch.device, known without importing torch
        device = str(device)
    if not isinstance(device, str):
        raise InputError(f"device={shown(device)}, expected cpu, cuda or cuda:1 and the like")
    if not (kernels is None or isinstance(kernels, str)):
        raise InputError(f"kernels={shown(kernels)}, expected reference, cpu, cuda or torch")
    name = (kernels or "").partition(":")[0]
    if kernels is not None and name not in ENGINES:
        raise InputError(f"unknown kernels {shown(kernels)}, expected one of: {', '.join(ENGINES)}")
    if device == "cpu":
        place = placed("cpu" if kernels is None else kernels)
        place.device.check()
    else:
        where = find(device, any_of_torch=name in ENGINES and ENGINES[name].anywhere)
        where.check()
        if name and name not in where.engines:
            raise InputError(
                f"kernels={kernels!r} don't run on device {device!r}; leave them out, or use "
                "device cpu"
            )
        place = Placement(name or where.engines[0], where)
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
    from proxfield.core.engines.triton.terms.gaussian import attach

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


def check(**given: object) -> None:
    """Raise `InputError` for arguments of `infer` that make no sense; see `CHECKS`."""
    for name, value in given.items():
        valid, expected = CHECKS[name]
        if not valid(value):
            raise InputError(f"{name}={shown(value)}, expected {expected}")


def check_limits(max_iters: object, tol: object, budget: object, threads: object) -> None:
    """Raise `InputError` for limits that make no sense."""
    check(max_iters=max_iters, tol=tol, budget=budget, threads=threads)


def as_budget(value: float | None) -> float | None:
    """Seconds as a float; an infinite budget is none."""
    return None if value is None or value == np.inf else float(value)


def starting_point(
    field: Field, lowered: Lowered, init: Start, seed: int, *, full: bool = False
) -> Doubles:
    """Marginals to start from, over the lowered field (or the whole one).  # (size,)"""
    layout = field.layout if full else lowered.layout
    if isinstance(init, str):
        return observed(field, layout, named_start(layout, lowered, init, seed))
    if isinstance(init, Result):
        if not np.array_equal(init.field.cardinalities, field.cardinalities):
            raise InputError("init is a result for variables with other numbers of labels")
        given = init.modes[0].q if init.modes else init.q  # of a mixture, its heaviest part
    else:
        try:
            given = field.flatten(init)
        except InputError:
            raise
        except (TypeError, ValueError):
            raise InputError(f"init={shown(init)}, {INITS}") from None
    return observed(field, layout, lowered.reduction.restrict(given))


def observed(field: Field, layout: Layout, q: Doubles) -> Doubles:
    """Marginals with observed variables at their labels, where they weren't taken out."""
    seen = np.flatnonzero(field.evidence >= 0)
    if layout.size == field.layout.size and len(seen):  # nothing was taken out
        q = np.array(q, dtype=np.float64)
        q[np.isin(layout.owner, seen)] = 0.0
        q[layout.offsets[seen] + field.evidence[seen]] = 1.0
    return q


def named_start(layout: Layout, lowered: Lowered, init: str, seed: int) -> Doubles:
    """Marginals by one of the words that `infer` knows.  # (layout.size,)"""
    if init == "uniform":
        if layout.common:
            return np.full(layout.size, 1.0 / layout.common)
        return np.repeat(1.0 / layout.cardinalities, layout.cardinalities)
    if init == "possible":
        weight = np.isfinite(lowered.unary).astype(np.float64)
        return layout.normalize(weight)
    if init == "unary":
        # in the energies' type where all variables are alike
        if layout.common is None or layout.common == 1 or layout.size < 2**16:
            return softmax(layout.owner, layout.offsets, lowered.unary)
        return np.asarray(softmax_rows(lowered.unary, layout.common))
    if init == "random":
        noise = np.random.default_rng(seed).exponential(size=layout.size)
        return layout.normalize(noise)
    raise InputError(f"init={shown(init)}, {INITS}")
