"""Which functions `simd` offers: LLVM vector instructions, or plain loops.

Plain loops are chosen where numba's private parts have changed, or the environment variable
PROXFIELD_SIMD is 0. Both give the same results up to rounding; loops are slower.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from proxfield.core.common.logs import log

LANES = 8
"""Numbers that are handled together."""
SWITCH = "PROXFIELD_SIMD"


@dataclass(frozen=True)
class Choice:
    """An implementation of the functions in `simd`.

    Args:
        name: "llvm" or "loops".
        reason: Why it is "loops"; empty for "llvm".
    """

    name: str
    reason: str = ""

    @property
    def module(self) -> str:
        """The module that has the functions."""
        return f"proxfield.core.compiled.simd_{self.name}"

    def __str__(self) -> str:
        return f"plain loops ({self.reason})" if self.reason else "LLVM vector instructions"


@cache
def choose() -> Choice:
    """The implementation for this process, chosen once.

    Example:
        >>> choose().name in ("llvm", "loops")
        True
    """
    if os.environ.get(SWITCH) == "0":
        return Choice("loops", f"{SWITCH}=0")
    vectors = Choice("llvm")
    try:
        import_module(vectors.module)
    except (ImportError, AttributeError) as error:
        loops = Choice("loops", f"numba has changed: {error}")
        log.warning("dense fields are slower: %s", loops)
        return loops
    return vectors
