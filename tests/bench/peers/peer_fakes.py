"""Peers that answer, fail, crash and dawdle on purpose, for processes to import."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, LogZKind, Peer, Question, Run
from proxfield.errors import UnsupportedError

COMPILING = 0.6
"""CPU seconds that the first run of the mode "compiles" takes."""


class Fake(Peer):
    """Does what its mode says."""

    def __init__(self, mode: str, compiles: bool = False) -> None:
        tasks = (Question.INFERENCE, Question.MAP)
        super().__init__(f"fake {mode}", tasks, "a stand-in", self.build, compiles=compiles)
        self.mode = mode
        self.calls = 0

    def build(self, task: Question, problem: Any, budget: float) -> Run:
        if self.mode == "refuses":
            raise UnsupportedError("binary variables only")

        def run() -> Answer:
            self.calls += 1
            if self.mode == "raises":
                raise KeyError("broken")
            if self.mode == "crashes":
                os._exit(7)
            while self.mode == "dawdles":
                pass
            if self.mode == "compiles" and self.calls == 1:
                end = time.process_time() + COMPILING
                while time.process_time() < end:
                    pass
            if task is Question.MAP:
                return Answer(labels=np.zeros(problem.n_vars, dtype=np.int64))
            q = np.full(problem.layout.size, np.nan if self.mode == "nan" else 0.5)
            log_z = {"high": 1e3, "low": -1e3}.get(self.mode)
            return Answer(q, log_z, None if log_z is None else LogZKind.LOWER, converged=False)

        return run
