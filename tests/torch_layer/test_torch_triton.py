"""The layer's paths of the GPU, interpreted: the same numbers as the plain ones."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import proxfield

pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What `torch_triton_cases` prints."""
    here = Path(__file__).parent
    source = str(Path(proxfield.__file__).parents[1])
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
    }
    ran = subprocess.run(
        [sys.executable, str(here / "torch_triton_cases.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    out: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return out


@pytest.mark.parametrize("own", [1, 2])
def test_filter_and_its_gradient(own: int, found: dict[str, Any]) -> None:
    assert found[f"filter {own}"] < 3e-4
    assert max(found[f"pull {own}"]) < 1e-3


@pytest.mark.parametrize("case", ["in passes", "far away"])
def test_gradient_of_many_channels_or_far_points(case: str, found: dict[str, Any]) -> None:
    assert max(found[f"pull {case}"]) < 1e-3


@pytest.mark.parametrize("kind", ["exact", "implicit"])
def test_layer(kind: str, found: dict[str, Any]) -> None:
    marginals, *gradients = found[f"layer {kind}"]
    assert marginals < 1e-4
    assert max(gradients) < 2e-3


@pytest.mark.parametrize("name", ["potts", "mixed"])
def test_infer(name: str, found: dict[str, Any]) -> None:
    assert max(found[f"infer {name}"]) < 1e-5
