"""One test for all plans: the host's filters, plain torch, and Triton's kernels.

Where TRITON_INTERPRET is 1 (as in ``make test-gpu``), or on a GPU, Triton's plans take part too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lattice_reference import lattice_matrix
from proxfield.core.filters.exact import ExactFilter
from proxfield.core.filters.lattice import LatticeFilter
from proxfield.core.filters.operator import NORMALIZATIONS, Operator
from proxfield.core.filters.plan import SMALLEST_MASS, Plan
from proxfield.errors import UnsupportedError

try:
    import torch
except ImportError:
    torch = None
N, D, C = 23, 2, 3
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch is not None and torch.cuda.is_available() and not INTERPRETED else "cpu"
KERNELS = (
    torch is not None
    and importlib.util.find_spec("triton") is not None
    and (INTERPRETED or DEVICE == "cuda")
)
if INTERPRETED and KERNELS:
    sys.path.append(str(Path(__file__).parents[1] / "gpu"))
    from gpu_cases import mend_interpreter

    mend_interpreter()


class Case(NamedTuple):
    """A way to make plans."""

    make: Callable[[Any], Plan]
    """Of numpy's features (n, d)."""
    error: float
    """Of products, relative to the largest sum of absolute values."""
    dtype: str = "float64"


def tensor(x: Any, dtype: str = "float64") -> Any:
    return torch.tensor(x, dtype=getattr(torch, dtype), device=DEVICE)


def plain(**options: Any) -> Callable[[Any], Plan]:
    def make(f: Any) -> Plan:
        from proxfield.core.filters.torch.plans import PlainPlan

        return PlainPlan(tensor(f), **options)

    return make


def in_batch(f: Any) -> Plan:
    from proxfield.core.filters.torch.plans import PlainPlan

    return PlainPlan(tensor(f)[None], stored=0)


def by_torch(kind: str, **options: Any) -> Callable[[Any], Plan]:
    def make(f: Any) -> Plan:
        from proxfield.core.filters.torch.plans import make_plan

        return make_plan(tensor(f), kind, **options)

    return make


def in_tiles(f: Any) -> Plan:
    from proxfield.core.filters.torch.plans import TritonPlan

    return TritonPlan(tensor(f, "float32")[None])


def on_device(kind: str) -> Callable[[Any], Plan]:
    def make(f: Any) -> Plan:
        from proxfield.core.filters.torch.plans import DeviceFilter

        return DeviceFilter(f, kind, True, DEVICE)

    return make


HOST = {
    "exact, numba": Case(ExactFilter, 1e-13),
    "lattice, numba": Case(LatticeFilter, 1e-6),
}
TORCH = {
    "exact, torch": Case(plain(), 1e-13),
    "exact, torch, recomputed": Case(plain(stored=0), 1e-13),
    "exact, torch, batched": Case(in_batch, 1e-13),
    "exact, torch, float32": Case(by_torch("exact", tiled=False), 1e-13, "float32"),
    "lattice, torch": Case(by_torch("lattice"), 1e-6),
    "exact, device": Case(on_device("exact"), 1e-13),
    "lattice, device": Case(on_device("lattice"), 1e-6),
}
TRITON = {
    "exact, Triton": Case(by_torch("exact", tiled=True), 5e-4, "float32"),
    "exact, Triton, batched": Case(in_tiles, 5e-4, "float32"),
}
CASES = {**HOST, **TORCH, **TRITON}


@pytest.fixture(params=CASES)
def case(request: Any) -> Case:
    if request.param not in HOST and torch is None:
        pytest.skip("torch is not installed")
    if request.param in TRITON and not KERNELS:
        pytest.skip("Triton's kernels run on a GPU, or interpreted")
    return CASES[request.param]


def points(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(N, D)) + 3.0


def draw(seed: int, channels: int = C) -> Any:
    return np.random.default_rng(seed).normal(size=(N, channels))


def given(plan: Plan, x: Any, case: Case) -> Any:
    """An array as the plan takes it."""
    if isinstance(plan.ones(), np.ndarray):
        return x.astype(case.dtype)
    out = tensor(x, case.dtype)
    return out[None] if plan.ones().ndim == 3 else out


