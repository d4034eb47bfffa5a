"""PGMax: loopy belief propagation in JAX."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, Peer, Question, Run
from proxfield.bench.peers.graph import FactorGraph, factor_graph

ITERATIONS = 200
DAMPING = 0.5
TOLERANCE = 1e-3
"""Largest change of a message, in float32, at which belief propagation counts as converged."""
FORBIDDEN = -1000.0
"""The log weight of impossible configurations: the tool takes finite ones."""


class PGMax(Peer):
    """Sum-product for marginals, max-product for labellings."""

    name = "PGMax BP"
    tasks = (Question.INFERENCE, Question.MAP)
    method = f"loopy belief propagation, damping {DAMPING}"
    package = "pgmax"
    module = "pgmax"
    install = 'pip install --no-deps pgmax && pip install "jax<0.5" joblib matplotlib tqdm'
    compiles = True

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        import jax
        from pgmax import infer

        graph = factor_graph(problem)
        bp, arrays, variables = build(graph)
        settings = {"num_iters": ITERATIONS, "damping": DAMPING}
        settings["temperature"] = 0.0 if task is Question.MAP else 1.0
        passes = jax.jit(lambda start: bp.run_with_diffs(start, **settings))

        def run() -> Answer:
            found, changes = passes(arrays)
            beliefs = bp.get_beliefs(found)
            converged = bool(np.asarray(changes)[-1] < TOLERANCE)
            if task is Question.MAP:
                labels = np.asarray(infer.decode_map_states(beliefs)[variables])
                return Answer(labels=graph.expand_labels(labels), converged=converged)
            q = np.asarray(infer.get_marginals(beliefs)[variables], dtype=np.float64)
            rows = [q[v, :size] for v, size in enumerate(graph.cardinalities)]
            return Answer(graph.expand(rows), converged=converged)

        return run


def build(graph: FactorGraph) -> tuple[Any, Any, Any]:
    """The compiled functions, their arrays and the group of variables."""
    from pgmax import fgraph, fgroup, infer, vgroup

    variables = vgroup.NDVarArray(num_states=np.array(graph.cardinalities), shape=(graph.n_vars,))
    whole = fgraph.FactorGraph(variable_groups=variables)
    alike: dict[tuple[int, ...], list[tuple[tuple[int, ...], Any]]] = defaultdict(list)
    for scope, table in graph.larger():
        alike[table.shape].append((scope, np.maximum(-table, FORBIDDEN)))
    for shape, members in alike.items():
        groups = [[variables[v] for v in scope] for scope, _ in members]
        weights = np.stack([weight for _, weight in members])
        if len(shape) == 2:
            whole.add_factors(fgroup.PairwiseFactorGroup(groups, weights))
        else:
            configurations = np.array(list(itertools.product(*map(range, shape))))
            flat = weights.reshape(len(members), -1)
            whole.add_factors(fgroup.EnumFactorGroup(groups, configurations, flat))
    bp = infer.build_inferer(whole.bp_state, backend="bp")
    evidence = np.zeros((graph.n_vars, max(graph.cardinalities)))
    for v, size in enumerate(graph.cardinalities):
        evidence[v, :size] = np.maximum(-graph.unary(v), FORBIDDEN)
    return bp, bp.init(evidence_updates={variables: evidence}), variables
