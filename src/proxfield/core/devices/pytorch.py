"""Whether a supported PyTorch is installed, and devices that it knows by name ("mps", "xpu")."""

from __future__ import annotations

from typing import Any

from proxfield.core.devices import cuda
from proxfield.core.devices.base import Device
from proxfield.core.devices.cuda import need, torch
from proxfield.core.devices.tensors import TorchDevice, TorchDtype
from proxfield.errors import InputError, MissingDependencyError

Module: Any = object if torch is None else torch.nn.Module
"""``torch.nn.Module``; without PyTorch a stand-in, so that modules import anywhere."""


def _checked() -> Any:
    """PyTorch if a supported version is installed, else None."""
    try:
        need("torch")
    except MissingDependencyError:
        return None
    return torch


SUPPORTED_TORCH: Any = _checked()
"""Checked once, also because ``torch.compile`` can't trace the check; None if there is none."""


def sum_type(device: TorchDevice) -> TorchDtype:
    """The type of torch to sum a field's energies in: float64 where a device has it."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except Exception:  # of whatever kind: mps raises a TypeError
        return torch.float32
    return torch.float64


def need_torch() -> None:
    """Raise, with the remedy, if PyTorch is missing or too old."""
    if SUPPORTED_TORCH is None or cuda.torch is not SUPPORTED_TORCH:
        need("torch", who="proxfield.torch")


class OtherDevice(Device):
    """A device without a class of its own.

    Args:
        name: As torch writes it.
    """

    def __init__(self, name: str) -> None:
        self.name, self.kind = name, name.partition(":")[0]

    def handle(self) -> TorchDevice:
        cuda.need("torch", who=f"device {self.name!r}")
        try:
            device = cuda.torch.device(self.name)
            float(cuda.torch.ones(1, device=device).sum())
        except Exception as error:  # torch raises many kinds, and asserts
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(f"device {self.name!r}: torch can't use it ({reason})") from None
        return device

    @property
    def has_double(self) -> bool:
        return bool(sum_type(self.name) == cuda.torch.float64)

    def memory(self) -> int | None:
        ask = getattr(getattr(cuda.torch, self.kind, None), "mem_get_info", None)
        return None if ask is None else int(ask(self.handle())[0])
