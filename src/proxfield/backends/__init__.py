"""Kernel sets: the same programs in numpy (`reference`), numba (`cpu`), Triton (`cuda`), torch."""

from proxfield.backends.registry import KERNELS as KERNELS
from proxfield.backends.registry import compile_program as compile_program
