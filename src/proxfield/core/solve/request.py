"""What `infer` is asked for, checked: limits, kernels, device; and the session that it opens."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from dataclasses import field as field_of
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from proxfield.core.common.checks import is_real, is_whole
from proxfield.core.common.logs import log
from proxfield.core.devices.base import find
from proxfield.core.engines.registry import ENGINES, Placement, on_host, placed, program_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.history import Callback, Limits
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.pace import Clock
from proxfield.core.solve.problem import Problem
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.session import Session
from proxfield.core.solve.starts import Start, starting_point
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.result import Status

UNLIMITED = 2**62
MAX_THREADS = 2**15
NEVER = -1.0
"""A tolerance that no change of q is below: nothing is tested for being a fixed point."""
CURVATURE_SHARE = 0.2
"""Of the budget, for finding λ; where that isn't enough the bound from the tables serves."""


class Place(NamedTuple):
    """Where an inference runs.

    Attributes:
        kernels: The kernel set, with its device unless that is the host.
        dtype: The floating-point type.
        by_user: Whether the user chose the kernel set.
    """

    kernels: str
    dtype: str
    by_user: bool


ON_HOST = Place("cpu", "float64", False)


@dataclass(frozen=True)
class Request:
    """What `infer` was asked for; the same for many fields. Checked when it is made.

    Args:
        rule: The rule.
        place: Where it runs, see `choose_place`.
        init: As in `infer`, like all that follow.
        now: The clock; processes that must agree on when to stop give another one.
    """

    rule: Rule
    place: Place = ON_HOST
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
        seed, keep, trace = self.seed, self.keep, self.trace
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InputError(f"seed={shown(seed)}, expected a whole number, 0 or more")
        if not isinstance(trace, (bool, np.bool_)):
            raise InputError(f"trace={shown(trace)}, expected True or False")
        if self.callback is not None and not callable(self.callback):
            raise InputError(f"callback={shown(self.callback)}, expected a function")
        if not isinstance(keep, str) or keep not in ("last", "best"):
            raise InputError(f"keep={shown(keep)}, expected last or best")
        checked = {
            "max_iters": as_int(self.max_iters, UNLIMITED),
            "threads": as_int(self.threads, MAX_THREADS),
            "budget": as_budget(self.budget),
            "seed": int(seed),
            "trace": bool(trace),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def kernels(self) -> str:
        """The kernel set, with its device unless that is the host."""
        return self.place.kernels

    @property
    def dtype(self) -> str:
        """The floating-point type."""
        return self.place.dtype

    @property
    def lazy(self) -> bool:
        """Whether small fields may be answered in numpy while nothing is compiled: the user chose
        no kernels, and no budget in which compiled ones would do more."""
        return self.kernels == "cpu" and not self.place.by_user and self.budget is None

    @property
    def tolerance(self) -> float:
        """The tolerance as a number; no change of q is below that of None."""
        return NEVER if self.tol is None else float(self.tol)

    def asked(self, status: Status) -> str:
        """`Result.asked` of a result with this status."""
        if status is not Status.MAX_ITERS or self.tol is not None:
            return ""
        return "the rule's default number" if self.max_iters is None else "as asked"

    def kernels_for(self, lowered: Lowered) -> str:
        """The engine that iterates a field."""
        if self.lazy:
            from proxfield.core.engines.lazy import suits  # imports numba

            return "lazy" if suits(lowered, self.dtype, self.rule.name) else self.kernels
        return self.kernels

    def note_compiled(self, session: Session) -> None:
        """Remember, for later requests, that the rule's kernels for such fields are compiled."""
        if self.kernels == "cpu" and session.made is not None:
            from proxfield.core.engines.lazy import note_rule

            note_rule(session.made, self.rule.name)

    def open(self, field: Field, init: Start | None = None) -> Session:
        """The session of one field; where no labelling is possible, it starts uniform.

        Args:
            field: The field.
            init: Instead of the request's.
        """
        log.debug("%r on kernels %s in %s, seed %d", self.rule, self.kernels, self.dtype, self.seed)
        lowered = field.lower()
        if on_gpu(self.kernels):
            lowered = moved(lowered, self.kernels, self.dtype)
        hurry = np.inf if self.budget is None else CURVATURE_SHARE * self.budget
        kernels = self.kernels_for(lowered)
        host = on_host(kernels)  # finds λ
        at_once = self.budget is not None and host == kernels
        device = None  # where λ of large fields is found
        if on_gpu(self.kernels):
            device = partial(
                program_for, kernels=self.kernels, dtype=self.dtype, threads=self.threads
            )
        curvature = Curvature(lowered, field, host, hurry, self.now, at_once, device)
        plain_chains = placed(self.kernels).engine.plain_chains
        problem = Problem(lowered, curvature, self.seed, plain_chains)
        max_iters = self.max_iters
        if max_iters is None:
            unlimited = self.budget is not None
            max_iters = UNLIMITED if unlimited else self.rule.default_iterations(problem)
        limits = Limits(max_iters, self.tolerance, self.budget)
        init = self.init if init is None else init
        if lowered.infeasible:
            init = "uniform"
        start = starting_point(field, lowered, init, self.seed, full=lowered.infeasible)
        return Session(
            problem=problem,
            loop=Loop(
                limits,
                self.callback,
                self.trace,
                lowered.reduction.expand,
                self.now,
            ),
            limits=limits,
            start=start,
            kernels=kernels,
            dtype=self.dtype,
            threads=self.threads,
            keep=self.keep,
            limited=self.max_iters is not None or self.budget is not None,
        )


def on_gpu(kernels: str) -> bool:
    """Do the field's filters move to a device too, and do batches iterate there?"""
    return placed(kernels).engine.triton


def choose_place(device: object, kernels: str | None, dtype: DTypeLike | None) -> Place:
    """Where an inference runs that was asked for like this, see `infer`."""
    return Place(*choose_kernels(device, kernels, dtype), kernels is not None)


def choose_kernels(device: object, kernels: str | None, dtype: DTypeLike | None) -> tuple[str, str]:
    """Names of the engine, with its device unless that is the host, and of the dtype.

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
    if kernels is not None and kernels.partition(":")[0] not in ENGINES:
        raise InputError(f"unknown kernels {shown(kernels)}, expected one of: {', '.join(ENGINES)}")
    if device == "cpu":
        place = placed("cpu" if kernels is None else kernels)
        place.device.check()
    else:
        name = "" if kernels is None else kernels.partition(":")[0]
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


def check_limits(max_iters: Any, tol: Any, budget: Any, threads: Any) -> None:
    """Raise `InputError` for limits that make no sense."""
    if max_iters is not None and not (is_whole(max_iters) and max_iters >= 0):
        raise InputError(f"max_iters={shown(max_iters)}, expected a whole number, 0 or more")
    if tol is not None and not (is_real(tol) and tol >= 0):
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
