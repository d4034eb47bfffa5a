"""Eight numbers at a time: what the inner loops of dense fields are made of.

A row of channels is padded to a multiple of `LANES`. LLVM does not turn short loops over two
arrays into vector instructions, because the arrays might overlap; these intrinsics say it
outright. All take flat arrays and positions; ``count`` says how many lanes of an unpadded
array exist (a group at the end of a row has fewer than eight).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from proxfield.compiled.lanes import LANES as LANES
from proxfield.compiled.lanes import Lanes, cgutils

BLOCK = 4
"""Groups of lanes that are kept in registers together."""


def padded(channels: int) -> int:
    """Channels rounded up to whole groups of lanes.

    Example:
        >>> padded(21)
        24
    """
    return -(-channels // LANES) * LANES


def _void(*kinds: Any) -> Any:
    return types.void(*kinds)


def vectorized(result: bool, write: Callable[[Lanes], Any]) -> Callable[..., Any]:
    """Code of an intrinsic from what ``write`` does with its `Lanes`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out = write(Lanes(context, builder, signature, args))
        return out if result else context.get_dummy_value()

    return generate


def _clear(typing: Any, to: Any, at: Any) -> Any:
    def write(x: Lanes) -> None:
        x.store(x.constant(0.0), 0, 1)

    return _void(to, types.intp), vectorized(False, write)


def _put_scaled(typing: Any, to: Any, at: Any, source: Any, where: Any, w: Any) -> Any:
    def write(x: Lanes) -> None:
        x.store(x.multiply(x.spread(x.args[4]), x.load(2, 3)), 0, 1)

    return _void(to, types.intp, source, types.intp, to.dtype), vectorized(False, write)


def _add_scaled(typing: Any, to: Any, at: Any, source: Any, where: Any, w: Any) -> Any:
    def write(x: Lanes) -> None:
        x.store(x.add(x.load(0, 1), x.multiply(x.spread(x.args[4]), x.load(2, 3))), 0, 1)

    return _void(to, types.intp, source, types.intp, to.dtype), vectorized(False, write)


def _blend(
    typing: Any, to: Any, at: Any, source: Any, a: Any, b: Any, c: Any, m: Any, s: Any
) -> Any:
    def write(x: Lanes) -> None:
        sides = x.multiply(x.spread(x.args[7]), x.add(x.load(2, 4), x.load(2, 5)))
        x.store(x.add(x.multiply(x.spread(x.args[6]), x.load(2, 3)), sides), 0, 1)

    n, f = types.intp, to.dtype
    return _void(to, n, source, n, n, n, f, f), vectorized(False, write)


def _add_masked(
    typing: Any, to: Any, at: Any, source: Any, where: Any, count: Any, fill: Any
) -> Any:
    def write(x: Lanes) -> None:
        mask = x.mask(4)
        total = x.add(x.load(0, 1), x.load_masked(2, 3, mask, x.constant(0.0)))
        x.store(x.builder.select(mask, total, x.spread(x.args[5])), 0, 1)

    n = types.intp
    return _void(to, n, source, n, n, to.dtype), vectorized(False, write)


def _scale(typing: Any, to: Any, at: Any, factor: Any, plus: Any) -> Any:
    def write(x: Lanes) -> None:
        product = x.multiply(x.load(0, 1), x.spread(x.args[2]))
        x.store(x.add(product, x.spread(x.args[3])), 0, 1)

    return _void(to, types.intp, to.dtype, to.dtype), vectorized(False, write)


def _least(typing: Any, array: Any, at: Any, width: Any) -> Any:
    def write(x: Lanes) -> Any:
        def smaller(a: Any, b: Any) -> Any:
            return x.choose("<", a, b, a, b)

        lanes = x.over_row(
            2, x.constant(float("inf")), lambda low, k: smaller(low, x.load(0, x.plus(1, k)))
        )
        return x.fold(smaller, lanes)

    return array.dtype(array, types.intp, types.intp), vectorized(True, write)


def _total(typing: Any, array: Any, at: Any, width: Any) -> Any:
    def write(x: Lanes) -> Any:
        lanes = x.over_row(
            2, x.constant(0.0), lambda so_far, k: x.add(so_far, x.load(0, x.plus(1, k)))
        )
        return x.fold(x.add, lanes)

    return array.dtype(array, types.intp, types.intp), vectorized(True, write)


