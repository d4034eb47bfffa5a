"""Other tools: how each is given a factor graph, and how it is asked.

A function imports its tool, builds the tool's model and returns what is to be timed.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, LogZKind, Question, Run
from proxfield.bench.peers.graph import Factor, FactorGraph
from proxfield.bench.peers.problems import SETTINGS, UPDATES, NoisyScene
from proxfield.errors import UnsupportedError

# ---- pyGMs ----

GMS_ITERATIONS = 50
"""Iterations of loopy belief propagation and of mean field; the tool has no test of convergence."""
CLIQUE_SIZE = 8
"""Variables per clique of mini-buckets (iBound)."""
BOUND_ITERATIONS = 10
"""Passes that tighten the bound of mini-buckets."""
GMS_FORBIDDEN = -69.0
"""The log weight of impossible configurations, beside the largest of their table."""


def gms_model(graph: FactorGraph) -> tuple[Any, list[Any], float]:
    """The tool's model, its variables, and what its log Z lacks.

    Weights of each table are scaled to at most 1, so that none overflows, and zeros are replaced:
    with zeros its beliefs and its log Z aren't numbers.
    """
    import pygms

    variables = [pygms.Var(v, size) for v, size in enumerate(graph.cardinalities)]
    factors = [
        pygms.Factor(
            [variables[v] for v in scope], np.exp(np.maximum(table.min() - table, GMS_FORBIDDEN))
        )
        for scope, table in graph.factors
    ]
    lacking = -graph.constant - sum(float(table.min()) for _, table in graph.factors)
    return pygms.GraphModel(factors), variables, lacking


def gms_messages(
    task: Question, graph: FactorGraph, budget: float, *, function: str, kind: LogZKind
) -> Run:
    """A function of pyGMs that iterates and returns log Z and a belief per variable.

    Of loopy belief propagation (LBP), log Z is Bethe's approximation, which is no bound; NMF is
    coordinate ascent.
    """
    from pygms import messagepass

    model, _, lacking = gms_model(graph)

    def run() -> Answer:
        log_z, beliefs = getattr(messagepass, function)(model, maxIter=GMS_ITERATIONS)
        marginals = graph.expand([belief.table for belief in beliefs])
        return Answer(marginals, float(log_z) + lacking, kind)

    return run


def mini_buckets(task: Question, graph: FactorGraph, budget: float) -> Run:
    """Weighted mini-buckets of pyGMs: an upper bound on log Z."""
    from pygms.wmb import WMB

    model, _, lacking = gms_model(graph)

    def run() -> Answer:
        buckets = WMB(model, iBound=CLIQUE_SIZE, weights="sum+")
        bound = np.inf
        for _ in range(BOUND_ITERATIONS):
            bound = min(bound, buckets.msgForward())
            buckets.msgBackward()
        return Answer(log_z=bound + lacking, kind=LogZKind.UPPER)

    return run


def junction_tree(task: Question, graph: FactorGraph, budget: float) -> Run:
    """The junction tree of pyGMs: exact, where the treewidth is small."""
    import pygms
    from pygms.wmb import JTree

    model, variables, lacking = gms_model(graph)
    wanted = [pygms.VarSet([v]) for v in variables]

    def run() -> Answer:
        tree = JTree(model)
        log_z = tree.msgForward()
        found = tree.beliefs(wanted)
        marginals = graph.expand([found[v].table for v in wanted])
        return Answer(marginals, log_z + lacking, LogZKind.EXACT)

    return run


# ---- PGMax, pgmpy, pyAgrum ----

BP_ITERATIONS = 200
BP_DAMPING = 0.5
BP_TOLERANCE = 1e-3
"""Largest change of a message, in float32, at which belief propagation counts as converged."""
BP_FORBIDDEN = -1000.0
"""The log weight of impossible configurations: the tool takes finite ones."""


def pgmax(task: Question, graph: FactorGraph, budget: float) -> Run:
    """Belief propagation in JAX: sum-product for marginals, max-product for labellings."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    variables = vgroup.NDVarArray(num_states=np.array(graph.cardinalities), shape=(graph.n_vars,))
    whole = fgraph.FactorGraph(variable_groups=variables)
    alike: dict[tuple[int, ...], list[Factor]] = defaultdict(list)
    for scope, table in graph.larger():
        alike[table.shape].append((scope, np.maximum(-table, BP_FORBIDDEN)))
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
        evidence[v, :size] = np.maximum(-graph.unary(v), BP_FORBIDDEN)
    arrays = bp.init(evidence_updates={variables: evidence})
    settings = {"num_iters": BP_ITERATIONS, "damping": BP_DAMPING}
    settings["temperature"] = 0.0 if task is Question.MAP else 1.0
    passes = jax.jit(lambda start: bp.run_with_diffs(start, **settings))

    def run() -> Answer:
        found, changes = passes(arrays)
        beliefs = bp.get_beliefs(found)
        converged = bool(np.asarray(changes)[-1] < BP_TOLERANCE)
        if task is Question.MAP:
            labels = np.asarray(infer.decode_map_states(beliefs)[variables])
            return Answer(labels=graph.expand_labels(labels), converged=converged)
        q = np.asarray(infer.get_marginals(beliefs)[variables], dtype=np.float64)
        rows = [q[v, :size] for v, size in enumerate(graph.cardinalities)]
        return Answer(graph.expand(rows), converged=converged)

    return run


