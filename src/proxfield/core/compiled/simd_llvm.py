"""The functions of `simd` as LLVM vector instructions, written through numba's private parts.

The only module that knows those parts: they may change with any version of numba. Names that are
missing fail here, at import, and plain loops (`simd_loops`) serve instead.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once as _alloca_once
from numba.core.cgutils import alloca_once_value as _alloca_once_value
from numba.core.cgutils import for_range as _for_range
from numba.extending import intrinsic

from proxfield.core.compiled.simd import LANES

BLOCK = 4
"""Groups of lanes that are kept in registers together."""
CONTRACT = ("contract",)
ARRAY, INDEX, NUMBER = "array", "index", "number"
"""Kinds of arguments of an intrinsic; numbers have the type of the first array's."""

Value: TypeAlias = Any
"""An ``llvmlite.ir.Value``: a result of an instruction, or a constant."""
Untyped: TypeAlias = Any
"""Another object of numba or llvmlite, which have no annotations."""

# bound here so that a numba without them is noticed at import
alloca_once: Untyped = _alloca_once
alloca_once_value: Untyped = _alloca_once_value
for_range: Untyped = _for_range
INT32, VECTOR = ir.IntType(32), ir.VectorType


class Lanes:
    """Writes vector instructions for one call of an intrinsic."""

    def __init__(
        self, context: Untyped, builder: Untyped, signature: Untyped, args: list[Value]
    ) -> None:
        self.context, self.builder, self.kinds, self.args = context, builder, signature.args, args
        self.scalar = context.get_value_type(self.kinds[0].dtype)
        self.vector = VECTOR(self.scalar, LANES)
        self.bits = VECTOR(ir.IntType(1), LANES)
        self.size = context.get_abi_sizeof(self.scalar)
        self.suffix = "v8f32" if self.size == 4 else "v8f64"

    def pointer(self, array: int, position: int | Value) -> Value:
        """Argument ``array`` at argument ``position`` (or at a constant)."""
        kind = self.kinds[array]
        data = self.context.make_array(kind)(self.context, self.builder, self.args[array]).data
        where = self.args[position] if isinstance(position, int) else position
        item = self.builder.gep(data, [where])
        return self.builder.bitcast(item, self.vector.as_pointer())

    def load(self, array: int, position: int | Value) -> Value:
        """Eight numbers."""
        out = self.builder.load(self.pointer(array, position))
        out.align = self.size
        return out

    def store(self, value: Value, array: int, position: int | Value) -> None:
        """Write eight numbers."""
        self.builder.store(value, self.pointer(array, position), align=self.size)

    def over_row(self, width: int, start: Value, step: Callable[[Value, Value], Value]) -> Value:
        """Fold ``step(vector so far, offset)`` over the groups of argument ``width`` numbers."""
        so_far = alloca_once_value(self.builder, start)
        one = ir.Constant(self.args[width].type, LANES)
        groups = self.builder.sdiv(
            self.builder.add(self.args[width], ir.Constant(one.type, LANES - 1)), one
        )
        with for_range(self.builder, groups) as loop:
            offset = self.builder.mul(loop.index, one)
            self.builder.store(step(self.builder.load(so_far), offset), so_far)
        return self.builder.load(so_far)

    def plus(self, position: int, offset: Value) -> Value:
        """Argument ``position`` moved on."""
        return self.builder.add(self.args[position], offset)

    def mask(self, count: int, offset: Value = None) -> Value:
        """The lanes below argument ``count`` (from an offset on)."""
        wide = self.args[count]
        if offset is not None:
            wide = self.builder.sub(wide, offset)
        narrow = self.builder.trunc(wide, INT32)
        lanes = VECTOR(INT32, LANES)
        numbers = ir.Constant(lanes, list(range(LANES)))
        return self.builder.icmp_signed("<", numbers, self.spread(narrow, lanes))

    def load_masked(self, array: int, position: int | Value, mask: Value, other: Value) -> Value:
        """Eight numbers, ``other`` in lanes outside the mask (which are not read)."""
        place = [self.pointer(array, position), ir.Constant(INT32, self.size)]
        return self.call_masked("load", self.vector, [*place, mask, other])

    def store_masked(self, value: Value, array: int, position: int | Value, mask: Value) -> None:
        """Lanes outside the mask are not written."""
        place = [self.pointer(array, position), ir.Constant(INT32, self.size)]
        self.call_masked("store", ir.VoidType(), [value, *place, mask])

    def call_masked(self, what: str, result: Untyped, args: list[Value]) -> Value:
        """An LLVM intrinsic."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        name = f"llvm.masked.{what}.{self.suffix}.p0{self.suffix}"
        return self.builder.call(self.builder.module.declare_intrinsic(name, fnty=kind), args)

    def spread(self, value: Value, vector: Untyped = None) -> Value:
        """One number in every lane."""
        out = ir.Constant(vector or self.vector, ir.Undefined)
        for lane in range(LANES):
            out = self.builder.insert_element(out, value, ir.Constant(INT32, lane))
        return out

    def constant(self, value: float) -> Value:
        """A constant in every lane."""
        return ir.Constant(self.vector, [value] * LANES)

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        return self.builder.fadd(a, b, flags=CONTRACT)

    def subtract(self, a: Value, b: Value) -> Value:
        """a − b."""
        return self.builder.fsub(a, b, flags=CONTRACT)

    def multiply(self, a: Value, b: Value) -> Value:
        """a · b."""
        return self.builder.fmul(a, b, flags=CONTRACT)

    def choose(self, test: str, a: Value, b: Value, yes: Value, no: Value) -> Value:
        """yes where a ``test`` b, else no."""
        return self.builder.select(self.builder.fcmp_ordered(test, a, b), yes, no)

    def fold(self, combine: Callable[[Value, Value], Value], value: Value) -> Value:
        """All lanes combined into one number, halves at a time."""
        for half in (4, 2, 1):
            order = [(lane + half) % LANES for lane in range(LANES)]
            turned = self.builder.shuffle_vector(
                value,
                ir.Constant(self.vector, ir.Undefined),
                ir.Constant(VECTOR(INT32, LANES), order),
            )
            value = combine(value, turned)
        return self.builder.extract_element(value, ir.Constant(INT32, 0))


def written(*kinds: str, result: bool = False) -> Callable[[Callable[[Lanes], Value]], Untyped]:
    """Make an intrinsic of a function that writes its instructions to `Lanes`.

    Args:
        *kinds: The kind of each argument; the first is an array.
        result: Whether the function returns a value, a number.
    """

    def made(write: Callable[[Lanes], Value]) -> Untyped:
        def typed(typing: Untyped, *given: Untyped) -> tuple[Untyped, Untyped]:
            number = given[0].dtype
            expected = {INDEX: types.intp, NUMBER: number}
            declared = [expected.get(kind, own) for kind, own in zip(kinds, given, strict=True)]
            return (number if result else types.void)(*declared), generate

        def generate(
            context: Untyped, builder: Untyped, signature: Untyped, args: list[Value]
        ) -> Value:
            out = write(Lanes(context, builder, signature, args))
            return out if result else context.get_dummy_value()

        names = ["typing", *(f"argument_{k}" for k in range(len(kinds)))]
        plain = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        typed.__signature__ = Signature(plain)  # type: ignore[attr-defined]
        typed.__name__ = typed.__qualname__ = write.__name__
        return intrinsic(typed)

    return made


@written(ARRAY, INDEX)
def clear(x: Lanes) -> None:
    """``clear(to, at)``"""
    x.store(x.constant(0.0), 0, 1)


@written(ARRAY, INDEX, ARRAY, INDEX, NUMBER)
def put_scaled(x: Lanes) -> None:
    """``put_scaled(to, at, source, where, w)``"""
    x.store(x.multiply(x.spread(x.args[4]), x.load(2, 3)), 0, 1)


@written(ARRAY, INDEX, ARRAY, INDEX, NUMBER)
def add_scaled(x: Lanes) -> None:
    """``add_scaled(to, at, source, where, w)``"""
    x.store(x.add(x.load(0, 1), x.multiply(x.spread(x.args[4]), x.load(2, 3))), 0, 1)


@written(ARRAY, INDEX, ARRAY, INDEX, INDEX, INDEX, NUMBER, NUMBER)
def blend(x: Lanes) -> None:
    """``blend(to, at, source, a, b, c, m, s)``"""
    sides = x.multiply(x.spread(x.args[7]), x.add(x.load(2, 4), x.load(2, 5)))
    x.store(x.add(x.multiply(x.spread(x.args[6]), x.load(2, 3)), sides), 0, 1)


@written(ARRAY, INDEX, ARRAY, INDEX, INDEX, NUMBER)
def add_masked(x: Lanes) -> None:
    """``add_masked(to, at, source, where, count, fill)``"""
    mask = x.mask(4)
    total = x.add(x.load(0, 1), x.load_masked(2, 3, mask, x.constant(0.0)))
    x.store(x.builder.select(mask, total, x.spread(x.args[5])), 0, 1)


@written(ARRAY, INDEX, NUMBER, NUMBER)
def scale(x: Lanes) -> None:
    """``scale(to, at, factor, plus)``"""
    product = x.multiply(x.load(0, 1), x.spread(x.args[2]))
    x.store(x.add(product, x.spread(x.args[3])), 0, 1)


@written(ARRAY, INDEX, INDEX, result=True)
def least(x: Lanes) -> Value:
    """``least(array, at, width)``"""

    def smaller(a: Value, b: Value) -> Value:
        return x.choose("<", a, b, a, b)

    lanes = x.over_row(
        2, x.constant(float("inf")), lambda low, k: smaller(low, x.load(0, x.plus(1, k)))
    )
    return x.fold(smaller, lanes)


@written(ARRAY, INDEX, INDEX, result=True)
def total(x: Lanes) -> Value:
    """``total(array, at, width)``"""
    lanes = x.over_row(2, x.constant(0.0), lambda so_far, k: x.add(so_far, x.load(0, x.plus(1, k))))
    return x.fold(x.add, lanes)


@written(ARRAY, ARRAY, INDEX, ARRAY, ARRAY, INDEX, INDEX)
def replace_row(x: Lanes) -> None:
    """``replace_row(peak, new, at, old, before, where, n)``"""
    b, zero = x.builder, x.constant(0.0)
    firsts = [ir.Constant(ir.IntType(64), slot * LANES) for slot in range(2)]
    peaks = [alloca_once(b, x.vector) for _ in firsts]
    for first, so_far in zip(firsts, peaks, strict=True):
        b.store(x.load(0, first), so_far)

    def more(_: Value, k: Value) -> Value:
        mask = x.mask(6, k)
        fresh = b.select(mask, x.load(1, x.plus(2, k)), zero)
        for source, so_far in zip((3, 4), peaks, strict=True):
            gap = x.subtract(fresh, x.load_masked(source, x.plus(5, k), mask, zero))
            gap = x.choose("<", gap, zero, x.subtract(zero, gap), gap)
            seen = b.load(so_far)
            # NaN loses every comparison: a new one is larger, and one that was seen stays
            stays = b.or_(b.fcmp_ordered("<=", gap, seen), b.fcmp_unordered("uno", seen, seen))
            b.store(b.select(stays, seen, gap), so_far)
        x.store_masked(fresh, 4, x.plus(5, k), mask)
        return zero

    x.over_row(6, zero, more)
    for first, so_far in zip(firsts, peaks, strict=True):
        x.store(b.load(so_far), 0, first)


@written(ARRAY, INDEX, ARRAY, INDEX, INDEX)
def store_row(x: Lanes) -> None:
    """``store_row(to, where, source, at, n)``"""

    def more(_: Value, k: Value) -> Value:
        x.store_masked(x.load(2, x.plus(3, k)), 0, x.plus(1, k), x.mask(4, k))
        return x.constant(0.0)

    x.over_row(4, x.constant(0.0), more)


@written(ARRAY, INDEX, ARRAY, INDEX, INDEX)
def load_row(x: Lanes) -> None:
    """``load_row(to, at, source, where, n)``"""

    def more(_: Value, k: Value) -> Value:
        zero = x.constant(0.0)
        x.store(x.load_masked(2, x.plus(3, k), x.mask(4, k), zero), 0, x.plus(1, k))
        return zero

    x.over_row(4, x.constant(0.0), more)


@written(ARRAY, INDEX, ARRAY, INDEX, ARRAY, INDEX, result=True)
def expected(x: Lanes) -> Value:
    """``expected(seen, at, q, where, unary, n)``"""
    zero = x.constant(0.0)

    def more(so_far: Value, k: Value) -> Value:
        mask = x.mask(5, k)
        q = x.load_masked(2, x.plus(3, k), mask, zero)
        half = x.multiply(x.constant(0.5), x.load(0, x.plus(1, k)))
        energy = x.multiply(q, x.add(x.load_masked(4, x.plus(3, k), mask, zero), half))
        return x.add(so_far, x.choose(">", q, zero, energy, zero))  # 0 · inf is 0

    return x.fold(x.add, x.over_row(5, zero, more))


@written(ARRAY, ARRAY, INDEX, INDEX, result=True)
def weighted(x: Lanes) -> Value:
    """``weighted(e, row, at, width)``"""
    zero = x.constant(0.0)

    def more(so_far: Value, k: Value) -> Value:
        e = x.load(0, x.plus(2, k))
        product = x.multiply(e, x.load(1, x.plus(2, k)))
        return x.add(so_far, x.choose(">", e, zero, product, zero))

    return x.fold(x.add, x.over_row(3, zero, more))


def _by_groups(x: Lanes, width: int, body: Callable[[int, Value], None]) -> None:
    """Call ``body(groups, offset)`` for a row of argument ``width`` numbers: `BLOCK` groups at a
    time, kept in registers, and what is left as one smaller block."""
    b = x.builder
    one = ir.Constant(x.args[width].type, LANES)
    groups = b.sdiv(x.args[width], one)
    blocks = b.sdiv(groups, ir.Constant(one.type, BLOCK))
    with for_range(b, blocks) as loop:
        body(BLOCK, b.mul(loop.index, ir.Constant(one.type, BLOCK * LANES)))
    done = b.mul(blocks, ir.Constant(one.type, BLOCK))
    left = b.sub(groups, done)
    for count in range(1, BLOCK):
        with b.if_then(b.icmp_signed("==", left, ir.Constant(one.type, count))):
            body(count, b.mul(done, one))


def _corner(x: Lanes, row: int, where: int, k: Value) -> Value:
    """Number k of a point's corners, from the flat array in argument ``row``."""
    b = x.builder
    data = x.context.make_array(x.kinds[row])(x.context, b, x.args[row]).data
    return b.load(b.gep(data, [b.add(x.args[where], k)]))


