"""What a term is, and how the flat state is laid out.

A field's state is flat: variable ``i`` with ``c_i`` labels owns the entries
``offsets[i]:offsets[i + 1]`` of every 1-D array (``q``, ``theta``, ``g``), so
mixed numbers of labels cost nothing.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Arrays
from proxfield.core.common.arrays import Doubles as Doubles
from proxfield.core.common.arrays import Floats as Floats
from proxfield.core.common.arrays import Ints as Ints
from proxfield.core.terms.names import Names, listed
from proxfield.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from proxfield.core.lowering.builder import Builder

Tables = tuple[Ints, Floats, "Ints | None"]


@dataclass(frozen=True)
class Layout:
    """Where each variable's labels live in a flat array.

    Args:
        cardinalities: Labels per variable, each at least 1.  # (n_vars,)
        names: Names of variables and labels, for messages; None without.

    Example:
        >>> Layout(np.array([2, 3])).offsets
        array([0, 2, 5])
    """

    cardinalities: Ints
    names: Names | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> tuple[Ints | tuple[int, int], Names | None]:
        same = self.cardinalities.strides == (0,)  # one number, however many variables
        short = (self.n_vars, int(self.cardinalities[0])) if same and self.n_vars else None
        return (self.cardinalities if short is None else short), self.names

    def __setstate__(self, state: tuple[Ints | tuple[int, int], Names | None]) -> None:
        cards, names = state
        if isinstance(cards, tuple):
            cards = np.broadcast_to(np.int64(cards[1]), cards[0])
        object.__setattr__(self, "cardinalities", cards)
        object.__setattr__(self, "names", names)

    def show(self, variable: int) -> str:
        """A variable as messages call it: by its name if it has one."""
        return f"variable {variable}" if self.names is None else self.names.show(variable)

    def show_scope(self, scope: Ints) -> str:
        """Variables as messages list them: by their names if they have them."""
        if self.names is None or self.names.variables is None:
            return str(scope.tolist())
        return f"[{listed(self.names.variables[v] for v in scope)}]"

    @cached_property
    def offsets(self) -> Ints:
        """First entry of each variable, and the total at the end.  # (n_vars + 1,)"""
        out = np.zeros(len(self.cardinalities) + 1, dtype=np.int64)
        np.cumsum(self.cardinalities, out=out[1:])
        return out

    @property
    def n_vars(self) -> int:
        """Number of variables."""
        return len(self.cardinalities)

    @property
    def size(self) -> int:
        """Number of entries of a flat array: the sum of all cardinalities."""
        if self.common is not None:  # without making the offsets
            return self.n_vars * self.common
        return int(self.offsets[-1])

    @cached_property
    def common(self) -> int | None:
        """The number of labels when all variables agree on it, else None."""
        c = self.cardinalities
        return int(c[0]) if len(c) and bool((c == c[0]).all()) else None

    def start(self, variable: int) -> int:
        """The first entry of a variable, without the offsets of all where labels are as many."""
        return int(self.offsets[variable]) if self.common is None else variable * self.common

    @cached_property
    def owner(self) -> Ints:
        """The variable each entry belongs to.  # (size,)"""
        return np.repeat(np.arange(self.n_vars, dtype=np.int64), self.cardinalities)

    @cached_property
    def label(self) -> Ints:
        """The label each entry stands for.  # (size,)"""
        return np.arange(self.size, dtype=np.int64) - self.offsets[self.owner]

    def entries(self, variables: Ints, n_labels: int) -> Ints:
        """Flat positions of the first ``n_labels`` labels of some variables.  # (m, n_labels)"""
        return self.offsets[variables][:, None] + np.arange(n_labels)

    def split(self, flat: Floats) -> Floats | list[Floats]:
        """A flat array as (n_vars, n_labels) where all agree, else one array per variable."""
        if self.common is not None:
            return flat.reshape(self.n_vars, self.common)
        return np.split(flat, self.offsets[1:-1]) if self.n_vars else []

    def best_labels(self, flat: Floats) -> Ints:
        """The label with the largest entry of each variable (the first of equals).  # (n_vars,)"""
        if self.common is not None:
            return np.asarray(flat.reshape(-1, self.common).argmax(axis=1), dtype=np.int64)
        top = np.full(self.n_vars, -np.inf)
        np.maximum.at(top, self.owner, flat)
        at = np.flatnonzero(flat == top[self.owner])
        out = np.zeros(self.n_vars, dtype=np.int64)
        out[self.owner[at[::-1]]] = self.label[at[::-1]]
        return out

    def sum_by_variable(self, flat: Floats | NDArray[np.bool_]) -> NDArray[np.float64]:
        """Sum each variable's entries.  # (n_vars,)"""
        if self.common is not None:  # without the owner of each entry, which is a large array
            return np.asarray(flat.reshape(-1, self.common).sum(axis=1, dtype=np.float64))
        total = np.bincount(self.owner, weights=flat, minlength=self.n_vars)
        return total.astype(np.float64)

    def divide(self, flat: Floats, by: Doubles) -> NDArray[Any]:
        """Divide each variable's entries by its own number.  # (size,), (n_vars,) -> (size,)"""
        if self.common is not None:
            rows = flat.reshape(-1, self.common)
            return np.asarray(rows / by[:, None].astype(flat.dtype)).ravel()
        return np.asarray(flat / by[self.owner])

    def normalize(self, flat: Floats) -> NDArray[Any]:
        """Make each variable's entries sum to 1."""
        return self.divide(flat, self.sum_by_variable(flat))

    def center(self, flat: Floats) -> Floats:
        """Subtract each variable's mean: the projection P of the design."""
        return np.asarray(flat - (self.sum_by_variable(flat) / self.cardinalities)[self.owner])


