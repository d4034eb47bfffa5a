"""The program of the engine "cuda": any field, any rule, on an NVIDIA GPU.

A `GpuProgram` is a `BatchProgram` of one field, and what only makes sense for one: sweeps, chains,
Python rules, terms that iterate on their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array
from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.base import Program, Rows, State, Tangent, softmax
from proxfield.core.engines.numba.terms import VisitingSweeps, on_cpu
from proxfield.core.engines.plan import Chains, Custom, Explored, Order, Plan
from proxfield.core.engines.triton.attach import attach
from proxfield.core.engines.triton.batch import BatchProgram
from proxfield.core.engines.triton.device_pack import from_numpy
from proxfield.core.engines.triton.state import BatchState, default_device
from proxfield.core.filters.triton.plans import DeviceFilter
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats, Ints, Term

if TYPE_CHECKING:
    from proxfield.core.engines.triton.products import DeviceProducts
    from proxfield.core.engines.triton.sweeps.sweeps import Sweeper
    from proxfield.core.engines.triton.terms.base import DeviceTerm


def compile_cuda(
    lowered: Lowered, dtype: str = "float32", threads: int | None = None, device: TorchDevice = None
) -> GpuProgram:
    """The program of a field on a CUDA device (in Triton's interpreter: on the CPU).

    Args:
        lowered: The field.
        dtype: Type of the state: "float32" or "float64".
        threads: Not used; every engine takes it.
        device: A CUDA device; by default the current one.
    """
    return GpuProgram(lowered, dtype, device)


def numbers_in(thing: object) -> tuple[tuple[str, Hashable], ...]:
    """Its attributes that are plain numbers or words: all that kernels are compiled for."""
    plain = (bool, int, str)
    return tuple(
        (k, v)
        for k, v in vars(thing).items()
        if isinstance(v, plain) or (isinstance(v, tuple) and all(isinstance(x, plain) for x in v))
    )


class GpuBatch(BatchProgram):
    """A batch of one field, with its own terms in float64 when F is wanted."""

    extras: tuple[Term, ...] = ()

    def exact_terms(self) -> list[DeviceTerm]:
        return terms_on(self.extras, self.joined.lowereds[0], "float64", self.device)


def terms_on(
    extras: tuple[Term, ...], lowered: Lowered, dtype: str, device: TorchDevice
) -> list[DeviceTerm]:
    """Terms that can't be lowered, as what the device iterates on."""
    if not extras:
        return []
    on_device = import_module("proxfield.core.engines.triton.terms.base").on_device
    return [on_device(term, lowered.layout, dtype, device) for term in extras]


class GpuProgram(Program):
    """See `Program`. The state lives on the device; F as reported is computed in float64.

    Args:
        lowered: The field.
        dtype: "float32" or "float64".
        device: A CUDA device.
        form: How couplings are stored, for tests; see the packs.

    Example:
        >>> program = GpuProgram(field.lower())  # doctest: +SKIP
        >>> state = program.start(np.full(field.layout.size, 0.5))  # doctest: +SKIP
        >>> program.advance(state, plan, 100, 1e-3, True).free_energy  # doctest: +SKIP
    """

    sums_in_double = True

    def __init__(
        self,
        lowered: Lowered,
        dtype: str = "float32",
        device: TorchDevice = None,
        form: str | None = None,
    ) -> None:
        self.device = default_device(device)
        lowered = attach(lowered, dtype, self.device)
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)
        self.batch = GpuBatch([lowered], dtype, self.device, form)
        self.batch.extras = lowered.extras
        self.batch.terms = terms_on(lowered.extras, lowered, dtype, self.device)
        self._flat_step = True
        self.batch.capturable = all(getattr(t, "capturable", False) for t in self.batch.terms)

    @property
    def parallel(self) -> bool:
        """Always: warming up runs an iteration."""
        return True

    def warm_up(self, plan: Plan, state: State, trace: bool) -> None:
        """An iteration, unless one like it has been made."""
        step = getattr(plan, "step", None)
        self._flat_step = isinstance(step, np.ndarray) and bool((step == step[:1]).all())
        super().warm_up(plan, state, trace)

    def build_for(self, plan: Plan | None) -> None:
        if self.sweepable and (plan is None or isinstance(plan, Order)):
            _ = self._sweeper

    def kernel_key(self) -> tuple[Hashable, ...]:
        """What programs have in common that need the same kernels, and more than that: sizes and
        numbers of blocks are in it too."""
        pack = self.batch.pack
        held = [getattr(t, "filter", None) for t in self.batch.terms]
        filters = [f for f in held if isinstance(f, DeviceFilter)]
        return (
            type(self), self.dtype, str(self.device), self._flat_step, self.batch.binary,
            self.batch.per_state, numbers_in(pack),
            *((numbers_in(b), b.kinds) for b in getattr(pack, "buckets", ())),
            *(type(t) for t in self.batch.terms), *((f.kind, f.features.shape) for f in filters),
        )  # fmt: skip

    # ---- states ----

    def start(self, q: Floats) -> State:
        return State(self.batch.start([q]))

    def start_from(self, q: Tensor) -> State:
        """A state at marginals that are on the device already.  # (size,)"""
        return State(self.batch.start_from(q))

    def tensor(self, state: State) -> Tensor:
        """The state's marginals on the device, in the program's type.  # (size,)"""
        return self.batch.tensor(state.arrays)

    def marginals(self, state: State) -> NDArray[np.float64]:
        return self.batch.marginals_each(state.arrays)[0]

    _located: tuple[Ints, Tensor] | None = None
    """The last argument of `marginals_at`, and the same on the device."""

    def marginals_at(self, state: State, entries: Ints) -> NDArray[np.float64]:
        if self._located is None or self._located[0] is not entries:
            self._located = entries, from_numpy(np.ascontiguousarray(entries)).to(self.device)
        q = self.batch.tensor(state.arrays, torch.float64)
        return np.asarray(q[self._located[1]].cpu().numpy())

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        """As in `Program`, without packing the rest again; ``lowered`` keeps those it came with.

        Args:
            energies: An array of numpy, or a tensor on any device.  # (size,) or (m,)
            at: Of which entries; all by default.  # (m,)
        """
        new = energies
        if isinstance(energies, np.ndarray):
            new = from_numpy(np.ascontiguousarray(energies))
        if at is not None:
            every = self.batch.unary.clone()
            every[from_numpy(np.ascontiguousarray(at)).to(every.device)] = new.to(every)
            new = every
        self.batch.set_unary(new)
        if "_sweeper" in self.__dict__:
            self._sweeper.set_unary(self.batch.unary.to(self.batch.tensors.dtype))

    # ---- updates ----

    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        if n <= 0:
            return Rows(np.zeros(0), np.zeros(0))
        s: BatchState = state.arrays
        s.known = None
        if not self.layout.n_vars:
            return self._still()
        if isinstance(plan, Order):
            return self._sweep(s, plan, n, tol)
        s.extra.clear()
        if isinstance(plan, Custom):
            return self._custom(state, plan, n, tol)
        return self.batch.advance_each(s, plan, n, tol, trace)[0]

    def _still(self) -> Rows:
        """A field without variables is where it ends."""
        return Rows(np.array([self.lowered.constant]), np.zeros(1), 0.0)

    def _custom(self, state: State, plan: Custom, n: int, tol: float) -> Rows:
        s: BatchState = state.arrays
        energies, changes, period2 = [], [], np.inf
        for _ in range(n):
            q = self.batch.tensor(s, torch.float64)
            f, g = self.batch.look(q)
            energies.append(np.inf if s.pending[0] else float(f[0]))
            old = self.marginals(state)
            theta = self._theta(old)
            new = plan.function(theta, old, g.cpu().numpy(), state.memory)
            after = softmax(self.layout.owner, self.layout.offsets, np.asarray(new, np.float64))
            s.pending[:] = False
            finite = bool(np.isfinite(after).all())
            if finite:
                self.batch.set_marginals(s, torch.as_tensor(after).to(self.device))
            change = float(np.abs(after - old).max(initial=0.0)) / plan.step
            changes.append(change if finite else np.nan)
            earlier, state.earlier = state.earlier, old
            back = np.inf if earlier is None else float(np.abs(after - earlier).max(initial=0.0))
            period2 = back / plan.step
            if not changes[-1] > tol:
                break
        return Rows(np.array(energies), np.array(changes), period2)

    def _theta(self, q: Floats) -> NDArray[np.float64]:
        return np.asarray(-np.log(np.maximum(q, 1e-30)))

    # ---- one variable after another ----

    @cached_property
    def _sweeper(self) -> Sweeper:
        module = import_module("proxfield.core.engines.triton.sweeps.sweeps")
        sweeper: Sweeper = module.Sweeper(self.lowered, self.dtype.name, self.device)
        sweeper.set_unary(self.batch.unary.to(self.batch.tensors.dtype))
        return sweeper

    def _sweep(self, s: BatchState, plan: Order, n: int, tol: float) -> Rows:
        self.need_visits(plan)
        if self.lowered.extras:
            return self._sweep_on_host(s, plan, n, tol)
        if "q" not in s.extra:
            q = torch.as_tensor(self.batch.marginals_each(s)[0]).to(self.device)
            s.extra["f"] = float(self.batch.free_energy_each(s)[0])
            s.extra["q"] = q.to(self.batch.tensors.dtype)
            s.extra["theta"] = -torch.log(q.clamp(min=1e-30)).to(self.batch.tensors.dtype)
        q, theta, f = s.extra["q"], s.extra["theta"], s.extra["f"]
        energies, changes = [], []
        for _ in range(n):
            order = plan.variables
            if plan.shuffle is not None:
                order = plan.shuffle.permutation(order)
            energies.append(f)
            delta, change = self._sweeper.sweep(
                q, theta, order, plan.starts, plan.inverse_temperature
            )
            f = f + float(delta)
            changes.append(float(change))
            if s.pending[0]:  # F exists from the first sweep on
                s.pending[:] = False
                f = float(self.batch.look(self._normalized(q))[0][0])
            if not changes[-1] > tol:
                break
        s.extra["f"] = f
        self.batch.set_marginals(s, self._normalized(q))
        return Rows(np.array(energies), np.array(changes))

    def _sweep_on_host(self, s: BatchState, plan: Order, n: int, tol: float) -> Rows:
        """Terms that are visited one variable at a time have no kernel for that here."""
        energies, changes = [], []
        for _ in range(n):
            energies.append(float(self.batch.free_energy_each(s)[0]))
            q = self.batch.marginals_each(s)[0]
            old = q.copy()
            order = plan.variables
            if plan.shuffle is not None:
                order = plan.shuffle.permutation(order)
            self._visiting.sweep(q, order, plan.inverse_temperature)
            s.pending[:] = False
            self.batch.set_marginals(s, torch.as_tensor(q).to(self.device))
            changes.append(float(np.abs(q - old).max(initial=0.0)))
            if not changes[-1] > tol:
                break
        return Rows(np.array(energies), np.array(changes))

    @cached_property
    def _visiting(self) -> VisitingSweeps:
        layout, dtype = self.layout, np.dtype(np.float64)
        return VisitingSweeps(self.lowered, [on_cpu(t, layout, dtype) for t in self.lowered.extras])

    def _normalized(self, q: Tensor) -> Tensor:
        q = q.to(torch.float64)
        return q / self.batch.natural.sums(q)

    def descend(self, labels: Floats, sweeps: int) -> NDArray[np.float64]:
        self.need_sweeps()
        q = from_numpy(np.asarray(labels, dtype=np.float64)).to(self.device)
        q = q.to(self.batch.tensors.dtype)
        found = self._sweeper.descend(q, sweeps)
        q = q if found is None else found
        return np.asarray(q.to(torch.float64).cpu().numpy())

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        self.need_sweeps()
        module = import_module("proxfield.core.engines.triton.sweeps.chains")
        explored: Explored = module.explore(self._sweeper, chains)
        return explored

    def copy(self, state: State) -> State:
        return State(self.batch.copy(state.arrays), deepcopy(state.memory))

    # ---- looking ----

    def residual(self, state: State) -> tuple[float, float]:
        if not self.layout.n_vars:
            return 0.0, 0.0
        residual, rounding = self.batch.residual_each(state.arrays)
        return float(residual[0]), float(rounding[0])

    def tangent(self, state: State) -> Tangent:
        def sums(flat: Tensor) -> Tensor:
            return self.batch.natural.sums(flat, empty=0.0)

        def where(mask: Tensor, flat: Tensor, other: float) -> Tensor:
            return torch.where(mask, flat, other)

        return Tangent(
            q=self.batch.tensor(state.arrays, torch.float64),
            gradient=lambda q: self.batch.look(q)[1],
            sums=sums,
            where=where,
            from_host=lambda x: from_numpy(x).to(self.device),
            to_host=lambda x: x.cpu().numpy(),
        )

    def products(self) -> DeviceProducts:
        """P H P of the pairwise energies, on the device."""
        module = import_module("proxfield.core.engines.triton.products")
        products: DeviceProducts = module.DeviceProducts(self.batch)
        return products

    def free_energy(self, state: State) -> float:
        if not self.layout.n_vars:
            return float(self.lowered.constant)
        s: BatchState = state.arrays
        if s.known is None or s.known[0] != self.batch.version:
            s.known = self.batch.version, float(self.batch.free_energy_each(s)[0])
        return s.known[1]

    def gradient(self, q: Floats) -> NDArray[np.float64]:
        values = from_numpy(np.asarray(q, dtype=np.float64)).to(self.device)
        return np.asarray(self.batch.look(values)[1].cpu().numpy())
