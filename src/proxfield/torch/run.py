"""A field in torch, its updates and their gradients: what `proxfield.torch.infer` runs.

Parameters that come as tensors travel as one flat tensor, so that autograd sees a single input; the
field is lowered once without the terms they belong to, which are computed in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from proxfield.core.devices.cuda import torch, triton
from proxfield.core.devices.tensors import (
    AutogradContext,
    AutogradFunction,
    Tensor,
    TorchDevice,
    TorchDtype,
)
from proxfield.core.engines.plan import Order, Update
from proxfield.core.engines.torch.energy import Energy, softmax
from proxfield.core.engines.torch.program import Recorder, Recording, TorchProgram, pull_back
from proxfield.core.filters.torch.ops import refuse
from proxfield.core.lowering.lowered import Lowered, lower
from proxfield.core.solve.loop import make_updates
from proxfield.core.terms.base import Term
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.errors import InputError, UnsupportedError
from proxfield.field import Field
from proxfield.torch.solve import covariance, implicit

if TYPE_CHECKING:
    from proxfield.core.engines.triton.program import GpuProgram

WEIGHTED = (Potts, Ising)
"""Terms whose weights can be given."""
TABLED = (Factor, Pairwise, GridPairwise)
"""Terms whose tables can be given."""

TablesGiven = Tensor | Sequence[Tensor | None] | None


@dataclass
class Parameters:
    """The terms whose parameters are given, and the parameters.

    Attributes:
        positions: Which of the field's terms these are.
        terms: These terms.
        flat: Their weights and tables, one after another; None without any.  # (P,) or (B, P)
    """

    positions: tuple[int, ...] = ()
    terms: Sequence[Term] = ()
    flat: Tensor | None = None

    @classmethod
    def read(
        cls, field: Field, weights: Tensor | None, tables: TablesGiven, dtype: TorchDtype
    ) -> Parameters:
        """What was given, checked."""
        positions: list[int] = []
        parts: list[Tensor] = []
        if weights is not None:
            weighted = [k for k, t in enumerate(field.terms) if type(t) in WEIGHTED]
            count = sum(parameter_count(field.terms[k]) for k in weighted)
            if not weighted or weights.ndim not in (1, 2) or weights.shape[-1] != count:
                raise InputError(
                    f"weights of shape {tuple(weights.shape)}, expected ({count},): one for each "
                    "edge of the field's Potts and Ising terms"
                )
            positions += weighted
            parts.append(weights)
        for k, given, batched in _tables(field, tables):
            positions.append(k)
            parts.append(given.flatten(1) if batched else given.flatten())
        if not positions:
            return cls()
        batches = {len(part) for part in parts if part.ndim == 2} - {1}
        if len(batches) > 1:
            several = ", ".join(map(str, sorted(batches)))
            raise InputError(f"weights and tables for batches of {several}, expected one number")
        if any(part.ndim == 2 for part in parts):
            rows = batches.pop() if batches else 1
            parts = [p.expand(rows, -1) if p.ndim == 2 else p[None].expand(rows, -1) for p in parts]
        flat = torch.cat([part.to(dtype) for part in parts], dim=-1)
        return cls(tuple(positions), [field.terms[k] for k in positions], flat)

    def rest(self, field: Field) -> Lowered:
        """The field without these terms, kept with the field until a term is added."""
        if not self.positions:
            return field.lower()
        memory = field._kept.without
        if self.positions not in memory:
            others = [t for k, t in enumerate(field.terms) if k not in self.positions]
            memory[self.positions] = lower(field.layout, others, field.evidence)
        found = memory[self.positions]
        if not found.reduction.untouched.all():
            raise UnsupportedError(
                "weights= and tables= need a field without evidence or decided variables; "
                "+inf in unary observes a variable"
            )
        return found

    def fulls(self, field: Field) -> list[Lowered]:
        """The field with each row of the parameters."""
        assert self.flat is not None
        bounds = np.cumsum([0, *(parameter_count(t) for t in self.terms)])
        flat = self.flat.detach().double()
        out = []
        for row in flat.reshape(-1, flat.shape[-1]).cpu().numpy():
            if not np.isfinite(row).all():
                raise UnsupportedError(
                    "weights or tables that aren't finite have no derivative; use proxfield.infer"
                )
            terms = list(field.terms)
            for k, (a, b) in zip(self.positions, pairwise(bounds), strict=True):
                term, values = terms[k], row[a:b]
                if isinstance(term, (Potts, Ising)):
                    terms[k] = type(term).trusted(term.edges, values)
                    continue
                assert isinstance(term, (Factor, GridPairwise))
                made = values.reshape(term.tables.shape)
                if isinstance(term, Factor):
                    terms[k] = type(term).trusted(term.scopes, made, term.index)
                else:
                    terms[k] = GridPairwise(term.shape, term.offset, made, term.index, term.first)
            out.append(lower(field.layout, terms, field.evidence))
        return out


def parameter_count(term: Term) -> int:
    """How many numbers can be given for a term."""
    if isinstance(term, (Potts, Ising)):
        return len(term.weights)
    assert isinstance(term, (Factor, GridPairwise))
    return int(term.tables.size)


def _tables(field: Field, tables: TablesGiven) -> list[tuple[int, Tensor, bool]]:
    """Positions of terms, the tables that were given for them, and whether these are a batch."""
    if tables is None:
        return []
    able = [k for k, t in enumerate(field.terms) if type(t) in TABLED]
    given = [tables] if isinstance(tables, torch.Tensor) else list(tables)
    if len(given) != len(able):
        raise InputError(
            f"tables for {len(given)} term(s), expected {len(able)}: one tensor for each Pairwise, "
            "Factor and GridPairwise term of the field (None keeps its own)"
        )
    out = []
    for number, (k, mine) in enumerate(zip(able, given, strict=True)):
        term = field.terms[k]
        assert isinstance(term, (Factor, GridPairwise))
        if mine is None:
            continue
        shape, wanted = tuple(mine.shape), term.tables.shape
        single = wanted[1:] if len(term.tables) == 1 else wanted
        if not (shape in (wanted, single) or shape[1:] == wanted):
            raise InputError(
                f"tables of shape {shape} for table term {number} ({type(term).__name__}), "
                f"expected {wanted}, or a batch of these"
            )
        out.append((k, mine, shape not in (wanted, single)))
    return out


@dataclass
class Model:
    """A field as `Energy`, and the way between its entries and the user's."""

    fulls: list[Lowered]
    """With the parameters that were given (one for each row of them): for curvature and kernels."""
    energy: Energy
    kept: Tensor  # entries of the user's layout that are left to infer  # (size,)
    decided: Tensor  # marginals of those that aren't  # (full size,)

    @classmethod
    def make(
        cls, field: Field, parameters: Parameters, dtype: TorchDtype, device: TorchDevice
    ) -> Model:
        rest = parameters.rest(field)
        if rest.infeasible or rest.hard:
            raise UnsupportedError(
                "tables that forbid configurations have no derivative; use proxfield.infer"
            )
        given = parameters.terms
        # the parts of an energy that don't change are kept with the lowered field
        key = (dtype, device, bool(given))
        if key not in rest.differentiable:
            rest.differentiable[key] = Energy(rest, dtype, device, exact=True, given=given)
        energy = rest.differentiable[key]
        if energy.unknown:
            names = ", ".join(sorted({type(t).__name__ for t in energy.unknown}))
            raise UnsupportedError(f"no derivatives through {names}; use proxfield.infer")
        reduction = rest.reduction
        kept = np.flatnonzero(reduction.new_entry >= 0)
        decided = reduction.expand(np.zeros(rest.layout.size))
        fulls = parameters.fulls(field) if given else [rest]
        return cls(fulls, energy, torch.as_tensor(kept, device=device), energy.tensor(decided))

    def pad(self, flat: Tensor, fill: float = 0.0) -> Tensor:
        """The user's entries as a state.  # (B, full size) -> (B, n, labels)"""
        whole = flat.shape[1] == len(self.kept)
        return self.energy.padding.pad(flat if whole else flat[:, self.kept], fill)

    def split(self, numbers: Tensor | None) -> tuple[Tensor, ...]:
        """Parameters of one term after another.  # (P,) or (B, P)"""
        if numbers is None:
            return ()
        parts = self.energy.parts[len(self.energy.parts) - self.energy.given :]
        return tuple(numbers.split([part.count for part, _ in parts], dim=-1))

    def expand(self, q: Tensor) -> Tensor:
        """A state as the user's entries.  # (B, n, labels) -> (B, full size)"""
        flat = self.energy.padding.flatten(q)
        if flat.shape[1] == len(self.decided):
            return flat
        return self.decided.repeat(len(flat), 1).index_copy(1, self.kept, flat)


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
    from_unary: bool  # whether the start is the softmax of the energies
    max_iters: int
    tol: float
    limits: tuple[float, float, int] | None
    """Of the gradient of the fixed point, see `implicit`; None: that of the updates made."""
    learns: bool  # whether to record the updates: they are to be differentiated, and exactly
    made: Recording | None = None  # what was recorded, until autograd has it

    def record(self, energies: Tensor, weights: Tensor | None) -> Recording:
        """The updates, with the states before them."""
        program, plan = self.program_of(Recorder, energies, weights), deepcopy(self.plan)
        state = program.begin(plan, self.start)
        make_updates(program, plan, state, self.max_iters, self.tol)
        return program.recording(state)

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
            return self.iterate(self.program_of(TorchProgram, energies, weights), plan, self.start)
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
        q: Tensor, made: Recording | None, grad: Tensor, energies: Tensor, weights: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Gradients for the energies and the weights; ``made`` are the updates, if recorded."""
        found = self.backward_implicit(q, grad, energies, weights) if self.limits else None
        if found is not None:
            return found
        if made is None:
            made = self.record(energies, weights)
        start = softmax if self.from_unary else None
        return pull_back(
            partial(self.program_of, TorchProgram), made, grad, energies, weights, start
        )

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
        assert self.limits is not None
        y = implicit(hessian, q, target, to_theta, self.limits)
        if y is None:
            return None
        return y, None if w is None else torch.autograd.grad(g, w, y)[0]


def cuda_kernels(energies: Tensor) -> Callable[..., GpuProgram] | None:
    """The compiler of the GPU's own kernels, where there are any; else None."""
    if not energies.is_cuda or triton is None:
        return None
    from proxfield.core.engines.triton.program import compile_cuda

    return compile_cuda


@cache
def marginals_function() -> AutogradFunction:
    """The autograd function, made when first used: torch may not be there before."""

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
            ctx: AutogradContext, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]
        ) -> None:
            pass

        backward = staticmethod(refuse)

        @staticmethod
        def vmap(
            info: AutogradContext, dims: tuple[int | None, ...], *args: Tensor
        ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
            calls = [
                Gradients.apply(
                    *(x if d is None else x.select(d, k) for x, d in zip(args, dims, strict=True))
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
            ctx: AutogradContext, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]
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

    return Marginals
