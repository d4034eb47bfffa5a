"""Eight numbers at a time: what the inner loops over pixels are made of.

A row of channels is padded to a multiple of `LANES`. LLVM does not turn short loops over two
arrays into vector instructions, because the arrays might overlap; `simd_llvm` says it outright,
with numba's private parts. `simd_loops` has the same functions in plain numba, and says what each
does. They are chosen where those private parts have changed, or the environment variable
PROXFIELD_SIMD is 0. Both give the same results up to rounding; loops are slower.

The functions of the chosen module are attributes of this one. All take flat arrays and positions,
and compiled functions alone may call them. ``count`` says how many lanes of an unpadded array
exist (a group at the end of a row has fewer than eight).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from proxfield.core.common.logs import log

LANES = 8
"""Numbers that are handled together."""
SWITCH = "PROXFIELD_SIMD"


@dataclass(frozen=True)
class Choice:
    """An implementation of the functions in `simd`."""

    name: str  # "llvm" or "loops"
    reason: str = ""  # why it is "loops"

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


def __getattr__(name: str) -> Any:
    """A function of the chosen module."""
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(import_module(choose().module), name)


def padded(channels: int) -> int:
    """Channels rounded up to whole groups of lanes.

    Example:
        >>> padded(21)
        24
    """
    return -(-channels // LANES) * LANES
