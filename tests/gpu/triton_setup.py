"""How tests of Triton kernels run: on a GPU, or in Triton's interpreter in a process of their own.

Import it before Triton: where TRITON_INTERPRET is set it mends the interpreter, and makes fresh
tensors hold NaN so that unwritten entries show.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_cases import mend_interpreter, poison

import proxfield

torch = pytest.importorskip("torch", reason="kernels of a GPU need torch")
if importlib.util.find_spec("triton") is None:
    pytest.skip("kernels of a GPU need triton", allow_module_level=True)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    mend_interpreter()
    poison()
direct = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()),
    reason="runs in Triton's interpreter, by test_interpreted",
)
needs_device = pytest.mark.skipif(
    INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device here"
)
indirect = pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available(), reason="the tests run directly"
)


def run_interpreted(file: str) -> None:
    """Run a file of tests in the interpreter."""
    source = str(Path(proxfield.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
