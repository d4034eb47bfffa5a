"""The regularized loss against the plain computation with all pairs in one matrix."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield.torch as pt  # noqa: E402
from proxfield.core.filters.torch.operator import PlannedOperator  # noqa: E402
from proxfield.errors import InputError  # noqa: E402

SIZE = (5, 7)
LABELS = 3

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "both": {"spatial_weight": 0.7, "spatial_sigma": [1.0, 2.0]},
    "spatial": {"spatial_weight": 1.3, "bilateral_weight": 0.0},
    "published": {"normalization": "none", "reduction": "sum"},
    "after": {"normalization": "after"},
    "others": {"self_message": False, "bilateral_color": [0.3, 0.2, 0.5]},
}


def inputs(device: str, kind: Any = None) -> tuple[Any, Any]:
    kind = torch.float64 if kind is None else kind
    rng = torch.Generator().manual_seed(2)
    image = torch.rand(2, 3, *SIZE, generator=rng, dtype=kind)
    logits = torch.randn(2, LABELS, *SIZE, generator=rng, dtype=kind)
    return image.to(device), logits.to(device)


def loss_with(**options: Any) -> Any:
    base: dict[str, Any] = {"bilateral_sigma": 3.0, "bilateral_color": 0.3, "filter": "exact"}
    return pt.DenseCRFLoss(**{**base, **options})


def dense_matrix(layer: Any, image: Any, filter: str) -> Any:
    """W of each image, entry by entry.  # (B, n, n)"""
    h, w = SIZE
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    places = torch.stack([y, x], dim=-1).reshape(-1, 2).to(image)
    out = []
    for picture in image:
        total = torch.zeros(h * w, h * w).to(image)
        colors = picture.reshape(3, -1).T
        color = image.new_tensor(layer.bilateral_color)
        terms = [
            (places / image.new_tensor(layer.spatial_sigma), layer.spatial_weight),
        ]
        seen = torch.cat([places / layer.bilateral_sigma, colors / color], dim=1)
        terms.append((seen, layer.bilateral_weight))
        for f, weight in terms:
            if weight == 0:
                continue
            if filter == "exact":
                k = torch.exp(-0.5 * (f[:, None] - f[None]).square().sum(-1))
                n = k.sum(1)
                a = {
                    "none": lambda k=k, n=n: k,
                    "symmetric": lambda k=k, n=n: k / (n[:, None] * n[None]).sqrt(),
                    "after": lambda k=k, n=n: 0.5 * (k / n[:, None] + k / n[None]),
                }[layer.normalization]()
                a = a if layer.self_message else a - torch.diag(a.diagonal())
            else:
                operator = PlannedOperator(f[None], layer.normalization, layer.self_message, filter)
                a = operator.apply(torch.eye(h * w).to(f)[None])[0]
            total = total + weight * a
        out.append(total)
    return torch.stack(out)


def plain(layer: Any, w: Any, s: Any, confident: Any = None, ignore: Any = None) -> Any:
    """Σ_k S_kᵀ W (1 − S_k), pixels that don't count left out.  # (B,)"""
    rows = s.flatten(2).transpose(1, 2)
    if confident is not None:
        rows = torch.where(confident.flatten(1)[..., None], rows.detach(), rows)
    here = torch.ones_like(rows[..., 0]) if ignore is None else (~ignore.flatten(1)).to(rows)
    pairs = w * here[:, :, None] * here[:, None]
    each = torch.einsum("bik,bij,bjk->b", rows, pairs, 1 - rows)
    if layer.reduction == "none":
        return each
    return each.sum() if layer.reduction == "sum" else each.sum() / here.sum()


