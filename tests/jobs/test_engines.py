"""The same bytes on Ray and Spark, where they are installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from jobs_cases import make_scene

import proxfield as pf
from proxfield.core.jobs.running import run_jobs
from proxfield.generate import grid

pytestmark = pytest.mark.filterwarnings("ignore")  # their own


@contextlib.contextmanager
def ray_backend() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="needs ray")
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        register_ray()
        with joblib.parallel_config("ray", n_jobs=2):
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def spark_backend() -> Iterator[None]:
    pytest.importorskip("pyspark", reason="needs pyspark")
    joblibspark = pytest.importorskip("joblibspark", reason="needs joblibspark")
    joblibspark.register_spark()
    with joblib.parallel_config("spark", n_jobs=2):
        yield


@pytest.mark.parametrize("backend", [ray_backend, spark_backend])
def test_the_same_bytes(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray keeps a token there
    fields = [grid(5, 6, strength=s, seed=k) for k, s in enumerate((0.5, 1.0, 2.0))]
    alone = pf.infer_many(fields, max_iters=30)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # its workers' Python
    picture, p = make_scene((40, 50))
    tiles: dict[str, Any] = {"output": "probabilities", "tile": 25, "halo": 10, "threads": 1}
    one_by_one = np.zeros_like(p)
    pf.refine_tiles(picture, p, one_by_one, **tiles)
    there = np.zeros_like(p)
    with backend():
        assert sorted(run_jobs(abs, range(-12, 0))) == list(range(1, 13))
        found = pf.infer_many(fields, max_iters=30)
        pf.refine_tiles(picture, p, there, **tiles)
    assert there.tobytes() == one_by_one.tobytes()
    for one, two in zip(alone, found, strict=True):
        assert one.q.tobytes() == two.q.tobytes() and two.field == one.field
