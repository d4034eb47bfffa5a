"""torch and Triton where they are installed, None where not."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from proxfield.errors import InputError


def _find(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


torch: Any = _find("torch")
triton: Any = _find("triton")
tl: Any = None if triton is None else _find("triton.language")


def need(*modules: str) -> None:
    """Raises, with the remedy, if one of the modules isn't installed."""
    missing = [name for name in modules if globals()[name] is None]
    if missing:
        raise InputError(
            f"filters on a GPU need {' and '.join(missing)}: pip install {' '.join(missing)}"
        )


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``; without Triton the function as it is, so that modules import anywhere."""
    return function if triton is None else triton.jit(function)


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, which works on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"
