"""Results: labels, rounding, samples, summaries, statuses."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

import proxfield as pf
from helpers import VARIANTS, Chain, energies, infer, random_field, random_marginals, repulsive_grid
from proxfield.core.engines import compile_program
from proxfield.core.solve.rounding import Groups
from proxfield.result import Result, Status, Trace, one_hot


def result_at(field: pf.Field, q: np.ndarray) -> Result:
    """A result that stands at given marginals."""
    return pf.infer(field, "adhoc", init=q, max_iters=0)


def test_shapes_of_marginals() -> None:
    square = pf.infer(pf.Field(3, n_labels=2))
    assert square.marginals.shape == (3, 2)
    ragged = pf.infer(pf.Field([2, 3]))
    assert [row.shape for row in ragged.marginals] == [(2,), (3,)]
    assert pf.infer(pf.Field([])).marginals == []


def test_labels_are_the_most_probable_ones() -> None:
    field = pf.Field([2, 3, 2])
    result = result_at(field, np.array([0.4, 0.6, 0.2, 0.3, 0.5, 0.9, 0.1]))
    assert result.labels.tolist() == [1, 2, 0]
    square = result_at(pf.Field(2, n_labels=3), np.array([0.4, 0.6, 0.0, 0.2, 0.3, 0.5]))
    assert square.labels.tolist() == [1, 2]


@pytest.mark.parametrize("seed", range(60))
def test_rounding_never_raises_the_expected_energy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    field = random_field(rng)
    if seed % 3 == 0:
        field = field.condition({0: 0})
    result = result_at(field, random_marginals(field.layout, rng))
    assert result.map_energy <= result.expected_energy + 1e-9
    assert result.map_energy == field.energy(result.map_labels)
    assert result.map_energy >= energies(field).min() - 1e-9
    for v, c in enumerate(field.cardinalities):  # no single change helps
        if field.evidence[v] < 0:
            for label in range(c):
                other = result.map_labels.copy()
                other[v] = label
                assert field.energy(other) >= result.map_energy - 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_rounding_after_inference(variant: str) -> None:
    result = infer(repulsive_grid(), variant, max_iters=30, init="random")
    assert result.map_energy <= result.expected_energy + 1e-9


def test_rounding_fields_with_terms_of_ones_own() -> None:
    """In groups: E(map_labels) ≤ E(q), where plain rounding may be worse."""
    field = pf.Field(3, n_labels=2, terms=[Chain(1.0), pf.Unary([[0, 1], [1, 0], [0, 1]])])
    for seed in range(50):
        q = np.random.default_rng(seed).dirichlet([0.3, 0.3], size=3)
        result = pf.infer(field, "adhoc", init=q, max_iters=0)
        assert result.map_energy <= result.expected_energy + 1e-12


@pytest.mark.parametrize("seed", range(30))
def test_rounding_dense_fields(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_labels = int(rng.integers(2, 12)), int(rng.integers(2, 5))
    field = pf.Field(n, n_labels).add(pf.Unary(rng.normal(size=(n, n_labels))))
    weight = float(3 * rng.normal())
    attracts_itself = bool(weight > 0 and rng.integers(2))  # else −F is no bound, nor E(q) one
    field.add(pf.Gaussian(rng.normal(size=(n, 2)), weight, self_message=attracts_itself))
    q = rng.dirichlet(np.full(n_labels, 0.3), size=n)
    result = pf.infer(field, "fixed", init=q, max_iters=0)
    assert result.map_energy <= result.expected_energy + 1e-9


def test_groups_are_halved_and_improved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two variables that repel each other: given their cheapest labels at once, both take one."""
    field = pf.Field(2, 2).add(pf.Gaussian([[0.0], [0.0]], -2.0))
    groups = Groups(compile_program(field.lower(), "reference"))
    equal = np.array([0, 0])
    assert groups.improve(equal, field.energy(equal)).tolist() in ([0, 1], [1, 0])
    monkeypatch.setattr(Groups, "improve", lambda self, labels, e: labels)
    q = np.array([0.6, 0.4, 0.6, 0.4])
    assert field.energy(groups.round(q)) <= groups.energy(q)


