"""`infer(…, modes=K)`: a mixture of mean fields over K disjoint cells of all labellings.

1. The rule searches the whole field with a share of the limits, then chains from the start show
   other minima. Where chains ended is kept.
2. Parts of these states are combined (`search.patches`): that gives a better state, and
   alternatives to parts of it.
3. The cell of all labellings is split in two by a decision "variable i has label l, or not", then
   one of the cells again, until there are K. A split never makes the bound worse
   (`Splitter.try_split`). Of several decisions that are tried, the one is taken whose two sides
   differ most and weigh most.
4. Each cell is searched with a share of what is left, and ends at a local minimum of its own.
"""

from __future__ import annotations

import numpy as np

from proxfield.core.common.logs import log
from proxfield.core.common.memory import check_memory
from proxfield.core.engines.plan import Chains
from proxfield.core.solve.infer import accurate, finish, interrupted, solve
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.request import Request, device_memory
from proxfield.core.solve.rules.base import Outcome
from proxfield.core.solve.rules.portfolio import HALTED, better_of, polish
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.cells import Cell, CellWork, Pool, Split, user_clamps
from proxfield.core.solve.search.parts import Parts
from proxfield.core.solve.search.patches import Alternatives, Decision
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Ints
from proxfield.field import Field
from proxfield.mixture import Clamp, make_modes, mixture_free_energy, mixture_marginals
from proxfield.result import Result, Status


