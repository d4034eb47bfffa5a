"""pyAgrum: Shafer-Shenoy propagation in a junction tree, in C++."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, Peer, Question, Run
from proxfield.bench.peers.graph import factor_graph


class ShaferShenoy(Peer):
    """Exact marginals of Markov random fields."""

    name = "pyAgrum"
    tasks = (Question.INFERENCE,)
    method = "junction tree (Shafer-Shenoy)"
    package = "pyAgrum"
    module = "pyagrum"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        import pyagrum

        graph = factor_graph(problem)
        model = pyagrum.MarkovRandomField()
        names = [f"v{v}" for v in range(graph.n_vars)]
        for name, size in zip(names, graph.cardinalities, strict=True):
            model.add(pyagrum.RangeVariable(name, "", 0, size - 1))
        for scope, table in zip(graph.scopes, graph.tables, strict=True):
            factor = model.addFactor([names[v] for v in scope])
            # its first variable runs fastest, in memory and in what it shows
            values = np.exp(table.min() - table)
            factor.fillWith(values.transpose(_positions(factor, scope)).ravel().tolist())

        def run() -> Answer:
            tree = pyagrum.ShaferShenoyMRFInference(model)
            tree.makeInference()
            return Answer(graph.expand([tree.posterior(name).toarray() for name in names]))

        return run


def _positions(factor: Any, scope: tuple[int, ...]) -> list[int]:
    """Axes of our table in the order of the factor's variables, the slowest first."""
    order = [int(name[1:]) for name in factor.names][::-1]
    return [scope.index(v) for v in order]
