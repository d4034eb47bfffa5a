"""What proxfield brings along: mean field, mixtures of modes, MAP search, exact elimination."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, LogZKind, Peer, Question, Run
from proxfield.bench.peers.elimination import Elimination
from proxfield.bench.peers.graph import factor_graph
from proxfield.bench.peers.scenes import UPDATES
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.search.labelling import MapSearch
from proxfield.core.solve.search.modes import infer_modes
from proxfield.core.solve.solve_map import MapStatus, answer
from proxfield.images.densecrf import DenseCRF
from proxfield.result import Result


def _request(rule: str | Rule, budget: float | None, tol: float = 1e-6) -> Request:
    """The defaults of `proxfield.infer` on one thread, with a budget in CPU time."""
    return Request(
        make_rule(rule), tol=tol, budget=budget, threads=1, trace=False, now=time.process_time
    )


class MeanField(Peer):
    """One of proxfield's rules; auto gets the time budget, others run until they converge."""

    tasks = (Question.INFERENCE,)
    compiles = True

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.name = f"proxfield {rule}"
        self.method = f"mean field, rule {rule}"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        request = _request(self.rule, budget if self.rule == "auto" else None)
        return lambda: _answer(infer_one(problem, request, request.open(problem)))


class Modes(Peer):
    """A mixture of up to 16 mean fields."""

    name = "proxfield modes=16"
    tasks = (Question.INFERENCE,)
    method = "mixture of mean fields"
    compiles = True

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        request = _request("auto", budget)
        return lambda: _answer(infer_modes(problem, request, request.open(problem), 16))


def _answer(result: Result) -> Answer:
    bound = result.log_z_bound if result.bounds_log_z else None
    return Answer(
        marginals=np.asarray(result.q, dtype=np.float64),
        log_z=bound,
        kind=None if bound is None else LogZKind.LOWER,
        converged=result.converged,
    )


class ExactElimination(Peer):
    """The reference itself: its time is that of plain numpy."""

    name = "exact elimination"
    tasks = (Question.INFERENCE, Question.MAP)
    method = "variable elimination in numpy, built in"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        graph = factor_graph(problem)

        def run() -> Answer:
            exact = Elimination(graph)
            if task is Question.MAP:
                return Answer(labels=exact.best_labels(), proved=True)
            return Answer(exact.marginals(), exact.log_z, LogZKind.EXACT)

        return run


class MapPeer(Peer):
    """The search for the labelling of lowest energy."""

    name = "proxfield map"
    tasks = (Question.MAP,)
    method = "chains at falling temperatures"
    compiles = True

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        def run() -> Answer:
            result = answer(problem, _request(MapSearch(), budget, tol=0.0))
            return Answer(labels=result.labels, proved=result.status is MapStatus.OPTIMAL)

        return run


class Dense(Peer):
    """The dense CRF of images."""

    name = "proxfield DenseCRF"
    tasks = (Question.DENSE,)
    method = "mean field, permutohedral lattice"
    compiles = True

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        def run() -> Answer:
            crf = DenseCRF(problem.image, problem.probabilities, **problem.settings)
            result = crf.infer(max_iters=UPDATES, tol=None, threads=1)
            return Answer(labels=np.asarray(result.labels, dtype=np.int64))

        return run