def pgmpy(task: Question, graph: FactorGraph, budget: float) -> Run:
    """Variable elimination, which is exact; results of Markov networks come unnormalized.

    Its belief propagation on a junction tree compares beliefs with an absolute tolerance of 1e-8,
    so that small weights end it too early: on a tree of 40 variables, marginals of version 1.1.2
    were off by 0.17 with weights up to 1, and exact with the same weights times 10.
    """
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteMarkovNetwork

    model = DiscreteMarkovNetwork()
    model.add_nodes_from(range(graph.n_vars))
    for scope, _ in graph.larger():
        model.add_edges_from(itertools.combinations(scope, 2))
    lone = set(range(graph.n_vars)) - {s[0] for s, _ in graph.factors if len(s) == 1}
    zeros: list[Factor] = [((v,), np.zeros(graph.cardinalities[v])) for v in sorted(lone)]
    for scope, table in [*graph.factors, *zeros]:
        sizes = [graph.cardinalities[v] for v in scope]
        model.add_factors(DiscreteFactor(list(scope), sizes, np.exp(table.min() - table)))

    def run() -> Answer:
        queries = VariableElimination(model)
        rows = [
            np.asarray(queries.query([v], show_progress=False).values, dtype=np.float64)
            for v in range(graph.n_vars)
        ]
        return Answer(graph.expand([row / row.sum() for row in rows]))

    return run


def pyagrum(task: Question, graph: FactorGraph, budget: float) -> Run:
    """Exact marginals by Shafer-Shenoy propagation in a junction tree, in C++."""
    import pyagrum as agrum

    model = agrum.MarkovRandomField()
    names = [f"v{v}" for v in range(graph.n_vars)]
    for name, size in zip(names, graph.cardinalities, strict=True):
        model.add(agrum.RangeVariable(name, "", 0, size - 1))
    for scope, table in graph.factors:
        factor = model.addFactor([names[v] for v in scope])
        # its first variable runs fastest, in memory and in what it shows
        axes = [scope.index(int(name[1:])) for name in factor.names][::-1]
        factor.fillWith(np.exp(table.min() - table).transpose(axes).ravel().tolist())

    def run() -> Answer:
        tree = agrum.ShaferShenoyMRFInference(model)
        tree.makeInference()
        return Answer(graph.expand([tree.posterior(name).toarray() for name in names]))

    return run


# ---- dwave-samplers ----

READS = 16
"""Runs of simulated annealing, of which the best counts."""
SWEEPS = 1000
"""Sweeps of each."""


def binary_pairs(graph: FactorGraph) -> None:
    """Refuse a graph that has more than two labels or tables over more than two variables."""
    if any(size != 2 for size in graph.cardinalities):
        raise UnsupportedError("binary variables only")
    if any(len(scope) > 2 for scope, _ in graph.factors):
        raise UnsupportedError("pairs only")


def binary_quadratic(graph: FactorGraph) -> Any:
    """A binary quadratic model: E = Σ a_i x_i + Σ b_ij x_i x_j + c with x in {0, 1}."""
    import dimod

    binary_pairs(graph)
    if not all(np.isfinite(table).all() for _, table in graph.factors):
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


