# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The kinds of rules on a GPU: the formula of each, and the moments that it keeps.

`moved` is the only kernel code that knows formulas; all else asks for sets of kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from proxfield.core.devices.cuda import constant, constexpr, interpreted, jit, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import Kind

LOOK = len(Kind)
"""In place of a kind: leave F and the gradient, and move nothing."""


def kinds_where(test: Callable[[Kind], bool]) -> int:
    """The kinds that pass a test as bits of a number: kernels ask for ``(number >> KIND) & 1``.

    Example:
        >>> kinds_where(lambda kind: kind in (Kind.PROXIMAL, Kind.MOMENTUM))  # 2⁰ + 2²
        5
    """
    return sum(1 << kind for kind in Kind if test(kind))


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

    kind: int
    """That of a rule, or `LOOK`."""
    adaptive: bool
    trace: bool
    """Is F of every state wanted?"""
    flat: bool
    """Has it one step for all variables?"""
    hard: bool
    """Are there impossible labels?"""


class Movement(NamedTuple):
    """What a rule moves with, in kernels' arguments: its moments, steps and numbers."""

    u: Tensor | None
    v: Tensor | None
    step: Tensor  # (n,)
    safe: Tensor  # (n,)
    parameters: Tensor  # see `board`  # (PARAMETERS,) float64


class Place(NamedTuple):
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
def root(y):
    """√y; for float32 by the unit for it."""
    if _NATIVE and y.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "sqrt.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
        )
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
