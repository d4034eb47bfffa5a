"""Compiled chains that sample labellings of any field.

One variable at a time: a chain keeps the energy that every label of every variable has by unary
and pairwise energies, and updates those of the neighbors when a label changes. Tables over more
variables are read at each visit; where configurations are forbidden, everything is. A visit
computes exponentials only where its random number leaves a change possible.

Forest moves: messages go from the leaves to the roots, labels from the roots to the leaves. Local
energies are made anew for each move, since a forest of a graph with many edges has few variables.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import kernel, merged, parallel_kernel
from proxfield.core.compiled.math import exp_single, uniform
from proxfield.core.engines.numba.chains import BLOCK, Cooling, logits, logs, temperature_at
from proxfield.core.engines.numba.general import GeneralPack
from proxfield.core.lowering.lowered import Forests

Labels = NDArray[np.int32]
Marks = NDArray[np.uint8]


class Agreements(NamedTuple):
    """Energies w·[x_i = x_j], as in `GeneralPack`."""

    row: Ints
    column: NDArray[np.int32]
    weight: Floats


class EdgeTables(NamedTuple):
    """Pairwise tables, as in `GeneralPack`."""

    row: Ints
    column: NDArray[np.int32]
    start: Ints
    value: Floats


class Larger(NamedTuple):
    """Tables over three or more variables, as in `GeneralPack`."""

    row: Ints  # slots by variable
    slots: Ints
    factor: Ints  # of each slot
    first: Ints  # slot of each factor
    variable: Ints  # of each slot
    start: Ints  # of each factor's table
    value: Floats


def energies_of(
    pack: GeneralPack,
) -> tuple[Ints, Floats, Agreements | None, EdgeTables | None, Larger | None]:
    """The parts that a packed field has, as `draw_general` takes them; None isn't compiled."""
    agree = Agreements(pack.agree_row, pack.agree_column, pack.agree_weight)
    tables = EdgeTables(pack.table_row, pack.table_column, pack.table_start, pack.table)
    larger = Larger(
        pack.slot_row, pack.slot_list, pack.slot_factor, pack.factor_slot, pack.slot_variable,
        pack.factor_start, pack.table,
    )  # fmt: skip
    return (
        pack.offset,
        pack.unary,
        agree if len(agree.column) else None,
        tables if len(tables.column) else None,
        larger if len(larger.slots) else None,
    )


class GeneralForests(NamedTuple):
    """`Forests` with what their moves read."""

    start: Ints  # first entry of each forest  # (forests + 1,)
    node: NDArray[np.int32]  # variables, children before their parents
    above: NDArray[np.int32]  # the parent; −1 at roots
    agree: Doubles  # energy of having the parent's label
    table_row: Ints  # starts of each one's tables with its parent  # (len(node) + 1,)
    table_start: Ints  # as in `GeneralPack`
    marks: Marks  # bit k: is a variable in forest k?  # (n,)
    rest: NDArray[np.int32]  # variables to be visited one by one


def pack_general_forests(pack: GeneralPack, forests: Forests) -> GeneralForests:
    """Forests (at most eight) with the energies along their edges."""
    start, node, above, _, rest = forests
    marks = np.zeros(len(pack.offset) - 1, dtype=np.uint8)
    for k, (begin, end) in enumerate(pairwise(start)):
        marks[node[begin:end]] |= np.uint8(1 << k)
    agree, table_row = np.zeros(len(node)), np.zeros(len(node) + 1, dtype=np.int64)
    edge_energies(pack, node, above, agree, table_row, table_row[:0])
    table_start = np.zeros(int(table_row[-1]), dtype=np.int64)
    edge_energies(pack, node, above, agree, table_row, table_start)
    return GeneralForests(start, node, above, agree, table_row, table_start, marks, rest)


@kernel
def edge_energies(
    pack: GeneralPack, node: Labels, above: Labels, agree: Doubles, table_row: Ints,
    table_start: Ints,
) -> None:  # fmt: skip
    """Energies between variables and their parents; counts tables where there is room for none."""
    last = 0
    for k in range(len(node)):
        i = node[k]
        agree[k] = 0.0
        for e in range(pack.agree_row[i], pack.agree_row[i + 1]):
            if pack.agree_column[e] == above[k]:
                agree[k] += pack.agree_weight[e]
        for e in range(pack.table_row[i], pack.table_row[i + 1]):
            if pack.table_column[e] == above[k]:
                if len(table_start) > 0:
                    table_start[last] = pack.table_start[e]
                last += 1
        table_row[k + 1] = last


# ---- what moves are made of ----

# Everything is in energies, and exponentials are of differences from the lowest: temperatures may
# be close to 0.


