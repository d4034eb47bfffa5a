"""A field: discrete variables and the terms whose energies add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.checks import whole_count
from proxfield.core.common.logs import log
from proxfield.core.common.memory import check_memory
from proxfield.core.common.records import Record
from proxfield.core.lowering.lowered import Lowered, estimate_memory, lower, needed_memory
from proxfield.core.terms.base import Floats, Ints, Layout, Term, as_indices
from proxfield.core.terms.names import Names, find_label, find_variable, listed
from proxfield.core.terms.registry import same_term
from proxfield.errors import InputError, UnsupportedError, cut_middle, refuse_keywords

if TYPE_CHECKING:
    from typing_extensions import Never, Self

    from proxfield.io.files import Source, Target
    from proxfield.io.graphs import FactorModel, NetworkxGraph

STATE_ARRAYS = 8
"""Flat arrays that inference keeps: q twice, theta, gradient, two moments, unary, spare."""
RESTARTS = 8
"""Starts that the rule `restarts` keeps by default, more than any other rule."""
FEW_CHAINS = 4
"""Chains of `auto`, the default rule: a field must have memory for these to be lowered."""
LONGEST_KINDS = 80
"""Maximum number of characters of the list of terms in a repr."""


@dataclass
class _Kept:
    """What was made of a field; shared by its copies until a term is added to one of them."""

    lowered: Lowered | None = None
    without: dict[tuple[int, ...], Lowered] = field(default_factory=dict)
    """The field lowered without the terms at some positions."""


class Field:
    """Discrete variables and a list of terms: P(x) ∝ exp(−Σ_t E_t(x)).

    Args:
        cardinalities: Number of labels of each variable (1 or more); or, with ``n_labels``, the
            number of variables.
        n_labels: Number of labels of every variable.
        terms: Terms to start with; `add` appends more.
        names: Names of the variables, one per variable and all different.
        label_names: Names of the labels: one list for all variables, or one list per variable.

    Two fields are equal if their variables, terms (in order), evidence and names are. A field isn't
    hashable, because `add` changes it.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(3, n_labels=2)
        >>> field.add(pf.Unary([[0, 1], [0, 0], [1, 0]])).add(pf.Potts([[0, 1], [1, 2]], 0.5))
        Field(3 variables, 6 entries, terms: unary, potts)
        >>> field.energy([0, 0, 1])
        0.5
        >>> lamp = pf.Field([2, 2], names=["switch", "lamp"], label_names=["off", "on"])
        >>> lamp.add(pf.Potts([[0, 1]], 2.0)).energy({"switch": "on", "lamp": "off"})
        2.0
    """

    saved_attributes: ClassVar[tuple[str, ...]] = ()
    """What a subclass adds to a field: numbers, text, and tuples of these. Saved and compared."""
    saved_notes: ClassVar[tuple[str, ...]] = ()
    """What else is saved but not compared, as the model is the same without it; the class has
    defaults for files that lack it."""
    __hash__ = None  # type: ignore[assignment]  # fields are compared by value, and change

    def __init__(
        self,
        cardinalities: ArrayLike | int,
        n_labels: int | None = None,
        terms: Iterable[Term] = (),
        *,
        names: Sequence[str] | None = None,
        label_names: Sequence[str] | Sequence[Sequence[str]] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_keywords("Field", unknown, {"labels": "n_labels"})
        if n_labels is not None:
            n = whole_count(cardinalities, "n_vars", 0)
            labels = whole_count(n_labels, "n_labels", 1)
            check_memory(8 * n * (2 + STATE_ARRAYS * labels), f"{n:,} variables")
            cardinalities = np.full(min(n, 1), labels)
        one = isinstance(cardinalities, np.ndarray) and cardinalities.ndim == 0
        if one or isinstance(cardinalities, int | float | np.generic):
            raise InputError("Field(n) needs n_labels=, the number of labels of every variable")
        cards = as_indices(cardinalities, "cardinalities", 1)
        if (cards < 1).any():
            v = int(np.flatnonzero(cards < 1)[0])
            raise InputError(f"variable {v} has {int(cards[v])} labels, expected at least 1")
        if n_labels is not None:
            cards = np.broadcast_to(cards, n)  # one number, however many variables
        total = int(cards.sum(dtype=np.float64))
        check_memory(8 * STATE_ARRAYS * total, f"{len(cards):,} variables with {total:,} labels")
        self.layout = Layout(cards, Names.read(names, label_names, cards))
        self.terms: list[Term] = []
        self.evidence: Ints = np.broadcast_to(np.int64(-1), len(cards))
        """Observed label of each variable, -1 where it is free.  # (n_vars,)"""
        self._kept = _Kept()
        for term in terms:
            self.add(term)

    @classmethod
    def bare(cls, layout: Layout) -> Self:
        """A field without terms over variables laid out like this, unchecked."""
        out = object.__new__(cls)
        out.layout, out.terms, out._kept = layout, [], _Kept()
        out.evidence = np.broadcast_to(np.int64(-1), layout.n_vars)
        return out

    def add(self, term: Term) -> Field:
        """Append a term, after checking that it fits; returns the field, for chaining."""
        if not isinstance(term, Term):
            raise TypeError(f"add() takes a Term, not {type(term).__name__}")
        term.validate(self.layout)
        self.terms.append(term)
        self._kept = _Kept()
        return self

    def snapshot(self, *, lowered: bool = True) -> Self:
        """A copy that terms added to this field don't reach; the terms themselves are shared.

        Args:
            lowered: Also share the lowered form, if it was made; pickles are larger with it.

        Example:
            >>> field = Field(3, n_labels=2)
            >>> before = field.snapshot()
            >>> field == before
            True
        """
        out = copy(self)
        if self.has_terms:
            out.terms = list(self.terms)
        if not lowered:
            out._kept = _Kept()
        return out

    def outline(self) -> Self:
        """A copy without terms, for results that travel: variables, names and evidence stay.

        Whatever needs its terms raises `UnsupportedError`.
        """
        out = copy(self)
        out.__dict__.pop("terms", None)
        out._kept = _Kept()
        return out

    @property
    def has_terms(self) -> bool:
        """Whether the terms are here; an `outline` doesn't have them."""
        return "terms" in self.__dict__

    def __getstate__(self) -> Record:
        state = dict(self.__dict__)
        if self.evidence.strides == (0,):  # nothing is observed: one number stands for all
            state["evidence"] = None
        return state

    def __setstate__(self, state: Record) -> None:
        self.__dict__.update(state)
        if self.evidence is None:
            self.evidence = np.broadcast_to(np.int64(-1), self.layout.n_vars)

    if not TYPE_CHECKING:  # else every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            if name == "terms":
                raise UnsupportedError(
                    "this result was passed on without the terms of its field; set with_field=True "
                    "on it before, or give it the field again (result.field = field)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def n_vars(self) -> int:
        """Number of variables, observed ones included."""
        return self.layout.n_vars

    @property
    def cardinalities(self) -> Ints:
        """Labels per variable.  # (n_vars,)"""
        return self.layout.cardinalities

    @property
    def kinds(self) -> dict[str, int]:
        """How many terms of each kind there are."""
        terms = self.terms if self.has_terms else ()
        return dict(Counter(getattr(term, "name", type(term).__name__) for term in terms))

    def __repr__(self) -> str:
        kinds = "not here"
        if self.has_terms:
            kinds = cut_middle(", ".join(self.kinds), LONGEST_KINDS) or "none"
        seen = int((self.evidence >= 0).sum())
        observed = f", {seen} observed" if seen else ""
        called = "" if self.names is None or not self.names else f" ({listed(self.names)})"
        return (
            f"Field({self.n_vars} variables{called}, {self.layout.size} entries{observed}, "
            f"terms: {kinds})"
        )

    def _repr_html_(self) -> str:
        from proxfield.viz.notebook import field_html

        return field_html(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Field):
            return NotImplemented
        if self is other:
            return True
        return (
            type(self) is type(other)
            and all(getattr(self, a) == getattr(other, a) for a in self.saved_attributes)
            and np.array_equal(self.cardinalities, other.cardinalities)
            and self.layout.names == other.layout.names
            and np.array_equal(self.evidence, other.evidence)
            and len(self.terms) == len(other.terms)
            and all(map(same_term, self.terms, other.terms))
        )

    # ---- names ----

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the variables; None without."""
        return None if self.layout.names is None else self.layout.names.variables

    @property
    def label_names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...] | None:
        """Names of the labels: the same for all variables, or one tuple each; None without."""
        given = self.layout.names
        return None if given is None else given.shared if given.each is None else given.each

    def named(
        self,
        names: Sequence[str] | None = None,
        label_names: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ) -> Self:
        """The same field with other names; those that are left out stay as they are.

        Args:
            names: As for `Field`.
            label_names: As for `Field`.

        Example:
            >>> Field([2, 2]).named(["rain", "grass"]).names
            ('rain', 'grass')
        """
        out, cards = self.snapshot(), self.cardinalities
        names = self.names if names is None else names
        label_names = self.label_names if label_names is None else label_names
        out.layout = Layout(cards, Names.read(names, label_names, cards))
        return out

    def variable_index(self, variable: int | str) -> int:
        """The number of a variable given by name (or by number, which is checked)."""
        return find_variable(self.layout.names, self.n_vars, variable)

    def label_index(self, variable: int | str, label: int | str) -> int:
        """The number of a variable's label, each given by name or number.

        Example:
            >>> Field([2, 3], names=["a", "b"]).label_index("b", 2)
            2
        """
        v = self.variable_index(variable)
        return find_label(self.layout.names, v, int(self.cardinalities[v]), label)

    # ---- evidence ----

    def condition(self, evidence: Mapping[int | str, int | str] | Mapping[int, int]) -> Self:
        """The same field with some variables observed.

        Observed variables are taken out before iterating; results stay in this
        field's numbering, and F bounds −log P(evidence, ·) summed over the rest.

        Args:
            evidence: Label of each observed variable, both by number or by name.

        Example:
            >>> Field([2, 3]).condition({1: 2})
            Field(2 variables, 5 entries, 1 observed, terms: none)
        """
        if not isinstance(evidence, Mapping):
            raise InputError("evidence must be a dictionary from variables to labels")
        seen = self.evidence.copy()
        try:
            names, cards = self.layout.names, self.cardinalities
            for key, value in evidence.items():
                v = find_variable(names, self.n_vars, key)
                seen[v] = find_label(names, v, int(cards[v]), value)
        except InputError as error:
            raise InputError(f"evidence: {error}") from None
        seen.setflags(write=False)  # copies share it
        out = self.snapshot(lowered=False)
        out.evidence = seen
        return out

    # ---- energies ----

    def energy(self, labels: ArrayLike | Mapping[int | str, int | str]) -> float:
        """Energy of a labelling, −log of its unnormalized probability.

        Args:
            labels: One label per variable, in order; or a dictionary from all variables to labels,
                by number or by name.  # (n_vars,)
        """
        if isinstance(labels, Mapping):
            x = np.full(self.n_vars, -1, dtype=np.int64)
            for key, value in labels.items():
                v = self.variable_index(key)
                x[v] = self.label_index(v, value)
            if (x < 0).any():
                where = self.layout.show(int(np.flatnonzero(x < 0)[0]))
                raise InputError(f"no label for {where}, expected one for each variable")
        else:
            x = as_indices(labels, "labels", 1)
            self.check_labels(x)
        return float(sum(t.labelling_energy(self.layout, x) for t in self.terms))

    def check_labels(self, x: Ints) -> None:
        """Raise `InputError` unless this is a labelling of the variables.  # (n_vars,)"""
        if len(x) != self.n_vars:
            raise InputError(f"{len(x)} labels for {self.n_vars} variables")
        bad = (x < 0) | (x >= self.cardinalities)
        if bad.any():
            v = int(np.flatnonzero(bad)[0])
            top = int(self.cardinalities[v]) - 1
            raise InputError(f"{self.layout.show(v)} has label {int(x[v])}, expected 0 to {top}")

    def flatten(self, marginals: Any) -> NDArray[np.float64]:
        """Marginals in any accepted form as one flat array; checked to be distributions."""
        if isinstance(marginals, np.ndarray) and marginals.ndim <= 2:
            flat = marginals.astype(np.float64).ravel()
        else:
            rows = [np.asarray(row, dtype=np.float64).ravel() for row in marginals]
            flat = np.concatenate([np.zeros(0), *rows])
        if len(flat) != self.layout.size:
            raise InputError(f"marginals have {len(flat)} entries, expected {self.layout.size}")
        if not np.isfinite(flat).all() or (flat < 0).any():
            raise InputError("marginals must be finite and not negative")
        sums = self.layout.sum_by_variable(flat)
        if len(sums) and np.abs(sums - 1).max() > 1e-4:
            v = int(np.abs(sums - 1).argmax())
            where = self.layout.show(v)
            raise InputError(f"marginals of {where} sum to {sums[v]:.6g}, expected 1")
        return np.asarray(flat / sums[self.layout.owner])

    def expected_energy(self, marginals: Any) -> float:
        """E(q) = Σ_t E_t(q), straight from the terms (the slow, readable way)."""
        q = self.flatten(marginals)
        return float(sum(t.energy(self.layout, q) for t in self.terms))

    def free_energy(self, marginals: Any) -> float:
        """F(q) = E(q) − H(q), straight from the terms. Without evidence, F ≥ −log Z."""
        q = self.flatten(marginals)
        return self.expected_energy(q) - entropy(q)

    # ---- getting ready ----

    def lower(self) -> Lowered:
        """The field in its fastest equivalent form (kept until a term is added)."""
        kept = self._kept
        if kept.lowered is None:
            # neither the rule nor the device is known here
            needed = needed_memory(self.layout, self.terms, self.evidence, FEW_CHAINS)
            check_memory(needed, f"inference on {self!r}")
            kept.lowered = lower(self.layout, self.terms, self.evidence)
            log.debug("lowered %r to %s", self, kept.lowered)
        return kept.lowered

    def memory_estimate(self, chains: int = RESTARTS) -> int:
        """Bytes that lowering and iterating take at most, beside the field itself.

        An upper bound for all rules on the CPU kernels, in float64. ``step="lipschitz"`` isn't
        covered: it lowers the field once more, as plain tables, and may take twice as much.

        Args:
            chains: How many starts or chains run at a time: 8 in `restarts`, 4 in `auto` without a
                budget and one per thread with one, 1 in all other rules.

        Example:
            >>> field = Field(1000, n_labels=2)
            >>> field.memory_estimate() < 2**21
            True
        """
        return estimate_memory(self.layout, self.terms, self.evidence, chains)

    # ---- files and other libraries ----

    def save(self, path: Target) -> None:
        """Write the field to a file, whole or not at all: arrays and a JSON header, no pickle.

        Args:
            path: Where to write, usually with the ending .npz; .gz, .xz and .bz2 are compressed.

        Raises:
            InputError: If it can't be written, or a term can't be saved (see `saveable`).

        Example:
            >>> import tempfile, pathlib
            >>> field = Field([2, 3], names=["a", "b"])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "field.npz")
            ...     field.save(path)
            ...     Field.load(path) == field
            True
        """
        from proxfield.io.store import save_field

        save_field(self, path)

    @classmethod
    def load(cls, source: Source, *, max_bytes: int | None = None) -> Self:
        """Read a field that `save` wrote; the same in every bit.

        Args:
            source: A path or an open binary file.
            max_bytes: Maximum number of bytes of content, 4 GiB by default; see `read_uai`.

        Returns:
            A field of the class that was saved (`DenseCRF`, for example).

        Raises:
            InputError: If the file is damaged, or holds something else.
        """
        from proxfield.io.store import load_field

        return load_field(cls, source, max_bytes)

    @staticmethod
    def from_networkx(
        graph: NetworkxGraph,
        *,
        energies: str = "energies",
        weight: str | float = "weight",
        table: str = "table",
        n_labels: int | None = None,
        coupling: str = "potts",
    ) -> Field:
        """A field with a variable per node and a pairwise energy per edge of a networkx graph.

        Variables are numbered in the order of ``graph.nodes`` and named by ``str(node)``.

        Args:
            graph: A graph of networkx, or whatever has its ``nodes(data=True)`` and
                ``edges(data=True)``. Several edges between two nodes add up.
            energies: The attribute of nodes that holds unary energies, one per label. Nodes without
                it have the energy 0.
            weight: The attribute of edges that holds the weight of `Potts` or `Ising`; or a number
                for all edges.
            table: The attribute of edges that holds a table of energies. Its rows are the labels of
                the edge's first end: in an undirected graph the node that was added first.
            n_labels: Number of labels of nodes without energies; 2 by default.
            coupling: "potts" or "ising": what a weight means.

        Example:
            >>> class Triangle:  # networkx.Graph has these two, too
            ...     def nodes(self, data):
            ...         return [("a", {"energies": [0.0, 2.0]}), ("b", {}), ("c", {})]
            ...     def edges(self, data):
            ...         return [("a", "b", {"weight": 1.5}), ("b", "c", {"weight": -1.0})]
            >>> Field.from_networkx(Triangle())
            Field(3 variables (a, b, c), 6 entries, terms: unary, potts)
        """
        from proxfield.io.graphs import from_networkx

        return from_networkx(
            graph,
            energies=energies,
            weight=weight,
            table=table,
            n_labels=n_labels,
            coupling=coupling,
        )

    @staticmethod
    def from_pgmpy(model: FactorModel) -> Field:
        """A field from a pgmpy model: each factor becomes the energies −log of its values.

        Names of variables and states are kept, as text.

        Args:
            model: A Bayesian network, a Markov network or a factor graph of pgmpy: whatever has
                ``get_cpds()`` or ``get_factors()``.
        """
        from proxfield.io.graphs import from_pgmpy

        return from_pgmpy(model)


def entropy(q: Floats) -> float:
    """H(q) = −Σ q log q in nats, with 0 log 0 = 0."""
    positive = q[q > 0]
    return float(-(positive * np.log(positive)).sum())
