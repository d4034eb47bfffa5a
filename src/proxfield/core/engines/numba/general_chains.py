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
from proxfield.core.compiled.random import uniform
from proxfield.core.engines.numba.chains import BLOCK, Cooling, logits, logs, temperature_at
from proxfield.core.engines.numba.general import GeneralPack
from proxfield.core.engines.numba.general_moves import (
    Agreements,
    EdgeTables,
    Labels,
    Larger,
    Marks,
    add_agreements,
    add_column,
    add_larger,
    add_tables,
    agree_message,
    change_agreements,
    change_tables,
    draw_label,
    move_label,
    soft_minimum,
    stays,
)
from proxfield.core.lowering.forests import Forests


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


class DrawRoom(NamedTuple):
    """What `draw_general` works in; overwritten."""

    labels: Labels  # (chains, n)
    energies: Doubles  # of all labels  # (chains, size)
    numbers: Doubles  # thresholds, and energies of one variable  # (chains, 2, max(BLOCK, widest))


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
        add_agreements(agree, label, marks, mark, i, out)
    if tables is not None:
        add_tables(tables, offset, label, marks, mark, i, out)


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
    tables: EdgeTables | None,
    forests: GeneralForests,
    k: int,
    theirs: int,
    width: int,
    out: Doubles,
) -> None:
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
    room: DrawRoom,
) -> None:  # fmt: skip
    """Run all chains that are drawn; ``q`` becomes their labelling.  # (chains, size)

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
                            if agree is not None:
                                change_agreements(agree, offset, kept, i, old, new)
                            if tables is not None:
                                change_tables(tables, offset, kept, i, old, new)
            for i in range(n):
                for l in range(offset[i], offset[i + 1]):
                    q[b, l] = 1.0 if l - offset[i] == label[i] else 0.0
