"""pyGMs: loopy belief propagation, naive mean field, mini-buckets and a junction tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, LogZKind, Peer, Question, Run
from proxfield.bench.peers.graph import FactorGraph, factor_graph

ITERATIONS = 50
"""Iterations of loopy belief propagation and of mean field; the tool has no test of convergence."""
CLIQUE_SIZE = 8
"""Variables per clique of mini-buckets (iBound)."""
BOUND_ITERATIONS = 10
"""Passes that tighten the bound of mini-buckets."""


FORBIDDEN = -69.0
"""The log weight of impossible configurations, beside the largest of their table."""


def build(graph: FactorGraph) -> tuple[Any, list[Any], float]:
    """The tool's model, its variables, and what its log Z lacks.

    Weights of each table are scaled to at most 1, so that none overflows, and zeros are replaced:
    with zeros its beliefs and its log Z aren't numbers.
    """
    import pygms

    variables = [pygms.Var(v, size) for v, size in enumerate(graph.cardinalities)]
    factors = [
        pygms.Factor(
            [variables[v] for v in scope], np.exp(np.maximum(table.min() - table, FORBIDDEN))
        )
        for scope, table in zip(graph.scopes, graph.tables, strict=True)
    ]
    lacking = -graph.constant - sum(float(table.min()) for table in graph.tables)
    return pygms.GraphModel(factors), variables, lacking


class PyGMs(Peer):
    """What all of pyGMs shares."""

    tasks = (Question.INFERENCE,)
    package = "pygms"
    module = "pygms"


class MessagePassing(PyGMs):
    """A function of pyGMs that iterates and returns log Z and a belief per variable."""

    function: str
    kind: LogZKind

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        from pygms import messagepass

        graph = factor_graph(problem)
        model, _, lacking = build(graph)

        def run() -> Answer:
            log_z, beliefs = getattr(messagepass, self.function)(model, maxIter=ITERATIONS)
            marginals = graph.expand([belief.table for belief in beliefs])
            return Answer(marginals, float(log_z) + lacking, self.kind)

        return run


class LoopyBP(MessagePassing):
    """Sum-product; its log Z is Bethe's approximation, which is no bound."""

    name = "pyGMs LBP"
    method = "loopy belief propagation, Bethe log Z"
    function = "LBP"
    kind = LogZKind.ESTIMATE


class NaiveMeanField(MessagePassing):
    """Coordinate ascent."""

    name = "pyGMs NMF"
    method = "naive mean field"
    function = "NMF"
    kind = LogZKind.LOWER


class MiniBuckets(PyGMs):
    """Weighted mini-buckets: an upper bound on log Z."""

    name = "pyGMs WMB"
    method = f"weighted mini-buckets, iBound {CLIQUE_SIZE}"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        from pygms.wmb import WMB

        graph = factor_graph(problem)
        model, _, lacking = build(graph)

        def run() -> Answer:
            buckets = WMB(model, iBound=CLIQUE_SIZE, weights="sum+")
            bound = np.inf
            for _ in range(BOUND_ITERATIONS):
                bound = min(bound, buckets.msgForward())
                buckets.msgBackward()
            return Answer(log_z=bound + lacking, kind=LogZKind.UPPER)

        return run


class JunctionTree(PyGMs):
    """Exact, where the treewidth is small."""

    name = "pyGMs JTree"
    method = "junction tree"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        import pygms
        from pygms.wmb import JTree

        graph = factor_graph(problem)
        model, variables, lacking = build(graph)
        wanted = [pygms.VarSet([v]) for v in variables]

        def run() -> Answer:
            tree = JTree(model)
            log_z = tree.msgForward()
            found = tree.beliefs(wanted)
            marginals = graph.expand([found[v].table for v in wanted])
            return Answer(marginals, log_z + lacking, LogZKind.EXACT)

        return run
