"""Sums over all pairs of fixed points, planned once for as many values as one likes.

A plan belongs to the features of a batch of images. Plans are remembered while their features are
alive, so that all iterations of a forward pass, and the backward pass, share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property

import numpy as np

from proxfield.core.common.arrays import Doubles, Floats
from proxfield.core.devices.cuda import need, torch, triton
from proxfield.core.devices.tensors import Tensor, TorchDevice, TorchDtype
from proxfield.core.filters.geometry import Blur
from proxfield.core.filters.plan import SMALLEST_MASS, HostPlan, Plan, choose, make_filter
from proxfield.core.filters.triton.lattice import LatticePlan
from proxfield.core.filters.triton.segments import has_kernels

MAX_STORED_WEIGHTS = 1 << 25
"""Weights up to which a plain plan keeps them all (128 MB in float32)."""
CACHE_BYTES = 1 << 30
"""Bytes that remembered plans may hold in all; the oldest go first."""
TOLERANCE = 1e-6
"""Pairs with a smaller weight may be left out by the exact filter in float32."""
BLOCK = 1 << 22
"""Weights that are recomputed at a time where they aren't kept."""
MAX_EXACT_SECONDS = 0.25
"""Longest that one application of the exact filter may take for ``filter="auto"`` to choose it."""
PAIRS_PER_SECOND = 3e12
"""That `ExactPlan` computes on an H200 (3.1e12 to 3.2e12 measured on images)."""
BLOCKED_PAIRS_PER_SECOND = 2e10
"""That `PlainPlan` computes there in float64, by counting passes over memory: 10 of 8 bytes."""
MATRIX_POINTS = 2048
"""Points up to which the kernel is held as a matrix of float64: 32 MiB."""
PADDING = 2.0
"""About how many pairs the exact plan computes for each one over the tolerance (1.2 to 2.2 measured
on images)."""
SAMPLE_POINTS = 64
"""Points whose neighbors are counted to estimate how many pairs there are."""


def fold(values: Tensor, images: int) -> Tensor:
    """Values of all images as channels, where all share the points of one.  # (images, n, ·)"""
    if images == len(values):
        return values
    return values.transpose(0, 1).reshape(1, values.shape[1], -1)


def unfold(folded: Tensor, images: int) -> Tensor:
    """The inverse of `fold`, for this many images.  # (images, n, c)"""
    if images == len(folded):
        return folded
    return folded.reshape(folded.shape[1], images, -1).transpose(0, 1)


