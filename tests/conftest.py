"""One kernel set and one floating-point type after another."""

from __future__ import annotations

import pytest

from helpers import DTYPES, KERNELS


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> str:
    """The name of a kernel set."""
    return str(request.param)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    """The name of a floating-point type."""
    return str(request.param)
