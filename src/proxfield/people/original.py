"""The update of the published program for occupancy maps, for comparison and compatibility.

It is what occupancy maps add to the core's registries, beside a term: a rule, and fields that
compile kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxfield.core.common.records import Record
from proxfield.core.engines.base import softmax_rows
from proxfield.core.engines.plan import Custom, Plan
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.rules.base import Outcome, Problem, Rule
from proxfield.core.solve.rules.registry import RULES
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Floats
from proxfield.core.terms.unary import Unary
from proxfield.errors import UnsupportedError
from proxfield.field import Field
from proxfield.people.occupancy import Occupancy, RatioOccupancy, log_empty
from proxfield.people.silhouettes import Boxes
from proxfield.result import Status
from proxfield.warming import FAMILIES, Family


@dataclass(frozen=True)
class Original(Rule):
    """q ← S q + (1 − S) q* with q*_i = sigmoid(log(π_i/(1 − π_i)) − D_i): the original POM program.

    D_i is the energy with somebody at location i minus that with nobody there, in the images that
    are expected of all other locations (`RatioOccupancy.changes_at`). It isn't the gradient of
    any energy, so nothing is promised: F may rise, and where the iteration settles, q usually isn't
    a fixed point of F.

    For fields of one `Occupancy` term with ``model="ratio"`` and prior probabilities (`Unary`). It
    starts from the prior unless another start than the uniform one is given, and ends after
    ``stable`` iterations in a row that change no marginal by ``error`` or more, or after 100.

    Args:
        smoothing: S, the weight of the old marginals.
        stable: Number of iterations in a row with small changes after which it ends.
        error: What counts as a small change.
        ignored: Locations that are empty with a larger probability don't count in the expected
            images (PROBA_IGNORED). 1, the program's default, counts all; its example has 0.99.

    Example:
        >>> import proxfield as pf
        >>> boxes = pf.Boxes(2, 4, [[0, 0, 2, 2], [2, 0, 4, 2]])
        >>> mask = [[1, 1, 0, 0], [1, 1, 0, 0]]
        >>> term = pf.Occupancy([boxes], [mask], model="ratio")
        >>> field = pf.Field(2, 2, [term, pf.Unary([[0, 3], [0, 3]])])
        >>> (pf.infer(field, "original").marginals[:, 1] > 0.5).tolist()
        [True, False]
    """

    name = "original"
    summary = "the published program's update of occupancy maps, for these only; no guarantee"
    special = True
    needs_whole_field = "it needs the images of all locations in one process: use fixed"
    smoothing: float = 0.8
    stable: int = 5
    error: float = 1e-4
    ignored: float = 1.0

    def check(self) -> None:
        self._nonnegative_below_one("smoothing")
        self._count("stable")
        self._number("error", 0.0, 1.0)
        self._number("ignored", 0.0, 1.0)

    def prepare(self, problem: Problem) -> None:
        only_term(problem.lowered)

    def default_iterations(self, problem: Problem) -> int:
        return 100

    def plan(self, problem: Problem) -> Plan:
        lowered = problem.lowered
        term, layout = only_term(lowered), lowered.layout
        unary = lowered.unary
        bias = np.asarray(unary[::2], dtype=np.float64) - unary[1::2]  # log(π/(1 − π))

        def update(theta: Floats, q: Floats, gradient: Floats, memory: Record) -> Floats:
            logs = log_empty(q[term.entries(layout)])
            odds = bias - term.changes_at(logs, self.ignored)
            target = 1.0 / (1.0 + np.exp(np.clip(-odds, -700.0, 700.0)))
            p, s = np.asarray(q[1::2], dtype=np.float64), self.smoothing
            new = np.where(np.isinf(bias), target > 0.5, s * p + (1.0 - s) * target)
            small = bool(np.abs(new - p).max(initial=0.0) < self.error)
            memory["stable"] = memory.get("stable", 0) + 1 if small else 0
            with np.errstate(divide="ignore"):
                return np.asarray(-np.log(np.stack([1.0 - new, new], axis=1).ravel()))

        return Custom(update, 1.0 - self.smoothing)

    def solve(self, session: Session) -> Outcome:
        self.prepare(session.problem)
        lowered, loop = session.problem.lowered, session.loop
        # whether all variables that nothing decides have probability ½
        free = np.isfinite(lowered.unary).reshape(-1, 2).all(axis=1)
        if (session.start.reshape(-1, 2)[free] == 0.5).all():
            prior = softmax_rows(np.array(lowered.unary, dtype=np.float64), 2)
            session = session.within(start=np.asarray(prior, dtype=np.float64))
        program, state = session.program, session.program.start(session.start)
        plan = self.plan(session.problem)
        best = session.keep == "best"
        first: float | None = None
        status = Status.MAX_ITERS
        while True:
            # that many are needed at least, whatever they change
            missing = self.stable - int(state.memory.get("stable", 0))
            if missing <= 0:
                q = program.marginals(state)
                g = np.array(lowered.unary, dtype=np.float64)
                for term in lowered.terms:
                    term.add_gradient(lowered.layout, q, g)
                left = float(np.abs(softmax_rows(g, 2) - q).max(initial=0.0))
                fixed = left <= session.limits.tol
                status = Status.CONVERGED if fixed else Status.SETTLED
                break
            if session.spent is not None:
                break
            limits = session.limits.until(loop.iterations + missing, tol=-1.0)
            status = loop.run(program, plan, state, limits, keep_best=best, first=first)
            first = loop.last
            if status is not Status.MAX_ITERS:  # of this call
                break
        if best or status in (Status.DIVERGED, Status.INTERRUPTED):
            return session.best_seen(self, state, status)
        return Outcome(program.marginals(state), loop.last, status)


def only_term(lowered: Lowered) -> RatioOccupancy:
    """The one term that isn't a prior.

    Raises:
        UnsupportedError: If the field is another one.
    """
    terms = list(lowered.terms)
    term = terms[0] if len(terms) == 1 else None
    if isinstance(term, RatioOccupancy) and term.n_locations == lowered.layout.n_vars:
        return term
    raise UnsupportedError(
        "original is for occupancy maps only: fields of one Occupancy term with model='ratio' over "
        "all variables, and unary energies"
    )


def compile_occupancy(all: bool) -> None:
    """Compile what occupancy maps need."""
    from proxfield.core.solve.infer import infer

    boxes = Boxes(4, 8, [[0, 0, 2, 3], [2, 0, 4, 3], [4, 1, 7, 4]])
    masks = [np.eye(4, 8, dtype=bool)] * 2
    for model in ("exact", "ratio"):
        term = Occupancy([boxes, boxes], masks, model=model)
        field = Field(3, 2, [term, Unary(np.tile([0.0, 3.0], (3, 1)))])
        for dtype in ("float64", "float32"):
            for rule in ("adam", "backtracking", "original" if model == "ratio" else "sweep"):
                infer(field, rule, max_iters=3, dtype=dtype)


RULES[Original.name] = Original
FAMILIES["occupancy maps"] = Family(compile_occupancy, seconds=20, usual=False)
