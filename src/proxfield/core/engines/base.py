"""What every engine offers: programs that advance states by plans.

Plans say how a state moves (`proxfield.core.engines.plan`). The loop (`core.solve.loop`) drives a
`Batch`: one field or several that iterate together. A `Program` is the batch of one field, with
more that can be asked of it. Neither the loop nor `infer` knows kernels.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array
from proxfield.core.engines.plan import Chains, Explored, Order, Plan
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Doubles, Floats, Ints, Layout, missing, offers
from proxfield.errors import UnsupportedError

WARM_UP_SECONDS, WARM_UP_SWEEPS = 0.006, 3
"""Time for a few trial evaluations and chains before the clock starts, and sweeps of a chain."""
LARGE_SIZE = 10_000
"""Entries of a field above which iterations are made one at a time at first."""


@dataclass
class Rows:
    """What some updates did."""

    free_energy: NDArray[np.float64]  # F before each (NaN where it wasn't asked for)  # (k,)
    change: NDArray[np.float64]  # largest change of q over the step, by each  # (k,)
    period2: float = np.inf  # largest difference from two updates before, over the step

    def __len__(self) -> int:
        return len(self.change)

    @classmethod
    def joined(cls, rows: list[Rows]) -> Rows:
        """Those of some updates after another as one."""
        f = np.concatenate([r.free_energy for r in rows])
        return cls(f, np.concatenate([r.change for r in rows]), rows[-1].period2)


@dataclass
class State:
    """Where an inference stands. Engines keep their own arrays in ``arrays``."""

    arrays: Any
    memory: dict[str, Any] = field(default_factory=dict)
    earlier: Doubles | None = None
    """Marginals before the last update, where a plan is `Custom` and the arrays don't hold them."""


@dataclass(frozen=True)
class Tangent:
    """What the second-order test needs of a state, in arrays of the program's own device."""

    q: Array  # marginals in float64  # (size,)
    gradient: Callable[[Array], Array]  # dE/dq at other marginals  # (size,) -> (size,)
    sums: Callable[[Array], Array]  # each entry's sum over its variable  # (size,) -> (size,)
    where: Callable[[Array, Array, float], Array]  # as `numpy.where`
    from_host: Callable[[Doubles], Array]  # an array of numpy as one of the device
    to_host: Callable[[Array], Doubles]  # an array of the device as one of numpy


P = TypeVar("P", contravariant=True)
"""How states of a batch move: a `Plan`, or some kind of it."""
S = TypeVar("S")
"""States of a batch."""


class Updates(ABC, Generic[P, S]):
    """Fields whose states can be updated together: the least that the loop drives."""

    fields: int = 1
    """How many."""
    looks_every: int = 0
    """Updates between two looks at the clock; 0: as many as take a twentieth of a second."""
    cuts_sweeps: ClassVar[bool] = False
    """Whether an `Order` may visit some of the variables only."""

    @property
    def slow(self) -> bool:
        """Whether iterations are made one at a time at first, since each may take long."""
        return False

    @abstractmethod
    def advance_each(
        self, state: S, plan: P, n: int, tol: float, trace: bool, wanted: NDArray[np.bool_]
    ) -> list[Rows]:
        """Up to ``n`` updates of each field; each stops after one that changed less than ``tol``.

        Args:
            state: Where the fields stand; changed in place.
            plan: How they move.
            n: Maximum number of updates.
            tol: Largest change of q, over the step, at which a field is done.
            trace: Is F of every state wanted?
            wanted: Which fields to move; the others stay, and have no rows.  # (fields,)
        """


class Batch(Updates[P, S]):
    """Fields that iterate together, each as if it were alone."""

    @abstractmethod
    def free_energy_each(self, state: S) -> NDArray[np.float64]:
        """F of each field.  # (fields,)"""

    @abstractmethod
    def marginals_each(self, state: S) -> list[NDArray[np.float64]]:
        """A copy of each field's marginals."""

    @abstractmethod
    def residual_each(self, state: S) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """max |softmax(−g(q)) − q| of each field, and how much of it rounding alone may cause."""

    @abstractmethod
    def copy(self, state: S) -> S:
        """A state that moves on its own from here."""

    @abstractmethod
    def warm_up(self, plan: P, state: S, trace: bool) -> None:
        """Compile or load what advancing needs; the state stays as it is."""


