"""Updates of any rule with their states kept, and the exact gradient of what they did.

What an update needs of the state before it is kept: θ (q where marginals are averaged, and for
sweeps) and a rule's moments. The backward pass takes one update at a time, the last first:
it makes it again, recorded by autograd, and drops the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.base import State
from proxfield.core.engines.plan import Order, Update
from proxfield.core.engines.torch.moves import softmax
from proxfield.core.engines.torch.program import TorchProgram, TorchState
from proxfield.core.solve.loop import make_updates

SMALLEST_MOMENT = 1e-30
"""Second moments start here: the square root has no derivative at 0."""


@dataclass
class Recording:
    """What some updates did.

    Attributes:
        q: Marginals after the last.  # (B, n, labels)
        names: What is kept of the state before each update.
        kept: These tensors, one update after another.  # (B, n, labels) each
        plans: The plan of each update; orders are no longer random.
    """

    q: Tensor
    names: tuple[str, ...]
    kept: list[Tensor]
    plans: list[Update | Order]


def kept_names(plan: Update | Order) -> tuple[str, ...]:
    """What is kept of the state before an update: what it depends on."""
    if not isinstance(plan, Update):
        return ("q",)
    return ("q" if plan.kind.averages_marginals else "theta", *plan.kind.moment_names)


def first_state(plan: Update | Order | None, q: Tensor) -> TorchState:
    """The state at these marginals.  # (B, n, labels)"""
    state = TorchState(q)
    if isinstance(plan, Update) and "v" in plan.kind.moment_names:
        state.v = torch.full_like(q, SMALLEST_MOMENT)
    return state


class Recorder(TorchProgram):
    """A program that keeps what `pull_back` needs of every update."""

    kept: list[Tensor]
    plans: list[Update | Order]

    def update(self, s: TorchState, plan: Update | Order, f: Tensor | None = None) -> Tensor:
        if isinstance(plan, Order) and plan.shuffle is not None:
            drawn = plan.shuffle.permutation(plan.variables)
            plan = replace(plan, variables=drawn, shuffle=None)
        self.kept += [getattr(s, name) for name in kept_names(plan)]
        self.plans.append(plan)
        return super().update(s, plan, f)

    def record(self, plan: Update | Order, q: Tensor, max_iters: int, tol: float) -> Recording:
        """Update, and keep the states.

        Args:
            plan: How states move.
            q: Marginals to start from.  # (B, n, labels)
            max_iters: Maximum number of updates.
            tol: Largest change over the step at which to stop.
        """
        self.kept, self.plans = [], []
        state = State(first_state(plan, q))
        make_updates(self, plan, state, max_iters, tol)
        return Recording(self.tensor(state), kept_names(plan), self.kept, self.plans)


def pull_back(
    make_program: Callable[[Tensor, Tensor], TorchProgram],
    made: Recording,
    grad: Tensor,
    energies: Tensor,
    weights: Tensor,
    start: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Gradients for the energies and the weights, from that for the marginals.

    Args:
        make_program: From energies and weights.
        made: The updates.
        grad: # (B, n, labels)
        energies: # (B, n, labels)
        weights: Of edges, or None.
        start: The first marginals as a function of the energies; None: they don't depend on them.

    Returns:
        # (B, n, labels), as the weights
    """
    with torch.enable_grad():
        given = [energies.detach().requires_grad_()]
        if weights is not None:
            given.append(weights.detach().requires_grad_())
        program = make_program(given[0], given[1] if weights is not None else None)
    totals = [torch.zeros_like(x) for x in given]
    width = len(made.names)
    ends: tuple[str, ...] = ("q",)  # what the gradients are for
    grads = [grad]
    for k in reversed(range(len(made.plans))):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in made.kept[k * width : (k + 1) * width]]
            state = _restored(made.names, leaves)
            program.update(state, made.plans[k])
        found = _gradients([getattr(state, name) for name in ends], [*leaves, *given], grads)
        grads, ends = found[:width], made.names
        totals = [a + b for a, b in zip(totals, found[width:], strict=True)]
    if start is not None:
        with torch.enable_grad():
            plan = made.plans[0] if made.plans else None
            state = first_state(plan, start(given[0]))
        found = _gradients([getattr(state, name) for name in ends], given, grads)
        totals = [a + b for a, b in zip(totals, found, strict=True)]
    return totals[0], totals[1] if weights is not None else None


def _restored(names: tuple[str, ...], tensors: list[Tensor]) -> TorchState:
    """The state before an update, from what was kept of it."""
    held = dict(zip(names, tensors, strict=True))
    state = TorchState(held["q"] if "q" in held else softmax(held["theta"]))
    for name, tensor in held.items():
        setattr(state, name, tensor)
    return state


def _gradients(outputs: list[Tensor], inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Gradients for the inputs, 0 where an output doesn't depend on them."""
    used = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad]
    if not used:
        return [torch.zeros_like(x) for x in inputs]
    outs, weights = zip(*used, strict=True)
    found = torch.autograd.grad(outs, inputs, weights, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