@pytest.mark.parametrize("filter", ["exact", "lattice"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("masks", ["", "confident", "ignore", "both"])
def test_value_and_gradient_are_those_of_the_matrix(
    name: str, filter: str, masks: str, device: str
) -> None:
    layer = loss_with(**OPTIONS[name], **({"filter": filter} if filter != "exact" else {}))
    image, logits = inputs(device)
    given: dict[str, Any] = {}
    rng = torch.Generator().manual_seed(4)
    for mask in ("confident", "ignore"):
        if masks in (mask, "both"):
            given[mask] = (torch.rand(2, *SIZE, generator=rng) < 0.3).to(device)
    w = dense_matrix(layer, image, filter)
    s = logits.softmax(dim=1).requires_grad_()
    found, expected = layer(image, s, **given), plain(layer, w, s, **given)
    assert torch.allclose(found, expected, rtol=1e-10, atol=0)
    mine = torch.autograd.grad(found, s)[0]
    other = torch.autograd.grad(expected, s)[0]
    assert torch.allclose(mine, other, atol=1e-12)
    if "confident" in given:
        still = given["confident"][:, None].expand_as(mine)
        assert not mine[still].any()
        assert mine[~still].any()


@pytest.mark.parametrize("filter", ["exact", "lattice"])
def test_finite_differences(filter: str, device: str) -> None:
    layer = loss_with(filter=filter, reduction="none", spatial_weight=0.5)
    image, logits = inputs(device)
    run = lambda x: layer(image, logits=x)  # noqa: E731
    assert layer(image, logits=logits).shape == (2,)
    assert torch.autograd.gradcheck(run, logits.requires_grad_(), fast_mode=True, atol=1e-7)


def test_agreement_costs_nothing_and_no_label_is_preferred(device: str) -> None:
    layer = loss_with()
    image, logits = inputs(device)
    same = torch.zeros_like(logits)
    same[:, 1] = 1.0
    assert float(layer(image, same)) == pytest.approx(0.0, abs=1e-12)
    s = logits.softmax(dim=1)
    assert float(layer(image, s)) == pytest.approx(float(layer(image, s.flip(1))))
    assert float(layer(image, s)) <= 1.0


def test_images_of_a_batch_do_not_see_each_other(device: str) -> None:
    layer = loss_with(reduction="none")
    image, logits = inputs(device)
    together = layer(image, logits=logits)
    alone = [layer(image[k : k + 1], logits=logits[k : k + 1])[0] for k in range(2)]
    assert torch.allclose(together, torch.stack(alone))


def test_integers_and_half_precision(device: str) -> None:
    layer = loss_with()
    image, logits = inputs(device)
    whole = (image * 255).round().to(torch.uint8)
    expected = layer(whole.double() / 255, logits=logits)
    assert torch.allclose(layer(whole, logits=logits), expected)
    half = logits.half().requires_grad_()
    found = layer(whole, logits=half)
    assert found.dtype == torch.float32
    found.backward()
    assert half.grad.dtype == torch.float16 and half.grad.any()


def test_nothing_is_kept_without_gradients(device: str) -> None:
    layer = loss_with()
    image, logits = inputs(device)
    assert not layer(image, logits=logits).requires_grad
    with torch.no_grad():
        assert not layer(image, logits=logits.requires_grad_()).requires_grad


def test_all_pixels_ignored(device: str) -> None:
    layer = loss_with()
    image, logits = inputs(device)
    every = torch.ones(2, *SIZE, dtype=torch.bool, device=device)
    found = layer(image, logits=logits.requires_grad_(), ignore=every)
    found.backward()
    assert float(found.detach()) == 0.0
    assert not logits.grad.any()


def test_compiled(device: str) -> None:
    layer = loss_with()
    image, logits = inputs(device)
    run = torch.compile(lambda x: layer(image, logits=x), backend="aot_eager", fullgraph=True)
    one, two = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    run(one).backward()
    layer(image, logits=two).backward()
    assert torch.allclose(one.grad, two.grad)


def test_bad_input() -> None:
    image, logits = inputs("cpu")
    layer = loss_with()
    for make, what in (
        (lambda: pt.DenseCRFLoss(reduction="most"), "reduction='most', expected one of"),
        (lambda: pt.DenseCRFLoss(filter="fast"), "filter='fast'"),
        (lambda: pt.DenseCRFLoss(bilateral_sigma=0.0), "bilateral_sigma"),
        (lambda: pt.DenseCRFLoss(spatial_weight=float("nan")), "spatial_weight=nan"),
        (lambda: pt.DenseCRFLoss(bilateral_weight="1"), "bilateral_weight='1', expected a number"),
        (
            lambda: loss_with(bilateral_color=[1.0, 2.0])(image, logits),
            "bilateral_color has 2 numbers, expected 3",
        ),
        (
            lambda: loss_with(spatial_weight=1.0, spatial_sigma=[1.0] * 3)(image, logits),
            "spatial_sigma has 3 numbers",
        ),
        (
            lambda: loss_with(bilateral_sigma=[1.0] * 3)(image, logits),
            "bilateral_sigma has 3 numbers",
        ),
        (lambda: layer(image), "probabilities or logits, one of them"),
        (lambda: layer(image, logits, logits=logits), "one of them"),
        (lambda: layer(None, logits), "needs an image"),
        (lambda: layer(image[:, :, 1:], logits), "image of shape"),
        (lambda: layer(image, logits[0, 0]), "expected .images, labels"),
        (lambda: layer(image, logits, ignore=torch.zeros(2, 5)), "ignore of shape"),
    ):
        with pytest.raises(InputError, match=what):
            make()
