"""Compiled forest moves of any field: sample all variables of an induced forest given the others.

Messages go from the leaves to the roots, labels from the roots to the leaves. Everything is in
energies, and exponentials are of differences from the lowest: temperatures may be close to 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.numba.general import GeneralPack
from proxfield.compiled.jit import inlined, kernel
from proxfield.compiled.math import exp_negative
from proxfield.compiled.random import uniform
from proxfield.lowering.forests import Forests
from proxfield.terms.base import Doubles, Ints

Labels = NDArray[np.int32]
Marks = NDArray[np.bool_]


class GeneralForests(NamedTuple):
    """`Forests` with what their moves read."""

    start: Ints  # first entry of each forest  # (forests + 1,)
    node: NDArray[np.int32]  # variables, children before their parents
    above: NDArray[np.int32]  # the parent; −1 at roots
    agree: Doubles  # energy of having the parent's label
    table_row: Ints  # starts of each one's tables with its parent  # (len(node) + 1,)
    table_start: Ints  # as in `GeneralPack`
    inside: Marks  # which variables a forest holds  # (forests, n)
    rest: NDArray[np.int32]  # variables to be visited one by one


def pack_general_forests(pack: GeneralPack, forests: Forests) -> GeneralForests:
    """Forests with the energies along their edges."""
    start, node, above, _, rest = forests
    inside = np.zeros((len(start) - 1, len(pack.offset) - 1), dtype=bool)
    inside[np.repeat(np.arange(len(start) - 1), np.diff(start)), node] = True
    agree, table_row = np.zeros(len(node)), np.zeros(len(node) + 1, dtype=np.int64)
    edge_energies(pack, node, above, agree, table_row, np.zeros(0, dtype=np.int64))
    table_start = np.zeros(int(table_row[-1]), dtype=np.int64)
    edge_energies(pack, node, above, agree, table_row, table_start)
    return GeneralForests(start, node, above, agree, table_row, table_start, inside, rest)


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


@inlined
def factors_into(pack: GeneralPack, label: Labels, i: int, out: Doubles) -> None:
    """Add the energies of a variable's labels in tables over three or more variables."""
    for k in range(pack.slot_row[i], pack.slot_row[i + 1]):
        s = pack.slot_list[k]
        f = pack.slot_factor[s]
        at, stride, own = pack.factor_start[f], np.int64(1), np.int64(1)
        for other in range(pack.factor_slot[f + 1] - 1, pack.factor_slot[f] - 1, -1):
            j = pack.slot_variable[other]
            if other == s:
                own = stride
            else:
                at += stride * label[j]
            stride *= pack.offset[j + 1] - pack.offset[j]
        for l in range(len(out)):
            out[l] += pack.table[at + l * own]


@inlined
def pairs_into(pack: GeneralPack, label: Labels, without: Marks, i: int, out: Doubles) -> None:
    """Energies of a variable's labels by itself and with all neighbors not in ``without``."""
    o = pack.offset[i]
    c = len(out)
    for l in range(c):
        out[l] = pack.unary[o + l]
    for e in range(pack.agree_row[i], pack.agree_row[i + 1]):
        j = pack.agree_column[e]
        if label[j] < c and not without[j]:
            out[label[j]] += pack.agree_weight[e]
    for e in range(pack.table_row[i], pack.table_row[i + 1]):
        j = pack.table_column[e]
        if without[j]:
            continue
        start = pack.table_start[e]
        if start >= 0:
            d = pack.offset[j + 1] - pack.offset[j]
            for l in range(c):
                out[l] += pack.table[start + l * d + label[j]]
        else:
            start = -1 - start + label[j] * c
            for l in range(c):
                out[l] += pack.table[start + l]


@inlined
def local_into(pack: GeneralPack, label: Labels, without: Marks, i: int, out: Doubles) -> None:
    """The same with tables over three or more variables."""
    pairs_into(pack, label, without, i, out)
    factors_into(pack, label, i, out)


@inlined
def draw_label(energy: Doubles, heat: float, u: float, held: int, weight: Doubles) -> int:
    """A label with probability ∝ exp(−energy / T); the one held if all are impossible.

    Args:
        energy: Of each label.
        heat: T.
        u: A random number in [0, 1).
        held: The label so far.
        weight: Room; may be where the energies are.
    """
    low = np.inf
    for l in range(len(energy)):
        low = min(low, energy[l])
    if low == np.inf:
        return held
    total = 0.0
    for l in range(len(energy)):
        weight[l] = exp_negative((low - energy[l]) / heat)
        total += weight[l]
    rest = u * total
    new = 0
    for l in range(len(energy)):
        if weight[l] > 0.0:  # the last one with weight, if rounding leaves something
            new = l
            rest -= weight[l]
            if rest < 0.0:
                break
    return new


