"""`CRF`: a log-linear conditional random field over graphs, with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as field_of
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from proxfield.core.common.arrays import Array, Ints
from proxfield.core.common.checks import one_of, whole_number
from proxfield.core.common.memory import check_memory
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.learn.estimator import Estimator, Instance, as_sequence
from proxfield.learn.methods import (
    METHODS,
    Loss,
    Unrolled,
    check_updates,
    find_loss,
    find_method,
)
from proxfield.learn.optimize import Callback, check_limits, stages, stoppable
from proxfield.learn.structure import Structure, prepare
from proxfield.learn.tied import Block, Parameters, TiedField, as_integers

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

UPDATES = (20, 40, 80)
"""Numbers of updates that `CRF` learns through, one after the other if it has to."""
SETTLED = 0.005
"""Marginals that change less, on average and per step, count as settled."""
MARGINALS_TOL = 1e-4
"""`CRF` ends "marginals" where an iteration lowers its objective by a smaller share."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One instance for `CRF`: nodes with features, and edges between them.

    Args:
        nodes: Features of the nodes, an array or a sparse matrix (n, F); for ``unary="table"`` an
            index of tables (n,).
        edges: Pairs of nodes.  # (m, 2)
        edge_features: Features of the edges, an array or a sparse matrix.  # (m, F)
        edge_index: Instead of features: the table that each edge uses. Without either, all edges
            share one.  # (m,)
        observed: Labels that are given as inputs, -1 for nodes whose labels are to be predicted.
            # (n,)

    Example:
        >>> Graph([[0.1], [0.3]], [[0, 1]]).n_nodes
        2
    """

    nodes: Array
    edges: ArrayLike = ()
    edge_features: Array = None
    edge_index: ArrayLike | None = None
    observed: ArrayLike | None = None

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return int(self.nodes.shape[0]) if sparse.issparse(self.nodes) else len(self.nodes)


@dataclass(eq=False, repr=False)
class CRF(Estimator):
    """A log-linear field over graphs: E = Σ_i x_i·U[:, y_i] + Σ_e Σ_f x_ef V_f[y_i, y_j].

    Args:
        unary: "linear" (node features times U) or "table" (nodes are an index of rows of U).
        pairwise: "potts" (one weight per edge feature or index), "ising" (the same for two labels,
            as J·s·t), "table" (a full table per edge feature or index) or "none".
        method: "marginals", "chains" or "pseudo", which the others start from.
        loss: What "marginals" minimizes: "log", "dice", "iou" or a function like those in `LOSSES`.
        l2: Weight of ½ ‖parameters‖², in a sum over all labels.
        rule: The rule of inference for predictions; see `proxfield.RULES`.
        fit_intercept: Add an energy per label to all nodes.
        n_labels: Number of labels; by default one more than the largest in the training set.
        class_weight: Weights of the true labels: numbers, "balanced", or None for 1.
        n_updates: Damped updates that "marginals" learns through. None: 20, and then 40 and 80 as
            long as marginals still change at the end of them, because predictions iterate on.
        step: Their step.
        max_iters: Maximum number of iterations of each method; None: each method's own.
        device: Where "marginals" runs: "cpu", or a device of torch such as "cuda".
        seed: Random seed.

    Attributes:
        parameters_: Learnt parameters: "unary" (F, labels), "pairwise" and "intercept".
        n_labels_: Number of labels.
        n_features_in_: Number of node features (of rows of U for tables).
        n_edge_features_: Number of edge features, or of values of the edge index.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> truth = [np.repeat(rng.integers(0, 2, 8), 5) for _ in range(20)]
        >>> chain = [[i, i + 1] for i in range(39)]
        >>> X = [(y[:, None] + rng.normal(size=(40, 1)), chain) for y in truth]
        >>> model = CRF(rule="sweep").fit(X[:10], truth[:10])
        >>> model.score(X[10:], truth[10:]) > 0.75
        True
    """

    saved_attributes: ClassVar[tuple[str, ...]] = (
        *Estimator.saved_attributes, "n_features_in_", "n_edge_features_", "uses_index_",
    )  # fmt: skip
    unary: str = "linear"
    pairwise: str = "potts"
    method: str = "marginals"
    loss: str | Loss = "log"
    l2: float = 0.01
    rule: str = "auto"
    fit_intercept: bool = True
    n_labels: int | None = None
    class_weight: ArrayLike | str | None = None
    n_updates: int | None = None
    step: float = 0.5
    max_iters: int | None = None
    device: str = "cpu"
    seed: int = 0
    n_features_in_: int = field_of(init=False)
    n_edge_features_: int = field_of(init=False)
    uses_index_: bool = field_of(init=False)
    """Whether edges have an index of tables rather than features."""

    def fit(
        self, X: Sequence[Instance], y: Sequence[ArrayLike], callback: Callback | None = None
    ) -> Self:
        """Learn the parameters.

        Args:
            X: Instances: `Graph`, or tuples (nodes, edges[, edge_features]).
            y: Labels of the nodes of each instance, -1 where unknown.
            callback: Called with a `FitProgress` after each iteration; true ends the method.

        Returns:
            The estimator. Ctrl-C keeps the best parameters so far.
        """
        self._check()
        X, y = as_sequence(X), as_sequence(y, "y")
        if len(X) != len(y):
            raise InputError(f"{len(X)} instances but {len(y)} labellings")
        graphs = [_located(as_graph, k, x) for k, x in enumerate(X)]
        labels = [_located(_as_labels, k, value) for k, value in enumerate(y)]
        sizes = self._sizes(graphs, labels)
        n_labels, n_features, n_edge_features, _ = sizes
        tables = n_features + (0 if self.pairwise == "none" else n_edge_features * n_labels)
        check_memory(8 * n_labels * tables, f"a field of {n_labels} labels")
        tied = (
            _located(self._tie, k, graph, sizes, value)
            for k, (graph, value) in enumerate(zip(graphs, labels, strict=True))
        )
        structure = prepare(tied)
        parameters = self._learn(structure, callback)
        self.n_labels_, self.n_features_in_, self.n_edge_features_, self.uses_index_ = sizes
        self.parameters_ = parameters
        facts = {
            "instances": len(graphs),
            "nodes": sum(g.n_nodes for g in graphs),
            "known labels": structure.n_known,
            "labels": self.n_labels_,
        }
        pairs = zip(graphs, labels, strict=True)
        parts = (part for graph, value in pairs for part in (*vars(graph).values(), value))
        return self.tell_about(facts, parts)

    def _learn(self, structure: Structure, callback: Callback | None) -> Parameters:
        """Pseudo-likelihood, and the estimator's method from there; Ctrl-C ends both."""
        parameters = {name: np.zeros(shape) for name, shape in structure.shapes.items()}
        given: Record = {"l2": float(self.l2), "callback": callback}
        if self.max_iters is not None:
            given["max_iters"] = self.max_iters
        weighted = {**given, "class_weight": self.class_weight}
        with stages() as interrupted, stoppable():
            parameters = METHODS["pseudo"](structure, parameters, **weighted)
            if self.method == "marginals":
                options = {"loss": self.loss, "step": self.step, "tol": MARGINALS_TOL, **weighted}
                options["device"] = self.device
                for n in UPDATES if self.n_updates is None else (self.n_updates,):
                    if interrupted():
                        break
                    found = METHODS["marginals"](structure, parameters, n_updates=n, **options)
                    parameters = found
                    run = Unrolled(structure.updates(structure.tables(found)), n, self.step)
                    if run.change < SETTLED:
                        break
            elif self.method != "pseudo" and not interrupted():
                method = find_method(self.method)
                parameters = method(structure, parameters, seed=self.seed, **given)
        return parameters

    def field(self, instance: Instance) -> Field:
        """An instance as an ordinary `Field`, with the learned parameters.

        Args:
            instance: A `Graph` or a tuple; observed labels become evidence.
        """
        self.check_fitted()
        return self.tied(instance).field(self.parameters_)

    def tied(self, instance: Instance, labels: ArrayLike | None = None) -> TiedField:
        """An instance as a `TiedField` over this estimator's parameters.

        Args:
            instance: A `Graph` or a tuple.
            labels: Its labels, -1 where unknown.
        """
        self.check_fitted()
        sizes = (self.n_labels_, self.n_features_in_, self.n_edge_features_, self.uses_index_)
        value = None if labels is None else _as_labels(labels)
        return self._tie(as_graph(instance), sizes, value)

    def is_target(self, instance: Instance, n: int) -> NDArray[np.bool_]:
        observed = as_graph(instance).observed
        return np.ones(n, dtype=bool) if observed is None else np.asarray(observed) < 0

    def _check(self) -> None:
        one_of("unary", self.unary, ("linear", "table"))
        one_of("pairwise", self.pairwise, ("potts", "ising", "table", "none"))
        find_method(self.method)
        find_loss(self.loss)
        make_rule(self.rule, {})
        check_limits(self.l2, 0 if self.max_iters is None else self.max_iters)
        check_updates(UPDATES[0] if self.n_updates is None else self.n_updates, self.step)
        whole_number(self.seed, "seed", 0)

    def _sizes(self, graphs: list[Graph], labels: list[Ints]) -> tuple[int, int, int, bool]:
        """Numbers of labels, node features and edge features; whether edges have an index."""
        n_labels = self.n_labels
        if n_labels is None:
            n_labels = 1 + max(
                max(0, _largest(value), _largest(g.observed))
                for g, value in zip(graphs, labels, strict=True)
            )
        n_labels = max(2, whole_number(n_labels, "n_labels", 1))
        if self.unary == "table":
            n_features = 1 + max(_largest(g.nodes) for g in graphs)
        else:
            n_features = _width(graphs[0].nodes, "node features")
        first = next((g for g in graphs if g.edge_features is not None), None)
        if first is not None:
            return n_labels, n_features, _width(first.edge_features, "edge features"), False
        return n_labels, n_features, 1 + max(0, *(_largest(g.edge_index) for g in graphs)), True

    def _tie(
        self, graph: Graph, sizes: tuple[int, int, int, bool], labels: Ints | None
    ) -> TiedField:
        n_labels, n_features, n_edge_features, uses_index = sizes
        n = graph.n_nodes
        if n == 0:
            raise InputError("has no nodes, expected at least one")
        nodes, blocks = np.arange(n), []
        if self.unary == "table":
            blocks.append(Block("unary", nodes, index=graph.nodes, n_tables=n_features))
        else:
            _check_width(graph.nodes, n_features, "node features")
            blocks.append(Block("unary", nodes, features=graph.nodes))
        if self.fit_intercept:
            blocks.append(Block("intercept", nodes, index=np.zeros(n, np.int32), n_tables=1))
        edges = np.asarray(graph.edges)
        edges = edges.reshape(0, 2).astype(np.int32) if edges.size == 0 else edges
        if edges.ndim != 2 or edges.shape[1] != 2:
            raise InputError(f"edges have shape {edges.shape}, expected (edges, 2)")
        if self.pairwise != "none":
            form, features, index = self.pairwise, graph.edge_features, graph.edge_index
            if uses_index and features is not None:
                raise InputError("edges have features, those of other instances have none")
            if uses_index:
                index = np.zeros(len(edges), np.int32) if index is None else index
                blocks.append(Block("pairwise", edges, None, index, n_edge_features, form))
            elif features is not None:
                _check_width(features, n_edge_features, "edge features")
                blocks.append(Block("pairwise", edges, features, form=form))
            elif len(edges):
                raise InputError("edges have no features, other instances' have them")
        observed = None if graph.observed is None else _as_labels(graph.observed)
        return TiedField(np.full(n, n_labels), blocks, labels, observed)


