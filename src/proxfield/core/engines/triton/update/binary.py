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
would spread the shifted ones (i ± 1) over four times as many cache lines.
"""

from __future__ import annotations

from collections.abc import Callable

from proxfield.core.devices.cuda import jit, tl, triton
from proxfield.core.devices.tensors import Kernel
from proxfield.core.engines.triton.update.arithmetic import (
    binary_update,
    control,
    larger,
    log_near,
    parameter,
    read_board,
    spin,
    write_board,
)
from proxfield.core.engines.triton.update.kinds import (
    constexpr,
    fetch,
    fetch_moments,
    put,
    put_moments,
)


def single_loads(*pointers: str) -> Callable[[Callable[..., object]], Kernel]:
    """``jit`` for kernels that must not assume that these pointers are aligned for wide loads."""
    if triton is None:
        return jit
    make: Callable[[Callable[..., object]], Kernel] = triton.jit(
        do_not_specialize_on_alignment=list(pointers)
    )
    return make


if tl is not None:
    from proxfield.core.engines.triton.update.arithmetic import BOARD, BUFFERS
    from proxfield.core.engines.triton.update.kinds import _LOOK, _PROXIMAL, _SECOND

    _BOARD: constexpr = tl.constexpr(BOARD)
    _BUFFERS: constexpr = tl.constexpr(BUFFERS)


@jit
def numbers_of(parameters, like):
    """(beta, γ1, γ2, ε) in the state's type."""
    return (
        parameter(parameters, 0, like),
        parameter(parameters, 1, like),
        parameter(parameters, 2, like),
        parameter(parameters, 3, like),
    )


@jit
def over_step(change, parameters, FLAT: constexpr):
    """The largest change in float64, divided by the step if that is one for all."""
    change = change.to(tl.float64)
    if FLAT:
        change = change * tl.load(parameters + 7)
    return change


@jit
def move(
    x, m, g, to, bias, u, v, step, safe, at, inside, redo, parameters,
    KIND: constexpr, ADAPTIVE: constexpr, HARD: constexpr, TRACE: constexpr, FLAT: constexpr,
    EVEN: constexpr,
):  # fmt: skip
    """Update the variables at ``at`` and store them; returns (F, change) of each.

    The change is over the step, or (if FLAT) still to be divided by it; see `binary_update`.
    KIND `LOOK` only looks: it stores the gradient in ``u``.
    """
    like = x.dtype
    beta, g1, g2, eps = numbers_of(parameters, like)
    b = fetch(bias + at, inside, EVEN)
    first, second = fetch_moments(u, v, at, inside, x, KIND, EVEN)
    s = parameter(parameters, 5, like)
    certified = s
    if not FLAT:
        s = tl.load(step + at, mask=inside, other=1.0)
    if ADAPTIVE:
        certified = tl.load(safe + at, mask=inside, other=1.0)
    if KIND == _LOOK:
        new, _, _, _, change, f = binary_update(
            x, m, g, b, first, second, s, s, redo, beta, g1, g2, eps,
            _PROXIMAL, False, HARD, True, True,
        )  # fmt: skip
        put(u + at, b + g, inside, EVEN)
    else:
        new, _, first, second, change, f = binary_update(
            x, m, g, b, first, second, s, certified, redo, beta, g1, g2, eps,
            KIND, ADAPTIVE, HARD, TRACE, FLAT,
        )  # fmt: skip
        put(to + at, new, inside, EVEN)
        put_moments(u, v, at, first, second, inside, KIND, EVEN)
    if not EVEN:
        f = tl.where(inside, f, 0.0)
        change = tl.where(inside, change, 0.0)
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


