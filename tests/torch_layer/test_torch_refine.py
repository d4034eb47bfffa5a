"""Refining tensors: as the arrays of numpy, on their device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import InputWarning

torch = pytest.importorskip("torch", reason="needs torch")
refine = pytest.importorskip("proxfield.torch").refine
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device here"))]  # fmt: skip
OPTIONS: dict[str, Any] = {"spatial_weight": 0.5, "bilateral_weight": 0.8, "max_iters": 5}


def scene(seed: int = 0) -> tuple[Any, Any]:
    """An image and probabilities.  # (3, 20, 24) uint8, (4, 20, 24) float32"""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 255, size=(5, 6, 3)).repeat(4, 0).repeat(4, 1)
    image = np.clip(image + rng.normal(0, 5, size=image.shape), 0, 255).astype(np.uint8)
    p = rng.random((4, 20, 24)).astype(np.float32) + 0.1
    return np.moveaxis(image, -1, 0), p / p.sum(0)


def tensor(values: Any, device: str) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def expected(image: Any, p: Any, device: str, **options: Any) -> Any:
    build = {**OPTIONS, **options}
    run = {k: build.pop(k) for k in ("max_iters", "tol", "rule") if k in build}
    return pf.DenseCRF(image, p, **build).infer(device=device, **run)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("filter", ["lattice", "exact"])
def test_as_arrays(device: str, filter: str) -> None:
    for seed in range(4):  # the third replays what the second recorded
        image, p = scene(seed)
        found = refine(
            torch.from_numpy(image.copy()).to(device), torch.from_numpy(p).to(device),
            filter=filter, **OPTIONS,
        )  # fmt: skip
        want = expected(image, p, device, filter=filter)
        assert found.probabilities.device.type == found.labels.device.type == device
        assert found.probabilities.dtype == torch.float32
        np.testing.assert_allclose(found.probabilities.cpu(), want.probabilities, atol=1e-5)
        assert np.array_equal(found.labels.cpu(), want.labels)
        assert found.free_energy == pytest.approx(want.free_energy, rel=1e-5)
        assert found.iterations == 5
        assert found.change == pytest.approx(want.trace.change[-1], abs=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_kinds_of_tensors(device: str) -> None:
    """Labels last, float images, no image, half precision."""
    image, p = scene()
    cases = [
        (np.moveaxis(image, 0, -1), np.moveaxis(p, 0, -1), {}),
        (image / 255.0, p, {}),
        (image.astype(np.float32), p, {"bilateral_color": 20.0}),
        (image[0], p, {}),
        (None, p, {}),
        (image, 2 * p, {"normalize": True}),
        (image, p, {"rule": "momentum"}),
    ]
    for pixels, unary, options in cases:
        want = expected(pixels, unary, device, **options)
        there = (
            None if pixels is None else torch.from_numpy(np.ascontiguousarray(pixels)).to(device)
        )
        maps = torch.from_numpy(np.ascontiguousarray(unary)).to(device)
        found = refine(there, maps, **{**OPTIONS, **options})
        np.testing.assert_allclose(found.probabilities.cpu(), want.probabilities, atol=1e-5)
    half = refine(torch.from_numpy(image.copy()).to(device), maps.half() / 2, normalize=True)
    assert half.probabilities.dtype == torch.float16


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_refused(device: str) -> None:
    image, p = scene()
    there, maps = torch.from_numpy(image.copy()).to(device), torch.from_numpy(p).to(device)
    with pytest.raises(pf.InputError, match="sum to 2"):
        refine(there, 2 * maps)
    with pytest.raises(pf.InputError, match="hold nan"):
        refine(there, torch.where(maps == maps.max(), torch.nan, maps))
    with pytest.raises(pf.InputError, match=r"expected a torch\.Tensor"):
        refine(image, p)


@pytest.mark.parametrize("device", DEVICES)
def test_hard_probabilities_are_labels(device: str) -> None:
    """On a GPU too, where the host takes them for what they are."""
    image, p = scene()
    before = p.argmax(0)
    hard = tensor(np.moveaxis(np.eye(4, dtype=np.float32)[before], -1, 0), device)
    seen, options = tensor(image, device), {"preset": "krahenbuehl"}
    with pytest.warns(InputWarning, match="are all 0 or 1"):
        found = refine(seen, hard, **options)
    same = refine(seen, hard, confidence=0.7, **options)
    assert torch.equal(found.labels, same.labels)
    assert (found.labels.cpu().numpy() != before).sum() > 20
