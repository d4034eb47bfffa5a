"""Compiled iterations of dense fields: pixels with equal labels, filtered with lattices.

One pass over the pixels does it all: slice what each sees on the lattices, move its natural
parameters, take the softmax, and splat the new marginals for the next iteration. Neither the
gradient nor (where the step is full) the natural parameters are ever stored.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled import simd
from proxfield.core.compiled.jit import embedded, inlined, parallel_kernel
from proxfield.core.compiled.math import exp_nonpositive
from proxfield.core.engines.numba.kinds import Motion, move_variable, proximal
from proxfield.core.filters.numba.lattice import CHUNK, RUN, Chunks, Rows

OUT = 1e30
"""Stands in the padding, where exp(−x) must be 0."""


class DensePack(NamedTuple):
    """The field: pixels come first in its flat arrays."""

    labels: int
    width: int  # labels, padded to whole groups of lanes
    corners: Ints  # of each lattice
    unary: Floats  # (size,)


class LatticeArrays(NamedTuple):
    """Lattices as `advance` reads them, flat arrays; for `advance_pair`, arrays as they are.

    Tuples may be longer than there are lattices; see `dense_views.together`.
    """

    row: tuple[Rows, ...]
    weight: tuple[NDArray[np.float32], ...]
    chunk: tuple[Ints, ...]
    factor_in: tuple[Floats, ...]
    factor_out: tuple[Floats, ...]
    rows: tuple[Floats, ...]  # values as splatted, or to slice from
    number: int  # of lattices
    longest: int  # rows of the largest chunk, of all lattices together


class Own(NamedTuple):
    """Self-messages to take out."""

    weight: Floats  # of each point for each term  # (k, n)
    table: Floats  # their compatibilities  # (k, labels, labels)
    diagonal: bool  # are all of those diagonal?


class DenseArrays(NamedTuple):
    """The state; an array that a rule doesn't need has length 0."""

    old: Floats  # (size,)
    new: Floats  # (size,); may be ``old`` itself
    theta: Floats
    u: Floats
    v: Floats
    shift: Floats  # gradient of terms without a lattice, or empty


class How(NamedTuple):
    """What `advance` shall do, as plain numbers; the values here are those of a full step."""

    trace: bool = False  # find energy and entropy?
    mean: bool = False  # average marginals?
    flat: float = 1.0  # the step if all are equal, else 0
    # for full steps only:
    look: bool = False  # change nothing: find energy, entropy and gradient of the old marginals
    blind: bool = False  # don't look at the marginals before; the change is then +inf
    passing: bool = False  # don't store the new ones either, only splat them
    given: bool = False  # splat the old marginals, and nothing else


@inlined
def take_own(own: Own, labels: int, q: Floats, width: int, i0: int, i1: int, g: Floats) -> None:
    """Subtract the self-messages from the filtered values of pixels i0 to i1."""
    weight, table, diagonal = own
    for t in range(len(weight)):
        for i in range(i0, i1):
            w = weight[t, i]
            at = (i - i0) * width
            if diagonal:
                for l in range(labels):
                    g[at + l] -= w * table[t, l, l] * q[i * labels + l]
            else:
                for m in range(labels):
                    p = w * q[i * labels + m]
                    for l in range(labels):
                        g[at + l] -= p * table[t, m, l]


@inlined
def energy_of(
    unary: Floats, q: Floats, labels: int, i0: int, i1: int, width: int, g: Floats
) -> float:
    """⟨q, unary + ½ g⟩ of some pixels; g are their filtered values."""
    out = 0.0
    for i in range(i0, i1):
        out += np.float64(simd.expected(g, (i - i0) * width, q, i * labels, unary, labels))
    return out


class Damping(NamedTuple):
    """What a proximal step needs of a `Motion`."""

    step: Floats  # (n,)
    beta: float


@inlined
def center(theta: Floats, o: int, g: Floats, at: int, labels: int) -> None:
    """Shift one pixel's natural parameters to have minimum 0, and copy them."""
    low = theta[o]
    for l in range(1, labels):
        low = min(low, theta[o + l])
    for l in range(labels):
        if low < np.inf:
            theta[o + l] -= low
        g[at + l] = theta[o + l]


@embedded
def damp_proximal(
    theta: Floats, damping: Damping, labels: int, i0: int, i1: int, width: int, g: Floats
) -> None:
    """`damp` for proximal steps alone, the commonest: compiles in half the time."""
    step, beta = damping
    for i in range(i0, i1):
        at, o = (i - i0) * width, i * labels
        for l in range(labels):
            target = np.float64(beta * g[at + l])
            if target == np.inf:  # impossible: q = 0
                theta[o + l] = np.inf
            else:
                t = np.float64(theta[o + l]) if theta[o + l] < np.inf else target
                theta[o + l] = proximal(t, target, np.float64(step[i]))
        center(theta, o, g, at, labels)