class Visits(Protocol):
    """A term at some marginals, of which one variable's at a time changes."""

    def gradient(self, variable: int) -> Floats:
        """dE/dq of one variable, at the present marginals of all others.  # (n_labels,)"""

    def move(self, variable: int, q: Floats) -> None:
        """From now on a variable has these marginals.  # (n_labels,)"""


class Term(ABC):
    """One additive part of a field's energy.

    A subclass must be able to validate itself, give the energy of a labelling, and
    add its gradient. The methods below the line are optional: a rule or a tool that
    needs one a term doesn't offer raises an `UnsupportedError` (a TypeError) that names it.
    """

    name: ClassVar[str]
    degree: ClassVar[int | None] = None
    """Degree of a homogeneous multilinear term; None: the term gives its own ``energy``."""

    @classmethod
    def trusted(cls, *parts: object) -> Self:
        """A term that holds these very parts, the fields of a dataclass in order, unchecked."""
        out = object.__new__(cls)
        out._hold(*parts)
        return out

    def _hold(self, *parts: object) -> None:
        """Set the first fields of a frozen dataclass, in order; a subclass may have more."""
        for part, value in zip(fields(self), parts, strict=False):  # type: ignore[arg-type]
            object.__setattr__(self, part.name, value)

    @abstractmethod
    def validate(self, layout: Layout) -> None:
        """Raise `InputError` unless this term fits variables laid out like this."""

    @abstractmethod
    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        """Energy of one labelling.  labels: (n_vars,)"""

    @abstractmethod
    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        """Add dE/dq at ``q`` to ``out``. +inf is right where a label is impossible.

        An impossible configuration counts only if ``q`` gives it weight: 0 · inf is 0.
        """

    def energy(self, layout: Layout, q: Floats) -> float:
        """Expected energy under ``q``: ⟨q, gradient⟩ / degree for a multilinear term."""
        if self.degree is None:
            raise missing(self, "energy", "the free energy (its degree is None)")
        g = np.zeros(layout.size)
        self.add_gradient(layout, q, g)
        return expectation(q, g) / self.degree

    def evaluate(self, layout: Layout, q: Floats, out: Floats) -> float:
        """Add dE/dq at ``q`` to ``out`` and return the energy: what inference asks for.

        A term that finds both in one pass overrides this; then it must agree with the two.
        """
        g = np.zeros(layout.size)
        self.add_gradient(layout, q, g)
        out += g.astype(out.dtype)
        return self.energy(layout, q) if self.degree is None else expectation(q, g) / self.degree

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays this term holds."""
        return sum(v.nbytes for v in vars(self).values() if isinstance(v, np.ndarray))

    def workspace(self, layout: Layout) -> int:
        """Bytes that lowering, packing and iterating take for this term at most.

        Beside the arrays that the term holds and the state of the variables.
        """
        return 4 * self.nbytes

    # ---- optional ----

    def scope(self, layout: Layout) -> Ints:
        """The variables whose marginals the energy depends on, in order; by default all.

        A field that is divided among processes computes a term only where it has such variables.
        """
        return np.arange(layout.n_vars)

    @property
    def omitted(self) -> bool:
        """Whether every energy of the term is 0, so that inference omits it: weight 0, say.

        It stays in `Field.terms`, and nothing is built or computed for it.
        """
        return False

    def magnitude(self, layout: Layout) -> float:
        """A bound on the size of the energy of any possible labelling.

        Asked of terms that can't be lowered, so that a field whose sums could overflow is
        refused. Infinite energies don't count; 0, the default, means that it isn't known.
        """
        return 0.0

    def curvature(self, layout: Layout) -> Floats:
        """Per-variable bounds λ_i with ΔᵀHΔ ≤ Σ λ_i‖Δ_i‖² for centered Δ.  # (n_vars,)"""
        raise missing(self, "curvature", "a certified step")

    def spectrum(self, layout: Layout) -> tuple[float, float]:
        """Bounds on the smallest and the largest eigenvalue of P H P, anywhere on the simplices.

        For terms that know them in closed form; others are found by Lanczos if their degree is 2.
        """
        raise missing(self, "spectrum", "a certified step without Lanczos")

    def coupling_norms(self, layout: Layout, v: Floats) -> Floats:
        """A v for a symmetric A without negative entries and a_ij ≥ ‖P_i H_ij P_j‖₂ at every q.

        For terms over many pairs, where it takes far less than a product with H: it can prove
        that a fixed point is a minimum.  # (n_vars,) -> (n_vars,)
        """
        raise missing(self, "coupling_norms", "a proof that a fixed point is a minimum")

    def relative_curvature(self, layout: Layout) -> Floats:
        """Bounds L_i with ΔᵀHΔ ≤ Σ_i L_i Σ_l Δ_il²/q_il for centered Δ, at every q.  # (n_vars,)

        Σ_l Δ_il²/q_il is the curvature of the entropy, which is unbounded near the corners of a
        simplex: L_i can be small where λ_i is large. For terms of high order.
        """
        raise missing(self, "relative_curvature", 'step="certified-relative"')

    def lipschitz(self, layout: Layout) -> float:
        """A bound on ‖H‖₂ over the product of simplices, without the projection."""
        raise missing(self, "lipschitz", 'step="lipschitz"')

    def neighbors(self, layout: Layout) -> Ints:
        """Pairs of variables that share an energy, each once or more.  # (m, 2)"""
        raise missing(self, "neighbors", "colored, restarts and chains")

    def visits(self, layout: Layout, q: Floats) -> Visits:
        """The gradient of one variable after another, for terms that can't be lowered.

        Asked for by sweeps: the energy must be linear in each variable's marginals.
        """
        raise missing(self, "visits", "sweep")

    def lower(self, layout: Layout, builder: Builder) -> None:
        """Pass the same energy to the builder as constants, unaries, tables, …"""
        raise missing(self, "lower", "lowering to fused kernels")

    def bounds_log_z(self, layout: Layout) -> bool:
        """Whether the energy of every q is at least the mean over labellings drawn from q.

        True for multilinear terms (they are equal) and for terms below a concave envelope. Where
        it isn't, −F is no bound on log Z.
        """
        return True

    def prune(self, layout: Layout, keep: NDArray[np.bool_]) -> bool:
        """Clear in ``keep`` the labels this term makes impossible; True if any was cleared.

        ``keep`` says which entries are still possible.  # (size,)
        """
        return False

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        """The term as explicit tables: (scopes, tables, index) triples."""
        raise missing(self, "as_tables", "writing a UAI file")

    def to_arrays(self) -> dict[str, ArrayLike]:
        """What the term consists of, by name: arrays, numbers and text, for files and ``==``.

        By default the fields of a dataclass that aren't None. See `saveable`.
        """
        if not is_dataclass(self):
            raise missing(self, "to_arrays", "saving")
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The term again, from what `to_arrays` gave; checked, because files may hold anything.

        By default the constructor with these arguments; arrays without axes become numbers or text.
        """
        return cls(**{name: a.item() if a.ndim == 0 else a for name, a in arrays.items()})


DESCRIPTIONS = frozenset(
    {"lower", "curvature", "relative_curvature", "spectrum", "coupling_norms", "lipschitz"}
)
"""Optional methods of a term that say something about its energy; see `offers`."""


def offers(term: Term, method: str) -> bool:
    """Whether this term implements an optional method.

    An inherited method that describes the energy (``lower``, ``curvature``, ``spectrum``,
    ``lipschitz``) doesn't count if the class overrides the gradient or the energy that the method
    came with: it would describe another energy.
    """
    if method in DESCRIPTIONS:
        return describes(type(term), method)
    return getattr(type(term), method) is not getattr(Term, method)


def describes(kind: type[Term], method: str) -> bool:
    """Whether a class has this method, for the energy that it has. See `offers`."""
    owner = next(base for base in kind.__mro__ if method in vars(base))
    if owner is Term:
        return False
    if getattr(owner, "add_gradient", None) in (None, Term.add_gradient):  # left to subclasses
        return True
    same = (getattr(kind, name) is getattr(owner, name) for name in ("add_gradient", "energy"))
    return all(same)


def missing(term: Term, method: str, who: str) -> UnsupportedError:
    """The error for a method that a term doesn't offer."""
    kind = type(term)
    text = f"{kind.__name__} has no method {method!r}, needed for {who}"
    if method == "curvature":
        text += "; give a number as step, or use the rule backtracking"
    if getattr(kind, method) is not getattr(Term, method):
        text += "; the one it inherits is for another energy, since it overrides the gradient"
    return UnsupportedError(text)


