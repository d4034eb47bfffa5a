"""What every compiled update shares: the formula of each kind of rule, for one entry.

`moved` (with `proximal`) is the only compiled function that knows formulas. Kernels ask a `Motion`
for what else they have to know of a kind: its moments, its space, whether it centers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from proxfield.core.common.arrays import Floats
from proxfield.core.compiled.jit import embedded, inlined
from proxfield.core.engines.plan import Kind

PROXIMAL = int(Kind.PROXIMAL)
MEAN = int(Kind.MEAN)
MOMENTUM = int(Kind.MOMENTUM)
MOMENTUM_PRINTED = int(Kind.MOMENTUM_PRINTED)
ADAM = int(Kind.ADAM)
ADAM_PRINTED = int(Kind.ADAM_PRINTED)


class Motion(NamedTuple):
    """An `Update` as plain numbers."""

    kind: int
    moments: int
    mean: bool  # does it average marginals?
    centered: bool
    step: Floats  # (n,)
    inverse: Floats  # 1 / step = 1 + damping  # (n,)
    fallback: Floats  # a certified step, for redoing one that raised F  # (n,)
    flat: float  # the step if all are equal, else 0: saves reading two arrays
    gamma1: float
    gamma2: float
    epsilon: float
    adaptive: bool
    beta: float
    trace: bool
    slack: float  # relative to 1 + |F|


class Rates(NamedTuple):
    """The numbers that formulas use; a `Motion` holds arrays too, whose references are counted."""

    gamma1: float
    gamma2: float
    epsilon: float


@inlined
def rates_of(motion: Motion) -> Rates:
    """Those of a rule."""
    return Rates(motion.gamma1, motion.gamma2, motion.epsilon)


class Means(NamedTuple):
    """Means over a variable's possible labels, 0 unless the kind centers."""

    residual: float | np.float32
    target: float | np.float32
    theta: float | np.float32


CENTERED = Means(np.float32(0.0), np.float32(0.0), np.float32(0.0))
"""Of values that are centered already; of the narrower type, to leave that of the values alone."""


@embedded
def proximal(t: float, target: float, step: float) -> float:
    """The new θ by a damped step."""
    return t - step * (t - target)


@embedded
def moved(
    rates: Rates, kind: int, t: float, target: float, u: Floats, v: Floats, at: int, step: float,
    mean: Means,
) -> float:  # fmt: skip
    """The new θ of one entry, from θ, θ* and the step; moments at ``at`` are moved on in place.

    The kind comes apart from the rates: it is a constant where kernels have a loop for each.
    """
    g1, g2, eps = rates
    if kind == PROXIMAL:
        return proximal(t, target, step)
    elif kind == MEAN:
        return target
    elif kind == MOMENTUM:
        u[at] = g1 * u[at] + (1.0 - g1) * (t - target)
        return t - step * u[at]
    elif kind == MOMENTUM_PRINTED:
        u[at] = g1 * u[at] + (1.0 - g1) * target
        return t - step * (t - u[at])
    elif kind == ADAM:
        r = t - target - mean.residual
        u[at] = g1 * u[at] + (1.0 - g1) * r
        v[at] = g2 * v[at] + (1.0 - g2) * r * r
        return t - step * u[at] / (np.sqrt(v[at]) + eps)
    elif kind == ADAM_PRINTED:
        r = target - mean.target
        u[at] = g1 * u[at] + (1.0 - g1) * r
        v[at] = (1.0 - g2) * v[at] + g2 * r * r
        return t - step * (t - mean.theta - u[at]) / (np.sqrt(v[at]) + eps)
    return np.nan


@inlined
def move_variable(
    motion: Motion, step: float, theta: Floats, g: Floats, u: Floats, v: Floats, o: int, at: int,
    c: int,
) -> None:  # fmt: skip
    """New θ of one variable with c labels by the rule.

    Its entries of θ and (for kinds that have them) of both moments are those from ``o`` on, and
    its gradient is from ``at`` on in ``g``.
    """
    beta, kind, rates = motion.beta, motion.kind, rates_of(motion)
    residuals, targets, thetas, possible = 0.0, 0.0, 0.0, 0
    if motion.centered:
        for l in range(c):
            if g[at + l] < np.inf and theta[o + l] < np.inf:
                residuals += theta[o + l] - beta * g[at + l]
                thetas += theta[o + l]
                possible += 1
        for l in range(c):  # apart: a product with two uses would be rounded otherwise
            if g[at + l] < np.inf and theta[o + l] < np.inf:
                targets += beta * g[at + l]
        residuals /= max(1, possible)
        targets /= max(1, possible)
        thetas /= max(1, possible)
    mean = Means(residuals, targets, thetas)
    for l in range(c):
        if g[at + l] == np.inf:  # impossible: q = 0
            theta[o + l] = np.inf
            continue
        target = np.float64(beta * g[at + l])
        t = np.float64(theta[o + l]) if theta[o + l] < np.inf else target
        theta[o + l] = moved(rates, kind, t, target, u, v, o + l, step, mean)


BlockMove = Callable[[Motion, Floats, Floats, Floats, Floats, Floats], None]
"""Moves ``a`` of a block by (motion, a, g, first moments, second moments, step)."""


def difference_move(kind: Kind) -> Callable[..., float]:
    """A binary variable's new a = θ(1) − θ(0) by one kind, a constant to the compiler."""
    number, centered = int(kind), kind.centered

    @embedded
    def move(
        rates: Rates, a: float, target: float, u: Floats, v: Floats, k: int, step: float
    ) -> float:
        if centered:  # of the two labels' natural parameters: ±a/2
            t, size = np.float32(0.5) * a, np.float64(step)
            return 2.0 * moved(rates, number, t, 0.5 * target, u, v, k, size, CENTERED)
        return moved(rates, number, a, target, u, v, k, step, CENTERED)

    return move


def block_move(kind: Kind, others: BlockMove) -> BlockMove:
    """New θ of a block of variables by one kind; rules of other kinds go to ``others``.

    Each kind has loops of its own, which run at vector speed.
    """
    number, moments = int(kind), kind.moments
    difference = difference_move(kind)

    @inlined
    def move(
        motion: Motion, a: Floats, g: Floats, first: Floats, second: Floats, step: Floats
    ) -> None:
        beta, flat, rates = motion.beta, motion.flat, rates_of(motion)
        if motion.kind != number:
            others(motion, a, g, first, second, step)
        elif moments == 0 and flat > 0.0:
            for k in range(len(a)):
                a[k] = difference(rates, a[k], beta * g[k], first, second, k, flat)
        else:
            for k in range(len(a)):
                a[k] = difference(rates, a[k], beta * g[k], first, second, k, step[k])

    return move


@inlined
def no_move(
    motion: Motion, a: Floats, g: Floats, first: Floats, second: Floats, step: Floats
) -> None:
    """For kinds that don't exist."""


# new ``a`` of a block by a rule of any kind that moves θ; the commonest is asked for first
move_differences = no_move
for _kind in reversed(Kind):
    if not _kind.averages_marginals:
        move_differences = block_move(_kind, move_differences)
