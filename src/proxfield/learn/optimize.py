"""Minimizing functions of parameters: L-BFGS of scipy and Adam, both with progress and Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.checks import is_real, whole_number
from proxfield.errors import InputError, shown
from proxfield.learn.tied import Parameters

Objective = Callable[[Parameters], tuple[float, Parameters]]
"""From parameters to a value and its gradient."""


@dataclass(frozen=True)
class FitProgress:
    """What a callback of a fit is told.

    Attributes:
        method: Name of the method.
        iteration: Iterations so far.
        objective: Value that is minimized; NaN for chains, which have none.
        gradient: Largest entry of the gradient, in size.
        seconds: Seconds since the method began.
    """

    method: str
    iteration: int
    objective: float
    gradient: float
    seconds: float


EVALUATIONS = 1.5
"""Evaluations of the objective per iteration, at most, on average: where marginals jump, line
searches make several for little."""

Callback = Callable[[FitProgress], object]
"""Called after each iteration; returning something true ends the fit."""


class Stopped(Exception):
    """A callback has ended a fit."""


_interrupts: ContextVar[list[bool] | None] = ContextVar("interrupts", default=None)


@contextmanager
def stoppable() -> Iterator[None]:
    """End the block at Ctrl-C, or where a callback asks for it; what comes after it goes on."""
    try:
        yield
    except Stopped:
        pass
    except KeyboardInterrupt:
        seen = _interrupts.get()
        if seen is not None:
            seen.append(True)


@contextmanager
def stages() -> Iterator[Callable[[], bool]]:
    """For fits of several methods: a function that says whether Ctrl-C has ended one of them.

    Example:
        >>> with stages() as interrupted:
        ...     with stoppable():
        ...         raise KeyboardInterrupt
        ...     interrupted()
        True
    """
    outer, seen = _interrupts.get(), list[bool]()
    token = _interrupts.set(seen)
    try:
        yield lambda: bool(seen)
    finally:
        _interrupts.reset(token)
        if outer is not None:
            outer.extend(seen)


def check_limits(l2: float, max_iters: int) -> None:
    """Raise `InputError` unless these are a penalty and a number of iterations."""
    if not is_real(l2) or not 0 <= l2 < np.inf:
        raise InputError(f"l2={shown(l2)}, expected a number, 0 or more")
    whole_number(max_iters, "max_iters", 0)


class Packing:
    """Parameters as one vector; those of fixed names are left out and keep their values."""

    def __init__(self, parameters: Parameters, fixed: Collection[str] = ()) -> None:
        if isinstance(fixed, str):
            raise InputError(f"fixed={fixed!r}, expected a collection of names")
        for name in fixed:
            if name not in parameters:
                raise InputError(f"fixed parameters {name!r} don't exist")
        self.parameters = parameters
        self.names = [name for name in parameters if name not in fixed]
        sizes = [parameters[name].size for name in self.names]
        self.ends = np.cumsum([0, *sizes])

    def pack(self, parameters: Parameters) -> Doubles:
        """One vector of the parameters that are learned."""
        parts = [np.asarray(parameters[name], dtype=np.float64).ravel() for name in self.names]
        return np.concatenate([np.zeros(0), *parts])

    def unpack(self, x: Doubles) -> Parameters:
        """All parameters, by name."""
        out = {name: value.copy() for name, value in self.parameters.items()}
        for name, start, stop in zip(self.names, self.ends[:-1], self.ends[1:], strict=True):
            out[name] = x[start:stop].reshape(out[name].shape).copy()
        return out


class FitWatch:
    """Counts iterations, knows the best parameters so far, and tells a callback."""

    def __init__(self, method: str, callback: Callback | None) -> None:
        self.method, self.callback = method, callback
        self.begun, self.iteration = time.perf_counter(), 0
        self.best = np.inf
        self.x: Doubles | None = None
        self.value, self.slope = np.inf, np.inf

    def see(self, x: Doubles, value: float, gradient: Doubles) -> None:
        self.value, self.slope = value, float(np.abs(gradient).max(initial=0.0))
        if value < self.best:
            self.best, self.x = value, x.copy()

    def tell(self) -> None:
        self.iteration += 1
        if self.callback is None:
            return
        seconds = time.perf_counter() - self.begun
        report = FitProgress(self.method, self.iteration, self.value, self.slope, seconds)
        if self.callback(report):
            raise Stopped


def minimize(
    objective: Objective,
    parameters: Parameters,
    *,
    l2: float,
    max_iters: int,
    tol: float,
    method: str,
    fixed: Collection[str] = (),
    callback: Callback | None = None,
) -> Parameters:
    """Minimize an objective + ½ l2 ‖parameters‖² by L-BFGS; arguments as for `fit_marginals`.

    Returns the best parameters seen, also after Ctrl-C.
    """
    from scipy.optimize import minimize as scipy_minimize

    check_limits(l2, max_iters)
    packing, watch = Packing(parameters, fixed), FitWatch(method, callback)
    start = packing.pack(parameters)
    if len(start) == 0 or max_iters == 0:
        return packing.unpack(start)

    def value(x: Doubles) -> tuple[float, Doubles]:
        f, g = objective(packing.unpack(x))
        flat = packing.pack(g) + l2 * x
        f += 0.5 * l2 * float(x @ x)
        if not np.isfinite(f):
            if watch.x is None:
                raise InputError(f"the objective of {method!r} is {f} at the start, not finite")
            return np.inf, np.zeros_like(x)  # a step too far: the line search comes back
        watch.see(x, f, flat)
        return f, flat

    with stoppable():
        scipy_minimize(
            value, start, jac=True, method="L-BFGS-B", callback=lambda _: watch.tell(),
            options={
                "maxiter": max_iters, "maxfun": int(EVALUATIONS * max_iters) + 10, "ftol": tol,
                "gtol": 1e-8,
            },
        )  # fmt: skip
    return packing.unpack(start if watch.x is None else watch.x)


class AdamSteps:
    """Adam; the rate of its steps falls to a hundredth of the first by half a cosine."""

    def __init__(self, size: int, rate: float, steps: int) -> None:
        self.mean, self.square = np.zeros(size), np.zeros(size)
        self.rate, self.steps, self.t = rate, max(1, steps), 0

    def move(self, x: Doubles, gradient: Doubles) -> Doubles:
        """The parameters after one step."""
        share = 0.5 * (1.0 + np.cos(np.pi * self.t / self.steps))
        self.t += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.01 * (gradient * gradient - self.square)
        mean = self.mean / (1.0 - 0.9**self.t)
        square = self.square / (1.0 - 0.99**self.t)
        rate = self.rate * (0.01 + 0.99 * share)
        return np.asarray(x - rate * mean / (np.sqrt(square) + 1e-12))
