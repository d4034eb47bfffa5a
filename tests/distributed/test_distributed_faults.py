"""What can go wrong over several ranks: an error on every rank, and no hang."""

from __future__ import annotations

import os

import numpy as np
import pytest
from ranks import backends, start

import proxfield as pf
from proxfield.distributed import Partition, connect, infer, run_threads, torch_transport
from proxfield.distributed import partition as partitions
from proxfield.errors import DistributedError, MissingDependencyError

KILLED = """
    def callback(progress):
        if rank == 1 and progress.iteration >= 3:
            os.kill(os.getpid(), signal.SIGKILL)
    part = Partition.from_field(transport, field)
    infer(part, "momentum", tol=0.0, max_iters=10**9, callback=callback, threads=1)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("backend", backends())
def test_a_killed_rank_is_an_error_on_the_others(backend):
    found = start(3, KILLED, backend=backend)
    assert found[1][1] == -9
    for r in (0, 2):
        assert found[r][1] == 5, found[r][0]
        last = found[r][0].strip().splitlines()[-1]
        assert last.startswith(f"DistributedError: rank {r} of 3: ")


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends())
def test_a_rank_that_never_starts_is_an_error_on_the_others(backend):
    for r, (text, status) in start(3, "pass", absent=[1], backend=backend).items():
        assert status == 5, text
        assert f"DistributedError: rank {r} of 3: " in text and "within 8 s" in text


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
        with pytest.raises(pf.UnsupportedError, match=r"'restarts' isn't available.*use auto"):
            infer(Partition.from_field(transport, grid), "restarts")
        with pytest.raises(pf.UnsupportedError, match=r"'sweep' isn't available.*use colored"):
            infer(Partition.from_field(transport, grid), "anneal", inner="sweep")

    run_threads(2, work)


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


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_transport, "torch", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(MissingDependencyError, match=r"needs torch: pip install.*use sockets"):
        connect("gloo")


WITHOUT_TORCH = """
    import os, sys
    if os.environ["RANK"] == "1":
        sys.modules["torch"] = None
"""


@pytest.mark.skipif("gloo" not in backends(), reason="needs torch")
def test_a_rank_without_torch_is_an_error_on_every_rank():
    found = start(2, "pass", backend="gloo", before=WITHOUT_TORCH, limit=3.0)
    assert found[1][1] == 5 and "needs torch" in found[1][0]
    assert found[0][1] == 5 and "DistributedError: rank 0 of 2" in found[0][0]


def test_a_rule_that_a_term_of_one_rank_refuses_is_an_error_on_every_rank():
    field = pf.Field(6, 2).add(pf.Potts([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]], 1.0))
    field.add(pf.Consistency([[0, 1]], 1.0))

    def work(transport):
        part = Partition.from_field(transport, field, [0, 0, 1, 1, 2, 2])
        with pytest.raises(pf.UnsupportedError, match="colored over several ranks needs"):
            infer(part, "colored")
        with pytest.raises(pf.UnsupportedError, match=r"auto .* needs every term .* use anneal"):
            infer(part, "auto")
        return float(transport.reduce(np.ones(1))[0])  # all are where they were

    assert run_threads(3, work) == [3.0] * 3


def test_versions_of_processes_are_compared():
    other = """
        import os
        import proxfield._version as version
        if os.environ["RANK"] == "1":
            version.__version__ += ".dev1"
    """
    for text, status in start(2, "Partition.from_field(transport, field)", before=other).values():
        assert status == 5 and "different versions of proxfield" in text and ".dev1" in text
