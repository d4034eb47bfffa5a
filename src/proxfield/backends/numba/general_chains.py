"""Compiled chains that sample labellings of any field.

One variable at a time: a chain keeps the energy that every label of every variable has by unary
and pairwise energies, and updates those of the neighbors when a label changes. Tables over more
variables are read at each visit; where configurations are forbidden, everything is. A visit
computes exponentials only where its random number leaves a change possible.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.backends.numba.draws import BLOCK, logits, temperature_at
from proxfield.backends.numba.general import GeneralPack
from proxfield.backends.numba.general_forests import (
    GeneralForests,
    draw_label,
    factors_into,
    local_into,
    pairs_into,
    sample_forest,
)
from proxfield.backends.numba.general_sweep import widest
from proxfield.compiled.jit import inlined, parallel_kernel
from proxfield.compiled.random import uniform
from proxfield.terms.base import Doubles, Floats, Ints

Labels = NDArray[np.int32]
Marks = NDArray[np.bool_]


@inlined
def change_label(pack: GeneralPack, label: Labels, kept: Doubles, i: int, new: int) -> None:
    """Give a variable a label and update the energies kept for its neighbors."""
    old = label[i]
    label[i] = new
    c = pack.offset[i + 1] - pack.offset[i]
    for e in range(pack.agree_row[i], pack.agree_row[i + 1]):
        o = pack.offset[pack.agree_column[e]]
        d = pack.offset[pack.agree_column[e] + 1] - o
        if old < d:
            kept[o + old] -= pack.agree_weight[e]
        if new < d:
            kept[o + new] += pack.agree_weight[e]
    for e in range(pack.table_row[i], pack.table_row[i + 1]):
        o = pack.offset[pack.table_column[e]]
        d = pack.offset[pack.table_column[e] + 1] - o
        start = pack.table_start[e]
        if start >= 0:
            for m in range(d):
                gone = np.float64(pack.table[start + old * d + m])
                kept[o + m] += pack.table[start + new * d + m] - gone
        else:
            start = -1 - start
            for m in range(d):
                gone = np.float64(pack.table[start + m * c + old])
                kept[o + m] += pack.table[start + m * c + new] - gone


@inlined
def stays(energy: Doubles, held: int, margin: float) -> bool:
    """Whether every other label costs at least ``margin`` more than the one that is held."""
    for l in range(len(energy)):
        if l != held and not energy[l] - energy[held] > margin:
            return False
    return True


@inlined
def visit_all(
    pack: GeneralPack, label: Labels, kept: Doubles, nobody: Marks, seed: np.uint64,
    first: np.uint64, heat: float, r: Doubles, out: Doubles, margins: Doubles,
) -> None:  # fmt: skip
    """A heat-bath move of one variable after another.

    A label whose c − 1 rivals cost at least δ more has all of [ε, 1 − ε] in the cumulative
    distribution, ε = (c − 1) exp(−δ/T). So it stays if δ > T (|log(u / (1 − u))| + log 2(c − 1)).
    """
    n = len(label)
    for begin in range(0, n, BLOCK):
        count = min(BLOCK, n - begin)
        logits(seed, first + np.uint64(begin), count, heat, r)
        for k in range(count):
            i = begin + k
            o, end = pack.offset[i], pack.offset[i + 1]
            c = end - o
            if c == 1:
                continue
            margin = abs(r[k]) + heat * margins[c]
            energy = out[:c]
            if pack.hard:
                local_into(pack, label, nobody, i, energy)
            elif pack.slot_row[i] < pack.slot_row[i + 1]:
                for l in range(c):
                    energy[l] = kept[o + l]
                factors_into(pack, label, i, energy)
            else:
                energy = kept[o:end]
            if stays(energy, label[i], margin):
                continue
            u = uniform(seed, first + np.uint64(i))
            new = draw_label(energy, heat, u, label[i], out)
            if new != label[i]:
                if pack.hard:
                    label[i] = new
                else:
                    change_label(pack, label, kept, i, new)


@inlined
def begin_chain(
    pack: GeneralPack, q: Floats, seed: np.uint64, label: Labels, kept: Doubles, nobody: Marks
) -> None:
    """Draw a labelling from the marginals, and make the energies that are kept."""
    n = len(label)
    for i in range(n):
        o, end = pack.offset[i], pack.offset[i + 1]
        total = 0.0
        for l in range(o, end):  # impossible labels go first
            total += 0.0 if pack.unary[l] == np.inf else np.float64(q[l])
        even = total == 0.0  # all weight was on impossible labels: the others share it
        if even:
            for l in range(o, end):
                total += 0.0 if pack.unary[l] == np.inf else 1.0
        rest = uniform(seed, np.uint64(i)) * total
        label[i] = 0
        for l in range(o, end):
            weight = 0.0 if pack.unary[l] == np.inf else (1.0 if even else np.float64(q[l]))
            if weight > 0.0:  # the last one with weight, if rounding leaves something
                label[i] = l - o
                rest -= weight
                if rest < 0.0:
                    break
    if not pack.hard:
        for i in range(n):
            o, end = pack.offset[i], pack.offset[i + 1]
            pairs_into(pack, label, nobody, i, kept[o:end])


@parallel_kernel
def draw_general(
    pack: GeneralPack, forests: GeneralForests, q: Floats, hot: Doubles, cold: Doubles,
    sweeps: Ints, seeds: NDArray[np.uint64], drawn: NDArray[np.bool_],
    by_forests: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Run all chains that are drawn; ``q`` becomes their labelling.  # q: (chains, size)"""
    for b in numba.prange(len(hot)):
        if drawn[b]:
            n, seed, wide = len(pack.offset) - 1, seeds[b], widest(pack)
            label, nobody = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.bool_)
            kept, r, out = np.empty(len(pack.unary)), np.empty(BLOCK), np.empty(2 * wide)
            margins = np.zeros(wide + 1)
            for c in range(2, wide + 1):
                margins[c] = np.log(2.0 * (c - 1.0))
            begin_chain(pack, q[b], seed, label, kept, nobody)
            for t in range(sweeps[b]):
                heat = temperature_at(t, sweeps[b], hot[b], cold[b])
                first = np.uint64(n) * np.uint64(t + 1)
                if by_forests[b]:
                    which = np.int64((seed + np.uint64(t)) % np.uint64(len(forests.start) - 1))
                    sample_forest(pack, forests, which, label, nobody, seed, first, heat, kept, out)
                else:
                    visit_all(pack, label, kept, nobody, seed, first, heat, r, out, margins)
            for i in range(n):
                for l in range(pack.offset[i], pack.offset[i + 1]):
                    q[b, l] = 1.0 if l - pack.offset[i] == label[i] else 0.0