@merged
def exp_of(x: float) -> float:
    """exp(x) for x ≤ 0; single precision is enough for probabilities of draws."""
    return float(exp_single(np.float32(x)))


@merged
def add_column(value: Floats, start: int, theirs: int, width: int, out: Doubles) -> None:
    """Add the energies in one table for one label of the other variable, which has ``width``."""
    at, stride = start + theirs, width
    if start < 0:  # the other variable comes first
        at, stride = -1 - start + theirs * len(out), 1
    for l in range(len(out)):
        out[l] += value[at + l * stride]


@merged
def add_larger(larger: Larger, offset: Ints, label: Labels, i: int, out: Doubles) -> None:
    """Add energies of a variable's labels by tables over three or more variables."""
    for k in range(larger.row[i], larger.row[i + 1]):
        s = larger.slots[k]
        f = larger.factor[s]
        at, stride, own = larger.start[f], np.int64(1), np.int64(1)
        for other in range(larger.first[f + 1] - 1, larger.first[f] - 1, -1):
            j = larger.variable[other]
            if other == s:
                own = stride
            else:
                at += stride * label[j]
            stride *= offset[j + 1] - offset[j]
        for l in range(len(out)):
            out[l] += larger.value[at + l * own]


@merged
def stays(energy: Doubles, held: int, margin: float) -> bool:
    """Whether every other label costs at least ``margin`` more than the one that is held."""
    cheap = 0
    limit = energy[held] + margin
    for l in range(len(energy)):
        cheap += not energy[l] > limit
    return cheap <= 1 and margin < np.inf and limit < np.inf


@merged
def weigh(energy: Doubles, heat: float) -> float:
    """Replace energies by weights ∝ exp(−energy / T), the largest 1; returns their sum.

    If all are impossible they stay as they are, and the sum is 0.
    """
    low = np.inf
    for l in range(len(energy)):
        low = min(low, energy[l])
    if low == np.inf:
        return 0.0
    total = 0.0
    for l in range(len(energy)):
        energy[l] = exp_of((low - energy[l]) / heat)
        total += energy[l]
    return total


@merged
def draw_label(energy: Doubles, heat: float, u: float, held: int) -> int:
    """A label with probability ∝ exp(−energy / T); the one held if all are impossible.

    ``u`` is a random number in [0, 1); energies are replaced by weights.
    """
    total = weigh(energy, heat)
    if total == 0.0:
        return held
    rest = u * total
    new = 0
    for l in range(len(energy)):
        if energy[l] > 0.0:  # the last one with weight, if rounding leaves something
            new = l
            rest -= energy[l]
            if rest < 0.0:
                break
    return new


@merged
def move_label(energy: Doubles, heat: float, u: float, held: int) -> int:
    """A Metropolis move: another label l with probability w_l / (W − min(w_l, w_held)).

    w are weights ∝ exp(−energy / T), whose sum is W. That keeps their distribution, and no label is
    taken less often than by `draw_label`; with two labels, a change is made with probability
    min(1, w_l / w_held). The label stays if all are impossible. See `draw_label` for arguments.
    """
    total = weigh(energy, heat)
    if total == 0.0:
        return held
    own, rest, last = energy[held], u, held
    for l in range(len(energy)):
        if l != held and energy[l] > 0.0:
            last = l
            rest -= energy[l] / (total - min(own, energy[l]))
            if rest < 0.0:
                return last
    return held if own > 0.0 else last


@merged
def soft_minimum(energy: Doubles, heat: float) -> float:
    """−T log Σ exp(−energy / T); +inf if all are."""
    low = np.inf
    for l in range(len(energy)):
        low = min(low, energy[l])
    if low == np.inf:
        return low
    total = 0.0
    for l in range(len(energy)):
        total += exp_of((low - energy[l]) / heat)
    return float(low - heat * np.log(total))


@merged
def agree_message(energy: Doubles, agree: float, heat: float, rest: Doubles, out: Doubles) -> None:
    """Add to ``out`` what summing out a variable gives its parent, if it matters only whether
    they agree: −T log(Σ_{l ≠ m} exp(−e_l / T) + exp(−(e_m + w) / T)) for each label m, with the
    energies e, w = ``agree`` and T = ``heat``. ``rest`` is room.
    """
    c = len(energy)
    best = 0
    for l in range(c):
        best = l if energy[l] < energy[best] else best
    low, second = energy[best], np.inf
    for l in range(c):
        second = energy[l] if l != best and energy[l] < second else second
    others, runners = 0.0, 0.0  # sums without the best: relative to it, and to the second
    for l in range(c):
        if l != best and energy[l] < np.inf:
            rest[l] = exp_of((low - energy[l]) / heat)
            others += rest[l]
            runners += exp_of((second - energy[l]) / heat)
        else:
            rest[l] = 0.0
    for m in range(len(out)):
        if m == best:
            unequal = second - heat * np.log(max(runners, 1.0))
        else:
            less = rest[m] if m < c else 0.0
            unequal = low - heat * np.log(1.0 + max(0.0, others - less))
        equal = energy[m] + agree if m < c else np.inf
        least, gap = min(unequal, equal), abs(unequal - equal)
        if gap < 40.0 * heat:
            least -= heat * np.log(1.0 + exp_of(-gap / heat))
        out[m] += least


