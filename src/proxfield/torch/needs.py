"""Is there a PyTorch that will do? Asked before anything else of this package is used."""

from __future__ import annotations

import re
from typing import Any

from proxfield.errors import MissingDependencyError
from proxfield.gpu.backend import torch

OLDEST = (2, 4)
"""The first PyTorch with ``torch.library.custom_op``."""

Module: Any = object if torch is None else torch.nn.Module
"""``torch.nn.Module``; without PyTorch a stand-in, so that modules import anywhere."""


def need_torch() -> None:
    """Raise, with the remedy, if PyTorch is missing or too old."""
    remedy = 'pip install "proxfield[gpu]"'
    if torch is None:
        raise MissingDependencyError(f"proxfield.torch needs PyTorch: {remedy}")
    if version(str(torch.__version__)) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingDependencyError(
            f"proxfield.torch needs PyTorch {oldest} or later, not {torch.__version__}: {remedy}"
        )


def version(text: str) -> tuple[int, int]:
    """The first two numbers of a version.

    Example:
        >>> version("2.11.0+cu130")
        (2, 11)
    """
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
