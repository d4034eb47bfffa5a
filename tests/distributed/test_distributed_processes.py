"""Ranks that are processes, connected by TCP or torch.distributed, give what one process gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ranks import backends, free_port, start

import proxfield as pf
from proxfield.distributed import Partition, run_threads
from random_fields import random_field

TOLERANCE = {
    "fixed": 1e-12,
    "momentum": 1e-12,
    "adaptive": 1e-12,
    "colored": 1e-12,
    "anneal": 1e-12,
    "adam": 1e-9,
}
SEEDS = (22, 24, 25, 31)
"""Fields with zeros, evidence, tables of three variables, segments and occupancy between them."""
BODY = """
    from random_fields import random_field
    found = {{}}
    for seed in {seeds!r}:
        field = random_field(seed, scale=1.0).field
        owner = np.random.default_rng(seed).integers(0, transport.size, field.n_vars)
        for rule in {rules!r}:
            try:
                part = Partition.from_field(transport, field, owner)
                result = infer(part, rule, max_iters=7, tol=0.0, threads=1, reduce_every=3,
                               device={device!r}, dtype="float64")
            except pf.UnsupportedError:
                continue
            q = result.gather()
            if rank == 0:
                found[f"{{seed}} {{rule}} q"] = q
                found[f"{{seed}} {{rule}} f"] = result.trace.free_energy
    if rank == 0:
        np.savez({path!r}, **found)
    transport.close()
"""


def cards():
    """How many GPUs there are."""
    if "gloo" not in backends():
        return 0
    import torch

    return torch.cuda.device_count()


RUNS = [("sockets", 2, "cpu"), ("sockets", 4, "cpu"), ("gloo", 3, "cpu"), ("nccl", 1, "cuda"),
        ("gloo", 2, "cuda")]  # fmt: skip
"""Backends, numbers of ranks and devices; two ranks share a GPU."""


@pytest.mark.parametrize(("backend", "size", "device"), RUNS)
def test_processes_give_what_one_process_gives(backend, size, device, tmp_path):
    if device == "cuda" and not cards():
        pytest.skip("no CUDA device here")
    if backend not in (*backends(), "nccl"):
        pytest.skip("needs torch")
    path = str(tmp_path / "found.npz")
    body = BODY.format(seeds=SEEDS, rules=list(TOLERANCE), path=path, device=device)
    for text, status in start(size, body, backend=backend, limit=90.0).values():
        assert status == 0, text
    compared = 0
    with np.load(path) as found:
        for seed in SEEDS:
            field = random_field(seed, scale=1.0).field
            for rule, tolerance in TOLERANCE.items():
                if f"{seed} {rule} q" not in found:
                    continue
                one = pf.infer(
                    field, rule, max_iters=7, tol=0.0, threads=1, device=device, dtype="float64"
                )
                q, f = found[f"{seed} {rule} q"], found[f"{seed} {rule} f"]
                np.testing.assert_allclose(q, one.q, rtol=0, atol=tolerance)
                if rule != "adam":
                    # ranks compute terms that aren't lowered on the host, one process on the GPU
                    same = device == "cpu" or not field.lower().extras
                    limit = 1e-13 if same else 1e-9
                    np.testing.assert_allclose(f, one.trace.free_energy, rtol=limit, atol=limit)
                compared += 1
    assert compared >= 15


@pytest.mark.skipif("gloo" not in backends(), reason="needs torch")
def test_torchrun_solves_a_model(tmp_path):
    field = pf.generate.grid(6, 7, seed=2)
    pf.write_uai(field, tmp_path / "grid.uai")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
        str(free_port()), "-m", "proxfield", "solve", str(tmp_path / "grid.uai"), "--distributed",
        "--rule", "momentum", "--max-iters", "20", "--tol", "0", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    one = pf.infer(field, "momentum", max_iters=20, tol=0.0)
    assert (found["ranks"], found["iterations"]) == (2, 20)
    assert found["free_energy"] == pytest.approx(one.free_energy, rel=1e-13)


def test_metis_gives_small_borders():
    pytest.importorskip("pymetis")
    field = pf.generate.grid(12, 12, seed=1)
    shuffled = np.random.default_rng(0).integers(0, 3, 144)

    def work(transport):
        by_metis = Partition.from_field(transport, field, "metis")
        at_random = Partition.from_field(transport, field, shuffled)
        return len(by_metis.cut.border), len(at_random.cut.border), by_metis.field.n_vars

    for border, other, count in run_threads(3, work):
        assert 0 < border < other / 2 and 40 <= count <= 56


MPI = Path(sys.executable).parent / "mpiexec"


@pytest.mark.skipif(not MPI.exists(), reason="needs MPI")
def test_ranks_of_mpi_give_what_one_process_gives(tmp_path):
    code = f"""
import numpy as np
import proxfield as pf
from proxfield.distributed import Partition, connect, infer
with connect("mpi") as transport:
    part = Partition.from_field(transport, pf.generate.grid(6, 7, seed=2))
    result = infer(part, "momentum", max_iters=20, tol=0.0)
    q = result.gather()
    if transport.rank == 0:
        np.savez({str(tmp_path / "found.npz")!r}, q=q, f=result.free_energy)
"""
    command = [str(MPI), "-n", "3", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    one = pf.infer(pf.generate.grid(6, 7, seed=2), "momentum", max_iters=20, tol=0.0)
    with np.load(tmp_path / "found.npz") as found:
        np.testing.assert_allclose(found["q"], one.q, rtol=0, atol=1e-12)
        assert float(found["f"]) == pytest.approx(one.free_energy, rel=1e-13)


ON_GPU = """
    import tempfile
    energies = np.random.default_rng(0).normal(size=(40, 30, 2))
    part = grid_partition(transport, (40, 30), energies, 0.4)
    for rule in ("fixed", "momentum", "adam", "colored", "anneal"):
        settings = dict(max_iters=30, tol=0.0, reduce_every=3)
        host = infer(part, rule, **settings)
        device = infer(part, rule, device="cuda", dtype="float64", **settings)
        assert abs(host.q - device.q).max() < 1e-8, (rule, abs(host.q - device.q).max())
        assert abs(host.free_energy - device.free_energy) < 1e-9 * abs(host.free_energy), rule
        folder = f"{folder}/{{rule}}"
        single = infer(part, rule, device="cuda", dtype="float32", **settings)
        resumed = dict(device="cuda", dtype="float32", checkpoint=folder, checkpoint_seconds=0)
        stop = lambda progress: progress.iteration > 12
        before = infer(part, rule, callback=stop, **resumed, **settings)
        seen = []
        watch = lambda progress: seen.append(progress.iteration)
        again = infer(part, rule, callback=watch, **resumed, **settings)
        assert 12 < before.iterations <= 15 and seen[0] > 12, (before.iterations, seen)
        assert (again.q == single.q).all(), (rule, abs(again.q - single.q).max())
        assert again.free_energy == single.free_energy, rule
    transport.close()
"""


@pytest.mark.skipif(not cards(), reason="no CUDA device here")
@pytest.mark.parametrize(("backend", "size"), [("nccl", 1), ("gloo", 2)])
def test_grids_and_checkpoints_on_a_gpu(backend, size, tmp_path):
    body = ON_GPU.format(folder=tmp_path)
    for text, status in start(size, body, backend=backend, limit=90.0).values():
        assert status == 0, text
