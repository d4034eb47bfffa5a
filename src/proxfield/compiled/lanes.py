"""Writing vector instructions: eight lanes at a time, for the intrinsics in `simd`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils as _cgutils

cgutils: Any = _cgutils
LANES = 8
CONTRACT = ("contract",)


class Lanes:
    """Writes vector instructions for one call of an intrinsic."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.builder, self.kinds, self.args = context, builder, signature.args, args
        self.scalar = context.get_value_type(self.kinds[0].dtype)
        self.vector = ir.VectorType(self.scalar, LANES)
        self.bits = ir.VectorType(ir.IntType(1), LANES)
        self.size = context.get_abi_sizeof(self.scalar)
        self.suffix = "v8f32" if self.size == 4 else "v8f64"

    def pointer(self, array: int, position: int | Any) -> Any:
        """Argument ``array`` at argument ``position`` (or at a constant)."""
        kind = self.kinds[array]
        data = self.context.make_array(kind)(self.context, self.builder, self.args[array]).data
        where = self.args[position] if isinstance(position, int) else position
        item = self.builder.gep(data, [where])
        return self.builder.bitcast(item, self.vector.as_pointer())

    def load(self, array: int, position: int | Any) -> Any:
        """Eight numbers."""
        out = self.builder.load(self.pointer(array, position))
        out.align = self.size
        return out

    def store(self, value: Any, array: int, position: int | Any) -> None:
        """Eight numbers, the other way."""
        self.builder.store(value, self.pointer(array, position), align=self.size)

    def over_row(self, width: int, start: Any, step: Callable[[Any, Any], Any]) -> Any:
        """Fold ``step(vector so far, offset)`` over the groups of argument ``width`` numbers."""
        so_far = cgutils.alloca_once_value(self.builder, start)
        one = ir.Constant(self.args[width].type, LANES)
        groups = self.builder.sdiv(
            self.builder.add(self.args[width], ir.Constant(one.type, LANES - 1)), one
        )
        with cgutils.for_range(self.builder, groups) as loop:
            offset = self.builder.mul(loop.index, one)
            self.builder.store(step(self.builder.load(so_far), offset), so_far)
        return self.builder.load(so_far)

    def plus(self, position: int, offset: Any) -> Any:
        """Argument ``position`` moved on."""
        return self.builder.add(self.args[position], offset)

    def mask(self, count: int, offset: Any = None) -> Any:
        """The lanes below argument ``count`` (from an offset on)."""
        wide = self.args[count]
        if offset is not None:
            wide = self.builder.sub(wide, offset)
        narrow = self.builder.trunc(wide, ir.IntType(32))
        lanes = ir.VectorType(ir.IntType(32), LANES)
        numbers = ir.Constant(lanes, list(range(LANES)))
        return self.builder.icmp_signed("<", numbers, self.spread(narrow, lanes))

    def load_masked(self, array: int, position: int | Any, mask: Any, other: Any) -> Any:
        """Eight numbers, ``other`` in lanes outside the mask (which are not read)."""
        pointer = self.pointer(array, position)
        function = self.declare(
            f"llvm.masked.load.{self.suffix}.p0{self.suffix}",
            self.vector,
            [pointer.type, ir.IntType(32), self.bits, self.vector],
        )
        align = ir.Constant(ir.IntType(32), self.size)
        return self.builder.call(function, [pointer, align, mask, other])

    def store_masked(self, value: Any, array: int, position: int | Any, mask: Any) -> None:
        """Lanes outside the mask are not written."""
        pointer = self.pointer(array, position)
        function = self.declare(
            f"llvm.masked.store.{self.suffix}.p0{self.suffix}",
            ir.VoidType(),
            [self.vector, pointer.type, ir.IntType(32), self.bits],
        )
        align = ir.Constant(ir.IntType(32), self.size)
        self.builder.call(function, [value, pointer, align, mask])

    def declare(self, name: str, result: Any, parameters: list[Any]) -> Any:
        """An LLVM intrinsic."""
        kind = ir.FunctionType(result, parameters)
        return self.builder.module.declare_intrinsic(name, fnty=kind)

    def spread(self, value: Any, vector: Any = None) -> Any:
        """One number in every lane."""
        out = ir.Constant(vector or self.vector, ir.Undefined)
        for lane in range(LANES):
            out = self.builder.insert_element(out, value, ir.Constant(ir.IntType(32), lane))
        return out

    def constant(self, value: float) -> Any:
        """The same, of a constant."""
        return ir.Constant(self.vector, [value] * LANES)

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return self.builder.fadd(a, b, flags=CONTRACT)

    def subtract(self, a: Any, b: Any) -> Any:
        """a − b."""
        return self.builder.fsub(a, b, flags=CONTRACT)

    def multiply(self, a: Any, b: Any) -> Any:
        """a · b."""
        return self.builder.fmul(a, b, flags=CONTRACT)

    def choose(self, test: str, a: Any, b: Any, yes: Any, no: Any) -> Any:
        """yes where a ``test`` b, else no."""
        return self.builder.select(self.builder.fcmp_ordered(test, a, b), yes, no)

    def fold(self, combine: Callable[[Any, Any], Any], value: Any) -> Any:
        """All lanes combined into one number, halves at a time."""
        for half in (4, 2, 1):
            order = [(lane + half) % LANES for lane in range(LANES)]
            turned = self.builder.shuffle_vector(
                value,
                ir.Constant(self.vector, ir.Undefined),
                ir.Constant(ir.VectorType(ir.IntType(32), LANES), order),
            )
            value = combine(value, turned)
        return self.builder.extract_element(value, ir.Constant(ir.IntType(32), 0))
