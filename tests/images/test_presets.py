"""Presets, configurations in files, and what overrides them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf

IMAGE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
P = np.full((4, 6, 2), 0.5)


def terms(crf: Any) -> tuple[float, ...]:
    """Spatial σ and weight, bilateral σ, color (of 255) and weight, from the terms themselves."""
    spatial, bilateral = crf.terms[1:]
    return (
        1 / spatial.features[1, 1],
        spatial.weight,
        1 / bilateral.features[1, 1],
        3 / (bilateral.features[1, 2] - bilateral.features[0, 2]),
        bilateral.weight,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("krahenbuehl", (3, 3, 80, 13, 10)),
        ("deeplab", (3, 3, 67, 3, 4)),
        ("wsss", (3, 3, 64, 5, 4)),
    ],
)
def test_published_presets(name: str, expected: tuple[float, ...]) -> None:
    crf = pf.DenseCRF(IMAGE, P, preset=name)
    assert terms(crf) == pytest.approx(expected)
    assert crf.max_iters == 10
    in_floats = pf.DenseCRF(IMAGE / 255.0, P, preset=name)
    np.testing.assert_allclose(crf.terms[2].features, in_floats.terms[2].features)


def test_explicit_arguments_override() -> None:
    crf = pf.DenseCRF(IMAGE, P, preset="deeplab", bilateral_weight=10.0, spatial_sigma=2)
    assert terms(crf) == pytest.approx((2, 3, 67, 3, 10))
    crf = pf.DenseCRF(IMAGE, P, preset="deeplab", bilateral_color=13)
    assert terms(crf) == pytest.approx((3, 3, 67, 13, 4))
    gone = pf.DenseCRF(IMAGE, P, preset="deeplab", bilateral_weight=0.0)
    assert len(gone.terms) == 2
    # in the image's own units
    scaled = pf.DenseCRF(IMAGE / 255.0, P, preset="deeplab", bilateral_color=13 / 255)
    np.testing.assert_allclose(scaled.terms[2].features, crf.terms[2].features)


def test_the_number_of_updates_comes_with_the_settings() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet((1, 1), size=(4, 6))
    crf = pf.DenseCRF(IMAGE, p, preset={"max_iters": 3})
    assert crf.infer(tol=1e-12).iterations == 3
    assert crf.infer(max_iters=4, tol=1e-12).iterations == 4
    default = pf.DenseCRF(IMAGE, p)
    assert default.infer(tol=1e-12).iterations == pf.PRESETS["gentle"].max_iters
    with pytest.raises(pf.InputError, match="max_iters='many'"):
        crf.infer(max_iters="many")


def test_settings_go_to_a_file_and_back(tmp_path: Path) -> None:
    path = tmp_path / "crf.toml"
    options = {"spatial_sigma": (2, 3), "bilateral_color": 7.5, "bilateral_weight": 0.25}
    crf = pf.DenseCRF(IMAGE, P, preset="wsss", **options)
    pf.write_config(path, crf.to_config(), "chosen by hand\nfor a test")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# chosen by hand\n# for a test\nspatial_sigma = [2, 3]\n")
    again = pf.DenseCRF.from_config(IMAGE, P, path)
    assert again == crf
    assert again.to_config() == crf.to_config()
    other = pf.DenseCRF.from_config(IMAGE, P, str(path), bilateral_weight=0.5)
    assert other.terms[2].weight == 0.5
    assert other.terms[1] is not crf.terms[1] and len(other.terms) == 3
    # colors mean the same for floats within 0 and 1
    floats = pf.DenseCRF.from_config(IMAGE / 255.0, P, path)
    np.testing.assert_allclose(floats.terms[2].features, crf.terms[2].features)
    by_name = pf.DenseCRF.from_config(IMAGE, P, {"bilateral_weight": 1.5, "tuning": {"x": 1}})
    assert by_name.terms[2].weight == 1.5


def test_colors_of_a_config_without_a_range_are_in_the_images_units() -> None:
    crf = pf.DenseCRF(IMAGE.astype(np.uint16) * 257, P, preset={"bilateral_color": 257.0})
    assert crf.terms[2].features[1, 2] - crf.terms[2].features[0, 2] == pytest.approx(3)
    with pytest.raises(pf.InputError, match="pass bilateral_color"):
        pf.DenseCRF(IMAGE.astype(np.float64) * 257, P, preset="deeplab")


def test_no_crf() -> None:
    p = np.random.default_rng(1).dirichlet((1, 1), size=(4, 6))
    config = {"spatial_weight": 0.0, "bilateral_weight": 0.0}
    result = pf.DenseCRF.from_config(IMAGE, p, config).infer()
    np.testing.assert_array_equal(result.labels, p.argmax(axis=-1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bilateral_weight = 2\nsigma = 3",
            r"crf.toml: unknown setting 'sigma', expected: spatial",
        ),
        ("bilateral_weight = 'two'", "crf.toml: bilateral_weight = 'two', expected a number"),
        ("bilateral_weight = [1, 2]", "expected a number$"),
        ("spatial_sigma = []", "expected a number, or several"),
        ("max_iters = 2.5", "max_iters=2.5 in a configuration, expected 0 or more"),
        ("filter = 3", "filter = 3, expected auto, exact or lattice"),
        ("a = = b", "is no TOML"),
        ("x = '\ud83d", "is no TOML"),
    ],
)
def test_files_are_checked(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "crf.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(pf.InputError, match=message) as caught:
        pf.read_config(path)
    assert "\n" not in str(caught.value)


def test_bad_presets() -> None:
    with pytest.raises(pf.InputError, match="preset='deep', expected one of: gentle, krahenbuehl"):
        pf.DenseCRF(IMAGE, P, preset="deep")
    with pytest.raises(pf.InputError, match="preset=3, expected a name"):
        pf.DenseCRF(IMAGE, P, preset=3)  # type: ignore[arg-type]
    with pytest.raises(pf.InputError, match="bilateral_sigma"):
        pf.DenseCRF(IMAGE, P, preset={"bilateral_sigma": -1})
    crf = pf.DenseCRF.from_features(np.zeros((3, 2)), np.full((3, 2), 0.5))
    assert crf.max_iters == 10
    with pytest.raises(pf.InputError, match="has no settings"):
        crf.to_config()


def test_settings_of_the_model_in_a_file(tmp_path: Path) -> None:
    """Compatibility, normalization and the self-message; explicit arguments override them."""
    p = np.random.default_rng(1).dirichlet(np.ones(3), size=(4, 5))
    table = [[0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [2.0, 0.5, 0.0]]
    config: dict[str, Any] = {
        "compatibility": table,
        "normalization": "none",
        "self_message": False,
    }
    pf.write_config(tmp_path / "crf.toml", config)
    assert pf.read_config(tmp_path / "crf.toml") == pf.DenseSettings(**config)
    crf = pf.DenseCRF.from_config(None, p, tmp_path / "crf.toml")
    term = crf.terms[1]
    assert isinstance(term, pf.Gaussian)
    assert (term.normalization, term.self_message) == ("none", False)
    np.testing.assert_array_equal(term.matrix, table)
    assert crf.to_config() == pf.DenseSettings(**config)
    other = pf.DenseCRF(None, p, preset=config, normalization="after", compatibility=None)
    term = other.terms[1]
    assert isinstance(term, pf.Gaussian)
    assert term.normalization == "after" and term.matrix is None
    assert other.to_config() == pf.DenseSettings(normalization="after", self_message=False)
    assert "normalization" not in pf.DenseCRF(None, p).to_config().to_dict()
    usual = pf.DenseCRF(None, p, preset=config, normalization="symmetric", self_message=True)
    assert usual.to_config() == pf.DenseSettings(compatibility=table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compatibility = 1.0", 'expected "potts", a number per label, or a square table'),
        ("compatibility = [[0.0, 1.0]]", "a square table"),
        ('compatibility = [0.0, "x"]', "a square table"),
        ("compatibility = []", "a square table"),
        ("self_message = 1", "expected true or false"),
        ("normalization = 3", "expected none, before, after or symmetric"),
    ],
)
def test_bad_settings_of_the_model(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "crf.toml").write_text(text)
    with pytest.raises(pf.InputError) as error:
        pf.read_config(tmp_path / "crf.toml")
    assert message in str(error.value)


def test_arrays_are_settings() -> None:
    settings = pf.DenseSettings(np.array([2.0, 3.0]), np.float32(0.5), compatibility=np.eye(2))
    assert settings == pf.DenseSettings([2.0, 3.0], 0.5, compatibility=[[1.0, 0.0], [0.0, 1.0]])
    assert pf.DenseSettings.of(settings.to_dict()) == settings


def test_unknown_options() -> None:
    with pytest.raises(TypeError, match="DenseCRF has no argument 'sigma'"):
        pf.DenseCRF(IMAGE, P, sigma=3)  # type: ignore[call-arg]
    with pytest.raises(pf.InputError, match="DenseCRF has no argument 'max_iters'"):
        pf.DenseCRF(IMAGE, P, max_iters=3)  # type: ignore[call-arg]
