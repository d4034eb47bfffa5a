"""A device that can't be used is refused in one line that names the remedy. Needs no GPU."""

from __future__ import annotations

from types import SimpleNamespace as Fake
from typing import Any

import pytest

import proxfield as pf
from proxfield.core.devices import cuda as backend
from proxfield.errors import MissingDependencyError

FIELD = pf.Field(2, n_labels=2).add(pf.Potts([[0, 1]], 1.0))
INSTALL = 'pip install "proxfield[gpu]"'


class OutOfMemoryError(RuntimeError):
    """Stands for torch's."""


def fake_torch(version: str = "2.11.0", cuda: str | None = "13.0", devices: int = 1) -> Any:
    """As much of torch as is asked before anything is computed."""
    return Fake(
        __version__=version,
        version=Fake(cuda=cuda),
        device=lambda kind, index=0: f"{kind}:{index}",
        cuda=Fake(
            is_available=lambda: devices > 0,
            device_count=lambda: devices,
            current_device=lambda: 0,
            OutOfMemoryError=OutOfMemoryError,
            mem_get_info=lambda device: (6 << 30, 80 << 30),
            memory_reserved=lambda device: 2 << 30,
        ),
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to say what is installed; by default torch with one CUDA device."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def install(torch: Any, triton: Any = True) -> None:
        monkeypatch.setattr(backend, "torch", torch)
        monkeypatch.setattr(backend, "triton", triton)

    install(fake_torch())
    return install


def refusal(error: type[Exception], call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(error) as caught:
        call(*args, **options)
    assert isinstance(caught.value, pf.ProxfieldError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cuda:", "cuda:-1", "cuda:0:1", "cuda:²", ""])
def test_unknown_names(machine: Any, name: str) -> None:
    expected = f"unknown device {name!r}, expected cpu, cuda or cuda:N"
    assert refusal(pf.InputError, backend.find_device, name) == expected
    assert refusal(pf.InputError, pf.infer, FIELD, device=name) == expected
    assert refusal(pf.InputError, pf.infer_many, [FIELD], device=name) == expected


def test_names_that_are_known(machine: Any) -> None:
    assert backend.find_device("cuda") == "cuda:0"
    machine(fake_torch(devices=8))
    assert backend.find_device("cuda:7") == "cuda:7"


@pytest.mark.parametrize(
    ("torch", "triton", "missing"),
    [(None, None, "torch and triton"), (None, True, "torch"), (fake_torch(), None, "triton")],
)
def test_nothing_installed(machine: Any, torch: Any, triton: Any, missing: str) -> None:
    machine(torch, triton)
    line = refusal(MissingDependencyError, pf.infer, FIELD, device="cuda")
    assert line == f"a GPU needs {missing}: {INSTALL}"
    assert refusal(MissingDependencyError, pf.infer, FIELD, kernels="cuda:1") == line


def test_a_name_is_checked_before_what_is_installed(machine: Any) -> None:
    machine(None, None)
    assert "unknown device" in refusal(pf.InputError, backend.find_device, "tpu")


@pytest.mark.parametrize("version", ["2.1.0", "2.3.1+cu121", "1.13", "0", "unknown"])
def test_old_torch(machine: Any, version: str) -> None:
    machine(fake_torch(version))
    line = refusal(MissingDependencyError, backend.find_device, "cuda")
    assert line.startswith(f"torch {version} is too old, proxfield needs 2.4 or newer")
    assert line.endswith('pip install --upgrade "torch>=2.4"')


@pytest.mark.parametrize("version", ["2.4.0", "2.11.0+cu130", "2.10.0a0+git1234", "3.0"])
def test_torch_that_will_do(machine: Any, version: str) -> None:
    machine(fake_torch(version))
    backend.find_device("cuda")


def test_torch_without_cuda(machine: Any) -> None:
    machine(fake_torch("2.11.0+cpu", cuda=None, devices=0))
    line = refusal(pf.InputError, backend.find_device, "cuda")
    assert "'cuda': this torch (2.11.0+cpu) was built without CUDA" in line
    assert "install a CUDA build" in line and "use device cpu" in line


def test_no_device(machine: Any) -> None:
    machine(fake_torch(devices=0))
    line = refusal(pf.InputError, backend.find_device, "cuda:0")
    assert line.startswith("device 'cuda:0': no CUDA device can be used here")
    assert "nvidia-smi" in line and line.endswith("use device cpu")


@pytest.mark.parametrize(("devices", "there"), [(1, "there is one"), (4, "cuda:0 to cuda:3")])
def test_a_number_too_high(machine: Any, devices: int, there: str) -> None:
    machine(fake_torch(devices=devices))
    line = refusal(pf.InputError, backend.find_device, "cuda:7")
    assert line.startswith("device 'cuda:7': ") and there in line
    assert line.endswith("expected cuda or a lower number")


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_kernels_of_another_device(machine: Any, kernels: str) -> None:
    line = refusal(pf.InputError, pf.infer, FIELD, device="cuda", kernels=kernels)
    assert line.startswith(f"kernels='{kernels}' don't run on device 'cuda'")
    assert line.endswith("leave them out, or use device cpu")


def out_of_memory(error: Exception, *args: Any, device: str = "cuda") -> None:
    with backend.CudaDevice(device).memory_errors("the field", *args):
        raise error


def test_out_of_memory(machine: Any) -> None:
    """What would fit: in the 6 GiB that are free and the 2 GiB that torch holds."""
    error = OutOfMemoryError("CUDA out of memory.\nTried to allocate")
    line = refusal(pf.MemoryLimitError, out_of_memory, error, 1024.0, 50_000_000)
    assert line.startswith("the field (50,000,000 variables) doesn't fit on cuda:0, which has ")
    assert "8.0 GiB of 80.0 GiB free; about 8,388,608 variables of this kind would fit" in line
    assert line.endswith("split the field, use float32, or device cpu")
    machine(fake_torch(devices=4))
    line = refusal(pf.MemoryLimitError, out_of_memory, error, 1024.0, 1000, device="cuda:3")
    assert "on cuda:3" in line
    assert "about 500 variables" in line  # the estimate says more, but 1000 did not fit


def test_other_errors_pass(machine: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        out_of_memory(ZeroDivisionError(), 1.0, 1)


def test_with_torch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same questions to a real torch."""
    torch = pytest.importorskip("torch", reason="asks torch itself")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backend, "triton", True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "without CUDA" in refusal(pf.InputError, backend.find_device, "cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refusal(pf.InputError, backend.find_device, "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert "there is one" in refusal(pf.InputError, backend.find_device, "cuda:7")
    assert backend.find_device("cuda") == torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 2 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    error = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)()
    line = refusal(pf.MemoryLimitError, out_of_memory, error, 1024.0, 10_000_000)
    assert "on cuda:0" in line and "about 1,048,576 variables" in line
