"""One kernel set and one floating-point type after another."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

# Before numpy is imported. Where processes share the cores, the threads of their BLAS wait for each
# other: eigenvalues of fields of some thousand variables took three times as long with two threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("PROXFIELD_QUIET", "1")  # tests look at stderr, and caches may be empty
os.environ.setdefault("PROXFIELD_LAZY", "0")  # test compiled kernels, whatever is cached

import numpy as np
import pytest

from helpers import DTYPES, KERNELS

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes under test must see it

if os.environ.get("TRITON_INTERPRET") == "1" and "cuda" in KERNELS:
    sys.path.append(str(Path(__file__).parent / "gpu"))
    from gpu_cases import mend_interpreter

    mend_interpreter()
    np.seterr(all="ignore")  # the interpreter is numpy, a GPU doesn't warn


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> str:
    """The name of a kernel set."""
    return str(request.param)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    """The name of a floating-point type."""
    return str(request.param)
