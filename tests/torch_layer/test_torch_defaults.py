"""The layer as it comes: gentle settings, logits out, and training that stays stable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from proxfield.torch.layer import LOG_ZERO  # noqa: E402

F = torch.nn.functional


def picture(seed: int = 0, size: tuple[int, int] = (8, 9), n_labels: int = 4) -> Any:
    """An 8-bit image and probabilities, channels and labels last."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 255, (*size, 3)).astype(np.uint8)
    return image, rng.dirichlet(np.ones(n_labels), size).astype(np.float32)


def first(array: Any, device: str = "cpu") -> Any:
    """A batch of one, with the last axis first."""
    return torch.tensor(array, device=device).movedim(-1, 0)[None]


def task(device: str = "cpu", images: int = 6, size: int = 16) -> Any:
    """Images of two halves and a square in noise, logits that err, and the labels."""
    random = torch.Generator().manual_seed(0)
    truth = torch.zeros(images, size, size, dtype=torch.long)
    truth[:, :, size // 2 :] = 1
    truth[:, size // 4 : size // 2, size // 4 : 3 * size // 4] = 2
    colors = torch.tensor([[0.3, 0.4, 0.3], [0.7, 0.3, 0.3], [0.3, 0.4, 0.8]])
    image = colors[truth] + 0.05 * torch.randn(images, size, size, 3, generator=random)
    logits = 1.5 * F.one_hot(truth, 3) + 1.2 * torch.randn(images, size, size, 3, generator=random)
    made = (image.clamp(0, 1).movedim(-1, 1), logits.movedim(-1, 1), truth)
    return tuple(x.to(device).contiguous() for x in made)


# ---- settings ----


def test_default_settings_are_those_of_the_field() -> None:
    image, p = picture()
    field = pf.DenseCRF(image, p).to_config().to_dict()
    layer = pt.DenseCRF(4).to_config().to_dict()
    assert layer.pop("filter") == field.pop("filter")
    assert layer == pytest.approx(field, rel=1e-6)
    assert layer["spatial_weight"] == layer["bilateral_weight"] == 1.0  # gentle, and exact


@pytest.mark.parametrize("preset", [None, *pf.PRESETS, {"bilateral_weight": 2, "max_iters": 3}])
def test_presets_mean_the_same_as_for_the_field(preset: Any, device: str) -> None:
    image, p = picture()
    chosen = {} if preset is None else {"preset": preset}
    found = pf.DenseCRF(image, p, filter="exact", **chosen).infer(tol=0).probabilities
    crf = pt.DenseCRF(4, tol=0, **chosen).to(device)
    out = crf(first(image, device), probabilities=first(p, device))
    q = torch.softmax(out, 1)[0].movedim(0, -1).detach().cpu().numpy()
    assert np.abs(q - found).max() < 5e-5


def test_what_is_given_overrides_the_preset() -> None:
    crf = pt.DenseCRF(3, preset="deeplab", bilateral_weight=2.5, bilateral_color=0.1)
    expected = {**pf.PRESETS["deeplab"].to_dict(), "bilateral_weight": 2.5, "bilateral_color": 25.5}
    found = crf.to_config().to_dict()
    assert found.pop("filter") == expected.pop("filter")
    assert found == pytest.approx(expected, rel=1e-6)
    assert pt.DenseCRF(3, preset="deeplab", max_iters=2).max_iters == 2
    config = {"normalization": "before", "self_message": False, "compatibility": [-1.0, 0.0, -2.0]}
    crf = pt.DenseCRF(3, preset=config)
    assert {k: getattr(crf.to_config(), k) for k in config} == config
    assert pt.DenseCRF(3, preset=config, compatibility=None).compatibility is None
    assert pt.DenseCRF(3, preset=config, normalization="none").normalization == "none"


# ---- logits out ----


@pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
def test_outputs_are_logits(device: str, gradient: str) -> None:
    image, logits, _ = task(device)
    crf = pt.DenseCRF(3, gradient=gradient).to(device)
    out = crf(image, logits)
    marginals = pt.DenseCRF(3, gradient=gradient, output="marginals").to(device)(image, logits)
    assert torch.logsumexp(out, 1).abs().max() < 1e-5
    assert torch.allclose(torch.softmax(out, 1), marginals, atol=1e-6)
    assert torch.allclose(out.exp(), marginals, atol=1e-6)
    assert torch.equal(out.argmax(1), marginals.argmax(1))


def test_cross_entropy_is_that_of_the_marginals() -> None:
    image, logits, truth = task()
    truth[:, :3] = 255  # pixels to ignore
    found = []
    for output in ("log-marginals", "marginals"):
        crf = pt.DenseCRF(3, **({} if output == "log-marginals" else {"output": output}))
        x = logits.clone().requires_grad_()
        out = crf(image, x)
        if output == "log-marginals":
            loss = F.cross_entropy(out, truth, ignore_index=255)
        else:
            loss = F.nll_loss(out.log(), truth, ignore_index=255)
        loss.backward()
        found.append((loss.detach(), x.grad, *(p.grad for p in crf.parameters())))
    for mine, expected in zip(*found, strict=True):
        assert torch.allclose(mine, expected, atol=1e-6)


def test_cross_entropy_trains_a_network_through_the_layer() -> None:
    """With marginals out, the same loop ends at 88 % of the pixels, with strong weights at 13 %."""
    image, _, truth = task()
    torch.manual_seed(0)
    network = torch.nn.Conv2d(3, 3, 3, padding=1)
    crf = pt.DenseCRF(3)
    optimizer = torch.optim.Adam([*network.parameters(), *crf.parameters()], lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(crf(image, network(10 * image)), truth)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (crf(image, network(10 * image)).argmax(1) == truth).float().mean()
    assert float(loss.detach()) < 0.3
    assert right > 0.95


@pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
@pytest.mark.parametrize("far", [60.0, 3000.0, float("inf")])
def test_certain_and_excluded_labels_have_finite_losses(
    device: str, gradient: str, far: float
) -> None:
    """Marginals are exactly 0 there; so may be targets, and then their product isn't NaN."""
    image, logits, truth = task(device, images=2)
    logits[:, 0, :, 8:] = -far
    logits.requires_grad_()
    settled = {"max_iters": 300, "tol": 1e-7} if gradient == "implicit" else {}
    crf = pt.DenseCRF(3, gradient=gradient, **settled).to(device)
    out = crf(image, logits)
    assert (out.exp()[:, 0, :, 8:] <= 1e-20).all()
    assert torch.isfinite(out).all()
    assert (out[:, 0, :, 8:] == LOG_ZERO).all() == (far == float("inf"))
    soft = F.one_hot(truth, 3).movedim(-1, 1).to(out)
    for loss in (F.cross_entropy(out, truth), F.cross_entropy(out, soft), -(soft * out).mean()):
        assert torch.isfinite(loss)
        grads = torch.autograd.grad(loss, [logits, *crf.parameters()], retain_graph=True)
        assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cross_entropy_under_autocast(device: str, dtype: Any) -> None:
    image, logits, truth = task(device, images=2)
    crf = pt.DenseCRF(3).to(device)
    x = logits.requires_grad_()
    full = F.cross_entropy(crf(image, x), truth)
    (expected,) = torch.autograd.grad(full, x)
    with torch.autocast(device, dtype=dtype):
        low = (60 * x).to(dtype)  # a network's logits, some of them far below the others
        out = crf(image, low)
        loss = F.cross_entropy(out, truth)
    assert out.dtype == torch.float32
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, [x, *crf.parameters()])[0]).all()
    with torch.autocast(device, dtype=dtype):
        (found,) = torch.autograd.grad(F.cross_entropy(crf(image, x.to(dtype)), truth), x)
    assert F.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.999


# ---- parameters ----


@pytest.mark.parametrize("toward", [1.0, -1.0])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 10.0), (-0.05, 0.05)])
def test_adversarial_steps_keep_weights(weights: Any, toward: float) -> None:
    """100 steps of Adam in one direction, as far as its rate goes."""
    image, logits, _ = task(images=2)
    crf = pt.DenseCRF(3, spatial_weight=weights[0], bilateral_weight=weights[1])
    start = crf.weights.detach().clone()
    optimizer = torch.optim.Adam(crf.parameters(), lr=1e-2)
    for _ in range(100):
        for p in crf.parameters():
            p.grad = torch.full_like(p, 1e4 * toward)
        optimizer.step()
    now = crf.weights.detach()
    assert torch.equal(now.sign(), start.sign())
    assert ((now / start).log().abs() < 1.001).all()  # 1 % a step
    assert (now != start).all()
    out = crf(image, logits)
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in crf.parameters())


@pytest.mark.parametrize("compatibility", ["potts", "diagonal", "full"])
def test_training_the_layer_lowers_the_loss(compatibility: str) -> None:
    image, logits, truth = task()
    crf = pt.DenseCRF(3, compatibility=compatibility)
    optimizer = torch.optim.Adam(crf.parameters(), lr=1e-2)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(crf(image, logits), truth)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert max(losses) < 1.05 * losses[0]
    assert (crf.weights > 0).all()


def test_signs_are_kept_with_the_parameters() -> None:
    image, logits, _ = task(images=1)
    saved = pt.DenseCRF(3, spatial_weight=-0.5, bilateral_weight=2.0).state_dict()
    other = pt.DenseCRF(3)
    other.load_state_dict(saved)
    assert other.weights.tolist() == pytest.approx([-0.5, 2.0])
    assert other.to_config().spatial_weight == pytest.approx(-0.5)
    assert torch.isfinite(other(image, logits)).all()
