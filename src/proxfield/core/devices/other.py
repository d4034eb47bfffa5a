"""Any device that torch knows by name ("mps", "xpu"): plain torch runs there."""

from __future__ import annotations

from proxfield.core.devices import cuda
from proxfield.core.devices.base import Device
from proxfield.core.devices.pytorch import sum_type
from proxfield.core.devices.tensors import TorchDevice
from proxfield.errors import InputError


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
