"""The engine "torch": every update in plain torch operations, wherever torch runs.

What an update needs of the state before it can be kept: θ (q where marginals are averaged, and for
sweeps) and a rule's moments. `pull_back` takes one update at a time, the last first: it makes it
again, recorded by autograd, and drops the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles
from proxfield.core.devices.base import find
from proxfield.core.devices.cuda import need_torch, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines import plan as planned
from proxfield.core.engines.base import Program, Rows, State, slack
from proxfield.core.engines.recorded import Factors, Recorded
from proxfield.core.engines.reference import TINY, ReferenceProgram, moved
from proxfield.core.engines.torch.energy import Energy, possible, softmax
from proxfield.core.lowering.lowered import Lowered, lower_untouched
from proxfield.core.terms.base import Floats, Ints, Layout
from proxfield.core.terms.factor import Factor


class TorchState:
    """Marginals, natural parameters, moments, the state before.  # (B, n, labels) each"""

    def __init__(self, q: Tensor) -> None:
        self.q = q
        self.theta = -torch.log(q.clamp(min=TINY))
        self.u = torch.zeros_like(q)
        self.v = torch.zeros_like(q)
        self.before = q
        self.sizes: list[float | None] = [None] * len(q)  # the next steps of a `Search`


class TorchProgram(Program):
    """See `Program` and, for what each update does, `ReferenceProgram`.

    Several copies of the field with other unary energies can iterate together, as a batch: then F
    and the changes that `advance` reports are the sum and the largest. Terms without an
    implementation for "torch" are computed on the host, and so are `descend` and `explore`.
    ``unary`` are energies instead of the field's (B, n, labels), ``energy`` is the field's energy
    if there is one already, and ``weights`` are those of the edges that were given separately.
    """

    def __init__(
        self, lowered: Lowered, dtype: str = "float64", device: TorchDevice = None, *,
        threads: int | None = None, unary: Tensor | None = None, energy: Energy | None = None,
        weights: tuple[Tensor, ...] = (),
    ) -> None:  # fmt: skip
        need_torch()
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)
        self.device = torch.device("cpu" if device is None else device)
        kind = getattr(torch, self.dtype.name)
        self.field = Energy(lowered, kind, self.device) if energy is None else energy
        self.unary = self.field.unary if unary is None else unary
        self.weights = weights
        self.padding = self.field.padding

    # ---- states ----

    def start(self, q: Floats) -> State:
        flat = self.field.tensor(q)[None].expand(len(self.unary), -1)
        return self.start_from(self.padding.pad(flat, 0.0))

    def start_from(self, q: Tensor) -> State:
        """A state at these marginals.  # (B, n, labels)"""
        return State(TorchState(q))

    def tensor(self, state: State) -> Tensor:
        """The marginals, on the device.  # (B, n, labels)"""
        return state.arrays.q

    def _host(self, padded: Tensor) -> NDArray[np.float64]:
        out = self.padding.flatten(padded)[0].detach().cpu().numpy()
        return np.array(out, dtype=np.float64)

    def marginals(self, state: State) -> NDArray[np.float64]:
        return self._host(state.arrays.q)

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        super().set_unary(energies, at)
        self.unary = self.padding.pad(self.field.tensor(self.lowered.unary)[None], np.inf)

    # ---- energies ----

    def _gradient(self, q: Tensor) -> Tensor:
        out = self.field.gradient(q, self.unary, *self.weights)
        for term in self.field.unknown:  # through the host, image by image
            flat = self.padding.flatten(q).cpu().double().numpy()
            extra = np.zeros_like(flat)
            for image, mine in zip(extra, flat, strict=True):
                term.add_gradient(self.layout, mine, image)
            out = out + self.padding.pad(self.field.tensor(extra), 0.0)
        return out

    def _free_energy(self, q: Tensor) -> Tensor:
        out = self.field.free_energy(q, self.unary, *self.weights)
        for term in self.field.unknown:
            flat = self.padding.flatten(q).cpu().double().numpy()
            extra = [term.energy(self.layout, mine) for mine in flat]
            out = out + torch.as_tensor(extra, dtype=self.field.sums, device=self.device)
        return out

    def gradient(self, q: Floats) -> NDArray[np.float64]:
        with torch.no_grad():
            padded = self.padding.pad(self.field.tensor(q)[None], 0.0)
            return self._host(self._gradient(padded))

    def free_energy(self, state: State) -> float:
        with torch.no_grad():
            return float(self._free_energy(state.arrays.q).sum())

    # ---- updates ----

    def advance(self, state: State, plan: planned.Plan, n: int, tol: float, trace: bool) -> Rows:
        energies: list[float] = []
        changes: list[float] = []
        s = state.arrays
        scale: Tensor | float = 1.0
        earlier = None
        with torch.no_grad():
            for _ in range(n):
                f = self._free_energy(s.q) if trace else None
                energies.append(np.nan if f is None else float(f.sum()))
                old = s.q
                if isinstance(plan, planned.Custom):
                    theta, q, g = (self._host(x) for x in (s.theta, s.q, self._gradient(s.q)))
                    new = self.field.tensor(plan.function(theta, q, g, state.memory))
                    s.theta, scale = self.padding.pad(new[None], np.inf), plan.step
                    s.q = softmax(s.theta)
                else:
                    scale = self.update(s, plan, f)
                changes.append(largest((s.q - old).abs() / scale))
                earlier, s.before = s.before, old
                if not changes[-1] > tol:  # NaN ends it too
                    break
            period2 = np.inf if earlier is None else largest((s.q - earlier).abs() / scale)
        return Rows(np.array(energies), np.array(changes), period2)

    def update(
        self, s: TorchState, plan: planned.Update | planned.Order, f: Tensor | None = None
    ) -> Tensor:
        """One update of a state, in operations that autograd can record.

        Args:
            s: The state; its tensors are replaced, not written to.
            plan: How it moves.
            f: F of each image, if it is known.  # (B,)

        Returns:
            The step: what changes of q are measured by.
        """
        if isinstance(plan, planned.Order):
            return self._sweep(s, plan)
        if plan.watches and f is None:
            with torch.no_grad():
                f = self._free_energy(s.q)
        return self._parallel(s, plan, f)

    def _parallel(self, s: TorchState, plan: planned.Update, f: Tensor) -> Tensor:
        target = plan.inverse_temperature * self._gradient(s.q)
        theta, target, impossible = possible(s.theta, target)
        infinite = torch.full_like(theta, torch.inf)
        step = self.field.tensor(plan.step)[None, :, None]  # (1, n, 1)
        if plan.adaptive:
            certain = step if plan.fallback is None else self.field.tensor(plan.fallback)
            certain = certain.reshape(1, -1, 1)
            spread = (4 * s.q * (1 - s.q)).amax(dim=-1, keepdim=True)
            step = 1 / (1 + (1 / step - 1) * spread)
            trial = torch.where(impossible, infinite, theta - step * (theta - target))
            slacks = [slack(float(x), self.dtype) for x in f]
            allowed = f + torch.as_tensor(slacks, dtype=f.dtype, device=f.device)
            rose = self._free_energy(softmax(trial)) > allowed
            step = torch.where(rose[:, None, None], certain, step)

        if plan.search is not None:
            step = self._searched(s, plan.search, theta, theta - target, f, impossible)

        def center(x: Tensor) -> Tensor:
            """Subtract the mean over possible labels."""
            count = (~impossible).sum(dim=-1, keepdim=True).clamp(min=1)
            kept = torch.where(impossible, torch.zeros_like(x), x)
            return x - kept.sum(dim=-1, keepdim=True) / count

        s.theta = torch.where(impossible, infinite, moved(s, plan, theta, target, step, center))
        s.q, old = softmax(s.theta), s.q
        if plan.kind.averages_marginals:
            mixed = (1 - step) * old + step * s.q
            mixed = torch.where(impossible, torch.zeros_like(mixed), mixed)
            s.q = mixed / mixed.sum(dim=-1, keepdim=True)
        return step

    def _searched(
        self, s: TorchState, search: planned.Search, theta: Tensor, residual: Tensor, f: Tensor,
        impossible: Tensor,
    ) -> Tensor:  # fmt: skip
        """The step of each image: the first tried that doesn't raise its F.  # (B, 1, 1)"""
        sizes = [search.first if size is None else size for size in s.sizes]
        bounds = [float(x) + slack(float(x), self.dtype) for x in f]
        trying = [True] * len(sizes)
        with torch.no_grad():
            while any(trying):
                step = torch.as_tensor(sizes, dtype=theta.dtype, device=theta.device)
                trial = theta - step[:, None, None] * residual
                trial = torch.where(impossible, torch.full_like(trial, torch.inf), trial)
                found = self._free_energy(softmax(trial)).tolist()
                for k, (new, bound) in enumerate(zip(found, bounds, strict=True)):
                    trying[k] = trying[k] and not new <= bound and sizes[k] > planned.SMALLEST_STEP
                    sizes[k] *= search.shrinkage if trying[k] else 1.0
        s.sizes = [min(search.largest, size * search.growth) for size in sizes]
        return torch.as_tensor(sizes, dtype=theta.dtype, device=theta.device)[:, None, None]

    def _sweep(self, s: TorchState, plan: planned.Order) -> float:
        """Groups of variables that don't interact, or single ones, one after another."""
        self.need_visits(plan)
        variables = plan.drawn()
        bounds = np.arange(len(variables) + 1) if plan.starts is None else plan.starts
        order = torch.as_tensor(np.ascontiguousarray(variables), device=self.device)
        s.q, s.theta = s.q.clone(), s.theta.clone()  # the state before is still needed
        for first, end in pairwise(bounds):
            mine = order[int(first) : int(end)]
            g = plan.inverse_temperature * self._gradient(s.q)[:, mine]
            stuck = torch.isinf(g).all(dim=-1, keepdim=True)
            s.theta[:, mine] = torch.where(stuck, s.theta[:, mine], g)
            s.q[:, mine] = torch.where(stuck, s.q[:, mine], softmax(g))
        return 1.0

    # ---- labellings ----

    def descend(self, labels: Floats, sweeps: int) -> NDArray[np.float64]:
        return ReferenceProgram(self.lowered).descend(labels, sweeps)

    def explore(self, chains: planned.Chains, threads: int | None = None) -> planned.Explored:
        return ReferenceProgram(self.lowered).explore(chains, threads)


