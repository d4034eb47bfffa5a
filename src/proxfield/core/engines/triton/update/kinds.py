# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The kinds of rules on a GPU: the formula of each, and the moments that it keeps.

`moved` is the only kernel code that knows formulas; all else asks for sets of kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from proxfield.core.devices.cuda import interpreted, jit, tl
from proxfield.core.engines.plan import Kind

if TYPE_CHECKING:
    from proxfield.core.devices.tensors import constexpr as constexpr
else:
    constexpr = str if tl is None else tl.constexpr

LOOK = len(Kind)
"""In place of a kind: leave F and the gradient, and move nothing."""


def kinds_where(test: Callable[[Kind], bool]) -> int:
    """The kinds that pass a test as bits of a number: kernels ask for ``(number >> KIND) & 1``.

    Example:
        >>> kinds_where(lambda kind: kind in (Kind.PROXIMAL, Kind.MOMENTUM))  # 2⁰ + 2²
        5
    """
    return sum(1 << kind for kind in Kind if test(kind))


if tl is not None:
    _LOOK: constexpr = tl.constexpr(LOOK)
    _PROXIMAL: constexpr = tl.constexpr(int(Kind.PROXIMAL))
    _MEAN: constexpr = tl.constexpr(int(Kind.MEAN))
    _MOMENTUM: constexpr = tl.constexpr(int(Kind.MOMENTUM))
    _MOMENTUM_PRINTED: constexpr = tl.constexpr(int(Kind.MOMENTUM_PRINTED))
    _ADAM: constexpr = tl.constexpr(int(Kind.ADAM))
    _ADAM_PRINTED: constexpr = tl.constexpr(int(Kind.ADAM_PRINTED))
    # sets of kinds
    _FIRST: constexpr = tl.constexpr(kinds_where(lambda kind: kind.moments >= 1))
    _SECOND: constexpr = tl.constexpr(kinds_where(lambda kind: kind.moments >= 2))
    _AVERAGES: constexpr = tl.constexpr(kinds_where(lambda kind: kind.averages_marginals))
    _CENTERED: constexpr = tl.constexpr(kinds_where(lambda kind: kind.centered))
    _NATIVE: constexpr = tl.constexpr(not interpreted())


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
def moved(
    theta, target, u, v, step, g1, g2, eps, mean_residual, mean_target, mean_theta, KIND: constexpr
):
    """New natural parameters and moments: the formula of every `Kind`.

    The means are over a variable's possible labels; 0 where θ is centered anyway, or a kind doesn't
    ask for them.
    """
    if KIND == _PROXIMAL:
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
        r = theta - target - mean_residual
        u = g1 * u + (1.0 - g1) * r
        v = g2 * v + (1.0 - g2) * r * r
        new = theta - step * (u / (root(v) + eps))
    elif KIND == _ADAM_PRINTED:
        r = target - mean_target
        u = g1 * u + (1.0 - g1) * r
        v = (1.0 - g2) * v + g2 * r * r
        new = theta - step * ((theta - mean_theta - u) / (root(v) + eps))
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
    """The same, stored."""
    if EVEN:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=inside)


@jit
def fetch_moments(u, v, at, inside, like, KIND: constexpr, EVEN: constexpr):
    """The moments that a kind keeps; ``like`` in place of others."""
    first = like
    second = like
    if (_FIRST >> KIND) & 1:
        first = fetch(u + at, inside, EVEN)
    if (_SECOND >> KIND) & 1:
        second = fetch(v + at, inside, EVEN)
    return first, second


@jit
def put_moments(u, v, at, first, second, inside, KIND: constexpr, EVEN: constexpr):
    """The same, stored."""
    if (_FIRST >> KIND) & 1:
        put(u + at, first, inside, EVEN)
    if (_SECOND >> KIND) & 1:
        put(v + at, second, inside, EVEN)
