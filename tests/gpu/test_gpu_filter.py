"""The exact filter on a GPU: its parts on the CPU, its kernels interpreted, and on a device."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_cases import CASES, error

import proxfield
from proxfield.core.filters.exact import ExactFilter
from proxfield.errors import InputError

torch = pytest.importorskip("torch", reason="the filter on a GPU needs torch")

from proxfield.core.filters.torch.plans import reference_filter  # noqa: E402
from proxfield.core.filters.triton.exact import ExactPlan, Items  # noqa: E402

has_triton = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not has_triton, reason="its kernels need triton")
needs_device = pytest.mark.skipif(
    not (has_triton and torch.cuda.is_available()), reason="no CUDA device (or no triton) here"
)
LIMIT = 3e-4
"""Errors relative to the sums, or to those of absolute values: sums that cancel keep rounding."""


def draw(n: int, d: int, spread: float = 1.0, seed: int = 0) -> Any:
    """Points of a normal distribution.  # (n, d)"""
    return spread * torch.randn(
        n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("block", [1, 7, 1024])
def test_reference_is_the_exact_filter(block: int) -> None:
    features, values = draw(60, 3), draw(60, 4, seed=1)
    matrix = ExactFilter(features.numpy()).matrix()
    out = reference_filter(features, values.float(), block=block)
    assert out.dtype == torch.float64
    np.testing.assert_allclose(out, matrix @ values.float().double().numpy(), rtol=1e-12)
    some = reference_filter(features, values.float(), rows=torch.tensor([5, 3]), block=block)
    np.testing.assert_allclose(some, out[[5, 3]], rtol=1e-12)


def test_items_share_out_all_rounds() -> None:
    far, near = np.array([0, 3, 0, 0, 1]), np.array([2, 7, 1, 0, 0])
    items = Items(far, near, 16, 4, 3)
    assert items.begin.tolist() == [0, 8, 84, 88, 88]
    assert items.row.tolist() == [0, 1, 1, 1, 1, 2, 3, 4]
    assert items.far.tolist() == [0, 32, 16, 0, 0, 0, 0, 16]
    assert items.count.tolist() == [8, 32, 24, 8, 12, 4, 0, 16]
    assert items.start.tolist() == [0, 8, 40, 64, 72, 84, 88, 88]
    assert items.batches == [(0, 5, 0, 8)]


@needs_triton
def test_bad_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="CUDA device"):
        ExactPlan(draw(9, 2))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for features in (draw(9, 2)[0], draw(9, 2).long(), draw(9, 0)):
        with pytest.raises(InputError, match="floating-point tensor"):
            ExactPlan(features)
    with pytest.raises(InputError, match="tolerance"):
        ExactPlan(draw(9, 2), tolerance=0.0)
    with pytest.raises(InputError, match="NaN"):
        ExactPlan(draw(9, 2) * float("nan"))
    with pytest.raises(InputError, match="for 0 points"):
        ExactPlan(draw(0, 2)).apply(draw(1, 1))


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    """What the kernels do in Triton's interpreter."""
    if not has_triton:
        pytest.skip("its kernels need triton")
    package = str(Path(proxfield.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "gpu_cases.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": package},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels(interpreted: dict[str, Any], name: str) -> None:
    case = interpreted[name]
    # squares of up to 4e4 are summed in float32: by which order, and so how exactly, is the CPU's
    limit = 2e-3 if name == "far from each other" else LIMIT
    assert case["error"] < limit
    assert case["signed"] < limit
    assert case["repeats"]
    assert case["missed"]["share"] < 1e-5  # these points are too far apart to leave out more
    assert case["products"] == (CASES[name][3] < 1000)


def test_interpreted_sizes(interpreted: dict[str, Any]) -> None:
    assert interpreted["defaults"]["error"] < LIMIT
    assert interpreted["batches"]["count"] > 3
    assert interpreted["batches"]["same"]
    assert interpreted["batches"]["error"] < LIMIT
    assert max(interpreted["scales"]["errors"]) < LIMIT
    assert interpreted["level"]["error"] < 1e-4
    assert interpreted["ones"]["error"] < 5e-5
    assert interpreted["zeros"]["most"] == 0.0
    assert interpreted["loose"]["pairs"] < interpreted["loose"]["all"]
    assert interpreted["loose"]["missed"] <= 1.01e-2
    assert interpreted["nothing"]["shapes"] == [[0, 21], [301, 0]]


def test_interpreted_centers(interpreted: dict[str, Any]) -> None:
    """Where points are dense, less is computed, and far blocks by their centers."""
    found = interpreted["dense"]
    assert 0 < found["far"] < found["pairs"] < found["all"]
    assert found["missed plain"]["most"] <= 1.01e-6
    assert found["missed"]["share"] < 1e-4
    assert 1e-4 < found["missed"]["far share"] < 1e-2
    assert found["missed"]["far most"] < 2.0**-5.5 * 1.01
    assert found["error"] < 5e-5 and found["worst"] < 3e-4
    assert found["weight"] < 5e-3 and found["least"] >= 0.0
    assert found["asymmetry"] < 1e-5
    assert found["repeats"]


def test_interpreted_order(interpreted: dict[str, Any]) -> None:
    found = interpreted["order"]
    assert all(found["every"]) and found["same"] and found["leaves"]
    assert found["compact"] < 0.15 * found["scattered"]
    assert found["halves"] <= 1e-4  # compared to 18 bits or more


def test_interpreted_encoding(interpreted: dict[str, Any]) -> None:
    assert max(interpreted["encoded"]) < 6e-4


@needs_device
@pytest.mark.parametrize(
    ("n", "d", "c", "spread"),
    [
        (20000, 5, 21, 2.0), (20001, 2, 1, 20.0), (5000, 8, 40, 0.7), (3000, 1, 2, 3.0),
        (5000, 5, 90, 40.0), (3000, 2, 3, 5000.0), (3000, 14, 32, 0.4), (3000, 5, 16, 0.0),
    ],
)  # fmt: skip
def test_device(n: int, d: int, c: int, spread: float) -> None:
    features, values = draw(n, d, spread).cuda(), draw(n, c, seed=1).cuda().float()
    plan = ExactPlan(features)
    out = plan.apply(values)
    scale = reference_filter(features, values.abs())
    assert error(out, reference_filter(features, values), scale) < LIMIT
    assert bool((plan.apply(values) == out).all())
    assert error(plan.apply(values.abs()), scale) < LIMIT


@needs_device
def test_device_image() -> None:
    """Pixels of a smooth image: centers of blocks stand for far ones."""
    y, x = np.mgrid[:120, :160]
    colors = np.stack([x / 2 + 30 * (x > 80), y, (x + y) / 3], -1)
    colors = colors + np.random.default_rng(0).normal(0, 1, colors.shape)
    grid = np.stack([y, x], -1) / 30
    features = torch.from_numpy(np.concatenate([grid, colors / 13], -1).reshape(-1, 5)).cuda()
    values = draw(len(features), 21, seed=1).cuda().float().abs()
    plan = ExactPlan(features)
    assert 0.05 * plan.pairs < plan.far_pairs < plan.pairs
    out, expected = plan.apply(values), reference_filter(features, values)
    assert error(out, expected) < 1.5e-4
    assert float(((out - expected).abs() / expected).max()) < 1e-3
    assert bool((plan.apply(values) == out).all())
    product = values.double().T @ out.double()
    assert float(((product - product.T) / product).abs().max()) < 3e-5


@needs_device
def test_device_graph() -> None:
    """An application needs nothing of the host, so it can be recorded and replayed."""
    features, values = draw(5000, 5, 2.0).cuda(), draw(5000, 21, seed=1).cuda().float()
    plan = ExactPlan(features)
    expected = plan.apply(values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = plan.apply(values)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == expected).all())
