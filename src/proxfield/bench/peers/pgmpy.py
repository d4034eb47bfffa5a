"""pgmpy: belief propagation on a junction tree, which is exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, Peer, Run, Task
from proxfield.bench.peers.graph import factor_graph


class Pgmpy(Peer):
    """Calibrates a junction tree and asks it for every variable."""

    name = "pgmpy BP"
    tasks = (Task.INFERENCE,)
    method = "junction tree"
    package = "pgmpy"
    module = "pgmpy"
    install = "pip install pgmpy"

    def prepare(self, task: Task, problem: Any, budget: float) -> Run:
        from pgmpy.factors.discrete import DiscreteFactor
        from pgmpy.inference import BeliefPropagation
        from pgmpy.models import DiscreteMarkovNetwork

        graph = factor_graph(problem)
        model = DiscreteMarkovNetwork()
        model.add_nodes_from(range(graph.n_vars))
        for scope, _ in graph.larger():
            model.add_edges_from((a, b) for k, a in enumerate(scope) for b in scope[k + 1 :])
        lone = set(range(graph.n_vars)) - {s[0] for s in graph.scopes if len(s) == 1}
        tables = [*zip(graph.scopes, graph.tables, strict=True)]
        tables += [((v,), np.zeros(graph.cardinalities[v])) for v in sorted(lone)]
        for scope, table in tables:
            sizes = [graph.cardinalities[v] for v in scope]
            model.add_factors(DiscreteFactor(list(scope), sizes, np.exp(table.min() - table)))

        def run() -> Answer:
            tree = BeliefPropagation(model)
            tree.calibrate()
            rows = [
                tree.query([v], show_progress=False).values.astype(np.float64)
                for v in range(graph.n_vars)
            ]
            return Answer(graph.expand(rows))

        return run
