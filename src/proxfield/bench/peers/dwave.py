"""dwave-samplers: tree decomposition and simulated annealing of binary pairwise models."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, LogZKind, Peer, Question, Run
from proxfield.bench.peers.graph import FactorGraph, factor_graph
from proxfield.errors import UnsupportedError

READS = 16
"""Runs of simulated annealing, of which the best counts."""
SWEEPS = 1000
"""Sweeps of each."""


def build(graph: FactorGraph) -> Any:
    """A binary quadratic model: E = Σ a_i x_i + Σ b_ij x_i x_j + c with x in {0, 1}."""
    import dimod

    if any(size != 2 for size in graph.cardinalities):
        raise UnsupportedError("binary variables only")
    if any(len(scope) > 2 for scope in graph.scopes):
        raise UnsupportedError("pairs only")
    if not all(np.isfinite(table).all() for table in graph.tables):
        raise UnsupportedError("no zero probabilities")
    model = dimod.BinaryQuadraticModel("BINARY")
    for v in range(graph.n_vars):
        low, high = graph.unary(v)
        model.add_linear(v, high - low)
        model.offset += low
    for (a, b), t in graph.larger():
        model.offset += t[0, 0]
        model.add_linear(a, t[1, 0] - t[0, 0])
        model.add_linear(b, t[0, 1] - t[0, 0])
        model.add_quadratic(a, b, t[1, 1] - t[1, 0] - t[0, 1] + t[0, 0])
    return model


class Dwave(Peer):
    """What both share."""

    package = "dwave-samplers"
    module = "dwave.samplers"


class TreeDecomposition(Dwave):
    """Exact, where the treewidth is small."""

    name = "dwave tree"
    tasks = (Question.INFERENCE, Question.MAP)
    method = "tree decomposition"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        from dwave.samplers import TreeDecompositionSampler, TreeDecompositionSolver

        graph = factor_graph(problem)
        model = build(graph)

        def run() -> Answer:
            if task is Question.MAP:
                best = TreeDecompositionSolver().sample(model).first.sample
                labels = [best[v] for v in range(graph.n_vars)]
                return Answer(labels=graph.expand_labels(labels), proved=True)
            info = TreeDecompositionSampler().sample(model, beta=1.0, num_reads=1).info
            ones = np.array([info["variable_marginals"][v] for v in range(graph.n_vars)])
            rows = np.stack([1 - ones, ones], axis=1)
            log_z = info["log_partition_function"] - graph.constant
            return Answer(graph.expand(list(rows)), log_z, LogZKind.EXACT)

        return run


class Annealing(Dwave):
    """Simulated annealing."""

    name = "dwave annealing"
    tasks = (Question.MAP,)
    method = f"simulated annealing, {READS} reads of {SWEEPS} sweeps"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        from dwave.samplers import SimulatedAnnealingSampler

        graph = factor_graph(problem)
        model = build(graph)

        def run() -> Answer:
            found = SimulatedAnnealingSampler().sample(
                model, num_reads=READS, num_sweeps=SWEEPS, seed=1
            )
            best = found.first.sample
            return Answer(labels=graph.expand_labels([best[v] for v in range(graph.n_vars)]))

        return run