def _corner_weight(x: Lanes, weight: int, where: int, k: Value) -> Value:
    """Its weight, in every lane."""
    w = _corner(x, weight, where, k)
    return x.spread(w if w.type == x.scalar else x.builder.fpext(w, x.scalar))


def _corner_start(x: Lanes, row: int, where: int, begin: int, width: int, k: Value) -> Value:
    """Where its row starts."""
    b = x.builder
    number = _corner(x, row, where, k)
    widen = b.sext if x.kinds[row].dtype.signed else b.zext
    line = b.add(widen(number, x.args[begin].type), x.args[begin])
    return b.mul(line, x.args[width])


def _spots(x: Lanes, groups: int, offset: Value) -> list[Value]:
    """Where so many groups of lanes begin in a row, the first of them at an offset."""
    return [x.builder.add(offset, ir.Constant(offset.type, LANES * i)) for i in range(groups)]


def _summed(
    x: Lanes, spots: list[Value], count: int, row: Callable[[Value], Callable[[Value], Value]]
) -> list[Value]:
    """Σ_k ``row(k)(spot)`` over k below argument ``count``, in registers."""
    b = x.builder
    sums = [alloca_once_value(b, x.constant(0.0)) for _ in spots]
    with for_range(b, x.args[count]) as loop:
        numbers = row(loop.index)
        for spot, so_far in zip(spots, sums, strict=True):
            b.store(x.add(b.load(so_far), numbers(spot)), so_far)
    return [b.load(so_far) for so_far in sums]


