"""Whether a supported PyTorch is installed; asked before anything that needs it is used."""

from __future__ import annotations

from typing import Any

from proxfield.core.devices import cuda
from proxfield.core.devices.cuda import need, torch
from proxfield.core.devices.tensors import TorchDevice, TorchDtype
from proxfield.errors import MissingDependencyError

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
