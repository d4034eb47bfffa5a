"""Persistent chains: maximum likelihood with expectations from Gibbs chains that are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles, Ints
from proxfield.core.common.checks import is_real, whole_number
from proxfield.errors import InputError, shown
from proxfield.learn.optimize import AdamSteps, Callback, FitWatch, Packing, check_limits, stoppable
from proxfield.learn.structure import Structure, prepare
from proxfield.learn.tied import Parameters, TiedField

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
        out = np.zeros(self.structure.n_entries)
        for x in self.x:
            add_counts(self.structure, x, 1.0 / len(self.x), out)
        return out


def add_counts(structure: Structure, x: Ints, share: float, out: Doubles) -> None:
    """Add ``share`` to the entry of each factor's table at a labelling of the free variables."""
    from proxfield.learn.kernels import count_labels

    for f in structure.factors.values():
        count_labels(f, x, share, out)


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
    adam, scale = AdamSteps(len(x), rate, max_iters), 1.0 / structure.n_known
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
            x = adam.move(x, gradient * scale)
            if 2 * iteration >= max_iters:
                total += x
                count += 1
            watch.see(x, np.nan, gradient)
            watch.tell()
    return packing.unpack(total / count if count else x)
