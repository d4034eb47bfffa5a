"""What is recorded of peers that answer, and of those that don't."""

from __future__ import annotations

import numpy as np
import pytest
from peer_fakes import COMPILING, Fake

import proxfield as pf
from proxfield.bench.peers import measure
from proxfield.bench.peers.base import Answer, LogZKind, Peer, Question
from proxfield.bench.peers.measure import PeerCase, answer, make_record, run_cases, scene_cases
from proxfield.bench.peers.problems import generated_models, make_scene
from proxfield.bench.peers.tables import make_tables
from proxfield.bench.suites import Reference


def coin(task: Question = Question.INFERENCE, name: str = "coin") -> PeerCase:
    """Two variables; the first is 1 three times as often as 0. The best labelling is (1, 0)."""
    field = pf.Field(2, n_labels=2).add(pf.Unary([[np.log(3), 0.0], [0.0, 0.0]]))
    exact = Reference(float(np.log(8 / 3)), np.array([0.25, 0.75, 0.5, 0.5]))
    return PeerCase(task, "coins", name, field, exact if task is Question.INFERENCE else 0.0)


def record_of(mode: str, case: PeerCase) -> dict[str, object]:
    peer = Fake(mode)
    return make_record(peer, case, answer(peer, case.task, case.problem, 1.0))


def test_errors_of_marginals() -> None:
    record = record_of("answers", coin())
    assert record["status"] == "ok"
    assert record["mean_error"] == pytest.approx(0.125)
    assert record["max_error"] == pytest.approx(0.25)
    assert record["converged"] is False
    assert "log_z_gap" not in record


@pytest.mark.parametrize(("mode", "valid"), [("high", False), ("low", True)])
def test_bounds_are_checked(mode: str, valid: bool) -> None:
    record = record_of(mode, coin())
    assert record["valid_bound"] is valid
    gap = (1e3 if mode == "high" else -1e3) - np.log(8 / 3)
    assert record["log_z_gap"] == pytest.approx(gap)


def test_an_upper_bound_lies_above() -> None:
    case = coin()
    for log_z, valid in ((0.0, False), (2.0, True)):
        said = {"answer": Answer(log_z=log_z, kind=LogZKind.UPPER), "seconds": 0.0, "build": 0.0}
        assert make_record(Fake("answers"), case, said)["valid_bound"] is valid


def test_labellings_are_compared_with_the_best() -> None:
    record = record_of("answers", coin(Question.MAP))
    assert record["energy_gap"] == pytest.approx(np.log(3))
    assert (record["optimal"], record["proved"]) == (False, False)


@pytest.mark.parametrize(
    ("mode", "status", "why"),
    [
        ("refuses", "unsupported", "binary variables only"),
        ("raises", "error", "KeyError: 'broken'"),
        ("nan", "error", "marginals that are not numbers"),
    ],
)
def test_failures_are_recorded(mode: str, status: str, why: str) -> None:
    record = record_of(mode, coin())
    assert (record["status"], record["why"]) == (status, why)
    assert "mean_error" not in record


def test_only_peers_that_compile_run_twice() -> None:
    for compiles, calls in ((False, 1), (True, 2)):
        peer = Fake("answers", compiles)
        answer(peer, Question.INFERENCE, coin().problem, 1.0)
        assert peer.calls == calls


def test_processes_that_crash_or_dawdle_are_replaced() -> None:
    cases = [coin(name=f"coin {k}") for k in range(3)]
    told: list[str] = []
    peers: list[Peer] = [Fake("crashes"), Fake("dawdles"), Fake("answers")]
    records = run_cases(peers, cases, 1.0, 0.2, told.append)
    found = {p.name: [r["status"] for r in records if r["peer"] == p.name] for p in peers}
    assert found == {
        "fake crashes": ["crashed"] * 3,
        "fake dawdles": ["timeout", "timeout", "skipped"],
        "fake answers": ["ok"] * 3,
    }
    assert len(told) == 9
    rows = {row[0]: row[1:5] for row in make_tables(records)[-1].rows}
    assert rows["fake dawdles"] == ("3", "0", "0", "3")
    assert rows["fake answers"] == ("3", "3", "0", "0")


def test_compiling_does_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Fake("compiles", compiles=True)
    (record,) = run_cases([peer], [coin()], 1.0, COMPILING / 3, lambda line: None)
    assert record["status"] == "ok"
    assert record["seconds"] < COMPILING / 3
    monkeypatch.setattr(measure, "WARM_UP_SECONDS", 0.1)
    (record,) = run_cases([peer], [coin()], 1.0, COMPILING / 3, lambda line: None)
    assert record["status"] == "timeout"


def test_a_tool_that_cannot_be_imported_does_not_end_the_comparison() -> None:
    broken = Fake("answers")
    broken.module = "no_module_of_this_name"
    records = run_cases([broken], [coin()], 1.0, 0.2, lambda line: None)
    assert [record["status"] for record in records] == ["crashed"]


def test_means_name_how_many_models_they_are_of() -> None:
    runs = [record_of(mode, coin(name=mode)) | {"peer": "x"} for mode in ("answers", "raises")]
    table = make_tables(runs)[0]
    assert table.rows == (("coins (2)", "0.1250 (1/2)"),)


def test_images_are_compared_with_truth_and_exact_sums() -> None:
    scene = make_scene(20, 16)
    (case,) = scene_cases([scene])
    said = {"answer": Answer(labels=scene.truth), "seconds": 0.1, "build": 0.0}
    record = make_record(Fake("answers"), case, said)
    assert record["mean_iou"] == record["accuracy"] == 1.0
    assert record["agreement"] == pytest.approx((case.reference == scene.truth).mean())


def test_generated_models_are_seeded_and_feasible() -> None:
    models, again = (generated_models(True, 1) for _ in range(2))
    assert len({(m.suite, m.name) for m in models}) == len(models)
    for model, other in zip(models, again, strict=True):
        assert model.make() == other.make()
        assert model.reference is not None and np.isfinite(model.reference().log_z)
