# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""A dense CRF from pixels and energies to marginals, as one piece of work for a GPU.

The general program (`BatchProgram`) iterates any field, and asks the host between its steps. Here
everything from the features to F and the labels is one sequence of kernels without a question in
between: the filters, total weights, the certified step, the updates, F of each state. With lattices
it is recorded as a CUDA graph, which serves all images of one size: the lattice's arrays then have
room for more vertices than the last image had (`LatticePlan`). What depends on the size alone (the
spatial filter) is computed once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.devices.cuda import constexpr, jit, launching, record, tl, torch
from proxfield.core.devices.tensors import CudaGraph, Tensor, TorchDevice, TorchDtype
from proxfield.core.engines.plan import damping_for
from proxfield.core.engines.triton.terms.gaussian import GaussianOnDevice
from proxfield.core.filters.geometry import SAMPLE_STRIDE, SEPARABLE, Blur, choose_blur
from proxfield.core.filters.operator import Operator
from proxfield.core.filters.plan import Plan
from proxfield.core.filters.points import PixelPoints
from proxfield.core.filters.torch.plans import MATRIX_POINTS, choose_kind, make_plan
from proxfield.core.filters.triton.lattice import LatticePlan, count_touched
from proxfield.core.filters.triton.segments import has_kernels

Blurs = tuple[Blur, ...]
"""The kind of blur of each term's lattice."""
Outputs = tuple[Tensor, Tensor, Tensor]
"""Marginals, labels, and numbers for the host."""

MAX_KEPT = 4
"""Programs that are kept for the next image, the latest ones."""
SPARE_SHARE = 1.25
"""Room for vertices, relative to those of the images so far."""
VERTEX_STEP = 1024
"""Room is a multiple of this."""
MAX_DOUBLE = 2**20
"""Entries up to which marginals are returned in float64."""
ENTRIES = 2048
"""Pixels times labels of a program."""


@jit
def row_softmax(energy, inside):
    """q = softmax(−energy) of rows, and log q as a difference of two numbers."""
    low = tl.where(inside, tl.min(energy, 1), 0.0)[:, None]
    weight = tl.exp(low - energy)
    total = tl.where(inside, tl.sum(weight, 1), 1.0)[:, None]
    return weight / total, low - energy, tl.log(total)


@jit
def advance(theta, unary, gradient, q, step, parts, n, L: constexpr, ROWS: constexpr, C: constexpr):
    """θ ← θ − step (θ − g) and q = softmax(−θ), in place.

    Each program leaves ⟨q, U + log q⟩ of the marginals before, and the largest change over the
    step.
    """
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    label = tl.arange(0, C)
    real = (at < n)[:, None] & (label < L)[None, :]
    entry = at[:, None] * L + label[None, :]
    before = tl.load(theta + entry, mask=real, other=float("inf"))
    u = tl.load(unary + entry, mask=real, other=0.0)
    g = tl.load(gradient + entry, mask=real, other=float("inf"))
    size = tl.load(step)
    p, less, log_total = row_softmax(before, at < n)
    share = p.to(tl.float64) * (u + less - log_total).to(tl.float64)
    share = tl.where(real, share, 0.0)
    after = tl.where(real, before - size.to(before.dtype) * (before - g), float("inf"))
    new, _, _ = row_softmax(after, at < n)
    tl.store(theta + entry, after, mask=real)
    tl.store(q + entry, new, mask=real)
    change = tl.where(real, tl.abs(new - p), 0.0)
    tl.store(parts + 2 * tl.program_id(0), tl.sum(tl.sum(share, 1), 0))
    tl.store(parts + 2 * tl.program_id(0) + 1, tl.max(tl.max(change, 1), 0).to(tl.float64) / size)


@jit
def conclude(theta, unary, q, out, best, parts, n, L: constexpr, ROWS: constexpr, C: constexpr):
    """Marginals in float64 and in the type of ``out``, and the largest entry's first label.

    Each program leaves ⟨q, U + log q⟩.
    """
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    label = tl.arange(0, C)
    real = (at < n)[:, None] & (label < L)[None, :]
    entry = at[:, None] * L + label[None, :]
    energy = tl.load(theta + entry, mask=real, other=float("inf")).to(tl.float64)
    u = tl.load(unary + entry, mask=real, other=0.0).to(tl.float64)
    p, less, log_total = row_softmax(energy, at < n)
    share = tl.where(real, p * (u + less - log_total), 0.0)
    tl.store(q + entry, p, mask=real)
    rounded = p.to(out.dtype.element_ty)
    tl.store(out + entry, rounded, mask=real)
    most = tl.max(tl.where(real, rounded, -1.0), 1)[:, None]
    first = tl.min(tl.where(real & (rounded == most), label[None, :], C), 1)
    tl.store(best + at, first.to(tl.int64), mask=at < n)
    tl.store(parts + tl.program_id(0), tl.sum(tl.sum(share, 1), 0))


