"""`infer_many`: many fields at once; on a GPU they iterate together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record
from proxfield.core.engines.numba.pack import is_binary
from proxfield.core.engines.plan import Update
from proxfield.core.engines.registry import placed, program_for
from proxfield.core.jobs.running import run_jobs, slots_of, threads_per_item
from proxfield.core.solve.infer import finish, infer_one
from proxfield.core.solve.loop import run_together
from proxfield.core.solve.request import Request, Start, choose_kernels, device_memory, on_gpu
from proxfield.core.solve.rules.base import Outcome, Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.session import Session, conclude
from proxfield.core.solve.stationarity import Verdict, judge
from proxfield.errors import InputError, InputTypeError
from proxfield.field import Field
from proxfield.result import Result, Status

MIN_ENTRIES_ALONE = 1 << 20
"""Entries from which on a field fills a GPU by itself, so that it iterates alone."""
MAX_ENTRIES_TEAM = 1 << 14
"""Entries up to which a field may iterate within one multiprocessor; larger ones would keep it
from that if they were in the same batch."""
MAX_FIELDS = 2048
"""Maximum number of fields per batch; each takes 64 KiB for its rows."""
MAX_ENTRIES = 1 << 26
"""Maximum number of entries per batch: a few GiB."""
BYTES_PER_ENTRY = 32
"""About how many bytes a batch takes per entry, to compare images with it."""


def infer_many(
    fields: Iterable[Field],
    rule: str | Rule | type[Rule] = "fixed",
    *,
    init: str | Sequence[Start] = "uniform",
    max_iters: int | None = None,
    tol: float = 1e-6,
    budget: float | None = None,
    device: str = "cpu",
    kernels: str | None = None,
    dtype: str | None = None,
    seed: int = 0,
    trace: bool = True,
    threads: int | None = None,
    jobs: int | None = None,
    **params: Any,
) -> list[Result]:
    """Infer in many fields; each result is as if its field had been given to `infer` by itself.

    On a GPU, fields iterate together where they can: with the rules fixed, adaptive, backtracking,
    full-parallel, adhoc, momentum and adam, and in fields of tables without forbidden
    configurations. That pays for fields too small to fill a GPU by themselves. They may differ in
    everything; each stops when it has converged. Fields that differ in one term beyond tables
    iterate together too if a device can evaluate these terms together, as for the frames of a scene
    that share their silhouettes (the same objects) and parameters. All other fields, and all on the
    CPU, run one after another.

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
        threads: Maximum number of threads; of each job, where there are several.
        jobs: Number of fields at a time, in processes of their own (needs joblib); by default 1, or
            as ``joblib.parallel_config`` says (see `core.jobs.run_jobs`). Not for fields on a
            GPU, which iterate together in this process.
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
    request = Request(
        make_rule(rule, params),
        *choose_kernels(device, kernels, dtype),
        kernels is not None,
        max_iters=max_iters,
        tol=tol,
        budget=budget,
        seed=seed,
        threads=threads,
        trace=trace,
    )
    results: dict[int, Result] = {}
    stopped = False
    if slots_of(jobs) > 1 and not on_gpu(request.kernels):
        alike: Record = {"max_iters": max_iters, "tol": tol, "budget": budget, "device": device}
        alike.update(kernels=kernels, dtype=dtype, seed=seed, trace=trace, **params)
        alike["threads"] = threads_per_item(jobs) if threads is None else threads
        one = partial(_infer_item, rule=rule, options=alike)
        items = ((k, each.snapshot(lowered=False), starts[k]) for k, each in enumerate(fields))
        some = run_jobs(
            one, items, jobs, alike["threads"], name=lambda item: f"field {item[0]}", paths=False
        )
        try:
            for k, result in some:
                result.field = fields[k].snapshot()
                results[k] = result
        except KeyboardInterrupt:
            stopped = True
    for batch in _batches(fields, starts, request):
        if stopped:
            break
        for member, result in zip(batch, _solve_together(batch, request), strict=True):
            results[member.number] = result
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


def _infer_item(
    item: tuple[int, Field, Start], rule: str | Rule | type[Rule], options: Record
) -> tuple[int, Result]:
    """One field, in a process of its own."""
    number, field, start = item
    return number, infer_many([field], rule, init=[start], jobs=1, **options)[0]


def _list_of(fields: Iterable[Field]) -> list[Field]:
    if isinstance(fields, Field):
        raise InputTypeError(
            "infer_many takes a list of fields, not a Field; for one there is infer"
        )
    try:
        found = list(fields)
    except TypeError:
        kind = type(fields).__name__
        raise InputTypeError(f"infer_many takes a list of fields, not {kind}") from None
    for k, each in enumerate(found):
        if not isinstance(each, Field):
            raise InputTypeError(f"infer_many takes Fields; number {k} is {type(each).__name__}")
    return found


