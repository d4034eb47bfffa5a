"""Whether a supported PyTorch is installed; asked before anything that needs it is used."""

from __future__ import annotations

from typing import Any

from proxfield.devices import cuda
from proxfield.devices.cuda import need, torch
from proxfield.devices.tensors import TorchDevice, TorchDtype
from proxfield.errors import MissingDependencyError

Module: Any = object if torch is None else torch.nn.Module
"""``torch.nn.Module``; without PyTorch a stand-in, so that modules import anywhere."""


def _checked() -> Any:
    """PyTorch if it will do, else None."""
    try:
        need("torch")
    except MissingDependencyError:
        return None
    return torch


GOOD: Any = _checked()
"""A PyTorch found good once needn't be asked again, also because ``torch.compile`` can't follow."""


def sum_type(device: TorchDevice) -> TorchDtype:
    """The type of torch to sum a field's energies in: float64 where a device has it."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except Exception:  # of whatever kind: mps raises a TypeError
        return torch.float32
    return torch.float64


def need_torch() -> None:
    """Raise, with the remedy, if PyTorch is missing or too old."""
    if GOOD is None or cuda.torch is not GOOD:
        need("torch", who="proxfield.torch")