@dataclass(frozen=True)
class TermKey:
    """What a `Gaussian` term is but for the values of an image: programs are kept by it."""

    points: Hashable  # `PixelPoints.key`
    kind: str  # "exact", "lattice" or "auto"
    weight: float
    matrix: bytes | None  # weight · μ; None for Potts
    normalization: str
    self_message: bool


@dataclass(frozen=True)
class CallKey:
    """Calls with the same key can use the same program."""

    n: int
    labels: int
    updates: int
    terms: tuple[TermKey, ...]
    device: str


@dataclass
class DenseFound:
    """What a call found; tensors are on the device and belong to the caller."""

    q: Tensor  # marginals  # (n, labels)
    best: Tensor  # the most probable label of each pixel, the first of equals  # (n,) int64
    free_energy: NDArray[np.float64]
    """F of each state; of the last one in float64 throughout.  # (updates + 1,)"""
    change: NDArray[np.float64]  # of q by each update, over the step  # (updates,)
    finite: bool
    """Whether all unary energies are: without that, the rest is of no use."""


class Buffer:
    """An input's place on the device; it stays, since recorded graphs read it."""

    def __init__(self, shape: Sequence[int], dtype: TorchDtype, device: TorchDevice) -> None:
        self.there = torch.zeros(tuple(shape), dtype=dtype, device=device)
        self.pinned: Tensor | None = None
        """Memory of the host that a GPU can read by itself."""
        if device.type == "cuda":
            self.pinned = torch.empty_like(self.there, device="cpu", pin_memory=True)

    def load(self, values: Pixels | Tensor) -> None:
        """Copy values there; from the host through pinned memory."""
        if isinstance(values, np.ndarray):
            writable = values if values.flags.writeable else values.copy()  # torch insists
            values = torch.from_numpy(writable)
        values = values.reshape(self.there.shape)
        if self.pinned is not None and not values.is_cuda:
            values = self.pinned.copy_(values)
        self.there.copy_(values, non_blocking=True)


class DenseTerm(GaussianOnDevice):
    """A Gaussian term over all pixels with a filter and its total weights, which are given."""

    def __init__(self, made: Made, plan: Plan, mass: Tensor | None, double: bool) -> None:
        self.n, self.labels = made.n, made.labels
        self.at = slice(0, self.n * self.labels)
        self.dtype = torch.float64 if double else torch.float32
        self.plan = plan
        self.weight, self.matrix = made.constants[double]
        self.device = self.weight.device
        self.normalize(made.key.normalization, made.key.self_message, mass)