def expectation(q: Floats, g: Floats) -> float:
    """⟨q, g⟩ with 0 · inf = 0, summed in float64."""
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.where(q > 0, q * g, 0.0), dtype=np.float64))


def largest_finite(values: Floats) -> float:
    """The largest size of a finite entry, 0 without one."""
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    if high == np.inf:
        high = float(np.max(values, initial=0.0, where=np.isfinite(values)))
    return max(-low, high)


def as_floats(
    values: ArrayLike, what: str, *, allow_inf: bool = False, share_single: bool = False
) -> NDArray[Any]:
    """A float64 array without NaN or -inf (and without +inf unless allowed).

    With ``share_single`` a float32 array is taken as it is, not copied: for large ones.
    """
    try:
        given = np.asarray(values)
        shared = share_single and given.dtype == np.float32
        out = given if shared else np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{what} must be numbers in one rectangular array; "
            "give variables with other numbers of labels a term of their own"
        ) from None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(out.sum()):  # one pass instead of two, for images
            return out
    low, high = out.min(initial=np.inf), out.max(initial=-np.inf)  # both pass NaN on
    if np.isnan(low):
        raise InputError(f"{what} hold NaN")
    if low == -np.inf:
        raise InputError(f"{what} hold -inf: an energy may be +inf (impossible), never -inf")
    if not allow_inf and high == np.inf:
        raise InputError(f"{what} hold +inf; use a table for hard constraints")
    return out