def _replace_row(
    typing: Any, peak: Any, new: Any, at: Any, old: Any, before: Any, where: Any, n: Any
) -> Any:
    def write(x: Lanes) -> None:
        b, zero = x.builder, x.constant(0.0)
        firsts = [ir.Constant(ir.IntType(64), slot * LANES) for slot in range(2)]
        peaks = [cgutils.alloca_once(b, x.vector) for _ in firsts]
        for first, so_far in zip(firsts, peaks, strict=True):
            b.store(x.load(0, first), so_far)

        def more(_: Any, k: Any) -> Any:
            mask = x.mask(6, k)
            fresh = b.select(mask, x.load(1, x.plus(2, k)), zero)
            for source, so_far in zip((3, 4), peaks, strict=True):
                gap = x.subtract(fresh, x.load_masked(source, x.plus(5, k), mask, zero))
                gap = x.choose("<", gap, zero, x.subtract(zero, gap), gap)
                seen = b.load(so_far)
                # NaN loses every comparison: this way round it stays
                b.store(b.select(b.fcmp_unordered(">", gap, seen), gap, seen), so_far)
            x.store_masked(fresh, 4, x.plus(5, k), mask)
            return zero

        x.over_row(6, zero, more)
        for first, so_far in zip(firsts, peaks, strict=True):
            x.store(b.load(so_far), 0, first)

    i = types.intp
    return _void(peak, new, i, old, before, i, i), vectorized(False, write)


def _store_row(typing: Any, to: Any, where: Any, source: Any, at: Any, n: Any) -> Any:
    def write(x: Lanes) -> None:
        def more(_: Any, k: Any) -> Any:
            x.store_masked(x.load(2, x.plus(3, k)), 0, x.plus(1, k), x.mask(4, k))
            return x.constant(0.0)

        x.over_row(4, x.constant(0.0), more)

    i = types.intp
    return _void(to, i, source, i, i), vectorized(False, write)


def _load_row(typing: Any, to: Any, at: Any, source: Any, where: Any, n: Any) -> Any:
    def write(x: Lanes) -> None:
        def more(_: Any, k: Any) -> Any:
            zero = x.constant(0.0)
            x.store(x.load_masked(2, x.plus(3, k), x.mask(4, k), zero), 0, x.plus(1, k))
            return zero

        x.over_row(4, x.constant(0.0), more)

    i = types.intp
    return _void(to, i, source, i, i), vectorized(False, write)


def _expected(typing: Any, seen: Any, at: Any, q: Any, where: Any, unary: Any, n: Any) -> Any:
    def write(x: Lanes) -> Any:
        zero = x.constant(0.0)

        def more(so_far: Any, k: Any) -> Any:
            mask = x.mask(5, k)
            q = x.load_masked(2, x.plus(3, k), mask, zero)
            half = x.multiply(x.constant(0.5), x.load(0, x.plus(1, k)))
            energy = x.multiply(q, x.add(x.load_masked(4, x.plus(3, k), mask, zero), half))
            return x.add(so_far, x.choose(">", q, zero, energy, zero))  # 0 · inf is 0

        return x.fold(x.add, x.over_row(5, zero, more))

    i = types.intp
    return seen.dtype(seen, i, q, i, unary, i), vectorized(True, write)


def _weighted(typing: Any, e: Any, row: Any, at: Any, width: Any) -> Any:
    def write(x: Lanes) -> Any:
        zero = x.constant(0.0)

        def more(so_far: Any, k: Any) -> Any:
            e = x.load(0, x.plus(2, k))
            product = x.multiply(e, x.load(1, x.plus(2, k)))
            return x.add(so_far, x.choose(">", e, zero, product, zero))

        return x.fold(x.add, x.over_row(3, zero, more))

    i = types.intp
    return e.dtype(e, row, i, i), vectorized(True, write)


def _by_groups(x: Lanes, width: int, body: Callable[[int, Any], None]) -> None:
    """Call ``body(groups, offset)`` for a row of argument ``width`` numbers: `BLOCK` groups at a
    time, kept in registers, and what is left as one smaller block."""
    b = x.builder
    one = ir.Constant(x.args[width].type, LANES)
    groups = b.sdiv(x.args[width], one)
    blocks = b.sdiv(groups, ir.Constant(one.type, BLOCK))
    with cgutils.for_range(b, blocks) as loop:
        body(BLOCK, b.mul(loop.index, ir.Constant(one.type, BLOCK * LANES)))
    done = b.mul(blocks, ir.Constant(one.type, BLOCK))
    left = b.sub(groups, done)
    for count in range(1, BLOCK):
        with b.if_then(b.icmp_signed("==", left, ir.Constant(one.type, count))):
            body(count, b.mul(done, one))


def _corner(x: Lanes, row: int, where: int, k: Any) -> Any:
    """Number k of a point's corners, from the flat array in argument ``row``."""
    b = x.builder
    data = x.context.make_array(x.kinds[row])(x.context, b, x.args[row]).data
    return b.load(b.gep(data, [b.add(x.args[where], k)]))


def _corner_weight(x: Lanes, weight: int, where: int, k: Any) -> Any:
    """Its weight, in every lane."""
    w = _corner(x, weight, where, k)
    return x.spread(w if w.type == x.scalar else x.builder.fpext(w, x.scalar))


def _corner_start(x: Lanes, row: int, where: int, begin: int, width: int, k: Any) -> Any:
    """Where its row starts."""
    b = x.builder
    number = _corner(x, row, where, k)
    widen = b.sext if x.kinds[row].dtype.signed else b.zext
    line = b.add(widen(number, x.args[begin].type), x.args[begin])
    return b.mul(line, x.args[width])


