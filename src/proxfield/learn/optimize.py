"""How parameters are found: by L-BFGS of scipy, or by Adam with persistent Gibbs chains.

Both tell of their progress, and end at Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles, Ints
from proxfield.core.common.checks import is_real, whole_number
from proxfield.errors import InputError, shown
from proxfield.learn.structure import Structure, prepare
from proxfield.learn.tied import Parameters, TiedField

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


# ---- persistent chains ----

HELD = 1 << 62
"""First random number of chains that hold known labels: they draw others than free ones."""


class FactorSlots(NamedTuple):
    """Factors of several variables by variable; a slot is a factor and a position in its scope."""

    ptr: Ints  # first slot of each variable  # (n + 1,)
    factor: NDArray[np.int32]  # (slots,)
    place: NDArray[np.int16]  # (slots,)
    scope_ptr: Ints  # first variable of each factor's scope
    scope: NDArray[np.int32]  # variables of the scopes
    base: NDArray[np.int32]  # of each factor in w
    kind: NDArray[np.int16]
    strides: Ints  # of each kind


class GibbsChains:
    """Gibbs chains over all instances, which go on from where they are.

    With ``hold`` known labels are kept: chains of the unknown ones given these.
    """

    def __init__(self, structure: Structure, n_chains: int, seed: int, hold: bool = False) -> None:
        s = self.structure = structure
        several = [f for k, f in sorted(s.factors.items()) if k > 1]
        sizes = [np.full(len(f.base), f.variables.shape[1]) for f in several]
        scope_ptr = np.concatenate([[0], np.cumsum(_joined(sizes, np.int64))]).astype(np.int64)
        scope = _joined([f.variables.ravel() for f in several], np.int32)
        order = np.argsort(scope, kind="stable")
        factor = np.repeat(np.arange(len(scope_ptr) - 1, dtype=np.int32), np.diff(scope_ptr))[order]
        self.slots = FactorSlots(
            np.concatenate([[0], np.cumsum(np.bincount(scope, minlength=s.n_vars))]).astype(
                np.int64
            ),
            factor,
            (order - scope_ptr[factor]).astype(np.int16),
            scope_ptr,
            scope,
            _joined([f.base for f in several], np.int32),
            _joined([f.kind for f in several], np.int16),
            several[0].strides if several else s.order(2).strides,
        )
        self.other = scope[order ^ 1] if s.binary else scope[:0]
        """The other end of each slot, of pairs.  # (slots,)"""
        self.held = (s.labels >= 0) if hold else np.zeros(s.n_vars, dtype=bool)
        self.seed, self.first, self.sweeps = np.uint64(seed % 2**64), (HELD if hold else 0), 0
        rng = np.random.default_rng([seed, int(hold)])
        start = (rng.random((n_chains, s.n_vars)) * np.diff(s.offsets)).astype(np.int64)
        self.x: NDArray[np.int64] = np.where(s.labels >= 0, s.labels, start)
        """Labels of each chain.  # (n_chains, n)"""

    def sweep(self, w: Doubles, sweeps: int = 1) -> None:
        """Make sweeps of all chains under these tables."""
        from proxfield.core.engines.numba import tied
        from proxfield.learn import kernels

        s, slots = self.structure, self.slots
        move: Callable[..., None]
        if s.binary:
            h, j = tied.as_spins(w, s.order(1), s.order(2), s.offsets)
            move = partial(kernels.gibbs_binary, h, slots.ptr, self.other, j[slots.factor])
        else:
            unary = np.zeros(s.offsets[-1])
            tied.add_gradient(w, s.order(1), s.offsets, unary, unary)
            move = partial(kernels.gibbs, w, unary, s.offsets, slots)
        for _ in range(sweeps):
            for x in self.x:
                move(self.held, self.seed, np.uint64(self.first + self.sweeps * s.n_vars), x)
                self.sweeps += 1

    def counts(self) -> Doubles:
        """How often each entry of the tables occurs, the mean over chains.  # (n_entries,)"""
        from proxfield.learn.kernels import count_labels

        out = np.zeros(self.structure.n_entries)
        for x in self.x:
            for f in self.structure.factors.values():
                count_labels(f, x, 1.0 / len(self.x), out)
        return out


