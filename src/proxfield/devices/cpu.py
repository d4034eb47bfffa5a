"""The host itself."""

from __future__ import annotations

from proxfield.common.memory import available_memory
from proxfield.devices.base import Device
from proxfield.devices.tensors import TorchDevice


class CpuDevice(Device):
    """The host: numba and numpy compute there, and torch if it is asked to.

    Example:
        >>> CpuDevice("cpu").available
        True
    """

    kind = "cpu"
    kernel_sets = ("cpu", "lazy", "reference", "torch")
    dtype = "float64"
    numbered = False
    separate = False

    def handle(self) -> TorchDevice:
        from proxfield.devices import cuda

        cuda.need("torch", who="proxfield.torch")
        return cuda.torch.device("cpu")

    def check(self) -> None:
        """It is always there."""

    def memory(self) -> int | None:
        return available_memory()
