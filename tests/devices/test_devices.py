"""Devices by name: their defaults, and one that is added. Needs neither a GPU nor torch."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace as Fake
from typing import Any

import pytest
from devices_added import ADDED, AddedDevice

import proxfield as pf
from proxfield.cli.installation import graphics
from proxfield.core.devices import cuda
from proxfield.core.devices.base import DEVICES, CpuDevice, Device, find
from proxfield.core.devices.cuda import CudaDevice
from proxfield.core.engines.registry import ALL_ENGINES, placed
from proxfield.core.solve.request import choose_kernels


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more kind of device."""
    monkeypatch.setitem(DEVICES, "added", ADDED)


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it to say what creating a tensor on a device does."""

    def install(create: Callable[..., Any]) -> None:
        fake = Fake(
            __version__="2.11.0", device=str, ones=create, zeros=create,
            float64="float64", float32="float32",
        )  # fmt: skip
        monkeypatch.setattr(cuda, "torch", fake)
        monkeypatch.setattr(cuda, "torch", fake)

    return install


def refusal(call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(pf.InputError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- those of the library ----


@pytest.mark.parametrize("kind", DEVICES)
def test_what_a_kind_says_of_itself(kind: str) -> None:
    device = find(kind)
    assert isinstance(device, Device)
    assert device.kind == device.name == kind
    assert device.dtype in ("float32", "float64")
    assert set(device.engines) <= ALL_ENGINES.keys()
    assert str(placed(str(placed(device.engines[0])))) == device.engines[0]


def test_the_host() -> None:
    host = find("cpu")
    assert isinstance(host, CpuDevice) and host.available and not host.separate
    assert host.memory() is None or host.memory() > 1 << 20
    with host.memory_errors("nothing", 1.0, 1):
        pass


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is what is free and what torch holds; without torch it isn't available."""
    gpu = find("cuda:3")
    assert isinstance(gpu, CudaDevice) and gpu.separate and gpu.name == "cuda:3"
    monkeypatch.setattr(cuda, "torch", None)
    assert not gpu.available
    memory = Fake(mem_get_info=lambda _: (6 << 30, 80 << 30), memory_reserved=lambda _: 2 << 30)
    monkeypatch.setattr(cuda, "torch", Fake(cuda=memory))
    monkeypatch.setattr(cuda, "find_device", lambda name: Fake(type="cuda"))
    assert gpu.available and gpu.memory() == 8 << 30


@pytest.mark.parametrize("name", ["cpu:0", "tpu", "", ":1", "cuda:x"])
def test_unknown_names(name: str) -> None:
    assert refusal(find, name) == f"unknown device {name!r}, expected cpu, cuda or cuda:N"


@pytest.mark.parametrize("kernels", ["tpu", "cpu:0", "reference:cuda", ""])
def test_unknown_kernels(kernels: str) -> None:
    assert refusal(placed, kernels).startswith(f"unknown kernels {kernels!r}, expected one of: ref")


@pytest.mark.parametrize("kernels", ["cpu", "reference", "cuda", "cuda:1", "torch", "torch:cuda:1"])
def test_placements_by_name(kernels: str) -> None:
    place = placed(kernels)
    assert str(place) == kernels
    assert place.name == kernels.partition(":")[0]
    assert place.device.separate == ("cuda" in kernels)


# ---- one that is added ----


@pytest.mark.usefixtures("added")
def test_an_added_device_has_its_defaults() -> None:
    assert isinstance(find("added:1"), AddedDevice)
    assert choose_kernels("added", None, None) == ("torch:added", "float32")
    assert choose_kernels("added:1", "torch", "float32") == ("torch:added:1", "float32")
    assert placed("torch:added:1").device.name == "added:1"
    assert "expected cpu, cuda, cuda:N, added or added:N" in refusal(find, "tpu")


@pytest.mark.usefixtures("added")
def test_an_added_device_refuses_what_it_lacks() -> None:
    line = refusal(choose_kernels, "added", "cuda", None)
    assert line.startswith("kernels='cuda' don't run on device 'added'; leave them out")
    line = refusal(choose_kernels, "added", None, "float64")
    assert line == "dtype='float64': device 'added' has float32 only"
    assert refusal(choose_kernels, "added:7", None, None) == "device 'added:7': there are 2"


@pytest.mark.usefixtures("added")
def test_an_added_device_runs_float64_on_the_host() -> None:
    lowered = pf.Field(2, 2).add(pf.Potts([[0, 1]], 1.0)).lower()
    program = pf.core.engines.registry.compile_program(lowered, "torch:added", "float64")
    assert type(program).__module__.startswith("proxfield.core.engines.numba")


@pytest.mark.usefixtures("added")
def test_doctor_lists_an_added_device() -> None:
    names = [gpu["name"] for gpu in json.loads(json.dumps(graphics()))["gpus"]]
    assert names[-2:] == ["Added 0", "Added 1"]


# ---- any device of torch ----


def test_any_device_of_torch(with_torch: Callable[..., None]) -> None:
    with_torch(lambda *_, **__: Fake(sum=lambda: 1.0))
    assert choose_kernels("xpu:1", "torch", None) == ("torch:xpu:1", "float32")
    assert choose_kernels("xpu", "torch", "float64") == ("torch:xpu", "float64")
    assert choose_kernels("cpu", "torch:xpu", None) == ("torch:xpu", "float32")
    assert "unknown device 'xpu'" in refusal(choose_kernels, "xpu", None, None)
    assert "unknown device 'xpu'" in refusal(choose_kernels, "xpu", "cuda", None)


def test_a_device_that_torch_lacks(with_torch: Callable[..., None]) -> None:
    def create(*_: Any, **__: Any) -> Any:
        raise AssertionError("Torch not compiled with XPU enabled\nmore")

    with_torch(create)
    line = refusal(choose_kernels, "xpu", "torch", None)
    assert line == "device 'xpu': torch can't use it (Torch not compiled with XPU enabled)"
    assert not cuda.OtherDevice("xpu").available


def test_a_device_without_float64(with_torch: Callable[..., None]) -> None:
    def create(*_: Any, dtype: str = "float32", **__: Any) -> Any:
        if dtype == "float64":
            raise TypeError("no float64 here")
        return Fake(sum=lambda: 1.0)

    with_torch(create)
    assert cuda.sum_type("mps") == "float32"
    assert choose_kernels("mps", "torch", None) == ("torch:mps", "float32")
    assert "has float32 only" in refusal(choose_kernels, "mps", "torch", "float64")


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_garbage_collector_rests_while_a_graph_is_recorded(
    monkeypatch: pytest.MonkeyPatch, collects: bool, fails: bool
) -> None:
    modes, seen = [], []

    def capture(graph: str, capture_error_mode: str) -> Any:
        modes.append((graph, capture_error_mode))
        return nullcontext()

    def work() -> int:
        seen.append(gc.isenabled())
        return 1 // (0 if fails else 1)

    monkeypatch.setattr(cuda, "torch", Fake(cuda=Fake(CUDAGraph=lambda: "graph", graph=capture)))
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        if fails:
            with pytest.raises(ZeroDivisionError):
                cuda.record(work)
        else:
            assert cuda.record(work) == ("graph", 1)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False]
    assert modes == [("graph", "thread_local")]
