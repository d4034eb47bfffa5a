"""Arrays of torch, xarray and cupy (by a stand-in), in and out."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import proxfield as pf

SIZE = (8, 11)


def scene() -> tuple[Any, Any]:
    """An RGB image and probabilities, channels and labels first."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, size=(3, *SIZE)).astype(np.uint8)
    return image, np.moveaxis(rng.dirichlet(np.ones(4), size=SIZE), -1, 0).astype(np.float32)


@pytest.fixture(scope="module")
def expected() -> Any:
    return pf.DenseCRF(*scene()).infer(max_iters=3)


# ---- torch ----


def test_torch_tensors(expected: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    image, p = (torch.from_numpy(x) for x in scene())
    for given in (p, p.clone().requires_grad_(), p[None], p.permute(1, 2, 0)):
        result = pf.DenseCRF(image, given).infer(max_iters=3)
        assert isinstance(result.probabilities, torch.Tensor)
        assert result.probabilities.shape == given.shape
        assert result.labels.dtype == torch.int64 and result.labels.shape == SIZE
        np.testing.assert_array_equal(result.labels.numpy(), expected.labels)
    logits = torch.log(p).bfloat16()
    assert (pf.DenseCRF(image, logits=logits).infer(max_iters=3).labels.shape) == SIZE
    labels = pf.DenseCRF.from_labels(image, p.argmax(dim=0), preset="wsss").infer().labels
    assert isinstance(labels, torch.Tensor)
    start = pf.DenseCRF(image, p).infer(max_iters=1)
    again = start.field.infer(init=start.probabilities, max_iters=2)
    np.testing.assert_allclose(again.q, expected.q, atol=1e-5)


def test_batches_of_torch(expected: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    image, p = (torch.from_numpy(x) for x in scene())
    batch = pf.refine_batch(torch.stack([image] * 2), torch.stack([p] * 2), max_iters=3)
    assert isinstance(batch, torch.Tensor) and batch.shape == (2, 4, *SIZE)
    np.testing.assert_array_equal(batch[1].numpy(), expected.probabilities)
    several = pf.refine_batch([image] * 2, [p] * 2, max_iters=3, output="labels", jobs=2)
    assert isinstance(several, list) and isinstance(several[0], torch.Tensor)
    np.testing.assert_array_equal(several[0].numpy(), expected.labels)


# ---- xarray ----


def test_xarrays(expected: Any) -> None:
    xarray = pytest.importorskip("xarray", reason="xarray isn't installed")
    image, p = scene()
    y, x = np.arange(8) * 10.0, np.arange(11) * 0.5
    picture = xarray.DataArray(image, dims=("band", "y", "x"), coords={"y": y, "x": x})
    names = ["sky", "tree", "road", "car"]
    given = xarray.DataArray(
        p.transpose(1, 0, 2), dims=("y", "class", "x"), coords={"y": y, "x": x, "class": names}
    )
    result = pf.DenseCRF(picture, given).infer(max_iters=3)  # labels in the middle, by name
    assert isinstance(result.probabilities, xarray.DataArray)
    assert result.probabilities.dims == ("y", "class", "x")
    np.testing.assert_array_equal(
        result.probabilities.transpose("class", "y", "x").values, expected.probabilities
    )
    assert list(result.probabilities.coords["class"].values) == names
    assert result.labels.dims == ("y", "x")
    np.testing.assert_array_equal(result.labels.coords["y"].values, y)
    np.testing.assert_array_equal(result.labels.values, expected.labels)
    mask = pf.DenseCRF(picture, given.isel({"class": 0})).infer(max_iters=1)
    assert mask.field.n_labels == 2 and mask.probabilities.dims == ("y", "x")
    batch = xarray.concat([given] * 2, dim="time")
    pictures = xarray.concat([picture] * 2, dim="time")
    found = pf.refine_batch(pictures, batch, labels_axis=1, max_iters=3, output="labels")
    assert found.dims == ("time", "y", "x")


def test_xarrays_that_are_larger_than_the_maps() -> None:
    xarray = pytest.importorskip("xarray", reason="xarray isn't installed")
    image, p = scene()
    small = xarray.DataArray(p, dims=("class", "y", "x"), coords={"y": np.arange(8)})
    large = xarray.DataArray(np.kron(image, np.ones((1, 2, 2), np.uint8)), dims=("c", "y", "x"))
    result = pf.DenseCRF(large, small).infer(max_iters=1)
    assert result.probabilities.shape == (4, 16, 22)
    assert "y" not in result.probabilities.coords  # those of the small map


# ---- cupy, by a stand-in: an array that numpy can't read ----


class OnDevice:
    """As much of ``cupy.ndarray`` as is needed: numpy can't read it, ``get`` copies it."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)
        self.shape, self.dtype, self.ndim = (
            self._values.shape,
            self._values.dtype,
            self._values.ndim,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (0, False), "version": 3}

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __getitem__(self, key: Any) -> OnDevice:
        return OnDevice(self._values[key])

    def __len__(self) -> int:
        return len(self._values)

    def get(self) -> Any:
        return self._values


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("cupy_stand_in")
    module.asarray = OnDevice  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy_stand_in", module)
    monkeypatch.setattr(OnDevice, "__module__", "cupy_stand_in.core")


@pytest.mark.usefixtures("device")
def test_arrays_on_a_gpu(expected: Any) -> None:
    image, p = (OnDevice(x) for x in scene())
    result = pf.DenseCRF(image, p).infer(max_iters=3)
    assert isinstance(result.probabilities, OnDevice) and isinstance(result.labels, OnDevice)
    np.testing.assert_array_equal(result.probabilities.get(), expected.probabilities)
    np.testing.assert_array_equal(result.labels.get(), expected.labels)
    batch = pf.refine_batch(OnDevice([image.get()] * 2), OnDevice([p.get()] * 2), max_iters=3)
    assert isinstance(batch, OnDevice) and batch.shape == (2, 4, *SIZE)
    labels = OnDevice(p.get().argmax(axis=0))
    by_labels = pf.DenseCRF.from_labels(image, labels, preset="wsss")
    assert isinstance(by_labels.infer(max_iters=1).labels, OnDevice)


def test_numpy_stays_numpy(expected: Any) -> None:
    image, p = scene()
    assert type(expected.probabilities) is np.ndarray and type(expected.labels) is np.ndarray
    nested = pf.DenseCRF(image.tolist(), p.tolist()).infer(max_iters=1)
    assert type(nested.probabilities) is np.ndarray