def taken(x: Any) -> Any:
    """What a plan gives as a numpy array without the axis of images."""
    x = x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()
    return x[0] if x.ndim == 3 else x


def expected(name: str, f: Any) -> Any:
    """K by the plain reference."""
    return ExactFilter(f).matrix() if name == "exact" else lattice_matrix(f)


def close(found: Any, wanted: Any, error: float, size: Any = None) -> None:
    """Equal up to an error relative to the largest: of what sums are made of where they cancel."""
    largest = np.abs(wanted if size is None else size).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=error * largest)


def rounding(case: Case) -> float:
    return max(case.error, 1e-6 if case.dtype == "float32" else 0.0)


def test_products_are_those_of_the_reference(case: Case) -> None:
    f = points()
    plan = case.make(f)
    k = expected(plan.name, f)
    for channels in (1, 2, C):
        v = draw(channels, channels)
        found = plan.apply(given(plan, v, case))
        assert str(found.dtype).endswith(case.dtype)
        close(taken(found), k @ v, rounding(case), k @ abs(v))


def test_diagonals_and_total_weights_are_those_of_the_reference(case: Case) -> None:
    f = points()
    plan = case.make(f)
    k = expected(plan.name, f)
    diagonal = plan.diagonal()
    diagonal = diagonal if isinstance(diagonal, np.ndarray) else diagonal.cpu().numpy()
    close(diagonal.reshape(-1), np.diag(k), case.error)
    assert taken(plan.ones()).shape == (N, 1) and (taken(plan.ones()) == 1).all()
    close(taken(plan.mass()), k.sum(1, keepdims=True) + SMALLEST_MASS, rounding(case))


def test_plans_count_their_bytes(case: Case) -> None:
    assert case.make(points()).nbytes >= N * D * 4


def test_gradients_are_finite_differences(case: Case) -> None:
    f, a, b = points(), draw(5), draw(6)
    plan = case.make(f)
    values = given(plan, a, case), given(plan, b, case)
    # a lattice isn't differentiable where points cross into another simplex
    if plan.name == "lattice" or isinstance(plan, ExactFilter):
        with pytest.raises(UnsupportedError, match=plan.name):
            plan.pull(*values)
        return
    gradient, totals = (taken(x) for x in plan.pull(*values))
    k = expected("exact", f)
    close(totals[:, 0], (a * (k @ b) + b * (k @ a)).sum(1), 10 * rounding(case))
    slope, step = np.empty_like(f), 1e-6
    for at in np.ndindex(*f.shape):
        moved = np.zeros_like(f)
        moved[at] = step
        ends = [(a * (expected("exact", f + s * moved) @ b)).sum() for s in (1, -1)]
        slope[at] = (ends[0] - ends[1]) / (2 * step)
    close(gradient, slope, max(1e-8, 10 * rounding(case)))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_message", [True, False])
def test_the_operator_is_that_of_the_reference(
    case: Case, normalization: str, self_message: bool
) -> None:
    f, v = points(), draw(1)
    plan = case.make(f)
    k = expected(plan.name, f)
    mass = k.sum(1)
    a = k
    if normalization == "symmetric":
        a = k / np.sqrt(np.outer(mass, mass))
    elif normalization != "none":
        a = 0.5 * (k / mass + k / mass[:, None])
    whole, own = a, np.diag(a)
    if not self_message:
        a = a - np.diag(own)
    operator = Operator(plan, normalization, self_message)
    size = whole @ abs(v)
    close(taken(operator.apply(given(plan, v, case))), a @ v, rounding(case), size)
    one = given(plan, v[:, :1], case)
    close(taken(operator.apply(one)), a @ v[:, :1], rounding(case), size)
    close(taken(operator.operate(one)), whole @ v[:, :1], rounding(case), size)
    close(taken(operator.own)[:, 0], own, rounding(case))
    close(taken(operator.row_sums[..., None])[:, 0], a.sum(1), rounding(case))
    low, high = (float(x) for x in operator.range())
    ends = np.linalg.eigvalsh(a)
    assert low <= ends[0] + 1e-5 and ends[-1] <= high + 1e-5
