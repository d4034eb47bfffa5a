# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""What every iterating kernel on a GPU shares: one update's arithmetic, and when to stop.

Natural parameters are all a state holds: θ_l = −log q_l, normalized, so that q_l = exp(−θ_l)
without a sum. A rule may shift a variable's θ by any number without changing q, so nothing is
lost, and half as many bytes move as with q beside it. A binary variable holds one number,
x = ½ log(q_0 / q_1): its centered θ is (−x, x), so the rules read the same for x as for any label.

A *board* is the status buffer of an inference in device memory: kernels read from it which buffer
of θ is the current one and whether the iteration has ended, so the host launches many iterations
without waiting. Buffers rotate: the states of the last updates are still available for the
difference from two updates before.
"""

from __future__ import annotations

from proxfield.core.devices.cuda import interpreted, jit, tl
from proxfield.core.engines.plan import SMALLEST_STEP
from proxfield.core.engines.triton.update.kinds import constexpr, moved

BUFFERS = 4
"""Present, next, last and the one before; a power of two."""
START_ZERO = 1e30
"""θ of a label without weight in a start: q = 0 exactly, but it moves as `START_THETA` does."""
START_THETA = 69.07755278982137
"""−log(1e-30): a start's zero would stay one under damping, so it counts as that instead."""
CLAMP = 500.0
"""|x| of a binary variable with an impossible label: its probability underflows to nothing."""

# places on a board of integers
TICK, DONE, ROW, LIMIT, TRIAL, REDO = 0, 1, 2, 3, 4, 5
BOARD = 8
"""Integers (and as many float64 numbers) of a board."""
# and among its float64 numbers
BEFORE, LAST, CONSTANT, EXTRA = 0, 1, 2, 3
SIZE, USED = 5, 6  # of a `Search`: the step of the next update, and of the last one
# places among the parameters, float64
BETA, GAMMA1, GAMMA2, EPSILON, TOL, STEP, SLACK, INVERSE = 0, 1, 2, 3, 4, 5, 6, 7
GROWTH, SHRINKAGE, LARGEST = 8, 9, 10
PARAMETERS = 11

if tl is not None:
    from proxfield.core.engines.triton.update.kinds import _AVERAGES, _CENTERED

    _ZERO: constexpr = tl.constexpr(START_ZERO)
    _THETA: constexpr = tl.constexpr(START_THETA)
    _CLAMP: constexpr = tl.constexpr(CLAMP)
    _BOARD: constexpr = tl.constexpr(BOARD)
    _SMALLEST_STEP: constexpr = tl.constexpr(SMALLEST_STEP)
    _NATIVE: constexpr = tl.constexpr(not interpreted())


@jit
def reciprocal(y):
    """1 / y for y between 1 and a few thousands; one instruction for float32."""
    if _NATIVE and y.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / y


@jit
def ratio(x):
    """exp(−2|x|); for float32 by the unit for it, results below 1e-38 as 0."""
    if _NATIVE and x.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [tl.abs(x) * -2.8853900817779268],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.exp(-2.0 * tl.abs(x))


