"""NVIDIA GPUs; torch and Triton where they are installed, None where not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from proxfield.core.common.extras import install_hint
from proxfield.core.common.memory import human_bytes
from proxfield.core.devices.base import Device, FoundDevice, unknown
from proxfield.core.devices.tensors import Kernel, TorchDevice
from proxfield.errors import InputError, MemoryLimitError, MissingDependencyError

OLDEST_TORCH = (2, 4)
"""The first with ``torch.library.custom_op``."""
REMEDY = install_hint("gpu")


def _find(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


torch: Any = _find("torch")
triton: Any = _find("triton")
tl: Any = None if triton is None else _find("triton.language")
if TYPE_CHECKING:
    from proxfield.core.devices.tensors import constexpr as constexpr
else:
    constexpr = str if tl is None else tl.constexpr


def need(*modules: str, who: str = "a GPU") -> None:
    """Raises, with the remedy, if one of the modules isn't installed, or torch is too old.

    Args:
        *modules: "torch", "triton".
        who: What needs them, for the message.
    """
    missing = [name for name in modules if globals()[name] is None]
    if missing:
        raise MissingDependencyError(f"{who} needs {' and '.join(missing)}: {REMEDY}")
    if "torch" in modules:
        check_version(str(torch.__version__))


def check_version(found: str) -> None:
    """Raises if this version of torch is too old.

    Example:
        >>> check_version("2.11.0+cu130")
    """
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        oldest = ".".join(str(n) for n in OLDEST_TORCH)
        raise MissingDependencyError(
            f"torch {found} is too old, proxfield needs {oldest} or newer: "
            f'pip install --upgrade "torch>={oldest}"'
        )


def find_device(name: TorchDevice = "cuda") -> TorchDevice:
    """A device by name ("cuda", "cuda:1"), or one line that says why there is none.

    In Triton's interpreter every name stands for the CPU.
    """
    text = str(name)
    kind, _, index = text.partition(":")
    known = kind in ("cuda", "cpu") if interpreted() else kind == "cuda"
    if not known or (index and not index.isdecimal()) or text.endswith(":"):
        raise unknown(text)
    need("torch", "triton")
    if interpreted():
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise InputError(
            f"device {text!r}: this torch ({torch.__version__}) was built without CUDA; "
            "install a CUDA build (pytorch.org/get-started), or use device cpu"
        )
    if not torch.cuda.is_available():
        raise InputError(
            f"device {text!r}: no CUDA device can be used here (does nvidia-smi list one?); "
            "use device cpu"
        )
    count = torch.cuda.device_count()
    if index and int(index) >= count:
        last = f"there are {count}, cuda:0 to cuda:{count - 1}" if count > 1 else "there is one"
        raise InputError(f"device {text!r}: {last}; expected cuda or a lower number")
    return torch.device(kind, int(index) if index else torch.cuda.current_device())


class CudaDevice(Device):
    """An NVIDIA GPU. In Triton's interpreter, the CPU in its place."""

    kind = "cuda"
    engines = ("cuda", "torch")

    def handle(self) -> TorchDevice:
        return find_device(self.name)

    def memory(self) -> int | None:
        device = self.handle()
        if device.type != self.kind:  # in the interpreter
            return None
        return int(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))

    def memory_errors(
        self, what: str, per_variable: float, variables: int
    ) -> AbstractContextManager[None]:
        return memory_errors(what, per_variable, variables, self.handle())

    def list_all(self) -> list[FoundDevice]:
        if self.handle().type != self.kind:
            raise InputError("TRITON_INTERPRET=1: what is for a GPU runs in Triton's interpreter")
        found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        return [FoundDevice(p.name, int(p.total_memory)) for p in found]


@contextmanager
def memory_errors(
    what: str, per_variable: float, variables: int, device: TorchDevice = None
) -> Iterator[None]:
    """Turn torch's out-of-memory error into one line that says what would fit.

    Args:
        what: What was computed, for the message.
        per_variable: About how many bytes a variable takes.
        variables: How many there are.
        device: A CUDA device; by default the current one.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError:  # torch 2.4 has it only there
        if device is None:
            device = torch.device("cuda", torch.cuda.current_device())
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        room = free + held
        # whatever the estimate says: all of them did not fit
        fits = min(int(room / max(1.0, per_variable)), variables // 2)
        raise MemoryLimitError(
            f"{what} ({variables:,} variables) doesn't fit on {device}, which has "
            f"{human_bytes(room)} of {human_bytes(total)} free; about {fits:,} variables of this "
            "kind would fit: split the field, use float32, or device cpu"
        ) from None


def jit(function: Callable[..., object]) -> Kernel:
    """``triton.jit``; without Triton the function as it is, so that modules import anywhere."""
    return function if triton is None else triton.jit(function)


def jit_for_any(
    *integers: str, pointers: tuple[str, ...] = ()
) -> Callable[[Callable[..., object]], Kernel]:
    """`jit` that doesn't compile anew for special values of some arguments.

    Args:
        *integers: Arguments whose values 1 and multiples of 16 aren't special.
        pointers: Arguments that aren't assumed to be aligned: all loads are of single numbers.
    """

    def make(function: Callable[..., object]) -> Kernel:
        if triton is None:
            return function
        return triton.jit(
            function,
            do_not_specialize=list(integers),
            do_not_specialize_on_alignment=list(pointers),
        )

    return make


def constant(value: float) -> constexpr:
    """A number that kernels may read as a global variable."""
    return value if tl is None else tl.constexpr(value)


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, which works on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"
