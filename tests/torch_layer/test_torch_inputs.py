"""Inputs of the torch layer: NaN named, ranges of images, arrays, devices and orders of axes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from proxfield.errors import InputError, InputTypeError, InputWarning  # noqa: E402

GRADIENTS = pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
FIELD = pf.Field(4, n_labels=3).add(pf.Potts([[0, 1], [1, 2], [2, 3]], 0.7))


def scene(device: str = "cpu", dtype: Any = None) -> tuple[Any, Any]:
    make = {"dtype": dtype or torch.float64, "device": device}
    return torch.rand(2, 3, 4, 5, **make), torch.randn(2, 3, 4, 5, **make)


# ---- NaN and infinite values ----


@GRADIENTS
@pytest.mark.parametrize("filter", ["exact", "lattice"])
def test_named_nan(device: str, gradient: str, filter: str) -> None:
    crf = pt.DenseCRF(3, gradient=gradient, filter=filter).to(device)
    image, logits = scene(device)
    for value, what in ((torch.nan, "NaN"), (torch.inf, r"\+inf")):
        wrong = logits.clone()
        wrong[1, 2, 3, 4] = value
        wrong[1, 0, 3, 4] = value if value == torch.inf else 0.0
        first = 2 if value != torch.inf else 0
        place = rf"logits.* hold {what}.*image 1, label {first}, pixel \(3, 4\)"
        with pytest.raises(InputError, match=place):
            crf(image, wrong)
    seen = image.clone()
    seen[1, 1, 2, 3] = torch.nan
    place = r"term 1 hold NaN.*image 1, pixel \(2, 3\), feature 3"
    if (gradient, filter) == ("unrolled", "lattice"):  # refused by the lattice, for one image
        place = "features hold NaN"
    with pytest.raises(InputError, match=place):
        crf(seen, logits)
    energies = -logits
    energies[0, :, 1, 2] = torch.inf
    with pytest.raises(InputError, match=r"all labels of image 0, pixel \(1, 2\)"):
        crf(image, energies=energies)
    crf.check = False
    assert crf(image, energies=energies).isnan().any()
    crf.check = True
    crf.log_weights.data[0] = torch.nan
    with pytest.raises(InputError, match=r"weights or compatibilities.*learning rate"):
        crf(image, logits)


def test_named_nan_of_independent_pixels() -> None:
    _, logits = scene()
    logits[0, 1, 2, 3] = torch.nan
    with pytest.raises(InputError, match=r"image 0, label 1, pixel \(2, 3\)"):
        pt.DenseCRF(3, spatial_weight=0, bilateral_weight=0)(None, logits)


def test_impossible_labels_are_no_error(device: str) -> None:
    image, logits = scene(device)
    logits[0, 1, 2] = -torch.inf
    assert (pt.DenseCRF(3).to(device)(image, logits).exp()[0, 1, 2] == 0).all()


def test_named_nan_in_compiled_graphs() -> None:
    crf = pt.DenseCRF(3)
    image, logits = scene(dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(crf, fullgraph=True, backend="aot_eager")
    compiled(image, logits)
    logits[1, 2, 3, 4] = torch.nan
    with pytest.raises(InputError, match=r"image 1, label 2, pixel \(3, 4\)"):
        compiled(image, logits)


def test_named_nan_of_the_loss(device: str) -> None:
    loss = pt.DenseCRFLoss()
    image, logits = scene(device)
    wrong = logits.clone()
    wrong[1, 2, 3, 4] = torch.nan
    with pytest.raises(InputError, match=r"image 1, pixel \(3, 4\)"):
        loss(image, logits=wrong)
    image[0, 0, 1, 1] = torch.nan
    with pytest.raises(InputError, match=r"features of term 0.*image 0, pixel \(1, 1\)"):
        loss(image, logits=logits)
    assert pt.DenseCRFLoss(check=False)(image, logits=logits).isnan()


def test_named_nan_of_infer(device: str) -> None:
    unary = torch.zeros(2, 4, 3, device=device)
    for value, what in ((torch.nan, "NaN"), (-torch.inf, "-inf")):
        wrong = unary.clone()
        wrong[1, 2, 1] = value
        with pytest.raises(InputError, match=f"hold {what}.*item 1, variable 2, label 1"):
            pt.infer(FIELD, wrong)


# ---- ranges of images ----


@pytest.mark.parametrize("filter", ["exact", "lattice"])
def test_image_ranges(device: str, filter: str) -> None:
    levels = torch.randint(0, 256, (2, 3, 4, 5), device=device)
    logits = scene(device)[1]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    shape = (1, 3, 1, 1)
    m, s = (torch.tensor(x, device=device, dtype=torch.float64).view(shape) for x in (mean, std))
    floats = levels.double() / 255
    given: list[tuple[Any, dict[str, Any]]] = [
        (levels.to(torch.uint8), {}),
        (levels, {}),
        (levels * 257, {"image_range": (0, 65535)}),
        (levels.double(), {"image_range": (0, 255)}),
        (2 * floats - 1, {"image_range": (-1, 1)}),
        ((floats - m) / s, {"mean": mean, "std": std}),
        ((floats - m) / s, {"mean": np.array(mean), "std": torch.tensor(std).double()}),
        ((floats - 0.5) / 0.5, {"mean": 0.5, "std": 0.5}),
        (floats - m, {"mean": mean}),
        (floats / s, {"std": std}),
        (255 * (floats - m) / (255 * s), {"mean": m.flatten() * 255, "std": s.flatten() * 255}
         | {"image_range": (0, 255)}),
    ]  # fmt: skip
    kind = {"bilateral_color": 0.3, "filter": filter}
    expected = pt.DenseCRF(3, **kind).to(device)(floats, logits)
    energy = pt.DenseCRFLoss(**kind)(floats, logits=logits)
    for image, options in given:
        out = pt.DenseCRF(3, **kind, **options).to(device)(image, logits)
        assert torch.allclose(out, expected, atol=1e-6)
        loss = pt.DenseCRFLoss(**kind, **options)(image, logits=logits)
        assert torch.allclose(loss, energy, rtol=1e-6)
    own = pt.DenseCRF(3, filter=filter, bilateral_color=0.3 * 255, image_range=None).to(device)
    assert torch.allclose(own(levels.double(), logits), expected, atol=1e-6)


@pytest.mark.parametrize("layer", [lambda **o: pt.DenseCRF(3, **o), pt.DenseCRFLoss])
def test_values_outside_the_range_warn_once(device: str, layer: Any) -> None:
    image, logits = scene(device)
    crf = layer().to(device)

    def call(crf: Any, image: Any) -> None:
        crf(image, logits.softmax(1)) if layer is pt.DenseCRFLoss else crf(image, logits)

    text = r"within 0.* and 2.*expected 0 to 1.*image_range=\(low, high\), or mean= and std="
    image[0, 0, 0, :2] = torch.tensor([0.0, 2.0])
    with pytest.warns(InputWarning, match=text):
        call(crf, image)
    call(crf, image)  # once
    call(layer(check=False).to(device), image)
    call(layer(image_range=None).to(device), image)
    call(layer(image_range=(0, 2)).to(device), image)
    for wrong, options, values in (
        (image - 1.5, {"mean": 0.0}, "within -1.5 and 0.5"),
        (255 * image, {"image_range": (0, 255)}, "within 0 and 510, expected 0 to 255"),
        ((1000 * image).int(), {}, "within 0 and 2000, expected 0 to 255"),
    ):
        with pytest.warns(InputWarning, match=values):
            call(layer(**options).to(device), wrong)


def test_values_are_looked_at_without_waiting(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    aminmax = torch.aminmax
    monkeypatch.setattr(torch, "aminmax", lambda x: looked.append(1) or aminmax(x))
    image, logits = scene(device)
    crf = pt.DenseCRF(3).to(device)
    for _ in range(3):
        crf(image, logits)
    assert len(looked) == (3 if device == "cpu" else 1)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(crf, fullgraph=True, backend="aot_eager")(2 * image, logits)
        torch.func.vmap(lambda i, x: crf(i[None], x[None]))(2 * image, logits)
    assert len(looked) == (3 if device == "cpu" else 1)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"image_range": (1, 0)}, r"image_range=\(1, 0\), expected two numbers"),
        ({"image_range": "0-255"}, "image_range='0-255', expected two numbers"),
        ({"image_range": 255}, "image_range=255, expected two numbers"),
        ({"mean": "imagenet"}, "mean='imagenet', expected a number, or one per channel"),
        ({"std": (0.1, 0.0, 0.1)}, "std=.*expected numbers above 0"),
    ],
)
def test_ranges_are_checked(options: dict[str, Any], what: str) -> None:
    for layer in (lambda **o: pt.DenseCRF(3, **o), pt.DenseCRFLoss):
        with pytest.raises(InputError, match=what):
            layer(**options)


def test_normalization_fits_the_image() -> None:
    image, logits = scene()
    with pytest.raises(InputError, match="mean has 2 numbers, expected 1 or 3"):
        pt.DenseCRF(3, mean=(0.1, 0.2))(image, logits)
    with pytest.raises(InputError, match=r"normalized images of floats, not torch\.uint8"):
        pt.DenseCRF(3, mean=0.5, std=0.5)((255 * image).to(torch.uint8), logits)


# ---- types, devices, axes ----


def test_clear_errors() -> None:
    image, logits = scene(dtype=torch.float32)
    p = logits.softmax(1)
    crf, loss = pt.DenseCRF(3), pt.DenseCRFLoss()
    remedy = r"is of type ndarray, expected a torch\.Tensor; pass torch\.from_numpy"
    for call in (
        lambda: crf(image, logits.numpy()),
        lambda: crf(image.numpy(), logits),
        lambda: crf(image, probabilities=p.numpy()),
        lambda: loss(image.numpy(), p),
        lambda: loss(image, logits=logits.numpy()),
        lambda: loss(image, p, ignore=np.zeros((2, 4, 5), bool)),
        lambda: pt.infer(FIELD, np.zeros((4, 3))),
        lambda: pt.infer(FIELD, torch.zeros(4, 3), weights=np.zeros(3)),
        lambda: pt.refine(image[0].numpy(), p[0]),
        lambda: pt.refine(image[0], p[0].numpy()),
        lambda: pt.gaussian_filter(np.zeros(3), torch.zeros(3, 1)),
        lambda: pt.gaussian_filter(torch.zeros(3), np.zeros((3, 1))),
    ):
        with pytest.raises(InputTypeError, match=remedy) as caught:
            call()
        assert isinstance(caught.value, TypeError)
    with pytest.raises(InputTypeError, match=r"logits is of type list.*torch\.as_tensor"):
        crf(image, [[1.0]])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda i, x: pt.DenseCRF(3)(i.movedim(1, -1), x), r"channels are last: image\.movedim"),
        (lambda i, x: pt.DenseCRF(3)(i, x.movedim(1, -1)), r"labels are last: logits\.movedim"),
        (lambda i, x: pt.DenseCRF(3)(i[0], x[0]), r"axis of images: logits\[None\]"),
        (lambda i, x: pt.DenseCRF(3)(i[:, 0], x), r"an axis is missing: image\[None\] or"),
        (lambda i, x: pt.DenseCRF(3)(i.to("meta"), x), r"image on meta.*on cpu.*image\.to\('cpu'"),
        (lambda i, x: pt.DenseCRF(3)(i, x + 1j), "logits must be real numbers, not torch.complex"),
        (lambda i, x: pt.DenseCRFLoss()(i.to("meta"), x), "image on meta"),
        (lambda i, x: pt.DenseCRFLoss()(i.movedim(1, -1), x), "channels are last"),
        (
            lambda i, x: pt.infer(FIELD, x[0, :, 0, :4].T, weights=torch.ones(3, device="meta")),
            "weights on meta, unary on cpu, expected one device",
        ),
    ],
)
def test_devices_and_axes(call: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        call(*scene())