def _gather_row(
    typing: Any, to: Any, at: Any, source: Any, width: Any, row: Any, weight: Any,
    where: Any, corners: Any, begin: Any, factor: Any,
) -> Any:  # fmt: skip
    def write(x: Lanes) -> None:
        b = x.builder

        def body(groups: int, offset: Any) -> None:
            spots = [b.add(offset, ir.Constant(offset.type, LANES * i)) for i in range(groups)]
            sums = [cgutils.alloca_once(b, x.vector) for _ in spots]
            for so_far in sums:
                b.store(x.constant(0.0), so_far)
            with cgutils.for_range(b, x.args[7]) as corner:
                start = _corner_start(x, 4, 6, 8, 3, corner.index)
                w = _corner_weight(x, 5, 6, corner.index)
                for spot, so_far in zip(spots, sums, strict=True):
                    more = x.multiply(w, x.load(2, b.add(start, spot)))
                    b.store(x.add(b.load(so_far), more), so_far)
            factor = x.spread(x.args[9])
            for spot, so_far in zip(spots, sums, strict=True):
                here = x.plus(1, spot)
                x.store(x.add(x.load(0, here), x.multiply(factor, b.load(so_far))), 0, here)

        _by_groups(x, 3, body)

    n = types.intp
    return _void(to, n, source, n, row, weight, n, n, n, to.dtype), vectorized(False, write)


def _scatter_row(
    typing: Any, to: Any, source: Any, at: Any, width: Any, row: Any, weight: Any,
    where: Any, corners: Any, begin: Any, factor: Any,
) -> Any:  # fmt: skip
    def write(x: Lanes) -> None:
        b = x.builder

        def body(groups: int, offset: Any) -> None:
            spots = [b.add(offset, ir.Constant(offset.type, LANES * i)) for i in range(groups)]
            factor = x.spread(x.args[9])
            values = [x.multiply(factor, x.load(1, x.plus(2, spot))) for spot in spots]
            with cgutils.for_range(b, x.args[7]) as corner:
                start = _corner_start(x, 4, 6, 8, 3, corner.index)
                w = _corner_weight(x, 5, 6, corner.index)
                for spot, value in zip(spots, values, strict=True):
                    there = b.add(start, spot)
                    x.store(x.add(x.load(0, there), x.multiply(w, value)), 0, there)

        _by_groups(x, 3, body)

    n = types.intp
    return _void(to, source, n, n, row, weight, n, n, n, to.dtype), vectorized(False, write)


clear: Any = intrinsic(_clear)
"""``clear(to, at)``: to = 0."""
put_scaled: Any = intrinsic(_put_scaled)
"""``put_scaled(to, at, source, where, w)``: to = w · source."""
add_scaled: Any = intrinsic(_add_scaled)
"""``add_scaled(to, at, source, where, w)``: to += w · source."""
blend: Any = intrinsic(_blend)
"""``blend(to, at, source, a, b, c, m, s)``: to = m · source[a] + s · (source[b] + source[c])."""
add_masked: Any = intrinsic(_add_masked)
"""``add_masked(to, at, source, where, count, fill)``: to += source in ``count`` lanes; else fill"""
scale: Any = intrinsic(_scale)
"""``scale(to, at, factor, plus)``: to = to · factor + plus."""
least: Any = intrinsic(_least)
"""``least(array, at, width)``: the smallest number of a row."""
total: Any = intrinsic(_total)
"""``total(array, at, width)``: the sum of a row."""
store_row: Any = intrinsic(_store_row)
"""``store_row(to, where, source, at, n)``: n numbers from a padded row to an unpadded one."""
load_row: Any = intrinsic(_load_row)
"""``load_row(to, at, source, where, n)``: n numbers to a padded row, 0 in its padding."""
replace_row: Any = intrinsic(_replace_row)
"""``replace_row(peak, new, at, old, before, where, n)``: n numbers of ``before`` become those of
``new``; peak[:8] and peak[8:] keep the largest |new − old| and |new − before|, and NaN."""
expected: Any = intrinsic(_expected)
"""``expected(seen, at, q, where, unary, n)``: Σ q · (unary + ½ seen) over a row, where q > 0."""
weighted: Any = intrinsic(_weighted)
"""``weighted(e, row, at, width)``: Σ e · row over a row, where e > 0."""
gather_row: Any = intrinsic(_gather_row)
"""``gather_row(to, at, source, width, row, weight, where, corners, begin, factor)``: add to the row
to[at:] the rows begin + row[where + k] of ``source``, times weight[where + k] · factor."""
scatter_row: Any = intrinsic(_scatter_row)
"""``scatter_row(to, source, at, width, row, weight, where, corners, begin, factor)``: add the row
source[at:] to the rows begin + row[where + k] of ``to``, times weight[where + k] · factor."""
