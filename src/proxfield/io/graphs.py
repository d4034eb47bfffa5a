"""Fields from graphs of networkx and models of pgmpy; neither is imported.

Both are asked only for what the protocols below say, so that anything else with the same methods
serves as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.checks import whole_count
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.unary import Constant, Unary
from proxfield.errors import InputError, InputTypeError, shown

if TYPE_CHECKING:
    from proxfield.core.terms.base import Term
    from proxfield.field import Field

COUPLINGS: dict[str, type[Potts] | type[Ising]] = {"potts": Potts, "ising": Ising}
"""What the weight of an edge may mean."""

Table = tuple[tuple[int, ...], NDArray[np.float64]]
"""Variables and a table of energies over them."""


class NetworkxGraph(Protocol):
    """The part of networkx.Graph that is used."""

    def nodes(self, data: bool) -> Iterable[tuple[Hashable, Mapping[str, Any]]]:
        """Nodes with their attributes."""

    def edges(self, data: bool) -> Iterable[tuple[Hashable, Hashable, Mapping[str, Any]]]:
        """Edges with their attributes."""


class ModelFactor(Protocol):
    """A factor of pgmpy: values over variables; it may name their states."""

    variables: Sequence[Hashable]
    values: ArrayLike


class FactorModel(Protocol):
    """The part of pgmpy's models that is used; Bayesian networks have ``get_cpds`` instead."""

    def get_factors(self) -> Iterable[ModelFactor]:
        """Factors with ``variables``, ``values`` and ``state_names``."""


def from_networkx(
    graph: NetworkxGraph,
    *,
    energies: str = "energies",
    weight: str | float = "weight",
    table: str = "table",
    n_labels: int | None = None,
    coupling: str = "potts",
) -> Field:
    """See `Field.from_networkx`."""
    from proxfield.field import Field

    if not (callable(getattr(graph, "nodes", None)) and callable(getattr(graph, "edges", None))):
        raise InputTypeError(f"from_networkx takes a graph, not {type(graph).__name__}")
    if coupling not in COUPLINGS:
        raise InputError(f"coupling={shown(coupling)}, expected {' or '.join(COUPLINGS)}")
    number: dict[Hashable, int] = {}
    unaries: list[Table] = []
    cards: list[int] = []
    for node, data in graph.nodes(data=True):
        v = number[node] = len(number)
        if energies in data:
            row = _energies(data[energies], f"{energies} of node {shown(node)}")
            if row.ndim != 1:
                raise InputError(
                    f"{energies} of node {shown(node)} have shape {row.shape}, expected one "
                    "energy per label"
                )
            unaries.append(((v,), row))
            cards.append(len(row))
        else:
            cards.append(2 if n_labels is None else whole_count(n_labels, "n_labels", 1))
    edges: list[tuple[int, int]] = []
    weights: list[float] = []
    tables: list[Table] = []
    for a, b, data in graph.edges(data=True):
        here = f"edge ({shown(a)}, {shown(b)})"
        pair = number[a], number[b]
        if pair[0] == pair[1]:
            raise InputError(f"{here} joins a node with itself, expected different nodes")
        if table in data:
            cost = _energies(data[table], f"{table} of {here}")
            want = cards[pair[0]], cards[pair[1]]
            if cost.shape != want:
                raise InputError(
                    f"{table} of {here} has shape {cost.shape}, but its nodes have {want[0]} and "
                    f"{want[1]} labels"
                )
            tables.append((pair, cost))
        if not isinstance(weight, str) or weight in data:
            key, value = (weight, data[weight]) if isinstance(weight, str) else ("weight", weight)
            strength = _numbers(value, f"{key} of {here}")
            if strength.ndim or not np.isfinite(strength):
                raise InputError(f"{key} of {here} is {shown(value)}, expected a finite number")
            edges.append(pair)
            weights.append(float(strength))
        elif table not in data:
            raise InputError(
                f"{here} has neither {shown(weight)} nor {shown(table)}; weight=1.0, for example, "
                "gives all edges one weight"
            )
    terms = tabled(unaries)
    if edges:
        terms.append(COUPLINGS[coupling](np.array(edges), np.array(weights)))
    terms += tabled(tables)
    return Field(np.array(cards, dtype=np.int64), terms=terms, names=list(map(str, number)))


def _numbers(value: ArrayLike, what: str) -> NDArray[np.float64]:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} is {shown(value)}, expected numbers") from None


