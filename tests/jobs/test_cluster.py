"""`run_jobs` on a Dask cluster: the same bytes, killed workers, and clear errors."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from click.testing import CliRunner
from jobs_cases import (
    contents,
    die_at_5,
    die_once,
    hide_package,
    make_images,
    refuse_3,
    show_package,
    square,
    square_slowly,
)

import proxfield as pf
from proxfield.cli.main import cli
from proxfield.core.jobs.processes import DaskWorkers, Ticket, connected, on_worker
from proxfield.core.jobs.running import ClusterError, LostWorkerError, open_workers, run_jobs
from proxfield.errors import InputError
from proxfield.generate import grid

pytest.importorskip("distributed", reason="needs proxfield[cluster]")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Dask's own
    pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL"),
]
SQUARES = [x * x for x in range(12)]


def refine(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["refine", *map(str, arguments)])


def test_the_cluster_of_parallel_config_is_used(cluster: Any) -> None:
    with joblib.parallel_config("dask", client=cluster):
        workers = open_workers()
        assert isinstance(workers, DaskWorkers) and workers.jobs == 2
        assert sorted(run_jobs(square, range(12))) == SQUARES
        assert os.getpid() not in set(run_jobs(lambda _: os.getpid(), range(4)))
        with pytest.raises(InputError, match=r"three\.txt: 3 isn't wanted"):
            list(run_jobs(refuse_3, range(6)))


def test_items_are_taken_a_few_ahead_only(cluster: Any) -> None:
    taken = []
    with joblib.parallel_config("dask", client=cluster):
        some = run_jobs(square_slowly, (taken.append(x) or x for x in range(50)))
        next(some)
        assert len(taken) <= 6
        some.close()


def test_items_of_a_killed_worker_are_done_again(cluster: Any, tmp_path: Path) -> None:
    one = partial(die_once, folder=str(tmp_path), victims=(3,))
    with joblib.parallel_config("dask", client=cluster):
        found = list(run_jobs(one, range(12)))
    assert sorted(found) == SQUARES
    assert len((tmp_path / "3").read_text().splitlines()) >= 2


def test_the_item_that_kills_is_named_and_all_others_are_done(cluster: Any) -> None:
    found: list[int] = []
    with (
        joblib.parallel_config("dask", client=cluster),
        pytest.raises(LostWorkerError, match=r"^5: its process was ended") as error,
    ):
        found.extend(run_jobs(die_at_5, range(12)))
    assert sorted(found) == [x for x in range(12) if x != 5]
    assert error.value.items == ("5",)


def test_results_that_are_lost_are_computed_again(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may be ended between the end of an item and the journey of its result."""
    original, lost = DaskWorkers._result_is_lost, []

    def result_is_lost(self: DaskWorkers, ticket: Ticket) -> bool:
        if ticket.item in (3, 4) and ticket.losses < 2:
            lost.append(ticket.item)
            ticket.future._state.lose()
        return original(self, ticket)

    monkeypatch.setattr(DaskWorkers, "_result_is_lost", result_is_lost)
    with joblib.parallel_config("dask", client=cluster):
        assert sorted(run_jobs(square, range(6))) == [x * x for x in range(6)]
        assert sorted(lost) == [3, 3, 4, 4]
        monkeypatch.setattr("proxfield.core.jobs.processes.MOST_LOSSES", 1)
        with pytest.raises(ClusterError, match="a task is lost"):
            list(run_jobs(square, range(6)))


def test_infer_many(cluster: Any) -> None:
    fields = [grid(5, 6, strength=s, seed=k) for k, s in enumerate((0.5, 1.0, 2.0))]
    alone = pf.infer_many(fields, max_iters=30)
    with joblib.parallel_config("dask", client=cluster):
        found = pf.infer_many(fields, max_iters=30)
    for one, two in zip(alone, found, strict=True):
        assert one.q.tobytes() == two.q.tobytes() and two.field == one.field


def test_tune(cluster: Any) -> None:
    rng = np.random.default_rng(0)
    truth = np.zeros((4, 12, 16), dtype=int)
    truth[:, :, 8:] = 1
    p = np.exp(np.eye(2)[truth] + rng.normal(0, 1.0, (*truth.shape, 2)))
    given = (200 * truth.astype(np.uint8), p / p.sum(axis=-1, keepdims=True), truth)
    alone = pf.tune(*given, folds=2, trials=3)
    with joblib.parallel_config("dask", client=cluster):
        found = pf.tune(*given, folds=2, trials=3)
    assert (found.config, found.held_out, found.table) == (
        alone.config,
        alone.held_out,
        alone.table,
    )