@inlined
def edge_into(
    pack: GeneralPack, forests: GeneralForests, k: int, theirs: int, n_theirs: int, out: Doubles
) -> None:
    """Add the energies between a variable's labels and one label of its parent."""
    if theirs < len(out):
        out[theirs] += forests.agree[k]
    for e in range(forests.table_row[k], forests.table_row[k + 1]):
        start = forests.table_start[e]
        if start >= 0:
            for l in range(len(out)):
                out[l] += pack.table[start + l * n_theirs + theirs]
        else:
            start = -1 - start + theirs * len(out)
            for l in range(len(out)):
                out[l] += pack.table[start + l]


@inlined
def soft_minimum(energy: Doubles, heat: float) -> float:
    """−T log Σ exp(−energy / T)."""
    low = np.inf
    for l in range(len(energy)):
        low = min(low, energy[l])
    if low == np.inf:
        return low
    total = 0.0
    for l in range(len(energy)):
        total += exp_negative((low - energy[l]) / heat)
    return float(low - heat * np.log(total))


@inlined
def agree_message(energy: Doubles, agree: float, heat: float, rest: Doubles, out: Doubles) -> None:
    """Add to ``out`` what summing out a variable gives its parent, if it matters only whether
    they agree: −T log(Σ_{l ≠ m} exp(−e_l / T) + exp(−(e_m + w) / T)) for each label m.

    Args:
        energy: e.
        agree: w.
        heat: T.
        rest: Room.
        out: Energies of the parent's labels.
    """
    c = len(energy)
    best = 0
    for l in range(c):
        best = l if energy[l] < energy[best] else best
    low, second = energy[best], np.inf
    if low == np.inf:
        for m in range(len(out)):
            out[m] = np.inf
        return
    others, runners = 0.0, 0.0  # sums without the best, over exp of the best and of the second
    for l in range(c):
        second = min(second, np.inf if l == best else energy[l])
    for l in range(c):
        if l != best:
            rest[l] = exp_negative((low - energy[l]) / heat)
            others += rest[l]
            if second < np.inf:
                runners += exp_negative((second - energy[l]) / heat)
    whole = low - heat * np.log(1.0 + others)
    for m in range(len(out)):
        if m >= c:
            out[m] += whole
            continue
        if m != best:
            unequal = low - heat * np.log(1.0 + max(0.0, others - rest[m]))
        else:
            unequal = second - heat * np.log(runners) if second < np.inf else np.inf
        equal = energy[m] + agree
        least, most = min(unequal, equal), max(unequal, equal)
        if most - least < 40.0 * heat:
            least -= heat * np.log(1.0 + exp_negative((least - most) / heat))
        out[m] += least


@inlined
def sample_forest(
    pack: GeneralPack, forests: GeneralForests, which: int, label: Labels, nobody: Marks,
    seed: np.uint64, first: np.uint64, heat: float, a: Doubles, out: Doubles,
) -> None:  # fmt: skip
    """Sample all variables of a forest given the others.

    ``a`` holds the energies of each one's labels without the parent, children summed out.
    """
    start, end = forests.start[which], forests.start[which + 1]
    inside = forests.inside[which]
    for k in range(start, end):
        i = forests.node[k]
        local_into(pack, label, inside, i, a[pack.offset[i] : pack.offset[i + 1]])
    for k in range(start, end):
        p = forests.above[k]
        if p < 0:
            continue
        i = forests.node[k]
        o, op = pack.offset[i], pack.offset[p]
        c, d = pack.offset[i + 1] - o, pack.offset[p + 1] - op
        mine, theirs = a[o : o + c], a[op : op + d]
        if forests.table_row[k] == forests.table_row[k + 1]:
            agree_message(mine, forests.agree[k], heat, out, theirs)
        else:
            for m in range(d):
                for l in range(c):
                    out[l] = mine[l]
                edge_into(pack, forests, k, m, d, out[:c])
                theirs[m] += soft_minimum(out[:c], heat)
    for k in range(end - 1, start - 1, -1):
        i, p = forests.node[k], forests.above[k]
        o = pack.offset[i]
        mine = a[o : pack.offset[i + 1]]
        if p >= 0:
            d = pack.offset[p + 1] - pack.offset[p]
            edge_into(pack, forests, k, label[p], d, mine)
        u = uniform(seed, first + np.uint64(end - 1 - k))
        label[i] = draw_label(mine, heat, u, label[i], out)
    for k in range(len(forests.rest)):
        i = forests.rest[k]
        mine = out[: pack.offset[i + 1] - pack.offset[i]]
        local_into(pack, label, nobody, i, mine)
        u = uniform(seed, first + np.uint64(end - start + k))
        label[i] = draw_label(mine, heat, u, label[i], mine)
