"""A kind of device as a contributor would add it: its module. `ADDED` is its line in `DEVICES`."""

from __future__ import annotations

from typing import Any

from proxfield.core.devices.base import Device, FoundDevice
from proxfield.errors import InputError

ADDED = f"{__name__}:AddedDevice"


class AddedDevice(Device):
    """Two devices without float64, for which torch's CPU stands in."""

    kind = "added"

    def handle(self) -> Any:
        import torch

        self.check()
        return torch.device("cpu")

    def check(self) -> None:
        if int(self.name.partition(":")[2] or 0) > 1:
            raise InputError(f"device {self.name!r}: there are 2")

    @property
    def has_double(self) -> bool:
        return False

    def list_all(self) -> list[FoundDevice]:
        return [FoundDevice(f"Added {k}", 1 << 30) for k in range(2)]
