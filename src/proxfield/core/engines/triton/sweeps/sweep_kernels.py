# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Triton kernels that visit variables: gather a few variables' gradients, move them at once.

A program takes ``BV`` variables of one chain, with labels in ``L`` lanes, ``E`` edges (or ``M``
labels of a neighbor, or ``R`` rows of a larger table) at a time. Sums are float64 in a fixed
order, whatever the type of q, and every program writes to places of its own: two runs give the
same bits. A label whose energy is +inf gets q = 0, and a variable without a possible label keeps
what it has.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl
from proxfield.core.devices.tensors import Tensor


class DeviceEnergies(NamedTuple):
    """A lowered field on a device; see `numba.general.GeneralPack`."""

    offset: Tensor
    unary: Tensor
    agree_row: Tensor
    agree_first: Tensor  # where each neighbor's marginals begin
    agree_count: Tensor  # labels that both have
    agree_weight: Tensor
    table_row: Tensor
    table_edge: Tensor
    """First entry of the neighbor, its number of labels, and the table's place.  # (edges, 3)"""
    table: Tensor
    slot_row: Tensor
    slot: Tensor
    """See `sweeps.slots_of`.  # (slots, 6)"""
    other: Tensor
    """See `sweeps.slots_of`.  # (slots, 3)"""


class Working(NamedTuple):
    """Which parts of the kernels a field needs, and how much they look at together."""

    agree: bool
    tables: bool
    larger: bool
    mixed: bool  # do numbers of labels differ?
    block: int  # variables
    labels: int
    edges: int
    theirs: int  # labels of a neighbor
    rows: int  # rows of a larger table


class VisitKind(NamedTuple):
    """How variables move, and what is wanted beside q."""

    greedy: bool = False
    draw: bool = False
    metropolis: bool = False
    delta: bool = False


class Luck(NamedTuple):
    """The seed of each chain, int64 with the bits of a uint64, and whether it draws."""

    seeds: Tensor  # (chains,) int64
    drawn: Tensor  # (chains,) int8


class Turns(NamedTuple):
    """What visits to variables in each of some chains read and leave."""

    members: Tensor  # the variables, group after group
    betas: Tensor  # inverse temperatures; a chain with 0 rests  # (times, chains)
    clock: Tensor  # the time now  # (1,) int64
    luck: Luck | None  # what is drawn with, if anything is
    parts: Tensor  # changes of F, largest changes of q  # (chains, parts, 2)


class Some(NamedTuple):
    """Some variables in a kernel."""

    i: Tensor  # (BV,)
    live: Tensor  # which of them there are  # (BV,)
    first: Tensor  # their first entries  # (BV,)
    count: Tensor  # their numbers of labels  # (BV,)
    mine: Tensor  # which entries of the tile there are  # (BV, L)


