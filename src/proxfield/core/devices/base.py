"""Devices by name: memory, whether each can be used, and its defaults.

A new kind is one module and one entry in `DEVICES`; nothing is imported before it is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pkgutil import resolve_name
from typing import ClassVar, NamedTuple

from proxfield.core.common.memory import available_memory
from proxfield.core.devices.tensors import TorchDevice
from proxfield.errors import InputError, ProxfieldError


class FoundDevice(NamedTuple):
    """A device of this machine, for people."""

    name: str
    memory: int  # bytes in all


class Device(ABC):
    """Where programs run.

    A kind of device is a class like this in a module of its own, and a line in `DEVICES`.

    Args:
        name: The kind ("cuda"), or the kind and a number ("cuda:1").
    """

    kind: str
    """Its name without a number."""
    engines: ClassVar[tuple[str, ...]] = ("torch",)
    """Engines that run there; by default the first."""
    dtype: ClassVar[str] = "float32"
    """The floating-point type by default."""
    numbered: ClassVar[bool] = True
    """Whether a number may follow the kind."""
    separate: ClassVar[bool] = True
    """Whether its memory is apart from the host's, so that what it computes on is copied there."""

    def __init__(self, name: str) -> None:
        kind, colon, index = name.partition(":")
        if kind != self.kind or (colon and not (self.numbered and index.isdecimal())):
            raise unknown(name)
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def handle(self) -> TorchDevice:
        """The device of torch; raises, with the remedy, if it can't be used."""

    def check(self) -> None:
        """Raise, with the remedy, if it can't be used."""
        self.handle()

    @property
    def available(self) -> bool:
        """Whether it can be used."""
        try:
            self.check()
        except ProxfieldError:
            return False
        return True

    @property
    def has_double(self) -> bool:
        """Whether it computes in float64; what needs that is otherwise done on the host."""
        return True

    def memory(self) -> int | None:
        """Bytes that can still be allocated there; None where it doesn't tell."""
        return None

    def memory_errors(
        self, what: str, per_variable: float, variables: int
    ) -> AbstractContextManager[None]:
        """A context that says what would fit when its memory runs out.

        ``what`` is computed, for the message; a variable takes about ``per_variable`` bytes.
        """
        return nullcontext()

    def list_all(self) -> list[FoundDevice]:
        """All devices of this kind; raises, with the remedy, if there is none."""
        self.check()
        return []


def unknown(name: str, expected: str = "cpu, cuda or cuda:N") -> InputError:
    """The error for a name that no device has."""
    return InputError(f"unknown device {name!r}, expected {expected}")


class CpuDevice(Device):
    """The host: numba and numpy compute there, and torch if it is asked to."""

    kind = "cpu"
    engines = ("cpu", "lazy", "reference", "torch")
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


DEVICES: dict[str, str] = {
    "cpu": "proxfield.core.devices.base:CpuDevice",
    "cuda": "proxfield.core.devices.cuda:CudaDevice",
}


def kind_of(kind: str) -> type[Device]:
    """The class of a kind of device."""
    found: type[Device] = resolve_name(DEVICES[kind])
    return found


def find(name: str, *, any_of_torch: bool = False) -> Device:
    """A device by name. Whether it can be used is not asked yet.

    Args:
        name: "cpu", "cuda", "cuda:1" and the like.
        any_of_torch: Leave names that aren't in `DEVICES` to torch.
    """
    kind = name.partition(":")[0]
    if kind in DEVICES:
        return kind_of(kind)(name)
    if any_of_torch and kind:
        from proxfield.core.devices.cuda import OtherDevice

        return OtherDevice(name)
    names = []
    for known in DEVICES:
        names += [known, f"{known}:N"] if kind_of(known).numbered else [known]
    raise unknown(name, f"{', '.join(names[:-1])} or {names[-1]}")
