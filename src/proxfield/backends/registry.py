"""The kernel sets by name.

A new set is one module and one entry here; nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.backends.base import Program
    from proxfield.lowering.lowered import Lowered

KERNELS: dict[str, tuple[str, str]] = {
    "reference": ("proxfield.backends.reference", "ReferenceProgram"),
    "cpu": ("proxfield.backends.numba.programs", "compile_cpu"),
    "cuda": ("proxfield.backends.triton.program", "compile_cuda"),
    "torch": ("proxfield.backends.torch.program", "compile_torch"),
}
MAX_SINGLE_ENERGY = 1e37
"""Sum of the sizes of all energies above which float32 is refused: it holds up to 3.4e38."""
ON_DEVICES = ("cuda",)
"""Sets whose name may be followed by the number of a device."""


def compile_program(
    lowered: Lowered, kernels: str = "cpu", dtype: str = "float64", threads: int | None = None
) -> Program:
    """Pack a lowered field for a kernel set by name; "cuda:1" and the like name a device too."""
    name, _, index = kernels.partition(":")
    if name not in KERNELS or (index and name not in ON_DEVICES):
        raise InputError(f"unknown kernels {kernels!r}, expected one of: {', '.join(KERNELS)}")
    if dtype not in ("float32", "float64"):
        raise InputError(f"unknown dtype {dtype!r}, expected float32 or float64")
    if dtype == "float32" and lowered.magnitude > MAX_SINGLE_ENERGY:
        raise InputError(
            f"the energies add up to as much as {lowered.magnitude:.3g} in size, expected at most "
            f"{MAX_SINGLE_ENERGY:g} for dtype float32 (float64 holds more)"
        )
    module, maker = KERNELS[name]
    where = {"device": kernels} if name in ON_DEVICES else {}
    program: Program = getattr(import_module(module), maker)(lowered, dtype, threads, **where)
    return program
