"""`infer(…, modes=K)`: a mixture of mean fields over K disjoint cells of the state space.

1. The rule searches the whole field with a share of the limits; where its chains ended is kept.
2. Parts of these states are combined (`rules.recombination`): that gives a better state, and
   alternatives to parts of it.
3. The cell of all labellings is split in two by a decision "variable i has label l, or not", then
   one of the cells again, until there are K. Both children start from the parent's marginals given
   the decision, so the bound never gets worse; one also starts from an alternative. Of
   several decisions that are tried, the one is taken that separates the children most.
4. Each cell is searched with a share of what is left, and ends at a local minimum of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.common.logs import log
from proxfield.field import Field
from proxfield.inference.cells import Cell, Pool, RecordingSession, user_clamps
from proxfield.inference.history import Progress
from proxfield.inference.infer import MAX_DOUBLE_CHECK, finish, in_double, interrupted, solve
from proxfield.inference.loop import Loop
from proxfield.inference.request import Request, device_memory
from proxfield.inference.session import Session
from proxfield.mixture import Clamp, make_modes, mixture_free_energy, mixture_marginals
from proxfield.result import Result, Status
from proxfield.rules.plan import Chains
from proxfield.rules.polish import better_of, polish
from proxfield.rules.recombination import Evaluation, Patches, Recombination
from proxfield.rules.session import Outcome, Problem
from proxfield.terms.base import Floats

SEARCH_SHARE = 0.4
"""Share of the limits for the search of the whole field."""
FRESH_SHARE = 0.55
"""Share of the limits at which chains from the start end."""
REFINE_SHARE = 0.65
"""Share of the limits at which looking for alternatives ends."""
FRESH_SWEEPS = (10, 30, 100)
FRESH_CHAINS = 8
REFINEMENTS = 24
"""Maximum number of alternatives that are improved."""
SPLIT_SHARE = 0.85
"""Share of the limits at which splitting ends."""
CELL_SHARE = 0.93
"""Share of the limits at which the search of cells ends."""
OVERTIME = 1.03
"""Share of the budget at which the last polish ends; a few sweeps are worth a little overtime."""
MAX_TRIALS = 8
"""Maximum number of decisions that are tried to split a cell."""
SOFT_TRIALS = 3
"""How many of them are about variables of large entropy, at least."""
TRIAL_SWEEPS = 30
TRIAL_SWEEPS_GUESS = 60.0
"""Sweeps of a trial before one has been made: three descents."""
MAX_COMBINATIONS = 8
"""Maximum number of times in a row that patches are put into a state."""
MAX_COMPARISONS = 4
"""Maximum number of times that patches are made of the pool."""
MAX_NEW_PATCHES = 128
"""Maximum number of patches that one comparison adds."""
WORTH_SCALE = 10.0
"""A rise of F by this much makes a patch worth a third of what it would be without."""
MAX_OVERLAP = 0.5
"""Share of variables that two alternatives may have in common."""
MIN_SHARE = 1e-9
"""Share of the mixture below which a split isn't worth its time."""
MIN_CELL_SWEEPS = 64
"""Sweeps that a cell must be given for a search to pay."""
DEBUG = False
FULL = False
HALTED = (Status.INTERRUPTED, Status.STOPPED)


@dataclass(frozen=True)
class Decision:
    """A way to split a cell.

    Attributes:
        variable: The variable.
        label: The label that one child holds and the other doesn't have.
        other: Marginals to start the other child from, beside the cell's own.  # (size,)
    """

    variable: int
    label: int
    other: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Split:
    """A decision that was tried.

    Attributes:
        children: The two cells.
        score: Difference of the children times the chance that both matter; at least 0.
    """

    children: tuple[Cell, Cell]
    score: float