def as_graph(instance: Instance) -> Graph:
    """A `Graph`, also from a tuple (nodes, edges) or (nodes, edges, edge features)."""
    if isinstance(instance, tuple) and 1 <= len(instance) <= 3:
        instance = Graph(*instance)
    if isinstance(instance, Graph):
        for name in ("nodes", "edges", "edge features"):
            _check_rows(getattr(instance, name.replace(" ", "_")), name)
        if np.ndim(instance.nodes) == 0:
            kind = type(instance.nodes).__name__
            raise InputError(f"nodes are a {kind}, expected an array of features or an index")
        if instance.edge_features is not None and instance.edge_index is not None:
            raise InputError("edges have features and an index, expected one of them")
        return instance
    raise InputError(
        f"it is a {type(instance).__name__}, expected a Graph or a tuple "
        "(nodes, edges[, edge_features])"
    )


def _check_rows(values: object, what: str) -> None:
    """Refuse nested lists that are no array."""
    if isinstance(values, (list, tuple)):
        try:
            np.shape(values)
        except ValueError:
            raise InputError(f"{what} have rows of different lengths, expected one array") from None


def _located(function: Callable[..., T], number: int, *args: object) -> T:
    """Call a function; its errors say which instance they are about."""
    try:
        return function(*args)
    except InputError as error:
        raise InputError(f"instance {number}: {error}") from None


def _as_labels(labels: ArrayLike) -> Ints:
    _check_rows(labels, "labels")
    return np.asarray(as_integers(labels, "labels").ravel(), dtype=np.int64)


def _largest(values: ArrayLike | None) -> int:
    return -1 if values is None else int(as_integers(values, "an index or labels").max(initial=-1))


def _width(features: Array, what: str) -> int:
    shape = tuple(features.shape if sparse.issparse(features) else np.shape(features))
    if len(shape) != 2:
        raise InputError(f"{what} have shape {shape}, expected two dimensions")
    return int(shape[1])


def _check_width(features: Array, expected: int, what: str) -> None:
    found = _width(features, what)
    if found != expected:
        raise InputError(f"it has {found} {what}, expected {expected} as in the others")
