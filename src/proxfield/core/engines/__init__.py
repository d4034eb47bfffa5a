"""Kernel sets: the same programs in numpy (`reference`), numba (`cpu`), Triton (`cuda`), torch."""

from proxfield.core.engines.registry import KERNELS as KERNELS
from proxfield.core.engines.registry import compile_program as compile_program