class PlainPlan(Plan):
    """K itself, kept or recomputed some rows at a time: exact, on any device of torch.

    Args:
        features: Features in units of standard deviations.  # (n, d) or (Bf, n, d)
        dtype: Type of weights and sums; that of the features by default.
        stored: Maximum number of weights that are kept.
    """

    name = "exact"

    def __init__(
        self, features: Tensor, dtype: TorchDtype | None = None, stored: int = MAX_STORED_WEIGHTS
    ) -> None:
        self.batched = features.ndim == 3
        points = (features if self.batched else features[None]).to(dtype or features.dtype)
        # a copy, so that what happens to the tensor doesn't matter; centered for precision
        self.features = points - points.mean(dim=1, keepdim=True)
        self.images, self.n, _ = points.shape
        self.stored: Tensor | None = None
        if self.images * self.n**2 <= stored:
            self.stored = self.weights(slice(0, self.n))

    def weights(self, rows: Tensor) -> Tensor:
        """Some rows of K: exp(−½‖f_i − f_j‖²).  # a slice or (m,) -> (Bf, m, n)"""
        x, y = self.features[:, rows], self.features
        # from differences: norms and products would cancel
        if not x.is_cuda:
            square = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_()
            return square.mul_(-0.5).exp_()
        square = x.new_zeros((len(x), x.shape[1], y.shape[1]))
        for k in range(x.shape[2]):  # torch.cdist launches a block of threads for each pair there
            gap = x[:, :, None, k] - y[:, None, :, k]
            square.addcmul_(gap, gap)
        return square.mul_(-0.5).exp_()

    def _rows(self) -> Iterator[tuple[slice, Tensor]]:
        if self.stored is not None:
            yield slice(0, self.n), self.stored
            return
        some = max(1, BLOCK // max(1, self.images * self.n))
        for first in range(0, self.n, some):
            rows = slice(first, min(self.n, first + some))
            yield rows, self.weights(rows)

    def _fold(self, values: Tensor) -> Tensor:
        given = (values if self.batched else values[None]).to(self.features.dtype)
        return fold(given, self.images)

    def _unfold(self, out: Tensor, values: Tensor) -> Tensor:
        out = unfold(out, len(values)) if self.batched else out[0]
        return out.to(values.dtype).contiguous()

    def ones(self) -> Tensor:
        ones = self.features.new_ones((self.images, self.n, 1))
        return ones if self.batched else ones[0]

    def apply(self, values: Tensor) -> Tensor:
        folded = self._fold(values)
        if self.stored is not None:  # K is symmetric, and narrow times wide is faster
            return self._unfold((folded.mT @ self.stored).mT, values)
        out = torch.empty_like(folded, memory_format=torch.contiguous_format)
        for rows, k in self._rows():
            out[:, rows] = k @ folded
        return self._unfold(out, values)

    def pull(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        # −Σ_j w_ij (f_i − f_j) with w_ij = k_ij (a_i·b_j + b_i·a_j)
        left = torch.cat([self._fold(a), self._fold(b)], dim=-1)
        right = torch.cat([self._fold(b), self._fold(a)], dim=-1)
        out = torch.empty_like(self.features)
        totals = self.features.new_empty((self.images, self.n, 1))
        for rows, k in self._rows():
            w = (left[:, rows] @ right.transpose(1, 2)).mul_(k)
            totals[:, rows] = w.sum(-1, keepdim=True)
            out[:, rows] = w @ self.features - self.features[:, rows] * totals[:, rows]
        return (out, totals) if self.batched else (out[0], totals[0])


def reference_filter(
    features: Tensor, values: Tensor, rows: Tensor | None = None, block: int = 1024
) -> Tensor:
    """Some rows of K @ values in float64, a block at a time: to measure other plans by.

    rows: Numbers of the rows wanted; all by default.  # (m,) -> (m, c)
    """
    plan = PlainPlan(features, torch.float64, stored=0)
    wanted = torch.arange(plan.n, device=features.device) if rows is None else rows
    v = values.to(torch.float64)
    return torch.cat([plan.weights(some)[0] @ v for some in wanted.split(block)])


class PerImage(Plan):
    """A plan for each image, from their features.  # (Bf, n, d)"""

    def __init__(self, features: Tensor, plans: Sequence[Plan]) -> None:
        self.images, self.n, _ = features.shape
        self.kind = {"dtype": features.dtype, "device": features.device}
        self.plans = plans

    def ones(self) -> Tensor:
        return torch.ones((self.images, self.n, 1), **self.kind)

    def apply(self, values: Tensor) -> Tensor:
        folded = fold(values, self.images)
        if self.images == 1:  # no copy to stack it
            out = self.plans[0].apply(folded[0])[None]
        else:
            out = torch.stack([p.apply(v) for p, v in zip(self.plans, folded, strict=True)])
        return unfold(out, len(values)).contiguous()

    def pull(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = fold(a, self.images), fold(b, self.images)
        found = [p.pull(x, y) for p, x, y in zip(self.plans, a, b, strict=True)]
        return torch.stack([x for x, _ in found]), torch.stack([y for _, y in found])


class TritonPlan(PerImage):
    """One `ExactPlan` for each image, fast and with errors of about 1e-4.  # (Bf, n, d)"""

    name = "exact"

    def __init__(self, features: Tensor) -> None:
        from proxfield.core.filters.triton.exact import ExactPlan

        # a copy, so that what happens to the tensor doesn't matter; centered for precision
        points = features - features.mean(dim=1, keepdim=True)
        super().__init__(points, [ExactPlan(f, TOLERANCE) for f in points])


def torch_threads() -> AbstractContextManager[object]:
    """Run compiled kernels on as many threads as torch uses."""
    from proxfield.core.compiled.jit import thread_count

    return thread_count(torch.get_num_threads())


class HostLattice(Plan):
    """The CPU's compiled lattice for tensors there, whose memory it reads without a copy.

    As many threads work on it as torch uses (``torch.set_num_threads``).

    Args:
        features: On the CPU.  # (n, d)
    """

    name = "lattice"

    def __init__(self, features: Tensor) -> None:
        self.features = features - features.mean(dim=0)
        """Centered, for the precision of `pull`.  # (n, d)"""
        with torch_threads():
            self.plan: HostPlan = make_filter("lattice", features.numpy())

    def ones(self) -> Tensor:
        return torch.ones((self.plan.n, 1), dtype=torch.float64)

    def diagonal(self) -> Tensor:
        return torch.from_numpy(self.plan.diagonal())

    def apply(self, values: Tensor) -> Tensor:
        with torch_threads():
            return torch.from_numpy(self.plan.apply(values.detach().contiguous().numpy()))

    def pull(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """As `pull_by_moments`, in compiled loops that reuse their memory."""
        from proxfield.core.compiled.jit import threads_for
        from proxfield.core.filters.exact import add_dots

        f = self.features.to(a.dtype).T.contiguous().numpy()  # (d, n)
        x, y = (np.ascontiguousarray(v.detach().numpy()) for v in (a, b))
        scaled = np.empty_like(x)
        sums = np.zeros((len(f) + 1, len(x)))
        with torch_threads(), threads_for(x.size * (len(f) + 1)):
            for mine, others in ((x, y), (y, x)):
                add_dots(mine, self.plan.apply(others), sums[0])
                for own, out in zip(f, sums[1:], strict=True):
                    np.multiply(others, own[:, None], out=scaled)
                    add_dots(mine, self.plan.apply(scaled), out)
        found = sums[1:] - f * sums[0]
        return (
            torch.from_numpy(found.T.astype(x.dtype)),
            torch.from_numpy(sums[0, :, None].astype(x.dtype)),
        )


class Lattices(PerImage):
    """One lattice for each image: compiled for the CPU, in Triton on CUDA, else plain torch.

    The values' gradient is exact, since K is symmetric. The features' is that of the Gaussian
    which the lattice approximates, with its sums over pairs computed by the lattice: the
    lattice itself is continuous, but piecewise linear in the features between its vertices.

    Args:
        features: # (Bf, n, d)
    """

    name = "lattice"

    def __init__(self, features: Tensor) -> None:
        # a copy, so that what happens to the tensor doesn't matter
        points = features.detach().clone(memory_format=torch.contiguous_format)
        on_host = points.device.type == "cpu"
        super().__init__(points, [(HostLattice if on_host else DeviceLattice)(f) for f in points])

    def mass(self) -> Tensor:
        # summed in the plans' type, float64, and then in that of the features
        found = torch.stack([p.apply(p.ones()) for p in self.plans])
        return (found + SMALLEST_MASS).to(**self.kind)

    def diagonal(self) -> Tensor:
        return self._diagonal

    @cached_property
    def _diagonal(self) -> Tensor:
        return torch.stack([p.diagonal() for p in self.plans]).to(**self.kind)


class DeviceLattice(LatticePlan):
    """The lattice on any other device, with the same gradient.  # features: (n, d)"""

    def pull(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return pull_by_moments(self.apply, self.features - self.features.mean(dim=0), a, b)


def pull_by_moments(
    apply: Callable[[Tensor], Tensor], features: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """`Plan.pull` by 1 + d products with K, those of the values and of them times each feature."""
    mine, others = torch.cat([a, b], dim=-1), torch.cat([b, a], dim=-1)

    def seen(values: Tensor) -> Tensor:
        return (mine * apply(values)).sum(-1, keepdim=True)

    totals = seen(others)
    out = torch.empty_like(features)
    for k in range(features.shape[-1]):
        own = features[..., k : k + 1]
        out[..., k : k + 1] = seen(others * own) - own * totals
    return out, totals


def on_triton(features: Tensor) -> bool:
    """Whether the Triton kernel supports these features; it doesn't support float64."""
    return triton is not None and features.is_cuda and features.dtype == torch.float32


def make_plan(
    features: Tensor, kind: str = "exact", *, tiled: bool | None = None,
    dtype: TorchDtype | None = None, blur: Blur | None = None,
) -> Plan:  # fmt: skip
    """A plan, exact or a lattice, over features in standard deviations.  # (n, d) or (Bf, n, d)

    Args:
        tiled: Use Triton's kernels for the exact filter, in float32; by default where they serve.
        dtype: Type in which the exact filter computes without them; the features' by default.
        blur: That of one set of points' lattice, if it isn't to choose.
    """
    if kind == "lattice" and features.ndim == 3:
        return Lattices(features)
    if kind == "lattice":
        return LatticePlan(features, blur)
    if not (on_triton(features) if tiled is None else tiled):
        return PlainPlan(features, dtype)
    if features.ndim == 3:
        return TritonPlan(features)
    from proxfield.core.filters.triton.exact import ExactPlan

    return ExactPlan(features, TOLERANCE)


def estimated_pairs(features: Tensor, tolerance: float) -> float:
    """About how many pairs an `ExactPlan` computes, from the neighbors of a few points."""
    n = len(features)
    some = features[:: -(-n // SAMPLE_POINTS)].to(torch.float32)
    reach = math.sqrt(-2.0 * math.log(tolerance))
    near = (torch.cdist(some, features.to(torch.float32)) <= reach).sum()
    return min(1.0, PADDING * float(near) / (len(some) * n)) * float(n) ** 2


def choose_kind(name: str, features: Tensor, double: bool) -> str:
    """ "exact" or "lattice"; "auto" is exact up to `MAX_EXACT_SECONDS` per application.

    Without a GPU "auto" means what it means on the CPU.
    """
    n = len(features)
    if name != "auto" or not features.is_cuda:
        return choose(name, n)
    rate = BLOCKED_PAIRS_PER_SECOND if double or not has_kernels(features) else PAIRS_PER_SECOND
    if float(n) ** 2 <= MAX_EXACT_SECONDS * rate:  # whatever the points are
        return "exact"
    if rate == BLOCKED_PAIRS_PER_SECOND:
        return "lattice"
    few = estimated_pairs(features, TOLERANCE) <= MAX_EXACT_SECONDS * rate
    return "exact" if few else "lattice"


class DeviceFilter(HostPlan):
    """A plan on a device over features of the host: both then have the same operator.  # (n, d)

    ``kind`` may be "auto", and ``blur`` is that of the lattice, if it isn't to choose.
    """

    def __init__(
        self, features: Floats, kind: str, double: bool, device: TorchDevice,
        blur: Blur | None = None,
    ) -> None:  # fmt: skip
        need("torch")
        writable = features if features.flags.writeable else features.copy()  # torch insists
        self.features = torch.from_numpy(writable).to(device)
        """On the device, as given.  # (n, d)"""
        self.kind = choose_kind(kind, self.features, double)
        self.n = len(features)
        tiled = not double and has_kernels(self.features) and self.n > MATRIX_POINTS
        self.plan = make_plan(self.features, self.kind, tiled=tiled, dtype=torch.float64, blur=blur)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The kind of filter."""
        return self.kind

    @cached_property
    def device_mass(self) -> Tensor:
        """Total weights, on the device.  # (n, 1)"""
        return self.plan.mass()

    def mass(self) -> Floats:
        return np.array(self.device_mass.cpu().numpy())

    def apply(self, values: Floats) -> Floats:
        given = torch.from_numpy(np.ascontiguousarray(values))
        out = self.plan.apply(given.to(self.features.device))
        return np.array(out.cpu().numpy(), dtype=values.dtype)

    def pull(self, a: Floats, b: Floats) -> tuple[Floats, Floats]:
        place = self.features.device
        given = (torch.from_numpy(np.ascontiguousarray(x)).to(place) for x in (a, b))
        gradient, totals = self.plan.pull(*given)
        return gradient.cpu().numpy(), totals.cpu().numpy()

    def diagonal(self) -> Doubles:
        return self._diagonal

    @cached_property
    def _diagonal(self) -> Doubles:
        return np.asarray(self.plan.diagonal().cpu().numpy(), dtype=np.float64)


def resolve(name: str, features: Tensor) -> str:
    """ "auto" resolved to "exact" or "lattice", by the device and the number of points.

    As for a `proxfield.Gaussian` term on the CPU and on CUDA; elsewhere always exact.

    features: # (Bf, n, d)
    """
    if name != "auto":
        return choose(name, features.shape[1])
    if features.device.type not in ("cpu", "cuda") or not len(features):
        return "exact"
    return choose_kind(name, features[0], features.dtype == torch.float64)


class Remembered:
    """Plans by the features they were made for, as long as those live.

    A plan is used again only if the features hold the same numbers: memory that was written to
    without anyone counting (``.data``, compiled graphs that reuse buffers) can't mislead it.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Tensor, Tensor, Plan]] = []

    def get(self, features: Tensor, name: str = "exact") -> Plan:
        """The plan for these features, with the filter of this name."""
        kind = resolve(name, features)
        alive = [e for e in self.entries if not e[0].expired()]
        for k, (_, held, plan) in enumerate(alive):
            alike = (held.dtype, held.device) == (features.dtype, features.device)
            # of one shape, too
            if plan.name == kind and alike and bool(torch.equal(held, features)):
                alive.append(alive.pop(k))  # the latest used last
                self.entries = alive
                return plan
        plan = make_plan(features, kind)
        owner = torch.multiprocessing.reductions.StorageWeakRef(features.untyped_storage())
        alive.append((owner, features.clone(), plan))
        while len(alive) > 1 and sum(p.nbytes for *_, p in alive) > CACHE_BYTES:
            alive.pop(0)
        self.entries = alive
        return plan


PLANS = Remembered()


def clear_plans() -> None:
    """Forget all plans and free their memory. (They also go when their features do.)"""
    PLANS.entries = []