# ---- chains ----


@merged
def begin_chain(offset: Ints, unary: Floats, q: Floats, seed: np.uint64, label: Labels) -> None:
    """Draw a labelling from the marginals, without impossible labels."""
    for i in range(len(label)):
        o, end = offset[i], offset[i + 1]
        total = 0.0
        for l in range(o, end):
            total += 0.0 if unary[l] == np.inf else np.float64(q[l])
        even = total == 0.0  # all weight was on impossible labels: the others share it
        if even:
            for l in range(o, end):
                total += 0.0 if unary[l] == np.inf else 1.0
        rest = uniform(seed, np.uint64(i)) * total
        label[i] = 0
        for l in range(o, end):
            weight = 0.0 if unary[l] == np.inf else (1.0 if even else np.float64(q[l]))
            if weight > 0.0:  # the last one with weight, if rounding leaves something
                label[i] = l - o
                rest -= weight
                if rest < 0.0:
                    break


@merged
def local_into(
    offset: Ints, unary: Floats, agree: Agreements | None, tables: EdgeTables | None, label: Labels,
    marks: Marks, mark: int, i: int, out: Doubles,
) -> None:  # fmt: skip
    """Energies of a variable's labels, without larger tables and neighbors that have the mark."""
    for l in range(len(out)):
        out[l] = unary[offset[i] + l]
    if agree is not None:
        for e in range(agree.row[i], agree.row[i + 1]):
            j = agree.column[e]
            if label[j] < len(out) and marks[j] & mark == 0:
                out[label[j]] += agree.weight[e]
    if tables is not None:
        for e in range(tables.row[i], tables.row[i + 1]):
            j = tables.column[e]
            if marks[j] & mark == 0:
                add_column(tables.value, tables.start[e], label[j], offset[j + 1] - offset[j], out)


@merged
def change_label(
    offset: Ints, agree: Agreements | None, tables: EdgeTables | None, kept: Doubles, i: int,
    old: int, new: int,
) -> None:  # fmt: skip
    """Update the energies kept for the neighbors of a variable that changes its label."""
    if agree is not None:
        for e in range(agree.row[i], agree.row[i + 1]):
            o, end = offset[agree.column[e]], offset[agree.column[e] + 1]
            if o + old < end:
                kept[o + old] -= agree.weight[e]
            if o + new < end:
                kept[o + new] += agree.weight[e]
    if tables is not None:
        c = offset[i + 1] - offset[i]
        for e in range(tables.row[i], tables.row[i + 1]):
            o = offset[tables.column[e]]
            d = offset[tables.column[e] + 1] - o
            start, across, along = tables.start[e], d, 1
            if start < 0:
                start, across, along = -1 - start, 1, c
            for m in range(d):
                gone = np.float64(tables.value[start + old * across + m * along])
                kept[o + m] += tables.value[start + new * across + m * along] - gone


@merged
def send_message(
    tables: EdgeTables | None, forests: GeneralForests, k: int, heat: float, mine: Doubles,
    theirs: Doubles, out: Doubles,
) -> None:  # fmt: skip
    """Sum out a variable of a forest: add what is left to its parent's energies."""
    if tables is None or forests.table_row[k] == forests.table_row[k + 1]:
        agree_message(mine, forests.agree[k], heat, out, theirs)
    else:
        own = out[: len(mine)]
        for m in range(len(theirs)):
            for l in range(len(mine)):
                own[l] = mine[l]
            edge_into(tables, forests, k, m, len(theirs), own)
            theirs[m] += soft_minimum(own, heat)


@merged
def edge_into(
    tables: EdgeTables | None, forests: GeneralForests, k: int, theirs: int, width: int,
    out: Doubles,
) -> None:  # fmt: skip
    """Add the energies between a variable's labels and one label of its parent."""
    if theirs < len(out):
        out[theirs] += forests.agree[k]
    if tables is not None:
        for e in range(forests.table_row[k], forests.table_row[k + 1]):
            add_column(tables.value, forests.table_start[e], theirs, width, out)