@written(ARRAY, INDEX, ARRAY, INDEX, ARRAY, ARRAY, INDEX, INDEX, INDEX, NUMBER)
def gather_row(x: Lanes) -> None:
    """``gather_row(to, at, source, width, row, weight, where, corners, begin, factor)``"""

    def corner(k: Value) -> Callable[[Value], Value]:
        start, w = _corner_start(x, 4, 6, 8, 3, k), _corner_weight(x, 5, 6, k)
        return lambda spot: x.multiply(w, x.load(2, x.builder.add(start, spot)))

    def body(groups: int, offset: Value) -> None:
        spots = _spots(x, groups, offset)
        seen, factor = _summed(x, spots, 7, corner), x.spread(x.args[9])
        for spot, value in zip(spots, seen, strict=True):
            here = x.plus(1, spot)
            x.store(x.add(x.load(0, here), x.multiply(factor, value)), 0, here)

    _by_groups(x, 3, body)


@written(ARRAY, INDEX, ARRAY, INDEX, ARRAY, INDEX, INDEX, NUMBER)
def sum_listed(x: Lanes) -> None:
    """``sum_listed(to, at, source, width, row, where, count, factor)``"""
    b = x.builder

    def listed(k: Value) -> Callable[[Value], Value]:
        start = b.mul(b.zext(_corner(x, 4, 5, k), x.args[3].type), x.args[3])
        return lambda spot: x.load(2, b.add(start, spot))

    def body(groups: int, offset: Value) -> None:
        spots = _spots(x, groups, offset)
        seen, factor = _summed(x, spots, 6, listed), x.spread(x.args[7])
        for spot, value in zip(spots, seen, strict=True):
            x.store(x.multiply(factor, value), 0, x.plus(1, spot))

    _by_groups(x, 3, body)


