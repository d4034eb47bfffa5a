"""Terms on a device against the same terms on the host: gradients and energies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_terms import (
    DEVICE,
    INTERPRETED,
    needs_device,
    needs_interpreter,
    poisoned,
    run_interpreted,
    torch,
)

import proxfield as pf
from proxfield.core.engines.triton.terms.base import ConsistencyOnDevice, HostTerm, on_device
from proxfield.core.engines.triton.terms.gaussian import attach
from proxfield.core.filters.torch import plans
from proxfield.core.filters.torch.plans import DeviceFilter, PlainPlan, choose_kind
from proxfield.core.filters.triton.exact import ExactPlan
from proxfield.core.filters.triton.lattice import LatticePlan
from proxfield.core.terms.base import Layout
from proxfield.core.terms.gaussian import NORMALIZATIONS

__all__ = ["poisoned"]  # a fixture
pytestmark = pytest.mark.usefixtures("poisoned")
KERNELS = INTERPRETED or DEVICE == "cuda"
TABLE = np.random.default_rng(9).normal(size=(3, 3))
COMPATIBILITIES: dict[str, Any] = {"potts": None, "diagonal": [-1.0, 0.5, -2.0], "full": TABLE}


def marginals(layout: Layout, seed: int = 0) -> Any:
    return layout.normalize(np.random.default_rng(seed).exponential(size=layout.size) ** 2)


def features(n: int, d: int = 2) -> Any:
    out = np.random.default_rng(n).normal(size=(n, d))
    out[n // 2] = out[0]
    return out


def check(term: Any, layout: Layout, dtype: str, rounding: float, q: Any = None) -> Any:
    """Both add the same to what is there, and agree about the energy."""
    q = (marginals(layout) if q is None else q).astype(dtype)
    expected = np.ones(layout.size)
    term.add_gradient(layout, q.astype(np.float64), expected)
    made = on_device(term, layout, dtype, DEVICE)
    there = torch.from_numpy(q).to(DEVICE)
    out = torch.ones(layout.size, dtype=there.dtype, device=DEVICE)
    energy = made.add_gradient(there, out)
    assert energy.shape == () and energy.dtype == torch.float64
    scale = max(1.0, float(abs(expected).max()))
    np.testing.assert_allclose(out.cpu(), expected, rtol=0, atol=rounding * scale)
    mean = term.energy(layout, q.astype(np.float64))
    assert float(energy) == pytest.approx(mean, rel=rounding, abs=rounding * layout.n_vars)
    if INTERPRETED:
        return made
    again = torch.ones_like(out)
    assert bool(made.add_gradient(there, again) == energy) and bool((again == out).all())
    return made


# ---- Gaussian ----


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_message", [False, True])
@pytest.mark.parametrize("kind", ["exact", "lattice"])
def test_gaussian(kind: str, self_message: bool, normalization: str, compatibility: str) -> None:
    if INTERPRETED and kind == "lattice" and compatibility == "diagonal":
        pytest.skip("the same kernels as for a full matrix, and slow here")
    n = 5 if INTERPRETED else 40
    term = pf.Gaussian(
        features(n, 1 if INTERPRETED else 2), 1.7, COMPATIBILITIES[compatibility],
        normalization=normalization, self_message=self_message, filter=kind, first=2,
    )  # fmt: skip
    layout = Layout(np.array([3] * (n + 4)))
    made = check(term, layout, "float64", 3e-7 if kind == "lattice" else 1e-12)
    assert isinstance(made.plan, LatticePlan if kind == "lattice" else PlainPlan)
    assert made.capturable
    check(term, layout, "float32", 5e-6)


@pytest.mark.skipif(not KERNELS, reason="the plan for many points needs Triton")
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_message", [False, True])
def test_gaussian_by_tiles(
    monkeypatch: pytest.MonkeyPatch, self_message: bool, normalization: str, compatibility: str
) -> None:
    monkeypatch.setattr(plans, "MATRIX_POINTS", 0)
    term = pf.Gaussian(
        features(140), 1.7, COMPATIBILITIES[compatibility], normalization=normalization,
        self_message=self_message, filter="exact", first=1,
    )  # fmt: skip
    layout = Layout(np.array([5] + [3] * 141))
    made = check(term, layout, "float32", 5e-4)
    assert isinstance(made.plan, ExactPlan)
    made = check(term, layout, "float64", 1e-12)
    assert isinstance(made.plan, PlainPlan)


@pytest.mark.parametrize("n_labels", [1, 2, 21, 33])
def test_gaussian_with_other_numbers_of_labels(n_labels: int) -> None:
    term = pf.Gaussian(features(9, 3), 2.0, filter="exact")
    check(term, Layout(np.full(9, n_labels)), "float64", 1e-12)


def test_gaussian_of_one_point_and_of_none() -> None:
    check(pf.Gaussian([[1.0, 2.0]], filter="lattice"), Layout(np.array([4])), "float64", 1e-6)
    check(pf.Gaussian([[1.0, 2.0]]), Layout(np.array([4])), "float64", 1e-12)
    check(pf.Gaussian(np.zeros((0, 2))), Layout(np.array([4])), "float64", 1e-12)


def test_gaussian_keeps_the_larger_of_certain_marginals() -> None:
    layout = Layout(np.full(9, 3))
    q = np.zeros((9, 3))
    q[np.arange(9), np.arange(9) % 3] = 1.0
    check(pf.Gaussian(features(9), 3.0, filter="exact"), layout, "float32", 1e-5, q.ravel())


@pytest.mark.parametrize("kind", ["exact", "lattice"])
def test_operate_is_that_of_the_host(kind: str) -> None:
    v = np.random.default_rng(3).normal(size=(9, 4))
    for normalization in NORMALIZATIONS:
        term = pf.Gaussian(features(9), normalization=normalization, self_message=True, filter=kind)
        made: Any = on_device(term, Layout(np.full(9, 4)), "float64", DEVICE)
        found = made.operator.apply(torch.from_numpy(v).to(DEVICE)).cpu()
        np.testing.assert_allclose(found, term.operate(v), rtol=1e-12, atol=1e-12)


# ---- the filter of the host's term ----


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_message", [False, True])
def test_the_host_sees_the_operator_of_the_device(self_message: bool, normalization: str) -> None:
    field = pf.Field(9, n_labels=3)
    given = pf.Gaussian(
        features(9, 1),
        2.0,
        normalization=normalization,
        self_message=self_message,
        filter="lattice",
    )
    field.add(pf.Unary(np.zeros((9, 3)))).add(given)
    lowered = attach(field.lower(), "float64", DEVICE)
    (term,) = lowered.extras
    assert isinstance(term, pf.Gaussian) and term is not given
    assert isinstance(term.filter, DeviceFilter) and term.filter_kind == "lattice"
    assert "filter" not in vars(given)  # the user's term is as it was
    layout = lowered.layout
    np.testing.assert_allclose(term.spectrum(layout), given.spectrum(layout), rtol=1e-12)
    np.testing.assert_allclose(term.row_sums, given.row_sums, rtol=1e-12, atol=1e-12)
    check(term, layout, "float64", 1e-12)
    made: Any = on_device(term, layout, "float64", DEVICE)
    assert made.filter is term.filter  # built once
    other: Any = on_device(term, layout, "float32", DEVICE)
    assert other.filter is term.filter  # the lattice serves both types


@pytest.mark.skipif(not KERNELS, reason="the plan for many points needs Triton")
def test_both_types_share_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """F of a float32 iteration, evaluated in float64, is that of the same operator."""
    monkeypatch.setattr(plans, "MATRIX_POINTS", 0)
    field = pf.Field(140, n_labels=3).add(pf.Gaussian(features(140), filter="exact"))
    lowered = attach(field.lower(), "float32", DEVICE)
    assert attach(lowered, "float64", DEVICE).extras == lowered.extras
    made = check(lowered.extras[0], lowered.layout, "float64", 5e-4)
    assert made.filter is lowered.extras[0].filter
    assert isinstance(made.plan, ExactPlan)


def test_features_may_be_read_only() -> None:
    given = features(9)
    given.flags.writeable = False
    check(pf.Gaussian(given), Layout(np.full(9, 3)), "float64", 1e-12)


class OnGpu:
    """Features of so many points that claim to be on a GPU."""

    is_cuda = True

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


def test_auto_is_exact_where_that_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "has_kernels", lambda _: True)
    monkeypatch.setattr(plans, "estimated_pairs", lambda f, _: 1e9 if len(f) < 2e6 else 1e13)
    assert choose_kind("auto", OnGpu(187_500), False) == "exact"
    assert choose_kind("auto", OnGpu(1_000_000), False) == "exact"  # narrow
    assert choose_kind("auto", OnGpu(3_000_000), False) == "lattice"
    assert choose_kind("auto", OnGpu(50_000), True) == "exact"
    assert choose_kind("auto", OnGpu(187_500), True) == "lattice"
    assert choose_kind("lattice", OnGpu(10), False) == "lattice"
    assert choose_kind("exact", OnGpu(9_000_000), True) == "exact"
    here = torch.zeros(3000, 2)
    assert choose_kind("auto", here, False) == "lattice"  # as on the CPU
    assert choose_kind("auto", here[:2000], False) == "exact"


def test_estimated_pairs() -> None:
    near, far = torch.zeros(900, 2), 100.0 * torch.arange(900)[:, None].float()
    assert plans.estimated_pairs(near.to(DEVICE), 1e-6) == 900**2
    assert plans.estimated_pairs(far.to(DEVICE), 1e-6) == pytest.approx(plans.PADDING * 900)


# ---- co-occurrence ----


def statistics(m: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    maps = [rng.choice(m, size=2 + int(rng.integers(m - 1))) for _ in range(12)]
    return pf.CooccurrenceStatistics.from_label_maps(maps, m)


@pytest.mark.parametrize("scale", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("n_labels", [2, 5, 9])
def test_cooccurrence(n_labels: int, scale: float) -> None:
    """From all classes undecided to all decided."""
    n = 20
    term = pf.Cooccurrence(
        statistics(n_labels), pixels=n, first=1, kappa=scale, beta=2.0 * scale, always=(1,)
    )
    layout = Layout(np.array([2] + [n_labels] * (n + 1)))
    for seed in range(3):
        made = check(term, layout, "float64", 1e-11, marginals(layout, seed))
    assert made.capturable == KERNELS
    check(term, layout, "float32", 1e-5)


def test_cooccurrence_of_many_undecided_classes() -> None:
    n_labels, n = 14, 12
    layout = Layout(np.full(n, n_labels))
    for beta in (0.3,) if INTERPRETED else (0.3, 4.0):
        term = pf.Cooccurrence(statistics(n_labels), pixels=n, kappa=1.0, beta=beta)
        check(term, layout, "float64", 1e-10)


def test_cooccurrence_of_classes_that_are_always_there() -> None:
    term = pf.Cooccurrence(statistics(3), pixels=4, always=(0, 1, 2))
    check(term, Layout(np.full(4, 3)), "float64", 1e-12)


def test_cooccurrence_with_variables() -> None:
    n, n_labels = 11, 4
    term = pf.Cooccurrence(statistics(n_labels), pixels=n, latent="variables", kappa=2.0, beta=3.0)
    layout = Layout(np.array([n_labels] * n + [2] * 3 + [5]))
    assert check(term, layout, "float64", 1e-12).capturable
    check(term, layout, "float32", 1e-5)


# ---- consistency ----


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_consistency(overlap: bool, mixed: bool) -> None:
    lists = [np.array([0, 3, 4]), np.array([1]), np.array([7, 2, 5, 6])]
    if overlap:
        lists.append(np.array([3, 5, 8]))
    cards = np.array([3] * 9 + ([2, 4] if mixed else [3]))
    layout = Layout(cards)
    q = marginals(layout)
    for weights in (2.0, np.random.default_rng(0).random((len(lists), 3))):
        term = pf.Consistency(lists, weights)
        made = check(term, layout, "float64", 1e-12, q)
        assert isinstance(made, ConsistencyOnDevice)
        check(term, layout, "float32", 1e-5, q)
    sure = q.copy()  # variables that rule out labels: one in a segment, two, all
    sure[layout.offsets[3] : layout.offsets[3] + 3] = 0.0, 1.0, 0.0
    sure[layout.offsets[4] : layout.offsets[4] + 3] = 0.0, 0.4, 0.6
    sure[layout.offsets[1] : layout.offsets[1] + 3] = 1.0, 0.0, 0.0
    check(term, layout, "float64", 1e-12, sure)


def test_consistency_of_large_segments_and_of_none() -> None:
    n = 300
    layout = Layout(np.full(n, 2))
    segment = np.zeros(n, dtype=np.int64)
    segment[250:] = -1
    check(pf.Consistency(segment, 3.0), layout, "float64", 1e-12)
    check(pf.Consistency(np.full(n, -1)), layout, "float64", 1e-12)


# ---- any other ----


class Squares(pf.Term):
    """E = Σ q², which isn't multilinear."""

    name = "squares"

    def validate(self, layout: Layout) -> None: ...

    def labelling_energy(self, layout: Layout, labels: Any) -> float:
        return float(layout.n_vars)

    def energy(self, layout: Layout, q: Any) -> float:
        return float((q**2).sum())

    def add_gradient(self, layout: Layout, q: Any, out: Any) -> None:
        out += 2 * q


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_terms_run_on_the_host(dtype: str) -> None:
    layout = Layout(np.array([2, 3]))
    made = check(Squares(), layout, dtype, 1e-6)
    assert isinstance(made, HostTerm) and not made.capturable


# ---- on a device ----


@needs_device
def test_terms_are_recorded_and_replayed() -> None:
    n, n_labels = 5000, 21
    f = np.random.default_rng(0).normal(size=(n, 5)) * 2
    layout = Layout(np.full(n, n_labels))
    for term in (
        pf.Gaussian(f, self_message=True, filter="exact"),
        pf.Gaussian(f, self_message=True, filter="lattice"),
        pf.Gaussian(f, 1.0, -np.eye(n_labels), filter="exact", normalization="after"),
        pf.Cooccurrence(statistics(n_labels), pixels=n),
        pf.Consistency(np.arange(n) // 50, 2.0),
    ):
        made = on_device(term, layout, "float32", DEVICE)
        q = torch.from_numpy(marginals(layout).astype("float32")).to(DEVICE)
        expected = torch.zeros_like(q)
        energy = made.add_gradient(q, expected)
        assert made.capturable
        out = torch.zeros_like(q)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = made.add_gradient(q, out)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert bool((out == expected).all()) and float(replayed) == float(energy)


@needs_interpreter
@pytest.mark.skipif(DEVICE == "cuda", reason="the kernels ran on the device")
def test_kernels_in_the_interpreter() -> None:
    run_interpreted(__file__)
