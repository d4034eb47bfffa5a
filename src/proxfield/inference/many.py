"""`infer_many`: many fields at once; on a GPU they iterate together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.base import Rows
from proxfield.backends.cache import program_for
from proxfield.backends.numba.pack import is_binary
from proxfield.backends.registry import placed
from proxfield.common.interrupts import finish_first
from proxfield.errors import InputError, InputTypeError
from proxfield.field import Field
from proxfield.inference.infer import Request, device_memory, finish, infer_one, on_gpu
from proxfield.inference.loop import ending, spread
from proxfield.inference.pace import Pace
from proxfield.inference.session import Session, conclude
from proxfield.inference.stationarity import judge
from proxfield.lowering.lowered import Lowered
from proxfield.result import Result, Status
from proxfield.rules.base import Rule
from proxfield.rules.plan import Update
from proxfield.rules.session import Outcome, Verdict

if TYPE_CHECKING:
    from proxfield.backends.triton.batch import BatchProgram
    from proxfield.backends.triton.state import BatchState

CONVERGED = Status.CONVERGED
MIN_ENTRIES_ALONE = 1 << 20
"""Entries from which on a field fills a GPU by itself, so that it iterates alone."""
MAX_ENTRIES_TEAM = 1 << 14
"""Entries up to which a field may iterate within one multiprocessor; larger ones would keep it
from that if they were in the same batch."""
MAX_FIELDS = 2048
"""Maximum number of fields per batch; each takes 64 KiB for its rows."""
MAX_ENTRIES = 1 << 26
"""Maximum number of entries per batch: a few GiB."""


def infer_many(
    fields: Iterable[Field],
    rule: str | Rule | type[Rule] = "fixed",
    *,
    init: str | Sequence[Any] = "uniform",
    max_iters: int | None = None,
    tol: float = 1e-6,
    budget: float | None = None,
    device: str = "cpu",
    kernels: str | None = None,
    dtype: str | None = None,
    seed: int = 0,
    trace: bool = True,
    threads: int | None = None,
    **params: Any,
) -> list[Result]:
    """Infer in many fields; each result is as if its field had been given to `infer` by itself.

    On a GPU, fields iterate together where they can: with the rules fixed, adaptive,
    full-parallel, adhoc, momentum and adam, and in fields of tables without forbidden
    configurations. That pays for fields too small to fill a GPU by themselves. They may differ in
    everything; each stops when it has converged. All other fields, and all on the CPU, run one
    after another.

    Args:
        fields: The fields.
        rule: As in `infer`, one for all fields.
        init: A word as in `infer` for all fields, or a list with one start for each: anything
            that `infer` accepts, for example the results of an earlier call.
        max_iters: Maximum number of iterations per field.
        tol: As in `infer`.
        budget: Time budget in seconds per field, as in `infer`; fields that iterate together use
            it up together.
        device: As in `infer`.
        kernels: As in `infer`.
        dtype: As in `infer`.
        seed: Random seed, the same for each field.
        trace: Keep F of every state.
        threads: Maximum number of threads.
        **params: Parameters of a rule given by name or class.

    Returns:
        A `Result` for each field, in order. The seconds of fields that iterated together are
        the same seconds: their sum says nothing. After Ctrl-C, fields that were being worked on
        have the best so far; those not yet begun have their start, and F unknown: +inf. All of
        these have the status INTERRUPTED.

    Example:
        >>> import proxfield as pf
        >>> from proxfield.generate import grid
        >>> fields = [grid(3, 3, strength=s) for s in (0.5, 1.0, 2.0)]
        >>> [result.converged for result in pf.infer_many(fields)]
        [True, True, True]
    """
    fields = _list_of(fields)
    starts = _starts(init, len(fields))
    request = Request.make(
        rule,
        params,
        device,
        init="uniform",
        max_iters=max_iters,
        tol=tol,
        budget=budget,
        callback=None,
        seed=seed,
        threads=threads,
        kernels=kernels,
        dtype=dtype,
        keep="last",
        trace=trace,
    )
    results: dict[int, Result] = {}
    stopped = False
    for batch in _batches(fields, starts, request):
        if stopped:
            break
        for k, result in zip(batch.which, batch.solve(request), strict=True):
            results[k] = result
            stopped = stopped or result.status is Status.INTERRUPTED
    for k, each in enumerate(fields):
        if k in results:
            continue
        try:
            session = request.open(each, starts[k])
        except KeyboardInterrupt:  # the other fields' results stay; a second one is raised
            stopped, session = True, request.open(each, starts[k])
        if stopped and not session.problem.lowered.infeasible:
            untouched = Outcome(session.start, np.inf, Status.INTERRUPTED)
            results[k] = finish(each, request, session, untouched)
        else:
            results[k] = infer_one(each, request, session)
            stopped = stopped or results[k].status is Status.INTERRUPTED
    return [results[k] for k in range(len(fields))]


def _list_of(fields: Iterable[Field]) -> list[Field]:
    if isinstance(fields, Field):
        raise InputTypeError(
            "infer_many takes a list of fields, not a Field; for one there is infer"
        )
    try:
        found = list(fields)
    except TypeError:
        raise InputTypeError(
            f"infer_many takes a list of fields, not {type(fields).__name__}"
        ) from None
    for k, each in enumerate(found):
        if not isinstance(each, Field):
            raise InputTypeError(f"infer_many takes Fields; number {k} is {type(each).__name__}")
    return found


def _starts(init: str | Sequence[Any], count: int) -> list[Any]:
    """The start of each field."""
    if isinstance(init, str):
        return [init] * count
    if not isinstance(init, (list, tuple)):
        raise InputError(
            f"init is {type(init).__name__}, expected a word, or a list with one start for each "
            "field"
        )
    if len(init) != count:
        raise InputError(f"init has {len(init)} starts for {count} fields, expected one for each")
    return list(init)


# ---- fields that iterate together ----


@dataclass
class _Member:
    """A field of a batch."""

    number: int
    given: Field
    session: Session
    plan: Update
    rows: list[Rows] = field(default_factory=list)
    moments: list[NDArray[np.float64]] = field(default_factory=list)
    status: Status | None = None
    """Why it stopped, once it has."""
    waiting: int = 0
    """Iterations to wait since the last test for a fixed point failed."""
    tested: bool = False
    """Is it known to be at a fixed point?"""
    test_at: int = 0
    """The iteration from which on it may be tested again."""

    @property
    def quiet(self) -> bool:
        """Does it move on whatever the change of q?"""
        return self.session.loop.iterations < self.test_at

    def go_on(self) -> None:
        """It isn't at a fixed point yet, although q hardly moves."""
        self.waiting = max(1, 2 * self.waiting)
        self.test_at, self.status = self.session.loop.iterations + self.waiting, None

    @property
    def lowered(self) -> Lowered:
        return self.session.problem.lowered

    @property
    def key(self) -> tuple[Any, ...]:
        """What fields have in common that iterate together."""
        p = self.plan
        moving = (p.kind, p.gamma1, p.gamma2, p.epsilon, p.adaptive, p.inverse_temperature)
        return (is_binary(self.lowered), self.lowered.layout.size <= MAX_ENTRIES_TEAM, *moving)

    def judged(self, outcome: Outcome) -> Outcome:
        """The outcome with the result of the second-order test, made on the host."""
        if outcome.status is not CONVERGED:
            return outcome
        program = program_for(self.lowered)
        found = judge(program, program.start(outcome.q), seed=self.session.problem.seed)
        status = Status.SADDLE if found.verdict is Verdict.SADDLE else outcome.status
        return replace(outcome, status=status, judgement=found)

    def left(self) -> float:
        """Seconds that its budget leaves."""
        loop = self.session.loop
        return np.inf if loop.budget is None else loop.budget - loop.elapsed

    def note(self, rows: Rows, before: NDArray[np.float64] | None, seconds: float) -> None:
        """Keep what some updates did, and what was there before them if that was good."""
        loop = self.session.loop
        begun, loop.elapsed = loop.elapsed, loop.elapsed + seconds
        self.rows.append(rows)
        self.moments.append(spread(begun, loop.elapsed, len(rows)))
        loop.iterations += len(rows)
        loop.period2 = rows.period2
        if before is not None:
            loop.remember(float(rows.free_energy[0]), before)
        self.status = ending(rows, loop.tol)
        if self.quiet:  # the change was looked at in the middle of the wait
            self.status = None if self.status is CONVERGED else self.status


