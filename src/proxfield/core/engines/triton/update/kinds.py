# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The arithmetic of one update, which every iterating kernel on a GPU shares.

`moved` is the only kernel code that knows the formulas of the kinds of rules; all else asks for
sets of kinds.

Natural parameters are all a state holds: θ_l = −log q_l, normalized, so that q_l = exp(−θ_l)
without a sum. A rule may shift a variable's θ by any number without changing q, so nothing is
lost, and half as many bytes move as with q beside it. A binary variable holds one number,
x = ½ log(q_0 / q_1): its centered θ is (−x, x), so the rules read the same for x as for any label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from proxfield.core.devices.cuda import constant, constexpr, interpreted, jit, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import Kind

START_ZERO = 1e30
"""θ of a label without weight in a start: q = 0 exactly, but it moves as `START_THETA` does."""
START_THETA = 69.07755278982137
"""−log(1e-30): a start's zero would stay one under damping, so it counts as that instead."""
CLAMP = 500.0
"""|x| of a binary variable with an impossible label: its probability underflows to nothing."""
LOOK = len(Kind)
"""In place of a kind: leave F and the gradient, and move nothing."""


def kinds_where(test: Callable[[Kind], bool]) -> int:
    """The kinds that pass a test as bits of a number: kernels ask for ``(number >> KIND) & 1``.

    Example:
        >>> kinds_where(lambda kind: kind in (Kind.PROXIMAL, Kind.MOMENTUM))  # 2⁰ + 2²
        5
    """
    return sum(1 << kind for kind in Kind if test(kind))


_ZERO: constexpr = constant(START_ZERO)
_THETA: constexpr = constant(START_THETA)
_CLAMP: constexpr = constant(CLAMP)
_LOOK: constexpr = constant(LOOK)
_PROXIMAL: constexpr = constant(int(Kind.PROXIMAL))
_MEAN: constexpr = constant(int(Kind.MEAN))
_MOMENTUM: constexpr = constant(int(Kind.MOMENTUM))
_MOMENTUM_PRINTED: constexpr = constant(int(Kind.MOMENTUM_PRINTED))
_ADAM: constexpr = constant(int(Kind.ADAM))
_ADAM_PRINTED: constexpr = constant(int(Kind.ADAM_PRINTED))
# sets of kinds
_FIRST: constexpr = constant(kinds_where(lambda kind: kind.moments >= 1))
_SECOND: constexpr = constant(kinds_where(lambda kind: kind.moments >= 2))
_AVERAGES: constexpr = constant(kinds_where(lambda kind: kind.averages_marginals))
_CENTERED: constexpr = constant(kinds_where(lambda kind: kind.centered))
_NATIVE: constexpr = constant(not interpreted())


class RuleForm(NamedTuple):
    """What kernels that update are compiled for."""

    kind: int  # that of a rule, or `LOOK`
    adaptive: bool
    trace: bool  # is F of every state wanted?
    flat: bool  # has it one step for all variables?
    hard: bool  # are there impossible labels?


class Movement(NamedTuple):
    """What a rule moves with, in kernels' arguments: its moments, steps and numbers."""

    u: Tensor | None
    v: Tensor | None
    step: Tensor  # (n,)
    safe: Tensor  # (n,)
    parameters: Tensor  # see `board`  # (PARAMETERS,) float64


class Entries(NamedTuple):
    """Entries of a state: ``base`` + ``at``, and which of them there are."""

    base: Tensor
    at: Tensor
    inside: Tensor


class Numbers(NamedTuple):
    """The numbers of a plan, in the state's type."""

    beta: Tensor
    gamma1: Tensor
    gamma2: Tensor
    epsilon: Tensor


class Steps(NamedTuple):
    """The step of each variable, and a certified one, taken where ``redo`` is set."""

    size: Tensor
    safe: Tensor
    redo: Tensor


class LabelMeans(NamedTuple):
    """Means over a variable's possible labels; 0 where θ is centered anyway, or a kind doesn't ask
    for them."""

    residual: Tensor
    target: Tensor
    theta: Tensor


