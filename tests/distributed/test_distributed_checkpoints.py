"""Checkpoints: a run that was killed at any moment ends with the bits of one that wasn't."""

from __future__ import annotations

import errno
import os
import textwrap
from pathlib import Path

import numpy as np
import pytest
from ranks import free_port, start

import proxfield as pf
from proxfield.distributed import Partition, infer, run_threads
from proxfield.distributed import checkpoint as checkpoints
from proxfield.errors import DistributedError

RULES = [name for name, rule in pf.RULES.items() if not rule().mover.needs_whole_field]


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


def test_a_file_that_may_not_grow_is_an_error_on_every_process(tmp_path):
    """A full disk, as one process meets it."""
    body = f"""
        import resource
        if rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        part = Partition.from_field(transport, field)
        infer(part, "momentum", tol=0.0, checkpoint={str(tmp_path)!r}, checkpoint_seconds=0)
    """
    for text, status in start(2, body).values():
        assert status == 5, text
        assert "DistributedError: rank 1: can't write a checkpoint" in text
    assert not list(tmp_path.glob("*.tmp"))


KILLS = [(1, 3), (1, 4), (0, 5), (0, 8), (1, 11)]
"""A rank, and the file (of a state or an index, in turn) before whose end it is killed."""
ATTEMPTS = """
    import time
    from pathlib import Path
    from proxfield.distributed.transport import Sockets

    settings = {settings!r}
    folder = {folder!r}

    def attempt(number, killed, at):
        transport = Sockets(rank, 2, 30.0).meet("127.0.0.1", {ports!r}[number])
        written, fsync = [0], os.fsync

        def counted(file):
            written[0] += 1
            if (rank, written[0]) == (killed, at):
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(file)

        os.fsync = counted
        part = Partition.from_field(transport, grid)
        result = infer(part, checkpoint=folder, checkpoint_seconds=0, **settings)
        np.savez(f"{{folder}}/result-{{rank}}.npz", q=result.q, f=result.trace.free_energy,
                 n=result.iterations)

    grid = pf.generate.grid(6, 7, strength=2.0, seed=4)
    infer(Partition.from_field(pf.distributed.Alone(), grid), max_iters=2)  # compiles
    kills = {kills!r}
    for number, (killed, at) in enumerate([*kills, ("timed", 0), (None, 0)]):
        child = os.fork()
        if child == 0:
            try:
                attempt(number, killed, at)
            except pf.ProxfieldError as error:
                os._exit(3)
            os._exit(0)
        if killed == "timed":
            time.sleep(0.05)  # all ranks at once, wherever they are
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if killed is None:
            expected = (0,)
        elif killed == "timed":
            expected = (-9, 3, 0)
        else:
            expected = (-9,) if killed == rank else (3,)
        if status not in expected:
            raise pf.ProxfieldError(f"attempt {{number}} ended with {{status}}, not {{expected}}")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_killed_again_and_again_end_with_the_same_bits(tmp_path):
    """By SIGKILL: while a state or an index is written, and at some other moment."""
    settings = {
        "rule": "momentum", "max_iters": 90, "tol": 0.0, "threads": 1, "reduce_every": 3,
        "init": "random",
    }  # fmt: skip
    ports = [free_port() for _ in range(len(KILLS) + 2)]
    body = textwrap.dedent(ATTEMPTS).format(
        settings=settings, folder=str(tmp_path), ports=ports, kills=KILLS
    )
    for text, status in start(2, body).values():
        assert status == 0, text
    field = pf.generate.grid(6, 7, strength=2.0, seed=4)
    whole = run_threads(2, lambda t: infer(Partition.from_field(t, field), **settings))
    for rank, result in enumerate(whole):
        with np.load(tmp_path / f"result-{rank}.npz") as found:
            assert (found["q"] == result.q).all()
            assert np.array_equal(found["f"], result.trace.free_energy)
            assert int(found["n"]) == result.iterations == 90
