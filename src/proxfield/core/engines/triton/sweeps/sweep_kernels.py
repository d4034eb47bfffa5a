# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Triton kernels that visit variables: gather a few variables' gradients, move them at once.

A program takes ``BV`` variables of one chain, with labels in ``L`` lanes, ``E`` edges (or ``M``
labels of a neighbor, or ``R`` rows of a larger table) at a time. Sums are float64 in a fixed
order, whatever the type of q, and every program writes to places of its own: two runs give the
same bits. A label whose energy is +inf gets q = 0, and a variable without a possible label keeps
what it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from proxfield.core.devices.cuda import jit, tl, triton
from proxfield.core.devices.tensors import Kernel

if TYPE_CHECKING:
    from proxfield.core.devices.tensors import constexpr
else:
    constexpr = str if tl is None else tl.constexpr


def jit_for_any(*names: str) -> Callable[[Callable[..., object]], Kernel]:
    """``triton.jit`` that doesn't compile anew for special values of these integers."""

    def make(function: Callable[..., object]) -> Kernel:
        return function if triton is None else triton.jit(function, do_not_specialize=[*names])

    return make


@jit
def uniform(seed, counter):
    """The numbers of `core.compiled.random`, for int64 seeds and counters with their bits."""
    z = seed.to(tl.uint64, bitcast=True) + (counter + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return (z >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2^−53


@jit
def agreement(
    q, i, live, mine, agree_row, agree_first, agree_count, agree_weight,
    MIXED: constexpr, BV: constexpr, L: constexpr, E: constexpr,
):  # fmt: skip
    """Σ_j w_ij q_j of each variable: the gradient of Potts and Ising energies.  # (BV, L)"""
    label = tl.arange(0, L)
    lane = tl.arange(0, E)
    start = tl.load(agree_row + i, mask=live, other=0)
    count = tl.load(agree_row + i + 1, mask=live, other=0) - start
    total = tl.zeros((BV, E, L), tl.float64)
    for e in range(0, tl.max(count, 0), E):
        there = (e + lane)[None, :] < count[:, None]
        edge = start[:, None] + (e + lane)[None, :]
        first = tl.load(agree_first + edge, mask=there, other=0)
        weight = tl.load(agree_weight + edge, mask=there, other=0.0).to(tl.float64)
        seen = there[:, :, None] & mine[:, None, :]
        if MIXED:  # a label that the neighbor doesn't have
            both = tl.load(agree_count + edge, mask=there, other=0)
            seen = seen & (label[None, None, :] < both[:, :, None])
        theirs = tl.load(q + first[:, :, None] + label[None, None, :], mask=seen, other=0.0)
        total += weight[:, :, None] * theirs.to(tl.float64)
    return tl.sum(total, 1)


@jit
def pairwise(
    q, i, c, live, mine, table_row, table_edge, table,
    BV: constexpr, L: constexpr, M: constexpr,
):  # fmt: skip
    """The gradient of pairwise tables.  # (BV, L)"""
    label = tl.arange(0, L)
    start = tl.load(table_row + i, mask=live, other=0)
    count = tl.load(table_row + i + 1, mask=live, other=0) - start
    total = tl.zeros((BV, L), tl.float64)
    for e in range(0, tl.max(count, 0)):
        there = e < count
        edge = table_edge + (start + e) * 3
        first = tl.load(edge, mask=there, other=0)
        d = tl.load(edge + 1, mask=there, other=0)
        place = tl.load(edge + 2, mask=there, other=0)
        forward = place >= 0  # else the table is the neighbor's, transposed
        base = tl.where(forward, place, -1 - place)
        across = tl.where(forward, d, 1)
        along = tl.where(forward, 1, c)
        for m in range(0, tl.max(d, 0), M):
            theirs = m + tl.arange(0, M)
            seen = theirs[None, :] < d[:, None]
            p = tl.load(q + first[:, None] + theirs[None, :], mask=seen, other=0.0)
            at = base[:, None] + theirs[None, :] * along[:, None]
            at = at[:, None, :] + (label[None, :] * across[:, None])[:, :, None]
            some = mine[:, :, None] & (p != 0.0)[:, None, :]  # 0 · inf is 0
            energy = tl.load(table + at, mask=some, other=0.0).to(tl.float64)
            total += tl.sum(energy * p.to(tl.float64)[:, None, :], 2)
    return total


@jit
def larger(
    q, i, c, live, mine, slot_row, slot, other, table,
    SHARED: constexpr, BV: constexpr, L: constexpr, R: constexpr,
):  # fmt: skip
    """The gradient of tables over three or more variables.  # (BV, L)

    For each label, the table's rows of the other variables' labels are added up with the product
    of their probabilities. ``SHARED`` gives each variable of a table an equal part.
    """
    label = tl.arange(0, L)
    start = tl.load(slot_row + i, mask=live, other=0)
    count = tl.load(slot_row + i + 1, mask=live, other=0) - start
    total = tl.zeros((BV, L), tl.float64)
    for k in range(0, tl.max(count, 0)):
        there = k < count
        at = slot + (start + k) * 6
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
            zero = (row // stride[:, None]) * (stride * c)[:, None] + row % stride[:, None]
            p = tl.where(seen, 1.0, 0.0).to(tl.float64)
            for a in range(0, tl.max(arity, 0)):
                counts = there & (a < arity) & (a != position)
                who = other + (home + a) * 3
                first = tl.load(who, mask=counts, other=0)
                d = tl.load(who + 1, mask=counts, other=1)
                step = tl.load(who + 2, mask=counts, other=1)
                theirs = first[:, None] + (zero // step[:, None]) % d[:, None]
                p *= tl.load(q + theirs, mask=counts[:, None] & seen, other=1.0).to(tl.float64)
            entry = (base[:, None] + zero)[:, None, :] + (label[None, :] * stride[:, None])[
                :, :, None
            ]
            some = mine[:, :, None] & (p != 0.0)[:, None, :]  # 0 · inf is 0
            energy = tl.load(table + entry, mask=some, other=0.0).to(tl.float64)
            message += tl.sum(energy * p[:, None, :], 2)
        if SHARED:
            total += message / tl.maximum(arity, 1).to(tl.float64)[:, None]
        else:
            total += message
    return total


@jit
def gradient(
    q, i, o, c, live, mine, unary, agree_row, agree_first, agree_count, agree_weight,
    table_row, table_edge, table, slot_row, slot, other, SHARED: constexpr,
    AGREE: constexpr, TABLES: constexpr, LARGER: constexpr, MIXED: constexpr,
    BV: constexpr, L: constexpr, E: constexpr, M: constexpr, R: constexpr,
):  # fmt: skip
    """dE/dq of some variables.  # (BV, L)

    ``SHARED`` divides what a term of degree k gives by k instead: then ⟨q, ·⟩ adds up to E.
    """
    at = o[:, None] + tl.arange(0, L)[None, :]
    g = tl.load(unary + at, mask=mine, other=0.0).to(tl.float64)
    share = 0.5 if SHARED else 1.0
    if AGREE:
        g += share * agreement(
            q, i, live, mine, agree_row, agree_first, agree_count, agree_weight, MIXED, BV, L, E
        )
    if TABLES:
        g += share * pairwise(q, i, c, live, mine, table_row, table_edge, table, BV, L, M)
    if LARGER:
        g += larger(q, i, c, live, mine, slot_row, slot, other, table, SHARED, BV, L, R)
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
    """A Metropolis move of each variable, as `general_moves.move_label` makes it.  # (BV,)

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
def visit(
    q, theta, i, live, beta, u, draw, offset, unary, agree_row, agree_first, agree_count,
    agree_weight, table_row, table_edge, table, slot_row, slot, other,
    GREEDY: constexpr, DRAW: constexpr, METROPOLIS: constexpr, THETA: constexpr, DELTA: constexpr,
    AGREE: constexpr, TABLES: constexpr, LARGER: constexpr, MIXED: constexpr,
    BV: constexpr, L: constexpr, E: constexpr, M: constexpr, R: constexpr,
):  # fmt: skip
    """Minimize E − H/β (or E, if greedy) over each of some variables that don't interact.

    Returns the change of F (0 unless ``DELTA``) and the largest change of q.
    """
    label = tl.arange(0, L)[None, :]
    o = tl.load(offset + i, mask=live, other=0)
    c = tl.load(offset + i + 1, mask=live, other=0) - o
    mine = live[:, None] & (label < c[:, None])
    g = gradient(
        q, i, o, c, live, mine, unary, agree_row, agree_first, agree_count, agree_weight,
        table_row, table_edge, table, slot_row, slot, other, False,
        AGREE, TABLES, LARGER, MIXED, BV, L, E, M, R,
    )  # fmt: skip
    g = tl.where(mine, g, float("inf"))
    low = tl.min(g, 1)
    free = mine & (low < float("inf"))[:, None]
    low = tl.where(low < float("inf"), low, 0.0)[:, None]
    at = o[:, None] + label
    before = tl.load(q + at, mask=mine, other=0.0)
    old = before.to(tl.float64)
    if GREEDY:  # an equally good label that is held stays
        held = tl.min(tl.where(free & (old == 1.0) & (g <= low), label, L), 1)
        best = tl.min(tl.where(free & (g <= low), label, L), 1)
        best = tl.where(held < L, held, best)
        p = tl.where(label == best[:, None], 1.0, 0.0).to(tl.float64)
    else:
        p = tl.exp(beta * (low - g))
        total = tl.sum(p, 1)
        if DRAW:
            if METROPOLIS:
                chosen = moved_label(p, total, u, mine & (old == 1.0), mine, L)
            else:
                chosen = drawn_label(p, total, u, mine, L)
        p = p / tl.where(total > 0.0, total, 1.0)[:, None]
        if DRAW:
            p = tl.where(draw, tl.where(label == chosen[:, None], 1.0, 0.0), p)
    after = p.to(before.dtype)
    tl.debug_barrier()  # small tiles are held by several threads: all must have read q by now
    tl.store(q + at, after, mask=free)
    if THETA:
        tl.store(theta + at, (beta * (g - low)).to(before.dtype), mask=free)
    new = after.to(tl.float64)
    moved = tl.max(tl.max(tl.where(free, tl.abs(new - old), 0.0), 1), 0)
    delta = tl.zeros((BV, L), tl.float64)
    if DELTA:  # of what is stored, rounding included; −inf if an impossible label had weight
        delta = tl.where(new > 0.0, new * g, 0.0) - tl.where(old > 0.0, old * g, 0.0)
        delta += plus_negative_entropy(new) - plus_negative_entropy(old)
        delta = tl.where(free, delta, 0.0)
    return tl.sum(tl.sum(delta, 1), 0), moved


@jit_for_any("first", "count", "part", "parts_in_row", "chains", "n", "size")
def visit_group(
    q, theta, members, first, count, betas, clock, seeds, drawn, parts, part, parts_in_row,
    chains, n, size, offset, unary, agree_row, agree_first, agree_count, agree_weight,
    table_row, table_edge, table, slot_row, slot, other,
    GREEDY: constexpr, DRAW: constexpr, METROPOLIS: constexpr, THETA: constexpr, DELTA: constexpr,
    AGREE: constexpr, TABLES: constexpr, LARGER: constexpr, MIXED: constexpr,
    BV: constexpr, L: constexpr, E: constexpr, M: constexpr, R: constexpr,
):  # fmt: skip
    """One group of variables in every chain: members ``first`` to ``first + count``.

    The chain's β is in the row of ``betas`` that ``clock`` tells; 0 leaves the chain alone.
    """
    block = tl.program_id(0).to(tl.int64)
    chain = tl.program_id(1).to(tl.int64)
    time = tl.load(clock)
    beta = tl.load(betas + time * chains + chain)
    if beta > 0.0:
        k = block * BV + tl.arange(0, BV)
        live = k < count
        i = tl.load(members + first + k, mask=live, other=0)
        u = tl.zeros((BV,), tl.float64)
        draw = False
        if DRAW:
            draw = tl.load(drawn + chain) != 0
            u = uniform(tl.load(seeds + chain), (time + 1) * n + i)
        delta, moved = visit(
            q + chain * size, theta + chain * size, i, live, beta, u, draw, offset, unary,
            agree_row, agree_first, agree_count, agree_weight, table_row, table_edge, table,
            slot_row, slot, other, GREEDY, DRAW, METROPOLIS, THETA, DELTA, AGREE, TABLES, LARGER,
            MIXED, BV, L, E, M, R,
        )  # fmt: skip
        to = parts + (chain * parts_in_row + part + block) * 2
        tl.store(to, delta)
        tl.store(to + 1, moved)


@jit_for_any("count")
def visit_in_turn(
    q, theta, members, count, betas, parts, offset, unary, agree_row, agree_first, agree_count,
    agree_weight, table_row, table_edge, table, slot_row, slot, other,
    THETA: constexpr, AGREE: constexpr, TABLES: constexpr, LARGER: constexpr,
    MIXED: constexpr, L: constexpr, E: constexpr, M: constexpr, R: constexpr,
):  # fmt: skip
    """One variable after another in a single program: for orders that no grouping helps."""
    beta = tl.load(betas)
    one = tl.arange(0, 1)
    live = one == 0
    total = tl.sum(tl.zeros((1,), tl.float64), 0)
    change = total
    for k in range(0, count):
        i = tl.load(members + k + one)
        delta, moved = visit(
            q, theta, i, live, beta, tl.zeros((1,), tl.float64), False, offset, unary,
            agree_row, agree_first, agree_count, agree_weight, table_row, table_edge, table,
            slot_row, slot, other, False, False, False, THETA, True, AGREE, TABLES, LARGER, MIXED,
            1, L, E, M, R,
        )  # fmt: skip
        total += delta
        change = tl.maximum(change, moved)
        tl.debug_barrier()  # the next one's neighbors read what this one has written
    tl.store(parts, total)
    tl.store(parts + 1, change)


@jit_for_any("n", "size", "parts_in_row")
def free_energies(
    q, parts, parts_in_row, n, size, offset, unary, agree_row, agree_first, agree_count,
    agree_weight, table_row, table_edge, table, slot_row, slot, other,
    AGREE: constexpr, TABLES: constexpr, LARGER: constexpr, MIXED: constexpr,
    BV: constexpr, L: constexpr, E: constexpr, M: constexpr, R: constexpr,
):  # fmt: skip
    """What some variables add to F in one chain: ⟨q, u + …⟩ − H, each term's energy shared out."""
    block = tl.program_id(0).to(tl.int64)
    chain = tl.program_id(1).to(tl.int64)
    i = block * BV + tl.arange(0, BV)
    live = i < n
    label = tl.arange(0, L)[None, :]
    o = tl.load(offset + i, mask=live, other=0)
    c = tl.load(offset + i + 1, mask=live, other=0) - o
    mine = live[:, None] & (label < c[:, None])
    own = q + chain * size
    g = gradient(
        own, i, o, c, live, mine, unary, agree_row, agree_first, agree_count, agree_weight,
        table_row, table_edge, table, slot_row, slot, other, True,
        AGREE, TABLES, LARGER, MIXED, BV, L, E, M, R,
    )  # fmt: skip
    p = tl.load(own + o[:, None] + label, mask=mine, other=0.0).to(tl.float64)
    f = tl.where(p > 0.0, p * g, 0.0) + plus_negative_entropy(p)
    tl.store(parts + chain * parts_in_row + block, tl.sum(tl.sum(f, 1), 0))


@jit_for_any("n", "size")
def begin(
    q, seeds, drawn, n, size, offset, unary, DRAW: constexpr, BV: constexpr, L: constexpr
):  # fmt: skip
    """Where chains start: impossible labels lose their weight, drawn chains take a label each."""
    chain = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BV + tl.arange(0, BV)
    live = i < n
    label = tl.arange(0, L)[None, :]
    o = tl.load(offset + i, mask=live, other=0)
    c = tl.load(offset + i + 1, mask=live, other=0) - o
    mine = live[:, None] & (label < c[:, None])
    at = o[:, None] + label
    own = q + chain * size + at
    before = tl.load(own, mask=mine, other=0.0)
    possible = mine & (tl.load(unary + at, mask=mine, other=0.0) < float("inf"))
    p = tl.where(possible, before, 0.0).to(tl.float64)
    total = tl.sum(p, 1)
    # all the weight was on impossible labels: the others get equal parts
    p = tl.where((total > 0.0)[:, None], p, tl.where(possible, 1.0, 0.0))
    total = tl.sum(p, 1)
    free = mine & (total > 0.0)[:, None]
    if DRAW:
        u = uniform(tl.load(seeds + chain), i)
        chosen = drawn_label(p, total, u, mine, L)
    p = p / tl.where(total > 0.0, total, 1.0)[:, None]
    if DRAW:
        draw = tl.load(drawn + chain) != 0
        p = tl.where(draw, tl.where(label == chosen[:, None], 1.0, 0.0), p)
    tl.debug_barrier()  # as in `visit`
    tl.store(own, p.to(before.dtype), mask=free)
