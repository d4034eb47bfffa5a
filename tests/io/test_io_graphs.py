"""Fields from graphs and from models of other libraries, with stand-ins where these are missing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import exact_log_z
from proxfield.testing import enumerate_field

Array = np.ndarray


@dataclass
class Graph:
    """As much of networkx as is needed."""

    node: dict[Any, dict[str, Any]]
    edge: list[tuple[Any, Any, dict[str, Any]]]

    def nodes(self, data: bool) -> list[tuple[Any, dict[str, Any]]]:
        assert data
        return list(self.node.items())

    def edges(self, data: bool) -> list[tuple[Any, Any, dict[str, Any]]]:
        assert data
        return self.edge


def triangle(**edge: Any) -> Graph:
    nodes = {"a": {"energies": [0.0, 2.0]}, (1, 2): {}, 7: {"energies": np.array([1.0, 0.5])}}
    return Graph(nodes, [("a", (1, 2), {"weight": 1.5}), ((1, 2), 7, {"weight": -1.0, **edge})])


def test_nodes_become_variables_and_edges_potts() -> None:
    field = pf.Field.from_networkx(triangle())
    assert field == pf.Field(
        [2, 2, 2],
        terms=[
            pf.Unary([[0.0, 2.0], [1.0, 0.5]], [0, 2]),
            pf.Potts([[0, 1], [1, 2]], [1.5, -1.0]),
        ],
        names=["a", "(1, 2)", "7"],
    )


def test_ising_and_one_weight_for_all() -> None:
    field = pf.Field.from_networkx(triangle(), weight=0.5, coupling="ising")
    assert field.terms[1].name == "ising"
    assert field.energy([0, 1, 1]) == 0.0 + 0.5 - 0.5 + 0.5


def test_tables_have_the_first_end_in_rows() -> None:
    table = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    graph = Graph({"x": {"e": [0, 0.0]}, "y": {"e": [0, 0.0, 0]}}, [("x", "y", {"t": table})])
    field = pf.Field.from_networkx(graph, energies="e", table="t")
    assert field.energy({"x": 1, "y": 0}) == 3.0
    both = triangle(table=[[0.0, 10.0], [20.0, 0.0]])
    field = pf.Field.from_networkx(both)
    assert field.energy([0, 1, 0]) == 1.5 + 1.0 - 1.0 + 20.0


def test_other_numbers_of_labels() -> None:
    graph = Graph({"x": {}, "y": {}}, [("x", "y", {"weight": 1.0})])
    assert pf.Field.from_networkx(graph).cardinalities.tolist() == [2, 2]
    assert pf.Field.from_networkx(graph, n_labels=5).cardinalities.tolist() == [5, 5]
    assert pf.Field.from_networkx(Graph({}, [])).n_vars == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.Field.from_networkx(3), "from_networkx takes a graph, not int"),
        (
            lambda: pf.Field.from_networkx(Graph({1: {}, 2: {}}, [(1, 2, {})])),
            "edge (1, 2) has neither 'weight' nor 'table'",
        ),
        (
            lambda: pf.Field.from_networkx(Graph({1: {}}, [(1, 1, {"weight": 1})])),
            "edge (1, 1) joins a node with itself",
        ),
        (
            lambda: pf.Field.from_networkx(Graph({1: {"energies": [[1]]}}, [])),
            "energies of node 1 have shape (1, 1), expected one energy per label",
        ),
        (
            lambda: pf.Field.from_networkx(Graph({1: {"energies": "high"}}, [])),
            "energies of node 1 is 'high', expected numbers",
        ),
        (
            lambda: pf.Field.from_networkx(triangle(table=np.eye(3))),
            "table of edge ((1, 2), 7) has",
        ),
        (lambda: pf.Field.from_networkx(triangle(weight=[1, 2])), "expected a finite number"),
        *(
            (
                lambda bad=bad: pf.Field.from_networkx(triangle(weight=bad)),
                f"weight of edge ((1, 2), 7) is {bad}, expected a finite number",
            )
            for bad in (None, np.nan, np.inf)
        ),
        (
            lambda: pf.Field.from_networkx(Graph({1: {}, 2: {}}, [(1, 2, {})]), weight=None),
            "weight of edge (1, 2) is None",
        ),
        (
            lambda: pf.Field.from_networkx(Graph({1: {"energies": [0.0, None]}}, [])),
            "energies of node 1 is [0.0, None], expected numbers",
        ),
        (
            lambda: pf.Field.from_networkx(triangle(table=[[0.0, -np.inf], [0.0, 0.0]])),
            "table of edge ((1, 2), 7) is [[0.0, -inf], [0.0, 0.0]], expected numbers",
        ),
        (
            lambda: pf.Field.from_networkx(triangle(), coupling="xor"),
            "coupling='xor', expected pot",
        ),
        (lambda: pf.Field.from_networkx(Graph({1: {}, "1": {}}, [])), "names hold '1' twice"),
        (lambda: pf.Field.from_networkx(Graph({1: {}}, []), n_labels=0), "n_labels=0, expected"),
        (lambda: pf.Field.from_networkx(Graph({1: {}}, []), n_labels=2.5), "n_labels=2.5, expec"),
    ],
)
def test_bad_graphs_get_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_networkx() -> None:
    nx = pytest.importorskip("networkx")
    graph = nx.Graph()
    graph.add_node("a", energies=[0.0, 1.0])
    graph.add_node("b", energies=[0.0, 1.0, 2.0])
    graph.add_edge("b", "a", table=np.arange(6.0).reshape(2, 3))  # rows: a, which was added first
    field = pf.Field.from_networkx(graph)
    assert field.energy({"a": 1, "b": 0}) == 1.0 + 3.0
    grid = nx.grid_2d_graph(3, 4)
    nx.set_edge_attributes(grid, 0.5, "weight")
    assert pf.Field.from_networkx(grid) == pf.Field.from_networkx(grid, weight=0.5)
    assert len(pf.Field.from_networkx(grid).terms[0].edges) == 17
    parallel = nx.MultiGraph([(0, 1, {"weight": 1.0}), (0, 1, {"weight": 2.0})])
    assert pf.Field.from_networkx(parallel).energy([0, 1]) == 3.0
    arrow = nx.DiGraph()
    arrow.add_nodes_from([0, 1])
    arrow.add_edge(1, 0, table=[[0.0, 1.0], [2.0, 3.0]])  # rows: where the arrow starts
    assert pf.Field.from_networkx(arrow).energy([0, 1]) == 2.0


# ---- pgmpy ----


@dataclass
class DiscreteFactor:
    """As much of pgmpy's factors as is needed; state names may be missing."""

    variables: list[Any]
    values: Any
    state_names: dict[Any, list[Any]] = field(default_factory=dict)

    def to_factor(self) -> DiscreteFactor:
        return self


