"""Formulas written once for numpy arrays and torch tensors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


def library_of(array: Any) -> ModuleType:
    """The library an array belongs to: numpy, or torch for its tensors.

    torch is imported only where it made the array, so it is loaded already.

    Example:
        >>> library_of(np.zeros(3)).__name__
        'numpy'
    """
    if isinstance(array, (np.ndarray, np.generic, float, int)):
        return np
    import torch  # type: ignore[import-not-found,unused-ignore]

    return torch  # type: ignore[no-any-return,unused-ignore]
