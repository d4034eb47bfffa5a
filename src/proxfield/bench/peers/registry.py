"""All peers, in the order of tables; and how proxfield's own are asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from proxfield.bench.peers import tools
from proxfield.bench.peers.base import Answer, LogZKind, Peer, Question, Run
from proxfield.bench.peers.graph import Elimination, factor_graph
from proxfield.bench.peers.problems import SETTINGS, UPDATES, NoisyScene
from proxfield.core.common.records import Record
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.search.labelling import MapSearch
from proxfield.core.solve.search.modes import infer_modes
from proxfield.core.solve.solve_map import MapStatus, answer
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.images.densecrf import DenseCRF


def _request(rule: str | Rule, budget: float | None, tol: float = 1e-6) -> Request:
    """The defaults of `proxfield.infer` on one thread, with a budget in CPU time."""
    return Request(
        make_rule(rule), tol=tol, budget=budget, threads=1, trace=False, now=time.process_time
    )


def _mean_field(task: Question, field: Field, budget: float, *, rule: str, modes: int = 1) -> Run:
    """A rule or a mixture; auto gets the time budget, others run until they converge."""
    request = _request(rule, budget if rule == "auto" else None)

    def run() -> Answer:
        given = (field, request, request.open(field))
        r = infer_one(*given) if modes == 1 else infer_modes(*given, modes)
        bound = r.log_z_bound if r.bounds_log_z else None
        kind = None if bound is None else LogZKind.LOWER
        return Answer(np.asarray(r.q, dtype=np.float64), bound, kind, converged=r.converged)

    return run


def _exact(task: Question, field: Field, budget: float) -> Run:
    """The reference itself: its time is that of plain numpy."""
    graph = factor_graph(field)

    def run() -> Answer:
        exact = Elimination(graph)
        if task is Question.MAP:
            return Answer(labels=exact.best_labels(), proved=True)
        return Answer(exact.marginals(), exact.log_z, LogZKind.EXACT)

    return run


def _map(task: Question, field: Field, budget: float) -> Run:
    """The search for the labelling of lowest energy."""

    def run() -> Answer:
        result = answer(field, _request(MapSearch(), budget, tol=0.0))
        return Answer(labels=result.labels, proved=result.status is MapStatus.OPTIMAL)

    return run


def _dense(task: Question, scene: NoisyScene, budget: float) -> Run:
    """The dense CRF of images."""

    def run() -> Answer:
        crf = DenseCRF(scene.image, scene.probabilities, **SETTINGS)
        result = crf.infer(max_iters=UPDATES, tol=None, threads=1)
        return Answer(labels=np.asarray(result.labels, dtype=np.int64))

    return run


INFERENCE, MAP, DENSE = ((task,) for task in Question)
BOTH = (*INFERENCE, *MAP)
_GMS: Record = {"package": "pygms", "module": "pygms"}
_DWAVE: Record = {"package": "dwave-samplers", "module": "dwave.samplers"}

PEERS: tuple[Peer, ...] = (
    *(
        Peer(
            f"proxfield {rule}", INFERENCE, f"mean field, rule {rule}",
            partial(_mean_field, rule=rule), compiles=True,
        )
        for rule in ("fixed", "sweep", "auto")
    ),
    Peer(
        "proxfield modes=16", INFERENCE, "mixture of mean fields",
        partial(_mean_field, rule="auto", modes=16), compiles=True,
    ),
    Peer("exact elimination", BOTH, "variable elimination in numpy, built in", _exact),
    Peer("proxfield map", MAP, "chains at falling temperatures", _map, compiles=True),
    Peer(
        "PGMax BP", BOTH, f"loopy belief propagation, damping {tools.BP_DAMPING}", tools.pgmax,
        "pgmax", "pgmax",
        'pip install --no-deps pgmax && pip install "jax<0.5" joblib matplotlib tqdm',
        compiles=True,
    ),
    Peer(
        "pyGMs LBP", INFERENCE, "loopy belief propagation, Bethe log Z",
        partial(tools.gms_messages, function="LBP", kind=LogZKind.ESTIMATE), **_GMS,
    ),
    Peer(
        "pyGMs NMF", INFERENCE, "naive mean field",
        partial(tools.gms_messages, function="NMF", kind=LogZKind.LOWER), **_GMS,
    ),
    Peer(
        "pyGMs WMB", INFERENCE, f"weighted mini-buckets, iBound {tools.CLIQUE_SIZE}",
        tools.mini_buckets, **_GMS,
    ),
    Peer("pyGMs JTree", INFERENCE, "junction tree", tools.junction_tree, **_GMS),
    Peer(
        "pgmpy VE", INFERENCE, "variable elimination, one query per variable", tools.pgmpy,
        "pgmpy", "pgmpy", "pip install pgmpy",
    ),
    Peer(
        "pyAgrum", INFERENCE, "junction tree (Shafer-Shenoy)", tools.pyagrum, "pyAgrum", "pyagrum"
    ),
    Peer("dwave tree", BOTH, "tree decomposition", tools.dwave, **_DWAVE),
    Peer(
        "dwave annealing", MAP,
        f"simulated annealing, {tools.READS} reads of {tools.SWEEPS} sweeps",
        partial(tools.dwave, annealing=True), **_DWAVE,
    ),
    Peer(
        "toulbar2", MAP, "branch and bound with soft local consistency", tools.toulbar2,
        "pytoulbar2", "pytoulbar2",
    ),
    Peer("PyMaxflow", MAP, "graph cut", tools.maxflow, "PyMaxflow", "maxflow"),
    Peer(
        "proxfield DenseCRF", DENSE, "mean field, permutohedral lattice", _dense, compiles=True
    ),
    Peer(
        "pydensecrf", DENSE, "mean field, permutohedral lattice", tools.pydensecrf,
        "pydensecrf2", "pydensecrf", "pip install pydensecrf2",
    ),
)  # fmt: skip


def find_peers(names: Sequence[str] | None) -> list[Peer]:
    """The peers whose names begin with one of some words; all by default.

    Args:
        names: Names or beginnings of names, in any case.

    Raises:
        InputError: If a word fits none.

    Example:
        >>> [peer.name for peer in find_peers(["proxfield auto", "pgmax"])]
        ['proxfield auto', 'PGMax BP']
    """
    if names is None:
        return list(PEERS)
    for name in names:
        if not any(_fits(peer, name) for peer in PEERS):
            known = ", ".join(dict.fromkeys(peer.name.split()[0] for peer in PEERS))
            raise InputError(f"unknown peer {shown(name)}, expected some of: {known}")
    return [peer for peer in PEERS if any(_fits(peer, name) for name in names)]


def _fits(peer: Peer, name: str) -> bool:
    return peer.name.lower().startswith(name.lower())
