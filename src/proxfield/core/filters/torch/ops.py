"""Operators that PyTorch knows: registered for compilers, and for transforms of ``torch.func``.

An operator registered by ``torch.library`` is opaque to ``torch.compile`` and ``torch.export``, and
autograd differentiates it, but ``torch.func`` (``grad``, ``vmap``, ``jacrev``, ``jvp``) doesn't. An
``autograd.Function`` with the same kernel and gradient serves these, so `Op` has both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import AutogradContext, AutogradFunction, Tensor
from proxfield.errors import InputWarning, UnsupportedError

Function = Callable[..., Any]
Arguments = Sequence[Any]
"""Tensors, lists of tensors, and constants."""


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
        schema: Types of arguments and results; tensors, at most one list of tensors among the
            results, and constants.
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
        self,
        name: str,
        schema: str,
        kernel: Function,
        shape: Function,
        context: Function,
        backward: Function,
        *,
        images: tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]] | None = None,
        repeated: Callable[[list[Any]], list[Any]] | None = None,
        jvp: Function | None = None,
    ) -> None:
        self.name, self.context, self.backward, self.jvp = name, context, backward, jvp
        self.images, self.repeated = images, repeated
        if torch is None or not hasattr(torch.library, "custom_op"):
            return  # modules import anywhere; what uses them says what is missing
        op = torch.library.custom_op(f"proxfield::{name}", kernel, mutates_args=(), schema=schema)
        op.register_fake(shape)
        op.register_autograd(backward, setup_context=context)
        self.registered = getattr(torch.ops.proxfield, name)
        results = schema.rpartition("->")[2].strip(" ()").split(",")
        self.lists = ["[]" in result for result in results]
        """Which of the results are lists."""
        self.function = _function(self)

    def __call__(self, *args: Any) -> Any:
        """The results: a tensor, or a tuple of tensors and a list of them."""
        if torch.compiler.is_compiling():
            return self.registered(*args)
        lengths, flat = _flatten(args)
        found = self.function.apply(lengths, *flat)
        return self.results(found if isinstance(found, tuple) else (found,))

    def flat(self, results: Any) -> tuple[Tensor, ...]:
        """All tensors of the results."""
        return tuple(_flatten(results if isinstance(results, tuple) else (results,))[1])

    def results(self, flat: tuple[Any, ...]) -> Any:
        """The results from all their tensors: only one of them may be a list."""
        if len(self.lists) == 1:
            return flat[0]
        extra = len(flat) - len(self.lists)
        out: list[Any] = []
        at = 0
        for several in self.lists:
            count = extra + 1 if several else 1
            out.append(list(flat[at : at + count]) if several else flat[at])
            at += count
        return tuple(out)

    def vmapped(self, size: int, args: list[Any], dims: list[Any]) -> tuple[Any, Any]:
        """Results for a batch of arguments, and which of them have a batch, in front."""
        if self.images is not None:
            own, shared, per_image = self.images
            if all(k in own or k in shared for k, d in enumerate(dims) if not _no_batch(d)):
                return self._more_images(size, args, dims, (own, shared), per_image)
        args = self.repeated(args) if self.repeated else args
        found = [self.flat(self(*_select(args, dims, k))) for k in range(size)]
        if not found:
            raise UnsupportedError(f"vmap over an empty batch in proxfield's {self.name}")
        flat = tuple(torch.stack(some) for some in zip(*found, strict=True))
        return flat, (0,) * len(flat)

    def _more_images(
        self, size: int, args: list[Any], dims: list[Any],
        wanted: tuple[tuple[int, ...], tuple[int, ...]], per_image: tuple[bool, ...],
    ) -> tuple[Any, Any]:  # fmt: skip
        own, shared = wanted
        pairs = {k: _pairs(args[k], dims[k]) for k in (*own, *shared)}
        counts = [x.shape[int(d == 0)] for some in pairs.values() for x, d in some]
        given = list(args)
        for k, some in pairs.items():
            merged = [_merge(x, d, size, max(counts), k in shared) for x, d in some]
            given[k] = merged if isinstance(args[k], (list, tuple)) else merged[0]
        out = self(*given)
        outs = list(out) if isinstance(out, tuple) else [out]
        flat: list[Tensor] = []
        batched: list[int | None] = []
        for x, several, split in zip(outs, self.lists, per_image, strict=True):
            for y in x if several else [x]:
                flat.append(y.reshape(size, -1, *y.shape[1:]) if split and y.shape[0] else y)
                batched.append(0 if split and y.shape[0] else None)
        return tuple(flat), tuple(batched)


def _merge(x: Tensor, dim: int | None, size: int, count: int, shared: bool) -> Tensor:
    """A batch of images as more images.  # (count or 1, …) -> (size · count, …), or 1"""
    if dim is None:
        if shared and x.shape[0] == 1:
            return x
        x = x.expand(size, *x.shape)
    else:
        x = x.movedim(dim, 0)  # (size, count or 1, …)
    return x.expand(size, count, *x.shape[2:]).reshape(size * count, *x.shape[2:])


