"""All instances as one reduced problem, which the methods of learning and their kernels use.

Observed variables are taken out: a factor keeps the part of its table that their labels leave.
All tables lie one after another in one flat array w. A factor whose free variables are v_1 … v_k
has a base b and strides s_1 … s_k: its energy is w[b + Σ_p s_p y_p]. Strides are those of a "kind",
since there are few of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from proxfield.core.common.arrays import Array, Doubles, Ints
from proxfield.core.engines.recorded import Factors, Recorded
from proxfield.errors import InputError, shown
from proxfield.learn.tied import (
    Block,
    Parameters,
    TiedField,
    check_parameters,
    contract,
    expand,
    take_shapes,
)

if TYPE_CHECKING:
    from proxfield.core.engines.torch.program import TiedEnergy

MAX_ENTRIES = 2**31 - 1
"""Entries of all tables together: bases have 32 bits."""


@dataclass
class _Shared:
    """Tables of one name and shape: of an index, or one per factor made from features."""

    name: str
    shape: tuple[int, ...]
    basis: Doubles | None
    n_tables: int
    rows: list[Array] | None  # features of each instance; None with an index
    count: int = 0  # tables in w
    start: int = 0  # first entry in w
    features: Array = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def tables(self, parameters: Doubles) -> Doubles:
        """Entries in w.  # (count * size,)"""
        v = expand(parameters, self.basis, len(self.shape)).reshape(self.n_tables, self.size)
        return np.asarray(v if self.features is None else self.features @ v).ravel()

    def pull(self, gradient: Doubles) -> Doubles:
        """The gradient in parameters from that in w."""
        g = gradient.reshape(self.count, self.size)
        if self.features is not None:
            g = np.asarray(self.features.T @ g)
        return contract(g.reshape(self.n_tables, *self.shape), self.basis, len(self.shape))


class Examples(ABC):
    """What parameters are learned from: variables with labels, whose updates have an adjoint.

    Attributes:
        labels: Truth of the variables, -1 where unknown.  # (n,)
        offsets: First entry of each variable in flat arrays.  # (n + 1,)
        shapes: Shape of the parameters of each name.
    """

    labels: Ints
    offsets: Ints
    shapes: dict[str, tuple[int, ...]]

    @property
    def interactions(self) -> list[str]:
        """Names of the parameters that `fit_marginals` may weaken: those of several variables."""
        return []

    @abstractmethod
    def tables(self, parameters: Parameters) -> Doubles:
        """The parameters of `updates`, one after another.  # (any,)"""

    @abstractmethod
    def pull(self, gradient: Doubles) -> Parameters:
        """The gradient in parameters, from that in `tables`."""

    @abstractmethod
    def updates(self, w: Doubles, device: str = "cpu") -> Recorded[Any]:
        """The program of mean field with the parameters w = `tables` on a device."""

    @property
    def n_known(self) -> int:
        """Number of variables whose labels are known."""
        return int((self.labels >= 0).sum())

    def start(self, parameters: Parameters) -> Parameters:
        """A copy of the parameters of these examples, checked."""
        check_parameters(parameters, self.shapes)
        if self.n_known == 0:
            raise InputError("no label is known, expected at least one that isn't -1")
        return {name: np.array(parameters[name], dtype=np.float64) for name in self.shapes}

    @property
    def unweighted(self) -> Doubles:
        """A weight of 1 for each class."""
        return np.ones(int(np.diff(self.offsets).max()))


def class_weights(weights: ArrayLike | str | None, examples: Examples) -> Doubles:
    """Weights of classes: 1 each (None), "balanced" (inverse frequencies), or those given."""
    labels, n_classes = examples.labels, len(examples.unweighted)
    if weights is None:
        return examples.unweighted
    if isinstance(weights, str):
        if weights != "balanced":
            raise InputError(f"class_weight={shown(weights)}, expected 'balanced' or numbers")
        known = labels[labels >= 0]
        counts = np.bincount(known, minlength=n_classes)
        return np.asarray(len(known) / (np.count_nonzero(counts) * np.maximum(counts, 1)))
    try:
        out = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        out = np.zeros(0)
    if out.shape != (n_classes,) or not np.isfinite(out).all() or (out < 0).any() or not out.any():
        raise InputError(
            f"class_weight={shown(weights)}, expected {n_classes} numbers, 0 or more and not all 0"
        )
    if not out[labels[labels >= 0]].any():
        raise InputError(f"class_weight={shown(weights)} is 0 for all labels that occur")
    return out