@jit
def larger(a, b):
    """The larger of two, NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def log_near(y):
    """log y; for float32 to 2e-7 absolute near 1, by the unit for it."""
    if _NATIVE and y.dtype == tl.float32:
        two = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
        )
        return two * 0.6931471805599453
    else:
        return tl.log(y)


@jit
def parameter(parameters, PLACE: constexpr, like):
    """One of the plan's numbers, in the state's type."""
    return tl.load(parameters + PLACE).to(like)


@jit
def spin(x):
    """m = ½ − q_1 = ½ tanh x of a binary variable.

    Odd to the bit, and 0 at 0: the symmetry of a field survives rounding.
    """
    e = ratio(x)
    half = 0.5 - e * reciprocal(1.0 + e)
    if x.dtype == tl.float32:  # the sign of x: one instruction
        sign = x.to(tl.int32, bitcast=True) & -0x80000000
        return (half.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    else:
        return tl.where(x < 0, -half, half)


@jit
def binary_update(
    x, m, g, bias, u, v, step, safe, redo, beta, g1, g2, eps,
    KIND: constexpr, ADAPTIVE: constexpr, HARD: constexpr, TRACE: constexpr, FLAT: constexpr,
):  # fmt: skip
    """One update of binary variables.

    Args:
        x: Half the difference of the natural parameters.
        m: ½ tanh x.
        g: Σ −W m over neighbors, without the bias.
        bias: Difference of the unary energies; ±inf where a label is impossible.
        u: First moment.
        v: Second moment.
        step: The step of each.
        safe: A certified step of each, taken where ``redo`` is set (if ADAPTIVE).

    Returns:
        (new x, new m, u, v, change, F before it in float64). The change is over the step unless
        that is one for all (FLAT): then the caller divides the largest by it. Entropy from m in
        float32 is good to 1e-6 or so a variable, which is enough to follow F.
    """
    own = bias
    if HARD:
        clamped = tl.abs(bias) > 1e30
        own = tl.where(clamped, 0.0, bias)
    gradient = own + g
    f = tl.zeros_like(x).to(tl.float64)
    if TRACE:
        large = 0.5 + tl.abs(m)
        weighted = 2.0 * tl.abs(x) * (0.5 - tl.abs(m))
        if x.dtype == tl.float64:  # ½ − |m| would lose what is small
            e = ratio(x)
            weighted = 2.0 * tl.abs(x) * (e / (1.0 + e))
        f = (log_near(large) - weighted - 0.5 * m * (own + gradient)).to(tl.float64)
    target = (0.5 * beta) * gradient
    if ADAPTIVE:
        spread = 1.0 - 4.0 * m * m
        step = tl.where(redo != 0, safe, 1.0 / (1.0 + (1.0 / step - 1.0) * spread))
    new, u, v = moved(x, target, u, v, step, g1, g2, eps, 0.0, 0.0, 0.0, KIND)
    if (_AVERAGES >> KIND) & 1:
        e = ratio(x)
        t = e / (1.0 + e)
        e = ratio(new)
        small = e / (1.0 + e)
        mine = tl.where(x > 0, t, 1.0 - t)  # q_1
        other = tl.where(x > 0, 1.0 - t, t)
        towards = tl.where(new > 0, small, 1.0 - small)
        away = tl.where(new > 0, 1.0 - small, small)
        one = (1.0 - step) * mine + step * towards
        zero = (1.0 - step) * other + step * away
        new = 0.5 * (tl.log(tl.maximum(zero, 1e-37)) - tl.log(tl.maximum(one, 1e-37)))
    if HARD:
        new = tl.where(clamped, tl.where(bias > 0, _CLAMP, -_CLAMP), new)
    after = spin(new)
    change = tl.abs(after - m)
    if not FLAT:
        change = change * (1.0 / step)
    return new, after, u, v, change, f


@jit
def exponential(x):
    """exp(−x) for x ≥ 0; for float32 by the unit for it, results below 1e-38 as 0."""
    if _NATIVE and x.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * -1.4426950408889634],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.exp(-x)


@jit
def label_update(
    theta, q, gradient, u, v, step, safe, redo, beta, g1, g2, eps, inside,
    KIND: constexpr, ADAPTIVE: constexpr, HARD: constexpr,
):  # fmt: skip
    """One update of variables with any labels; tiles are (variables, labels).

    Args:
        theta: −log q, or one of its stand-ins.
        q: exp(−θ), 0 outside.
        gradient: dE/dq, +inf where a label is impossible (if HARD).
        step: # (variables, 1)
        inside: Which entries of the tile are labels.

    Returns:
        (new θ, u, v, change of each variable over the step).
    """
    inf = float("inf")
    possible = inside
    if HARD:
        possible = inside & (gradient < inf)
    target = tl.where(possible, beta * gradient, 0.0)
    stand_in = theta >= 0.9 * _ZERO
    if HARD:
        theta = tl.where(stand_in, tl.where(theta < inf, _THETA, target), theta)
    else:
        theta = tl.where(stand_in, _THETA, theta)
    theta = tl.where(possible, theta, 0.0)
    if ADAPTIVE:
        spread = tl.max(4.0 * q * (1.0 - q), 1)[:, None]
        step = tl.where(redo != 0, safe, 1.0 / (1.0 + (1.0 / step - 1.0) * spread))
    mean_residual = tl.zeros_like(step)
    mean_target = tl.zeros_like(step)
    mean_theta = tl.zeros_like(step)
    if (_CENTERED >> KIND) & 1:
        count = tl.maximum(tl.sum(possible.to(theta.dtype), 1), 1.0)[:, None]
        residual = tl.where(possible, theta - target, 0.0)
        mean_residual = tl.sum(residual, 1)[:, None] / count
        mean_target = tl.sum(target, 1)[:, None] / count
        mean_theta = tl.sum(theta, 1)[:, None] / count
    new, u, v = moved(
        theta, target, u, v, step, g1, g2, eps, mean_residual, mean_target, mean_theta, KIND
    )
    new = tl.where(possible, new, inf)
    low = tl.min(new, 1)[:, None]
    if HARD:
        some = low < inf  # else no label is possible: q = 0
        shifted = tl.where(possible, new - tl.where(some, low, 0.0), inf)
        e = exponential(shifted)
        total = tl.where(some, tl.sum(e, 1)[:, None], 1.0)
    else:
        shifted = tl.where(possible, new - low, inf)
        e = exponential(shifted)
        total = tl.sum(e, 1)[:, None]
    after = e * (1.0 / total)
    new = shifted + tl.log(total)
    if (_AVERAGES >> KIND) & 1:
        after = tl.where(possible, (1.0 - step) * q + step * after, 0.0)
        total = tl.sum(after, 1)[:, None]
        after = after / tl.where(total > 0, total, 1.0)
        new = tl.where(after > 0, -tl.log(tl.where(after > 0, after, 1.0)), _ZERO)
    new = tl.where(possible, new, inf)
    change = tl.where(inside, tl.abs(after - q), 0.0)
    change = tl.reduce(change, 1, larger)
    return new, u, v, change * tl.max(1.0 / step, 1)


@jit
def control(
    f, change, tick, done, row, limit, trial, redo, before, last, tol, slack, out_f, out_change,
    ADAPTIVE: constexpr,
):  # fmt: skip
    """After an update: write its row, and say where that leaves the inference.

    ``f`` is F before the update, ``change`` its largest change over the step. The adaptive rule
    learns F after an update from the next one: if that rose, the next is thrown away and the
    update made again from where it began, with the certified step.

    Returns:
        The new (tick, done, row, trial, redo, before, last).
    """
    if ADAPTIVE:
        rose = (trial != 0) & (f > before + slack * (1.0 + tl.abs(before)))
        over = (rose == 0) & (row > 0) & ((row >= limit) | ((last > tol) == 0))
        moved = (rose == 0) & (over == 0)
        tl.store(out_f + row, f, mask=moved)
        tl.store(out_change + row, change, mask=moved)
        forth = moved.to(tl.int32)
        back = rose.to(tl.int32)
        tick = tick + forth - back
        row = row + forth - back
        trial = tl.where(over, trial, forth * (1 - redo))
        redo = back
        before = tl.where(rose, before, f)
        last = tl.where(moved, change, last)
        done = tl.where(over, 1, done)
    else:
        tl.store(out_f + row, f)
        tl.store(out_change + row, change)
        tick += 1
        row += 1
        last = change
        done = ((row >= limit) | ((change > tol) == 0)).to(tl.int32)
    return tick, done, row, trial, redo, before, last


@jit
def control_search(
    f, change, tick, done, row, limit, trial, before, last, tol, slack, size, used, growth,
    shrinkage, largest, out_f, out_change,
):  # fmt: skip
    """The same for a step that is searched for: if F rose, a smaller one is tried.

    Returns:
        The new (tick, done, row, trial, before, last, size, used).
    """
    fell = f <= before + slack * (1.0 + tl.abs(before))
    rose = (trial != 0) & (fell == 0) & (used > _SMALLEST_STEP)
    over = (rose == 0) & (row > 0) & ((row >= limit) | ((last > tol) == 0))
    moved = (rose == 0) & (over == 0)
    tl.store(out_f + row, f, mask=moved)
    tl.store(out_change + row, change, mask=moved)
    forth = moved.to(tl.int32)
    back = rose.to(tl.int32)
    tick = tick + forth - back
    row = row + forth - back
    trial = tl.where(over, trial, forth)
    before = tl.where(rose, before, f)
    last = tl.where(moved, change, last)
    done = tl.where(over, 1, done)
    grown = tl.minimum(largest, size * growth)
    next_size = tl.where(moved, grown, tl.where(rose, used * shrinkage, size))
    used = tl.where(moved, size, used)
    return tick, done, row, trial, before, last, next_size, used


@jit
def read_board(board, numbers):
    """(tick, done, row, limit, trial, redo, before, last) of one field."""
    return (
        tl.load(board + 0),
        tl.load(board + 1),
        tl.load(board + 2),
        tl.load(board + 3),
        tl.load(board + 4),
        tl.load(board + 5),
        tl.load(numbers + 0),
        tl.load(numbers + 1),
    )


@jit
def write_board(board, numbers, tick, done, row, trial, redo, before, last):
    """The same, written."""
    tl.store(board + 0, tick)
    tl.store(board + 1, done)
    tl.store(board + 2, row)
    tl.store(board + 4, trial)
    tl.store(board + 5, redo)
    tl.store(numbers + 0, before)
    tl.store(numbers + 1, last)


@jit
def finish(
    parts, first, count, board, numbers, parameters, out_f, out_change, capacity,
    TRACE: constexpr, ADAPTIVE: constexpr, SEARCH: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """Adds up what the blocks of each field found, in a fixed order; one program a field.

    ``parts`` is (F, change) of each block.  # (blocks, 2)
    """
    field = tl.program_id(0).to(tl.int64)
    board += field * _BOARD
    numbers += field * _BOARD
    tick, done, row, limit, trial, redo, before, last = read_board(board, numbers)
    if done == 0:
        at = tl.arange(0, WIDTH)
        total = tl.zeros((WIDTH,), tl.float64)
        most = tl.zeros((WIDTH,), tl.float64)
        parts += tl.load(first + field).to(tl.int64) * 2
        blocks = tl.load(count + field)
        for k in range(0, blocks, WIDTH):
            here = k + at < blocks
            total += tl.load(parts + (k + at) * 2, mask=here, other=0.0)
            most = larger(most, tl.load(parts + (k + at) * 2 + 1, mask=here, other=0.0))
        f = tl.sum(total, 0) + tl.load(numbers + 2) + tl.load(numbers + 3)
        if not TRACE:
            f = tl.full((), float("nan"), tl.float64)
        to = field * capacity
        if SEARCH:
            tick, done, row, trial, before, last, size, used = control_search(
                f, tl.reduce(most, 0, larger), tick, done, row, limit, trial, before, last,
                tl.load(parameters + 4), tl.load(parameters + 6), tl.load(numbers + 5),
                tl.load(numbers + 6), tl.load(parameters + 8), tl.load(parameters + 9),
                tl.load(parameters + 10), out_f + to, out_change + to,
            )  # fmt: skip
            tl.store(numbers + 5, size)
            tl.store(numbers + 6, used)
        else:
            tick, done, row, trial, redo, before, last = control(
                f, tl.reduce(most, 0, larger), tick, done, row, limit, trial, redo, before, last,
                tl.load(parameters + 4), tl.load(parameters + 6), out_f + to, out_change + to,
                ADAPTIVE,
            )  # fmt: skip
        write_board(board, numbers, tick, done, row, trial, redo, before, last)