class Splitter:
    """Tries decisions on cells, as many as there is time for: about alternatives, if any."""

    def __init__(self, work: CellWork, alternatives: Alternatives | None) -> None:
        self.work, self.alternatives = work, alternatives
        self.trial_sweeps, self.trial_seconds = tuned.TRIAL_DESCENTS * tuned.TRIAL_SWEEPS / 2, 0.0
        self.trials_made = 0

    def best_split(self, cell: Cell, to_come: int, share: float) -> Split:
        """The best of the decisions that there is time to try, up to a share of the limits.

        ``to_come`` says how many cells are still to be split, this one included.
        """
        best, loop = Split((cell, cell), 0.0), self.work.loop
        iterations, seconds = self.work.left(share)
        fits = iterations / max(1.0, self.trial_sweeps)
        if self.trial_seconds > 0:
            fits = min(fits, seconds / self.trial_seconds)
        else:
            fits = min(fits, self.work.sweeps_left(share) / self.trial_sweeps)
        # so many that all splits fit into the limits
        most = tuned.MAX_TRIALS if self.work.sweepable else 1
        wanted = int(np.clip(fits / to_come, 1 if fits >= 1 else 0, most))
        for decision in self.decisions(cell, wanted):
            begun, before = loop.now(), loop.iterations
            split = self.try_split(cell, decision)
            known = 0.3 if self.trials_made else 1.0
            self.trial_sweeps += known * (loop.iterations - before - self.trial_sweeps)
            self.trial_seconds += known * (loop.now() - begun - self.trial_seconds)
            self.trials_made += 1
            best = split if split.score > best.score else best
        return best

    def decisions(self, cell: Cell, most: int) -> list[Decision]:
        """What to try: between alternatives, and about uncertain, dependent variables."""
        layout = self.work.layout
        labels = layout.best_labels(cell.q)
        p = cell.q[layout.offsets[:-1] + labels]
        worth = p * (1.0 - p)
        if self.work.sweepable:
            curvature = self.work.session.problem.curvature.local
            worth = worth * np.minimum(curvature, tuned.MAX_CURVATURE)
        worth = np.where(layout.sum_by_variable(cell.keep) > 1, worth, -1.0)
        order = np.argsort(-worth, kind="stable")[:most]
        uncertain = [Decision(int(v), int(labels[v])) for v in order if worth[v] > 0]
        if self.alternatives is None or most == 0:
            return uncertain
        found = self.alternatives.combine(cell)
        reserved = min(tuned.MAX_UNCERTAIN, len(uncertain), most // 2)
        firm = self.alternatives.choose(cell, found, most - reserved)
        known = {decision.variable for decision in firm}
        return [*firm, *(d for d in uncertain if d.variable not in known)][:most]

    def try_split(self, cell: Cell, decision: Decision) -> Split:
        """Split a cell, descend in both children, and see how much they differ.

        Both start from the parent's marginals q given the decision, of probability p and 1 − p
        under q. F(q) = p F_a + (1 − p) F_b + p log p + (1 − p) log(1 − p) at these starts, which is
        never below −log(exp(−F_a) + exp(−F_b)): a split can't make the bound worse.
        """
        layout, limit = self.work.layout, self.work.session.limit
        held, other = (
            cell.child(layout, Clamp(decision.variable, decision.label, side), limit)
            for side in (True, False)
        )
        for child in (held, other):
            starts = [child.condition(layout, cell.q)]
            if decision.other is not None and child is other:
                starts.append(child.condition(layout, decision.other))
            child.q, child.free_energy = self.work.descend(child, np.stack(starts))
        low = min(held.free_energy, other.free_energy)
        if not np.isfinite(low):
            return Split((held, other), 0.0)
        a, b = (np.exp(low - child.free_energy) for child in (held, other))
        spread = np.abs(held.q - other.q).sum() / 2
        gained = np.exp(min(cell.free_energy - low, 700.0)) * (a + b)
        return Split((held, other), float(gained * a * b / (a + b) ** 2 * spread))


class ModeSearch:
    """At most ``count`` cells that cover all labellings, as they are found."""

    def __init__(self, session: Session, request: Request, count: int) -> None:
        self.session, self.loop, self.count = session, session.loop, count
        lowered = session.problem.lowered
        combining = session.program.sweepable and lowered.layout.n_vars > 0
        parts = Parts(lowered) if combining else None
        if session.limits.budget is not None:
            Parts.warm_up()
        ends = 0 if parts is None else len(parts.column)
        fitting = tuned.MAX_POOL_ENTRIES // max(1, lowered.layout.size + ends)
        pool = Pool(lowered.layout, int(np.clip(fitting, 4, tuned.MAX_STATES)))
        self.work = CellWork(session, request.rule, pool)
        self.alternatives = None if parts is None else Alternatives(self.work, parts)
        self.splitter = Splitter(self.work, self.alternatives)
        self.cells: list[Cell] = []
        self.labels: Ints | None = None
        """A labelling that the search came across, if it kept one."""
        self.rest = 1.0
        """What is left to modes, of their share of the limits."""
        self.halted: Status | None = None

    def run(self) -> None:
        """Search, split, search the cells and polish; Ctrl-C leaves what is known."""
        try:
            self.search()
            if self.halted is None and np.isfinite(self.cells[0].free_energy):
                self.sample()
                self.split_up()
            if self.halted is None and len(self.cells) > 1:
                self.search_cells()
            self.polish_cells()
        except KeyboardInterrupt:
            self.halted = Status.INTERRUPTED
        if self.cells:
            self.loop.note(0, self.loop.elapsed, self.free_energy)

    def until(self, share: float) -> float:
        """The share of the limits at which a stage ends, given it where there is enough time."""
        return 1.0 - self.rest * (1.0 - share)

    @property
    def free_energy(self) -> float:
        """F of the mixture."""
        return mixture_free_energy([cell.free_energy for cell in self.cells])

    @property
    def status(self) -> Status:
        """Why it ended; converged if every cell is."""
        if self.halted is not None:
            return self.halted
        first, *others = {cell.status for cell in self.cells}
        alone = len(self.cells) == 1 or (not others and first is Status.CONVERGED)
        return first if alone else self.session.limit

    def report(self) -> None:
        """Note where the mixture stands, and ask the callback."""
        best = self.heaviest_first()[0]
        self.loop.note(0, self.loop.elapsed, self.free_energy)
        if self.loop.report(self.free_energy, best.q.copy):
            self.halted = Status.STOPPED

    def heaviest_first(self) -> list[Cell]:
        """The cells, by F."""
        return sorted(self.cells, key=lambda cell: cell.free_energy)

    def search(self) -> None:
        """The rule on the whole field."""
        possible = np.isfinite(self.work.lowered.unary)
        cell = Cell(possible, (), self.session.start, np.inf, self.session.limit)
        session = self.whole = self.work.session_of(cell, self.loop)
        if self.work.sweepable:
            session.program.warm_up_chains(session.start)
        session.measure(session.start)  # how long an evaluation takes
        self.rest = min(1.0, self.work.sweeps_left(1.0) / (tuned.SWEEPS_PER_MODE * self.count))
        whole, share = session.limits, self.until(tuned.SEARCH_SHARE)
        seconds = None if whole.budget is None else share * whole.budget
        limits = whole.until(int(np.ceil(share * whole.max_iters)), seconds)
        outcome = solve(session.within(limits), self.work.rule)
        self.labels = outcome.labels
        cell.q, cell.free_energy = outcome.q, float(outcome.free_energy)
        cell.status, self.cells = outcome.status, [cell]
        self.halted = outcome.status if outcome.status in HALTED else None

    def sample(self) -> None:
        """Cooled chains from the start: states that owe nothing to the best one."""
        lowered, work = self.work.lowered, self.work
        if self.alternatives is None or lowered.hard:
            return
        scale = float(self.session.problem.curvature.local.max(initial=0.0))
        if scale <= tuned.CONVEX_SCALE:
            return
        rng = np.random.default_rng([self.session.problem.seed, 1])
        each = float(np.mean(tuned.SAMPLE_SWEEPS)) + tuned.TRIAL_SWEEPS
        made, end = 0, self.until(tuned.SAMPLE_SHARE)
        while made < tuned.MAX_SAMPLES:
            count = int(min(tuned.SAMPLE_CHAINS, work.sweeps_left(end) / each))
            if count < 1:
                break
            made += count
            chains = Chains.make(
                np.repeat(self.session.start[None], count, axis=0),
                hot=np.maximum(1.0, scale * rng.choice(tuned.SAMPLE_HEAT, size=count)),
                sweeps=rng.choice(tuned.SAMPLE_SWEEPS, size=count),
                seeds=rng.integers(2**63, size=count, dtype=np.uint64),
                drawn=True,
                polish=tuned.TRIAL_SWEEPS,
            )
            with self.loop.clock():
                work.explore(self.whole, chains)

    def split_up(self) -> None:
        """Split the cell in which that separates most, until there are enough."""
        loop, loop.member = self.loop, "modes"
        if self.alternatives is not None:
            self.alternatives.refine(self.cells[0], self.until(tuned.REFINE_SHARE))
        end = self.until(tuned.SPLIT_SHARE)
        while len(self.cells) < self.count and self.work.sweeps_left(end) >= 1:
            to_come = 2 * (self.count - len(self.cells))
            for cell in self.cells:
                if cell.split is None:
                    with loop.clock():
                        cell.split = self.splitter.best_split(cell, to_come, end)
            low = min(cell.free_energy for cell in self.cells)
            tried = [
                (float(np.exp(low - cell.free_energy)) * cell.split.score, k, cell.split)
                for k, cell in enumerate(self.cells)
                if cell.split is not None
            ]
            score, k, chosen = max(tried, key=lambda item: item[0])
            if score <= tuned.MIN_SHARE:
                break
            self.cells = [*self.cells[:k], *self.cells[k + 1 :], *chosen.children]
            self.report()
            if self.halted is not None:
                break

    def search_cells(self) -> None:
        """The rule in each cell, then parts of everything that was seen."""
        work, end = self.work, self.until(tuned.CELL_SHARE)
        for number, cell in enumerate(self.heaviest_first()):
            to_come = len(self.cells) - number
            if work.sweeps_left(end) < tuned.MIN_CELL_SWEEPS * to_come:
                break
            iterations, seconds = work.left(end)
            own = work.aside(iterations / to_come, seconds / to_come)
            with self.loop.clock():
                session = work.session_of(cell, own, number + 1)
                before = Outcome(cell.q, cell.free_energy, cell.status)
                hard, rule = work.lowered.hard, work.rule
                after = rule.improve(session, before) if hard else rule.solve(session)
                self.take(cell, own, better_of(session, before, after))
            self.report()
            if self.halted is not None:
                return
        if self.alternatives is None:
            return
        for cell in self.cells:
            if work.sweeps_left(end) >= tuned.TRIAL_SWEEPS:
                with self.loop.clock():
                    self.alternatives.compare(cell, end)

    def polish_cells(self) -> None:
        """Each cell on to its local minimum, as far as the limits allow."""
        work = self.work
        for cell in self.heaviest_first():
            iterations, seconds = work.left(1.0)[0], work.left(tuned.OVERTIME)[1]
            if self.halted is not None or min(iterations, seconds) <= 0:
                break
            if cell.status is Status.CONVERGED or not np.isfinite(cell.free_energy):
                continue
            own = work.aside(iterations, seconds)
            with self.loop.clock():
                session = work.session_of(cell, own)
                before = Outcome(cell.q, cell.free_energy, self.session.limit)
                own.tell(cell.q, cell.free_energy)
                self.take(cell, own, better_of(session, before, polish(session, cell.q)))

    def take(self, cell: Cell, own: Loop, outcome: Outcome) -> None:
        """Where a cell is now, after the iterations of a loop of its own."""
        self.loop.iterations += own.iterations
        cell.q, cell.free_energy = outcome.q, float(outcome.free_energy)
        cell.status = outcome.status
        if outcome.status in HALTED:
            self.halted, cell.status = outcome.status, self.session.limit


def infer_modes(field: Field, request: Request, session: Session, count: int) -> Result:
    """The result of a request for several modes, at most ``count``, in the session of its field."""
    lowered = session.problem.lowered
    if lowered.infeasible:
        return finish(field, request, session, Outcome(session.start, np.inf, Status.INFEASIBLE))
    check_memory(8 * (5 * count + 8) * field.layout.size, f"{count} modes of {field!r}")
    with device_memory(request.kernels, lowered):
        found = ModeSearch(session, request, count)
        found.run()
        if not found.cells:
            return finish(field, request, session, interrupted(session))
        ends = [
            accurate(Outcome(cell.q, cell.free_energy, cell.status), request, session, cell)
            for cell in found.cells
        ]
    best = min(ends, key=lambda end: end.free_energy)
    f = mixture_free_energy([end.free_energy for end in ends])
    outcome = Outcome(best.q, f, found.status, found.labels)
    result = finish(field, request, session, outcome)
    reduction = lowered.reduction
    parts = [
        (end.free_energy, reduction.expand(end.q), user_clamps(reduction, cell.clamps))
        for end, cell in zip(ends, found.cells, strict=True)
    ]
    result.modes = make_modes(field.layout, parts)
    result.q = mixture_marginals(result.modes)
    log.debug("%d modes with F = %.9g", len(result.modes), f)
    return result
