# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Binary fields of thousands of variables: several programs share one, and all updates of all
fields are one launch.

Each program of a *team* holds some of the field's variables with their couplings. After an update
it puts their m where the others read it, and waits for these. What the programs found (F, the
largest change) is added up by each of them, in the same order, so that all come to the same
decision without asking. Waiting needs all programs to run at the same time: the launch is a
cooperative one. The interpreter runs one program after another, so there an update is two launches.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.update.arithmetic import binary_update, larger, spin
from proxfield.core.engines.triton.update.binary import sum_and_larger
from proxfield.core.engines.triton.update.board import (
    buffer_at,
    control,
    numbers_of,
    of_field,
    over_step,
    read_limits,
    read_progress,
    step_of,
    write_progress,
)
from proxfield.core.engines.triton.update.kinds import (
    Movement,
    Place,
    Steps,
    fetch,
    fetch_moments,
    put,
    put_moments,
)

TOGETHER, MOVE, DECIDE = 0, 1, 2
"""Phases: updates and decisions in turn, one update, one decision."""


@jit
def wait_for_team(arrived, expected):
    """Wait until ``expected`` programs have arrived in total; what they wrote is then visible."""
    tl.debug_barrier()  # all threads of this one have written
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < expected:
        pass


class Teams(NamedTuple):
    """The program's field and its part of it, how many programs a field has, and where they meet.

    arrived: how often programs of each field have waited, 0 before.  # (fields,)
    parts: (F, change) of each member, for even updates and odd ones.  # (fields, 2, team, 2)
    """

    whose: Tensor
    part: Tensor
    members: Tensor
    arrived: Tensor
    parts: Tensor


class Members(NamedTuple):
    """What `team_run` is compiled for, beside the rule."""

    variables: int
    """Variables of a program."""
    degree: int
    """Neighbors of each."""
    team: int
    """Programs of a field, at most."""
    phase: int


@jit_for_any(pointers=("buffers", "spins", "bias", "u", "v", "step", "safe"))
def team_run(
    buffers, stride, spins, spins_stride, status, teams, fields, bias, u, v, step, safe,
    parameters, RULE: constexpr, MEMBERS: constexpr,
):  # fmt: skip
    """Updates of all fields, until the status buffer of each says done; see `binary.binary_run`.

    Program p has variables of field ``whose[p]``, as many as ``MEMBERS.variables``, from
    ``part[p]`` times that on. x is kept in registers and written to the rotating buffers, where an
    adaptive update that is to be made again finds its beginning.
    """
    movement = Movement(u, v, step, safe, parameters)
    SIZE: constexpr = MEMBERS.variables
    K: constexpr = MEMBERS.degree
    TEAM: constexpr = MEMBERS.team
    PHASE: constexpr = MEMBERS.phase
    program = tl.program_id(0).to(tl.int64)
    field = tl.load(teams.whose + program).to(tl.int64)
    mine = tl.load(teams.part + program)
    count = tl.load(teams.members + field)
    status = of_field(status, field)
    parts = teams.parts + field * (4 * TEAM)
    now = read_progress(status)
    limits = read_limits(status, movement.parameters)
    first = tl.load(fields.offset + field).to(tl.int64)
    n = tl.load(fields.size + field)
    at = mine * SIZE + tl.arange(0, SIZE)
    inside = at < n
    buffers += first
    x = fetch(buffer_at(buffers, stride, now.tick) + at, inside, False)
    m = spin(x)
    like = x.dtype
    numbers = numbers_of(movement.parameters, like)
    edge = program * (SIZE * K) + tl.arange(0, SIZE * K)
    j = tl.load(fields.column + edge)
    w = tl.reshape(tl.load(fields.weight + edge), (SIZE, K))
    b = tl.load(bias + program * SIZE + tl.arange(0, SIZE))
    here = Place(0, first + at, inside)
    m1, m2 = fetch_moments(movement, here, x, RULE, False)
    s = step_of(movement.parameters, like)
    certified = s
    if not RULE.flat:
        s = tl.load(movement.step + first + at, mask=inside, other=1.0)
    if RULE.adaptive:
        certified = tl.load(movement.safe + first + at, mask=inside, other=1.0)
    spins += first
    member = tl.arange(0, TEAM)
    there = member < count
    expected = 0
    moving = now.done == 0
    while moving:
        if PHASE != 2:
            # past the first cache, which doesn't know what other programs write
            gathered = tl.load(buffer_at(spins, spins_stride, now.tick) + j, cache_modifier=".cg")
            theirs = tl.reshape(gathered, (SIZE, K))
            g = tl.sum(w * theirs, 1)
            x, m, m1, m2, change, f = binary_update(
                x, m, g, b, m1, m2, Steps(s, certified, now.redo), numbers, RULE
            )
            put(buffer_at(spins, spins_stride, now.tick + 1) + at, m, inside, False)
            change = tl.where(inside, change, 0.0)
            found = parts + ((now.tick % 2) * TEAM + mine) * 2
            if RULE.trace:
                mine_f, most = tl.reduce((tl.where(inside, f, 0.0), change), 0, sum_and_larger)
                tl.store(found, mine_f)
            else:
                most = tl.reduce(change, 0, larger)
            tl.store(found + 1, over_step(most, movement.parameters, RULE.flat))
            put(buffer_at(buffers, stride, now.tick + 1) + at, x, inside, False)
        if PHASE == 0:
            expected += count
            wait_for_team(teams.arrived + field, expected)
        if PHASE != 1:
            every = parts + ((now.tick % 2) * TEAM + member) * 2
            changes = tl.load(every + 1, mask=there, other=0.0, cache_modifier=".cg")
            total = tl.full((), float("nan"), tl.float64)
            if RULE.trace:
                energies = tl.load(every, mask=there, other=0.0, cache_modifier=".cg")
                total = tl.sum(energies, 0) + limits.constant
            was = now.tick
            change = tl.reduce(changes, 0, larger)
            now = control(total, change, now, limits, status, RULE.adaptive)
            if RULE.adaptive:  # noqa: SIM102 - one is known when compiling
                if now.tick <= was:  # back to where the last update began, or over: stay
                    x = fetch(buffer_at(buffers, stride, now.tick) + at, inside, False)
                    m = spin(x)
        moving = now.done == 0 if PHASE == 0 else now.done != now.done
    if PHASE != 1:  # noqa: SIM102
        if mine == count - 1:  # in the interpreter the others have read it by then
            write_progress(status, now)
    if PHASE != 2:
        put_moments(movement, here, m1, m2, RULE, False)
