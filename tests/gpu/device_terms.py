"""Where tests of terms and lattices run: on a GPU, else on the CPU by plain torch, and once more
in a process of their own in which Triton's interpreter runs the kernels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import proxfield

torch = pytest.importorskip("torch", reason="terms on a device need torch")

INTERPRETED = os.environ.get("TRITON_INTERPRET", "") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

if INTERPRETED:
    from gpu_cases import mend_interpreter

    mend_interpreter()

needs_interpreter = pytest.mark.skipif(
    INTERPRETED or importlib.util.find_spec("triton") is None,
    reason="this is the interpreter, or there is no triton to interpret with",
)
needs_device = pytest.mark.skipif(DEVICE != "cuda", reason="no CUDA device here")


def run_interpreted(file: str) -> None:
    """All tests of a file again, with kernels in the interpreter."""
    package = str(Path(proxfield.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": package},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh tensors hold NaN (or a large number), so that unwritten entries show."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        fresh = getattr(owner, name)

        def filled(*args: Any, fresh: Any = fresh, **kwargs: Any) -> Any:
            out = fresh(*args, **kwargs)
            return out.fill_(float("nan") if out.is_floating_point() else 77)

        monkeypatch.setattr(owner, name, filled)
