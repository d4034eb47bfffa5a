"""Where tests of kernels find what they share; they don't warn of what a GPU wouldn't."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "conformance"), str(TESTS / "gpu")]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The interpreter computes lanes that are masked out, and warns of 0 · inf in them."""
    with np.errstate(all="ignore"):
        yield