@dataclass
class MarkovNetwork:
    factors: list[DiscreteFactor]
    order: list[Any]

    def get_factors(self) -> list[DiscreteFactor]:
        return self.factors

    def nodes(self) -> list[Any]:
        return self.order


@dataclass
class BayesianNetwork:
    factors: list[DiscreteFactor]

    def get_cpds(self) -> list[DiscreteFactor]:
        return self.factors


STATES = {"rain": ["no", "yes"], "grass": ["dry", "wet"]}
FLIPPED = {"rain": ["yes", "no"], "grass": ["dry", "wet"]}
RAIN = DiscreteFactor(["rain"], [0.8, 0.2], {"rain": ["no", "yes"]})
GRASS = DiscreteFactor(["grass", "rain"], [[0.1, 0.9], [0.9, 0.1]], FLIPPED)


def check_sprinkler(field: pf.Field) -> None:
    """P(grass | rain): wet with 0.9 if it rains, dry with 0.9 if it doesn't."""
    assert exact_log_z(field) == pytest.approx(0.0, abs=1e-12)
    assert np.exp(-field.energy({"rain": "yes", "grass": "wet"})) == pytest.approx(0.2 * 0.9)
    assert np.exp(-field.energy({"rain": "no", "grass": "dry"})) == pytest.approx(0.8 * 0.9)
    assert np.exp(-field.energy({"rain": "no", "grass": "wet"})) == pytest.approx(0.8 * 0.1)
    wet = enumerate_field(field.condition({"grass": "wet"}))
    posterior = 0.2 * 0.9 / (0.2 * 0.9 + 0.8 * 0.1)
    at = field.layout.offsets[field.variable_index("rain")] + field.label_index("rain", "yes")
    assert np.concatenate([np.ravel(m) for m in wet.marginals])[at] == pytest.approx(posterior)


def test_bayesian_networks_with_states_in_any_order() -> None:
    field = pf.Field.from_pgmpy(BayesianNetwork([RAIN, GRASS]))
    assert field.names == ("rain", "grass")
    assert field.label_names == (("no", "yes"), ("dry", "wet"))
    check_sprinkler(field)