@jit
def instruction(y, ASSEMBLY: constexpr):
    """One instruction of a GPU on float32."""
    return tl.inline_asm_elementwise(ASSEMBLY, "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1)


@jit
def root(y):
    """√y; for float32 by the unit for it."""
    if _NATIVE and y.dtype == tl.float32:
        return instruction(y, "sqrt.approx.ftz.f32 $0, $1;")
    else:
        return tl.sqrt(y)


@jit
def moved(theta, target, u, v, step, numbers, mean, KIND: constexpr):
    """New natural parameters and moments: the formula of every `Kind`."""
    g1, g2, eps = numbers.gamma1, numbers.gamma2, numbers.epsilon
    if KIND == _LOOK:
        new = theta
    elif KIND == _PROXIMAL:
        new = theta - step * (theta - target)
    elif KIND == _MEAN:
        new = target
    elif KIND == _MOMENTUM:
        u = g1 * u + (1.0 - g1) * (theta - target)
        new = theta - step * u
    elif KIND == _MOMENTUM_PRINTED:
        u = g1 * u + (1.0 - g1) * target
        new = theta - step * (theta - u)
    elif KIND == _ADAM:
        r = theta - target - mean.residual
        u = g1 * u + (1.0 - g1) * r
        v = g2 * v + (1.0 - g2) * r * r
        new = theta - step * (u / (root(v) + eps))
    elif KIND == _ADAM_PRINTED:
        r = target - mean.target
        u = g1 * u + (1.0 - g1) * r
        v = (1.0 - g2) * v + g2 * r * r
        new = theta - step * ((theta - mean.theta - u) / (root(v) + eps))
    else:
        tl.static_assert(False, "a kind without a formula")
    return new, u, v


@jit
def fetch(pointers, inside, EVEN: constexpr):
    """Numbers, 0 outside; without masks where nothing is outside."""
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=inside, other=0.0)


@jit
def put(pointers, values, inside, EVEN: constexpr):
    """Store numbers; without masks where nothing is outside."""
    if EVEN:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=inside)


@jit
def fetch_moments(by, here, like, RULE: constexpr, EVEN: constexpr):
    """The moments that a kind keeps; ``like`` in place of others."""
    first = like
    second = like
    if (_FIRST >> RULE.kind) & 1:
        first = fetch(by.u + here.base + here.at, here.inside, EVEN)
    if (_SECOND >> RULE.kind) & 1:
        second = fetch(by.v + here.base + here.at, here.inside, EVEN)
    return first, second


@jit
def put_moments(by, here, first, second, RULE: constexpr, EVEN: constexpr):
    """Store the moments that a kind keeps."""
    if (_FIRST >> RULE.kind) & 1:
        put(by.u + here.base + here.at, first, here.inside, EVEN)
    if (_SECOND >> RULE.kind) & 1:
        put(by.v + here.base + here.at, second, here.inside, EVEN)


@jit
def reciprocal(y):
    """1 / y for y between 1 and a few thousands; one instruction for float32."""
    if _NATIVE and y.dtype == tl.float32:
        return instruction(y, "rcp.approx.ftz.f32 $0, $1;")
    else:
        return 1.0 / y


@jit
def ratio(x):
    """exp(−2|x|); for float32 by the unit for it, results below 1e-38 as 0."""
    if _NATIVE and x.dtype == tl.float32:
        return instruction(tl.abs(x) * -2.8853900817779268, "ex2.approx.ftz.f32 $0, $1;")
    else:
        return tl.exp(-2.0 * tl.abs(x))