@dataclass
class Structure(Examples):
    """Instances without their observed variables, ready for kernels; see `prepare`.

    Attributes:
        labels: Truth of the free variables, -1 where unknown.  # (n,)
        offsets: First entry of each free variable in flat arrays.  # (n + 1,)
        ptr: First free variable of each instance.  # (n_instances + 1,)
        factors: Factors by number of free variables.
        shapes: Shape of the parameters of each name.
    """

    labels: Ints
    offsets: Ints
    ptr: Ints
    factors: dict[int, Factors]
    shapes: dict[str, tuple[int, ...]]
    n_entries: int
    _shared: list[_Shared] = field(repr=False)
    devices: dict[str, TiedEnergy] = field(default_factory=dict, repr=False)
    """The factors on devices of torch."""

    @property
    def n_vars(self) -> int:
        """Number of free variables of all instances."""
        return len(self.labels)

    @property
    def binary(self) -> bool:
        """Whether all variables have two labels and no factor has more than two free variables."""
        two = bool((np.diff(self.offsets) == 2).all())
        return two and all(k <= 2 for k in self.factors)

    def order(self, k: int) -> Factors:
        """Factors of k free variables; none is fine."""
        if k in self.factors:
            return self.factors[k]
        empty = np.zeros(0, dtype=np.int32)
        return Factors(
            np.zeros((0, k), dtype=np.int32), empty, empty.astype(np.int16),
            np.zeros((1, k), dtype=np.int64), np.zeros_like(self.ptr),
        )  # fmt: skip

    @cached_property
    def runs(self) -> tuple[Ints, Ints]:
        """Runs of edges whose ends both move on by one: their first edges, and runs by instance.

        # (runs + 1,), (n_instances + 1,)
        """
        edges = self.order(2)
        new = np.ones(len(edges.base) + 1, dtype=bool)
        new[1:-1] = (np.diff(edges.variables, axis=0) != 1).any(axis=1)
        new[edges.ptr] = True
        first = np.flatnonzero(new)
        return first, np.searchsorted(first, edges.ptr)

    @property
    def interactions(self) -> list[str]:
        return list(dict.fromkeys(s.name for s in self._shared if len(s.shape) > 1))

    def updates(self, w: Doubles, device: str = "cpu") -> Recorded[Any]:
        """Updates over the tables w: compiled kernels, or torch on another device than "cpu"."""
        factors = [self.factors[k] for k in sorted(self.factors)]
        if device != "cpu":
            from proxfield.core.engines.torch.program import TiedEnergy, TorchUpdates

            if device not in self.devices:
                self.devices[device] = TiedEnergy(factors, self.offsets, device)
            return TorchUpdates(self.devices[device], w)
        from proxfield.core.engines.numba.tied import SpinUpdates, TableUpdates

        if self.binary:
            return SpinUpdates(self.order(1), self.order(2), self.runs, self.ptr, w)
        return TableUpdates(factors, self.offsets, w)

    def tables(self, parameters: Parameters) -> Doubles:
        """All tables one after another.  # (n_entries,)"""
        out = np.empty(self.n_entries)
        for shared in self._shared:
            stop = shared.start + shared.count * shared.size
            out[shared.start : stop] = shared.tables(parameters[shared.name])
        return out

    def pull(self, gradient: Doubles) -> Parameters:
        """The gradient in parameters, from that in the entries of all tables."""
        out = {name: np.zeros(shape) for name, shape in self.shapes.items()}
        for shared in self._shared:
            stop = shared.start + shared.count * shared.size
            out[shared.name] += shared.pull(gradient[shared.start : stop])
        return out