class Made:
    """What a program keeps of a term: its constants, an image's place, or the whole filter.

    ``points`` are those of an image of this kind.
    """

    def __init__(
        self, key: TermKey, points: PixelPoints, n: int, labels: int, device: TorchDevice
    ) -> None:
        self.key, self.n, self.labels, self.device = key, n, labels, device
        self.pixels = points.pixels
        k = len(points.pixels)
        self.along = [
            torch.from_numpy(points.along(axis).reshape(-1, *[1] * (k - 1 - axis))).to(device)
            for axis in range(k)
        ]
        table = None
        if key.matrix is not None:
            table = np.frombuffer(key.matrix, dtype=np.float64).reshape(labels, labels).copy()
        self.constants = [
            (
                torch.tensor(key.weight, dtype=kind, device=device),
                None if table is None else torch.from_numpy(table).to(device, kind),
            )
            for kind in (torch.float32, torch.float64)
        ]
        """Weight and matrix, in both types."""
        centering = np.eye(labels) - 1.0 / labels
        table = -key.weight * np.eye(labels) if table is None else table
        self.ends = np.linalg.eigvalsh(centering @ table @ centering)[[0, -1]].tolist()
        """The ends of the eigenvalues of the compatibility between centering projections."""
        self.image: Buffer | None = None
        self.color: Tensor | None = None
        self.fixed: tuple[Plan, Tensor | None] | None = None
        """Filter and total weights where they depend on the size alone."""
        if points.channels is not None:
            kind = torch.from_numpy(points.channels[:0].copy()).dtype
            self.image = Buffer(points.channels.shape, kind, device)
            self.color = torch.from_numpy(points.color).to(device)
        self.blur = SEPARABLE
        """The kind of blur of a lattice, which depends on the image."""
        self.counting: tuple[CudaGraph, Tensor] | None = None
        """Recorded: how many vertices a sample of the image's pixels touches."""
        self.chosen = False
        """Whether that can be recorded, the kernels having run before."""
        self.rooms: dict[Blur, int] = {}
        """Vertices that a recorded lattice has room for, by kind of blur."""
        self.kind = choose_kind(key.kind, self.features(), False)
        if self.image is None:
            self.choose_blur()
            self.fixed = self.plan(None)

    def features(self, stride: int = 1) -> Tensor:
        """Features of every so many pixels of the image in its place, as `PixelPoints.array`
        computes them.  # (n / stride, d)"""
        k = len(self.pixels)
        size = (-(-self.n // stride), k + self.channels)
        out = torch.empty(size, dtype=torch.float64, device=self.device)
        for axis, along in enumerate(self.along):
            out[:, axis] = along.expand(self.pixels).reshape(-1)[::stride]
        if self.image is not None:
            seen = self.image.there.view(self.n, self.channels)[::stride]
            out[:, k:] = seen.to(torch.float64) / self.color
        return out

    def plan(self, room: int | None) -> tuple[Plan, Tensor | None]:
        """The filter of the image in its place, and its total weights."""
        if self.fixed is not None:
            return self.fixed
        features = self.features()
        if self.kind == "lattice":
            made: Plan = LatticePlan(features, self.blur, room)
        else:
            tiled = has_kernels(features) and self.n > MATRIX_POINTS
            made = make_plan(features, self.kind, tiled=tiled, dtype=torch.float64)
        return made, None if self.key.normalization == "none" else made.mass()

    def choose_blur(self) -> None:
        """Choose the lattice's blur for the image in its place; waits for the device."""
        if self.kind != "lattice" or self.fixed is not None:
            return
        if self.counting is None and self.chosen:  # the second image: others may follow
            self.counting = record(lambda: count_touched(self.features(SAMPLE_STRIDE)))
        if self.counting is None:
            touched = count_touched(self.features(SAMPLE_STRIDE))
        else:
            graph, touched = self.counting
            graph.replay()
        self.chosen = self.device.type == "cuda"
        self.blur = choose_blur(self.n, len(self.pixels) + self.channels, int(touched))

    @property
    def channels(self) -> int:
        """Channels of the image; 0 without one."""
        return 0 if self.image is None else self.image.there.shape[-1]


def certified_step(
    terms: Sequence[tuple[Made, tuple[Plan, Tensor | None]]], like: Tensor
) -> Tensor:
    """The certified step from bounds in closed form, on the device of ``like``.  # () float64"""
    curvature = like.new_zeros((), dtype=torch.float64)
    for made, (plan, mass) in terms:
        operator = Operator(plan, made.key.normalization, made.key.self_message, mass)
        products = [bound * end for bound in operator.range() for end in made.ends]
        largest = torch.stack([x.to(torch.float64) for x in products]).amax()
        curvature = curvature + largest.clamp(min=0.0)
    step: Tensor = 1.0 / (1.0 + damping_for(curvature))
    return step


class DenseCall:
    """Updates of a dense CRF on a device, for all images of one size and kind.

    ``points`` are those of an image of this kind, for each term.
    """

    def __init__(self, key: CallKey, points: Sequence[PixelPoints]) -> None:
        self.key = key
        self.device = torch.device(key.device)
        self.lock = threading.Lock()
        self.unary = Buffer((key.n, key.labels), torch.float32, self.device)
        with launching(self.device):
            self.terms = [
                Made(term, where, key.n, key.labels, self.device)
                for term, where in zip(key.terms, points, strict=True)
            ]
        self.calls: Counter[Blurs] = Counter()
        self.graphs: dict[Blurs, tuple[CudaGraph, Outputs]] = {}
        """Recorded work and what it leaves, by the lattices' kinds of blur."""

    def run(self, unary: Pixels | Tensor, images: Sequence[Pixels | Tensor | None]) -> DenseFound:
        """Make the updates.

        Args:
            unary: Unary energies, on the host or the device.  # (n, labels) float32
            images: Channels of each term's points, likewise; None where there are none.
        """
        with self.lock, launching(self.device):
            self.unary.load(unary)
            for made, image in zip(self.terms, images, strict=True):
                if made.image is not None and image is not None:
                    made.image.load(image)
                made.choose_blur()
            return self._run()

    def _run(self) -> DenseFound:
        blurs = tuple(made.blur for made in self.terms)
        self.calls[blurs] += 1
        # whether making the filters never asks the host
        possible = all(made.fixed is not None or made.kind == "lattice" for made in self.terms)
        possible &= self.device.type == "cuda"
        if blurs not in self.graphs and self.calls[blurs] > 1 and possible:
            self._compute(recorded=True)  # compiles what arrays of this size need
            torch.cuda.synchronize(self.device)
            # the next images of this size replay it
            self.graphs[blurs] = record(lambda: self._compute(recorded=True))
        found = None
        if blurs in self.graphs:
            graph, outputs = self.graphs[blurs]
            graph.replay()
            found = self._take(*outputs, recorded=True)
            if found is None:  # more vertices than there was room for
                del self.graphs[blurs]
        if found is None:
            found = self._take(*self._compute(recorded=False), recorded=False)
            assert found is not None, "there is room for as many as there are"
        return found

    def _compute(self, recorded: bool) -> Outputs:
        """All the work, in an order that a graph can hold."""
        n, labels, updates = self.key.n, self.key.labels, self.key.updates
        unary = self.unary.there
        plans = [
            made.plan(made.rooms.get(made.blur, 0) if recorded else None) for made in self.terms
        ]
        both = list(zip(self.terms, plans, strict=True))
        terms = [DenseTerm(made, *plan, double=False) for made, plan in both]
        step = certified_step(both, unary)
        theta = unary.clone()
        q = torch.softmax(-unary, 1)
        width = max(2, 1 << (labels - 1).bit_length())
        rows = max(1, ENTRIES // width)
        programs = -(-n // rows)
        energies, changes = [], []
        for _ in range(updates):
            gradient = unary.clone()
            seen = [term.add_gradient(q.view(-1), gradient.view(-1)) for term in terms]
            parts = unary.new_empty((programs, 2), dtype=step.dtype)
            advance[(programs,)](
                theta, unary, gradient, q, step, parts, n, L=labels, ROWS=rows, C=width
            )
            energies.append(sum(seen, parts[:, 0].sum()))
            changes.append(parts[:, 1].amax())
        exact = [DenseTerm(made, *plan, double=True) for made, plan in both]
        single = n * labels > MAX_DOUBLE
        out = torch.empty(
            (n, labels), dtype=torch.float32 if single else torch.float64, device=self.device
        )
        best = torch.empty(n, dtype=torch.int64, device=self.device)
        last = torch.empty((n, labels), dtype=torch.float64, device=self.device)
        parts = torch.empty(programs, dtype=torch.float64, device=self.device)
        conclude[(programs,)](theta, unary, last, out, best, parts, n, L=labels, ROWS=rows, C=width)
        gradient = torch.zeros_like(last)
        seen = [term.add_gradient(last.view(-1), gradient.view(-1)) for term in exact]
        energies.append(sum(seen, parts.sum()))
        needed = [
            plan.needed.double() if isinstance(plan, LatticePlan) else torch.zeros_like(step)
            for plan, _ in plans
        ]
        finite = torch.isfinite(unary).all().to(torch.float64)
        return out, best, torch.stack([finite, *needed, *energies, *changes])

    def _take(self, q: Tensor, best: Tensor, facts: Tensor, recorded: bool) -> DenseFound | None:
        """Wait, and look at the numbers; None if there was too little room."""
        finite, *rest = facts.cpu().tolist()
        count, enough = len(self.terms), True
        for made, needed in zip(self.terms, rest[:count], strict=True):
            if made.fixed is not None or made.kind != "lattice":
                continue
            room = made.rooms.get(made.blur, 0)
            enough &= not recorded or needed <= room
            if needed > room:
                room = VERTEX_STEP * -(-int(SPARE_SHARE * needed) // VERTEX_STEP)
                made.rooms[made.blur] = room
        if not enough:
            return None
        numbers = np.array(rest[count:])
        split = self.key.updates + 1
        if recorded:  # the next image is written to the same place
            q, best = q.clone(), best.clone()
        return DenseFound(q, best, numbers[:split], numbers[split:], bool(finite))


class Kept:
    """Programs by key, the latest ones. Threads take turns with a program."""

    def __init__(self) -> None:
        self.programs: dict[CallKey, DenseCall] = {}
        self.lock = threading.Lock()

    def get(self, key: CallKey, points: Sequence[PixelPoints]) -> DenseCall:
        """The program for a key, made if there is none."""
        with self.lock:
            made = self.programs.get(key)
        made = made or DenseCall(key, points)
        with self.lock:
            self.programs.pop(key, None)
            self.programs[key] = made  # the latest comes last
            while len(self.programs) > MAX_KEPT:
                del self.programs[next(iter(self.programs))]
        return made

    def clear(self) -> None:
        """Forget all programs and free their memory."""
        with self.lock:
            self.programs.clear()


KEPT = Kept()