def test_samples_follow_q() -> None:
    field = pf.Field([2, 3, 1, 4])
    q = np.array([0.3, 0.7, 0.5, 0.0, 0.5, 1.0, 0.1, 0.2, 0.3, 0.4])
    result = result_at(field, q)
    count = 20_000
    samples = result.sample(count, seed=5)
    assert samples.shape == (count, 4)
    for v, row in enumerate(result.marginals):
        found = np.bincount(samples[:, v], minlength=len(row)) / count
        assert np.abs(found - row).max() < 5 * np.sqrt(0.25 / count)
    assert not (samples[:, 1] == 1).any()
    joint = ((samples[:, 0] == 1) & (samples[:, 3] == 3)).mean()
    assert joint == pytest.approx(0.7 * 0.4, abs=5 * np.sqrt(0.25 / count))


def test_samples_follow_the_seed() -> None:
    result = pf.infer(pf.Field(20, n_labels=3))
    np.testing.assert_array_equal(result.sample(3, seed=1), result.sample(3, seed=1))
    assert (result.sample(3, seed=1) != result.sample(3, seed=2)).any()
    assert result.sample().shape == (1, 20)


def test_summary_is_plain_and_complete() -> None:
    result = pf.infer(repulsive_grid(), "momentum", gamma=0.9, max_iters=5)
    summary = result.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["n_vars"] == 36
    assert summary["rule"] == "momentum"
    assert summary["params"]["gamma"] == 0.9
    assert summary["status"] in ("max-iters", "oscillating")
    assert summary["message"] == result.status.value
    assert summary["iterations"] == 5
    assert summary["free_energy"] == -summary["log_z_bound"] == result.free_energy
    assert summary["map_energy"] == result.map_energy


def test_summary_of_a_custom_rule_leaves_the_function_out() -> None:
    result = pf.infer(pf.Field(2, n_labels=2), pf.CustomRule(lambda theta, q, g, memory: g))
    assert result.summary()["params"] == {"step": 1.0}
    json.dumps(result.summary())


def test_trace_csv_reads_back() -> None:
    result = pf.infer(repulsive_grid(), "fixed", max_iters=9)
    table = list(csv.reader(io.StringIO(result.trace.to_csv())))
    assert table[0] == ["iteration", "seconds", "free_energy", "change"]
    assert len(table) == 1 + 10
    columns = np.array(table[1:], dtype=np.float64).T
    np.testing.assert_array_equal(columns[0], result.trace.iteration)
    np.testing.assert_array_equal(columns[2], result.trace.free_energy)
    np.testing.assert_array_equal(columns[3], result.trace.change)
    np.testing.assert_allclose(columns[1], result.trace.seconds, atol=1e-9)


def test_empty_trace() -> None:
    assert len(Trace()) == 0
    assert Trace().to_csv().count("\n") == 1


def test_repr_says_what_happened() -> None:
    text = repr(pf.infer(repulsive_grid(), "fixed", max_iters=3))
    assert text.startswith("Result(max-iters after 3 iterations of fixed, ")
    assert "free energy" in text


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (Status.MAX_ITERS, "raise max_iters"),
        (Status.BUDGET, "raise budget"),
        (Status.OSCILLATING, "use rule='fixed'"),
        (Status.INTERRUPTED, "continue with init=result"),
        (Status.NO_FEASIBLE, "check the zeros"),
        (Status.INFEASIBLE, "contradict"),
    ],
)
def test_statuses_say_what_to_do(status: Status, remedy: str) -> None:
    assert remedy in status.value
    assert not status.converged


def test_status_names() -> None:
    assert Status.CONVERGED.converged
    assert {s.label for s in Status} == {
        "converged", "saddle", "overshot", "max-iters", "budget", "oscillating", "interrupted",
        "stopped", "settled", "diverged", "no-feasible", "infeasible",
    }  # fmt: skip


def test_bound_and_expected_energy() -> None:
    result = pf.infer(repulsive_grid(), "fixed")
    assert result.log_z_bound == -result.free_energy
    assert result.expected_energy == pytest.approx(result.field.expected_energy(result.q))


def test_one_hot() -> None:
    offsets = pf.Field([2, 3]).layout.offsets
    assert one_hot(offsets, np.array([1, 2])).tolist() == [0, 1, 0, 0, 1]
