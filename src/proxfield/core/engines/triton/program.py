"""The program of the engine "cuda": any field, any rule, on an NVIDIA GPU.

A `GpuProgram` is a `BatchProgram` of one field, and what only makes sense for one: sweeps, chains,
Python rules, terms that iterate on their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from proxfield.core.common.arrays import Array, Doubles, Floats, Ints
from proxfield.core.devices.cuda import find_device, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.base import Program, Rows, State, Tangent, softmax
from proxfield.core.engines.numba.pack import VisitingSweeps, on_cpu
from proxfield.core.engines.plan import Chains, Custom, Explored, Order, Plan
from proxfield.core.engines.triton.batch import BatchProgram
from proxfield.core.engines.triton.binary_pack import BinaryTensors
from proxfield.core.engines.triton.device_pack import BatchState, from_numpy
from proxfield.core.filters.torch.plans import DeviceFilter
from proxfield.core.lowering.lowered import Lowered

if TYPE_CHECKING:
    from proxfield.core.engines.triton.sweeps.sweeps import Sweeper
    from proxfield.core.engines.triton.terms.base import DeviceTerm


def compile_cuda(
    lowered: Lowered, dtype: str = "float32", threads: int | None = None, device: TorchDevice = None
) -> GpuProgram:
    """The program of a field on a CUDA device, by default the current one; see `GpuProgram`."""
    return GpuProgram(lowered, dtype, device)


def numbers_in(thing: object) -> tuple[tuple[str, Hashable], ...]:
    """Its attributes that are plain numbers or words: all that kernels are compiled for."""
    plain = (bool, int, str)
    return tuple(
        (k, v)
        for k, v in vars(thing).items()
        if isinstance(v, plain) or (isinstance(v, tuple) and all(isinstance(x, plain) for x in v))
    )


class GpuProgram(Program):
    """See `Program`. The state lives on the device; F as reported is computed in float64.

    In Triton's interpreter the device is the CPU. For tests, ``form`` says how couplings are
    stored; see the packs.
    """

    sums_in_double = True

    def __init__(
        self, lowered: Lowered, dtype: str = "float32", device: TorchDevice = None,
        form: str | None = None,
    ) -> None:  # fmt: skip
        self.device = find_device(device)
        if lowered.extras:  # modules for terms are imported where there are any
            gaussian = import_module("proxfield.core.engines.triton.terms.gaussian")
            lowered = gaussian.attach(lowered, dtype, self.device)
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)
        self.batch = BatchProgram([lowered], dtype, self.device, form, self._terms)
        self._flat_step = True

    def _terms(self, dtype: str) -> list[DeviceTerm]:
        """Terms that aren't lowered, on the device."""
        if not self.lowered.extras:
            return []
        on_device = import_module("proxfield.core.engines.triton.terms.base").on_device
        return [on_device(t, self.layout, dtype, self.device) for t in self.lowered.extras]

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

    def start(self, q: Floats) -> State:
        return State(self.batch.start([q]))

    def start_from(self, q: Tensor) -> State:
        """A state at marginals that are on the device already.  # (size,)"""
        return State(self.batch.start_from(q))

    def tensor(self, state: State) -> Tensor:
        """The state's marginals on the device, in the program's type.  # (size,)"""
        return self.batch.tensor(state.arrays)

    def marginals(self, state: State) -> Doubles:
        return self.batch.marginals_each(state.arrays)[0]

    _visiting: VisitingSweeps | None = None
    _located: tuple[Ints, Tensor] | None = None
    """The last argument of `marginals_at`, and the same on the device."""

    def marginals_at(self, state: State, entries: Ints) -> Doubles:
        if self._located is None or self._located[0] is not entries:
            self._located = entries, from_numpy(entries).to(self.device)
        q = self.batch.tensor(state.arrays, torch.float64)
        return np.asarray(q[self._located[1]].cpu().numpy())

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        """As in `Program`, of arrays or tensors, without packing the rest again."""
        new = from_numpy(energies) if isinstance(energies, np.ndarray) else energies
        if at is not None:
            every = self.batch.unary.clone()
            every[from_numpy(at).to(every.device)] = new.to(every)
            new = every
        self.batch.set_unary(new)
        if "_sweeper" in self.__dict__:
            self._sweeper.set_unary(self.batch.unary.to(self.batch.tensors.dtype))

    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        if n <= 0:
            return Rows(np.zeros(0), np.zeros(0))
        s: BatchState = state.arrays
        s.known = None
        if not self.layout.n_vars:  # such a field is where it ends
            return Rows(np.array([self.lowered.constant]), np.zeros(1), 0.0)
        if isinstance(plan, Order):
            return self._sweep(s, plan, n, tol)
        s.extra.clear()
        if isinstance(plan, Custom):
            return self._custom(state, plan, n, tol)
        return self.batch.advance_each(s, plan, n, tol, trace)[0]

    def _custom(self, state: State, plan: Custom, n: int, tol: float) -> Rows:
        s: BatchState = state.arrays
        energies, changes, period2 = [], [], np.inf
        for _ in range(n):
            q = self.batch.tensor(s, torch.float64)
            f, g = self.batch.look(q)
            energies.append(np.inf if s.pending[0] else float(f[0]))
            old = self.marginals(state)
            theta = -np.log(np.maximum(old, 1e-30))
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

    @cached_property
    def _sweeper(self) -> Sweeper:
        module = import_module("proxfield.core.engines.triton.sweeps.sweeps")
        sweeper: Sweeper = module.Sweeper(self.lowered, self.dtype.name, self.device)
        sweeper.set_unary(self.batch.unary.to(self.batch.tensors.dtype))
        return sweeper

    def _sweep(self, s: BatchState, plan: Order, n: int, tol: float) -> Rows:
        self.need_visits(plan)
        visit = self._visit_on_host if self.lowered.extras else self._visit
        energies, changes = [], []
        for _ in range(n):
            f, change = visit(s, plan, plan.drawn())
            energies.append(f)
            changes.append(change)
            s.pending[:] = False  # F exists from the first sweep on
            if not change > tol:
                break
        if "q" in s.extra:
            self.batch.set_marginals(s, self._normalized(s.extra["q"]))
        return Rows(np.array(energies), np.array(changes))

    def _visit(self, s: BatchState, plan: Order, order: Array) -> tuple[float, float]:
        """One sweep; F before it and the largest change."""
        held = s.extra
        if "q" not in held:
            q = torch.as_tensor(self.batch.marginals_each(s)[0]).to(self.device)
            held["f"] = float(self.batch.free_energy_each(s)[0])
            held["q"] = q.to(self.batch.tensors.dtype)
        before = held["f"]
        delta, change = self._sweeper.sweep(held["q"], order, plan.starts, plan.inverse_temperature)
        held["f"] = before + float(delta)
        if s.pending[0]:
            held["f"] = float(self.batch.look(self._normalized(held["q"]))[0][0])
        return before, float(change)

    def _visit_on_host(self, s: BatchState, plan: Order, order: Array) -> tuple[float, float]:
        """`_visit` where terms have no kernel that visits one variable."""
        before = float(self.batch.free_energy_each(s)[0])
        q = self.batch.marginals_each(s)[0]
        old = q.copy()
        if self._visiting is None:
            terms = [on_cpu(t, self.layout, np.dtype(np.float64)) for t in self.lowered.extras]
            self._visiting = VisitingSweeps(self.lowered, terms)
        self._visiting.sweep(q, order, plan.inverse_temperature)
        self.batch.set_marginals(s, torch.as_tensor(q).to(self.device))
        return before, float(np.abs(q - old).max(initial=0.0))

    def _normalized(self, q: Tensor) -> Tensor:
        q = q.to(torch.float64)
        return q / self.batch.natural.sums(q)

    def descend(self, labels: Floats, sweeps: int) -> Doubles:
        self.need_sweeps()
        q = from_numpy(np.asarray(labels, dtype=np.float64)).to(self.device)
        q = self._sweeper.descend(q.to(self.batch.tensors.dtype), sweeps)
        return np.asarray(q.to(torch.float64).cpu().numpy())

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        self.need_sweeps()
        module = import_module("proxfield.core.engines.triton.sweeps.chains")
        explored: Explored = module.explore(self._sweeper, chains)
        return explored

    def copy(self, state: State) -> State:
        return State(self.batch.copy(state.arrays), deepcopy(state.memory))

    def residual(self, state: State) -> tuple[float, float]:
        if not self.layout.n_vars:
            return 0.0, 0.0
        residual, rounding = self.batch.residual_each(state.arrays)
        return float(residual[0]), float(rounding[0])

    def tangent(self, state: State) -> Tangent:
        return Tangent(
            q=self.batch.tensor(state.arrays, torch.float64),
            gradient=lambda q: self.batch.look(q)[1],
            sums=partial(self.batch.natural.sums, empty=0.0),
            where=torch.where,
            from_host=lambda x: from_numpy(x).to(self.device),
            to_host=lambda x: x.cpu().numpy(),
        )

    def products(self) -> DeviceProducts:
        """P H P of the pairwise energies, on the device."""
        return DeviceProducts(self.batch)

    def free_energy(self, state: State) -> float:
        if not self.layout.n_vars:
            return float(self.lowered.constant)
        s: BatchState = state.arrays
        if s.known is None or s.known[0] != self.batch.version:
            s.known = self.batch.version, float(self.batch.free_energy_each(s)[0])
        return s.known[1]

    def gradient(self, q: Floats) -> Doubles:
        values = from_numpy(np.asarray(q, dtype=np.float64)).to(self.device)
        return np.asarray(self.batch.look(values)[1].cpu().numpy())


