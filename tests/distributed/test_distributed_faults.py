"""What can go wrong over several ranks: an error on every rank, and no hang."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield.distributed import Partition, connect, infer, run_threads
from proxfield.distributed import checkpoint as checkpoints
from proxfield.distributed import partition as partitions
from proxfield.errors import DistributedError

LIMIT = 8.0
"""Seconds that ranks wait for each other here."""


def start(size, body, *, absent=(), backend="sockets"):
    """Processes that run the same code, each as one rank: exit status and stderr of each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    head = f"""
        import os, signal, sys, threading
        import numpy as np
        import proxfield as pf
        from proxfield.distributed import Partition, connect, infer
        rank = int(os.environ["RANK"])
        field = pf.generate.grid(6, 6, seed=1)
        try:
            transport = connect({backend!r}, timeout={LIMIT})
    """
    tail = """
        except pf.ProxfieldError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\\n")
            sys.stderr.flush()
            os._exit(5)
        sys.stderr.flush()
        os._exit(0)
    """
    inner = textwrap.indent(textwrap.dedent(body), " " * 4)
    code = textwrap.dedent(head) + inner + textwrap.dedent(tail)
    common = {**os.environ, "WORLD_SIZE": str(size), "MASTER_PORT": str(port),
              "MASTER_ADDR": "127.0.0.1", "PROXFIELD_QUIET": "1"}  # fmt: skip
    started = {
        r: subprocess.Popen(
            [sys.executable, "-c", code], env={**common, "RANK": str(r)},
            stderr=subprocess.PIPE, text=True,
        )
        for r in range(size) if r not in absent
    }  # fmt: skip
    try:
        return {r: (p.communicate(timeout=240)[1], p.returncode) for r, p in started.items()}
    finally:
        for process in started.values():
            process.kill()


KILLED = """
    def callback(progress):
        if rank == 1 and progress.iteration >= 3:
            os.kill(os.getpid(), signal.SIGKILL)
    part = Partition.from_field(transport, field)
    infer(part, "momentum", tol=0.0, max_iters=10**9, callback=callback, threads=1)
"""


def backends():
    """Of processes: without torch, and with it where it is installed."""
    found = ["sockets"]
    try:
        import torch  # noqa: F401
    except ImportError:
        return found
    return [*found, "gloo"]


@pytest.mark.parametrize("backend", backends())
def test_a_killed_rank_is_an_error_on_the_others(backend):
    found = start(3, KILLED, backend=backend)
    assert found[1][1] == -9
    for r in (0, 2):
        assert found[r][1] == 5, found[r][0]
        last = found[r][0].strip().splitlines()[-1]
        assert last.startswith(f"DistributedError: rank {r} of 3: ")


@pytest.mark.parametrize("backend", backends())
def test_a_rank_that_never_starts_is_an_error_on_the_others(backend):
    for r, (text, status) in start(3, "pass", absent=[1], backend=backend).items():
        assert status == 5, text
        assert f"DistributedError: rank {r} of 3: " in text and "within 8 s" in text


@pytest.mark.parametrize("backend", backends())
def test_processes_give_what_one_process_gives(backend, tmp_path):
    body = f"""
        result = infer(Partition.from_field(transport, field), "momentum", max_iters=20, tol=0.0)
        q = result.gather()
        if rank == 0:
            np.savez({str(tmp_path / "out.npz")!r}, q=q, f=result.free_energy)
        transport.close()
    """
    for text, status in start(2, textwrap.dedent(body), backend=backend).values():
        assert status == 0, text
    one = pf.infer(pf.generate.grid(6, 6, seed=1), "momentum", max_iters=20, tol=0.0)
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["q"], one.q, rtol=0, atol=1e-12)
        assert float(found["f"]) == pytest.approx(one.free_energy, rel=1e-13)


def test_different_versions_are_named_on_every_rank(monkeypatch):
    field = pf.generate.grid(3, 3)
    told = []
    agree = partitions.agree

    def other(transport, text, what):
        agree(transport, text + ".dev1" if transport.rank and "version" in what else text, what)

    monkeypatch.setattr(partitions, "agree", other)

    def work(transport):
        with pytest.raises(DistributedError) as error:
            Partition.from_field(transport, field)
        told.append(str(error.value))

    run_threads(2, work)
    assert len(told) == 2
    assert all("different versions" in t and ".dev1" in t and "rank 1" in t for t in told)


def test_different_arguments_are_an_error_on_every_rank():
    field = pf.generate.grid(3, 3)

    def work(transport):
        part = Partition.from_field(transport, field)
        with pytest.raises(DistributedError, match="different arguments of infer"):
            infer(part, "fixed", max_iters=3 + transport.rank)

    run_threads(2, work)


