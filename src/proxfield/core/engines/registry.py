"""The engines by name, and programs made by them.

An engine is a set of implementations; a program is a lowered field that one of them can iterate, on
a device. The option ``kernels`` names an engine, and ``device`` where it runs. A new engine is one
module and one entry here; nothing is imported before it is asked for.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from proxfield.core.devices.base import DEVICES, Device, find
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.engines.base import Program
    from proxfield.core.lowering.lowered import Lowered


@dataclass(frozen=True)
class Engine:
    """Where the programs of an engine are, and what they run on."""

    maker: str  # what makes them, of (lowered, dtype, threads) and, of torch, the device
    torch: bool = False  # does it compute with torch, on a device that it is told?
    anywhere: bool = False  # does it run on every device of torch?
    triton: bool = False  # do filters move to the device too, and batches iterate there?
    plain_chains: bool = False
    """Whether chains are those of the reference, which compute the whole gradient for each variable
    that moves."""


ENGINES: dict[str, Engine] = {
    "reference": Engine("reference:ReferenceProgram", plain_chains=True),
    "cpu": Engine("numba.programs:compile_cpu"),
    "cuda": Engine("triton.program:compile_cuda", torch=True, triton=True),
    "torch": Engine("torch.program:TorchProgram", torch=True, anywhere=True, plain_chains=True),
}
ALL_ENGINES = {**ENGINES, "lazy": Engine("lazy:compile_lazy")}
"""Also what `infer` chooses by itself, for small fields on the CPU."""
MAX_SINGLE_ENERGY = 1e37
"""Sum of the sizes of all energies above which float32 is refused: it holds up to 3.4e38."""


class Placement(NamedTuple):
    """An engine by name, and the device that it runs on."""

    name: str
    device: Device

    @property
    def engine(self) -> Engine:
        """The engine of this name."""
        return ALL_ENGINES[self.name]

    def __str__(self) -> str:
        """As `placed` reads it: "cpu", "cuda:1", "torch", "torch:mps"."""
        device = self.device
        if self.name == device.kind:
            return device.name
        return f"{self.name}:{device.name}" if device.separate else self.name


def placed(kernels: str) -> Placement:
    """An engine by name, and its device.

    Args:
        kernels: "cpu", "reference", "cuda", "cuda:1", "torch", "torch:mps" and the like: a set that
            is named after a device runs there, others on the host unless a device follows.

    Example:
        >>> placed("reference")
        Placement(name='reference', device=CpuDevice('cpu'))
    """
    name, colon, rest = kernels.partition(":")
    if name not in ALL_ENGINES or (colon and not ALL_ENGINES[name].torch):
        raise InputError(f"unknown kernels {kernels!r}, expected one of: {', '.join(ENGINES)}")
    if name in DEVICES:
        return Placement(name, find(kernels))
    device = find(rest if colon else "cpu", any_of_torch=ALL_ENGINES[name].anywhere)
    if name not in device.engines:
        raise InputError(f"kernels={name!r} don't run on device {device.name!r}")
    return Placement(name, device)


def on_host(kernels: str) -> str:
    """The engine itself where it runs on the host, else the host's own.

    Example:
        >>> on_host("reference")
        'reference'
    """
    return "cpu" if placed(kernels).device.separate else kernels


def compile_program(
    lowered: Lowered, kernels: str = "cpu", dtype: str = "float64", threads: int | None = None
) -> Program:
    """Pack a lowered field for an engine by name; "cuda:1" and "torch:mps" name a device too.

    On a device without float64, programs of that type run on the host.
    """
    place = placed(kernels)
    if dtype not in ("float32", "float64"):
        raise InputError(f"unknown dtype {dtype!r}, expected float32 or float64")
    if dtype == "float32" and lowered.magnitude > MAX_SINGLE_ENERGY:
        raise InputError(
            f"the energies add up to as much as {lowered.magnitude:.3g} in size, expected at most "
            f"{MAX_SINGLE_ENERGY:g} for dtype float32 (float64 holds more)"
        )
    if dtype == "float64" and not place.device.has_double:
        place = placed("cpu")
    where = {"device": place.device.handle()} if place.engine.torch else {}
    make = resolve_name(f"proxfield.core.engines.{place.engine.maker}")
    program: Program = make(lowered, dtype, threads=threads, **where)
    return program


KEPT_BYTES = 1 << 24
"""Size of a lowered field up to which its programs are kept as long as the field."""


def program_for(
    lowered: Lowered, kernels: str = "cpu", dtype: str = "float64", threads: int | None = None
) -> Program:
    """As `compile_program`, but the same program for the same question from the same thread.

    Example:
        >>> import proxfield as pf
        >>> lowered = pf.Field(2, 2).add(pf.Potts([[0, 1]], 1.0)).lower()
        >>> program_for(lowered) is program_for(lowered)
        True
        >>> program_for(lowered) is program_for(lowered, dtype="float32")
        False
    """
    key = (threading.get_ident(), kernels, dtype, threads)
    program = lowered.programs.used.get(key)
    if program is None:
        program = compile_program(lowered, kernels, dtype, threads)
        held = lowered.unary.nbytes + sum(term.nbytes for term in lowered.terms)
        lowered.programs.add(key, program, held <= KEPT_BYTES)
    return program
