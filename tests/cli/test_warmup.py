"""``proxfield warmup``: afterwards a first inference compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import proxfield as pf
from proxfield import warming
from proxfield.errors import InputError

pytestmark = pytest.mark.slow

FIRST = """
import json
import numpy as np
import proxfield as pf
from proxfield.core.compiled.notice import compiled_kernels
from proxfield.generate import grid
rng = np.random.default_rng(0)
smooth = np.add.outer(np.arange(120), np.arange(160))[..., None] // [1, 2, 3] % 256
rough = rng.integers(0, 256, (120, 160, 3))
kinds = set()
with compiled_kernels() as names:
    for labels in (21, 2):
        p = rng.dirichlet(np.ones(labels), size=(120, 160))
        for image in (smooth, rough):
            crf = pf.DenseCRF(image.astype(np.uint8), p, preset="krahenbuehl")
            crf.infer(max_iters=10).map_energy
            kinds.add(crf.terms[-1].filter.kind.name)
assert kinds == {"separable", "star"}
with compiled_kernels() as more:
    for labels in (2, 3):
        field = grid(20, 20, n_labels=labels)
        pf.infer(field, max_iters=100)
        pf.infer(field, "adam", max_iters=10)
        pf.solve_map(field, max_iters=100)
print(json.dumps([*names, *more]))
"""


def run(*args: str, cache: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PROXFIELD_CACHE_DIR": str(cache), "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, *args], env=env, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def test_a_first_inference_compiles_nothing_after_it(tmp_path: Path) -> None:
    done = run("-m", "proxfield", "warmup", "--json", "--jobs", "2", cache=tmp_path)
    data = json.loads(done.stdout)
    assert data["kernels"] == sum(data["families"].values()) > 20
    usual = [name for name, family in warming.FAMILIES.items() if family.usual]
    assert set(data["families"]) == set(usual)
    assert Path(data["kernel_folder"]).parent == tmp_path
    for family, kernels in data["families"].items():
        assert f"{family}: {kernels} kernels, " in done.stderr
    assert json.loads(run("-c", FIRST, cache=tmp_path).stdout) == []
    again = run("-m", "proxfield", "warmup", "--jobs", "1", cache=tmp_path)
    assert again.stdout.startswith("0 kernels compiled in ")
    assert again.stdout.rstrip().endswith(data["kernel_folder"])


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
def test_jobs_are_checked(jobs: object) -> None:
    with pytest.raises(InputError, match="jobs="):
        pf.warmup(jobs=jobs)  # type: ignore[arg-type]


def test_families_are_run_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, bool]] = []
    families = {
        "b": warming.Family(lambda all: ran.append(("b", all)), seconds=1, usual=False),
        "a": warming.Family(lambda all: ran.append(("a", all)), seconds=2),
    }
    monkeypatch.setattr(warming, "FAMILIES", families)
    seen: list[str] = []
    done = pf.warmup(jobs=1, progress=lambda family, kernels, seconds: seen.append(family))
    assert (done.kernels, done.families, seen) == (0, {"a": 0}, ["a"])
    assert pf.warmup(all=True, jobs=1).families == {"a": 0, "b": 0}
    assert ran == [("a", False), ("a", True), ("b", True)]
