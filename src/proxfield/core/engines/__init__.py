"""Engines: the same programs in numpy (`reference`), numba (`cpu`), Triton (`cuda`), torch."""

from proxfield.core.engines.registry import ENGINES as ENGINES
from proxfield.core.engines.registry import compile_program as compile_program