def test_markov_networks_keep_the_order_of_nodes() -> None:
    field = pf.Field.from_pgmpy(MarkovNetwork([RAIN, GRASS], ["grass", "rain"]))
    assert field.names == ("grass", "rain")
    check_sprinkler(field)


def test_factor_graphs_have_factors_among_their_nodes() -> None:
    class FactorGraph(MarkovNetwork):
        def get_variable_nodes(self) -> list[Any]:
            raise ValueError("as pgmpy says of graphs that it made itself")

    field = pf.Field.from_pgmpy(FactorGraph([RAIN, GRASS], ["phi_0", "grass", "phi_1", "rain"]))
    assert field.names == ("grass", "rain")
    check_sprinkler(field)


def test_factors_without_state_names() -> None:
    rng = np.random.default_rng(0)
    tables = {(0, 1): (2, 3), (1, 2): (3, 2), (0, 2): (2, 2), (0, 1, 2): (2, 3, 2), (): ()}
    factors = [DiscreteFactor(list(s), rng.random(shape)) for s, shape in tables.items()]
    factors.append(DiscreteFactor([2], [1.0, 0.0]))
    field = pf.Field.from_pgmpy(MarkovNetwork(factors, [0, 1, 2]))
    assert field.names == ("0", "1", "2")
    assert field.label_names == (("0", "1"), ("0", "1", "2"), ("0", "1"))
    for x in itertools.product(range(2), range(3), range(2)):
        value = np.prod([np.asarray(f.values)[tuple(x[v] for v in f.variables)] for f in factors])
        assert np.exp(-field.energy(list(x))) == pytest.approx(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.Field.from_pgmpy(3), "takes a model with get_cpds or get_factors, not int"),
        (
            lambda: pf.Field.from_pgmpy(MarkovNetwork([RAIN], ["rain", "sun"])),
            "no factor holds the variable 'sun'",
        ),
        (
            lambda: pf.Field.from_pgmpy(BayesianNetwork([DiscreteFactor(["a"], [1.0, -1.0])])),
            "factor 0 over ['a'] holds -1.0, expected finite numbers, 0 or more",
        ),
        (
            lambda: pf.Field.from_pgmpy(BayesianNetwork([DiscreteFactor(["a"], ["x", "y"])])),
            "values of factor 0 over ['a'] is ['x', 'y'], expected numbers",
        ),
        (
            lambda: pf.Field.from_pgmpy(BayesianNetwork([RAIN, DiscreteFactor(["a", "b"], [1.0])])),
            "factor 1 over ['a', 'b'] has values of shape (1,), expected an axis per variable",
        ),
        (
            lambda: pf.Field.from_pgmpy(
                BayesianNetwork([RAIN, DiscreteFactor(["rain"], [1, 2], {"rain": ["no", "hail"]})])
            ),
            "factors disagree on the states of 'rain'",
        ),
        (
            lambda: pf.Field.from_pgmpy(
                BayesianNetwork([RAIN, DiscreteFactor(["rain"], [1, 2, 3])])
            ),
            "factors disagree on the states of 'rain'",
        ),
    ],
)
def test_bad_models_get_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pgmpy() -> None:
    pytest.importorskip("pgmpy")
    from pgmpy.factors.discrete import DiscreteFactor as Factor
    from pgmpy.factors.discrete import TabularCPD

    models = __import__("pgmpy.models", fromlist=["models"])
    bayesian = getattr(models, "DiscreteBayesianNetwork", None) or models.BayesianNetwork
    markov = getattr(models, "DiscreteMarkovNetwork", None) or models.MarkovNetwork
    model = bayesian([("rain", "grass")])
    rain = TabularCPD("rain", 2, [[0.8], [0.2]], state_names={"rain": ["no", "yes"]})
    wet = TabularCPD("grass", 2, [[0.1, 0.9], [0.9, 0.1]], ["rain"], [2], state_names=FLIPPED)
    model.add_cpds(rain, wet)
    check_sprinkler(pf.Field.from_pgmpy(model))
    other = markov([("rain", "grass")])
    other.add_factors(
        Factor(["rain"], [2], [0.8, 0.2], {"rain": ["no", "yes"]}),
        Factor(["grass", "rain"], [2, 2], [0.1, 0.9, 0.9, 0.1], FLIPPED),
    )
    check_sprinkler(pf.Field.from_pgmpy(other))
    check_sprinkler(pf.Field.from_pgmpy(other.to_factor_graph()))