@written(ARRAY, ARRAY, INDEX, INDEX, ARRAY, ARRAY, INDEX, INDEX, INDEX, NUMBER)
def scatter_row(x: Lanes) -> None:
    """``scatter_row(to, source, at, width, row, weight, where, corners, begin, factor)``"""
    b = x.builder

    def body(groups: int, offset: Value) -> None:
        spots, factor = _spots(x, groups, offset), x.spread(x.args[9])
        values = [x.multiply(factor, x.load(1, x.plus(2, spot))) for spot in spots]
        with for_range(b, x.args[7]) as corner:
            start = _corner_start(x, 4, 6, 8, 3, corner.index)
            w = _corner_weight(x, 5, 6, corner.index)
            for spot, value in zip(spots, values, strict=True):
                there = b.add(start, spot)
                x.store(x.add(x.load(0, there), x.multiply(w, value)), 0, there)

    _by_groups(x, 3, body)


def _turned(x: Lanes, rows: list[Value]) -> list[Value]:
    """Eight vectors as columns: lane k of vector i becomes lane i of vector k.

    Squares of 1, 2 and 4 numbers beside the diagonal change places.
    """
    for half in (1, 2, 4):
        low = [k + LANES - half if k & half else k for k in range(LANES)]
        high = [k + LANES if k & half else k + half for k in range(LANES)]
        out = list(rows)
        for i in range(LANES):
            if not i & half:
                for to, order in ((i, low), (i + half, high)):
                    numbers = ir.Constant(VECTOR(INT32, LANES), order)
                    out[to] = x.builder.shuffle_vector(rows[i], rows[i + half], numbers)
        rows = out
    return rows


