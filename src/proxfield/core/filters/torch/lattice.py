"""The permutohedral lattice over batches of tensors, with a gradient for the features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.plan import SMALLEST_MASS, HostPlan, Plan
from proxfield.core.filters.torch.plans import PerImage
from proxfield.core.filters.triton.lattice import LatticePlan


@contextmanager
def torch_threads() -> Iterator[None]:
    """Run compiled kernels on as many threads as torch uses."""
    from proxfield.core.compiled.jit import thread_count

    with thread_count(torch.get_num_threads()):
        yield


class HostLattice(Plan):
    """The CPU's compiled lattice for tensors there, whose memory it reads without a copy.

    As many threads work on it as torch uses (``torch.set_num_threads``).

    Args:
        features: On the CPU.  # (n, d)
    """

    name = "lattice"

    def __init__(self, features: Tensor) -> None:
        from proxfield.core.filters.plan import make_filter

        self.features = features - features.mean(dim=0)
        """Centered, for the precision of `pull`.  # (n, d)"""
        with torch_threads():
            self.plan: HostPlan = make_filter("lattice", features.numpy())

    @property
    def nbytes(self) -> int:
        return self.plan.nbytes + int(self.features.numel() * self.features.element_size())

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
        super().__init__(points, [_lattice(f) for f in points])

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
    """The lattice on any other device, with the same gradient.

    Args:
        features: # (n, d)
    """

    def pull(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return pull_by_moments(self.apply, self.features - self.features.mean(dim=0), a, b)

    def diagonal(self) -> Tensor:
        return super().diagonal() if self.n else self.ones()[:, 0]


def _lattice(features: Tensor) -> Plan:
    return HostLattice(features) if features.device.type == "cpu" else DeviceLattice(features)


def pull_by_moments(
    apply: Callable[[Tensor], Tensor], features: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """`Plan.pull` by 1 + d products with K, those of the values and of them times each feature.

    Args:
        apply: K @ values.  # (n, c) -> (n, c)
        features: # (n, d)
        a: # (n, c)
        b: # (n, c)

    Returns:
        Σ_j k_ij (a_i·b_j + b_i·a_j) (f_j − f_i), and a_i·(K b)_i + b_i·(K a)_i.
        # (n, d), (n, 1)
    """
    mine, others = torch.cat([a, b], dim=-1), torch.cat([b, a], dim=-1)

    def seen(values: Tensor) -> Tensor:
        return (mine * apply(values)).sum(-1, keepdim=True)

    totals = seen(others)
    out = torch.empty_like(features)
    for k in range(features.shape[-1]):
        own = features[..., k : k + 1]
        out[..., k : k + 1] = seen(others * own) - own * totals
    return out, totals
