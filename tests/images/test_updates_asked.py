"""A preset's own number of updates, or one given with ``tol=None``, is no failure to converge."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield.images.dense_result import DenseResult

PRESET = "10 updates, as the preset asks"


@pytest.fixture
def crf() -> pf.DenseCRF:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=(8, 9))
    image = rng.integers(0, 256, (8, 9, 3)).astype(np.uint8)
    return pf.DenseCRF(image, probabilities=p, preset="krahenbuehl")


@pytest.mark.parametrize("tol", [1e-9, None])
def test_a_presets_own_number_of_updates_is_told(crf: pf.DenseCRF, tol: float | None) -> None:
    result = crf.infer(tol=tol)
    assert result.status is pf.Status.MAX_ITERS and not result.converged
    assert result.message == result.summary()["message"] == PRESET
    assert repr(result).startswith(f"DenseResult(fixed: {PRESET}, ")
    assert PRESET in result._repr_html_() and "raise max_iters" not in result._repr_html_()


def test_a_number_of_updates_without_a_tolerance_is_told(crf: pf.DenseCRF) -> None:
    assert crf.infer(max_iters=3, tol=None).message == "3 updates, as asked"
    assert pf.infer(crf, "fixed", max_iters=1, tol=None).message == "1 update, as asked"
    field = pf.generate.grid(3, 3)
    assert pf.infer(field, "fixed", tol=None).message == "1000 updates, the rule's default number"


def test_a_limit_keeps_its_remedy(crf: pf.DenseCRF) -> None:
    for result in (crf.infer(max_iters=3, tol=1e-9), pf.infer(crf, "fixed", max_iters=3, tol=1e-9)):
        assert "raise max_iters" in result.message and "max-iters after 3" in repr(result)
    converged = crf.infer(tol=0.5)
    assert converged.message == converged.status.value


def test_a_stored_result_says_the_same(crf: pf.DenseCRF, tmp_path: Path) -> None:
    result = crf.infer(tol=None)
    assert pickle.loads(pickle.dumps(result)).message == PRESET
    result.save(tmp_path / "result.npz")
    assert DenseResult.load(tmp_path / "result.npz").message == PRESET


def test_a_loaded_field_makes_its_presets_updates(tmp_path: Path) -> None:
    path = tmp_path / "field.npz"
    labels = np.random.default_rng(1).integers(0, 2, (8, 9))
    given = pf.DenseCRF.from_labels(None, labels, confidence=0.6)
    given.save(path)
    loaded = pf.DenseCRF.load(path)
    assert (loaded.max_iters, loaded.confidence) == (5, 0.6)
    assert loaded == given
    assert loaded.infer(tol=None).message == "5 updates, as the preset asks"


def test_a_file_that_does_not_say_the_number_claims_none(crf: pf.DenseCRF, tmp_path: Path) -> None:
    """Files of older versions hold neither the number of updates nor the confidence."""
    path = tmp_path / "field.npz"
    crf.save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(arrays["header"].tobytes())
    for name in ("max_iters", "confidence"):
        del header["field"]["attributes"][name]
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    loaded = pf.DenseCRF.load(path)
    assert loaded.max_iters is None and loaded.confidence is None
    result = loaded.infer(tol=1e-9)
    assert result.iterations == 10 and "preset" not in result.message
