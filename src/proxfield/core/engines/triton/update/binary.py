# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernels for binary variables with Ising couplings: one number per variable.

The gradient difference is bias − W m with m = ½ − q_1 (the CPU's −v); −W is what is stored. A state
holds x with m = ½ tanh x: neighbors' m are computed from x again, since two instructions of the
units for exponentials cost less than the 8 bytes that reading and writing m would. An update then
moves, for each variable, x twice (read, written), its bias, its couplings (each once, since W is
symmetric) and its moments.

Three forms of W: *diagonals* (few distinct distances j − i: grids), *slices* (blocks of variables
of about equal degree, neighbors by number) and, for fields of up to some thousand variables,
neighbors that one program holds while it makes many updates, or several that share a field.

Each program of such a *team* holds some of the field's variables with their couplings. After an
update it puts their m where the others read it, and waits for these. What the programs found (F,
the largest change) is added up by each of them, in the same order, so that all come to the same
decision without asking. Waiting needs all programs to run at the same time: the launch is a
cooperative one. The interpreter runs one program after another, so there an update is two launches.

All loads are of single numbers, neighbors in a row by neighboring threads: wide loads
would spread the shifted ones (i ± 1) over four times as many cache lines. Triton assumes that
pointers within bundles are aligned if they are, so these pointers are arguments of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.update.board import (
    _BOARD,
    _DONE,
    _REDO,
    _TICK,
    _TWICE,
    buffer_at,
    control,
    numbers_of,
    of_field,
    over_step,
    read_limits,
    read_progress,
    steps_of,
    write_progress,
)
from proxfield.core.engines.triton.update.kinds import (
    _LOOK,
    _SECOND,
    Entries,
    Movement,
    Steps,
    binary_update,
    fetch,
    fetch_moments,
    larger,
    log_near,
    put,
    put_moments,
    spin,
)

TOGETHER, MOVE, DECIDE = 0, 1, 2
"""Phases: updates and decisions in turn, one update, one decision."""


class DiagonalGrid(NamedTuple):
    """What `diagonal_step` is compiled for, beside the rule."""

    diagonals: int
    roll: bool  # is the last distance that of rows, which are walked along?
    even: bool  # is nothing outside?
    rows: int
    width: int


class Diagonals(NamedTuple):
    """How a field with diagonals is cut, and its distances but that of rows."""

    n: int
    row: int
    columns: int
    d1: int
    d2: int
    d3: int
    d4: int


class Slices(NamedTuple):
    """Blocks of variables, and their neighbors."""

    variable: Tensor
    start: Tensor
    length: Tensor
    field: Tensor  # of each block
    column: Tensor


class SliceShape(NamedTuple):
    """What kernels over slices are compiled for, beside the rule."""

    block: int  # variables of a program
    wide: int  # neighbors that are read together


class SmallFields(NamedTuple):
    """Sizes of small fields, their first variables, and their neighbors within them.

    Of teams also each program's field and its part of it, how many programs each field has, and
    where they meet: how often they have waited, and the (F, change) that each found.
    """

    size: Tensor
    offset: Tensor
    column: Tensor
    weight: Tensor
    stride: int  # from one buffer of m to the next
    whose: Tensor | None = None
    part: Tensor | None = None
    members: Tensor | None = None
    arrived: Tensor | None = None  # (fields,)
    found: Tensor | None = None  # for even updates and odd ones  # (fields, 2, team, 2)


class SmallForm(NamedTuple):
    """What `binary_run` is compiled for, beside the rule."""

    variables: int  # variables of a program
    degree: int  # neighbors of each
    hold: bool  # do couplings stay in registers?
    team: int = 0  # programs of a field, at most; 0 if each has one of its own
    phase: int = TOGETHER


@jit
def move(x, m, g, to, bias, movement, here, redo, RULE: constexpr, EVEN: constexpr):
    """Update the variables at a place, and store them from ``to`` on; returns (F, change) of each.

    The change is over the step, or (if ``RULE.flat``) still to be divided by it; see
    `binary_update`. The kind `LOOK` only looks: it stores the gradient in ``u``.
    """
    numbers = numbers_of(movement.parameters, x.dtype)
    b = fetch(bias + here.base + here.at, here.inside, EVEN)
    first, second = fetch_moments(movement, here, x, RULE, EVEN)
    steps = steps_of(movement, here.base + here.at, here.inside, redo, x.dtype, RULE)
    new, _, first, second, change, f = binary_update(
        x, m, g, b, first, second, steps, numbers, RULE
    )
    if RULE.kind == _LOOK:
        put(movement.u + here.base + here.at, b + g, here.inside, EVEN)
    else:
        put(to + here.at, new, here.inside, EVEN)
        put_moments(movement, here, first, second, RULE, EVEN)
    if not EVEN:
        f = tl.where(here.inside, f, 0.0)
        change = tl.where(here.inside, change, 0.0)
    return f, change


@jit
def sideways(source, weights, at, shift, inside, EVEN: constexpr):
    """w·m of the variables ``shift`` before and after, for one diagonal.

    Without asking whether they are there: arrays are padded, and couplings that aren't are 0.
    """
    after = spin(fetch(source + at + shift, inside, EVEN))
    before = spin(fetch(source + at - shift, inside, EVEN))
    w = fetch(weights + at, inside, EVEN)
    return w * after + fetch(weights + at - shift, inside, EVEN) * before


@jit_for_any(pointers=("buffers", "bias", "u", "v", "step", "safe", "diagonal"))
def diagonal_step(
    buffers, status, bias, u, v, step, safe, diagonal, cut, RULE: constexpr, GRID: constexpr
):
    """One update where W is diagonals, of the distances d1, d2, … and (if ``GRID.roll``) of rows.

    A program walks down a column of variables, some rows long. If ``GRID.roll`` the row below is
    read once, and is then the present one, and then the one above. States and diagonals are padded
    by the longest distance on both sides.
    """
    WIDTH: constexpr = GRID.width
    EVEN: constexpr = GRID.even
    ROWS: constexpr = GRID.rows
    beside: constexpr = GRID.diagonals - 1 if GRID.roll else GRID.diagonals
    movement = Movement(u, v, step, safe, status.parameters)
    stride = status.stride
    tick = tl.load(status.board + _TICK)
    if tl.load(status.board + _DONE) == 0:
        block = tl.program_id(0)
        row = cut.row
        base = (block // cut.columns).to(tl.int64) * ROWS * row
        source = buffer_at(buffers, stride, tick) + base
        to = buffer_at(buffers, stride, tick + 1) + base
        redo = tl.load(status.board + _REDO)
        column = (block % cut.columns) * WIDTH + tl.arange(0, WIDTH)
        across = column < row
        left = cut.n - base
        x = fetch(source + column, across & (column < left), EVEN)
        m = spin(x)
        last = diagonal + (GRID.diagonals - 1) * stride + base
        m_above = x
        w_above = x
        if GRID.roll:
            m_above = spin(fetch(source - row + column, across, EVEN))
            w_above = fetch(last - row + column, across, EVEN)
        f = tl.zeros((WIDTH,), tl.float64)
        most = tl.zeros((WIDTH,), x.dtype)
        for r in range(ROWS):
            here = base + r * row
            inside = across & (column < cut.n - here)
            below = across & (column < cut.n - here - row)
            x_below = fetch(source + (r + 1) * row + column, below, EVEN)
            m_below = spin(x_below)
            g = tl.zeros((WIDTH,), x.dtype)
            if GRID.roll:
                w_below = fetch(last + r * row + column, below, EVEN)
                g = w_below * m_below + w_above * m_above
                m_above = m
                w_above = w_below
            now = source + r * row
            if beside > 0:
                g += sideways(now, diagonal + here, column, cut.d1, inside, EVEN)
            if beside > 1:
                g += sideways(now, diagonal + stride + here, column, cut.d2, inside, EVEN)
            if beside > 2:
                g += sideways(now, diagonal + 2 * stride + here, column, cut.d3, inside, EVEN)
            if beside > 3:
                g += sideways(now, diagonal + 3 * stride + here, column, cut.d4, inside, EVEN)
            place = Entries(here, column, inside)
            more, change = move(x, m, g, to + r * row, bias, movement, place, redo, RULE, EVEN)
            if RULE.trace:
                f += more
            most = larger(most, change)
            x = x_below
            m = m_below
        tl.store(status.parts + block * 2, tl.sum(f, 0))
        largest = over_step(tl.reduce(most, 0, larger), movement.parameters, RULE.flat)
        tl.store(status.parts + block * 2 + 1, largest)


@jit
def gather(source, block, slices, weight, place, inside, SHAPE: constexpr, LINEAR: constexpr):
    """Σ_j w_ij m_j of a block's variables; of the numbers if LINEAR.

    Neighbor k of the variable in place j of block b is ``column[start[b] + k·BLOCK + j]``.
    """
    BLOCK: constexpr = SHAPE.block
    WIDE: constexpr = SHAPE.wide
    first = tl.load(slices.start + block)
    count = tl.load(slices.length + block)
    g = tl.zeros((BLOCK,), source.dtype.element_ty)
    beside = tl.arange(0, WIDE)[None, :]
    for k in range(0, count, WIDE):
        here = (k + beside < count) & inside[:, None]
        edge = first + (k + beside) * BLOCK + place[:, None]
        w = tl.load(weight + edge, mask=here, other=0.0)
        j = tl.load(slices.column + edge, mask=here, other=0)
        theirs = tl.load(source + j, mask=here, other=0.0)
        if not LINEAR:
            theirs = spin(theirs)
        g += tl.sum(w * theirs, 1)
    return g


@jit_for_any(pointers=("buffers", "bias", "u", "v", "step", "safe", "weight"))
def slice_step(
    buffers, status, bias, u, v, step, safe, slices, weight, RULE: constexpr, SHAPE: constexpr
):
    """One update where W is slices: a block of variables with as many neighbors as the most has."""
    movement = Movement(u, v, step, safe, status.parameters)
    block = tl.program_id(0).to(tl.int64)
    board = status.board + tl.load(slices.field + block).to(tl.int64) * _BOARD
    tick = tl.load(board + _TICK)
    if tl.load(board + _DONE) == 0:
        source = buffer_at(buffers, status.stride, tick)
        to = buffer_at(buffers, status.stride, tick + 1)
        redo = tl.load(board + _REDO)
        place = tl.arange(0, SHAPE.block)
        at = tl.load(slices.variable + block * SHAPE.block + place)  # −1: nobody
        inside = at >= 0
        x = tl.load(source + at, mask=inside, other=0.0)
        g = gather(source, block, slices, weight, place, inside, SHAPE, False)
        here = Entries(0, at, inside)
        f, change = move(x, spin(x), g, to, bias, movement, here, redo, RULE, False)
        tl.store(status.parts + block * 2, tl.sum(f, 0))
        largest = over_step(tl.reduce(change, 0, larger), movement.parameters, RULE.flat)
        tl.store(status.parts + block * 2 + 1, largest)


@jit
def slice_product(source, out, slices, weight, SHAPE: constexpr):
    """Σ_j w_ij v_j where W is slices."""
    block = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, SHAPE.block)
    at = tl.load(slices.variable + block * SHAPE.block + place)  # −1: nobody
    inside = at >= 0
    g = gather(source, block, slices, weight, place, inside, SHAPE, True)
    tl.store(out + at, g, mask=inside)


@jit
def sum_and_larger(f, most, g, more):
    """Adds the one, compares the other: two reductions at the price of one."""
    return f + g, larger(most, more)


@jit
def wait_for_team(arrived, expected):
    """Wait until ``expected`` programs have arrived in total; what they wrote is then visible."""
    tl.debug_barrier()  # all threads of this one have written
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < expected:
        pass


@jit_for_any(pointers=("buffers", "spins", "bias", "u", "v", "step", "safe"))
def binary_run(
    buffers, spins, status, fields, bias, u, v, step, safe, RULE: constexpr, FORM: constexpr
):
    """Many updates of small fields, one program or one team each, until its board says done.

    A field's variables are ``offset … offset + size``; neighbors of each lie beside each other,
    by their numbers within the field. Biases, neighbors and couplings have room for as many
    variables in each program, so that none of their loads is masked. x, m and moments stay in
    registers (and couplings, if ``FORM.hold``).

    A program alone gives m to the neighbors through shared memory and keeps x in the first buffer.
    m is also kept in rotating buffers, for the difference from two updates before, which is left
    on the board. Members of a team read each other's m there, and write x to its own rotating
    buffers, where an adaptive update that is to be made again finds its beginning.
    """
    SIZE: constexpr = FORM.variables
    K: constexpr = FORM.degree
    TEAM: constexpr = FORM.team
    PHASE: constexpr = FORM.phase
    movement = Movement(u, v, step, safe, status.parameters)
    program = tl.program_id(0).to(tl.int64)
    field = program
    at = tl.arange(0, SIZE)
    lane = at
    if TEAM > 0:
        field = tl.load(fields.whose + program).to(tl.int64)
        part = tl.load(fields.part + program)
        members = tl.load(fields.members + field)
        found = fields.found + field * (4 * TEAM)
        member = tl.arange(0, TEAM)
        at = part * SIZE + lane
    status = of_field(status, field)
    now = read_progress(status)
    limits = read_limits(status)
    constant = limits.constant
    first = tl.load(fields.offset + field).to(tl.int64)
    inside = at < tl.load(fields.size + field)
    buffers += first
    spins += first
    if TEAM > 0:
        x = fetch(buffer_at(buffers, status.stride, now.tick) + at, inside, False)
    else:
        x = tl.load(buffers + at, mask=inside, other=0.0)
    m = spin(x)
    like = x.dtype
    numbers = numbers_of(movement.parameters, like)
    edge = tl.arange(0, SIZE * K)
    column = fields.column + program * (SIZE * K)
    weight = fields.weight + program * (SIZE * K)
    bias += program * SIZE
    w = tl.zeros((SIZE, K), like)
    if FORM.hold:
        w = tl.reshape(tl.load(weight + edge), (SIZE, K))
    if TEAM > 0:
        j = tl.load(column + edge)
        b = tl.load(bias + lane)
    else:
        empty = tl.where(inside, 0.0, log_near(0.5 + tl.abs(m))).to(tl.float64)
        constant -= tl.sum(empty, 0)  # the entropy of nobody
    here = Entries(0, first + at, inside)
    m1, m2 = fetch_moments(movement, here, x, RULE, False)
    steps = steps_of(movement, first + at, inside, now.redo, like, RULE)
    x_before = x
    m_before = m
    scale = tl.zeros_like(x) + steps.size
    expected = 0
    moving = now.done == 0
    while moving:
        total = tl.full((), float("nan"), tl.float64)
        most = tl.zeros((), tl.float64)
        new = x
        after = m
        if PHASE != 2:
            if TEAM > 0:  # past the first cache, which doesn't know what other programs write
                theirs = tl.load(
                    buffer_at(spins, fields.stride, now.tick) + j, cache_modifier=".cg"
                )
            else:
                # read again and again, from the first cache: there are not registers enough for
                # all, so couplings and biases come after the barrier that the gathering holds
                theirs = tl.gather(m, tl.load(column + edge).to(tl.int32), 0)
                if not FORM.hold:
                    w = tl.reshape(tl.load(weight + edge), (SIZE, K))
            g = tl.sum(w * tl.reshape(theirs, (SIZE, K)), 1)
            if TEAM == 0:
                b = tl.load(bias + lane)
            new, after, m1, m2, change, f = binary_update(
                x, m, g, b, m1, m2, Steps(steps.size, steps.safe, now.redo), numbers, RULE
            )
            put(buffer_at(spins, fields.stride, now.tick + 1) + at, after, inside, False)
            if TEAM > 0:
                change = tl.where(inside, change, 0.0)
                f = tl.where(inside, f, 0.0)
            elif (_SECOND >> RULE.kind) & 1:  # 0 / (0 + ε) outside, and ε may be 0
                change = tl.where(inside, change, 0.0)
            if RULE.trace:
                total, largest = tl.reduce((f, change), 0, sum_and_larger)
            else:
                largest = tl.reduce(change, 0, larger)
            most = over_step(largest, movement.parameters, RULE.flat)
        if TEAM > 0:
            every = found + (now.tick % 2) * (TEAM * 2)
            if PHASE != 2:
                put(buffer_at(buffers, status.stride, now.tick + 1) + at, new, inside, False)
                tl.store(every + part * 2, total)
                tl.store(every + part * 2 + 1, most)
            if PHASE == 0:
                expected += members
                wait_for_team(fields.arrived + field, expected)
            changes = tl.load(
                every + member * 2 + 1, mask=member < members, other=0.0, cache_modifier=".cg"
            )
            most = tl.reduce(changes, 0, larger)
            if RULE.trace:
                energies = tl.load(
                    every + member * 2, mask=member < members, other=0.0, cache_modifier=".cg"
                )
                total = tl.sum(energies, 0)
        x_now = new
        m_now = after
        if PHASE != 1:
            was = now.tick
            was_redo = now.redo
            now = control(total + constant, most, now, limits, status, RULE.adaptive)
            if RULE.adaptive:
                # forward; or an update thrown away: back to where the last one began; or over: stay
                tick = now.tick
                if TEAM > 0:
                    if tick <= was:
                        x_now = fetch(buffer_at(buffers, status.stride, tick) + at, inside, False)
                        m_now = spin(x_now)
                else:
                    moved = 1.0 / (1.0 + (1.0 / steps.size - 1.0) * (1.0 - 4.0 * m * m))
                    moved = tl.where(was_redo != 0, steps.safe, moved)
                    scale = tl.where(tick > was, moved, scale)
                    x_now = tl.where(tick > was, new, tl.where(tick < was, x_before, x))
                    m_now = tl.where(tick > was, after, tl.where(tick < was, m_before, m))
                    x_before = tl.where(tick > was, x, x_before)
                    m_before = tl.where(tick > was, m, m_before)
        x = x_now
        m = m_now
        moving = now.done == 0 if PHASE == 0 else now.done != now.done
    if PHASE != 2:
        put_moments(movement, here, m1, m2, RULE, False)
    if TEAM > 0:
        if PHASE != 1:  # noqa: SIM102 - one is known when compiling
            if part == members - 1:  # in the interpreter the others have read it by then
                write_progress(status, now)
    else:
        write_progress(status, now)
        tl.store(buffers + at, x, mask=inside)
        tl.debug_barrier()
        c = tl.load(buffer_at(spins, fields.stride, now.tick + 2) + at, mask=inside, other=0.0)
        twice = tl.where(inside, tl.abs(m - c) / scale, 0.0)
        tl.store(status.numbers + _TWICE, tl.reduce(twice, 0, larger).to(tl.float64))


@jit
def read_pairs(buffers, stride, status, q, shift, entries, BLOCK: constexpr):
    """Normalized marginals of natural parameters into ``q``, and zeros into ``shift``.

    buffers: the states, of which each field's tick says the present one; fields have so many
    ``entries``, two for each variable.
    """
    field = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    buffers = buffer_at(buffers, stride, tl.load(status.board + field * _BOARD + _TICK))
    buffers += field * entries
    mine = tl.exp(-tl.load(buffers + at, mask=inside, other=0.0))
    other = tl.exp(-tl.load(buffers + (at ^ 1), mask=inside, other=0.0))
    total = mine + other
    to = field * entries + at
    tl.store(q + to, mine / tl.where(total > 0, total, 1.0), mask=inside)
    tl.store(shift + to, tl.zeros((BLOCK,), shift.dtype.element_ty), mask=inside)
