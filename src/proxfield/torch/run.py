"""The updates of `proxfield.torch.infer` and their gradients, as one function for autograd."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from proxfield.core.devices.cuda import torch, triton
from proxfield.core.devices.tensors import AutogradContext, AutogradFunction, Tensor
from proxfield.core.engines.plan import Order, Update
from proxfield.core.engines.torch.moves import softmax
from proxfield.core.engines.torch.program import Recorder, Recording, TorchProgram, pull_back
from proxfield.core.filters.torch.ops import refuse
from proxfield.core.solve.loop import make_updates
from proxfield.errors import UnsupportedError
from proxfield.torch.solve import (
    IMPLICIT_TOL,
    covariance,
    implicit,
)

if TYPE_CHECKING:
    from proxfield.core.engines.triton.program import GpuProgram
    from proxfield.torch.inference import Model

UNDER_VMAP = (
    "torch.infer under torch.func.vmap: pass a batch of unary energies (B, n, labels) "
    'instead, or use gradient="unrolled"'
)

T = TypeVar("T", bound=TorchProgram)


@dataclass
class GradientRun:
    """What the forward and the backward pass need beside tensors with gradients."""

    model: Model
    plan: Update | Order
    start: Tensor
    from_unary: bool
    """Whether the start is the softmax of the energies."""
    max_iters: int
    tol: float
    implicit: bool
    adjoint_tol: float
    adjoint_max_iters: int
    learns: bool
    """Whether to record the updates: they are to be differentiated, and exactly."""
    made: Recording | None = None
    """What was recorded, until autograd has it."""

    def record(self, energies: Tensor, weights: Tensor | None) -> Recording:
        """The updates, with the states before them."""
        program, plan = self.program_of(Recorder, energies, weights), deepcopy(self.plan)
        state = program.begin(plan, self.start)
        make_updates(program, plan, state, self.max_iters, self.tol)
        return program.recording(state)

    def program(self, energies: Tensor, weights: Tensor | None) -> TorchProgram:
        """The updates in torch operations."""
        return self.program_of(TorchProgram, energies, weights)

    def program_of(self, kind: type[T], energies: Tensor, weights: Tensor | None) -> T:
        """A program for this field of some class."""
        return kind(
            self.model.fulls[0], str(energies.dtype).removeprefix("torch."), energies.device,
            unary=energies, energy=self.model.energy, weights=self.model.split(weights),
        )  # fmt: skip

    def forward(self, energies: Tensor, weights: Tensor | None) -> Tensor:
        """Marginals after the updates, by the fastest way there is.  # (B, n, labels)"""
        plan = deepcopy(self.plan)  # random orders start over if the updates are made again
        kind = str(energies.dtype).removeprefix("torch.")
        compile_cuda = cuda_kernels(energies)
        fulls = self.model.fulls
        if compile_cuda is None:
            return self.iterate(self.program(energies, weights), plan, self.start)
        padding = self.model.energy.padding
        before = padding.flatten(self.model.energy.unary)[0]
        finite = torch.isfinite(before)
        out: list[Tensor] = []
        for image, start in zip(
            padding.flatten(energies), padding.flatten(self.start), strict=True
        ):
            full = fulls[len(out)] if len(fulls) > 1 else fulls[0]
            made, key = full.differentiable, ("program", kind, energies.device)
            if key not in made:
                # what lowering moved into the unaries when it merged edges and tables stays there
                own = self.model.energy.tensor(full.unary)
                shift = torch.where(finite, own - torch.where(finite, before, 0.0), 0.0)
                made[key] = compile_cuda(full, kind, device=energies.device), shift
            program, shift = made[key]
            program.set_unary(image + shift)
            out.append(self.iterate(program, plan, start.contiguous()).clone())
        return padding.pad(torch.stack(out).to(energies.dtype), 0.0)

    def iterate(
        self, program: TorchProgram | GpuProgram, plan: Update | Order, start: Tensor
    ) -> Tensor:
        """Marginals after the updates of a program whose states are tensors, from some others."""
        state = program.start_from(start)
        make_updates(program, plan, state, self.max_iters, self.tol)
        return program.tensor(state)

    def backward(
        self,
        q: Tensor,
        made: Recording | None,
        grad: Tensor,
        energies: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients for the energies and the weights; ``made`` are the updates, if recorded."""
        if self.implicit:
            found = self.backward_implicit(q, grad, energies, weights)
            if found is not None:
                return found
        if made is None:
            made = self.record(energies, weights)
        start = softmax if self.from_unary else None
        return pull_back(self.program, made, grad, energies, weights, start)

    def backward_implicit(
        self, q: Tensor, grad: Tensor, energies: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Gradients of the fixed point; None, and a warning, where there isn't one."""
        energy = self.model.energy
        with torch.enable_grad():
            at = q.detach().requires_grad_()
            w = None if weights is None else weights.detach().requires_grad_()
            finite = torch.where(torch.isinf(energies), torch.zeros_like(energies), energies)
            g = energy.gradient(at, finite.detach(), *self.model.split(w))
        target = torch.where(torch.isinf(energies), energies, g.detach())

        def hessian(p: Tensor) -> Tensor:
            if not g.requires_grad:  # nothing but unaries
                return torch.zeros_like(p)
            (out,) = torch.autograd.grad(g, at, p, retain_graph=True, allow_unused=True)
            return torch.zeros_like(p) if out is None else out

        to_theta = -covariance(q, grad)
        limits = IMPLICIT_TOL, self.adjoint_tol, self.adjoint_max_iters
        y = implicit(hessian, q, target, to_theta, limits)
        if y is None:
            return None
        return y, None if w is None else torch.autograd.grad(g, w, y)[0]


def cuda_kernels(energies: Tensor) -> Callable[..., GpuProgram] | None:
    """The compiler of the GPU's own kernels, where there are any; else None."""
    if not energies.is_cuda or triton is None:
        return None
    try:
        found: Callable[..., GpuProgram] = import_module(
            "proxfield.core.engines.triton.program"
        ).compile_cuda
        return found
    except ImportError:
        return None


_FUNCTION: list[AutogradFunction] = []


def marginals_function() -> AutogradFunction:
    """The autograd function, made when first used: torch may not be there before."""
    if not _FUNCTION:

        class Gradients(torch.autograd.Function):  # type: ignore[misc]
            """The gradient as a function of its own, which transforms call with plain tensors."""

            @staticmethod
            def forward(
                run: GradientRun, made: Recording | None, grad: Tensor, q: Tensor, energies: Tensor,
                weights: Tensor | None, *kept: Tensor,
            ) -> tuple[Tensor, ...]:  # fmt: skip
                made = None if made is None else replace(made, kept=list(kept))
                found = run.backward(q, made, grad, energies, weights)
                return tuple(x for x in found if x is not None)

            @staticmethod
            def setup_context(
                ctx: AutogradContext, inputs: tuple[Any, ...], output: tuple[Tensor, ...]
            ) -> None:
                pass

            backward = staticmethod(refuse)

            @staticmethod
            def vmap(
                info: Any, dims: tuple[int | None, ...], *args: Any
            ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
                calls = [
                    Gradients.apply(
                        *(
                            x if d is None else x.select(d, k)
                            for x, d in zip(args, dims, strict=True)
                        )
                    )
                    for k in range(info.batch_size)
                ]
                found = tuple(torch.stack(some) for some in zip(*calls, strict=True))
                return found, (0,) * len(found)

        class Marginals(torch.autograd.Function):  # type: ignore[misc]
            """Marginals after the updates, with the gradient that the run asks for."""

            @staticmethod
            def forward(
                energies: Tensor, weights: Tensor | None, run: GradientRun
            ) -> tuple[Tensor, ...]:
                if not run.learns:
                    return (run.forward(energies, weights),)
                run.made = made = run.record(energies, weights)
                return made.q, *made.kept

            @staticmethod
            def setup_context(
                ctx: AutogradContext, inputs: tuple[Any, ...], output: tuple[Tensor, ...]
            ) -> None:
                energies, weights, ctx.run = inputs
                q, *kept = output
                # its tensors go where autograd's hooks see them
                made, ctx.run.made = ctx.run.made, None
                ctx.made = None if made is None else replace(made, q=None, kept=[])
                ctx.mark_non_differentiable(*kept)
                ctx.set_materialize_grads(False)  # no zeros for each state that was kept
                ctx.save_for_backward(q, energies, weights, *kept)

            @staticmethod
            def backward(
                ctx: AutogradContext, grad: Tensor | None, *_: None
            ) -> tuple[Tensor | None, ...]:
                q, energies, weights, *kept = ctx.saved_tensors
                grad = torch.zeros_like(q) if grad is None else grad
                found = Gradients.apply(ctx.run, ctx.made, grad, q, energies, weights, *kept)
                return *found, *[None] * (3 - len(found))

            @staticmethod
            def vmap(*_: object) -> None:
                raise UnsupportedError(UNDER_VMAP)

            @staticmethod
            def jvp(*_: object) -> None:
                raise UnsupportedError(
                    'torch.infer has no derivatives forward (jvp); use gradient="unrolled", or '
                    "reverse mode: torch.func.grad or vjp"
                )

        _FUNCTION.append(Marginals)
    return _FUNCTION[0]
