"""A layer's parameters as settings of the numpy dense CRF, and back, also through files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402

SIZE = (9, 11)

LAYERS: dict[str, dict[str, Any]] = {
    "potts": {},
    "diagonal": {"compatibility": [-1.0, -0.5, -2.0]},
    "full": {"compatibility": [[0.0, 1.5, 0.7], [1.1, -0.2, 0.4], [0.5, 0.6, 0.1]]},
    "repulsive": {"bilateral_weight": -0.8, "self_message": False},
    "unnormalized": {"normalization": "none", "spatial_weight": 0.05, "bilateral_weight": 0.02},
    "after": {"normalization": "after"},
    "bilateral-alone": {"spatial_weight": 0.0, "bilateral_sigma": [4.0, 2.0]},
    "per-channel": {"bilateral_color": [0.05, 0.1, 0.2]},
    "lattice": {"filter": "lattice"},
}


def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    image = rng.integers(0, 256, size=(*SIZE, 3), dtype=np.uint8)
    p = rng.dirichlet(np.ones(3), size=SIZE)
    return image, p


def layer(options: dict[str, Any]) -> pt.DenseCRF:
    """Parameters that no one would type, as training leaves them."""
    base: dict[str, Any] = {"spatial_sigma": 1.5, "bilateral_sigma": 5.0, "bilateral_color": 0.2}
    base |= {"spatial_weight": 1.0, "bilateral_weight": 2.0, "max_iters": 6, "tol": 0.0}
    crf = pt.DenseCRF(3, **{**base, **options})
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=rng)
    return crf


def through_layer(crf: pt.DenseCRF, image: np.ndarray, p: np.ndarray) -> np.ndarray:
    picture = torch.from_numpy(image).permute(2, 0, 1)[None]
    maps = torch.from_numpy(p).permute(2, 0, 1)[None]
    return crf(picture, probabilities=maps)[0].exp().permute(1, 2, 0).detach().numpy()


@pytest.mark.parametrize("name", LAYERS)
def test_the_numpy_field_gives_the_same_marginals(name: str, tmp_path: Path) -> None:
    crf = layer(LAYERS[name])
    image, p = inputs()
    expected = through_layer(crf, image, p)
    config = crf.to_config()
    found = pf.DenseCRF(image, p, preset=config).infer(tol=0.0, dtype="float64").probabilities
    np.testing.assert_allclose(found, expected, atol=2e-5)
    pf.write_config(tmp_path / "crf.toml", config)
    loaded = pf.DenseCRF.from_config(image, p, tmp_path / "crf.toml")
    again = loaded.infer(tol=0.0, dtype="float64").probabilities
    np.testing.assert_array_equal(again, found)
    floats = pf.DenseCRF(image / 255.0, p, preset=config).infer(tol=0.0, dtype="float64")
    np.testing.assert_allclose(floats.probabilities, expected, atol=2e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_and_back(name: str, tmp_path: Path) -> None:
    crf = layer(LAYERS[name])
    image, p = inputs()
    field = pf.DenseCRF(image, p, preset=crf.to_config())
    pf.write_config(tmp_path / "crf.toml", field.to_config())
    for config in (crf.to_config(), field.to_config(), tmp_path / "crf.toml"):
        back = pt.DenseCRF.from_config(config, 3, tol=0.0)
        assert back.terms == crf.terms
        for mine, other in zip(back.parameters(), crf.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        expected = through_layer(crf, image, p)
        np.testing.assert_allclose(through_layer(back, image, p), expected, atol=2e-5)


def test_options_override_settings() -> None:
    crf = pt.DenseCRF.from_config(layer({}).to_config(), 3, max_iters=2, learn=("weights",))
    assert crf.max_iters == 2
    assert [name for name, x in crf.named_parameters() if x.requires_grad] == ["log_weights"]


def test_published_settings_by_name() -> None:
    """A preset's colors refer to a range of 255; the layer's to a range of 1."""
    crf = pt.DenseCRF.from_config(pf.PRESETS["deeplab"], 3)
    assert float(crf.log_bilateral_color.detach().exp()) == pytest.approx(3 / 255)
    assert crf.to_config().bilateral_color == pytest.approx(3.0, rel=1e-6)


def test_embeddings_are_no_settings() -> None:
    with pytest.raises(pf.InputError, match="no term over embeddings"):
        pt.DenseCRF(3, embedding_weight=1.0).to_config()