@single_loads("buffers", "diagonals", "bias", "u", "v", "step", "safe", "parts")
def diagonal_step(
    buffers, stride, diagonals, bias, u, v, step, safe, board, parameters, parts,
    n, row, columns, d1, d2, d3, d4,
    KIND: constexpr, ADAPTIVE: constexpr, HARD: constexpr, TRACE: constexpr, FLAT: constexpr,
    D: constexpr, ROLL: constexpr, EVEN: constexpr, ROWS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """One update where W is D diagonals, of the distances d1, d2, … and (if ROLL) ``row``.

    A program walks down a column of WIDTH variables, ROWS rows of ``row`` variables long. With
    ROLL the row below is read once, and is then the present one, and then the one above. States and
    diagonals are padded by the longest distance on both sides. EVEN: nothing is outside.
    """
    tick = tl.load(board)
    if tl.load(board + 1) == 0:
        block = tl.program_id(0)
        base = (block // columns).to(tl.int64) * ROWS * row
        source = buffers + (tick % _BUFFERS).to(tl.int64) * stride + base
        to = buffers + ((tick + 1) % _BUFFERS).to(tl.int64) * stride + base
        redo = tl.load(board + 5)
        column = (block % columns) * WIDTH + tl.arange(0, WIDTH)
        across = column < row
        left = n - base
        x = fetch(source + column, across & (column < left), EVEN)
        m = spin(x)
        last = diagonals + (D - 1) * stride + base
        m_above = x
        w_above = x
        if ROLL:
            m_above = spin(fetch(source - row + column, across, EVEN))
            w_above = fetch(last - row + column, across, EVEN)
        f = tl.zeros((WIDTH,), tl.float64)
        most = tl.zeros((WIDTH,), x.dtype)
        for r in range(ROWS):
            here = base + r * row
            inside = across & (column < n - here)
            below = across & (column < n - here - row)
            x_below = fetch(source + (r + 1) * row + column, below, EVEN)
            m_below = spin(x_below)
            g = tl.zeros((WIDTH,), x.dtype)
            if ROLL:
                w_below = fetch(last + r * row + column, below, EVEN)
                g = w_below * m_below + w_above * m_above
                m_above = m
                w_above = w_below
            beside: constexpr = D - 1 if ROLL else D
            now = source + r * row
            if beside > 0:
                g += sideways(now, diagonals + here, column, d1, inside, EVEN)
            if beside > 1:
                g += sideways(now, diagonals + stride + here, column, d2, inside, EVEN)
            if beside > 2:
                g += sideways(now, diagonals + 2 * stride + here, column, d3, inside, EVEN)
            if beside > 3:
                g += sideways(now, diagonals + 3 * stride + here, column, d4, inside, EVEN)
            more, change = move(
                x, m, g, to + r * row, bias + here, u + here, v + here, step + here, safe + here,
                column, inside, redo, parameters, KIND, ADAPTIVE, HARD, TRACE, FLAT, EVEN,
            )  # fmt: skip
            if TRACE:
                f += more
            most = larger(most, change)
            x = x_below
            m = m_below
        tl.store(parts + block * 2, tl.sum(f, 0))
        largest = over_step(tl.reduce(most, 0, larger), parameters, FLAT)
        tl.store(parts + block * 2 + 1, largest)


@single_loads("buffers", "weight", "column", "bias", "u", "v", "step", "safe", "parts")
def slice_step(
    buffers, stride, variable, start, length, field, column, weight, bias, u, v, step, safe,
    board, parameters, parts,
    KIND: constexpr, ADAPTIVE: constexpr, HARD: constexpr, TRACE: constexpr, FLAT: constexpr,
    BLOCK: constexpr, WIDE: constexpr,
):  # fmt: skip
    """One update where W is slices: BLOCK variables with as many neighbors as the most has.

    Neighbor k of the variable in place j of block b is ``column[start[b] + k·BLOCK + j]``.
    WIDE neighbors are looked at together.
    """
    block = tl.program_id(0).to(tl.int64)
    board += tl.load(field + block).to(tl.int64) * _BOARD
    tick = tl.load(board)
    if tl.load(board + 1) == 0:
        source = buffers + (tick % _BUFFERS).to(tl.int64) * stride
        to = buffers + ((tick + 1) % _BUFFERS).to(tl.int64) * stride
        redo = tl.load(board + 5)
        place = tl.arange(0, BLOCK)
        at = tl.load(variable + block * BLOCK + place)  # −1: nobody
        inside = at >= 0
        first = tl.load(start + block)
        count = tl.load(length + block)
        x = tl.load(source + at, mask=inside, other=0.0)
        g = tl.zeros((BLOCK,), x.dtype)
        beside = tl.arange(0, WIDE)[None, :]
        for k in range(0, count, WIDE):
            here = (k + beside < count) & inside[:, None]
            edge = first + (k + beside) * BLOCK + place[:, None]
            w = tl.load(weight + edge, mask=here, other=0.0)
            j = tl.load(column + edge, mask=here, other=0)
            g += tl.sum(w * spin(tl.load(source + j, mask=here, other=0.0)), 1)
        f, change = move(
            x, spin(x), g, to, bias, u, v, step, safe, at, inside, redo, parameters,
            KIND, ADAPTIVE, HARD, TRACE, FLAT, False,
        )  # fmt: skip
        tl.store(parts + block * 2, tl.sum(f, 0))
        largest = over_step(tl.reduce(change, 0, larger), parameters, FLAT)
        tl.store(parts + block * 2 + 1, largest)


@jit
def sum_and_larger(f, most, g, more):
    """Adds the one, compares the other: two reductions at the price of one."""
    return f + g, larger(most, more)


@single_loads("state", "bias", "u", "v", "step", "safe", "spins")
def binary_run(
    state, size, offset, column, weight, bias, u, v, step, safe, spins, stride,
    board, numbers, parameters, out_f, out_change, capacity,
    KIND: constexpr, ADAPTIVE: constexpr, HARD: constexpr, TRACE: constexpr, FLAT: constexpr,
    SIZE: constexpr, K: constexpr, HOLD: constexpr,
):  # fmt: skip
    """Many updates of small fields, one program each, until its board says done.

    A field's variables are ``offset … offset + size``; K neighbors of each lie beside each other,
    by their numbers within the field; biases, neighbors and couplings have room for SIZE variables
    in each field, so that none of their loads is masked. x, m and moments stay in registers (and
    couplings, if HOLD); m goes to the neighbors through shared memory. It is also kept in
    rotating buffers, for the difference from two updates before, which is left on the board.
    """
    field = tl.program_id(0).to(tl.int64)
    board += field * _BOARD
    numbers += field * _BOARD
    out_f += field * capacity
    out_change += field * capacity
    tick, done, row, limit, trial, redo, before, last = read_board(board, numbers)
    constant = tl.load(numbers + 2) + tl.load(numbers + 3)
    tol = tl.load(parameters + 4)
    slack = tl.load(parameters + 6)
    first = tl.load(offset + field).to(tl.int64)
    n = tl.load(size + field)
    at = tl.arange(0, SIZE)
    inside = at < n
    x = tl.load(state + first + at, mask=inside, other=0.0)
    m = spin(x)
    like = x.dtype
    beta, g1, g2, eps = numbers_of(parameters, like)
    edge = tl.arange(0, SIZE * K)
    column += field * SIZE * K
    weight += field * SIZE * K
    bias += field * SIZE
    w = tl.zeros((SIZE, K), like)
    if HOLD:
        w = tl.reshape(tl.load(weight + edge), (SIZE, K))
    empty = tl.where(inside, 0.0, log_near(0.5 + tl.abs(m))).to(tl.float64)
    constant -= tl.sum(empty, 0)  # the entropy of nobody
    m1, m2 = fetch_moments(u, v, first + at, inside, x, KIND, False)
    s = parameter(parameters, 5, like)
    certified = s
    if not FLAT:
        s = tl.load(step + first + at, mask=inside, other=1.0)
    if ADAPTIVE:
        certified = tl.load(safe + first + at, mask=inside, other=1.0)
    spins += first
    x_before = x
    m_before = m
    scale = tl.zeros_like(x) + s
    while done == 0:
        # read again and again, from the first cache: there are not registers enough for all,
        # so couplings and biases come after the barrier that the gathering holds
        theirs = tl.reshape(tl.gather(m, tl.load(column + edge).to(tl.int32), 0), (SIZE, K))
        if not HOLD:
            w = tl.reshape(tl.load(weight + edge), (SIZE, K))
        g = tl.sum(w * theirs, 1)
        b = tl.load(bias + at)
        new, after, m1, m2, change, f = binary_update(
            x, m, g, b, m1, m2, s, certified, redo, beta, g1, g2, eps,
            KIND, ADAPTIVE, HARD, TRACE, FLAT,
        )  # fmt: skip
        to = spins + ((tick + 1) % _BUFFERS).to(tl.int64) * stride
        tl.store(to + at, after, mask=inside)
        if (_SECOND >> KIND) & 1:  # 0 / (0 + ε) outside, and ε may be 0
            change = tl.where(inside, change, 0.0)
        if TRACE:
            total, most = tl.reduce((f, change), 0, sum_and_larger)
            total += constant
        else:
            most = tl.reduce(change, 0, larger)
            total = tl.full((), float("nan"), tl.float64)
        was = tick
        was_redo = redo
        tick, done, row, trial, redo, before, last = control(
            total, over_step(most, parameters, FLAT), tick, done, row, limit, trial, redo, before,
            last, tol, slack, out_f, out_change, ADAPTIVE,
        )  # fmt: skip
        if ADAPTIVE:
            # forward; or an update thrown away: back to where the last one began; or over: stay
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
    write_board(board, numbers, tick, done, row, trial, redo, before, last)
    tl.store(state + first + at, x, mask=inside)
    put_moments(u, v, first + at, m1, m2, inside, KIND, False)
    tl.debug_barrier()
    ago = spins + ((tick + 2) % _BUFFERS).to(tl.int64) * stride
    c = tl.load(ago + at, mask=inside, other=0.0)
    twice = tl.where(inside, tl.abs(m - c) / scale, 0.0)
    tl.store(numbers + 4, tl.reduce(twice, 0, larger).to(tl.float64))