@jit
def uniform(seed, counter):
    """The numbers of `core.compiled.math`, for int64 seeds and counters with their bits."""
    z = seed.to(tl.uint64, bitcast=True) + (counter + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return (z >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2^−53


@jit
def some_of(i, live, offset, L: constexpr):
    """Variables by their numbers."""
    first = tl.load(offset + i, mask=live, other=0)
    count = tl.load(offset + i + 1, mask=live, other=0) - first
    mine = live[:, None] & (tl.arange(0, L)[None, :] < count[:, None])
    return Some(i, live, first, count, mine)


@jit
def agreement(q, some, field, WORKING: constexpr):
    """Σ_j w_ij q_j of each variable: the gradient of Potts and Ising energies.  # (BV, L)"""
    BV: constexpr = WORKING.block
    L: constexpr = WORKING.labels
    E: constexpr = WORKING.edges
    label = tl.arange(0, L)
    lane = tl.arange(0, E)
    start = tl.load(field.agree_row + some.i, mask=some.live, other=0)
    count = tl.load(field.agree_row + some.i + 1, mask=some.live, other=0) - start
    total = tl.zeros((BV, E, L), tl.float64)
    for e in range(0, tl.max(count, 0), E):
        there = (e + lane)[None, :] < count[:, None]
        edge = start[:, None] + (e + lane)[None, :]
        first = tl.load(field.agree_first + edge, mask=there, other=0)
        weight = tl.load(field.agree_weight + edge, mask=there, other=0.0).to(tl.float64)
        seen = there[:, :, None] & some.mine[:, None, :]
        if WORKING.mixed:  # a label that the neighbor doesn't have
            both = tl.load(field.agree_count + edge, mask=there, other=0)
            seen = seen & (label[None, None, :] < both[:, :, None])
        theirs = tl.load(q + first[:, :, None] + label[None, None, :], mask=seen, other=0.0)
        total += weight[:, :, None] * theirs.to(tl.float64)
    return tl.sum(total, 1)


@jit
def pairwise(q, some, field, WORKING: constexpr):
    """The gradient of pairwise tables.  # (BV, L)"""
    BV: constexpr = WORKING.block
    L: constexpr = WORKING.labels
    M: constexpr = WORKING.theirs
    label = tl.arange(0, L)
    start = tl.load(field.table_row + some.i, mask=some.live, other=0)
    count = tl.load(field.table_row + some.i + 1, mask=some.live, other=0) - start
    total = tl.zeros((BV, L), tl.float64)
    for e in range(0, tl.max(count, 0)):
        there = e < count
        edge = field.table_edge + (start + e) * 3
        first = tl.load(edge, mask=there, other=0)
        d = tl.load(edge + 1, mask=there, other=0)
        place = tl.load(edge + 2, mask=there, other=0)
        forward = place >= 0  # else the table is the neighbor's, transposed
        base = tl.where(forward, place, -1 - place)
        across = tl.where(forward, d, 1)
        along = tl.where(forward, 1, some.count)
        for m in range(0, tl.max(d, 0), M):
            theirs = m + tl.arange(0, M)
            seen = theirs[None, :] < d[:, None]
            p = tl.load(q + first[:, None] + theirs[None, :], mask=seen, other=0.0)
            at = base[:, None] + theirs[None, :] * along[:, None]
            at = at[:, None, :] + (label[None, :] * across[:, None])[:, :, None]
            wanted = some.mine[:, :, None] & (p != 0.0)[:, None, :]  # 0 · inf is 0
            energy = tl.load(field.table + at, mask=wanted, other=0.0).to(tl.float64)
            total += tl.sum(energy * p.to(tl.float64)[:, None, :], 2)
    return total


@jit
def larger(q, some, field, SHARED: constexpr, WORKING: constexpr):
    """The gradient of tables over three or more variables.  # (BV, L)

    For each label, the table's rows of the other variables' labels are added up with the product
    of their probabilities. ``SHARED`` gives each variable of a table an equal part.
    """
    BV: constexpr = WORKING.block
    L: constexpr = WORKING.labels
    R: constexpr = WORKING.rows
    label = tl.arange(0, L)
    start = tl.load(field.slot_row + some.i, mask=some.live, other=0)
    count = tl.load(field.slot_row + some.i + 1, mask=some.live, other=0) - start
    total = tl.zeros((BV, L), tl.float64)
    for k in range(0, tl.max(count, 0)):
        there = k < count
        at = field.slot + (start + k) * 6
        base = tl.load(at, mask=there, other=0)
        stride = tl.load(at + 1, mask=there, other=1)
        rows = tl.load(at + 2, mask=there, other=0)
        home = tl.load(at + 3, mask=there, other=0)
        arity = tl.load(at + 4, mask=there, other=0)
        position = tl.load(at + 5, mask=there, other=0)
        message = tl.zeros((BV, L), tl.float64)
        for r in range(0, tl.max(rows, 0), R):
            row = (r + tl.arange(0, R))[None, :]
            seen = row < rows[:, None]
            # the row's place in the table, with our own label 0
            zero = (row // stride[:, None]) * (stride * some.count)[:, None] + row % stride[:, None]
            p = tl.where(seen, 1.0, 0.0).to(tl.float64)
            for a in range(0, tl.max(arity, 0)):
                counts = there & (a < arity) & (a != position)
                who = field.other + (home + a) * 3
                first = tl.load(who, mask=counts, other=0)
                d = tl.load(who + 1, mask=counts, other=1)
                step = tl.load(who + 2, mask=counts, other=1)
                theirs = first[:, None] + (zero // step[:, None]) % d[:, None]
                p *= tl.load(q + theirs, mask=counts[:, None] & seen, other=1.0).to(tl.float64)
            entry = (base[:, None] + zero)[:, None, :] + (label[None, :] * stride[:, None])[
                :, :, None
            ]
            wanted = some.mine[:, :, None] & (p != 0.0)[:, None, :]  # 0 · inf is 0
            energy = tl.load(field.table + entry, mask=wanted, other=0.0).to(tl.float64)
            message += tl.sum(energy * p[:, None, :], 2)
        if SHARED:
            total += message / tl.maximum(arity, 1).to(tl.float64)[:, None]
        else:
            total += message
    return total


@jit
def gradient(q, some, field, SHARED: constexpr, WORKING: constexpr):
    """dE/dq of some variables.  # (BV, L)

    ``SHARED`` divides what a term of degree k gives by k instead: then ⟨q, ·⟩ adds up to E.
    """
    at = some.first[:, None] + tl.arange(0, WORKING.labels)[None, :]
    g = tl.load(field.unary + at, mask=some.mine, other=0.0).to(tl.float64)
    share = 0.5 if SHARED else 1.0
    if WORKING.agree:
        g += share * agreement(q, some, field, WORKING)
    if WORKING.tables:
        g += share * pairwise(q, some, field, WORKING)
    if WORKING.larger:
        g += larger(q, some, field, SHARED, WORKING)
    return g


@jit
def drawn_label(p, total, u, mine, L: constexpr):
    """One label of each variable drawn from weights that add up to ``total``.  # (BV,)"""
    label = tl.arange(0, L)[None, :]
    has = mine & (p > 0.0)
    passed = has & (tl.cumsum(p, 1) > (u * total)[:, None])
    first = tl.min(tl.where(passed, label, L), 1)
    last = tl.max(tl.where(has, label, -1), 1)  # where rounding leaves none
    return tl.where(first < L, first, last)


@jit
def moved_label(p, total, u, held, mine, L: constexpr):
    """A Metropolis move of each variable, as `general_chains.move_label` makes it.  # (BV,)

    ``p`` are weights that add up to ``total``, ``held`` is true at the label so far.
    """
    label = tl.arange(0, L)[None, :]
    own = tl.sum(tl.where(held, p, 0.0), 1)
    other = mine & (p > 0.0) & ~held
    left = total[:, None] - tl.minimum(p, own[:, None])
    share = tl.where(other, p / tl.where(other, left, 1.0), 0.0)
    passed = other & (tl.cumsum(share, 1) > u[:, None])
    first = tl.min(tl.where(passed, label, L), 1)
    last = tl.max(tl.where(other, label, -1), 1)
    stay = tl.max(tl.where(held, label, -1), 1)
    return tl.where(first < L, first, tl.where(own > 0.0, stay, last))


@jit
def plus_negative_entropy(x):
    """x log x, 0 at 0."""
    return x * tl.log(tl.where(x > 0.0, x, 1.0))


@jit
def visit(q, i, live, beta, u, draw, field, MOVING: constexpr, WORKING: constexpr):
    """Minimize E − H/β (or E, if greedy) over each of some variables that don't interact.

    Returns the change of F (0 unless it is wanted) and the largest change of q.
    """
    BV: constexpr = WORKING.block
    L: constexpr = WORKING.labels
    label = tl.arange(0, L)[None, :]
    some = some_of(i, live, field.offset, L)
    mine = some.mine
    g = gradient(q, some, field, False, WORKING)
    g = tl.where(mine, g, float("inf"))
    low = tl.min(g, 1)
    free = mine & (low < float("inf"))[:, None]
    low = tl.where(low < float("inf"), low, 0.0)[:, None]
    at = some.first[:, None] + label
    before = tl.load(q + at, mask=mine, other=0.0)
    old = before.to(tl.float64)
    if MOVING.greedy:  # an equally good label that is held stays
        held = tl.min(tl.where(free & (old == 1.0) & (g <= low), label, L), 1)
        best = tl.min(tl.where(free & (g <= low), label, L), 1)
        best = tl.where(held < L, held, best)
        p = tl.where(label == best[:, None], 1.0, 0.0).to(tl.float64)
    else:
        p = tl.exp(beta * (low - g))
        total = tl.sum(p, 1)
        if MOVING.draw:
            if MOVING.metropolis:
                chosen = moved_label(p, total, u, mine & (old == 1.0), mine, L)
            else:
                chosen = drawn_label(p, total, u, mine, L)
        p = p / tl.where(total > 0.0, total, 1.0)[:, None]
        if MOVING.draw:
            p = tl.where(draw, tl.where(label == chosen[:, None], 1.0, 0.0), p)
    after = p.to(before.dtype)
    tl.debug_barrier()  # small tiles are held by several threads: all must have read q by now
    tl.store(q + at, after, mask=free)
    new = after.to(tl.float64)
    moved = tl.max(tl.max(tl.where(free, tl.abs(new - old), 0.0), 1), 0)
    delta = tl.zeros((BV, L), tl.float64)
    if MOVING.delta:  # of what is stored, rounding included; −inf if an impossible label had weight
        delta = tl.where(new > 0.0, new * g, 0.0) - tl.where(old > 0.0, old * g, 0.0)
        delta += plus_negative_entropy(new) - plus_negative_entropy(old)
        delta = tl.where(free, delta, 0.0)
    return tl.sum(tl.sum(delta, 1), 0), moved


@jit_for_any("first", "count", "part", "parts_in_row", "n", "size")
def visit_group(
    q, turns, first, count, part, parts_in_row, n, size, field,
    MOVING: constexpr, WORKING: constexpr,
):  # fmt: skip
    """One group of variables in every chain: members ``first`` to ``first + count``.

    Its results go to ``parts`` from ``part`` on, of which each chain has ``parts_in_row``.
    """
    BV: constexpr = WORKING.block
    block = tl.program_id(0).to(tl.int64)
    chain = tl.program_id(1).to(tl.int64)
    time = tl.load(turns.clock)
    beta = tl.load(turns.betas + time * tl.num_programs(1) + chain)
    if beta > 0.0:
        k = block * BV + tl.arange(0, BV)
        live = k < count
        i = tl.load(turns.members + first + k, mask=live, other=0)
        u = tl.zeros((BV,), tl.float64)
        draw = False
        if MOVING.draw:
            draw = tl.load(turns.luck.drawn + chain) != 0
            u = uniform(tl.load(turns.luck.seeds + chain), (time + 1) * n + i)
        delta, moved = visit(q + chain * size, i, live, beta, u, draw, field, MOVING, WORKING)
        to = turns.parts + (chain * parts_in_row + part + block) * 2
        tl.store(to, delta)
        tl.store(to + 1, moved)


@jit_for_any("count")
def visit_in_turn(q, turns, count, field, MOVING: constexpr, WORKING: constexpr):
    """One variable after another in a single program: for orders that no grouping helps."""
    beta = tl.load(turns.betas)
    one = tl.arange(0, 1)
    live = one == 0
    total = tl.sum(tl.zeros((1,), tl.float64), 0)
    change = total
    for k in range(0, count):
        i = tl.load(turns.members + k + one)
        u = tl.zeros((1,), tl.float64)
        delta, moved = visit(q, i, live, beta, u, False, field, MOVING, WORKING)
        total += delta
        change = tl.maximum(change, moved)
        tl.debug_barrier()  # the next one's neighbors read what this one has written
    tl.store(turns.parts, total)
    tl.store(turns.parts + 1, change)


@jit_for_any("n", "size", "parts_in_row")
def free_energies(q, parts, parts_in_row, n, size, field, WORKING: constexpr):
    """What some variables add to F in one chain: ⟨q, u + …⟩ − H, each term's energy shared out."""
    BV: constexpr = WORKING.block
    L: constexpr = WORKING.labels
    block = tl.program_id(0).to(tl.int64)
    chain = tl.program_id(1).to(tl.int64)
    i = block * BV + tl.arange(0, BV)
    some = some_of(i, i < n, field.offset, L)
    own = q + chain * size
    g = gradient(own, some, field, True, WORKING)
    at = own + some.first[:, None] + tl.arange(0, L)[None, :]
    p = tl.load(at, mask=some.mine, other=0.0).to(tl.float64)
    f = tl.where(p > 0.0, p * g, 0.0) + plus_negative_entropy(p)
    tl.store(parts + chain * parts_in_row + block, tl.sum(tl.sum(f, 1), 0))


@jit_for_any("n", "size")
def begin(q, luck, n, size, field, BV: constexpr, L: constexpr):
    """Where chains start: impossible labels lose their weight, drawn chains take a label each."""
    chain = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BV + tl.arange(0, BV)
    label = tl.arange(0, L)[None, :]
    some = some_of(i, i < n, field.offset, L)
    mine = some.mine
    at = some.first[:, None] + label
    own = q + chain * size + at
    before = tl.load(own, mask=mine, other=0.0)
    possible = mine & (tl.load(field.unary + at, mask=mine, other=0.0) < float("inf"))
    p = tl.where(possible, before, 0.0).to(tl.float64)
    total = tl.sum(p, 1)
    # all the weight was on impossible labels: the others get equal parts
    p = tl.where((total > 0.0)[:, None], p, tl.where(possible, 1.0, 0.0))
    total = tl.sum(p, 1)
    free = mine & (total > 0.0)[:, None]
    if luck is not None:
        u = uniform(tl.load(luck.seeds + chain), i)
        chosen = drawn_label(p, total, u, mine, L)
    p = p / tl.where(total > 0.0, total, 1.0)[:, None]
    if luck is not None:
        draw = tl.load(luck.drawn + chain) != 0
        p = tl.where(draw, tl.where(label == chosen[:, None], 1.0, 0.0), p)
    tl.debug_barrier()  # as in `visit`
    tl.store(own, p.to(before.dtype), mask=free)