class Program(Batch[Plan, State]):
    """A lowered field, packed for one engine and one floating-point type."""

    lowered: Lowered
    dtype: np.dtype[np.floating]
    threads: int = 1
    warm: ClassVar[set[Hashable]] = set()
    """What programs of all kinds have run in this process: their kernels are compiled and loaded.
    A work is known by `kernel_key` and what of a plan chooses kernels."""
    sums_in_double: ClassVar[bool] = False
    """Whether F of float32 marginals is as accurate as F of the same marginals in float64."""

    # ---- the batch of one field ----

    @property
    def slow(self) -> bool:
        return self.lowered.layout.size > LARGE_SIZE or bool(self.lowered.extras)

    def advance_each(
        self, state: State, plan: Plan, n: int, tol: float, trace: bool, wanted: NDArray[np.bool_]
    ) -> list[Rows]:
        return [self.advance(state, plan, n, tol, trace)]

    def free_energy_each(self, state: State) -> NDArray[np.float64]:
        return np.array([self.free_energy(state)])

    def marginals_each(self, state: State) -> list[NDArray[np.float64]]:
        return [self.marginals(state)]

    def residual_each(self, state: State) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        residual, rounding = self.residual(state)
        return np.array([residual]), np.array([rounding])

    # ---- states ----

    @abstractmethod
    def start(self, q: Floats) -> State:
        """A state at the given marginals of the lowered field.  # (layout.size,)"""

    def take(self, q: Floats) -> State:
        """A state that may work in this very array of marginals, to save memory.  # (1, size)"""
        return self.start(q[0])

    def view(self, state: State) -> Floats:
        """The state's marginals without copying, if that can be.  # (layout.size,)"""
        return self.marginals(state)

    @abstractmethod
    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        """Up to ``n`` updates; stops after one that changed less than ``tol``."""

    @abstractmethod
    def free_energy(self, state: State) -> float:
        """F of the state."""

    @abstractmethod
    def marginals(self, state: State) -> NDArray[np.float64]:
        """A copy of the state's marginals.  # (layout.size,)"""

    def marginals_at(self, state: State, entries: Ints) -> NDArray[np.float64]:
        """The state's marginals at some entries.  # (m,)"""
        return self.marginals(state)[entries]

    @abstractmethod
    def gradient(self, q: Floats) -> NDArray[np.float64]:
        """dE/dq.  # (layout.size,)"""

    owns_unary: bool = False
    """Whether ``lowered.unary`` belongs to this program, which may then write to it."""

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        """Replace unary energies; states at hand see the new ones too.

        The field that was given stays as it is. Labels that were impossible (+inf) stay so, and no
        others become it.

        Args:
            energies: New energies.  # (layout.size,) or (m,)
            at: Of which entries, each once; all by default.  # (m,)
        """
        if not self.owns_unary:
            self.lowered = replace(self.lowered, unary=self.lowered.unary.copy())
            self.owns_unary = True
        self.lowered.unary[slice(None) if at is None else at] = energies

    def residual(self, state: State) -> tuple[float, float]:
        """max |softmax(−g(q)) − q|, and how much of it rounding alone may cause."""
        q = self.marginals(state)
        g = self.gradient(q)
        rounding = rounding_of(q, g, self.lowered.unary, self.dtype)
        return residual_of(self.lowered.layout, q, g, self.lowered.unary), rounding

    def tangent(self, state: State) -> Tangent:
        """The state as the second-order test uses it."""
        return host_tangent(self.lowered.layout, self.marginals(state), self.gradient)

    def copy(self, state: State) -> State:
        return deepcopy(state)

    @abstractmethod
    def descend(self, labels: Floats, sweeps: int) -> NDArray[np.float64]:
        """Give one variable after another its cheapest label, until none changes.

        Takes and returns marginals (one-hot in the end): the expected energy never rises.
        """

    @abstractmethod
    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        """Run independent cooling chains, each polished into a local minimum of F."""

    def kernel_key(self) -> tuple[Hashable, ...]:
        """What programs have in common that run the same compiled kernels."""
        pack = getattr(self, "pack", ())
        arrays = [a for a in pack if isinstance(a, np.ndarray)]
        types = tuple((a.dtype.str, a.ndim, a.flags.writeable) for a in arrays)
        extras = tuple(type(t) for t in self.lowered.extras)  # these may bring kernels of their own
        return (type(self), self.dtype.name, self.parallel, extras, types)

    def build_for(self, plan: Plan | None) -> None:
        """Pack what a plan (or, with None, chains) will need and isn't packed yet."""

    def warm_up(self, plan: Plan, state: State, trace: bool) -> None:
        """Compile or load what advancing needs, once per process; the state stays as it is."""
        self.build_for(plan)
        kind = (getattr(plan, name, None) is None for name in ("starts", "shuffle", "search"))
        known = getattr(plan, "kind", None), getattr(plan, "watches", None)
        key = (*self.kernel_key(), type(plan), *known, trace, *kind)
        if key in self.warm:
            return
        searches = getattr(plan, "search", None) is not None  # its kernels run once per trial
        once = 1 if self.parallel or not self.sweepable or searches else 0
        if isinstance(plan, Order) and self.lowered.extras:
            once = 0  # a sweep by visits takes long
        scratch = self.start(self.marginals(state))
        self.advance(scratch, plan, once, 0.0, trace)
        self.free_energy(scratch)
        self.warm.add(key)

    def warm_up_chains(self, start: NDArray[np.float64]) -> None:
        """Run once per process what `explore` needs, before the clock starts.

        Compiles or loads the kernels, starts the threads, and spends a few milliseconds on trial
        evaluations and chains: the first calls in a new process are slow, and a search
        that plans by their pace would plan for a slower machine.

        Args:
            start: Marginals that chains will start from.  # (layout.size,)
        """
        self.build_for(None)
        key = (*self.kernel_key(), "chains", self.threads)
        if key in self.warm:
            return
        for threads in dict.fromkeys((self.threads, 1)):
            self.explore(Chains.make(start[None], drawn=True, polish=0), threads)
        self.warm_up_forests()
        self.free_energy(self.start(start))
        begun = time.perf_counter()
        self.free_energy(self.start(start))
        cost = 12 * (WARM_UP_SWEEPS + 2) * (time.perf_counter() - begun)  # of a trial, at most
        trial = Chains.make(
            np.stack([start, start, start]), sweeps=WARM_UP_SWEEPS, drawn=[False, True, True],
            forests=[False, False, True], polish=1,
        )  # fmt: skip
        while time.perf_counter() - begun + cost < WARM_UP_SECONDS:
            self.free_energy(self.start(start))
            self.explore(trial, 1)
        self.warm.add(key)

    def warm_up_forests(self) -> None:
        """Compile what makes the forests of chains that move by them."""

    @property
    def sweepable(self) -> bool:
        """Whether single variables can be visited; not if a term is only iterated as a whole."""
        return not self.lowered.extras

    def need_sweeps(self) -> None:
        """Raise `UnsupportedError` unless single variables can be visited."""
        for term in self.lowered.extras:
            if not offers(term, "neighbors"):
                raise missing(term, "neighbors", "colored, restarts and chains")
        if self.lowered.extras:
            raise UnsupportedError("colored, restarts and chains need every term lowered to tables")

    def need_visits(self, plan: Order) -> None:
        """Raise `UnsupportedError` unless terms that aren't lowered can be visited like this."""
        if plan.starts is not None:
            self.need_sweeps()
        for term in self.lowered.extras:
            if not offers(term, "visits"):
                raise missing(term, "visits", "sweep")

    @property
    def parallel(self) -> bool:
        """Whether one iteration uses several threads."""
        return False