def _row_starts(x: Lanes, at: int, stride: int, count: int) -> list[Value]:
    """Where rows begin that follow each other at argument ``at``."""
    b = x.builder
    starts = [x.args[at]]
    while len(starts) < count:
        starts.append(b.add(starts[-1], x.args[stride]))
    return starts


def _columns(x: Lanes, offset: Value) -> list[Value]:
    """Where eight columns of turned rows begin, the first of them ``offset``."""
    b = x.builder
    first = b.mul(offset, ir.Constant(offset.type, LANES))
    return [b.add(first, ir.Constant(offset.type, LANES * k)) for k in range(LANES)]


@written(ARRAY, ARRAY, INDEX, INDEX, ARRAY, NUMBER)
def sum_rows(x: Lanes) -> None:
    """``sum_rows(to, source, at, stride, above, keep)``"""
    b, zero, keep = x.builder, x.constant(0.0), x.spread(x.args[5])
    starts = _row_starts(x, 2, 3, LANES)

    def more(so_far: Value, k: Value) -> Value:
        rows, down = [], x.load(4, k)
        for start in starts:
            here = b.add(start, k)
            down = x.add(x.multiply(keep, down), x.load(1, here))
            x.store(zero, 1, here)
            rows.append(down)
        x.store(down, 4, k)
        for place, column in zip(_columns(x, k), _turned(x, rows), strict=True):
            so_far = x.add(so_far, column)
            x.store(so_far, 0, place)
        return so_far

    x.over_row(3, zero, more)


@written(ARRAY, INDEX, INDEX, ARRAY, NUMBER)
def integrate_rows(x: Lanes) -> None:
    """``integrate_rows(to, at, stride, source, keep)``"""
    b, keep = x.builder, x.spread(x.args[4])
    before, *starts = _row_starts(x, 1, 2, LANES + 1)

    def more(so_far: Value, k: Value) -> Value:
        columns = []
        for place in _columns(x, k):
            so_far = x.add(so_far, x.load(3, place))
            columns.append(so_far)
        down = x.load(0, b.add(before, k))
        for start, row in zip(starts, _turned(x, columns), strict=True):
            down = x.add(x.multiply(keep, down), row)
            x.store(down, 0, b.add(start, k))
        return so_far

    x.over_row(2, x.constant(0.0), more)