@jit
def larger(a, b):
    """The larger of two, NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def log_near(y):
    """log y; for float32 to 2e-7 absolute near 1, by the unit for it."""
    if _NATIVE and y.dtype == tl.float32:
        return instruction(y, "lg2.approx.ftz.f32 $0, $1;") * 0.6931471805599453
    else:
        return tl.log(y)


@jit
def spin(x):
    """m = ½ − q_1 = ½ tanh x of a binary variable.

    Odd to the bit, and 0 at 0: the symmetry of a field survives rounding.
    """
    e = ratio(x)
    half = 0.5 - e * reciprocal(1.0 + e)
    if x.dtype == tl.float32:  # the sign of x: one instruction
        sign = x.to(tl.int32, bitcast=True) & -0x80000000
        return (half.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    else:
        return tl.where(x < 0, -half, half)


@jit
def binary_update(x, m, g, bias, u, v, steps, numbers, RULE: constexpr):
    """One update of binary variables.

    ``x`` is half the difference of the natural parameters, ``m`` ½ tanh x, ``g`` Σ −W m over
    neighbors, ``bias`` the difference of the unary energies, ±inf where a label is impossible.

    Returns:
        (new x, new m, u, v, change, F before it in float64). The change is over the step unless
        that is one for all (``RULE.flat``): then the caller divides the largest by it. Entropy from
        m in float32 is good to 1e-6 or so a variable, which is enough to follow F.
    """
    own = bias
    step = steps.size
    if RULE.hard:
        clamped = tl.abs(bias) > 1e30
        own = tl.where(clamped, 0.0, bias)
    gradient = own + g
    f = tl.zeros_like(x).to(tl.float64)
    if RULE.trace:
        large = 0.5 + tl.abs(m)
        weighted = 2.0 * tl.abs(x) * (0.5 - tl.abs(m))
        if x.dtype == tl.float64:  # ½ − |m| would lose what is small
            e = ratio(x)
            weighted = 2.0 * tl.abs(x) * (e / (1.0 + e))
        f = (log_near(large) - weighted - 0.5 * m * (own + gradient)).to(tl.float64)
    target = (0.5 * numbers.beta) * gradient
    if RULE.adaptive:
        spread = 1.0 - 4.0 * m * m
        step = tl.where(steps.redo != 0, steps.safe, 1.0 / (1.0 + (1.0 / step - 1.0) * spread))
    new, u, v = moved(x, target, u, v, step, numbers, LabelMeans(0.0, 0.0, 0.0), RULE.kind)
    if (_AVERAGES >> RULE.kind) & 1:
        e = ratio(x)
        t = e / (1.0 + e)
        e = ratio(new)
        small = e / (1.0 + e)
        mine = tl.where(x > 0, t, 1.0 - t)  # q_1
        other = tl.where(x > 0, 1.0 - t, t)
        towards = tl.where(new > 0, small, 1.0 - small)
        away = tl.where(new > 0, 1.0 - small, small)
        one = (1.0 - step) * mine + step * towards
        zero = (1.0 - step) * other + step * away
        new = 0.5 * (tl.log(tl.maximum(zero, 1e-37)) - tl.log(tl.maximum(one, 1e-37)))
    if RULE.hard:
        new = tl.where(clamped, tl.where(bias > 0, _CLAMP, -_CLAMP), new)
    after = spin(new)
    change = tl.abs(after - m)
    if not RULE.flat:
        change = change * (1.0 / step)
    return new, after, u, v, change, f


@jit
def exponential(x):
    """exp(−x) for x ≥ 0; for float32 by the unit for it, results below 1e-38 as 0."""
    if _NATIVE and x.dtype == tl.float32:
        return instruction(x * -1.4426950408889634, "ex2.approx.ftz.f32 $0, $1;")
    else:
        return tl.exp(-x)


@jit
def label_update(theta, q, gradient, u, v, steps, numbers, inside, RULE: constexpr):
    """One update of variables with any labels; tiles are (variables, labels).

    ``theta`` is −log q or one of its stand-ins, ``q`` exp(−θ), 0 outside, ``gradient`` dE/dq, +inf
    where a label is impossible (if ``RULE.hard``). Steps are (variables, 1).

    Returns:
        (new θ, u, v, change of each variable over the step).
    """
    inf = float("inf")
    possible = inside
    step = steps.size
    if RULE.hard:
        possible = inside & (gradient < inf)
    target = tl.where(possible, numbers.beta * gradient, 0.0)
    stand_in = theta >= 0.9 * _ZERO
    if RULE.hard:
        theta = tl.where(stand_in, tl.where(theta < inf, _THETA, target), theta)
    else:
        theta = tl.where(stand_in, _THETA, theta)
    theta = tl.where(possible, theta, 0.0)
    if RULE.adaptive:
        spread = tl.max(4.0 * q * (1.0 - q), 1)[:, None]
        step = tl.where(steps.redo != 0, steps.safe, 1.0 / (1.0 + (1.0 / step - 1.0) * spread))
    mean_residual = tl.zeros_like(step)
    mean_target = tl.zeros_like(step)
    mean_theta = tl.zeros_like(step)
    if (_CENTERED >> RULE.kind) & 1:
        count = tl.maximum(tl.sum(possible.to(theta.dtype), 1), 1.0)[:, None]
        residual = tl.where(possible, theta - target, 0.0)
        mean_residual = tl.sum(residual, 1)[:, None] / count
        mean_target = tl.sum(target, 1)[:, None] / count
        mean_theta = tl.sum(theta, 1)[:, None] / count
    mean = LabelMeans(mean_residual, mean_target, mean_theta)
    new, u, v = moved(theta, target, u, v, step, numbers, mean, RULE.kind)
    new = tl.where(possible, new, inf)
    low = tl.min(new, 1)[:, None]
    if RULE.hard:
        some = low < inf  # else no label is possible: q = 0
        shifted = tl.where(possible, new - tl.where(some, low, 0.0), inf)
        e = exponential(shifted)
        total = tl.where(some, tl.sum(e, 1)[:, None], 1.0)
    else:
        shifted = tl.where(possible, new - low, inf)
        e = exponential(shifted)
        total = tl.sum(e, 1)[:, None]
    after = e * (1.0 / total)
    new = shifted + tl.log(total)
    if (_AVERAGES >> RULE.kind) & 1:
        after = tl.where(possible, (1.0 - step) * q + step * after, 0.0)
        total = tl.sum(after, 1)[:, None]
        after = after / tl.where(total > 0, total, 1.0)
        new = tl.where(after > 0, -tl.log(tl.where(after > 0, after, 1.0)), _ZERO)
    new = tl.where(possible, new, inf)
    change = tl.where(inside, tl.abs(after - q), 0.0)
    change = tl.reduce(change, 1, larger)
    return new, u, v, change * tl.max(1.0 / step, 1)
