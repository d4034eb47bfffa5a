"""Runs peers on models and images, each in a process of its own, and compares with the truth."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

from proxfield.bench.peers.base import Answer, LogZKind, Peer, Question
from proxfield.bench.peers.graph import factor_graph
from proxfield.bench.peers.problems import VOID, NoisyScene, best_energy, exact_labels
from proxfield.bench.suites import Instance, Reference
from proxfield.core.common.records import Record
from proxfield.core.jobs.processes import THREAD_VARIABLES
from proxfield.errors import UnsupportedError, one_line
from proxfield.field import Field
from proxfield.images.metrics import UNLABELLED, accuracy, count_regions, mean_iou

SLACK = 1e-6
"""By how much, relative to 1 + |log Z|, rounding may move a bound past log Z."""
FILE_SLACK = 1e-4
"""The same where log Z was read from a file, which holds a few digits."""
START_SECONDS = 120.0
"""Maximum time until a peer's process has imported its tool."""
WARM_UP_SECONDS = 60.0
"""Maximum CPU time of the first run of a tool that compiles, which compiles and isn't timed."""
POLL_SECONDS = 0.1
"""How often to look how much CPU time a peer has used."""
MAX_WAIT = 10.0
"""Maximum time to wait for an answer, as a multiple of the limit in CPU time."""
MAX_TIMEOUTS = 2
"""Models of a family on which a peer may time out before it is asked about no more of them."""
WARM = "warm"
"""Sent by a peer's process between its first and its timed run."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PeerCase:
    """One question: a task, and the field or image of a family or set that it is about."""

    task: Question
    suite: str
    name: str
    problem: Any
    """A `Field` or a `NoisyScene`."""
    reference: Any
    """Exact log Z and marginals, the lowest energy, or exactly computed labels."""
    slack: float = SLACK
    """Rounding of the reference's log Z, relative to 1 + |log Z|."""


def model_cases(
    instances: Sequence[Instance[Field]], tasks: Sequence[Question], slack: float
) -> list[PeerCase]:
    """The cases of some models with exact answers."""
    out = []
    for i in instances:
        field = i.make()
        if Question.INFERENCE in tasks and i.reference is not None:
            exact = i.reference()
            out.append(PeerCase(Question.INFERENCE, i.suite, i.name, field, exact, slack))
        if Question.MAP in tasks and (energy := best_energy(field)) is not None:
            out.append(PeerCase(Question.MAP, i.suite, i.name, field, energy))
    return out


def scene_cases(scenes: Sequence[NoisyScene]) -> list[PeerCase]:
    """The cases of some images."""
    return [PeerCase(Question.DENSE, s.suite, s.name, s, exact_labels(s)) for s in scenes]


# ---- the process of a peer ----