@embedded
def damp(
    st: DenseArrays, motion: Motion, labels: int, i0: int, i1: int, width: int, g: Floats
) -> None:
    """Gradients of some pixels → natural parameters, by the rules that keep those."""
    theta, u, v = st.theta, st.u, st.v
    beta, steps = motion.beta, motion.step
    for i in range(i0, i1):
        at, o = (i - i0) * width, i * labels
        if (motion.mean and motion.moments == 0) or len(theta) == 0:
            for l in range(labels):
                g[at + l] *= beta
            continue
        move_variable(motion, np.float64(steps[i]), theta, g, u, v, o, at, labels)
        center(theta, o, g, at, labels)


@inlined
def average(
    st: DenseArrays, mix: float, labels: int, i: int, trace: bool, g: Floats, e: Floats, at: int
) -> float:
    """Mix new marginals (in ``e``) with the old; returns the entropy if there is a trace."""
    o = i * labels
    whole, entropy = 1.0, 0.0
    for l in range(labels):
        if g[at + l] == np.inf:  # weight that an impossible label still had goes to the others
            whole -= (1.0 - mix) * st.old[o + l]
    for l in range(labels):
        p = 0.0
        if g[at + l] < np.inf:
            p = ((1.0 - mix) * np.float64(st.old[o + l]) + mix * e[at + l]) / whole
        e[at + l] = p
        if trace and p > 0.0:
            entropy -= p * np.log(p)
    return entropy


@inlined
def add_unary(
    unary: Floats, shift: Floats, labels: int, i0: int, i1: int, width: int, g: Floats
) -> None:
    """Add unary energies (and a shift) to the filtered values; padding gets `OUT`."""
    for i in range(i0, i1):
        at, o = (i - i0) * width, i * labels
        if len(shift) > 0:
            for l in range(0, width, simd.LANES):
                simd.add_masked(g, at + l, shift, o + l, labels - l, OUT)
        for l in range(0, width, simd.LANES):
            simd.add_masked(g, at + l, unary, o + l, labels - l, OUT)


@inlined
def exponentials(pixels: int, width: int, g: Floats, e: Floats) -> None:
    """Shift each row to have minimum 0, then e = exp(−g)."""
    for r in range(pixels):
        at = r * width
        low = simd.least(g, at, width)
        if low < np.inf:
            for l in range(0, width, simd.LANES):
                simd.scale(g, at + l, 1.0, -low)
    for k in range(pixels * width):
        e[k] = exp_nonpositive(-g[k])


@inlined
def entropy_of(q: Floats, first: int, end: int) -> float:
    """−Σ q log q of some entries."""
    out = 0.0
    for k in range(first, end):
        if q[k] > 0:
            out -= np.float64(q[k] * np.log(q[k]))
    return out


