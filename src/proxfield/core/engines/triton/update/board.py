# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Where the fields of a batch stand, in device memory, and what follows from an update.

Kernels read from a *board* which buffer of θ is the current one and whether the iteration has
ended, so the host launches many iterations without waiting. Buffers rotate: the states of the last
updates are still available for the difference from two updates before.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constant, constexpr, jit, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import SMALLEST_STEP
from proxfield.core.engines.triton.update.kinds import (
    _LOOK,
    Numbers,
    Steps,
    fetch_moments,
    label_update,
    larger,
    put_moments,
)

BUFFERS = 4
"""Present, next, last and the one before; a power of two."""
BOARD = 8
"""Integers (and as many float64 numbers) of a board."""
# places on a board of integers
TICK, DONE, ROW, LIMIT, TRIAL, REDO = range(6)
# and among its float64 numbers; SIZE and USED are of a `Search`: the step of the next update, and
# that of the last one
BEFORE, LAST, CONSTANT, EXTRA, TWICE, SIZE, USED = range(7)
# places among the parameters, float64
BETA, GAMMA1, GAMMA2, EPSILON, TOL, STEP, SLACK, INVERSE, GROWTH, SHRINKAGE, LARGEST = range(11)
PARAMETERS = 11

_BUFFERS: constexpr = constant(BUFFERS)
_BOARD: constexpr = constant(BOARD)
_TICK, _DONE, _ROW, _LIMIT, _TRIAL, _REDO = map(constant, range(6))
_BEFORE, _LAST, _CONSTANT, _EXTRA, _TWICE, _SIZE, _USED = map(constant, range(7))
_BETA, _GAMMA1, _GAMMA2, _EPSILON, _TOL, _STEP = map(constant, range(6))
_SLACK, _INVERSE, _GROWTH, _SHRINKAGE, _LARGEST = map(constant, range(6, 11))
_SMALLEST_STEP: constexpr = constant(SMALLEST_STEP)


class FieldStatus(NamedTuple):
    """The boards of all fields, the rows that they leave for the host, and what kernels share."""

    board: Tensor  # (fields, BOARD) int32
    numbers: Tensor  # (fields, BOARD) float64
    free_energy: Tensor  # of each row  # (fields, capacity) float64
    change: Tensor  # of each row  # (fields, capacity) float64
    capacity: int
    parts: Tensor  # (F, change) of each block  # (blocks, 2) float64
    step: Tensor  # (n,)
    safe: Tensor  # (n,)
    parameters: Tensor  # (PARAMETERS,) float64
    stride: int  # from one buffer of natural parameters to the next


class FieldProgress(NamedTuple):
    """Where a field stands; integers and two float64 numbers."""

    tick: Tensor
    done: Tensor
    row: Tensor
    trial: Tensor
    redo: Tensor
    before: Tensor  # F before the last update
    last: Tensor  # the last update's change


class StopLimits(NamedTuple):
    """What a field's progress is held against, and what is added to F."""

    rows: Tensor
    constant: Tensor
    tol: Tensor
    slack: Tensor


@jit
def of_field(status, field):
    """The status of one field."""
    return FieldStatus(
        status.board + field * _BOARD,
        status.numbers + field * _BOARD,
        status.free_energy + field * status.capacity,
        status.change + field * status.capacity,
        status.capacity,
        status.parts,
        status.step,
        status.safe,
        status.parameters,
        status.stride,
    )


@jit
def read_progress(status):
    """Where a field stands."""
    return FieldProgress(
        tl.load(status.board + _TICK),
        tl.load(status.board + _DONE),
        tl.load(status.board + _ROW),
        tl.load(status.board + _TRIAL),
        tl.load(status.board + _REDO),
        tl.load(status.numbers + _BEFORE),
        tl.load(status.numbers + _LAST),
    )


@jit
def read_limits(status):
    """What its progress is held against."""
    return StopLimits(
        tl.load(status.board + _LIMIT),
        tl.load(status.numbers + _CONSTANT) + tl.load(status.numbers + _EXTRA),
        tl.load(status.parameters + _TOL),
        tl.load(status.parameters + _SLACK),
    )


@jit
def write_progress(status, now):
    """Leave on the board where a field stands."""
    tl.store(status.board + _TICK, now.tick)
    tl.store(status.board + _DONE, now.done)
    tl.store(status.board + _ROW, now.row)
    tl.store(status.board + _TRIAL, now.trial)
    tl.store(status.board + _REDO, now.redo)
    tl.store(status.numbers + _BEFORE, now.before)
    tl.store(status.numbers + _LAST, now.last)


@jit
def buffer_at(buffers, stride, tick):
    """The buffer of natural parameters after so many updates."""
    return buffers + (tick % _BUFFERS).to(tl.int64) * stride


@jit
def steps_of(movement, at, inside, redo, like, RULE: constexpr):
    """The steps of some variables; one number if there is one step for all."""
    size = tl.load(movement.parameters + _STEP).to(like)
    safe = size
    if not RULE.flat:
        size = tl.load(movement.step + at, mask=inside, other=1.0)
    if RULE.adaptive:
        safe = tl.load(movement.safe + at, mask=inside, other=1.0)
    return Steps(size, safe, redo)


@jit
def numbers_of(parameters, like):
    """The plan's numbers in the state's type."""
    return Numbers(
        tl.load(parameters + _BETA).to(like),
        tl.load(parameters + _GAMMA1).to(like),
        tl.load(parameters + _GAMMA2).to(like),
        tl.load(parameters + _EPSILON).to(like),
    )