def answer(
    peer: Peer, task: Question, problem: Any, budget: float, warmed: Callable[[], object] = bool
) -> Record:
    """Ask a peer once, in this process: its answer and the CPU seconds of a warm run.

    ``warmed`` is called when the tool has been built and is warm.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            begun = time.process_time()
            tabular = peer.package is not None and task is not Question.DENSE
            run = peer.prepare(task, factor_graph(problem) if tabular else problem, budget)
            built = time.process_time() - begun
            if peer.compiles:
                run()
            warmed()
            begun = time.process_time()
            found = run()
            return {"answer": found, "seconds": time.process_time() - begun, "build": built}
        except UnsupportedError as error:
            return {"status": "unsupported", "why": str(error)}
        except Exception as error:  # of a tool that isn't ours: what it says is the result
            return {"status": "error", "why": one_line(f"{type(error).__name__}: {error}")}


def serve(connection: Connection, peer: Peer) -> None:
    """Answer questions until there are no more."""
    if peer.module is not None:
        import_module(peer.module)  # not part of the first answer's time
    connection.send("ready")
    while (question := connection.recv()) is not None:
        task, problem, budget = question
        connection.send(answer(peer, task, problem, budget, partial(connection.send, WARM)))


class Process:
    """A peer in a process of its own, which is ended and started anew if it takes too long.

    Args:
        peer: The peer.
        timeout: Maximum number of CPU seconds to build the tool's model, and again to run it.
    """

    def __init__(self, peer: Peer, timeout: float) -> None:
        self.peer, self.timeout = peer, timeout
        self._process: Any = None
        self._connection: Any = None

    def ask(self, task: Question, problem: Any, budget: float) -> Record:
        """As `answer`; a record with a status where there is none."""
        try:
            if self._process is None and not self._start():
                self.close()
                return {"status": "timeout", "why": f"not ready after {START_SECONDS:g} seconds"}
            self._connection.send((task, problem, budget))
            said: Any = WARM
            limit = self.timeout + (WARM_UP_SECONDS if self.peer.compiles else 0.0)
            child = psutil.Process(self._process.pid)
            while said == WARM:  # wait, no longer than the limit in CPU time, or ten times it
                used, end = sum(child.cpu_times()[:2]), time.monotonic() + MAX_WAIT * limit
                while not self._connection.poll(POLL_SECONDS):
                    if sum(child.cpu_times()[:2]) - used > limit or time.monotonic() > end:
                        self.close()
                        return {"status": "timeout", "why": f"no answer in {limit:g} CPU seconds"}
                said, limit = self._connection.recv(), self.timeout
            return dict(said)
        except (EOFError, OSError, psutil.NoSuchProcess):
            self.close()
            return {"status": "crashed", "why": "its process ended"}

    def _start(self) -> bool:
        """Start the process; returns whether it became ready. EOFError if it ended instead."""
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        saved = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
        try:
            self._process = context.Process(target=serve, args=(other, self.peer), daemon=True)
            self._process.start()
        finally:
            for name, value in saved.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        other.close()
        if not self._connection.poll(START_SECONDS):
            return False
        self._connection.recv()
        return True

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self._connection.close()
            self._process = None


# ---- comparing ----


def run_cases(
    peers: Sequence[Peer], cases: Sequence[PeerCase], budget: float, timeout: float, tell: Tell
) -> list[Record]:
    """All peers on all cases that they can do.

    Args:
        peers: The peers, all of them installed.
        cases: The cases.
        budget: Time budget in seconds, for tools that can use one.
        timeout: Maximum number of CPU seconds per run, after the tool has compiled.
        tell: Called with a line before each run.

    Returns:
        One record per run.
    """
    out = []
    for peer in peers:
        late: Counter[tuple[Question, str]] = Counter()
        with closing(Process(peer, timeout)) as process:
            for case in (case for case in cases if case.task in peer.tasks):
                tell(f"{peer.name}: {case.suite}, {case.name}")
                family = case.task, case.suite
                said: Record = {"status": "skipped", "why": "it timed out on others of the family"}
                if late[family] < MAX_TIMEOUTS:
                    said = process.ask(case.task, case.problem, budget)
                    late[family] += said.get("status") == "timeout"
                out.append(make_record(peer, case, said))
    return out


def make_record(peer: Peer, case: PeerCase, said: Record) -> Record:
    """One run as numbers."""
    record: Record = {
        "peer": peer.name, "task": case.task.value, "suite": case.suite, "name": case.name
    }  # fmt: skip
    if "answer" not in said:
        return record | said
    found: Answer = said["answer"]
    record |= {"status": "ok", "seconds": said["seconds"], "build_seconds": said["build"]}
    record |= _SCORES[case.task](case, found)
    if found.converged is not None:
        record["converged"] = found.converged
    return record


def _score_inference(case: PeerCase, found: Answer) -> Record:
    exact: Reference = case.reference
    out: Record = {}
    if found.marginals is not None and exact.marginals is not None:
        error = np.abs(found.marginals - exact.marginals)
        if not np.isfinite(error).all():
            return {"status": "error", "why": "marginals that are not numbers"}
        out |= {"mean_error": float(error.mean()), "max_error": float(error.max())}
    if found.log_z is not None:
        gap = float(found.log_z - exact.log_z)
        if not np.isfinite(gap):
            none = found.log_z == -np.inf
            why = "no labelling of positive probability found" if none else "log Z is not a number"
            return {"status": "error", "why": why}
        out |= {"log_z_gap": gap, "kind": found.kind.value if found.kind else None}
        room = case.slack * (1 + abs(exact.log_z))
        if found.kind in (LogZKind.LOWER, LogZKind.UPPER):
            sign = 1 if found.kind is LogZKind.LOWER else -1
            out["valid_bound"] = sign * gap <= room
    return out


def _score_map(case: PeerCase, found: Answer) -> Record:
    assert found.labels is not None
    gap = float(case.problem.energy(found.labels) - case.reference)
    if not np.isfinite(gap):
        return {"status": "error", "why": "an impossible labelling"}
    optimal = gap <= SLACK * (1 + abs(case.reference))
    return {"energy_gap": gap, "optimal": optimal, "proved": found.proved}


def _score_dense(case: PeerCase, found: Answer) -> Record:
    assert found.labels is not None
    scene: NoisyScene = case.problem
    n_labels = scene.probabilities.shape[2]
    truth = np.where((scene.truth == VOID) | (scene.truth >= n_labels), UNLABELLED, scene.truth)
    counts = count_regions(truth, found.labels, n_labels)
    before = count_regions(truth, scene.probabilities.argmax(axis=-1), n_labels)
    out: Record = {
        "mean_iou": mean_iou(counts),
        "accuracy": accuracy(counts),
        "unary_mean_iou": mean_iou(before),
        "counts": counts.tolist(),
        "pixels": int(scene.truth.size),
    }
    if case.reference is not None:
        out["agreement"] = float((found.labels == case.reference).mean())
    return out


_SCORES: dict[Question, Callable[[PeerCase, Answer], Record]] = {
    Question.INFERENCE: _score_inference,
    Question.MAP: _score_map,
    Question.DENSE: _score_dense,
}