def as_indices(values: ArrayLike, what: str, ndim: int) -> Ints:
    """An int64 array of the given number of dimensions."""
    try:
        raw = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be integers in one rectangular array") from None
    if raw.size == 0:
        raw = np.zeros(raw.shape, dtype=np.int64)
    if raw.dtype.kind not in "iu":
        raise InputError(f"{what} must be integers, not {raw.dtype}")
    if raw.dtype == np.uint64 and raw.size and raw.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what} hold {raw.max()}, expected numbers that fit int64")
    if raw.ndim != ndim:
        raise InputError(f"{what} must have {ndim} dimension(s), not shape {raw.shape}")
    return raw.astype(np.int64)


def table_index(given: ArrayLike | None, count: int, tables: int, what: str) -> Ints:
    """The table of each scope: the only one, each its own, or as given.  # (count,)"""
    if given is None:
        if tables not in (1, count):
            raise InputError(f"{count} {what} but {tables} tables; pass index to share tables")
        return np.zeros(count, dtype=np.int64) if tables == 1 else np.arange(count)
    which = as_indices(given, "table index", 1)
    if len(which) != count:
        raise InputError(f"{count} {what} but {len(which)} table indices")
    if count and (which.min() < 0 or which.max() >= tables):
        raise InputError(f"table index out of range 0 to {tables - 1}")
    return which


def check_scopes(layout: Layout, scopes: Ints, what: str) -> None:
    """Variables in range, none twice in one scope."""
    if scopes.size == 0:
        return
    if scopes.min() < 0 or scopes.max() >= layout.n_vars:
        bad = (scopes < 0) | (scopes >= layout.n_vars)
        row = int(np.flatnonzero(bad.any(axis=1))[0])
        raise InputError(
            f"{what} {row} names variable {int(scopes[row][bad[row]][0])}, "
            f"expected 0 to {layout.n_vars - 1}"
        )
    if scopes.shape[1] <= 3:  # pair by pair: no sorted copy of millions of scopes
        twice = np.zeros(len(scopes), dtype=bool)
        for a, b in itertools.combinations(scopes.T, 2):
            twice |= a == b
    else:
        ordered = np.sort(scopes, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if twice.any():
        row = int(np.flatnonzero(twice)[0])
        raise InputError(f"{what} {row} names a variable twice: {layout.show_scope(scopes[row])}")