def dwave(task: Question, graph: FactorGraph, budget: float, *, annealing: bool = False) -> Run:
    """Tree decomposition, exact where the treewidth is small; or simulated annealing."""
    from dwave import samplers

    model = binary_quadratic(graph)

    def run() -> Answer:
        if task is Question.MAP:
            solver = samplers.TreeDecompositionSolver()
            if annealing:
                solver = samplers.SimulatedAnnealingSampler()
            options = {"num_reads": READS, "num_sweeps": SWEEPS, "seed": 1} if annealing else {}
            best = solver.sample(model, **options).first.sample
            labels = [best[v] for v in range(graph.n_vars)]
            return Answer(labels=graph.expand_labels(labels), proved=not annealing)
        info = samplers.TreeDecompositionSampler().sample(model, beta=1.0, num_reads=1).info
        ones = np.array([info["variable_marginals"][v] for v in range(graph.n_vars)])
        rows = np.stack([1 - ones, ones], axis=1)
        log_z = info["log_partition_function"] - graph.constant
        return Answer(graph.expand(list(rows)), log_z, LogZKind.EXACT)

    return run


# ---- PyMaxflow, toulbar2 ----

DECIMALS = 6
"""Decimals of energies: toulbar2 computes with whole numbers."""
COST_FORBIDDEN = 1e6
"""The cost of impossible configurations."""


def maxflow(task: Question, graph: FactorGraph, budget: float) -> Run:
    """Graph cuts, exact for binary pairwise models in which neighbors attract."""
    import maxflow as tool

    binary_pairs(graph)
    ones = np.array([np.subtract(*graph.unary(v)[::-1]) for v in range(graph.n_vars)])
    pairs = []
    for (a, b), t in graph.larger():
        weight = t[0, 1] + t[1, 0] - t[0, 0] - t[1, 1]
        if not np.isfinite(t).all() or weight < 0:
            raise UnsupportedError("attractive couplings only")
        # E = t00 + (t10 − t00) x_a + (t11 − t10) x_b + weight · (1 − x_a) x_b
        ones[a] += t[1, 0] - t[0, 0]
        ones[b] += t[1, 1] - t[1, 0]
        pairs.append((a, b, weight))

    def run() -> Answer:
        cut = tool.Graph[float](graph.n_vars, len(pairs))
        nodes = cut.add_nodes(graph.n_vars)
        for v, cost in enumerate(ones):  # label 1 is the side of the sink
            cut.add_tedge(nodes[v], max(cost, 0.0), max(-cost, 0.0))
        for a, b, weight in pairs:
            cut.add_edge(nodes[a], nodes[b], weight, 0.0)
        cut.maxflow()
        labels = [cut.get_segment(node) for node in nodes]
        return Answer(labels=graph.expand_labels(labels), proved=True)

    return run


def toulbar2(task: Question, graph: FactorGraph, budget: float) -> Run:
    """Branch and bound with a time limit, which proves labellings optimal."""
    import pytoulbar2

    limit = max(1, math.ceil(budget))

    def run() -> Answer:  # a model can be solved only once, so building it counts
        model = pytoulbar2.CFN(resolution=DECIMALS, verbose=-1)
        for v, size in enumerate(graph.cardinalities):
            model.AddVariable(f"v{v}", range(size))
        for scope, table in graph.factors:
            low = table[np.isfinite(table)].min()
            costs = np.minimum(table - low, COST_FORBIDDEN).ravel().tolist()
            model.AddFunction(list(scope), costs)
        found = model.Solve(timeLimit=limit)
        if found is None:
            raise UnsupportedError(f"no labelling found in {limit} s")
        proved = model.GetDDualBound() >= found[1] - 10.0**-DECIMALS
        return Answer(labels=graph.expand_labels(list(found[0])), proved=bool(proved))

    return run


# ---- pydensecrf ----


def pydensecrf(task: Question, scene: NoisyScene, budget: float) -> Run:
    """Dense CRFs of images with a permutohedral lattice, in C++; through the fork pydensecrf2."""
    from pydensecrf import densecrf

    height, width, n_labels = scene.probabilities.shape
    energies = -np.log(np.maximum(scene.probabilities, SETTINGS["clip"]))
    energies = np.ascontiguousarray(energies.reshape(-1, n_labels).T.astype(np.float32))
    image, s = np.ascontiguousarray(scene.image), SETTINGS

    def run() -> Answer:
        crf = densecrf.DenseCRF2D(width, height, n_labels)
        crf.setUnaryEnergy(energies)
        crf.addPairwiseGaussian(s["spatial_sigma"], s["spatial_weight"])
        crf.addPairwiseBilateral(
            s["bilateral_sigma"], s["bilateral_color"], image, s["bilateral_weight"]
        )
        q = np.array(crf.inference(UPDATES))
        return Answer(labels=q.argmax(axis=0).reshape(height, width))

    return run
