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

from proxfield.core.devices.cuda import jit, tl
from proxfield.core.engines.triton.update.arithmetic import (
    binary_update,
    control,
    larger,
    parameter,
    read_board,
    spin,
    write_board,
)
from proxfield.core.engines.triton.update.binary import (
    numbers_of,
    over_step,
    single_loads,
    sum_and_larger,
)
from proxfield.core.engines.triton.update.kinds import (
    constexpr,
    fetch,
    fetch_moments,
    put,
    put_moments,
)

if tl is not None:
    from proxfield.core.engines.triton.update.arithmetic import BOARD, BUFFERS

    _BOARD: constexpr = tl.constexpr(BOARD)
    _BUFFERS: constexpr = tl.constexpr(BUFFERS)

TOGETHER, MOVE, DECIDE = 0, 1, 2
"""Phases: updates and decisions in turn, one update, one decision."""


@jit
def wait_for_team(arrived, expected):
    """Wait until ``expected`` programs have arrived in total; what they wrote is then visible."""
    tl.debug_barrier()  # all threads of this one have written
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < expected:
        pass


@single_loads("buffers", "bias", "u", "v", "step", "safe", "spins")
def team_run(
    buffers, stride, whose, part, members, size, offset, column, weight, bias, u, v, step, safe,
    spins, spins_stride, board, numbers, parameters, out_f, out_change, capacity, arrived, parts,
    KIND: constexpr, ADAPTIVE: constexpr, HARD: constexpr, TRACE: constexpr, FLAT: constexpr,
    SIZE: constexpr, K: constexpr, TEAM: constexpr, PHASE: constexpr,
):  # fmt: skip
    """Updates of all fields, until the status buffer of each says done; see `binary.binary_run`.

    Program p has SIZE variables of field ``whose[p]``, from ``part[p]``·SIZE on. Of the most
    members a team has there is room for TEAM. x is kept in registers and written to the rotating
    buffers, where an adaptive update that is to be made again finds its beginning.

    arrived: how often programs of each field have waited, 0 before.  # (fields,)
    parts: (F, change) of each member, for even updates and odd ones.  # (fields, 2, TEAM, 2)
    """
    program = tl.program_id(0).to(tl.int64)
    field = tl.load(whose + program).to(tl.int64)
    mine = tl.load(part + program)
    count = tl.load(members + field)
    board += field * _BOARD
    numbers += field * _BOARD
    out_f += field * capacity
    out_change += field * capacity
    parts += field * (4 * TEAM)
    tick, done, row, limit, trial, redo, before, last = read_board(board, numbers)
    constant = tl.load(numbers + 2) + tl.load(numbers + 3)
    tol = tl.load(parameters + 4)
    slack = tl.load(parameters + 6)
    first = tl.load(offset + field).to(tl.int64)
    n = tl.load(size + field)
    at = mine * SIZE + tl.arange(0, SIZE)
    inside = at < n
    buffers += first
    x = fetch(buffers + (tick % _BUFFERS).to(tl.int64) * stride + at, inside, False)
    m = spin(x)
    like = x.dtype
    beta, g1, g2, eps = numbers_of(parameters, like)
    edge = program * (SIZE * K) + tl.arange(0, SIZE * K)
    j = tl.load(column + edge)
    w = tl.reshape(tl.load(weight + edge), (SIZE, K))
    b = tl.load(bias + program * SIZE + tl.arange(0, SIZE))
    m1, m2 = fetch_moments(u, v, first + at, inside, x, KIND, False)
    s = parameter(parameters, 5, like)
    certified = s
    if not FLAT:
        s = tl.load(step + first + at, mask=inside, other=1.0)
    if ADAPTIVE:
        certified = tl.load(safe + first + at, mask=inside, other=1.0)
    spins += first
    member = tl.arange(0, TEAM)
    there = member < count
    expected = 0
    moving = done == 0
    while moving:
        if PHASE != 2:
            # past the first cache, which doesn't know what other programs write
            now = spins + (tick % _BUFFERS).to(tl.int64) * spins_stride
            theirs = tl.reshape(tl.load(now + j, cache_modifier=".cg"), (SIZE, K))
            g = tl.sum(w * theirs, 1)
            x, m, m1, m2, change, f = binary_update(
                x, m, g, b, m1, m2, s, certified, redo, beta, g1, g2, eps,
                KIND, ADAPTIVE, HARD, TRACE, FLAT,
            )  # fmt: skip
            to = ((tick + 1) % _BUFFERS).to(tl.int64)
            put(spins + to * spins_stride + at, m, inside, False)
            change = tl.where(inside, change, 0.0)
            here = parts + ((tick % 2) * TEAM + mine) * 2
            if TRACE:
                mine_f, most = tl.reduce((tl.where(inside, f, 0.0), change), 0, sum_and_larger)
                tl.store(here, mine_f)
            else:
                most = tl.reduce(change, 0, larger)
            tl.store(here + 1, over_step(most, parameters, FLAT))
            put(buffers + to * stride + at, x, inside, False)
        if PHASE == 0:
            expected += count
            wait_for_team(arrived + field, expected)
        if PHASE != 1:
            found = parts + ((tick % 2) * TEAM + member) * 2
            changes = tl.load(found + 1, mask=there, other=0.0, cache_modifier=".cg")
            total = tl.full((), float("nan"), tl.float64)
            if TRACE:
                every = tl.load(found, mask=there, other=0.0, cache_modifier=".cg")
                total = tl.sum(every, 0) + constant
            was = tick
            tick, done, row, trial, redo, before, last = control(
                total, tl.reduce(changes, 0, larger), tick, done, row, limit, trial, redo, before,
                last, tol, slack, out_f, out_change, ADAPTIVE,
            )  # fmt: skip
            if ADAPTIVE:  # noqa: SIM102 - one is known when compiling
                if tick <= was:  # back to where the last update began, or over: stay
                    back = buffers + (tick % _BUFFERS).to(tl.int64) * stride
                    x = fetch(back + at, inside, False)
                    m = spin(x)
        moving = done == 0 if PHASE == 0 else done != done
    if PHASE != 1:  # noqa: SIM102
        if mine == count - 1:  # in the interpreter the others have read it by then
            write_board(board, numbers, tick, done, row, trial, redo, before, last)
    if PHASE != 2:
        put_moments(u, v, first + at, m1, m2, inside, KIND, False)