def largest(change: Tensor) -> float:
    """The largest entry; NaN if there is one."""
    return float(change.max()) if change.numel() else 0.0


# ---- updates of any rule with their states kept, and the exact gradient of what they did ----

SMALLEST_MOMENT = 1e-30
"""Second moments start here: the square root has no derivative at 0."""


@dataclass
class Recording:
    """What some updates did; the plan of each is no longer random."""

    q: Tensor  # marginals after the last  # (B, n, labels)
    names: tuple[str, ...]  # what is kept of the state before each update
    kept: list[Tensor]  # these tensors, one update after another  # (B, n, labels) each
    plans: list[planned.Update | planned.Order]


def kept_names(plan: planned.Update | planned.Order) -> tuple[str, ...]:
    """What is kept of the state before an update: what it depends on."""
    if not isinstance(plan, planned.Update):
        return ("q",)
    return ("q" if plan.kind.averages_marginals else "theta", *plan.kind.moment_names)


def first_state(plan: planned.Update | planned.Order | None, q: Tensor) -> TorchState:
    """The state at these marginals.  # (B, n, labels)"""
    state = TorchState(q)
    if isinstance(plan, planned.Update) and "v" in plan.kind.moment_names:
        state.v = torch.full_like(q, SMALLEST_MOMENT)
    return state


