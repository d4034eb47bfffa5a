"""Every test of the torch layer runs on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

collect_ignore_glob: list[str] = []
try:
    import torch
except ImportError:
    torch = None


@pytest.fixture(params=["cpu", "cuda"])
def device(request: Any) -> str:
    """Where to run."""
    if torch is None:
        pytest.skip("torch is not installed")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers every time, and warnings that are said once said again."""
    if torch is not None:
        torch.manual_seed(0)
    solve = sys.modules.get("proxfield.torch.solve")
    if solve is not None:
        solve._told.clear()