def _energies(value: ArrayLike, what: str) -> NDArray[np.float64]:
    out = _numbers(value, what)
    if not (out > -np.inf).all():  # None becomes NaN, too
        raise InputError(
            f"{what} is {shown(value)}, expected numbers (+inf for what is impossible)"
        )
    return out


def from_pgmpy(model: FactorModel) -> Field:
    """See `Field.from_pgmpy`."""
    from proxfield.field import Field

    factors: list[ModelFactor]
    if callable(cpds := getattr(model, "get_cpds", None)):
        factors = [cpd.to_factor() for cpd in cpds()]
    elif callable(getattr(model, "get_factors", None)):
        factors = list(model.get_factors())
    else:
        raise InputTypeError(
            f"from_pgmpy takes a model with get_cpds or get_factors, not {type(model).__name__}"
        )
    states = _states(factors)
    # variables in the order of the model's nodes; all of them need a factor
    known = getattr(model, "nodes", None)
    nodes = list(known()) if callable(known) else list(states)
    if hasattr(model, "get_variable_nodes"):  # a factor graph: its factors are nodes, too
        nodes = [node for node in nodes if node in states]
    if lost := [node for node in nodes if node not in states]:
        raise InputError(
            f"no factor holds the variable {shown(lost[0])}, so that its states aren't known"
        )
    order = nodes + [variable for variable in states if variable not in set(nodes)]
    number = {variable: v for v, variable in enumerate(order)}
    tables: list[Table] = []
    for k, factor in enumerate(factors):
        values = _numbers(factor.values, f"values of {_described(factor, k)}")
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            raise InputError(
                f"{_described(factor, k)} holds {values[wrong][0]}, expected finite numbers, 0 or "
                "more"
            )
        for axis, (variable, mine) in enumerate(_named(factor)):
            want = states[variable]  # in the order that all factors share
            if mine == want:
                continue
            if len(mine) != len(want) or set(mine) != set(want):
                raise InputError(
                    f"factors disagree on the states of {shown(variable)}: {shown(want)}, "
                    f"{shown(mine)}"
                )
            values = np.take(values, [mine.index(state) for state in want], axis=axis)
        with np.errstate(divide="ignore"):
            energies = -np.log(values) + 0.0  # + 0 turns −0 into 0
        tables.append((tuple(number[variable] for variable in factor.variables), energies))
    return Field(
        np.array([len(states[variable]) for variable in order], dtype=np.int64),
        terms=tabled(tables),
        names=[str(variable) for variable in order],
        label_names=[[str(state) for state in states[variable]] for variable in order],
    )


def _described(factor: ModelFactor, k: int) -> str:
    """A factor in messages: its number and its variables."""
    return f"factor {k} over {shown(list(factor.variables))}"


def _states(factors: Sequence[ModelFactor]) -> dict[Hashable, list[Hashable]]:
    """States of each variable, in the order of the first factor that has it."""
    out: dict[Hashable, list[Hashable]] = {}
    for k, factor in enumerate(factors):
        sizes = np.shape(factor.values)
        if len(sizes) != len(factor.variables):
            raise InputError(
                f"{_described(factor, k)} has values of shape {sizes}, expected an axis per "
                "variable"
            )
        for variable, mine in _named(factor):
            out.setdefault(variable, mine)
    return out


def _named(factor: ModelFactor) -> Iterator[tuple[Hashable, list[Hashable]]]:
    """The variables of a factor, each with its states: numbers where they have no names."""
    named = getattr(factor, "state_names", None) or {}
    for variable, size in zip(factor.variables, np.shape(factor.values), strict=True):
        yield variable, list(named.get(variable, range(size)))


def tabled(tables: Iterable[Table]) -> list[Term]:
    """Terms for tables over some variables each: one term per shape, in order of appearance.

    Example:
        >>> unary = np.zeros(2)
        >>> [t.name for t in tabled([((0,), unary), ((1,), unary), ((0, 1), np.eye(2))])]
        ['unary', 'pairwise']
    """
    groups: dict[tuple[int, ...], list[Table]] = {}
    for scope, energies in tables:
        groups.setdefault(energies.shape, []).append((scope, energies))
    out: list[Term] = []
    for shape, alike in groups.items():
        scopes = np.array([scope for scope, _ in alike], dtype=np.int64)
        stacked = np.stack([energies for _, energies in alike])
        if len(shape) == 0:
            out.append(Constant(float(stacked.sum())))
        elif len(shape) == 1:
            out.append(Unary(stacked, scopes[:, 0]))
        else:
            out.append((Pairwise if len(shape) == 2 else Factor)(scopes, stacked))
    return out
