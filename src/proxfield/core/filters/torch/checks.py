"""Checks of tensors that are given: what they are, and on which device."""

from __future__ import annotations

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.errors import InputError, InputTypeError


def require_tensor(value: object, name: str) -> None:
    """Raise, with the remedy, unless it is a tensor."""
    if isinstance(value, torch.Tensor):
        return
    kind = type(value).__name__
    home = type(value).__module__.partition(".")[0]
    remedy = f"torch.from_numpy({name})" if kind == "ndarray" else f"torch.as_tensor({name})"
    known = kind in ("list", "tuple", "float", "int") or home in ("numpy", "PIL", "jax", "jaxlib")
    hint = f"; pass {remedy}" if known else ""
    raise InputTypeError(f"{name} is of type {kind}, expected a torch.Tensor{hint}")


def require_device(value: Tensor, name: str, other: Tensor, other_name: str) -> None:
    """Raise, with the remedy, unless both are on one device."""
    if value.device != other.device:
        raise InputError(
            f"{name} on {value.device}, {other_name} on {other.device}, expected one device: "
            f"{name}.to({str(other.device)!r})"
        )