def _joined(parts: list[Array], dtype: type) -> Array:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts]).astype(dtype)


def fit_chains(
    instances: Iterable[TiedField] | Structure,
    parameters: Parameters,
    *,
    l2: float = 1.0,
    max_iters: int = 200,
    sweeps: int = 1,
    n_chains: int = 1,
    rate: float = 0.03,
    seed: int = 0,
    fixed: Collection[str] = (),
    callback: Callback | None = None,
) -> Parameters:
    """Maximum likelihood with expectations from persistent chains, by Adam.

    The gradient of −log p(y) is the counts of y minus the expected counts under the model, of which
    chains that continue from iteration to iteration give a noisy value. Where labels aren't known,
    a second set of chains draws them given those that are.

    Args:
        instances: Instances with labels, or what `prepare` made of them.
        parameters: Where to start; those of `fit_pseudo` are usual.
        l2: Weight of the squared norm of the parameters.
        max_iters: Number of iterations.
        sweeps: Gibbs sweeps of all variables per iteration.
        n_chains: Chains per instance.
        rate: The first step of Adam, in units of the parameters; it falls to a hundredth.
        seed: Random seed.
        fixed: Names of parameters that stay as they are.
        callback: Called with a `FitProgress` after each iteration (its objective is NaN); true
            ends the fit.

    Returns:
        The mean of the parameters over the second half of the iterations; after Ctrl-C over those
        that were made.

    Example:
        >>> from proxfield.learn import Block
        >>> chain = Block("smooth", [[0, 1], [1, 2], [2, 3]], index=[0, 0, 0], form="potts")
        >>> instance = TiedField([2, 2, 2, 2], [chain], labels=[0, 0, 1, 1])
        >>> fit_chains([instance], {"smooth": np.zeros(1)})["smooth"] > 0
        array([ True])
    """
    structure = prepare(instances)
    start = structure.start(parameters)
    check_limits(l2, max_iters)
    whole_number(sweeps, "sweeps", 1)
    whole_number(n_chains, "n_chains", 1)
    whole_number(seed, "seed", 0)
    if not is_real(rate) or not 0 < rate < np.inf:
        raise InputError(f"rate={shown(rate)}, expected a number above 0")
    packing, watch = Packing(start, fixed), FitWatch("chains", callback)
    x = packing.pack(start)
    mean, square, scale = np.zeros_like(x), np.zeros_like(x), 1.0 / structure.n_known
    free = GibbsChains(structure, n_chains, seed)
    given = GibbsChains(structure, n_chains, seed, hold=True)
    complete = bool((structure.labels >= 0).all())
    truth = given.counts()
    total, count = np.zeros_like(x), 0
    with stoppable():
        for iteration in range(max_iters):
            w = structure.tables(packing.unpack(x))
            free.sweep(w, sweeps)
            if not complete:
                given.sweep(w, sweeps)
                truth = given.counts()
            gradient = packing.pack(structure.pull(truth - free.counts())) + l2 * x
            # Adam, whose rate falls to a hundredth of the first by half a cosine
            slope, t = gradient * scale, iteration + 1
            mean += 0.1 * (slope - mean)
            square += 0.01 * (slope * slope - square)
            now = rate * (0.01 + 0.99 * (0.5 * (1.0 + np.cos(np.pi * iteration / max_iters))))
            root = np.sqrt(square / (1.0 - 0.99**t)) + 1e-12
            x = np.asarray(x - now * (mean / (1.0 - 0.9**t)) / root)
            if 2 * iteration >= max_iters:
                total += x
                count += 1
            watch.see(x, np.nan, gradient)
            watch.tell()
    return packing.unpack(total / count if count else x)
