# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernels for binary variables with Ising couplings: one number per variable.

The gradient difference is bias − W m with m = ½ − q_1 (the CPU's −v); −W is what is stored. A state
holds x with m = ½ tanh x: neighbors' m are computed from x again, since two instructions of the
units for exponentials cost less than the 8 bytes that reading and writing m would. An update then
moves, for each variable, x twice (read, written), its bias, its couplings (each once, since W is
symmetric) and its moments.

Three forms of W: *diagonals* (few distinct distances j − i: grids), *slices* (blocks of variables
of about equal degree, neighbors by number) and, for small fields, neighbors that one program
holds while it makes many updates.

All loads are of single numbers, neighbors in a row by neighboring threads: wide loads
would spread the shifted ones (i ± 1) over four times as many cache lines. Triton assumes that
pointers within bundles are aligned if they are, so these pointers are arguments of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.update.arithmetic import binary_update, larger, log_near, spin
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
    step_of,
    write_progress,
)
from proxfield.core.engines.triton.update.kinds import (
    _LOOK,
    _SECOND,
    Movement,
    Place,
    Steps,
    fetch,
    fetch_moments,
    put,
    put_moments,
)

if TYPE_CHECKING:
    from proxfield.core.engines.triton.state import Slot

READ_BLOCK = 1024
"""Entries of one program that reads marginals."""


class DiagonalGrid(NamedTuple):
    """What `diagonal_step` is compiled for, beside the rule."""

    diagonals: int
    roll: bool
    """Is the last distance that of rows, which are walked along?"""
    even: bool
    """Is nothing outside?"""
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


class SmallFields(NamedTuple):
    """Sizes of small fields, their first variables, and their neighbors within them."""

    size: Tensor
    offset: Tensor
    column: Tensor
    weight: Tensor