def _starts(init: str | Sequence[Start], count: int) -> list[Start]:
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


@dataclass
class _Member:
    """A field of a batch."""

    number: int
    given: Field
    session: Session
    plan: Update
    scene: int
    """For frames that iterate together: the same number for the same scene; −1: no frame."""

    def __post_init__(self) -> None:
        p, self.lowered = self.plan, self.session.problem.lowered
        size, images = self.lowered.layout.size, sum(t.nbytes for t in self.lowered.extras)
        self.key = (
            self.scene, is_binary(self.lowered), size <= MAX_ENTRIES_TEAM, p.kind, p.gamma1,
            p.gamma2, p.epsilon, p.adaptive, p.inverse_temperature,
        )  # fmt: skip
        """What fields have in common that iterate together."""
        self.entries = size + images // BYTES_PER_ENTRY
        """Entries of the state, and as many for the images of a frame as take the same memory."""


def _batches(fields: list[Field], starts: list[Start], request: Request) -> Iterator[list[_Member]]:
    """Fields that can iterate together, as batches; the others are left out."""
    if not on_gpu(request.kernels) or type(request.rule).solve is not Rule.solve:
        return
    from proxfield.core.engines.triton.frames import batch_key

    members = []
    scenes: dict[Hashable, int] = {}
    uniform: dict[tuple[int, int | None], Doubles] = {}
    for k, each in enumerate(fields):
        low = each.lower()
        if low.infeasible or low.hard or not 0 < low.layout.size < MIN_ENTRIES_ALONE:
            continue
        key = batch_key(low) if low.extras else None
        if low.extras and key is None:
            continue
        scene = -1 if key is None else scenes.setdefault(key, len(scenes))
        session = request.open(each, starts[k])
        if scene >= 0 and isinstance(starts[k], str) and starts[k] == "uniform":
            # one array for all frames is copied to the device once
            size = low.layout.size, low.layout.common
            if low.layout.size == each.layout.size and not (each.evidence >= 0).any():
                session.start = uniform.setdefault(size, session.start)
        request.rule.prepare(session.problem)
        with session.loop.clock():
            plan = request.rule.plan(session.problem)
        if not isinstance(plan, Update):  # sweeps, or a Python function: the same for all fields
            return
        members.append(_Member(k, each, session, plan, scene))
    members.sort(key=lambda m: m.key)  # stable
    for _, alike in groupby(members, key=lambda m: m.key):
        batch: list[_Member] = []
        entries = 0
        for member in alike:
            entries += member.entries
            if batch and (len(batch) == MAX_FIELDS or entries > MAX_ENTRIES):
                yield batch
                batch, entries = [], member.entries
            batch.append(member)
        yield batch


def _solve_together(members: list[_Member], request: Request) -> list[Result]:
    """Iterate the fields of a batch to their ends."""
    from proxfield.core.engines.triton.batch import BatchProgram
    from proxfield.core.engines.triton.frames import frames_program

    starts = [m.session.start for m in members]
    loops = [m.session.loop for m in members]
    lowereds, plans = [m.lowered for m in members], [m.plan for m in members]
    plan = replace(plans[0], step=np.concatenate([p.step for p in plans]), fallback=None)
    if plan.adaptive:
        safe = [p.step if p.fallback is None else p.fallback for p in plans]
        plan = replace(plan, fallback=np.concatenate(safe))
    given = lowereds, request.dtype, placed(request.kernels).device.handle()
    scene = members[0].scene >= 0
    with (
        device_memory(request.kernels, *lowereds),
        frames_program(*given) if scene else nullcontext(BatchProgram(*given)) as program,
    ):
        state = program.start(starts)
        ended = run_together(loops, program, plan, state, not request.rule.never_rises)
        q = program.marginals_each(state)
        first = [np.inf] * len(starts)
        if Status.DIVERGED in ended:  # nothing else looks at F of the start
            first = program.free_energy_each(program.start(starts)).tolist()
    out = []
    for k, member in enumerate(members):
        last = Outcome(q[k], loops[k].last, ended[k])
        f = partial(float, first[k])
        outcome = conclude(loops[k], request.rule, last, f, starts[k], request.keep)
        try:
            if outcome.status is Status.CONVERGED:
                # terms of their own can take a thousand times longer on the host
                kernels = request.kernels if member.lowered.extras else "cpu"
                host = program_for(member.lowered, kernels)
                outcome.judgement = judge(host, host.start(outcome.q), seed=request.seed)
                if outcome.judgement.verdict is Verdict.SADDLE:
                    outcome.status = Status.SADDLE
        except KeyboardInterrupt:  # no more tests; a second one is raised
            outcome.status = Status.INTERRUPTED
        out.append(finish(member.given, request, member.session, outcome))
    return out