def _batches(fields: list[Field], starts: list[Any], request: Request) -> Iterator[_Batch]:
    """Fields that can iterate together, as batches; the others are left out."""
    if not on_gpu(request.kernels) or type(request.rule).solve is not Rule.solve:
        return
    members = []
    for k, each in enumerate(fields):
        low = each.lower()
        if low.infeasible or low.hard or low.extras or not 0 < low.layout.size < MIN_ENTRIES_ALONE:
            continue
        session = request.open(each, starts[k])
        request.rule.prepare(session.problem)
        with session.loop.clock():
            plan = request.rule.plan(session.problem)
        if not isinstance(plan, Update):  # sweeps, or a Python function: the same for all fields
            return
        members.append(_Member(k, each, session, plan))
    members.sort(key=lambda m: m.key)  # stable
    for _, alike in groupby(members, key=lambda m: m.key):
        batch: list[_Member] = []
        for member in alike:
            entries = sum(m.lowered.layout.size for m in batch) + member.lowered.layout.size
            if len(batch) == MAX_FIELDS or entries > MAX_ENTRIES:
                yield _Batch(batch)
                batch = []
            batch.append(member)
        yield _Batch(batch)


@dataclass
class _Batch:
    """Fields that iterate together."""

    members: list[_Member]

    @property
    def which(self) -> list[int]:
        """The numbers of the fields."""
        return [m.number for m in self.members]

    @property
    def plan(self) -> Update:
        """The plans of all fields as one."""
        plans = [m.plan for m in self.members]
        step = np.concatenate([p.step for p in plans])
        safe = None
        if plans[0].adaptive:
            safe = np.concatenate([p.step if p.fallback is None else p.fallback for p in plans])
        return replace(plans[0], step=step, fallback=safe)

    def solve(self, request: Request) -> list[Result]:
        """Iterate all fields to their ends."""
        from proxfield.backends.triton.batch import BatchProgram

        lowereds = [m.lowered for m in self.members]
        with device_memory(request.kernels, *lowereds):
            program = BatchProgram(lowereds, request.dtype, placed(request.kernels).device.handle())
            starts = [m.session.start for m in self.members]
            plan = self.plan
            scratch = program.start(starts)  # compile outside the clock
            at_start = program.free_energy(scratch)
            program.advance(scratch, plan, 1, 0.0, request.trace)
            del scratch
            state = program.start(starts)
            self._iterate(program, plan, state, request)
            q, f = program.marginals(state), program.free_energy(state)
        out = []
        for k, member in enumerate(self.members):
            loop = member.session.loop
            loop.append(0, member.moments, member.rows, float(f[k]), True)
            assert member.status is not None
            last = Outcome(q[k], float(f[k]), member.status)
            outcome = conclude(loop, request.rule, last, partial(float, at_start[k]), starts[k])
            try:
                outcome = member.judged(outcome)
            except KeyboardInterrupt:  # no more tests; a second one is raised
                outcome = replace(outcome, status=Status.INTERRUPTED)
            out.append(finish(member.given, request, member.session, outcome))
        return out

    def _iterate(
        self, program: BatchProgram, plan: Update, state: BatchState, request: Request
    ) -> None:
        """Advance until each field has stopped; a look at clocks and Ctrl-C every now and then."""
        look_back = not request.rule.never_rises
        pace, now = Pace(), time.perf_counter()
        try:
            while True:
                for m in self.members:
                    m.status = m.status or _limit(m, pace)
                active = [k for k, m in enumerate(self.members) if m.status is None]
                if not active:
                    return
                before = program.marginals(state) if look_back else None
                for quiet in (False, True):
                    some = [k for k in active if self.members[k].quiet is quiet]
                    if not some:
                        continue
                    moving = np.zeros(len(self.members), dtype=bool)
                    moving[some] = True
                    n = pace.next(*self._room(some, quiet))
                    tol = -1.0 if quiet else request.tol
                    with finish_first():
                        rows = program.advance(state, plan, n, tol, request.trace, moving)
                        begun, now = now, time.perf_counter()
                        for k in some:
                            earlier = None if before is None else before[k]
                            self.members[k].note(rows[k], earlier, now - begun)
                    pace.learn(max(len(rows[k]) for k in some), now - begun)
                self._test(program, state, request.tol)
        except KeyboardInterrupt:
            for m in self.members:
                untested = m.status is CONVERGED and not m.tested
                m.status = Status.INTERRUPTED if untested else m.status or Status.INTERRUPTED

    def _room(self, some: list[int], quiet: bool) -> tuple[float, int]:
        """Seconds and iterations that the limits leave to some members."""
        members = [self.members[k] for k in some]
        left = min(m.left() for m in members)
        ends = (m.test_at if quiet else m.session.loop.max_iters for m in members)
        most = min(e - m.session.loop.iterations for e, m in zip(ends, members, strict=True))
        limit = min(m.session.loop.max_iters - m.session.loop.iterations for m in members)
        return left, min(most, limit)

    def _test(self, program: BatchProgram, state: BatchState, tol: float) -> None:
        """Let members go on whose q hardly moves but which aren't at a fixed point."""
        new = [k for k, m in enumerate(self.members) if m.status is CONVERGED and not m.tested]
        if not new:
            return
        residual, rounding = program.residual(state)
        for k in new:
            if residual[k] <= tol + rounding[k]:
                self.members[k].tested = True
            else:
                self.members[k].go_on()


def _limit(member: _Member, pace: Pace) -> Status | None:
    """The limit that a field has reached, if it has."""
    loop = member.session.loop
    if loop.iterations >= loop.max_iters:
        return Status.MAX_ITERS
    return Status.BUDGET if pace.too_late(member.left()) else None
