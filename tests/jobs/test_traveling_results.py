"""Results that are pickled or saved without the terms of their fields."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import InputError, UnsupportedError
from proxfield.generate import grid


@pytest.fixture(scope="module")
def dense() -> pf.DenseResult:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)
    crf = pf.DenseCRF(image, rng.dirichlet(np.ones(5), (40, 50)))
    return crf.infer(max_iters=3)


def test_a_pickle_is_hardly_larger_than_the_marginals(dense: pf.DenseResult) -> None:
    size = len(pickle.dumps(dense))
    assert size < dense.q.nbytes + 5000
    whole = copy.copy(dense)
    whole.with_field = True
    assert len(pickle.dumps(whole)) > 2 * size
    assert pickle.loads(pickle.dumps(whole)).field == dense.field


def test_what_a_pickle_keeps(dense: pf.DenseResult) -> None:
    again = pickle.loads(pickle.dumps(dense))
    assert type(again) is pf.DenseResult and not again.field.has_terms
    assert again.q.tobytes() == dense.q.tobytes()
    assert np.array_equal(again.probabilities, dense.probabilities)
    assert np.array_equal(again.labels, dense.labels)
    assert (again.free_energy, again.log_z_bound) == (dense.free_energy, dense.log_z_bound)
    assert (again.status, again.iterations) == (dense.status, dense.iterations)
    assert again.trace.to_csv() == dense.trace.to_csv()
    assert np.array_equal(again.sample(2), dense.sample(2))
    assert "40×50" in repr(again.field)


def test_what_needs_terms_says_so() -> None:
    field = grid(3, 4, seed=1)
    result = pf.infer(field, "fixed")
    again = pickle.loads(pickle.dumps(result))
    for name in ("map_labels", "expected_energy", "map_energy"):
        with pytest.raises(UnsupportedError, match="without the terms of its field"):
            getattr(again, name)
    again.field = field
    assert again.map_energy == result.map_energy  # computed from the field that was given back
    known = pickle.loads(pickle.dumps(result))  # map_energy was computed before
    assert known.map_energy == result.map_energy
    assert "not here" in repr(pickle.loads(pickle.dumps(again)).field)


def test_a_pickle_serves_as_a_start() -> None:
    field = grid(3, 4, seed=1)
    first = pf.infer(field, "fixed", max_iters=3)
    again = pickle.loads(pickle.dumps(first))
    one, two = (pf.infer(field, "fixed", init=start, max_iters=5) for start in (first, again))
    assert one.q.tobytes() == two.q.tobytes()


def test_a_bound_that_is_none_stays_none() -> None:
    points = np.arange(6.0)[:, None]
    field = pf.Field(6, n_labels=2).add(pf.Gaussian(points, weight=-1.0))
    result = pf.infer(field, "full-parallel", max_iters=2)
    again = pickle.loads(pickle.dumps(result))
    assert again.log_z_bound == result.log_z_bound


def test_copies_keep_everything() -> None:
    result = pf.infer(grid(3, 4), "fixed")
    for again in (copy.copy(result), copy.deepcopy(result)):
        assert again.field == result.field and again.map_energy == result.map_energy


def test_mixed_labels_and_evidence_travel() -> None:
    field = pf.Field([2, 3, 2], names=["a", "b", "c"]).add(pf.Potts([[0, 2]], 0.5))
    result = pf.infer(field.condition({"a": 1}), "fixed")
    again = pickle.loads(pickle.dumps(result))
    assert again["a", 1] == 1.0 and again.field.evidence.tolist() == [1, -1, -1]
    same = pickle.loads(pickle.dumps(field))
    assert same == field and same.evidence.tolist() == [-1, -1, -1]


def test_saving_without_the_field(tmp_path: Path, dense: pf.DenseResult) -> None:
    whole, small = tmp_path / "whole.npz", tmp_path / "small.npz"
    dense.save(whole)
    dense.save(small, with_field=False)
    assert small.stat().st_size < whole.stat().st_size
    assert pf.Result.load(whole).field == dense.field
    again = pf.DenseResult.load(small)
    assert again.q.tobytes() == dense.q.tobytes() and not again.field.has_terms
    assert again.log_z_bound == dense.log_z_bound
    assert again.trace.to_csv() == dense.trace.to_csv()
    again.save(small)  # what isn't there can't be written
    assert not pf.DenseResult.load(small).field.has_terms
    with pytest.raises(InputError, match="expected a Field"):
        pf.Field.load(small)
