"""Operators that PyTorch knows: registered for compilers, and for transforms of ``torch.func``.

An operator registered by ``torch.library`` is opaque to ``torch.compile`` and ``torch.export``, and
autograd differentiates it, but ``torch.func`` (``grad``, ``vmap``, ``jacrev``, ``jvp``) doesn't. An
``autograd.Function`` with the same kernel and gradient serves these, so `Op` has both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, NoReturn

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import AutogradContext, AutogradFunction, Tensor
from proxfield.errors import InputError, InputTypeError, InputWarning, UnsupportedError

Function = Callable[..., Any]


def plain_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast off: sums over thousands of neighbors don't fit in half precision."""
    off: AbstractContextManager[object] = torch.autocast(tensor.device.type, enabled=False)
    return off


def transforming() -> bool:
    """Whether a transform of ``torch.func`` is at work: tensors may have no values of their own."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def exporting() -> bool:
    """Whether ``torch.export`` is tracing (before torch 2.7 that can't be told from compiling)."""
    return hasattr(torch.compiler, "is_exporting") and bool(torch.compiler.is_exporting())


def exporting_onnx() -> bool:
    """Whether ``torch.onnx.export(dynamo=True)`` is tracing: it knows no operators but its own."""
    return exporting() and bool(torch.onnx.is_in_onnx_export())


def refuse_onnx(reason: str) -> NoReturn:
    """Raise, and warn: the exporter tries again in other ways and reports the last error only."""
    warnings.warn(reason, InputWarning, stacklevel=2)
    raise UnsupportedError(reason)


def has_batch(value: Tensor) -> bool:
    """Whether a tensor has an axis that ``torch.func.vmap`` hides, and so no values to look at."""
    if torch.compiler.is_compiling():  # which traces through transforms by itself
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def require_tensor(value: object, name: str) -> None:
    """Raise, with the remedy, unless it is a tensor."""
    if isinstance(value, torch.Tensor):
        return
    kind = type(value).__name__
    home = type(value).__module__.partition(".")[0]
    remedy = f"torch.from_numpy({name})" if kind == "ndarray" else f"torch.as_tensor({name})"
    known = kind in ("list", "tuple", "float", "int") or home in ("numpy", "PIL", "jax", "jaxlib")
    hint = f"; pass {remedy}" if known else ""
    raise InputTypeError(f"{name} is of type {kind}, expected a torch.Tensor{hint}")


def require_device(value: Tensor, name: str, other: Tensor, other_name: str) -> None:
    """Raise, with the remedy, unless both are on one device."""
    if value.device != other.device:
        raise InputError(
            f"{name} on {value.device}, {other_name} on {other.device}, expected one device: "
            f"{name}.to({str(other.device)!r})"
        )


def refuse(ctx: AutogradContext, *grads: Tensor) -> NoReturn:
    """The derivative of what has none here."""
    raise RuntimeError(
        'proxfield.torch has no second derivatives here; gradient="unrolled" has those with '
        "respect to logits, energies, weights and compatibilities, if features are constants"
    )


def nothing_saved(ctx: AutogradContext, inputs: tuple[object, ...], output: object) -> None:
    """A context for operators whose backward refuses."""


class Op:
    """An operator with a kernel, shapes for tracing, a gradient, and rules for ``torch.func``.

    Args:
        name: Its name in ``torch.ops.proxfield``.
        schema: Types of arguments and results: tensors, lists of tensors, and constants.
        kernel: What it computes.
        shape: Empty results of the right shape, for tracing.
        context: Keeps what the derivatives need, as ``setup_context`` of an autograd function.
        backward: Gradients for the arguments: None for constants, a list for a list.
        images: Arguments (tensors, or lists of tensors) that have an axis of images first; those
            that may have 1 there, to be shared by all images; and which results have such an axis.
            ``vmap`` over these makes more images of them; without, and for other arguments, it
            calls the kernel repeatedly.
        repeated: Arguments for such calls, whose results must have equal shapes.
        jvp: Derivatives forward: takes the context and a tangent (or None) for each argument,
            returns a tangent (None without one) for each result. Without, they are refused.
    """

    def __init__(
        self, name: str, schema: str, kernel: Function, shape: Function, context: Function,
        backward: Function, *, repeated: Function | None = None, jvp: Function | None = None,
        images: tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.context, self.backward, self.jvp = name, context, backward, jvp
        self.images, self.repeated = images, repeated
        if torch is None or not hasattr(torch.library, "custom_op"):
            return  # modules import anywhere; what uses them says what is missing
        op = torch.library.custom_op(f"proxfield::{name}", kernel, mutates_args=(), schema=schema)
        op.register_fake(shape)
        op.register_autograd(backward, setup_context=context)
        self.registered = getattr(torch.ops.proxfield, name)
        self.function = _function(self)

    def __call__(self, *args: Any) -> Any:
        """The results: a tensor, or a tuple of tensors and lists of them."""
        if torch.compiler.is_compiling():
            return self.registered(*args)
        flat, layout = flatten(args)
        call = SimpleNamespace(args=layout)  # how arguments are nested, and soon results
        found = self.function.apply(call, *flat)
        return unflatten(found, call.results)

    def vmapped(self, size: int, args: list[Any], dims: list[Any]) -> tuple[Any, list[int | None]]:
        """Results for a batch of arguments, and for each tensor where it has a batch, if it has."""
        own, shared, per_image = self.images or ((), (), ())
        batched = [k for k, d in enumerate(dims) if any(x is not None for x in flatten(d)[0])]
        if self.images is None or not {*batched} <= {*own, *shared}:
            args = self.repeated(args) if self.repeated else args
            (flat, layout), where = flatten(args), flatten(dims)[0]
            picked = list(zip(flat, where, strict=True))
            found = [
                self(*unflatten([x if d is None else x.select(d, k) for x, d in picked], layout))
                for k in range(size)
            ]
            if not found:
                raise UnsupportedError(f"vmap over an empty batch in proxfield's {self.name}")
            rows = [flatten(one)[0] for one in found]
            stacked = [torch.stack(some) for some in zip(*rows, strict=True)]
            return unflatten(stacked, flatten(found[0])[1]), [0] * len(stacked)
        given = {k: (flatten(args[k]), flatten(dims[k])[0]) for k in (*own, *shared)}
        counts = [
            x.shape[int(d == 0)]
            for (some, _), where in given.values()
            for x, d in zip(some, where, strict=True)
        ]
        args = list(args)
        for k, ((some, layout), where) in given.items():
            merged = [
                _merge(x, d, size, max(counts), k in shared)
                for x, d in zip(some, where, strict=True)
            ]
            args[k] = unflatten(merged, layout)
        out = self(*args)
        flat, splits = [], []
        for result, split in zip(out if isinstance(out, tuple) else [out], per_image, strict=True):
            some = flatten(result)[0]
            flat += some
            splits += [0 if split and y.shape[0] else None for y in some]
        flat = [
            y if at is None else y.reshape(size, -1, *y.shape[1:])
            for y, at in zip(flat, splits, strict=True)
        ]
        return unflatten(flat, flatten(out)[1]), splits


def flatten(nested: Any) -> tuple[list[Any], Any]:
    """What is in a tuple, in its lists too; and how it is nested."""
    found: tuple[list[Any], Any] = torch.utils._pytree.tree_flatten(nested)
    return found


def unflatten(flat: Iterable[Any], layout: Any) -> Any:
    """The inverse of `flatten`."""
    return torch.utils._pytree.tree_unflatten(list(flat), layout)


def _merge(x: Tensor, dim: int | None, size: int, count: int, shared: bool) -> Tensor:
    """A batch of images as more images.  # (count or 1, …) -> (size · count, …), or 1"""
    if dim is None:
        if shared and x.shape[0] == 1:
            return x
        x = x.expand(size, *x.shape)
    else:
        x = x.movedim(dim, 0)  # (size, count or 1, …)
    return x.expand(size, count, *x.shape[2:]).reshape(size * count, *x.shape[2:])


class _View:
    """A context whose ``needs_input_grad`` is laid out as the arguments are."""

    def __init__(self, ctx: AutogradContext, needs: tuple[Any, ...]) -> None:
        self._ctx, self.needs_input_grad = ctx, needs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _function(op: Op) -> AutogradFunction:
    class Transformable(torch.autograd.Function):  # type: ignore[misc]
        """`op` for autograd and for ``torch.func``."""

        @staticmethod
        def forward(call: SimpleNamespace, *flat: Any) -> tuple[Tensor, ...]:
            found, call.results = flatten(op.registered(*unflatten(flat, call.args)))
            return tuple(found)

        @staticmethod
        def setup_context(
            ctx: AutogradContext, inputs: tuple[Any, ...], output: tuple[Tensor, ...]
        ) -> None:
            ctx.call, *flat = inputs
            op.context(ctx, unflatten(flat, ctx.call.args), unflatten(output, ctx.call.results))

        @staticmethod
        def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Any, ...]:
            needs = unflatten(ctx.needs_input_grad[1:], ctx.call.args)
            given = unflatten(grads, ctx.call.results)
            found = op.backward(
                _View(ctx, needs), *(given if isinstance(given, tuple) else (given,))
            )
            out: list[Any] = [None]
            for need, grad in zip(needs, found, strict=True):
                out += [None] * len(flatten(need)[0]) if grad is None else flatten(grad)[0]
            return tuple(out)

        @staticmethod
        def vmap(
            info: Any, in_dims: tuple[Any, ...], call: SimpleNamespace, *flat: Any
        ) -> tuple[Any, Any]:
            args, dims = (list(unflatten(x, call.args)) for x in (flat, in_dims[1:]))
            out, where = op.vmapped(info.batch_size, args, dims)
            found, call.results = flatten(out)
            return tuple(found), tuple(where)

        @staticmethod
        def jvp(ctx: AutogradContext, _: None, *tangents: Tensor | None) -> Any:
            if op.backward is refuse:
                refuse(ctx)
            if op.jvp is None:
                raise UnsupportedError(
                    f"no derivatives forward (jvp) through proxfield's {op.name}; use "
                    "reverse mode: torch.func.grad, vjp or jacrev"
                )
            return tuple(flatten(op.jvp(ctx, *unflatten(tangents, ctx.call.args)))[0])

    Transformable.__name__ = Transformable.__qualname__ = f"proxfield_{op.name}"
    return Transformable
