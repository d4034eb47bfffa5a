"""Some seeds of every promise; `make soak` runs many more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers import INTERPRETED

sys.path.insert(0, str(Path(__file__).parent))

from promises import KERNELS, PROMISES

pytestmark = pytest.mark.slow

ON_DEVICES = ("fixed-points", "saddles", "bounds", "descent")
"""Promises that are checked with the kernels for GPUs too, on a tenth of the cases, and on fewer in
Triton's interpreter."""

PARTS = 4
"""Each promise is split into so many tests, so that processes can share them."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", PROMISES)
def test_promise(name: str, part: int) -> None:
    promise, count = PROMISES[name], PROMISES[name].ci
    if "cuda" in KERNELS:
        if name not in ON_DEVICES:
            pytest.skip("checked without a GPU")
        if INTERPRETED and part > 0:
            pytest.skip("a quarter of the seeds will do in the interpreter")
        count //= 10
    tested = sum(promise.check(seed) for seed in range(part, count, PARTS))
    assert tested > 0