@dataclass
class Partition:
    """Cells that cover all labellings, as they are found.

    Args:
        session: The inference of the whole field.
        request: What was asked for.
        count: Maximum number of cells.
    """

    session: Session
    request: Request
    count: int

    def __post_init__(self) -> None:
        self.loop: Loop = self.session.loop
        self.max_iters, self.budget = self.loop.max_iters, self.loop.budget
        self.lowered = self.session.problem.lowered
        self.layout = self.lowered.layout
        self.cells: list[Cell] = []
        self.splits: list[Split | None] = []
        self.labels = None
        self.halted: Status | None = None
        self.sweepable = self.session.sweepable
        self.trial_sweeps, self.trial_seconds = TRIAL_SWEEPS_GUESS, 0.0
        self.trials_made = 0
        self.recombination = Recombination(self.lowered)
        ends = 2 * len(self.recombination.edges) if self.sweepable else 0
        self.patches = Patches.none(self.recombination)
        self.pool = Pool.for_field(self.lowered, ends)

    # ---- limits ----

    @contextmanager
    def limited(self, share: float) -> Iterator[None]:
        """Lower the limits to a share of the whole."""
        loop = self.loop
        loop.max_iters = max(1, int(share * self.max_iters))
        loop.budget = None if self.budget is None else share * self.budget
        try:
            yield
        finally:
            loop.max_iters, loop.budget = self.max_iters, self.budget

    def left(self, share: float) -> tuple[float, float]:
        """(iterations, seconds) until a share of the limits is used up."""
        seconds = np.inf if self.budget is None else share * self.budget - self.loop.elapsed
        return share * self.max_iters - self.loop.iterations, seconds

    def aside(self, iterations: float, seconds: float) -> Loop:
        """A loop for work on one cell, with limits of its own; the trace doesn't show it."""
        loop = self.loop
        base, since, callback = loop.iterations, loop.elapsed, loop.callback

        def report(progress: Progress) -> object:
            assert callback is not None
            return callback(
                replace(
                    progress,
                    iteration=base + progress.iteration,
                    seconds=since + progress.seconds,
                    max_iters=self.max_iters,
                    budget=self.budget,
                )
            )

        return Loop(
            max(0, int(min(iterations, self.max_iters))),
            loop.tol,
            None if self.budget is None else max(0.0, seconds),
            None if callback is None else report,
            False,
            loop.expand,
            loop.now,
            costs=loop.costs,
        )

    # ---- sessions ----

    def session_of(self, cell: Cell, loop: Loop) -> RecordingSession:
        """The inference of one cell."""
        whole = self.session
        low = cell.restrict(self.lowered)
        problem = Problem(low, whole.problem.curvature, whole.problem.seed)
        session = RecordingSession(
            problem=problem,
            loop=loop,
            start=cell.q,
            kernels=whole.kernels,
            dtype=whole.dtype,
            threads=whole.threads,
            keep=whole.keep,
            limited=whole.limited,
            pool=self.pool,
        )
        if low is self.lowered:
            session.__dict__["program"] = whole.program
        return session

    # ---- the whole ----

    def run(self) -> None:
        """Search, split, search the cells and polish; Ctrl-C leaves what is known."""
        try:
            self.search()
            if self.halted is None and self.sweepable and not self.lowered.hard:
                self.sample()
            if self.halted is None and np.isfinite(self.cells[0].free_energy):
                self.split_up()
            if self.halted is None and len(self.cells) > 1:
                self.search_cells()
                self.polish_cells()
        except KeyboardInterrupt:
            self.halted = Status.INTERRUPTED
        if self.cells:
            self.loop.note(0, self.loop.elapsed, self.free_energy)

    @property
    def free_energy(self) -> float:
        """F of the mixture."""
        return mixture_free_energy([cell.free_energy for cell in self.cells])

    @property
    def status(self) -> Status:
        """Of the mixture: converged if every cell is."""
        if self.halted is not None:
            return self.halted
        if len(self.cells) == 1:
            return self.cells[0].status
        if all(cell.status is Status.CONVERGED for cell in self.cells):
            return Status.CONVERGED
        return self.session.limit

    def report(self) -> None:
        """Note where the mixture stands, and ask the callback."""
        best = min(self.cells, key=lambda cell: cell.free_energy)
        self.loop.note(0, self.loop.elapsed, self.free_energy)
        if self.loop.report(self.free_energy, best.q):
            self.halted = Status.STOPPED

    def search(self) -> None:
        """The rule on the whole field."""
        session = self.session_of(self.everything(self.session.start), self.loop)
        if self.sweepable:
            session.warm_up_chains(session.start)
        with self.limited(SEARCH_SHARE):
            outcome = solve(session, self.request.rule)
        self.labels = outcome.labels
        cell = self.everything(outcome.q)
        cell.free_energy, cell.status = float(outcome.free_energy), outcome.status
        self.cells, self.splits = [cell], [None]
        self.halted = outcome.status if outcome.status in HALTED else None

    def everything(self, q: NDArray[np.float64]) -> Cell:
        """The cell of all labellings."""
        possible = np.isfinite(self.lowered.unary)
        return Cell(possible, (), q, np.inf, self.session.limit)

    def sample(self) -> None:
        """Cooled chains from the start: states that owe nothing to the best one."""
        session = self.session_of(self.everything(self.session.start), self.loop)
        scale = float(self.session.problem.curvature.local.max(initial=0.0))
        if scale <= 2.0:  # F is convex
            return
        rng = np.random.default_rng([self.session.problem.seed, 1])
        starts = np.repeat(session.start[None], FRESH_CHAINS, axis=0)
        while True:
            iterations, seconds = self.left(FRESH_SHARE)
            if min(iterations, seconds) <= 0:
                return
            with self.loop.clock():
                chains = Chains.make(
                    starts,
                    hot=np.maximum(1.0, scale * rng.choice((0.1, 0.3, 1.0), size=FRESH_CHAINS)),
                    sweeps=rng.choice(FRESH_SWEEPS, size=FRESH_CHAINS),
                    seeds=rng.integers(2**63, size=FRESH_CHAINS, dtype=np.uint64),
                    drawn=True,
                    polish=TRIAL_SWEEPS,
                )
                self.loop.iterations += int(session.explore(chains).sweeps.sum())

    # ---- splitting ----

    def refine(self, cell: Cell) -> None:
        """Improve alternatives to large parts of a state, each in a cell where it must stay."""
        loop, layout = self.loop, self.layout
        if not self.sweepable or layout.n_vars == 0:
            return
        with loop.clock():
            self.compare(cell)
            patches = self.patches
            found = patches.evaluate(cell.q, cell.keep)
            order = np.argsort(-worth_trying(found), kind="stable")
        done = np.zeros((0, layout.n_vars), dtype=bool)
        for c in order:
            if len(done) == REFINEMENTS or min(self.left(REFINE_SHARE)) <= 0:
                break
            with loop.clock():
                mine = np.zeros(layout.n_vars, dtype=bool)
                mine[patches.members(int(c))] = True
                if ((mine & done).sum(axis=1) > MAX_OVERLAP * (mine | done).sum(axis=1)).any():
                    continue
                done = np.concatenate([done, mine[None]])
                decision = self.decision(cell, patches, int(c))
                child = cell.child(layout, Clamp(decision.variable, decision.label, False))
                start = child.condition(layout, decision.other)
                child.q, child.free_energy = self.descend(child, start[None])
                self.compare(child)
                self.pool.add(child.q[None], np.array([child.free_energy]))
                if DEBUG: print(f"refined {mine.sum()} {found.change[c]:.2f} -> {child.free_energy-cell.free_energy:.2f}, ham {(layout.best_labels(child.q)!=layout.best_labels(cell.q)).sum()}")
        with loop.clock():
            self.compare(cell)

    def compare(self, cell: Cell) -> None:
        """Improve a state by parts of all others, and keep the best of these as patches."""
        others = self.pool.inside(cell)
        for _ in range(MAX_COMPARISONS):
            if len(others) == 0:
                break
            new = self.recombination.differences(cell.q, others)
            found = new.evaluate(cell.q, cell.keep)
            order = np.argsort(-worth_trying(found), kind="stable")[:MAX_NEW_PATCHES]
            self.patches = self.patches.joined(new.select(order[found.allowed[order]]))
            if not self.put_in(cell, new, found):
                break

    def put_in(self, cell: Cell, patches: Patches, found: Evaluation) -> bool:
        """Improve a cell's state by patches; whether that changed it."""
        start = patches.improve(cell.q, found)
        if np.array_equal(start, cell.q):
            return False
        q, f = self.descend(cell, start[None])
        if not f < cell.free_energy - self.session.slack(f):
            return False
        cell.q, cell.free_energy, cell.status = q, f, self.session.limit
        return True

    def combine(self, cell: Cell) -> Evaluation:
        """Improve a cell's state by all patches; what they would do to it now."""
        for _ in range(MAX_COMBINATIONS):
            found = self.patches.evaluate(cell.q, cell.keep)
            if not self.put_in(cell, self.patches, found):
                break
        return found

    def split_up(self) -> None:
        """Split the cell in which that separates most, until there are enough."""
        loop, loop.member = self.loop, "modes"
        self.refine(self.cells[0])
        while len(self.cells) < self.count and min(self.left(SPLIT_SHARE)) > 0:
            for k, cell in enumerate(self.cells):
                if self.splits[k] is None:
                    with loop.clock():
                        self.splits[k] = self.best_split(cell)
            low = min(cell.free_energy for cell in self.cells)
            scores = [
                np.exp(low - cell.free_energy) * split.score
                for cell, split in zip(self.cells, self.splits, strict=True)
                if split is not None
            ]
            k = int(np.argmax(scores))
            chosen = self.splits[k]
            if scores[k] <= MIN_SHARE or chosen is None:
                break
            rest = [i for i in range(len(self.cells)) if i != k]
            self.cells, self.splits = (
                [*(self.cells[i] for i in rest), *chosen.children],
                [*(self.splits[i] for i in rest), None, None],
            )
            self.report()
            if self.halted is not None:
                return

    def descend(self, cell: Cell, starts: Floats) -> tuple[NDArray[np.float64], float]:
        """Sweeps inside a cell from some starts; the best end and its F."""
        loop = self.loop
        if self.sweepable:
            session = self.session_of(cell, loop)
            chains = Chains.make(starts, polish=TRIAL_SWEEPS, tol=1e-4)
            ended = Session.explore(session, chains)
            loop.iterations += int(ended.sweeps.sum())
            best = int(ended.free_energy.argmin())
            return ended.q[best], float(ended.free_energy[best])
        found = []
        for start in starts:
            iterations, seconds = self.left(SPLIT_SHARE)
            own = self.aside(min(iterations, TRIAL_SWEEPS), seconds)
            outcome = polish(self.session_of(cell, own), start)
            loop.iterations += own.iterations
            found.append((outcome.free_energy, outcome.q))
        f, q = min(found, key=lambda item: item[0])
        return q, float(f)

    def best_split(self, cell: Cell) -> Split:
        """The best of the decisions that there is time to try."""
        if FULL: self.compare(cell)
        decisions = self.decisions(cell, self.combine(cell), self.trials_wanted())
        best = Split((cell, cell), 0.0)
        for decision in decisions:
            begun, before = self.loop.now(), self.loop.iterations
            split = self.try_split(cell, decision)
            self.learn(self.loop.iterations - before, self.loop.now() - begun)
            best = split if split.score > best.score else best
        return best

    def trials_wanted(self) -> int:
        """How many decisions to try, so that all splits fit into the limits."""
        iterations, seconds = self.left(SPLIT_SHARE)
        to_come = 2 * max(1, self.count - len(self.cells))
        fits = iterations / to_come / max(1.0, self.trial_sweeps)
        if self.trial_seconds > 0:
            fits = min(fits, seconds / to_come / self.trial_seconds)
        return int(np.clip(fits, 1, MAX_TRIALS)) if self.sweepable else 1

    def learn(self, sweeps: int, seconds: float) -> None:
        """What a trial took."""
        share = 1.0 if self.trials_made == 0 else 0.3
        self.trials_made += 1
        self.trial_sweeps += share * (sweeps - self.trial_sweeps)
        self.trial_seconds += share * (seconds - self.trial_seconds)

    def decisions(self, cell: Cell, found: Evaluation, most: int) -> list[Decision]:
        """What to try: between alternatives, and about variables of large entropy."""
        soft = self.uncertain(cell, most)
        reserved = min(SOFT_TRIALS, len(soft), most // 2)
        firm = self.alternatives(cell, found, most - reserved)
        known = {decision.variable for decision in firm}
        return [*firm, *(d for d in soft if d.variable not in known)][:most]

    def alternatives(self, cell: Cell, found: Evaluation, most: int) -> list[Decision]:
        """Decisions between a cell's state and that state with a patch."""
        odds = np.exp(-np.clip(found.change, 0.0, 50.0))
        worth = np.where(found.allowed, odds / (1 + odds) ** 2 * found.spread, 0.0)
        out: dict[int, Decision] = {}
        for c in np.argsort(-worth, kind="stable")[: 4 * most]:
            if len(out) == most or worth[c] <= MIN_SHARE:
                break
            decision = self.decision(cell, self.patches, int(c))
            out.setdefault(decision.variable, decision)
        return list(out.values())

    def decision(self, cell: Cell, patches: Patches, which: int) -> Decision:
        """The variable that tells a cell's state best from that state with a patch."""
        layout, variables = self.layout, patches.members(which)
        other = patches.put(which, cell.q)
        label = layout.best_labels(cell.q)[variables]
        at = layout.offsets[variables] + label
        best = int(np.minimum(cell.q[at], 1.0 - other[at]).argmax())
        return Decision(int(variables[best]), int(label[best]), other)

    def uncertain(self, cell: Cell, most: int) -> list[Decision]:
        """Decisions about variables of large variance that depend much on others."""
        layout = self.layout
        if layout.n_vars == 0:
            return []
        labels = layout.best_labels(cell.q)
        p = cell.q[layout.offsets[:-1] + labels]
        free = layout.sum_by_variable(cell.keep) > 1
        curvature = np.minimum(self.session.problem.curvature.local, 4.0)
        worth = np.where(free, p * (1.0 - p) * curvature + 1e-12 * (1.0 - p) + 1e-15, 0.0)
        order = np.argsort(-worth, kind="stable")[:most]
        return [Decision(int(v), int(labels[v])) for v in order if worth[v] > 0]

    def try_split(self, cell: Cell, decision: Decision) -> Split:
        """Split a cell, descend in both children, and see how much they differ."""
        layout = self.layout
        inside = cell.child(layout, Clamp(decision.variable, decision.label, True))
        outside = cell.child(layout, Clamp(decision.variable, decision.label, False))
        for child in (inside, outside):
            starts = [child.condition(layout, cell.q)]
            if decision.other is not None and child is outside:
                starts.append(child.condition(layout, decision.other))
            child.q, child.free_energy = self.descend(child, np.stack(starts))
        low = min(inside.free_energy, outside.free_energy)
        if not np.isfinite(low):
            return Split((inside, outside), 0.0)
        a, b = (np.exp(low - child.free_energy) for child in (inside, outside))
        spread = np.abs(inside.q - outside.q).sum() / 2
        gain = np.exp(cell.free_energy - low) * (a + b)
        return Split((inside, outside), float(gain * a * b / (a + b) ** 2 * spread))

    # ---- the cells ----

    def search_cells(self) -> None:
        """The rule in each cell, then parts of everything that was seen."""
        for done, cell in enumerate(self.heaviest_first()):
            iterations, seconds = self.left(CELL_SHARE)
            to_come = len(self.cells) - done
            if iterations / to_come < MIN_CELL_SWEEPS or seconds <= 0:
                break
            own = self.aside(iterations / to_come, seconds / to_come)
            with self.loop.clock():
                session = self.session_of(cell, own)
                before = Outcome(cell.q, cell.free_energy, cell.status)
                hard = self.lowered.hard or not self.sweepable
                rule = self.request.rule
                after = rule.improve(session, before) if hard else rule.solve(session)
                self.take(cell, better_of(session, before, after))
                self.loop.iterations += own.iterations
            self.report()
            if self.halted is not None:
                return
        for cell in self.cells if self.sweepable else []:
            if min(self.left(CELL_SHARE)) > 0:
                with self.loop.clock():
                    self.compare(cell)

    def polish_cells(self) -> None:
        """Each cell on to its local minimum, as far as the limits allow."""
        for cell in self.heaviest_first():
            iterations, seconds = self.left(1.0)[0], self.left(OVERTIME)[1]
            if self.halted is not None or cell.status is Status.CONVERGED:
                continue
            if min(iterations, seconds) <= 0:
                break
            own = self.aside(iterations, seconds)
            with self.loop.clock():
                session = self.session_of(cell, own)
                before = Outcome(cell.q, cell.free_energy, self.session.limit)
                own.tell(cell.q, cell.free_energy)
                self.take(cell, better_of(session, before, polish(session, cell.q)))
                self.loop.iterations += own.iterations

    def take(self, cell: Cell, outcome: Outcome) -> None:
        """Where a cell is now."""
        cell.q, cell.free_energy = outcome.q, float(outcome.free_energy)
        cell.status = outcome.status
        if outcome.status in HALTED:
            self.halted, cell.status = outcome.status, self.session.limit

    def heaviest_first(self) -> list[Cell]:
        """The cells, by F."""
        return sorted(self.cells, key=lambda cell: cell.free_energy)


def worth_trying(found: Evaluation) -> NDArray[np.float64]:
    """Patches that change much and raise F by little are worth most.  # (patches,)"""
    rise = np.clip(found.change, 0.0, None)
    return np.asarray(found.allowed * found.spread * np.exp(-rise / WORTH_SCALE))


def infer_modes(field: Field, request: Request, session: Session, count: int) -> Result:
    """The result of a request for several modes of one field.

    Args:
        field: The field.
        request: What was asked for.
        session: The session that was opened for it.
        count: Maximum number of modes.
    """
    lowered = session.problem.lowered
    if lowered.infeasible:
        return finish(field, request, session, Outcome(session.start, np.inf, Status.INFEASIBLE))
    with device_memory(request.kernels, lowered):
        partition = Partition(session, request, count)
        partition.run()
        if not partition.cells:
            return finish(field, request, session, interrupted(session))
        cells = [checked(cell, request, session) for cell in partition.cells]
    reduction = lowered.reduction
    parts = [
        (cell.free_energy, reduction.expand(cell.q), user_clamps(reduction, cell.clamps))
        for cell in cells
    ]
    modes = make_modes(field.layout, parts)
    f = mixture_free_energy([mode.free_energy for mode in modes])
    best = min(cells, key=lambda cell: cell.free_energy)
    result = finish(
        field, request, session, Outcome(best.q, f, partition.status, partition.labels)
    )
    result.q, result.modes = mixture_marginals(modes), modes
    log.debug("%d modes, free energy %.9g", len(modes), f)
    return result


def checked(cell: Cell, request: Request, session: Session) -> Cell:
    """A cell whose F is that of its marginals in float64; of large fields as it was computed."""
    lowered = session.problem.lowered
    rough = lowered.layout.size <= MAX_DOUBLE_CHECK and not session.program.sums_in_double
    if request.dtype == "float32" and rough and np.isfinite(cell.free_energy):
        q = cell.condition(lowered.layout, cell.q)
        again = in_double(Outcome(q, cell.free_energy, cell.status), lowered, request.kernels)
        return replace(cell, q=again.q, free_energy=again.free_energy)
    return cell
