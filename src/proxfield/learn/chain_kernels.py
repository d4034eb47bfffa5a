"""Compiled chains over a `Structure`: Gibbs sweeps, and counts of labellings."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.core.compiled.jit import kernel
from proxfield.core.compiled.math import exp_negative
from proxfield.core.compiled.random import uniform


@kernel
def count_labels(
    base: Any, kind: Any, strides: Any, variables: Any, x: Any, share: float, out: Any
) -> None:
    """Add ``share`` to the entry of w that each factor has at a labelling."""
    k = variables.shape[1]
    for e in range(len(base)):
        at = np.int64(base[e])
        for p in range(k):
            at += x[variables[e, p]] * strides[kind[e], p]
        out[at] += share


@kernel
def gibbs(
    w: Any, unary: Any, offsets: Any, ptr: Any, slot: Any, place: Any, scope_ptr: Any, scope: Any,
    base: Any, kind: Any, strides: Any, held: Any, seed: Any, counter: Any, x: Any,
) -> None:  # fmt: skip
    """One Gibbs sweep: each variable that isn't held draws its label given all others.

    Args:
        w: Tables.
        unary: Energies of single variables.  # (size,)
        offsets: First entry of each variable.
        ptr: First slot of each variable; a slot is a factor and a position in its scope.
        slot: The factor of each slot.
        place: The position of each slot.
        scope_ptr: First variable of each factor's scope.
        scope: Variables of the scopes.
        base: Base of each factor in w.
        kind: Kind of each factor.
        strides: Strides of each kind.
        held: Variables that keep their labels.  # (n,)
        seed: Random seed, uint64.
        counter: Number of the first random number, uint64.
        x: Labels, changed in place.  # (n,)
    """
    n = len(offsets) - 1
    largest = 0
    for v in range(n):
        largest = max(largest, offsets[v + 1] - offsets[v])
    energy = np.empty(largest)
    for v in range(n):
        if held[v]:
            continue
        first = offsets[v]
        labels = offsets[v + 1] - first
        for l in range(labels):
            energy[l] = unary[first + l]
        for s in range(ptr[v], ptr[v + 1]):
            e, p = slot[s], place[s]
            at = np.int64(base[e])
            begin = scope_ptr[e]
            for r in range(scope_ptr[e + 1] - begin):
                if r != p:
                    at += x[scope[begin + r]] * strides[kind[e], r]
            step = strides[kind[e], p]
            for l in range(labels):
                energy[l] += w[at + l * step]
        low = energy[0]
        for l in range(1, labels):
            low = min(low, energy[l])
        total = 0.0
        for l in range(labels):
            total += exp_negative(low - energy[l])
            energy[l] = total  # cumulative weights; the old entry isn't needed again
        draw = uniform(seed, counter + np.uint64(v)) * total
        label = 0
        while label < labels - 1 and energy[label] <= draw:
            label += 1
        x[v] = label


@kernel
def gibbs_binary(
    h: Any, ptr: Any, other: Any, j: Any, held: Any, seed: Any, counter: Any, x: Any
) -> None:
    """`gibbs` for binary variables and pairs, as spins: E = Σ h s + Σ J s t.

    Args:
        h: Fields.  # (n,)
        ptr: First slot of each variable; a slot is a neighbor.
        other: The neighbor of each slot.
        j: The coupling of each slot.
        held: Variables that keep their labels.  # (n,)
        seed: Random seed, uint64.
        counter: Number of the first random number, uint64.
        x: Labels, changed in place.  # (n,)
    """
    n = len(h)
    spin = np.empty(n)
    for v in range(n):
        spin[v] = 2.0 * x[v] - 1.0
    for v in range(n):
        if held[v]:
            continue
        force = h[v]
        for s in range(ptr[v], ptr[v + 1]):
            force += j[s] * spin[other[s]]
        e = exp_negative(-2.0 * abs(force))
        low = 1.0 / (1.0 + e)
        first = low if force >= 0 else e * low  # the probability of label 0
        x[v] = 0 if uniform(seed, counter + np.uint64(v)) < first else 1
        spin[v] = 2.0 * x[v] - 1.0
