"""The host itself."""

from __future__ import annotations

from proxfield.core.common.memory import available_memory
from proxfield.core.devices.base import Device
from proxfield.core.devices.tensors import TorchDevice


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
        from proxfield.core.devices import cuda

        cuda.need("torch", who="proxfield.torch")
        return cuda.torch.device("cpu")

    def check(self) -> None:
        """It is always there."""

    def memory(self) -> int | None:
        return available_memory()
