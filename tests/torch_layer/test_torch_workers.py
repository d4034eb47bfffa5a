"""A DataLoader whose workers infer: they are forked from a process that has used threads."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system doesn't fork"
)

SCRIPT = """
import json, os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork with threads
import numpy as np
import torch
import proxfield as pf
from proxfield.core.compiled import jit

class Refined(torch.utils.data.Dataset):
    "Label maps refined by a dense CRF when they are asked for."

    def __len__(self):
        return 4

    def __getitem__(self, k):
        rng = np.random.default_rng(k)
        p = rng.dirichlet(np.ones(3), size=(130, 140))
        crf = pf.DenseCRF(rng.integers(0, 256, size=(130, 140, 3)).astype(np.uint8), p)
        q = pf.infer(crf, "full-parallel", max_iters=5, tol=0.0).q
        return torch.from_numpy(np.asarray(q, dtype=np.float64)), os.getpid(), jit.max_threads()

data = Refined()
here = [data[k][0] for k in range(4)]
assert jit.max_threads() == 2
loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context="fork")
rows = list(loader)
print(json.dumps({
    "workers": len({int(pid) for _, pid, _ in rows} - {os.getpid()}),
    "threads": [int(threads) for _, _, threads in rows],
    "difference": max(float((q[0] - mine).abs().max()) for (q, _, _), mine in zip(rows, here)),
}))
"""


def test_workers_of_a_data_loader_infer() -> None:
    import json

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["workers"] == 2
    assert found["threads"] == [1] * 4
    assert found["difference"] < 1e-4