def host_tangent(
    layout: Layout, q: Floats, gradient: Callable[[Doubles], NDArray[np.float64]]
) -> Tangent:
    """A `Tangent` whose arrays are numpy's."""

    def sums(flat: Floats) -> NDArray[np.float64]:
        return np.repeat(layout.sum_by_variable(flat), layout.common or layout.cardinalities)

    double = np.asarray(q, dtype=np.float64)
    return Tangent(double, gradient, sums, np.where, np.asarray, np.asarray)


def softmax(layout_owner: Ints, offsets: Ints, theta: Floats) -> NDArray[np.float64]:
    """q_i = softmax(−θ_i); θ = +inf gives 0. A variable with θ = +inf throughout stays NaN-free."""
    if len(theta) == 0:
        return np.zeros(0)
    low = np.minimum.reduceat(theta, offsets[:-1])
    shifted = theta - np.where(np.isinf(low), 0.0, low)[layout_owner]
    e = np.exp(-shifted)
    total = np.add.reduceat(e, offsets[:-1])
    safe = np.where(total > 0, total, 1.0)
    return np.asarray(e / safe[layout_owner])


ROWS_AT_ONCE = 2048
"""Rows of a softmax that stay in the cache."""


def softmax_rows(energies: Floats, n_labels: int) -> Floats:
    """softmax(−energies) of rows of equal length; uniform where all are +inf.

    Args:
        energies: All rows, in one piece.  # (rows · n_labels,)
        n_labels: Length of a row.

    Returns:
        In the type of the energies.  # (rows · n_labels,)
    """
    rows = energies.reshape(-1, n_labels)
    out = np.empty_like(rows)
    for i in range(0, len(rows), ROWS_AT_ONCE):
        some = np.ascontiguousarray(rows[i : i + ROWS_AT_ONCE].T)  # long loops are fast ones
        low = some.min(axis=0)
        low[np.isinf(low)] = 0.0
        np.subtract(low, some, out=some)
        np.exp(some, out=some)
        total = some.sum(axis=0)
        some[:, total == 0.0] = 1.0
        total[total == 0.0] = n_labels
        some /= total
        out[i : i + ROWS_AT_ONCE] = some.T
    return out.reshape(-1)