@jit
def move(x, m, g, to, bias, movement, here, redo, RULE: constexpr, EVEN: constexpr):
    """Update the variables at a place, and store them from ``to`` on; returns (F, change) of each.

    The change is over the step, or (if ``RULE.flat``) still to be divided by it; see
    `binary_update`. The kind `LOOK` only looks: it stores the gradient in ``u``.
    """
    like = x.dtype
    numbers = numbers_of(movement.parameters, like)
    b = fetch(bias + here.base + here.at, here.inside, EVEN)
    first, second = fetch_moments(movement, here, x, RULE, EVEN)
    s = step_of(movement.parameters, like)
    certified = s
    if not RULE.flat:
        s = tl.load(movement.step + here.base + here.at, mask=here.inside, other=1.0)
    if RULE.adaptive:
        certified = tl.load(movement.safe + here.base + here.at, mask=here.inside, other=1.0)
    new, _, first, second, change, f = binary_update(
        x, m, g, b, first, second, Steps(s, certified, redo), numbers, RULE
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


@jit_for_any(
    pointers=("buffers", "parts", "bias", "u", "v", "step", "safe", "diagonal"),
)
def diagonal_step(
    buffers, stride, board, parts, bias, u, v, step, safe, parameters, diagonal, cut,
    RULE: constexpr, GRID: constexpr,
):  # fmt: skip
    """One update where W is diagonals, of the distances d1, d2, … and (if ``GRID.roll``) of rows.

    A program walks down a column of variables, some rows long. If ``GRID.roll`` the row below is
    read once, and is then the present one, and then the one above. States and diagonals are padded
    by the longest distance on both sides.
    """
    WIDTH: constexpr = GRID.width
    EVEN: constexpr = GRID.even
    ROWS: constexpr = GRID.rows
    beside: constexpr = GRID.diagonals - 1 if GRID.roll else GRID.diagonals
    movement = Movement(u, v, step, safe, parameters)
    tick = tl.load(board + _TICK)
    if tl.load(board + _DONE) == 0:
        block = tl.program_id(0)
        row = cut.row
        base = (block // cut.columns).to(tl.int64) * ROWS * row
        source = buffer_at(buffers, stride, tick) + base
        to = buffer_at(buffers, stride, tick + 1) + base
        redo = tl.load(board + _REDO)
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
            place = Place(here, column, inside)
            more, change = move(x, m, g, to + r * row, bias, movement, place, redo, RULE, EVEN)
            if RULE.trace:
                f += more
            most = larger(most, change)
            x = x_below
            m = m_below
        tl.store(parts + block * 2, tl.sum(f, 0))
        largest = over_step(tl.reduce(most, 0, larger), movement.parameters, RULE.flat)
        tl.store(parts + block * 2 + 1, largest)


@jit
def gather(
    source, block, slices, weight, place, inside,
    BLOCK: constexpr, WIDE: constexpr, LINEAR: constexpr,
):  # fmt: skip
    """Σ_j w_ij m_j of a block's variables, WIDE neighbors together; of the numbers if LINEAR.

    Neighbor k of the variable in place j of block b is ``column[start[b] + k·BLOCK + j]``.
    """
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


@jit_for_any(
    pointers=("buffers", "parts", "bias", "u", "v", "step", "safe", "weight"),
)
def slice_step(
    buffers, stride, board, parts, bias, u, v, step, safe, parameters, slices, weight,
    RULE: constexpr, BLOCK: constexpr, WIDE: constexpr,
):  # fmt: skip
    """One update where W is slices: BLOCK variables with as many neighbors as the most has."""
    movement = Movement(u, v, step, safe, parameters)
    block = tl.program_id(0).to(tl.int64)
    board += tl.load(slices.field + block).to(tl.int64) * _BOARD
    tick = tl.load(board + _TICK)
    if tl.load(board + _DONE) == 0:
        source = buffer_at(buffers, stride, tick)
        to = buffer_at(buffers, stride, tick + 1)
        redo = tl.load(board + _REDO)
        place = tl.arange(0, BLOCK)
        at = tl.load(slices.variable + block * BLOCK + place)  # −1: nobody
        inside = at >= 0
        x = tl.load(source + at, mask=inside, other=0.0)
        g = gather(source, block, slices, weight, place, inside, BLOCK, WIDE, False)
        here = Place(0, at, inside)
        f, change = move(x, spin(x), g, to, bias, movement, here, redo, RULE, False)
        tl.store(parts + block * 2, tl.sum(f, 0))
        largest = over_step(tl.reduce(change, 0, larger), movement.parameters, RULE.flat)
        tl.store(parts + block * 2 + 1, largest)


@jit
def slice_product(source, out, slices, weight, BLOCK: constexpr, WIDE: constexpr):
    """Σ_j w_ij v_j where W is slices."""
    block = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    at = tl.load(slices.variable + block * BLOCK + place)  # −1: nobody
    inside = at >= 0
    g = gather(source, block, slices, weight, place, inside, BLOCK, WIDE, True)
    tl.store(out + at, g, mask=inside)


@jit
def sum_and_larger(f, most, g, more):
    """Adds the one, compares the other: two reductions at the price of one."""
    return f + g, larger(most, more)


@jit_for_any(pointers=("state", "spins", "bias", "u", "v", "step", "safe"))
def binary_run(
    state, spins, stride, status, fields, bias, u, v, step, safe, parameters,
    RULE: constexpr, SIZE: constexpr, K: constexpr, HOLD: constexpr,
):  # fmt: skip
    """Many updates of small fields, one program each, until its board says done.

    A field's variables are ``offset … offset + size``; K neighbors of each lie beside each other,
    by their numbers within the field; biases, neighbors and couplings have room for SIZE variables
    in each field, so that none of their loads is masked. x, m and moments stay in registers (and
    couplings, if HOLD); m goes to the neighbors through shared memory. It is also kept in
    rotating buffers, for the difference from two updates before, which is left on the board.
    """
    movement = Movement(u, v, step, safe, parameters)
    field = tl.program_id(0).to(tl.int64)
    status = of_field(status, field)
    now = read_progress(status)
    limits = read_limits(status, movement.parameters)
    constant = limits.constant
    first = tl.load(fields.offset + field).to(tl.int64)
    n = tl.load(fields.size + field)
    at = tl.arange(0, SIZE)
    inside = at < n
    x = tl.load(state + first + at, mask=inside, other=0.0)
    m = spin(x)
    like = x.dtype
    numbers = numbers_of(movement.parameters, like)
    edge = tl.arange(0, SIZE * K)
    column = fields.column + field * SIZE * K
    weight = fields.weight + field * SIZE * K
    bias += field * SIZE
    w = tl.zeros((SIZE, K), like)
    if HOLD:
        w = tl.reshape(tl.load(weight + edge), (SIZE, K))
    empty = tl.where(inside, 0.0, log_near(0.5 + tl.abs(m))).to(tl.float64)
    constant -= tl.sum(empty, 0)  # the entropy of nobody
    here = Place(0, first + at, inside)
    m1, m2 = fetch_moments(movement, here, x, RULE, False)
    s = step_of(movement.parameters, like)
    certified = s
    if not RULE.flat:
        s = tl.load(movement.step + first + at, mask=inside, other=1.0)
    if RULE.adaptive:
        certified = tl.load(movement.safe + first + at, mask=inside, other=1.0)
    spins += first
    x_before = x
    m_before = m
    scale = tl.zeros_like(x) + s
    while now.done == 0:
        # read again and again, from the first cache: there are not registers enough for all,
        # so couplings and biases come after the barrier that the gathering holds
        theirs = tl.reshape(tl.gather(m, tl.load(column + edge).to(tl.int32), 0), (SIZE, K))
        if not HOLD:
            w = tl.reshape(tl.load(weight + edge), (SIZE, K))
        g = tl.sum(w * theirs, 1)
        b = tl.load(bias + at)
        new, after, m1, m2, change, f = binary_update(
            x, m, g, b, m1, m2, Steps(s, certified, now.redo), numbers, RULE
        )
        tl.store(buffer_at(spins, stride, now.tick + 1) + at, after, mask=inside)
        if (_SECOND >> RULE.kind) & 1:  # 0 / (0 + ε) outside, and ε may be 0
            change = tl.where(inside, change, 0.0)
        if RULE.trace:
            total, most = tl.reduce((f, change), 0, sum_and_larger)
            total += constant
        else:
            most = tl.reduce(change, 0, larger)
            total = tl.full((), float("nan"), tl.float64)
        was = now.tick
        was_redo = now.redo
        most = over_step(most, movement.parameters, RULE.flat)
        now = control(total, most, now, limits, status, RULE.adaptive)
        if RULE.adaptive:
            # forward; or an update thrown away: back to where the last one began; or over: stay
            tick = now.tick
            moved = 1.0 / (1.0 + (1.0 / s - 1.0) * (1.0 - 4.0 * m * m))
            scale = tl.where(tick > was, tl.where(was_redo != 0, certified, moved), scale)
            x_now = tl.where(tick > was, new, tl.where(tick < was, x_before, x))
            m_now = tl.where(tick > was, after, tl.where(tick < was, m_before, m))
            x_before = tl.where(tick > was, x, x_before)
            m_before = tl.where(tick > was, m, m_before)
            x = x_now
            m = m_now
        else:
            x = new
            m = after
    write_progress(status, now)
    tl.store(state + first + at, x, mask=inside)
    put_moments(movement, here, m1, m2, RULE, False)
    tl.debug_barrier()
    c = tl.load(buffer_at(spins, stride, now.tick + 2) + at, mask=inside, other=0.0)
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


def read_marginals(slot: Slot, front: int, fields: int, entries: int) -> None:
    """Marginals of all fields into ``slot.q``, and zeros into ``slot.shift``, in one launch.

    Args:
        slot: A state of fields with as many entries each, two for each variable.
        front: Padding in front of a buffer.
        fields: Number of fields.
        entries: Of each field.
    """
    read_pairs[(-(-entries // READ_BLOCK), fields)](
        slot.buffers[0, front:], slot.stride, slot.status, slot.q, slot.shift, entries,
        BLOCK=READ_BLOCK, num_warps=4,
    )  # fmt: skip
