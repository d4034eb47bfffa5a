"""Is there a PyTorch that will do? Asked before anything else of this package is used."""

from __future__ import annotations

from typing import Any

from proxfield.gpu.backend import need, torch

Module: Any = object if torch is None else torch.nn.Module
"""``torch.nn.Module``; without PyTorch a stand-in, so that modules import anywhere."""


def need_torch() -> None:
    """Raise, with the remedy, if PyTorch is missing or too old."""
    need("torch", who="proxfield.torch")
