"""Many fields iterated together on a GPU, each until it has converged by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import find_device, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice, TorchDtype
from proxfield.core.engines.base import ROUNDING_FACTOR, Batch, Rows, slack
from proxfield.core.engines.plan import Update
from proxfield.core.engines.triton import device_pack
from proxfield.core.engines.triton.binary_pack import BinaryTensors
from proxfield.core.engines.triton.device_pack import BatchState, Slot
from proxfield.core.engines.triton.general_pack import GeneralTensors
from proxfield.core.engines.triton.planes_pack import PlaneTensors, suits
from proxfield.core.engines.triton.update import binary, board
from proxfield.core.engines.triton.update.kinds import LOOK, RuleForm
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats
from proxfield.errors import UnsupportedError

if TYPE_CHECKING:
    from proxfield.core.engines.triton.terms.base import DeviceTerm

LAUNCHES_PER_CHECK = 256
"""Launches between two looks at whether all is done."""
READ_BLOCK = 1024
"""Entries of one program that reads marginals."""


class BatchProgram(Batch[Update, BatchState]):
    """Several lowered fields as one program.

    Fields may differ in everything but must all be binary Ising fields to run on the compact
    kernels. Small fields run many updates inside one launch, on one multiprocessor each or
    (see `binary.SmallFields`) on several. Sums are float64.

    Args:
        lowereds: The fields.
        dtype: Type of the state.
        device: A CUDA device.
        form: How to store couplings, for tests; see the packs.
        terms: Makes the terms that are iterated on their own, for a type. With several fields, of
            the same size, each term gives an energy for each field.
    """

    def __init__(
        self, lowereds: list[Lowered], dtype: str = "float32", device: TorchDevice = None,
        form: str | None = None, terms: Callable[[str], list[DeviceTerm]] | None = None,
    ) -> None:  # fmt: skip
        self.device = find_device(device)
        self.dtype = dtype
        self.joined = device_pack.Joined(lowereds)
        self.tensors = device_pack.Tensors(dtype, self.device)
        self.binary = self.joined.binary
        self.natural = device_pack.Natural(self.joined, self.device)
        self.pack: BinaryTensors | GeneralTensors | PlaneTensors
        if self.binary:
            self.pack = BinaryTensors(self.joined, self.tensors, form)
        elif form == "planes" or (form is None and suits(self.joined)):
            self.pack = PlaneTensors(self.joined, self.tensors)
        else:
            self.pack = GeneralTensors(self.joined, self.tensors, form)
        self.small = self.pack.form in ("small", "team")
        self.per_state = self.joined.n if self.binary else self.joined.size
        if isinstance(self.pack, PlaneTensors):
            self.per_state = self.pack.stride
        self.front = self.pack.front
        padded = -(-max(1, self.per_state) // 16) * 16
        self.stride = max(padded, self.pack.stride)
        self.inside = slice(self.front, self.front + self.per_state)
        """A buffer without its padding."""
        self.fields = len(lowereds)
        self.entry_bounds = self.joined.offsets[self.joined.bounds]
        sizes = np.diff(self.joined.bounds)
        self.equal = bool((sizes == sizes[:1]).all()) and (self.binary or self.joined.common > 0)
        """Whether all fields have the same number of entries."""
        self._each = torch.arange(self.fields, device=self.device)
        self._pool: list[Slot] = []
        self._slots: WeakSet[Slot] = WeakSet()
        self._exact: BatchProgram | None = None
        self.version = 0
        """Which unary energies these are: how often there were other ones."""
        self.set_unary(device_pack.from_numpy(self.joined.unary))
        self._make_terms = terms
        self.terms = terms(dtype) if terms else []
        self.capturable = all(getattr(term, "capturable", False) for term in self.terms)
        """Whether CUDA graphs can hold the terms."""

    @property
    def held(self) -> bool:
        """Whether each field's state is with one program, which keeps it in the first buffer."""
        return self.small and isinstance(self.pack, BinaryTensors) and not self.pack.shared

    # ---- states ----

    def _slot(self) -> Slot:
        if self._pool:
            return self._pool.pop()
        kind, device = self.tensors.dtype, self.device
        real = {"dtype": torch.float64, "device": device}
        spins = self.stride + 16 if self.binary and self.small else 1  # read past by empty fields
        n = max(1, self.joined.n)
        own = {"dtype": kind, "device": device}
        slot = Slot(
            stride=self.stride,
            buffers=torch.zeros((board.BUFFERS, self.stride), **own),
            spins=torch.zeros((board.BUFFERS, spins), **own),
            board=torch.zeros((self.fields, board.BOARD), dtype=torch.int32, device=device),
            numbers=torch.zeros((self.fields, board.BOARD), **real),
            parameters=torch.zeros(board.PARAMETERS, **real),
            step=torch.ones(n, **own),
            safe=torch.ones(n, **own),
            parts=torch.zeros((max(1, self.pack.n_blocks), 2), **real),
            out=torch.zeros((2, self.fields, device_pack.CAPACITY), **real),
            graphs=device_pack.Graphs(device, bool(self.terms)),
        )
        self._slots.add(slot)
        slot.numbers[:, board.CONSTANT] = self.pack.constants
        if self.terms:
            slot.shift = torch.zeros(self.stride, **own)
            slot.q = torch.zeros(self.joined.size, **own)
        return slot

    def start(self, q: Sequence[Floats]) -> BatchState:
        """A state at the marginals of each field."""
        arrays = [np.asarray(each) for each in q] or [np.zeros(0)]
        return self.start_from(device_pack.upload(arrays, self.device).to(torch.float64))

    def start_from(self, q: Tensor) -> BatchState:
        """A state at the marginals of all fields, as one tensor.  # (size,)"""
        pending = np.zeros(self.fields, dtype=bool)
        if self.any_gone:
            weight = (self.gone & (q > 1e-30)).cpu().numpy()
            pending = np.array([bool(some.any()) for some in self._by_field(weight)])
        state = BatchState(self._slot(), self._pool, pending)
        self.set_marginals(state, q)
        for moment in (state.slot.u, state.slot.v):
            if moment is not None:
                moment.zero_()
        state.slot.board.zero_()
        state.slot.numbers[:, [board.SIZE, board.USED]] = 0.0
        return state

    def set_marginals(self, state: BatchState, q: Tensor) -> None:
        """Put a state at other marginals, moments kept; all its buffers hold them.  # (size,)"""
        slot = state.slot
        value = self.natural.of(q.to(torch.float64))
        if isinstance(self.pack, PlaneTensors):
            value = self.pack.stored(value)
        slot.buffers[:, self.inside] = value.to(self.tensors.dtype)
        if self.binary and self.small:
            slot.spins[:, : self.per_state] = (0.5 * torch.tanh(value)).to(self.tensors.dtype)

    def copy(self, state: BatchState) -> BatchState:
        """A state that moves on its own from here."""
        old = state.slot
        out = BatchState(self._slot(), self._pool, state.pending.copy(), known=state.known)
        new = out.slot
        for name in ("buffers", "spins", "board", "numbers"):
            getattr(new, name).copy_(getattr(old, name))
        for name in ("u", "v"):
            held = getattr(old, name)
            if held is not None or getattr(new, name) is not None:
                self._moment(new, name).copy_(torch.zeros(()) if held is None else held)
        out.extra = {k: v.clone() if hasattr(v, "clone") else v for k, v in state.extra.items()}
        return out

    def residual_each(self, state: BatchState) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """max |softmax(−g(q)) − q| of each field, and how much of it rounding may cause."""
        q = self.tensor(state, torch.float64)
        g = self.look(q)[1]
        low = -self.natural.most(-torch.where(torch.isnan(g), np.inf, g))
        counts = torch.as_tensor(np.diff(self.joined.offsets)).to(self.device)
        low = torch.repeat_interleave(low, counts, output_size=len(g))
        target = torch.exp(torch.where(torch.isinf(low), 0.0, low) - g)
        target = target / self.natural.sums(target)
        if self.any_gone:  # no weight on impossible labels; where one is left, it has all of it
            target = torch.where(self.gone, 0.0, target)
            left = self.natural.sums((~self.gone).to(torch.float64))
            target = torch.where(~self.gone & (left == 1.0), 1.0, target)
        gap = (target - q).abs()
        sizes = (torch.where(torch.isfinite(x), x.abs(), 0.0) for x in (g, self.unary))
        size = torch.maximum(*sizes)
        eps = float(np.finfo(self.dtype).eps)
        rounding = ROUNDING_FACTOR * eps * q * (1.0 - q) * size
        both = torch.stack([gap, rounding]).cpu().numpy()
        gaps, roundings = (
            np.array([some.max(initial=0.0) for some in self._by_field(values)]) for values in both
        )
        return gaps, roundings

    def _by_field(self, values: NDArray[device_pack.V]) -> list[NDArray[device_pack.V]]:
        """Entries of all fields as those of each."""
        return [values[a:b] for a, b in pairwise(self.entry_bounds)]

    def _buffer(self, state: BatchState, ago: int = 0) -> Tensor:
        """The natural parameters of all fields some updates ago."""
        if self.held:
            return state.slot.buffers[0, self.inside]
        return self._present(state.slot, ago)

    def _present(self, slot: Slot, ago: int = 0) -> Tensor:
        """The same by operations that a graph can hold, without asking the device for ticks."""
        which = (slot.board[:, board.TICK].long() + board.BUFFERS - ago) % board.BUFFERS
        if self.fields == 1:
            value = slot.buffers.index_select(0, which)[0, self.inside]
            return self.pack.listed(value) if isinstance(self.pack, PlaneTensors) else value
        if self.equal:
            fields = slot.buffers[:, self.inside].unflatten(1, (self.fields, -1))
            return fields[which, self._each].ravel()  # each has its own buffer
        at = torch.arange(self.per_state, device=self.device)
        return slot.buffers[which[self._field_of_entries], at]

    @cached_property
    def _field_of_entries(self) -> Tensor:
        counts = np.diff(self.joined.bounds if self.binary else self.entry_bounds)
        return torch.as_tensor(np.repeat(np.arange(self.fields), counts)).to(self.device)

    def tensor(self, state: BatchState, dtype: TorchDtype | None = None) -> Tensor:
        """Marginals of all fields on the device, normalized.  # (size,)"""
        value = self._buffer(state).to(self.tensors.dtype if dtype is None else dtype)
        q = self.natural.marginals(value)
        if self.binary and self.any_gone:  # no weight at all once an update cleared them
            gone = self.gone
            if state.pending.any():
                left = np.repeat(state.pending, np.diff(self.entry_bounds))
                left = torch.as_tensor(left).to(self.device)
                gone = gone & ~left
            pairs, none = q.reshape(-1, 2), gone.reshape(-1, 2)
            q = torch.where(none, 0.0, torch.where(none.flip(1), 1.0, pairs)).ravel()
        return q

    def marginals_each(self, state: BatchState) -> list[NDArray[np.float64]]:
        """Marginals of each field, on the host."""
        return self._by_field(device_pack.download(self.tensor(state, torch.float64)))

    # ---- updates ----

    def warm_up(self, plan: Update, state: BatchState, trace: bool) -> None:
        """An iteration and an evaluation of F, of a copy."""
        scratch = self.copy(state)
        self.advance_each(scratch, plan, 1, 0.0, trace)
        self.free_energy_each(scratch)

    def advance_each(
        self, state: BatchState, plan: Update, n: int, tol: float, trace: bool,
        wanted: NDArray[np.bool_] | None = None,
    ) -> list[Rows]:  # fmt: skip
        """See `Updates`; steps of a plan are those of all variables, numbered through."""
        if plan.watches and not plan.proximal:
            raise UnsupportedError("steps that look at F are for proximal updates")
        if plan.search is not None and self.small:
            # those that run in one launch have no step of their own
            other, sizes = self.unfused, [board.SIZE, board.USED]
            apart = other.start_from(self.tensor(state, torch.float64))
            apart.pending = state.pending.copy()
            apart.slot.numbers[:, sizes] = state.slot.numbers[:, sizes]
            found = other.advance_each(apart, plan, n, tol, True, wanted)
            self.set_marginals(state, other.tensor(apart, torch.float64))
            state.slot.numbers[:, sizes] = apart.slot.numbers[:, sizes]
            state.pending = apart.pending
            return found
        pieces: list[list[Rows]] = [[] for _ in range(self.fields)]
        active = np.full(self.fields, n > 0 and self.joined.n > 0)
        if wanted is not None:
            active &= wanted
        left = n
        if n > 0 and not self.joined.n:  # a field without variables doesn't change
            return [Rows(np.array([np.nan]), np.zeros(1), 0.0) for _ in range(self.fields)]
        while active.any():
            # the first update clears impossible labels; F exists from then on
            some = 1 if state.pending.any() else min(left, device_pack.CAPACITY)
            self._upload(state, plan, some, tol, active)
            self._launch(state.slot, plan, trace or plan.watches, some)
            found = self._fetch(state, plan, some)
            left -= some
            for k in np.flatnonzero(active):
                rows = found[k]
                pieces[k].append(rows)
                active[k] = left > 0 and len(rows) == some and rows.change[-1] > tol
            if state.pending.any():
                state.pending[:] = False
                state.slot.numbers[:, board.CONSTANT] = self.pack.constants
        none = [Rows(np.zeros(0), np.zeros(0))]
        return [Rows.joined(rows or none) for rows in pieces]

    @cached_property
    def unfused(self) -> BatchProgram:
        """The same fields with one launch per update."""
        form = "slices" if self.binary else "tiles"
        out = BatchProgram(self.joined.lowereds, self.dtype, self.device, form)
        out.set_unary(self.unary)
        return out

    @cached_property
    def owner(self) -> Tensor:
        """The field of each variable, on the device.  # (n,)"""
        return torch.as_tensor(self.joined.owner()).to(self.device)

    def _upload(
        self, state: BatchState, plan: Update, n: int, tol: float, active: NDArray[np.bool_]
    ) -> None:
        slot = state.slot
        begin = np.zeros((self.fields, board.BOARD), dtype=np.int32)
        begin[:, board.DONE] = ~active
        begin[:, board.LIMIT] = n
        slot.board[:, 1:] = torch.as_tensor(begin[:, 1:]).to(self.device)
        if state.pending.any():
            infinite = torch.as_tensor(state.pending).to(self.device)
            slot.numbers[:, board.CONSTANT] = torch.where(infinite, np.inf, self.pack.constants)
        search, step = plan.search, plan.step[0]
        tried = (0.0, 0.0, 0.0)
        if search is not None:
            tried = (search.growth, search.shrinkage, search.largest)
            size = slot.numbers[:, board.SIZE]
            size.copy_(torch.where(size > 0, size, search.first))
            slot.step.copy_(size[self.owner])
        numbers = (  # in the order of `board`
            plan.inverse_temperature, plan.gamma1, plan.gamma2, plan.epsilon, tol, step,
            slack(0.0, np.dtype(self.dtype)), 1.0 / step, *tried,
        )  # fmt: skip
        slot.parameters.copy_(torch.tensor(numbers, dtype=torch.float64))
        if slot.plan is not plan:
            slot.plan = plan
            slot.flat = plan.search is None and bool((plan.step == plan.step[0]).all())
            if not slot.flat and plan.search is None:
                slot.step.copy_(device_pack.from_numpy(plan.step))
            if plan.adaptive:
                safe = plan.step if plan.fallback is None else plan.fallback
                slot.step.copy_(device_pack.from_numpy(plan.step))
                slot.safe.copy_(device_pack.from_numpy(safe))
        for name in plan.kind.moment_names:
            self._moment(slot, name)

    def _moment(self, slot: Slot, name: str) -> Tensor:
        """A slot's moment, made if there is none yet."""
        if getattr(slot, name) is None:
            zeros = torch.zeros(self.stride, dtype=self.tensors.dtype, device=self.device)
            setattr(slot, name, zeros)
        held: Tensor = getattr(slot, name)
        return held

    def _launch(self, slot: Slot, plan: Update, trace: bool, n: int) -> None:
        flat, search = slot.flat and not plan.adaptive, plan.search is not None
        rule = RuleForm(int(plan.kind), plan.adaptive, trace, flat, self.pack.hard)
        if self.small and not isinstance(self.pack, PlaneTensors):
            self.pack.run(slot, rule)
            return

        def once() -> None:
            self._step(slot, rule, search)

        launches = n + plan.watches  # it learns F of the last state from one launch more
        while launches:
            some = min(launches, LAUNCHES_PER_CHECK)
            slot.graphs.repeat((rule, search), once, some, self.capturable)
            launches -= some
            if (launches or plan.watches) and bool((slot.board[:, board.DONE] != 0).all()):
                return
            if launches == 0 and plan.watches:  # some were made again
                launches = LAUNCHES_PER_CHECK if n > LAUNCHES_PER_CHECK else max(1, n // 4)

    def _step(self, slot: Slot, rule: RuleForm, search: bool = False) -> None:
        """One iteration of all fields that aren't done."""
        if self.terms:
            self._add_terms(slot)
        p = self.pack
        p.step(slot, rule)
        width, warps = (256, 4) if p.n_blocks <= 256 else (1024, 8)
        if p.n_blocks > 4096:
            width, warps = 4096, 16
        board.finish[(self.fields,)](
            p.first, p.count, slot.status,
            TRACE=rule.trace, TRIES=2 if search else int(rule.adaptive), WIDTH=width,
            num_warps=warps,
        )  # fmt: skip
        if search:
            slot.step.copy_(slot.numbers[:, board.SIZE][self.owner])

    def _add_terms(self, slot: Slot) -> None:
        assert slot.q is not None and slot.shift is not None, "made with the slot"
        pairs = all(getattr(term, "of_pairs", False) for term in self.terms)
        if pairs and self.equal and self.joined.common == 2:
            each = self.joined.size // self.fields
            binary.read_pairs[(-(-each // READ_BLOCK), self.fields)](
                slot.buffers[0, self.front :], slot.stride, slot.status, slot.q, slot.shift, each,
                BLOCK=READ_BLOCK, num_warps=4,
            )  # fmt: skip
        else:
            slot.q.copy_(self.natural.marginals(self._present(slot)))
            slot.shift.zero_()
        shift = slot.shift[: self.joined.size]
        energies = [term.add_gradient(slot.q, shift) for term in self.terms]
        slot.numbers[:, board.EXTRA] = sum(energies[1:], energies[0].to(torch.float64))

    def _fetch(self, state: BatchState, plan: Update, n: int) -> list[Rows]:
        """The rows of each field: one copy to the host."""
        slot = state.slot
        twice = slot.numbers[:, board.TWICE] if self.held else self._twice(state, plan)
        count = slot.board[:, board.ROW].double()[:, None]
        found = torch.cat([count, twice[:, None], *slot.out[:, :, :n]], 1).cpu()
        rows = []
        for line in found.numpy():
            f, change = (line[at : at + int(line[0])].copy() for at in (2, 2 + n))
            rows.append(Rows(f, change, float(line[1])))
        return rows

    def _twice(self, state: BatchState, plan: Update) -> Tensor:
        """Largest difference from two updates before, over the step, of each field."""
        # what differs by as much as marginals do: m, or q
        values = (self._buffer(state, ago) for ago in (0, 2, 1))
        a, b, c = (0.5 * torch.tanh(v) if self.binary else torch.exp(-v) for v in values)
        gap = (a - b).abs()
        if not self.binary:
            gap = self.natural.most(gap)
        gap = gap.to(torch.float64)
        if plan.adaptive:
            spread = 1 - 4 * c * c if self.binary else self.natural.most(4 * c * (1 - c))
            slot = state.slot
            trial = slot.board[:, board.TRIAL] != 0
            if self.fields > 1:
                trial = trial[self.owner]
            inverse = torch.where(trial, 1 + (1 / slot.step - 1) * spread, 1 / slot.safe)
            gap = gap * inverse
        elif plan.search is not None:
            gap = gap / state.slot.numbers[:, board.USED][self.owner].clamp(min=1e-30)
        elif state.slot.flat:
            gap = gap / float(plan.step[0])
        else:
            gap = gap / state.slot.step
        if self.fields == 1:
            return gap.max()[None]
        if self.equal:
            return gap.reshape(self.fields, -1).amax(1).clamp(min=0.0)
        bounds = torch.as_tensor(self.joined.bounds).to(self.device)
        return torch.segment_reduce(gap, "max", offsets=bounds, initial=0.0)

    # ---- looking ----

    def set_unary(self, unary: Tensor) -> None:
        """Replace the unary energies of all fields, also for states at hand.  # (size,)"""
        self.version += 1
        # a copy: what the caller does with the tensor, or we with ours, doesn't matter
        self.unary = unary.detach().to(self.device, copy=True).to(torch.float64)
        self.gone = torch.isinf(self.unary)
        self.any_gone = bool(self.gone.any())
        self.pack.set_unary(self.unary)
        for slot in self._slots:
            slot.numbers[:, board.CONSTANT] = self.pack.constants
        if self._exact is not None:
            self._exact.set_unary(unary)
        if "unfused" in self.__dict__:
            self.unfused.set_unary(unary)

    @property
    def exact(self) -> BatchProgram:
        """The same fields in float64, for F as it is reported; made when first used."""
        if self.dtype == "float64" and not self.small:
            return self
        if self._exact is None:
            form = "planes" if self.pack.form == "planes" else "tiles"
            if self.binary:
                form = "slices" if self.small else self.pack.form
            pack = self.pack
            if isinstance(pack, GeneralTensors) and form == pack.form and not pack.coupled:
                # the same program: no coupling was rounded to float32
                out = copy.copy(self)
                out.__dict__.pop("unfused", None)
                out.dtype, out.tensors = "float64", device_pack.Tensors("float64", self.device)
                out.pack = pack.retyped(out.tensors)
                out._pool, out._slots, out._exact = [], WeakSet(), None
            else:
                out = BatchProgram(self.joined.lowereds, "float64", self.device, form)
            out.terms = self._make_terms("float64") if self._make_terms else []
            out.set_unary(self.unary)
            self._exact = out  # once it is complete
        return self._exact

    def look(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """F of each field and dE/dq at marginals, in float64.  # (size,) -> (fields,), (size,)

        For binary fields a variable's gradient is that of its unary energies' mean plus and minus
        half the difference.
        """
        me = self.exact
        state = me.start_from(q)
        slot = state.slot
        gradient = me._moment(slot, "u")
        slot.board[:, board.LIMIT] = 1
        slot.parameters.fill_(1.0)
        slot.plan = None
        if me.joined.n:
            me._step(slot, RuleForm(LOOK, False, True, True, me.pack.hard))
        else:
            slot.out[0, :, 0] = slot.numbers[:, board.CONSTANT]
        f, g = slot.out[0, :, 0].clone(), gradient[: me.per_state].clone()
        if isinstance(me.pack, PlaneTensors):
            g = me.pack.listed(g)
        if self.binary:
            mean = self.unary.reshape(-1, 2).mean(1)
            g = torch.stack([mean - 0.5 * g, mean + 0.5 * g], 1).ravel()
        return f, g

    def free_energy_each(self, state: BatchState) -> NDArray[np.float64]:
        """F of each field at the marginals that `marginals_each` gives, in float64.  # (fields,)"""
        f = self.look(self.tensor(state, torch.float64))[0].cpu().numpy()
        return np.where(state.pending, np.inf, f)
