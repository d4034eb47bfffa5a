"""`fit_weights` and `tie`: ordinary fields whose terms share weights, of every kind."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.terms.registry import TERMS
from proxfield.errors import InputError, UnsupportedError
from proxfield.learn import LOSSES, fit_weights, marginal_loss, prepare, tie
from proxfield.learn.weights import JointFields, is_tabular

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
from examples import NOT_EXPECTED, SOFT

EXAMPLES = {name: e for name, e in {**SOFT, **NOT_EXPECTED}.items() if name != "all-observed"}


def test_every_kind_of_term_has_an_example() -> None:
    shown = {kind for example in EXAMPLES.values() for kind in example.field().kinds}
    assert shown == set(TERMS)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_adjoint_of_every_term(name: str, loss: str) -> None:
    field, rng = EXAMPLES[name].field(), np.random.default_rng(3)
    labels = (rng.random(field.n_vars) * field.cardinalities).astype(int)
    share = [f"w{k}" for k in range(len(field.terms))]
    joint = JointFields([field], [labels], share)
    weights = {name: rng.uniform(0.3, 1.2, 1) for name in share}
    _, gradient = marginal_loss(joint, weights, loss)
    h = 1e-5
    for key in share:
        above = marginal_loss(joint, {**weights, key: weights[key] + h}, loss)[0]
        below = marginal_loss(joint, {**weights, key: weights[key] - h}, loss)[0]
        expected = (above - below) / (2 * h)
        assert float(gradient[key][0]) == pytest.approx(expected, rel=1e-5, abs=1e-6)


TABULAR = [name for name, e in EXAMPLES.items() if all(map(is_tabular, e.field().terms))]


@pytest.mark.parametrize("name", TABULAR)
def test_compiled_kernels_agree_with_terms(name: str) -> None:
    field, rng = EXAMPLES[name].field(), np.random.default_rng(3)
    labels = (rng.random(field.n_vars) * field.cardinalities).astype(int)
    share = [f"w{k % 2}" for k in range(len(field.terms))]
    s = prepare([tie(field, share, labels)])
    weights = {key: rng.uniform(0.3, 1.2, 1) for key in dict.fromkeys(share)}
    value, gradient = marginal_loss(JointFields([field], [labels], share), weights)
    known = {key: weights[key] for key in s.shapes}
    found, slopes = marginal_loss(s, known)
    assert found == pytest.approx(value, rel=1e-9)
    for key in known:
        np.testing.assert_allclose(slopes[key], gradient[key], rtol=1e-6, atol=1e-8)


def noisy(seed: int, coupling: pf.Term | None = None) -> tuple[pf.Field, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.repeat(rng.integers(0, 2, 20), 5)
    energies = np.stack([truth, 1 - truth], axis=1) + rng.normal(size=(100, 2))
    edges = [[i, i + 1] for i in range(99)]
    return pf.Field(100, 2, [pf.Unary(energies), coupling or pf.Potts(edges, 1.0)]), truth


@pytest.mark.parametrize("method", ["pseudo", "chains", "marginals"])
def test_a_potts_weight(method: str) -> None:
    fields, truth = zip(*(noisy(seed) for seed in range(6)), strict=True)
    weights = fit_weights(fields, truth, [None, "smooth"], method=method)
    assert list(weights) == ["smooth"]
    assert weights["smooth"] > 0.5
    if method == "pseudo":  # no run is shorter than five: given both neighbors, all is certain
        assert weights["smooth"] > 5.0
        return
    assert weights["smooth"] < 3.0
    test, labels = noisy(99)
    learned = pf.Field(100, 2, [test.terms[0], pf.Potts(test.terms[1].edges, weights["smooth"])])
    alone = pf.Field(100, 2, [test.terms[0]])
    right = [(pf.infer(f, "sweep").labels == labels).mean() for f in (learned, alone)]
    assert right[0] > right[1] + 0.05


def test_weights_of_terms_without_tables() -> None:
    points = np.arange(100.0)[:, None]
    dense = pf.Gaussian(points / 2.0, 2.0)
    fields, truth = zip(*(noisy(seed, dense) for seed in range(3)), strict=True)
    told = []
    weights = fit_weights(fields, truth, ["unary", "dense"], max_iters=8, callback=told.append)
    assert told[-1].objective < 0.8 * told[0].objective or told[-1].objective < 80
    start = JointFields(fields, truth, ["unary", "dense"])
    one = marginal_loss(start, {"unary": np.ones(1), "dense": np.ones(1)})[0]
    end = marginal_loss(start, {k: np.array([v]) for k, v in weights.items()})[0]
    assert end < one
    with pytest.raises(InputError, match="step=2"):
        fit_weights(fields, truth, ["unary", "dense"], step=2)
    with pytest.raises(UnsupportedError, match="Gaussian can only be learned with"):
        fit_weights(fields, truth, ["unary", "dense"], method="pseudo")
    with pytest.raises(UnsupportedError, match="can't be expressed as tables"):
        tie(fields[0], [None, "dense"], truth[0])


def test_bad_input() -> None:
    field, truth = noisy(0)
    with pytest.raises(InputError, match="expected 2 names, one per term"):
        fit_weights([field], [truth], ["smooth"])
    with pytest.raises(InputError, match="1 fields but 2 labellings"):
        fit_weights([field], [truth, truth], [None, "smooth"])
    with pytest.raises(InputError, match="no fields"):
        fit_weights([], [], [])
    with pytest.raises(InputError, match="start has 'rough'"):
        fit_weights([field], [truth], [None, "smooth"], start={"rough": 1.0})
    with pytest.raises(InputError, match="labels: variable 0 has"):
        fit_weights([field], [truth + 5], [None, "smooth"])
    hard = pf.Field(2, 2, [pf.Pairwise([[0, 1]], [[0.0, np.inf], [0.0, 0.0]])])
    with pytest.raises(InputError, match="forbids configurations"):
        fit_weights([hard], [[0, 0]], ["w"])


def test_a_term_without_factors_keeps_its_weight() -> None:
    terms = [pf.Unary(np.eye(4)[:, :2]), pf.Potts(np.zeros((0, 2), dtype=int), 1.0)]
    field = pf.Field(4, 2, terms)
    weights = fit_weights([field], [[0, 1, 0, 1]], ["unary", "smooth"], start={"smooth": 0.5})
    assert set(weights) == {"unary", "smooth"} and weights["smooth"] == 0.5


@pytest.mark.parametrize("value", ["a", np.nan, None])
def test_bad_starts(value: object) -> None:
    field = pf.Field(2, 2, [pf.Unary(np.eye(2))])
    with pytest.raises(InputError, match=r"start of 'unary' is .*, expected a number"):
        fit_weights([field], [[0, 1]], ["unary"], start={"unary": value})  # type: ignore[dict-item]