def _pairs(arg: Any, dims: Any) -> list[tuple[Tensor, int | None]]:
    if isinstance(arg, (list, tuple)):
        return list(zip(arg, dims, strict=True))
    return [(arg, dims)]


def _no_batch(dims: Any) -> bool:
    return all(d is None for d in dims) if isinstance(dims, list) else dims is None


def _select(args: list[Any], dims: list[Any], k: int) -> list[Any]:
    """The arguments of one call of a batch."""
    out = []
    for arg, dim in zip(args, dims, strict=True):
        if _no_batch(dim):
            out.append(arg)
            continue
        some = [x if d is None else x.select(d, k) for x, d in _pairs(arg, dim)]
        out.append(some if isinstance(arg, (list, tuple)) else some[0])
    return out


# ---- arguments of autograd functions: those in lists one by one ----


def _flatten(args: Arguments) -> tuple[list[int | None], list[Any]]:
    """Lengths of the arguments that are lists, None for others; and all that they hold."""
    lengths = [len(arg) if isinstance(arg, (list, tuple)) else None for arg in args]
    flat: list[Any] = []
    for arg in args:
        flat += arg if isinstance(arg, (list, tuple)) else [arg]
    return lengths, flat


def _unflatten(lengths: list[int | None], flat: Sequence[Any]) -> list[Any]:
    """The inverse of `_flatten`."""
    left = iter(flat)
    return [next(left) if n is None else [next(left) for _ in range(n)] for n in lengths]


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
        def forward(lengths: list[int | None], *flat: Any) -> tuple[Tensor, ...]:
            return op.flat(op.registered(*_unflatten(lengths, flat)))

        @staticmethod
        def setup_context(
            ctx: AutogradContext, inputs: tuple[Any, ...], output: tuple[Tensor, ...]
        ) -> None:
            ctx.lengths = inputs[0]
            op.context(ctx, tuple(_unflatten(ctx.lengths, inputs[1:])), op.results(output))

        @staticmethod
        def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Any, ...]:
            needs = tuple(_unflatten(ctx.lengths, ctx.needs_input_grad[1:]))
            given = op.results(grads)
            found = op.backward(
                _View(ctx, needs), *(given if isinstance(given, tuple) else (given,))
            )
            out: list[Any] = [None]
            for n, grad in zip(ctx.lengths, found, strict=True):
                out += [grad] if n is None else [None] * n if grad is None else grad
            return tuple(out)

        @staticmethod
        def vmap(
            info: Any, in_dims: tuple[Any, ...], lengths: list[int | None], *flat: Any
        ) -> tuple[Any, Any]:
            args, dims = _unflatten(lengths, flat), _unflatten(lengths, in_dims[1:])
            return op.vmapped(info.batch_size, args, dims)

        @staticmethod
        def jvp(ctx: AutogradContext, _: None, *tangents: Tensor | None) -> Any:
            if op.backward is refuse:
                refuse(ctx)
            if op.jvp is None:
                raise UnsupportedError(
                    f"no derivatives forward (jvp) through proxfield's {op.name}; use "
                    "reverse mode: torch.func.grad, vjp or jacrev"
                )
            found = op.jvp(ctx, *_unflatten(ctx.lengths, tangents))
            return tuple(_flatten(found if isinstance(found, tuple) else (found,))[1])

    Transformable.__name__ = Transformable.__qualname__ = f"proxfield_{op.name}"
    return Transformable