class _Collector:
    """Collects the reduced factors of one instance after another."""

    def __init__(self) -> None:
        self.shared: dict[tuple[object, ...], _Shared] = {}
        self.kinds: dict[tuple[int, ...], int] = {}
        self.parts: dict[int, list[tuple[int, NDArray[np.int32], Ints, int, _Shared]]] = {}
        """Of factors of k free variables: instance, variables, bases, kind, tables."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.labels: list[Ints] = []
        self.cards: list[Ints] = []
        self.n_vars = 0

    def add(self, number: int, instance: TiedField) -> None:
        take_shapes(self.shapes, instance, number)
        unknown = np.full(instance.n_vars, -1)
        observed = unknown if instance.observed is None else instance.observed
        free = observed < 0
        place = np.cumsum(free) - 1 + self.n_vars
        for block, shape in zip(instance.blocks, instance.shapes, strict=True):
            if len(block):
                self._add_block(number, block, shape, observed, place)
        self.labels.append((unknown if instance.labels is None else instance.labels)[free])
        self.cards.append(instance.cardinalities[free])
        self.n_vars += int(free.sum())

    def _add_block(
        self, number: int, block: Block, shape: tuple[int, ...], observed: Ints, place: Ints
    ) -> None:
        own = block.form
        form = own if isinstance(own, str) else (own.shape, own.tobytes())
        indexed = block.index is not None
        key = (block.name, shape, form, block.n_tables, indexed)
        if key not in self.shared:
            self.shared[key] = _Shared(
                block.name, shape, block.basis(shape), block.n_tables,
                None if indexed else [], block.n_tables if indexed else 0,
            )  # fmt: skip
        shared = self.shared[key]
        kept = np.flatnonzero((observed[block.variables] < 0).any(axis=1))
        if len(kept) == 0:
            return
        variables = block.variables[kept]
        seen = observed[variables]  # (m, arity)
        loose = seen < 0
        if block.index is None:
            table = shared.count + np.arange(len(kept), dtype=np.int64)
            assert shared.rows is not None
            shared.rows.append(block.features[kept])
            shared.count += len(kept)
        else:
            table = block.index[kept].astype(np.int64)
        strides = [int(np.prod(shape[p + 1 :])) for p in range(len(shape))]
        base = table * shared.size + np.maximum(seen, 0) @ np.array(strides)
        pattern = loose @ (1 << np.arange(block.arity))
        for code in np.unique(pattern):
            rows_of = np.flatnonzero(pattern == code)
            axes = [p for p in range(block.arity) if code >> p & 1]
            kind = self.kinds.setdefault(tuple(strides[p] for p in axes), len(self.kinds))
            scope = place[variables[rows_of][:, axes]].astype(np.int32)
            part = (number, scope, base[rows_of], kind, shared)
            self.parts.setdefault(len(axes), []).append(part)

    def finish(self, count: int) -> Structure:
        start = 0
        for shared in self.shared.values():
            shared.start = start
            start += shared.count * shared.size
            if shared.rows is not None:
                stack = sparse.vstack if any(map(sparse.issparse, shared.rows)) else np.concatenate
                width = shared.n_tables
                shared.features = stack(shared.rows) if shared.rows else np.zeros((0, width))
                if sparse.issparse(shared.features):
                    shared.features = shared.features.tocsr()
                shared.rows = None
        if start > MAX_ENTRIES:
            raise InputError(
                f"the tables of all instances have {start:,} entries, expected at most "
                f"{MAX_ENTRIES:,}; learn from fewer instances, or use an index instead of features"
            )
        width = max((len(kind) for kind in self.kinds), default=1)
        strides = np.zeros((max(1, len(self.kinds)), width), dtype=np.int64)
        for kind, number in self.kinds.items():
            strides[number, : len(kind)] = kind
        factors = {}
        for k, parts in self.parts.items():
            counts = np.zeros(count, dtype=np.int64)
            for number, variables, *_ in parts:
                counts[number] += len(variables)
            factors[k] = Factors(
                np.concatenate([variables for _, variables, *_ in parts]),
                np.concatenate([(b + t.start).astype(np.int32) for _, _, b, _, t in parts]),
                np.concatenate([np.full(len(b), kind, np.int16) for _, _, b, kind, _ in parts]),
                strides,
                np.concatenate([[0], np.cumsum(counts)]),
            )
            parts.clear()
        cards = np.concatenate(self.cards)
        return Structure(
            labels=np.concatenate(self.labels).astype(np.int64),
            offsets=np.concatenate([[0], np.cumsum(cards)]).astype(np.int64),
            ptr=np.concatenate([[0], np.cumsum([len(c) for c in self.cards])]).astype(np.int64),
            factors=factors,
            shapes=self.shapes,
            n_entries=start,
            _shared=list(self.shared.values()),
        )


def prepare(instances: Iterable[TiedField] | Structure) -> Structure:
    """All instances as one reduced problem.

    Instances are used one at a time and not kept, so a generator may make them.

    Args:
        instances: Instances of the same parameters.

    Returns:
        What the methods in `proxfield.learn.METHODS` work on; they also take instances.

    Example:
        >>> chain = Block("smooth", [[0, 1], [1, 2]], index=[0, 0], form="potts")
        >>> whole = TiedField([2, 2, 2], [chain], labels=[0, 0, 1], observed=[-1, -1, 1])
        >>> prepare([whole]).n_vars
        2
    """
    if isinstance(instances, Structure):
        return instances
    collector, count = _Collector(), 0
    for instance in instances:
        collector.add(count, instance)
        count += 1
    if count == 0:
        raise InputError("there are no instances, expected at least one")
    return collector.finish(count)