@jit
def over_step(change, parameters, FLAT: constexpr):
    """The largest change in float64, divided by the step if that is one for all."""
    change = change.to(tl.float64)
    if FLAT:
        change = change * tl.load(parameters + _INVERSE)
    return change


@jit
def move_labels(theta, q, g, target, here, who, real, redo, movement, RULE: constexpr):
    """Update variables of any labels at a place, and store them; returns the largest change.

    Natural parameters, marginals and gradient are (variables, labels); ``target`` is where new ones
    go, ``here`` the entries, with base 0. ``who`` are the variables' numbers, ``real`` those that
    there are.  # (variables,)
    The kind `LOOK` only looks: ``u`` gets the gradient.
    """
    like = theta.dtype
    change = tl.zeros((), like)
    if RULE.kind == _LOOK:
        tl.store(movement.u + here.at, g, mask=here.inside)
    else:
        numbers = numbers_of(movement.parameters, like)
        first, second = fetch_moments(movement, here, g, RULE, False)
        steps = steps_of(movement, who, real, redo, like, RULE)
        if RULE.flat:
            size = tl.zeros_like(real.to(like)) + steps.size
            steps = Steps(size[:, None], size[:, None], redo)
        elif RULE.adaptive:
            steps = Steps(steps.size[:, None], steps.safe[:, None], redo)
        else:
            steps = Steps(steps.size[:, None], steps.size[:, None], redo)
        new, first, second, moved = label_update(
            theta, q, g, first, second, steps, numbers, here.inside, RULE
        )
        tl.store(target + here.at, new, mask=here.inside)
        put_moments(movement, here, first, second, RULE, False)
        change = tl.reduce(tl.where(real, moved, 0.0), 0, larger)
    return change


@jit
def control(f, change, now, limits, status, TRIES: constexpr):
    """After an update: write its row, and say where that leaves the inference.

    ``f`` is F before the update, ``change`` its largest change over the step. A rule that tries
    updates learns F after one from the next one: if that rose, the next is thrown away and the
    update made again from where it began. ``TRIES`` is 1 for adaptive steps, which are replaced by
    certified ones; 2 for a step that is searched for, which is replaced by a smaller one; else 0.
    """
    if TRIES == 0:
        tl.store(status.free_energy + now.row, f)
        tl.store(status.change + now.row, change)
        row = now.row + 1
        done = ((row >= limits.rows) | ((change > limits.tol) == 0)).to(tl.int32)
        return FieldProgress(now.tick + 1, done, row, now.trial, now.redo, now.before, change)
    else:
        bound = now.before + limits.slack * (1.0 + tl.abs(now.before))
        rose = (now.trial != 0) & (f > bound)
        if TRIES == 2:
            size = tl.load(status.numbers + _SIZE)
            used = tl.load(status.numbers + _USED)
            rose = (now.trial != 0) & ((f <= bound) == 0) & (used > _SMALLEST_STEP)
        settled = (now.row >= limits.rows) | ((now.last > limits.tol) == 0)
        over = (rose == 0) & (now.row > 0) & settled
        moved = (rose == 0) & (over == 0)
        tl.store(status.free_energy + now.row, f, mask=moved)
        tl.store(status.change + now.row, change, mask=moved)
        forth = moved.to(tl.int32)
        back = rose.to(tl.int32)
        trial = forth * (1 - now.redo)
        redo = back
        if TRIES == 2:
            trial = forth
            redo = now.redo
            grown = size * tl.load(status.parameters + _GROWTH)
            grown = tl.minimum(tl.load(status.parameters + _LARGEST), grown)
            shrunk = used * tl.load(status.parameters + _SHRINKAGE)
            tl.store(status.numbers + _SIZE, tl.where(moved, grown, tl.where(rose, shrunk, size)))
            tl.store(status.numbers + _USED, tl.where(moved, size, used))
        return FieldProgress(
            now.tick + forth - back,
            tl.where(over, 1, now.done),
            now.row + forth - back,
            tl.where(over, now.trial, trial),
            redo,
            tl.where(rose, now.before, f),
            tl.where(moved, change, now.last),
        )


@jit
def finish(first, count, status, TRACE: constexpr, TRIES: constexpr, WIDTH: constexpr):
    """Adds up what the blocks of each field found, in a fixed order; one program a field."""
    field = tl.program_id(0).to(tl.int64)
    status = of_field(status, field)
    now = read_progress(status)
    if now.done == 0:
        limits = read_limits(status)
        at = tl.arange(0, WIDTH)
        total = tl.zeros((WIDTH,), tl.float64)
        most = tl.zeros((WIDTH,), tl.float64)
        parts = status.parts + tl.load(first + field).to(tl.int64) * 2
        blocks = tl.load(count + field)
        for k in range(0, blocks, WIDTH):
            here = k + at < blocks
            total += tl.load(parts + (k + at) * 2, mask=here, other=0.0)
            most = larger(most, tl.load(parts + (k + at) * 2 + 1, mask=here, other=0.0))
        f = tl.sum(total, 0) + limits.constant
        if not TRACE:
            f = tl.full((), float("nan"), tl.float64)
        now = control(f, tl.reduce(most, 0, larger), now, limits, status, TRIES)
        write_progress(status, now)
