"""What is known about a device: its name, memory, whether it can be used, and its defaults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple

from proxfield.core.devices.tensors import TorchDevice
from proxfield.errors import InputError, ProxfieldError


class Found(NamedTuple):
    """A device of this machine, as it is shown."""

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
    kernel_sets: ClassVar[tuple[str, ...]] = ("torch",)
    """Kernel sets that run there; by default the first."""
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

        Args:
            what: What is computed, for the message.
            per_variable: About how many bytes a variable takes.
            variables: How many there are.
        """
        return nullcontext()

    def list_all(self) -> list[Found]:
        """All devices of this kind; raises, with the remedy, if there is none."""
        self.check()
        return []


def unknown(name: str, expected: str = "cpu, cuda or cuda:N") -> InputError:
    """The error for a name that no device has."""
    return InputError(f"unknown device {name!r}, expected {expected}")
