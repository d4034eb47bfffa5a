"""The lattice over tensors: as a filter and in the layer, with gradients."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from lattice_reference import lattice_matrix  # noqa: E402
from proxfield.core.filters.torch import plans  # noqa: E402
from proxfield.core.filters.torch.plans import pull_by_moments  # noqa: E402
from proxfield.errors import InputError  # noqa: E402

NORMALIZATIONS = ("none", "before", "after", "symmetric")


def cloud(device: str, n: int = 60, d: int = 3, c: int = 2) -> tuple[Any, Any]:
    make = {"dtype": torch.float64, "device": device}
    return 1.5 * torch.randn(n, d, **make), torch.randn(n, c, **make)


def cosine(a: Any, b: Any) -> float:
    a, b = a.flatten().double(), b.flatten().double()
    return float((a @ b) / (a.norm() * b.norm()))


# ---- the filter ----


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("filter", ["exact", "lattice"])
def test_the_same_as_for_arrays(device: str, filter: str, normalize: bool) -> None:
    f, v = cloud(device)
    f[30:] += 2.0
    options: Any = {"filter": filter, "normalize": normalize, "sigma": [0.5, 1.0, 2.0]}
    at = f[:5].reshape(5, 1, 3) + 0.1
    for values, here in ((v, None), (v[:, 0], None), (v, at)):
        found = pt.gaussian_filter(values, f, at=here, **options)
        expected = pf.gaussian_filter(
            values.cpu().numpy(),
            f.cpu().numpy(),
            at=None if here is None else here.cpu(),
            **options,
        )
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.cpu(), expected, rtol=1e-6, atol=1e-7)
        also = pf.gaussian_filter(values, f, at=here, **options)
        assert torch.equal(also, found)


@pytest.mark.parametrize("filter", ["exact", "lattice"])
@pytest.mark.parametrize("own", [1, 2])
def test_batches(device: str, filter: str, own: int) -> None:
    f = torch.stack([cloud(device)[0] for _ in range(own)])
    v = torch.stack([cloud(device)[1] for _ in range(2)])
    at = f[:1, :7] + 0.3
    for here in (None, at):
        out = pt.gaussian_filter(v, f, at=here, filter=filter, batch=True)
        for k in range(2):
            alone = pt.gaussian_filter(
                v[k], f[k % own], at=None if here is None else here[0], filter=filter
            )
            assert torch.allclose(out[k], alone, atol=1e-12)
    image = pt.gaussian_filter(v.reshape(2, 6, 10, 2), f.reshape(own, 6, 10, 3), batch=True)
    assert torch.allclose(image.reshape(2, 60, 2), pt.gaussian_filter(v, f, batch=True))


@pytest.mark.parametrize("normalize", [True, False])
def test_gradient_for_values_is_exact(device: str, normalize: bool) -> None:
    f, v = cloud(device, n=7)

    def filtered(values: Any) -> Any:
        return pt.gaussian_filter(values, f, filter="lattice", normalize=normalize)

    assert torch.autograd.gradcheck(filtered, (v.requires_grad_(),))


def test_gradients_of_means_and_sigma(device: str) -> None:
    f, v = cloud(device, n=6)
    sigma = torch.tensor([0.8, 1.1, 1.5], dtype=torch.float64, device=device)

    def filtered(v: Any, f: Any, at: Any, sigma: Any) -> Any:
        return pt.gaussian_filter(v, f, at=at, sigma=sigma, filter="exact")

    inputs = [x.detach().requires_grad_() for x in (v, f, f[:4] + 0.2, sigma)]
    assert torch.autograd.gradcheck(filtered, inputs)
    last = [*inputs[:2], sigma]
    assert torch.autograd.gradcheck(lambda v, f, sigma: filtered(v, f, None, sigma), last)


@pytest.mark.parametrize("images", [1, 2])
def test_pull_is_that_of_the_lattice_matrix(device: str, images: int) -> None:
    """Σ_j k_ij (a_i·b_j + b_i·a_j) (f_j − f_i), with the reference's k."""
    f = torch.stack([cloud(device)[0] + 40.0 * k for k in range(images)])
    a, b = (torch.randn(2, 60, 5, dtype=torch.float64, device=device) for _ in range(2))
    found, totals = plans.make_plan(f, "lattice").pull(a, b)
    for i in range(images):
        k = torch.tensor(lattice_matrix(f[i].cpu().numpy()), device=device)
        x, y = (plans.fold(v, images)[i] for v in (a, b))
        w = k * (x @ y.T + y @ x.T)
        expected = w @ f[i] - w.sum(1, keepdim=True) * f[i]
        assert torch.allclose(found[i], expected, rtol=1e-6, atol=1e-6)
        assert torch.allclose(totals[i], w.sum(1, keepdim=True), rtol=1e-6, atol=1e-6)
        plain = pull_by_moments(lambda v, k=k: k @ v, f[i] - f[i].mean(0), x, y)
        assert torch.allclose(plain[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_gradient_for_features_is_near_the_gaussians(device: str, normalize: bool) -> None:
    """Against finite differences of the exact filter, along the gradient and some direction."""
    f, _ = cloud(device, n=1500)
    v = f[:, :1].sin() + 0.3 * f[:, 1:2]  # something smooth
    goal = f[:, 1:2].cos()

    def loss(x: Any, kind: str) -> Any:
        out = pt.gaussian_filter(v, x, filter=kind, normalize=normalize)
        return (out * goal).sum() / 1500

    moving = f.clone().requires_grad_()
    loss(moving, "lattice").backward()
    found = moving.grad
    exact = f.clone().requires_grad_()
    loss(exact, "exact").backward()
    assert cosine(found, exact.grad) > 0.99
    with torch.no_grad():
        for along in (found / found.norm(), f / f.norm()):
            step = 1e-3 * along
            numeric = (loss(f + step, "exact") - loss(f - step, "exact")) / 2e-3
            near = pytest.approx(float(numeric), abs=0.05 * float(found.norm()))
            assert float((found * along).sum()) == near


def test_single_precision(device: str) -> None:
    f, v = cloud(device, n=300)
    grads = []
    for kind in (torch.float32, torch.float64):
        x, y = f.to(kind).requires_grad_(), v.to(kind).requires_grad_()
        out = pt.gaussian_filter(y, x, filter="lattice")
        assert out.dtype == kind
        out.square().sum().backward()
        grads.append((x.grad.double(), y.grad.double()))
    for a, b in zip(*grads, strict=True):
        assert (a - b).norm() < 1e-3 * b.norm()


def test_auto(device: str) -> None:
    few, many = torch.zeros(1, 2000, 2, device=device), torch.zeros(1, 2001, 2, device=device)
    assert plans.resolve("auto", few) == "exact"
    assert plans.resolve("auto", many) == ("lattice" if device == "cpu" else "exact")
    assert plans.resolve("lattice", few) == "lattice"
    assert plans.resolve("auto", many.to("meta")) == "exact"  # neither the CPU nor CUDA


def test_plans_of_both_filters_are_kept_apart(device: str) -> None:
    pt.clear_plans()
    f, v = cloud(device)
    exact, lattice = (pt.gaussian_filter(v, f, filter=k) for k in ("exact", "lattice"))
    assert not torch.allclose(exact, lattice)
    assert torch.equal(pt.gaussian_filter(v, f, filter="exact"), exact)
    assert torch.equal(pt.gaussian_filter(v, f, filter="lattice"), lattice)


def test_compiles_whole(device: str) -> None:
    f, v = cloud(device)

    def loss(f: Any, v: Any) -> Any:
        return pt.gaussian_filter(v, 2 * f, filter="lattice").square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (loss, compiled):
        x = f.clone().requires_grad_()
        function(x, v).backward()
        grads.append(x.grad)
    assert torch.allclose(*grads)


def test_operators_are_well_formed(device: str) -> None:
    f, v = cloud(device, n=5)
    inputs = (f[None].requires_grad_(), v[None].requires_grad_(), "lattice")
    torch.library.opcheck(torch.ops.proxfield.gaussian_filter, inputs)
    torch.library.opcheck(torch.ops.proxfield.gaussian_diagonal, (inputs[0], "lattice"))


@pytest.mark.parametrize(
    ("v", "f", "options", "what"),
    [
        ((4, 1), (3, 2), {}, "expected"),
        ((4,), (4,), {}, "needs an axis too"),
        ((3, 4, 1), (2, 4, 2), {"batch": True}, "as many images"),
        ((4,), (4, 2), {"sigma": -1.0}, "above 0"),
        ((4,), (4, 2), {"sigma": torch.ones(3)}, "one per feature"),
        ((4,), (4, 2), {"filter": "fast"}, "unknown filter"),
        ((4,), (4, 2), {"at": torch.ones(3, 3)}, "as the features"),
        ((4,), (4, 2), {"at": [[0.0, 0.0]]}, "at is of type list, expected a torch.Tensor"),
    ],
)
def test_messages(v: Any, f: Any, options: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        pt.gaussian_filter(torch.zeros(v), torch.zeros(f), **options)


def test_arguments_of_arrays_alone_are_refused_for_tensors() -> None:
    with pytest.raises(InputError, match="don't pass dtype or threads"):
        pf.gaussian_filter(torch.zeros(4), torch.zeros(4, 2), threads=1)


def test_threads_of_torch_are_left_alone() -> None:
    """numba's OpenMP may be torch's, and sets its number of threads when it starts."""
    code = (
        "import torch; torch.set_num_threads(1); import proxfield.torch as pt; "
        "pt.gaussian_filter(torch.rand(3000), torch.rand(3000, 2)); "
        "print(torch.get_num_threads())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"


# ---- the layer ----


def scene(device: str, shape: tuple[int, ...] = (5, 6), n_labels: int = 3) -> Any:
    make = {"dtype": torch.float64, "device": device}
    return torch.rand(2, 3, *shape, **make), torch.randn(2, n_labels, *shape, **make)


def layer_of(device: str, **options: Any) -> Any:
    shared: Any = {
        "spatial_weight": 0.4,
        "bilateral_weight": 0.7,
        "spatial_sigma": (2.0, 1.5),
        "bilateral_sigma": 4.0,
        "bilateral_color": 0.4,
        "filter": "lattice",
        "tol": 0,
    }
    return pt.DenseCRF(3, **{**shared, **options}).to(device).double()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_message", [True, False])
def test_same_marginals_as_the_field(device: str, normalization: str, self_message: bool) -> None:
    image, logits = scene(device, (7, 9))
    kind = {"normalization": normalization, "self_message": self_message}
    with torch.no_grad():
        out = layer_of(device, max_iters=10, **kind)(image, logits).exp().cpu().numpy()
    for k in range(2):
        crf = pf.DenseCRF(
            image[k].cpu().numpy(), energies=-logits[k].cpu().numpy(), channel_axis=0,
            labels_axis=0, filter="lattice", spatial_weight=0.4, bilateral_weight=0.7,
            spatial_sigma=(2.0, 1.5), bilateral_sigma=4.0, bilateral_color=0.4, **kind,
        )  # fmt: skip
        found = crf.infer(max_iters=10, tol=0).q
        assert np.abs(out[k].reshape(3, -1).T - found.reshape(-1, 3)).max() < 1e-4


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_message", [True, False])
@pytest.mark.parametrize("keep_every", [1, 3])
def test_gradients_are_those_of_the_updates(
    device: str, normalization: str, self_message: bool, keep_every: int
) -> None:
    """Against finite differences in logits, weights and table; all others as autograd has them."""
    image, logits = scene(device, (3, 4))
    table = torch.tensor([[0.0, 2.0, 1.0], [2.0, 0.5, -1.0], [1.0, -1.0, 0.0]])
    kind = {
        "normalization": normalization,
        "self_message": self_message,
        "compatibility": table,
        "max_iters": 4,
    }
    layer = layer_of(device, keep_every=keep_every, **kind)
    plain = layer_of(device, gradient="unrolled", **kind)
    grads = []
    for one in (layer, plain):
        given = [x.clone().requires_grad_() for x in (image, logits)]
        out = one(*given)
        (out * out.detach().cos()).sum().backward()
        grads.append([*(x.grad for x in given), *(p.grad for p in one.parameters())])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-9)

    def outputs(logits: Any, weights: Any, compatibility: Any) -> Any:
        with torch.no_grad():
            layer.log_weights.copy_(weights)
            layer.compatibility.copy_(compatibility)
        given = {"log_weights": weights, "compatibility": compatibility}
        return torch.func.functional_call(layer, given, (image, logits))

    start = [x.detach().clone().requires_grad_() for x in (layer.log_weights, layer.compatibility)]
    assert torch.autograd.gradcheck(outputs, (logits.requires_grad_(), *start), fast_mode=True)


def test_bandwidths_learn_what_the_exact_filter_would(device: str) -> None:
    image, logits = scene(device, (24, 25))
    truth = (image.mean(1) > 0.5).long()
    found = []
    for kind in ("lattice", "exact"):
        layer = layer_of(device, filter=kind, bilateral_color=0.3)
        torch.nn.functional.nll_loss(layer(image, logits), truth).backward()
        widths = ("log_spatial_", "log_bilateral_")
        sigmas = [p.grad.flatten() for n, p in layer.named_parameters() if n.startswith(widths)]
        found.append((torch.cat(sigmas), layer.log_weights.grad))
    for a, b in zip(*found, strict=True):
        assert cosine(a, b) > 0.98
        assert float(a.norm() / b.norm()) == pytest.approx(1.0, abs=0.2)


def test_implicit_gradient(device: str) -> None:
    image, logits = scene(device)
    grads = []
    for kind in ("exact", "implicit"):
        layer = layer_of(device, gradient=kind, max_iters=300, tol=1e-12)
        given = logits.clone().requires_grad_()
        out = layer(image, given)
        (out * out.detach().cos()).sum().backward()
        grads.append([given.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-7)


def test_layer_compiles_whole(device: str) -> None:
    image, logits = scene(device)
    layer = layer_of(device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.allclose(compiled(image, logits), layer(image, logits))


def test_unknown_filters_are_refused() -> None:
    with pytest.raises(InputError, match="filter='fast', expected one of: auto, exact, lattice"):
        pt.DenseCRF(3, filter="fast")
    assert "filter='lattice'" in repr(pt.DenseCRF(3, filter="lattice"))