@parallel_kernel
def advance(
    pack: DensePack, st: DenseArrays, chunks: Chunks, lattices: LatticeArrays, own: Own | None,
    damping: Damping | None, motion: Motion | None, how: How, gradient: Floats, step: Floats,
    parts: Doubles,
) -> None:  # fmt: skip
    """One iteration: rows to slice from → new marginals → rows as splatted.

    parts: (energy before, entropy after, change, difference from two before) of each chunk.
    own: `Own`, or None where self-messages stay.
    damping: `Damping`, or None where the step is full or another rule's.
    motion: `Motion`, or None. If both are None, q = softmax(−g), where no natural parameters are
        kept and no marginals averaged. What an argument is needed for isn't compiled where it is
        None.
    step: Of each pixel; read only where steps differ.  # (n,)
    gradient: Written if ``how.look``, unless it is empty.  # (size,)
    """
    run, first, end = chunks
    labels, width, corners, unary = pack
    row, weight, chunk, factor_in, factor_out, rows, _, longest = lattices
    # each array by a name of its own: fetching one from a tuple counts references, atomically
    old, new, shift = st.old, st.new, st.shift
    trace, mean, flat, look, blind, passing, given = how
    for c in numba.prange(len(parts)):
        g = np.empty(RUN * width, dtype=unary.dtype)
        e = np.empty(RUN * width, dtype=unary.dtype)
        peak = np.zeros(2 * simd.LANES, dtype=unary.dtype)
        energy, entropy, change, twice = 0.0, 0.0, 0.0, 0.0
        # new marginals are splatted here, since pixels still to come slice from the rows
        fresh = np.empty(0 if look else longest * width, dtype=unary.dtype)
        for k in range(0, len(fresh), simd.LANES):
            simd.clear(fresh, k)
        for r in range(run[c], run[c + 1]):
            i0, i1 = first[r], end[r]
            for k in range(0, (i1 - i0) * width, simd.LANES):
                simd.clear(g, k)
            for t in range(0 if given else len(corners)):
                near, near_weight, outward, seen = row[t], weight[t], factor_out[t], rows[t]
                first_row, count = chunk[t][c], corners[t]
                for i in range(i0, i1):
                    simd.gather_row(
                        g, (i - i0) * width, seen, width, near, near_weight, i * count, count,
                        first_row, outward[i],
                    )  # fmt: skip
            if own is not None:
                take_own(own, labels, old, width, i0, i1, g)
            if trace:
                energy += energy_of(unary, old, labels, i0, i1, width, g)
            add_unary(unary, shift, labels, i0, i1, width, g)
            if damping is not None:
                damp_proximal(st.theta, damping, labels, i0, i1, width, g)
            if motion is not None:
                damp(st, motion, labels, i0, i1, width, g)
            if look:
                entropy += entropy_of(old, i0 * labels, i1 * labels)
                for i in range(i0, i1 if len(gradient) > 0 else i0):
                    simd.store_row(gradient, i * labels, g, (i - i0) * width, labels)
                continue
            if given:
                for i in range(i0, i1):
                    simd.load_row(e, (i - i0) * width, old, i * labels, labels)
            else:
                exponentials(i1 - i0, width, g, e)
            for i in range(i0, i0 if given else i1):
                at, o = (i - i0) * width, i * labels
                whole = simd.total(e, at, width)
                if whole == 0:  # no label is possible: the marginals stay
                    for l in range(labels):
                        e[at + l] = old[o + l]
                else:
                    if trace and not mean:
                        shifted = np.float64(simd.weighted(e, g, at, width)) / whole
                        entropy += np.log(np.float64(whole)) + shifted
                    for l in range(0, width, simd.LANES):
                        simd.scale(e, at + l, 1.0 / whole, 0.0)
                    if motion is not None:  # noqa: SIM102 (together, None wouldn't be left out)
                        if mean:
                            entropy += average(st, motion.step[i], labels, i, trace, g, e, at)
                if not blind:
                    simd.replace_row(peak, e, at, old, new, o, labels)
                if blind and not passing:
                    simd.store_row(new, o, e, at, labels)
                if flat == 0.0:  # steps differ: divide each variable's change by its own
                    for l in range(simd.LANES):
                        change = max(change, np.float64(peak[l]) / step[i])
                        twice = max(twice, np.float64(peak[simd.LANES + l]) / step[i])
                        if peak[l] != peak[l]:
                            change = np.inf
                        peak[l] = 0.0
                        peak[simd.LANES + l] = 0.0
            begin = np.int64(0)
            for t in range(len(corners)):
                near, near_weight, inward, count = row[t], weight[t], factor_in[t], corners[t]
                for i in range(i0, i1):
                    simd.scatter_row(
                        fresh, e, (i - i0) * width, width, near, near_weight, i * count, count,
                        begin, inward[i],
                    )  # fmt: skip
                begin += chunk[t][c + 1] - chunk[t][c]
        begin = np.int64(0)
        for t in range(0 if look else len(corners)):
            target = rows[t]
            to, numbers = chunk[t][c] * width, (chunk[t][c + 1] - chunk[t][c]) * width
            for k in range(0, numbers, simd.LANES):
                simd.put_scaled(target, to + k, fresh, begin + k, 1.0)
            begin += numbers
        if flat != 0.0:
            for l in range(simd.LANES):
                change = max(change, np.float64(peak[l]) / flat)
                twice = max(twice, np.float64(peak[simd.LANES + l]) / flat)
                if peak[l] != peak[l]:
                    change = np.inf
        parts[c, 0] = energy
        parts[c, 1] = entropy
        parts[c, 2] = np.inf if blind else change if change < np.inf else np.nan
        parts[c, 3] = twice


def dot(a: Floats, b: Floats) -> float:
    """⟨a, b⟩ in float64, by chunks in order; 0 · inf is 0."""
    parts = np.zeros((len(a) + CHUNK - 1) // CHUNK)
    dot_parts(a, b, parts)
    return float(parts.sum())


@parallel_kernel
def dot_parts(a: Floats, b: Floats, parts: Doubles) -> None:
    """`dot` of each chunk."""
    for c in numba.prange(len(parts)):
        total = 0.0
        for k in range(c * CHUNK, min(len(a), (c + 1) * CHUNK)):
            total += np.float64(a[k] * b[k]) if a[k] != 0 else 0.0
        parts[c] = total


def transpose(a: Floats, out: Floats) -> bool:
    """out = aᵀ, in tiles that stay in cache; returns whether all numbers are finite.

    # (labels, n) -> (n, labels)
    """
    odd = np.zeros((a.shape[1] + RUN - 1) // RUN, dtype=np.bool_)
    transpose_tiles(a, out, odd)
    return not odd.any()


@parallel_kernel
def transpose_tiles(a: Floats, out: Floats, odd: NDArray[np.bool_]) -> None:
    """`transpose`; says of each tile whether some number isn't finite."""
    labels, n = a.shape
    for task in numba.prange(len(odd)):
        worst = a.dtype.type(0.0)
        for i0 in range(task * RUN, min(n, (task + 1) * RUN), simd.LANES):
            i1 = min(n, i0 + simd.LANES)
            for l in range(labels):
                for i in range(i0, i1):
                    out[i, l] = a[l, i]
                    worst += abs(a[l, i] * a.dtype.type(0.0))  # 0, or NaN
        odd[task] = worst != 0
