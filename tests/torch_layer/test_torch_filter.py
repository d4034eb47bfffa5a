"""The filter as an operator: values, gradients, tracing, plans."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield.torch as pt  # noqa: E402
from proxfield.core.filters.torch import plans  # noqa: E402
from proxfield.errors import InputError  # noqa: E402

SHAPES = [(1, 1), (1, 3), (3, 3)]


def sums(features: Any, values: Any, filter: str = "exact") -> Any:
    """Without a division; a batch, or one set of points."""
    batch = values.ndim == 3
    return pt.gaussian_filter(values, features, normalize=False, filter=filter, batch=batch)


def points(device: str, own: int = 2, images: int = 2, n: int = 9, dtype: Any = None) -> Any:
    dtype = torch.float64 if dtype is None else dtype
    make = {"dtype": dtype, "device": device}
    return torch.randn(own, n, 2, **make), torch.randn(images, n, 3, **make)


def kernel(features: Any) -> Any:
    gap = features[:, :, None] - features[:, None]
    return torch.exp(-0.5 * gap.square().sum(-1))


@pytest.mark.parametrize(("own", "images"), SHAPES)
@pytest.mark.parametrize("blocked", [False, True])
def test_values(device: str, own: int, images: int, blocked: bool, monkeypatch: Any) -> None:
    if blocked:
        monkeypatch.setattr(plans, "MAX_STORED_WEIGHTS", 0)
        monkeypatch.setattr(plans, "BLOCK", 40)
    f, v = points(device, own, images)
    assert torch.allclose(sums(f, v), kernel(f) @ v, atol=1e-12)
    assert torch.allclose(sums(f[0], v[0]), kernel(f)[0] @ v[0], atol=1e-12)
    single = sums(f.float(), v.float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), kernel(f) @ v, atol=3e-3 if device == "cuda" else 1e-5)


@pytest.mark.parametrize(("own", "images"), SHAPES)
@pytest.mark.parametrize("blocked", [False, True])
def test_gradients(device: str, own: int, images: int, blocked: bool, monkeypatch: Any) -> None:
    if blocked:
        monkeypatch.setattr(plans, "MAX_STORED_WEIGHTS", 0)
        monkeypatch.setattr(plans, "BLOCK", 40)
    f, v = points(device, own, images, n=5)
    inputs = (f.requires_grad_(), v.requires_grad_())
    assert torch.autograd.gradcheck(sums, inputs)


def test_gradient_far_from_the_origin(device: str) -> None:
    f, v = points(device)
    grads = []
    for shift in (0.0, 1e4):
        moved = (f + shift).requires_grad_()
        sums(moved, v).square().sum().backward()
        grads.append(moved.grad)
    assert torch.allclose(*grads, atol=1e-9)


def test_single_precision_gradient(device: str) -> None:
    f, v = points(device, n=200)
    grads = []
    for kind in (torch.float32, torch.float64):
        x = f.to(kind).requires_grad_()
        sums(x, v.to(kind)).square().sum().backward()
        grads.append(x.grad.double())
    error = (grads[0] - grads[1]).norm() / grads[1].norm()
    assert error < (5e-3 if device == "cuda" else 1e-5)


def test_operator_is_well_formed(device: str) -> None:
    f, v = points(device, n=4)
    inputs = (f.requires_grad_(), v.requires_grad_())
    torch.library.opcheck(torch.ops.proxfield.gaussian_filter, (*inputs, "exact"))


def test_no_second_derivative_in_features(device: str) -> None:
    f, v = points(device)
    f.requires_grad_()
    out = sums(f, v).square().sum()
    (grad,) = torch.autograd.grad(out, f, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.sum().backward()


def test_compiles_whole(device: str) -> None:
    f, v = points(device)

    def loss(f: Any, v: Any) -> Any:
        return sums(2 * f, v).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (loss, compiled):
        x = f.clone().requires_grad_()
        function(x, v).backward()
        grads.append(x.grad)
    assert torch.allclose(*grads)


def test_plans_are_shared_and_forgotten(device: str, monkeypatch: Any) -> None:
    made = []
    make = plans.make_plan
    monkeypatch.setattr(plans, "make_plan", lambda *a: made.append(1) or make(*a))
    pt.clear_plans()
    f, v = points(device)
    f.requires_grad_()
    out = sums(f, sums(f, v))
    out.sum().backward()
    assert len(made) == 1  # two applications forward, and all of the backward pass
    with torch.no_grad():
        f.data[0, 0, 0] += 1.0  # unseen by autograd
        assert torch.allclose(sums(f, v), kernel(f) @ v)
    assert len(made) == 2
    del f, out
    sums(*points(device))
    assert len(plans.PLANS.entries) == 1


def test_half_precision_and_autocast(device: str) -> None:
    f, v = points(device, n=300)
    f = 0.01 * f
    expected = kernel(f) @ v.abs()
    half = sums(f.half(), v.abs().half())
    assert half.dtype == torch.float32
    with torch.autocast(device, dtype=torch.bfloat16):
        out = sums(f.float(), v.abs().float())
    assert torch.allclose(out.double(), expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("f", "v", "what"),
    [
        ((3, 2), (4, 1), "expected"),
        ((2, 3, 2), (3, 3, 1), "expected"),
        ((3, 0), (3, 1), "expected"),
    ],
)
def test_shapes_are_checked(f: tuple[int, ...], v: tuple[int, ...], what: str) -> None:
    with pytest.raises(InputError, match=what):
        sums(torch.zeros(f), torch.zeros(v))


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="floating-point"):
        sums(torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 1))


def test_nothing_to_sum(device: str) -> None:
    empty = torch.zeros(2, 0, 3, device=device)
    assert sums(torch.zeros(2, 0, 2, device=device), empty).shape == (2, 0, 3)


def test_importing_proxfield_does_not_import_torch() -> None:
    code = "import sys, proxfield; proxfield.DenseCRF; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
