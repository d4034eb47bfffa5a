"""What moves of labellings of any field are made of: local energies, messages, draws.

Everything is in energies, and exponentials are of differences from the lowest: temperatures may be
close to 0. Kinds of energies that a field doesn't have are None, and aren't compiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import merged
from proxfield.core.compiled.math import exp_single
from proxfield.core.engines.numba.general import GeneralPack

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


class Energies(NamedTuple):
    """A field, as drawn chains read it."""

    offset: Ints
    unary: Floats
    agree: Agreements | None
    tables: EdgeTables | None
    larger: Larger | None


def energies_of(pack: GeneralPack) -> Energies:
    """The parts of a packed field that it has."""
    agree = Agreements(pack.agree_row, pack.agree_column, pack.agree_weight)
    tables = EdgeTables(pack.table_row, pack.table_column, pack.table_start, pack.table)
    larger = Larger(
        pack.slot_row, pack.slot_list, pack.slot_factor, pack.factor_slot, pack.slot_variable,
        pack.factor_start, pack.table,
    )  # fmt: skip
    return Energies(
        pack.offset,
        pack.unary,
        agree if len(agree.column) else None,
        tables if len(tables.column) else None,
        larger if len(larger.slots) else None,
    )


@merged
def exp_of(x: float) -> float:
    """exp(x) for x ≤ 0; single precision is enough for probabilities of draws."""
    return float(exp_single(np.float32(x)))


@merged
def add_agreements(
    agree: Agreements, label: Labels, forest: Marks, mark: int, i: int, out: Doubles
) -> None:
    """Add energies of a variable's labels with all neighbors that don't have the mark."""
    for e in range(agree.row[i], agree.row[i + 1]):
        j = agree.column[e]
        if label[j] < len(out) and forest[j] & mark == 0:
            out[label[j]] += agree.weight[e]


@merged
def add_tables(
    tables: EdgeTables, offset: Ints, label: Labels, forest: Marks, mark: int, i: int, out: Doubles
) -> None:
    """Add energies of a variable's labels by pairwise tables, without neighbors with the mark."""
    for e in range(tables.row[i], tables.row[i + 1]):
        j = tables.column[e]
        if forest[j] & mark == 0:
            width = offset[j + 1] - offset[j]
            add_column(tables.value, tables.start[e], label[j], width, out)


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
def change_agreements(
    agree: Agreements, offset: Ints, kept: Doubles, i: int, old: int, new: int
) -> None:
    """Update the energies kept for the neighbors of a variable that changes its label."""
    for e in range(agree.row[i], agree.row[i + 1]):
        o, end = offset[agree.column[e]], offset[agree.column[e] + 1]
        if o + old < end:
            kept[o + old] -= agree.weight[e]
        if o + new < end:
            kept[o + new] += agree.weight[e]


@merged
def change_tables(
    tables: EdgeTables, offset: Ints, kept: Doubles, i: int, old: int, new: int
) -> None:
    """Update the energies of the neighbors' labels by tables, after a label has changed."""
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