@pytest.mark.slow
def test_refine_gives_the_same_bytes_everywhere(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path, 5)
    monkeypatch.chdir(tmp_path)
    address = cluster.scheduler.address
    ways = {"serial": (), "loky": ("--jobs", 2), "dask": ("--cluster", address)}
    for out, options in ways.items():
        result = refine("images", "--probs", "probs", "-o", out, "--json", *options)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["refined"] == 5
    assert len(contents(tmp_path / "serial")) == 10
    assert contents(tmp_path / "serial") == contents(tmp_path / "loky")
    assert contents(tmp_path / "serial") == contents(tmp_path / "dask")


@pytest.mark.slow
def test_refine_after_kill_9_in_the_middle(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path, 16, (60, 80))
    monkeypatch.chdir(tmp_path)
    same = ("images", "--probs", "probs", "--max-iters", 150, "--tol", 0, "--threads", 1)
    assert refine(*same, "-o", "one").exit_code == 0
    pids = list(cluster.run(os.getpid).values())
    done: list[int] = []

    def kill() -> None:
        while len(list(tmp_path.glob("two/*.png"))) < 4:
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)
        done.append(len(list(tmp_path.glob("two/*.json"))))

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    result = refine(*same, "-o", "two", "--cluster", cluster.scheduler.address, "--json")
    killer.join(60)
    assert done[0] < 16
    assert result.exit_code == 0, result.output
    names = [record["image"] for record in json.loads(result.stdout)["files"]]
    assert len(names) == len(set(names)) == 16
    two = {k: v for k, v in contents(tmp_path / "two").items() if not k.startswith(".")}
    assert two == contents(tmp_path / "one")


# ---- faults ----


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxfield.core.jobs.processes.CONNECT_SECONDS", 1)
    with (
        pytest.raises(ClusterError, match="no Dask scheduler answers"),
        connected("tcp://127.0.0.1:9"),
    ):
        pass


def test_a_wrong_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxfield.core.jobs.processes.CONNECT_SECONDS", 1)
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path, 2)
    result = refine("images", "--probs", "probs", "-o", "out", "--cluster", "nonsense")
    assert result.exit_code == 1
    assert "no Dask scheduler answers" in result.stderr and "Traceback" not in result.stderr
    one = refine("images", "--probs", "probs", "-o", "o", "--cluster", "tcp://x:1", "--jobs", 1)
    assert one.exit_code == 2


def test_a_cluster_without_workers() -> None:
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=0, dashboard_address=None, processes=False, silence_logs=50
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
        pytest.raises(ClusterError, match="has had no workers for 1 s, expected some"),
        DaskWorkers(client, patience=1.0) as workers,
    ):
        list(workers.run(square, range(3)))


def test_a_scheduler_that_goes_away() -> None:
    import distributed

    local = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50
    )
    client = distributed.Client(local.scheduler_address, set_as_default=False, timeout=5)
    try:
        with (
            pytest.raises(ClusterError, match="cluster"),
            DaskWorkers(client, patience=5.0) as workers,
        ):
            for k, _ in enumerate(workers.run(square_slowly, range(500))):
                if k == 3:
                    local.close()
    finally:
        client.close(timeout=5)
        local.close()


def test_a_worker_that_lacks_a_module(cluster: Any, tmp_path: Path) -> None:
    module = tmp_path / "only_here.py"
    module.write_text("def double(x):\n    return 2 * x\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here  # type: ignore[import-not-found]

        with (
            joblib.parallel_config("dask", client=cluster),
            pytest.raises(
                ClusterError, match=r"can't load the work .*only_here.* expected proxfield"
            ),
        ):
            list(run_jobs(only_here.double, range(3)))
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["only_here"]


def test_a_worker_without_the_extra(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    same = ("images", "--probs", "probs", "-o", "out", "--cluster", cluster.scheduler.address)
    cluster.run(hide_package, "PIL")
    try:
        result = refine(*same)
    finally:
        cluster.run(show_package, "PIL")
    assert result.exit_code == 1
    assert "lacks a package" in result.stderr and "proxfield[images]" in result.stderr
    assert "3 images are left, run the same again to go on" in result.stderr
    assert refine(*same).exit_code == 0


def test_a_worker_of_another_version() -> None:
    import cloudpickle

    good, error = on_worker(cloudpickle.dumps(square), cloudpickle.dumps(3), None, "0.0.7")
    assert not good and isinstance(error, ClusterError) and "expected 0.0.7" in str(error)
