"""toulbar2: branch and bound, which proves labellings optimal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, Peer, Question, Run
from proxfield.bench.peers.graph import factor_graph
from proxfield.errors import UnsupportedError

DECIMALS = 6
"""Decimals of energies: the tool computes with whole numbers."""
FORBIDDEN = 1e6
"""The cost of impossible configurations."""


class Toulbar2(Peer):
    """Exact optimization with a time limit."""

    name = "toulbar2"
    tasks = (Question.MAP,)
    method = "branch and bound with soft local consistency"
    package = "pytoulbar2"
    module = "pytoulbar2"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        import pytoulbar2

        graph = factor_graph(problem)
        limit = max(1, math.ceil(budget))

        def run() -> Answer:  # a model can be solved only once, so building it counts
            model = pytoulbar2.CFN(resolution=DECIMALS, verbose=-1)
            for v, size in enumerate(graph.cardinalities):
                model.AddVariable(f"v{v}", range(size))
            for scope, table in zip(graph.scopes, graph.tables, strict=True):
                low = table[np.isfinite(table)].min()
                costs = np.minimum(table - low, FORBIDDEN).ravel().tolist()
                model.AddFunction(list(scope), costs)
            found = model.Solve(timeLimit=limit)
            if found is None:
                raise UnsupportedError(f"no labelling found in {limit} s")
            proved = model.GetDDualBound() >= found[1] - 10.0**-DECIMALS
            return Answer(labels=graph.expand_labels(list(found[0])), proved=bool(proved))

        return run
