"""`run_jobs` on this machine: serial, loky, threads; parts; processes that are killed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from jobs_cases import (
    children_of,
    contents,
    die_always,
    die_at_5,
    die_once,
    make_images,
    refuse_3,
    square,
    square_slowly,
    where,
)

import proxfield as pf
from proxfield.core.jobs.processes import Processes
from proxfield.core.jobs.running import (
    ClusterError,
    LostWorkerError,
    Part,
    Workers,
    call,
    open_workers,
    run_jobs,
    slots_of,
    threads_per_item,
)
from proxfield.errors import InputError, ProxfieldError
from proxfield.generate import grid

posix = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
SQUARES = [x * x for x in range(12)]


# ---- which workers ----


def test_without_anything_work_stays_in_this_process() -> None:
    assert sorted(run_jobs(lambda x: os.getpid(), range(3))) == [os.getpid()] * 3
    assert type(open_workers()) is Workers
    assert slots_of() == 1 and threads_per_item() is None


@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing", "sequential"])
def test_the_backend_of_parallel_config_is_used(backend: str) -> None:
    with joblib.parallel_config(backend, n_jobs=2):
        kind = type(open_workers()).__name__
        assert sorted(run_jobs(square, range(12))) == SQUARES
        expected = {"loky": "Processes", "sequential": "Workers"}
        assert kind == expected.get(backend, "BackendWorkers")
        assert type(open_workers(1)) is Workers  # explicit: here


def test_a_number_of_jobs_may_be_configured_alone() -> None:
    with joblib.parallel_config(n_jobs=2):
        workers = open_workers()
        assert isinstance(workers, Processes) and workers.jobs == slots_of() == 2
        assert open_workers(3).jobs == 3


def test_a_backend_that_cannot_stream_gives_lists_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxfield.core.jobs.running.LIST_ITEMS", 2)
    monkeypatch.setattr("proxfield.core.jobs.running._said", set())
    with (
        caplog.at_level(logging.WARNING, "proxfield"),
        joblib.parallel_config("multiprocessing", n_jobs=2),
    ):
        assert sorted(run_jobs(square, range(12))) == SQUARES
        assert sorted(run_jobs(square, range(12))) == SQUARES
    assert [r.getMessage() for r in caplog.records] == [
        "joblib's MultiprocessingBackend can't stream: results come in lists"
    ]


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_wrong_numbers_of_jobs(wrong: Any) -> None:
    with pytest.raises(InputError, match="expected a whole number above 0"):
        list(run_jobs(square, [1], wrong))


def test_items_are_taken_a_few_ahead_only() -> None:
    taken = 0

    def items() -> Any:
        nonlocal taken
        for x in range(50):
            taken += 1
            yield x

    some = run_jobs(square_slowly, items(), jobs=2)
    next(some)
    assert taken <= 6
    some.close()


def test_errors_of_the_function_are_raised() -> None:
    with pytest.raises(InputError, match=r"three\.txt: 3 isn't wanted"):
        list(run_jobs(refuse_3, range(6), jobs=2))


def test_workers_are_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(run_jobs(where, range(2), jobs=2)) == {str(tmp_path)}


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"has proxfield .*, expected 0\.0\.7 as here"):
        call(square, 3, None, "0.0.7")


def test_a_worker_without_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no such folder on .* expected a file system that all"):
        call(square, 3, str(tmp_path / "missing"), pf.__version__)


# ---- killed processes ----


@posix
def test_items_of_a_killed_process_are_done_again(tmp_path: Path) -> None:
    one = partial(die_once, folder=str(tmp_path), victims=(3, 7))
    found = list(run_jobs(one, range(12), jobs=2))
    assert sorted(found) == SQUARES  # all of them, none twice
    assert len((tmp_path / "3").read_text().splitlines()) >= 2


@posix
def test_the_item_that_kills_is_named_and_all_others_are_done() -> None:
    found: list[int] = []
    with pytest.raises(LostWorkerError, match=r"^5: its process was ended .* 3 times") as error:
        found.extend(run_jobs(die_at_5, range(12), jobs=2))
    assert sorted(found) == [x for x in range(12) if x != 5]
    assert error.value.items == ("5",)
    assert isinstance(error.value, ProxfieldError)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@posix
def test_where_everything_kills_it_ends_early() -> None:
    with pytest.raises(LostWorkerError) as error:
        list(run_jobs(die_always, range(1000), jobs=2, name=lambda x: f"item {x}"))
    assert len(error.value.items) == 3 and error.value.items[0].startswith("item ")


@posix
def test_a_process_that_is_killed_while_idle() -> None:
    with open_workers(2) as workers:
        assert sorted(workers.run(square, range(4))) == [0, 1, 4, 9]
        assert isinstance(workers, Processes)
        for process in list(workers._pool._processes.values()):
            os.kill(process.pid, signal.SIGKILL)
        assert sorted(workers.run(square, range(12))) == SQUARES


@pytest.mark.slow
@posix
@pytest.mark.skipif(sys.platform != "linux", reason="needs ps of Linux")
def test_refine_after_kill_9_in_the_middle(tmp_path: Path) -> None:
    make_images(tmp_path, 16, (60, 80))
    base = [sys.executable, "-m", "proxfield", "refine", "images", "--probs", "probs"]
    base += ["--max-iters", "150", "--tol", "0", "--threads", "1"]
    subprocess.run([*base, "-o", "one"], cwd=tmp_path, check=True, capture_output=True)
    run = subprocess.Popen(
        [*base, "-o", "two", "--jobs", "2", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while run.poll() is None and len(list(tmp_path.glob("two/*.png"))) < 4:
        time.sleep(0.01)
    workers = children_of(run.pid, "popen_loky")
    os.kill(min(workers), signal.SIGKILL)
    assert len(list(tmp_path.glob("two/*.json"))) < 16
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    names = [record["image"] for record in json.loads(out)["files"]]
    assert len(names) == len(set(names)) == 16
    assert visible(tmp_path / "two") == visible(tmp_path / "one")


def visible(folder: Path) -> dict[str, bytes]:
    """Files, less what a killed process leaves aside."""
    return {k: v for k, v in contents(folder).items() if not k.startswith(".")}


# ---- parts ----


def test_parts_are_disjoint_and_complete() -> None:
    items = list(range(17))
    for count in (1, 2, 5, 17, 20):
        parts = [Part(k, count).of(items) for k in range(1, count + 1)]
        assert sorted(x for part in parts for x in part) == items
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("wrong", ["", "3", "0/4", "5/4", "a/4", "1/0", "-1/4", "1/2/3", "1.5/4"])
def test_wrong_parts(wrong: str) -> None:
    with pytest.raises(InputError, match="expected K/N with K from 1 to N, as in 3/8"):
        Part.parse(wrong)


# ---- what uses it ----


def test_infer_many_gives_the_same_in_other_processes() -> None:
    fields = [grid(5, 6, strength=s, seed=k) for k, s in enumerate((0.5, 1.0, 2.0))]
    alone = pf.infer_many(fields, "adam", max_iters=30)
    for found in (
        pf.infer_many(fields, "adam", max_iters=30, jobs=2),
        configured(fields),
    ):
        for one, two, field in zip(alone, found, fields, strict=True):
            assert one.q.tobytes() == two.q.tobytes() and one.free_energy == two.free_energy
            assert two.field == field and two.map_energy == one.map_energy


def configured(fields: list[pf.Field]) -> list[pf.Result]:
    with joblib.parallel_config("threading", n_jobs=2):
        return pf.infer_many(fields, "adam", max_iters=30)


def test_refine_batch_under_parallel_config() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (3, 12, 10, 3), dtype=np.uint8)
    p = rng.dirichlet(np.ones(3), (3, 12, 10))
    alone = pf.refine_batch(images, p, max_iters=3)
    with joblib.parallel_config(n_jobs=2):
        assert pf.refine_batch(images, p, max_iters=3).tobytes() == alone.tobytes()
        results = pf.refine_batch(images, p, max_iters=3, output="results")
    assert all(np.array_equal(r.probabilities, a) for r, a in zip(results, alone, strict=True))
    assert not results[0].field.has_terms
