"""Devices on the command line: refused in one line, before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.core.devices import cuda as backend

INSTALL = 'a GPU needs torch and triton: pip install "proxfield[gpu]"'
UNKNOWN = "expected cpu, cuda or cuda:N"


@pytest.fixture
def refuse(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Call without torch, expect a refusal in one line that writes nothing; returns the line."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backend, "torch", None)
    monkeypatch.setattr(backend, "triton", None)
    Path("image.npy").touch()  # nothing of a file is read before the device is known
    Path("model.uai").touch()

    def call(*args: Any) -> str:
        before = sorted(map(str, Path().rglob("*")))
        result = invoke(*args)
        assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
        assert result.stdout == ""
        assert result.stderr.startswith("proxfield: error: ")
        assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")
        assert "Traceback" not in result.stderr
        assert sorted(map(str, Path().rglob("*"))) == before
        return str(result.stderr)

    return call


CALLS = {
    "solve": ("solve", "model.uai", "--task", "MAR", "-o", "out.MAR", "--trace", "t.csv"),
    "compare": ("compare", "model.uai", "--plot", "p.png"),
    "refine": ("refine", "image.npy", "--probs", "image.npy", "-o", "out"),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))


@every_call
@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:", "gpu", "cpu:0"])
def test_unknown_devices(refuse: Callable[..., str], call: tuple[str, ...], device: str) -> None:
    line = refuse(*call, "--device", device)
    assert line == f"proxfield: error: unknown device {device!r}, {UNKNOWN}\n"


@every_call
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_without_torch(refuse: Callable[..., str], call: tuple[str, ...], device: str) -> None:
    assert refuse(*call, "--device", device) == f"proxfield: error: {INSTALL}\n"


def test_kernels(refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert INSTALL in refuse(*CALLS["solve"], "--kernels", "cuda")
    monkeypatch.setattr(backend, "find_device", lambda name: None)
    line = refuse(*CALLS["solve"], "--kernels", "reference", "--device", "cuda")
    assert "kernels='reference' don't run on device 'cuda'" in line


def test_memory_of_a_device(
    invoke: Callable[..., Any], models: Path, replace_infer: Callable[..., None]
) -> None:
    """Is an error of the input, like any other lack of memory."""
    from proxfield.errors import MemoryLimitError

    def full(*_: Any, **__: Any) -> None:
        raise MemoryLimitError("the field doesn't fit on cuda:0")

    replace_infer(full)
    result = invoke("solve", models / "grid.uai")
    assert result.exit_code == 2
    assert result.stderr == "proxfield: error: the field doesn't fit on cuda:0\n"


def test_a_cpu_needs_nothing(refuse: Callable[..., str], invoke: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    np.save("image.npy", rng.random((6, 5, 3)))
    p = rng.random((6, 5, 2)) + 0.1
    np.save("p.npy", p / p.sum(-1, keepdims=True))
    args = ("image.npy", "--probs", "p.npy", "-o", "out.npy", "--device", "cpu")
    assert invoke("refine", *args, "--max-iters", "1").exit_code == 0
