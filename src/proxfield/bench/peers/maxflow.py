"""PyMaxflow: graph cuts, exact for binary pairwise models in which neighbors attract."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, Peer, Question, Run
from proxfield.bench.peers.graph import factor_graph
from proxfield.errors import UnsupportedError


class GraphCut(Peer):
    """The minimum cut of a submodular energy."""

    name = "PyMaxflow"
    tasks = (Question.MAP,)
    method = "graph cut"
    package = "PyMaxflow"
    module = "maxflow"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        import maxflow

        graph = factor_graph(problem)
        if any(size != 2 for size in graph.cardinalities):
            raise UnsupportedError("binary variables only")
        ones = np.array([np.subtract(*graph.unary(v)[::-1]) for v in range(graph.n_vars)])
        pairs = []
        for scope, t in graph.larger():
            if len(scope) > 2:
                raise UnsupportedError("pairs only")
            weight = t[0, 1] + t[1, 0] - t[0, 0] - t[1, 1]
            if not np.isfinite(t).all() or weight < 0:
                raise UnsupportedError("attractive couplings only")
            a, b = scope  # E = t00 + (t10 − t00) x_a + (t11 − t10) x_b + weight · (1 − x_a) x_b
            ones[a] += t[1, 0] - t[0, 0]
            ones[b] += t[1, 1] - t[1, 0]
            pairs.append((a, b, weight))

        def run() -> Answer:
            cut = maxflow.Graph[float](graph.n_vars, len(pairs))
            nodes = cut.add_nodes(graph.n_vars)
            for v, cost in enumerate(ones):  # label 1 is the side of the sink
                cut.add_tedge(nodes[v], max(cost, 0.0), max(-cost, 0.0))
            for a, b, weight in pairs:
                cut.add_edge(nodes[a], nodes[b], weight, 0.0)
            cut.maxflow()
            labels = [cut.get_segment(node) for node in nodes]
            return Answer(labels=graph.expand_labels(labels), proved=True)

        return run