@parallel_kernel
def draw_general(
    offset: Ints, unary: Floats, agree: Agreements | None, tables: EdgeTables | None,
    larger: Larger | None, hard: bool, forests: GeneralForests, q: Floats, schedule: Cooling,
    room: tuple[Labels, Doubles, Doubles],
) -> None:  # fmt: skip
    """Run all chains that are drawn; ``q`` becomes their labelling.  # (chains, size)

    ``room`` is for labels (chains, n), energies of all labels (chains, size), and thresholds and
    energies of one variable (chains, 2, max(BLOCK, widest)).

    A label whose c − 1 rivals cost at least δ more has all of [ε, 1 − ε] in the cumulative
    distribution, ε = (c − 1) exp(−δ/T). So it stays if δ > T (|log(u / (1 − u))| + log 2(c − 1)).
    A Metropolis move is made with probability ε at most: none if δ > T (|log u| + log(c − 1)), and
    so with the same margin.
    """
    hot, cold, sweeps, seeds, drawn, by_forests, metropolis = schedule
    labels, energies, numbers = room
    for b in numba.prange(len(hot)):
        if drawn[b]:
            n, seed, by = len(offset) - 1, seeds[b], by_forests[b]
            label, kept, r, out = labels[b], energies[b], numbers[b, 0], numbers[b, 1]
            known, margin = np.int64(2), np.log(2.0)
            begin_chain(offset, unary, q[b], seed, label)
            for t in range(sweeps[b]):
                heat = temperature_at(t, sweeps[b], hot[b], cold[b])
                start, end, size, mark = np.int64(0), np.int64(n), np.int64(0), np.int64(0)
                visits = np.int64(n)
                if by:
                    which = np.int64((seed + np.uint64(t)) % np.uint64(len(forests.start) - 1))
                    start, end = forests.start[which], forests.start[which + 1]
                    size, mark = end - start, np.int64(1) << which
                    visits = size + len(forests.rest)
                if by or t == 0:
                    for k in range(start, end):
                        i = np.int64(forests.node[k]) if by else k
                        mine = kept[offset[i] : offset[i + 1]]
                        local_into(
                            offset, unary, agree, tables, label, forests.marks, mark, i, mine
                        )
                        if larger is not None:  # noqa: SIM102 - None leaves the branch out
                            if by:
                                add_larger(larger, offset, label, i, mine)
                for k in range(start, start + size):
                    i, p = forests.node[k], forests.above[k]
                    if p >= 0:
                        mine = kept[offset[i] : offset[i + 1]]
                        theirs = kept[offset[p] : offset[p + 1]]
                        send_message(tables, forests, k, heat, mine, theirs, out)
                for begin in range(0, visits, BLOCK):
                    count = min(BLOCK, visits - begin)
                    first = np.uint64(n) * np.uint64(t + 1) + np.uint64(begin)
                    if metropolis and not by:
                        logs(seed, first, count, heat, r)
                    else:
                        logits(seed, first, count, heat, r)
                    for k in range(begin, begin + count):
                        i = k
                        if k < size:
                            i = np.int64(forests.node[end - 1 - k])
                        elif by:
                            i = np.int64(forests.rest[k - size])
                        o = offset[i]
                        c = offset[i + 1] - o
                        if c == 1:
                            continue
                        if k >= size and (by or hard):
                            local_into(
                                offset, unary, agree, tables, label, forests.marks, np.int64(0), i,
                                kept[o : o + c],
                            )  # fmt: skip
                        energy = out[:c]
                        for l in range(c):
                            energy[l] = kept[o + l]
                        if k < size:
                            p = forests.above[end - 1 - k]
                            if p >= 0:
                                width = offset[p + 1] - offset[p]
                                edge_into(tables, forests, end - 1 - k, label[p], width, energy)
                        if larger is not None:  # noqa: SIM102
                            if k >= size:
                                add_larger(larger, offset, label, i, energy)
                        if c != known:
                            known, margin = c, np.log(2.0 * (c - 1))
                        old = label[i]
                        if stays(energy, old, abs(r[k - begin]) + heat * margin):
                            continue
                        u = uniform(seed, first + np.uint64(k - begin))
                        if metropolis and not by:
                            new = move_label(energy, heat, u, old)
                        else:
                            new = draw_label(energy, heat, u, old)
                        label[i] = new
                        if new != old and not (by or hard):
                            change_label(offset, agree, tables, kept, i, old, new)
            for i in range(n):
                for l in range(offset[i], offset[i + 1]):
                    q[b, l] = 1.0 if l - offset[i] == label[i] else 0.0