ROUNDING_FACTOR = 8.0
"""Roundings of an energy that may add up in one entry of the gradient."""


def residual_of(layout: Layout, q: Floats, g: Floats, unary: Floats) -> float:
    """max |softmax(−g) − q|; NaN where the state is lost.

    Impossible labels have the target 0. Where g says nothing about the others (a binary variable
    with one label left), they share what there is.
    """
    if len(g) == 0:
        return 0.0
    if np.isinf(unary).any():
        target = np.where(np.isinf(unary), np.inf, g)
        low = np.minimum.reduceat(target, layout.offsets[:-1])
        silent = ~np.isfinite(low)[layout.owner] & np.isfinite(unary)
        g = np.where(silent, 0.0, target)
    return float(np.abs(softmax(layout.owner, layout.offsets, g) - q).max(initial=0.0))


def rounding_of(q: Floats, g: Floats, unary: Floats, dtype: np.dtype[np.floating]) -> float:
    """How much of a residual the rounding of energies in this type may cause."""
    size = np.where(np.isfinite(g), np.abs(g), 0.0)
    size = np.maximum(size, np.where(np.isfinite(unary), np.abs(unary), 0.0))
    worst = float((q * (1.0 - q) * size).max(initial=0.0))
    return ROUNDING_FACTOR * float(np.finfo(dtype).eps) * worst


def slack(f: float, dtype: np.dtype[np.floating]) -> float:
    """How much F may rise by rounding alone."""
    return float((1.0 + abs(f)) * (1e-5 if dtype == np.float32 else 1e-12))