class Recorder(TorchProgram):
    """A program that keeps what `pull_back` needs of every update."""

    kept: list[Tensor]
    plans: list[planned.Update | planned.Order]
    names: tuple[str, ...]

    def update(
        self, s: TorchState, plan: planned.Update | planned.Order, f: Tensor | None = None
    ) -> Tensor:
        if isinstance(plan, planned.Order) and plan.shuffle is not None:
            plan = replace(plan, variables=plan.drawn(), shuffle=None)
        self.kept += [getattr(s, name) for name in kept_names(plan)]
        self.plans.append(plan)
        return super().update(s, plan, f)

    def begin(self, plan: planned.Update | planned.Order, q: Tensor) -> State:
        """A state at these marginals, from which updates are recorded.

        Args:
            plan: How states will move.
            q: # (B, n, labels)
        """
        self.kept, self.plans, self.names = [], [], kept_names(plan)
        return State(first_state(plan, q))

    def recording(self, state: State) -> Recording:
        """What the updates since `begin` did, which led to this state."""
        return Recording(self.tensor(state), self.names, self.kept, self.plans)


def pull_back(
    make_program: Callable[[Tensor, Tensor], TorchProgram], made: Recording, grad: Tensor,
    energies: Tensor, weights: Tensor, start: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
            held = dict(zip(made.names, leaves, strict=True))
            state = TorchState(held["q"] if "q" in held else softmax(held["theta"]))
            vars(state).update(held)
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


def _gradients(outputs: list[Tensor], inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Gradients for the inputs, 0 where an output doesn't depend on them."""
    used = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad]
    if not used:
        return [torch.zeros_like(x) for x in inputs]
    outs, weights = zip(*used, strict=True)
    found = torch.autograd.grad(outs, inputs, weights, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


# ---- factors that share tables: the program with the tables as parameters ----

T = TypeVar("T", bound=TorchProgram)


class TiedEnergy:
    """Factors over tables that come with each call, on a device.

    Args:
        factors: Factors of one, two and more variables.
        offsets: First entry of each variable.  # (n + 1,)
        device: "cpu" or another device of torch.

    Attributes:
        energy: The energy; its parameters are the entries of w in ``entries``.
        entries: Of tables of several variables.
        unary: Entries of tables of one variable.
        places: The flat entries of variables that those belong to.
    """

    def __init__(self, factors: Sequence[Factors], offsets: Ints, device: str) -> None:
        need_torch()
        where = torch.device("cpu") if device == "cpu" else find(device, any_of_torch=True).handle()
        cards = np.diff(offsets)
        none = np.zeros(0, dtype=np.int64)
        entries, unary, places, terms = [none], [none], [none], []
        alike = []  # in labels and strides
        for f in factors:
            columns = np.column_stack([f.kind, cards[f.variables]])
            keys, which = np.unique(columns, axis=0, return_inverse=True)
            alike += [(f, np.flatnonzero(which.ravel() == k), key) for k, key in enumerate(keys)]
        for f, some, key in alike:
            scopes, base = f.variables[some].astype(np.int64), f.base[some].astype(np.int64)
            kind, *shape = key.tolist()
            strides = f.strides[kind, : len(shape)]
            first, index = np.unique(base, return_inverse=True)
            at = first.reshape(-1, *(1,) * len(shape)) + np.tensordot(
                strides, np.indices(shape), axes=1
            )  # (tables, K_1, …)
            if len(shape) == 1:
                unary.append(at[index].ravel())
                places.append((offsets[scopes] + np.arange(shape[0])).ravel())
            else:
                entries.append(at.ravel())
                tables = np.broadcast_to(0.0, at.shape)  # only the shape counts
                terms.append(Factor.trusted(scopes, tables, index))
        self.entries, self.unary, self.places = map(np.concatenate, (entries, unary, places))
        self.lowered = lower_untouched(Layout(cards), [], False, np.dtype(np.float64))
        self.energy = Energy(self.lowered, torch.float64, where, given=terms)
        self.counts = [part.count for part, _ in self.energy.parts]

    def program(self, kind: type[T], unary: Tensor, numbers: Tensor) -> T:
        """A program for unary energies and entries of tables.  # (1, n, labels), (entries,)"""
        return kind(
            self.lowered, "float64", self.energy.device, unary=unary, energy=self.energy,
            weights=tuple(numbers.split(self.counts)) if self.counts else (),
        )  # fmt: skip


class TorchUpdates(Recorded[State]):
    """Updates over the tables w, which are the parameters.

    Args:
        tied: The factors.
        w: The tables, one after another.  # (n_entries,)
    """

    def __init__(self, tied: TiedEnergy, w: Doubles) -> None:
        self.tied, self.n_entries = tied, len(w)
        energy, size = tied.energy, tied.lowered.layout.size
        flat = np.bincount(tied.places, w[tied.unary], size).astype(np.float64)
        self.unary = energy.padding.pad(energy.tensor(flat)[None], np.inf)
        self.numbers = energy.tensor(w[tied.entries])
        self.program = tied.program(Recorder, self.unary, self.numbers)

    def _plan(self, step: float) -> planned.Update:
        return planned.Update.damped(np.full(self.tied.lowered.layout.n_vars, step))

    def start(self) -> State:
        q = torch.isfinite(self.unary).to(self.unary)
        return self.program.begin(self._plan(1.0), q / q.sum(dim=-1, keepdim=True))

    def advance_each(
        self, state: State, plan: float, n: int, tol: float, trace: bool, wanted: NDArray[np.bool_]
    ) -> list[Rows]:
        return self.program.advance_each(state, self._plan(plan), n, tol, trace, wanted)

    def marginals(self, state: State) -> Doubles:
        return self.program.marginals(state)

    def moved(self, state: State) -> float:
        before = self.tied.energy.padding.flatten(state.arrays.before)
        return float((self.tied.energy.padding.flatten(state.arrays.q) - before).abs().mean())

    def pull_back(self, state: State, step: float, d: Doubles) -> Doubles:
        energy = self.tied.energy
        grad = energy.padding.pad(energy.tensor(d)[None], 0.0)
        made = self.program.recording(state)
        make = partial(self.tied.program, TorchProgram)
        found, to_numbers = pull_back(make, made, grad, self.unary, self.numbers, None)
        flat = energy.padding.flatten(found)[0].cpu().numpy()
        out = np.bincount(self.tied.entries, to_numbers.cpu().numpy(), self.n_entries)
        return np.asarray(
            out + np.bincount(self.tied.unary, flat[self.tied.places], self.n_entries)
        )