class DeviceProducts:
    """P H P of a field's pairwise energies, and the vectors that it is multiplied with.

    Binary fields have one entry per variable: the block J·[[1, −1], [−1, 1]] has the one
    eigenvector (1, −1)/√2, with 2J. Everything is float64, and every sum has a fixed order.
    """

    columns = 1 << 22
    """Entries of a basis that are combined at a time."""

    def __init__(self, batch: BatchProgram) -> None:
        self.batch = batch.exact
        self.device = batch.device
        self.size = batch.joined.n if batch.binary else batch.joined.size
        first = self.zeros(2, 2)
        _ = first @ first[0]  # loads the library for that, before anything is timed

    def zeros(self, *shape: int) -> Tensor:
        """As `numpy.zeros`, on the device."""
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def put(self, values: Floats) -> Tensor:
        """An array of the host on the device."""
        return from_numpy(np.asarray(values, dtype=np.float64)).to(self.device)

    def get(self, values: Tensor) -> Doubles:
        """A vector as an array of the host."""
        return np.asarray(values.cpu().numpy())

    def length(self, vector: Tensor) -> float:
        """The Euclidean length; squares of large entries don't overflow in it."""
        most = float(vector.abs().max())
        if not 0.0 < most < np.inf:
            return most
        return most * float(torch.linalg.vector_norm(vector / most))

    def apply(self, v: Tensor) -> Tensor:
        """P H P v.  # (size,)"""
        pack = self.batch.pack
        if isinstance(pack, BinaryTensors):
            return -0.5 * pack.product(v)  # −W is what is stored
        return self._center(pack.product(self._center(v)))

    def _center(self, v: Tensor) -> Tensor:
        """Minus the mean over each variable's labels."""
        natural, common = self.batch.natural, self.batch.joined.common
        total = natural.sums(v, empty=0.0)
        if common:
            return v - total / common
        counts = torch.repeat_interleave(natural.counts, natural.counts, output_size=len(v))
        return v - total / counts
