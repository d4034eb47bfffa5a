"""NVIDIA GPUs and other devices of torch; torch and Triton where installed, None where not."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from proxfield.core.common.extras import install_hint
from proxfield.core.common.memory import human_bytes
from proxfield.core.devices.base import Device, FoundDevice, unknown
from proxfield.core.devices.tensors import CudaGraph, Kernel, TorchDevice, TorchDtype
from proxfield.errors import InputError, MemoryLimitError, MissingDependencyError

T = TypeVar("T")

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
    """Raises, with the remedy, if one of the modules isn't installed, or torch is too old."""
    missing = [name for name in modules if globals()[name] is None]
    if missing:
        raise MissingDependencyError(f"{who} needs {' and '.join(missing)}: {REMEDY}")
    if "torch" in modules and not is_supported(torch.__version__):
        oldest = ".".join(str(n) for n in OLDEST_TORCH)
        raise MissingDependencyError(
            f"torch {torch.__version__} is too old, proxfield needs {oldest} or newer: "
            f'pip install --upgrade "torch>={oldest}"'
        )


def is_supported(version: str) -> bool:
    """Whether a version of torch is new enough.

    Example:
        >>> is_supported("2.11.0+cu130"), is_supported("2.3.1")
        (True, False)
    """
    numbers = re.match(r"(\d+)\.(\d+)", str(version))
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST_TORCH


def find_device(name: TorchDevice = None) -> TorchDevice:
    """A device by name ("cuda", "cuda:1"), or one line that says why there is none.

    By default it is the current CUDA device.
    In Triton's interpreter every name stands for the CPU.
    """
    text = "cuda" if name is None else str(name)
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

    @contextmanager
    def memory_errors(self, what: str, per_variable: float, variables: int) -> Iterator[None]:
        try:
            yield
        except torch.cuda.OutOfMemoryError:  # torch 2.4 has it only there
            device = self.handle()
            free, total = torch.cuda.mem_get_info(device)
            room = free + torch.cuda.memory_reserved(device)
            # whatever the estimate says: all of them did not fit
            fits = min(int(room / max(1.0, per_variable)), variables // 2)
            raise MemoryLimitError(
                f"{what} ({variables:,} variables) doesn't fit on {device}, which has "
                f"{human_bytes(room)} of {human_bytes(total)} free; about {fits:,} variables of "
                "this kind would fit: split the field, use float32, or device cpu"
            ) from None

    def list_all(self) -> list[FoundDevice]:
        if self.handle().type != self.kind:
            raise InputError("TRITON_INTERPRET=1: what is for a GPU runs in Triton's interpreter")
        found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        return [FoundDevice(p.name, int(p.total_memory)) for p in found]


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
    if triton is None:
        return jit
    return partial(
        triton.jit, do_not_specialize=list(integers), do_not_specialize_on_alignment=list(pointers)
    )


def constant(value: float) -> constexpr:
    """A number that kernels may read as a global variable."""
    return value if tl is None else tl.constexpr(value)


def resolved(device: TorchDevice) -> TorchDevice:
    """A device of torch with its number: "cuda" is the current one."""
    return torch.zeros(0, device=device).device


def processors(device: TorchDevice) -> int:
    """Programs that surely run at the same time."""
    if device.type != "cuda":
        return 2**31  # the interpreter: one after another
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def launching(device: TorchDevice) -> AbstractContextManager[object]:
    """A context in which kernels start on a device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


_RECORDING = threading.Lock()


def record(work: Callable[[], T]) -> tuple[CudaGraph, T]:
    """The kernels that ``work`` launches as a CUDA graph, and what it returns.

    Python's garbage collector rests meanwhile: destroying another graph on the capturing stream
    would invalidate the capture.
    """
    graph = torch.cuda.CUDAGraph()
    with _RECORDING:
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                out = work()
        finally:
            if collects:
                gc.enable()
    return graph, out


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, which works on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"


# ---- torch, and devices that it knows by name ("mps", "xpu") ----


Module: Any = object if torch is None else torch.nn.Module
"""``torch.nn.Module``; without PyTorch a stand-in, so that modules import anywhere."""


SUPPORTED_TORCH: Any = torch if torch is not None and is_supported(torch.__version__) else None
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
    if SUPPORTED_TORCH is None or torch is not SUPPORTED_TORCH:
        need("torch", who="proxfield.torch")


class OtherDevice(Device):
    """A device without a class of its own.

    Args:
        name: As torch writes it.
    """

    def __init__(self, name: str) -> None:
        self.name, self.kind = name, name.partition(":")[0]

    def handle(self) -> TorchDevice:
        need("torch", who=f"device {self.name!r}")
        try:
            device = torch.device(self.name)
            float(torch.ones(1, device=device).sum())
        except Exception as error:  # torch raises many kinds, and asserts
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(f"device {self.name!r}: torch can't use it ({reason})") from None
        return device

    @property
    def has_double(self) -> bool:
        return bool(sum_type(self.name) == torch.float64)

    def memory(self) -> int | None:
        ask = getattr(getattr(torch, self.kind, None), "mem_get_info", None)
        return None if ask is None else int(ask(self.handle())[0])