def test_a_rank_that_cannot_be_built_is_an_error_on_every_rank():
    def work(transport):
        field = pf.generate.grid(3, 3)
        if transport.rank == 1:
            field.add(pf.Gaussian(np.random.default_rng(0).normal(size=(9, 2)), 1.0))
        kind = pf.UnsupportedError if transport.rank == 1 else DistributedError
        with pytest.raises(kind, match="Gaussian term couples every pair"):
            Partition.from_field(transport, field)

    run_threads(3, work)


def test_forbidden_configurations_and_other_rules_are_refused():
    field = pf.Field([2, 2]).add(pf.Pairwise([[0, 1]], [[0.0, np.inf], [np.inf, 1.0]]))
    grid = pf.generate.grid(2, 2)

    def work(transport):
        with pytest.raises(pf.UnsupportedError, match="forbidden configurations"):
            Partition.from_field(transport, field)
        with pytest.raises(pf.UnsupportedError, match="rule 'auto' isn't available"):
            infer(Partition.from_field(transport, grid), "auto")

    run_threads(2, work)


# ---- checkpoints ----

RULES = ["fixed", "momentum", "adam", "adaptive", "backtracking", "adhoc", "colored"]


@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_run_ends_with_the_same_bits(rule, tmp_path):
    field = pf.generate.grid(6, 7, strength=2.0, seed=4, n_labels=2 + (rule == "adam"))
    settings = {"init": "random", "tol": 1e-9, "max_iters": 60, "threads": 1, "reduce_every": 3}

    class Killed(Exception):
        pass

    def straight(transport):
        return infer(Partition.from_field(transport, field), rule, **settings)

    def cut_off(transport):
        def callback(progress):
            if progress.iteration > 25:
                raise Killed

        part = Partition.from_field(transport, field)
        infer(part, rule, checkpoint=tmp_path, checkpoint_seconds=0, callback=callback, **settings)

    def resumed(transport):
        seen = []
        part = Partition.from_field(transport, field)
        result = infer(
            part, rule, checkpoint=tmp_path, checkpoint_seconds=0,
            callback=lambda progress: seen.append(progress.iteration), **settings,
        )  # fmt: skip
        assert not seen or seen[0] > 20  # it didn't begin again
        return result

    whole = run_threads(2, straight)
    with pytest.raises((Killed, DistributedError)):
        run_threads(2, cut_off)
    again = run_threads(2, resumed)
    for a, b in zip(whole, again, strict=True):
        assert (a.q == b.q).all()
        assert a.free_energy == b.free_energy
        assert (a.iterations, a.status) == (b.iterations, b.status)
        assert np.array_equal(a.trace.free_energy, b.trace.free_energy)
        assert np.array_equal(a.trace.change, b.trace.change, equal_nan=True)


def test_a_full_disk_is_an_error_on_every_rank(tmp_path, monkeypatch):
    field = pf.generate.grid(4, 4)
    savez = np.savez

    def full(out, **arrays):
        if "rank-1" in out.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        savez(out, **arrays)

    monkeypatch.setattr(checkpoints.np, "savez", full)

    def work(transport):
        part = Partition.from_field(transport, field)
        with pytest.raises(DistributedError, match=r"rank 1: can't write a checkpoint.*No space"):
            infer(part, "momentum", tol=0.0, checkpoint=tmp_path, checkpoint_seconds=0)

    run_threads(2, work)
    assert not list(Path(tmp_path).glob("*.tmp"))


def test_a_checkpoint_of_another_run_or_damaged_is_refused(tmp_path):
    field = pf.generate.grid(4, 4)

    def run(transport, rule="momentum", size_field=field):
        part = Partition.from_field(transport, size_field)
        return infer(part, rule, tol=0.0, max_iters=12, checkpoint=tmp_path, checkpoint_seconds=0)

    run_threads(2, run)
    with pytest.raises(DistributedError, match="another field, rule or dtype"):
        run_threads(2, lambda t: run(t, "adam"))
    with pytest.raises(DistributedError, match="of 2 ranks, not 3"):
        run_threads(3, run)
    for path in tmp_path.glob("state-*-rank-1.npz"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DistributedError, match="rank 1: can't read state-"):
        run_threads(2, run)


def test_environment_and_arguments_are_checked(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "7")
    with pytest.raises(pf.InputError, match="RANK=7 with WORLD_SIZE=2"):
        connect("sockets")
    monkeypatch.delenv("RANK")
    with pytest.raises(pf.InputError, match="start with torchrun"):
        connect("sockets")
    with pytest.raises(pf.InputError, match="expected gloo, nccl, sockets or mpi"):
        connect("carrier pigeon")
