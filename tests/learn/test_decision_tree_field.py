"""`DecisionTreeField`: its energy, what it learns, files and errors."""

from dataclasses import replace

import numpy as np
import pytest
import reference

import proxfield as pf
from proxfield.errors import InputError
from proxfield.learn.decision_tree_field import DecisionTreeField
from proxfield.learn.estimator import NotFittedError, write_arrays
from proxfield.learn.trees import HoledImage

SMALL = {"unary_leaves": 6, "pair_leaves": 3, "features": 40, "reach": 5, "max_iters": 6}
OFFSETS = [[0, 1], [1, 0], [2, -1]]


def stripes(n=12, shape=(12, 14), n_labels=2, seed=0, noise=0.05):
    """Diagonal stripes of random phase and direction, with some noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    out = []
    for _ in range(n):
        along = columns if rng.random() < 0.5 else columns + rows
        image = (along + rng.integers(0, 12)) // 3 % n_labels
        flips = rng.random(shape) < noise
        out.append(np.where(flips, rng.integers(0, n_labels, shape), image))
    return np.array(out)


def hole(shape=(12, 14)):
    mask = np.zeros(shape, dtype=bool)
    mask[4:8, 5:10] = True
    return mask


@pytest.fixture(scope="module")
def fitted():
    return DecisionTreeField(OFFSETS, **SMALL).fit(stripes(), hole())


def test_the_energy_is_that_of_the_trees(fitted):
    image, mask = stripes(1, seed=5)[0], hole()
    field = fitted.field(image, mask)
    forest, tables = fitted.forest_, fitted.parameters_
    holed = HoledImage(image, mask, forest.n_labels, forest.reach)
    rng = np.random.default_rng(1)
    differences = []
    for _ in range(4):
        labels = np.where(mask, rng.integers(0, 2, mask.shape), image)
        energy = 0.0
        for r, c in zip(*np.nonzero(mask), strict=True):
            seen = holed.features(np.array([r]), np.array([c]), forest.features)
            energy += tables["unary"][reference.apply(forest.unary, seen)[0], labels[r, c]]
        for k, (down, right) in enumerate(OFFSETS):
            for r in range(mask.shape[0]):
                for c in range(mask.shape[1]):
                    i, j = r + down, c + right
                    if not (0 <= i < mask.shape[0] and 0 <= j < mask.shape[1]):
                        continue
                    if not (mask[r, c] or mask[i, j]):
                        continue
                    seen = holed.features(np.array([r]), np.array([c]), forest.features)
                    table = forest.starts[k] + reference.apply(forest.pairs[k], seen)[0]
                    energy += tables["pairs"][table, labels[r, c], labels[i, j]]
        differences.append(field.energy(labels.ravel()) - energy)
    np.testing.assert_allclose(differences, differences[0], atol=1e-9)
    np.testing.assert_allclose(differences[0], 0, atol=1e-9)


def test_holes_are_completed_and_the_rest_stays(fitted):
    images, mask = stripes(6, seed=9), hole()
    found = fitted.predict(images, mask)
    assert found.shape == images.shape
    np.testing.assert_array_equal(found[:, ~mask], images[:, ~mask])
    assert fitted.score(images, mask) > 0.75
    assert fitted.evaluate(images, mask)["log_likelihood"] > np.log(0.5)


def test_what_is_hidden_changes_nothing(fitted):
    images, mask = stripes(2, seed=9), hole()
    covered = np.where(mask, 1 - images, images)
    np.testing.assert_array_equal(fitted.predict(images, mask), fitted.predict(covered, mask))
    negative = np.where(mask, -1, images)
    np.testing.assert_array_equal(fitted.predict(images, mask), fitted.predict(negative))


def test_marginals_are_probabilities(fitted):
    images, mask = stripes(2, seed=3), hole()
    q = fitted.predict_proba(images, mask)
    assert q.shape == (*images.shape, 2)
    np.testing.assert_allclose(q.sum(axis=-1), 1)
    assert (q[:, ~mask].max(axis=-1) == 1).all()


def test_pairs_help():
    train, test, mask = stripes(30), stripes(20, seed=8), hole()
    pairs = DecisionTreeField(**{**SMALL, "max_iters": 15, "l2": 10.0}).fit(train, mask)
    alone = DecisionTreeField([], **SMALL).fit(train, mask)
    assert len(alone.parameters_["pairs"]) == 0
    gain = (
        pairs.evaluate(test, mask)["log_likelihood"] - alone.evaluate(test, mask)["log_likelihood"]
    )
    assert gain > 0.02


@pytest.mark.parametrize("method", ["marginals", "chains", "pseudo"])
def test_every_method_learns_and_is_reproducible(method):
    images, mask = stripes(8), hole()
    settings = {**SMALL, "max_iters": 8, "method": method}
    first = DecisionTreeField(OFFSETS, **settings).fit(images, mask)
    second = DecisionTreeField(OFFSETS, **settings).fit(images, mask)
    for name, value in first.parameters_.items():
        np.testing.assert_array_equal(value, second.parameters_[name])
    assert first.score(images, mask) > 0.6
    assert np.abs(first.parameters_["pairs"]).max() > 0.01


def test_several_labels_and_shapes():
    one, two = stripes(5, n_labels=3), stripes(5, (15, 11), n_labels=3, seed=2)
    masks = [hole()] * 5 + [hole((15, 11))] * 5
    model = DecisionTreeField(OFFSETS, **SMALL).fit([*one, *two], masks)
    assert model.n_labels_ == 3
    found = model.predict([one[0], two[0]], [masks[0], masks[-1]])
    assert isinstance(found, list)
    assert [f.shape for f in found] == [(12, 14), (15, 11)]
    assert model.score([*one, *two], masks) > 0.5


def test_rules_agree_after_learning_through_marginals(fitted):
    images, mask = stripes(4, seed=4), hole()
    found = [
        np.asarray(fitted.infer(images[0], mask, rule=rule).q)
        for rule in ("sweep", "fixed", "adaptive", "momentum", "adam")
    ]
    for q in found[1:]:
        np.testing.assert_allclose(q, found[0], atol=1e-3)


# ---- scikit-learn's conventions and files ----


def test_parameters_are_those_of_the_constructor():
    model = DecisionTreeField(pair_leaves=5)
    assert model.get_params()["pair_leaves"] == 5
    assert model.set_params(l2=2.0).l2 == 2.0
    assert repr(DecisionTreeField(**model.get_params())) == repr(model)
    with pytest.raises(InputError, match="no parameter 'leaves'"):
        model.set_params(leaves=3)


def test_grid_search_works():
    search = pytest.importorskip("sklearn.model_selection")
    images, masks = stripes(6), np.repeat(hole()[None], 6, axis=0)
    found = search.GridSearchCV(
        DecisionTreeField(OFFSETS, **SMALL), {"pair_leaves": [1, 2]}, cv=2
    ).fit(images, masks)
    assert found.best_score_ > 0.5


def test_models_come_back_from_files(fitted, tmp_path):
    fitted.save(tmp_path / "model.npz")
    loaded = DecisionTreeField.load(tmp_path / "model.npz")
    images, mask = stripes(2, seed=6), hole()
    np.testing.assert_array_equal(
        loaded.predict_proba(images, mask), fitted.predict_proba(images, mask)
    )
    assert "data digest" in loaded.card()
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "model.npz").read_bytes()


def test_damaged_files_are_refused(fitted, tmp_path):
    path = tmp_path / "model.npz"
    fitted.save(path)
    content = path.read_bytes()
    for damaged in (b"", b"nothing", content[: len(content) // 2], content[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(InputError):
            DecisionTreeField.load(path)


def break_cycle(arrays):
    arrays["children"][0] = [0, 1]


def break_feature(arrays):
    arrays["tests"][0, 0] = 40


def break_nodes(arrays):
    arrays["nodes"][0] += 1


def break_parameters(arrays):
    arrays["parameters/pairs"] = arrays["parameters/pairs"][:-1]


@pytest.mark.parametrize("damage", [break_cycle, break_feature, break_nodes, break_parameters])
def test_trees_of_files_are_checked(fitted, damage):
    arrays = {name: value.copy() for name, value in fitted.to_arrays().items()}
    damage(arrays)
    other = DecisionTreeField(OFFSETS, **SMALL)
    other.n_labels_ = 2
    with pytest.raises(InputError, match="damaged"):
        other.from_arrays(arrays)


def test_errors_of_damaged_files_name_them(fitted, tmp_path):
    path = tmp_path / "model.npz"
    header = {"params": fitted.get_params(), "fitted": {"n_labels_": 2, "about_": {}}}

    def damaged(arrays=None, **fit):
        given = {**header, "fitted": {**header["fitted"], **fit}}
        write_arrays(path, "DecisionTreeField", given, {**fitted.to_arrays(), **(arrays or {})})
        with pytest.raises(InputError, match=r"model\.npz: .*damaged"):
            DecisionTreeField.load(path)

    damaged({"tests": fitted.to_arrays()["tests"][:-1]})
    damaged({"tests": np.zeros((0, 2), dtype=int), "nodes": np.zeros(4, dtype=int)})
    damaged({"features": 10**6 * fitted.forest_.features})
    damaged(about_=3)


def test_a_failed_fit_leaves_the_model_as_it_was(monkeypatch):
    model = DecisionTreeField(OFFSETS, **SMALL).fit(stripes(4), hole())
    before = model.predict_proba(stripes(1), hole())

    def fail(*_, **__):
        raise RuntimeError

    monkeypatch.setattr("proxfield.learn.decision_tree_field.fit_marginals", fail)
    with pytest.raises(RuntimeError):
        model.set_params(pair_leaves=2).fit(stripes(4, n_labels=3), hole())
    np.testing.assert_array_equal(model.predict_proba(stripes(1), hole()), before)


def test_an_interrupt_ends_both_methods():
    told = []

    def interrupt(progress):
        told.append(progress.method)
        if len(told) == 2:
            raise KeyboardInterrupt

    settings = {**SMALL, "method": "chains"}
    model = DecisionTreeField(OFFSETS, **settings).fit(stripes(4), hole(), callback=interrupt)
    assert told == ["pseudo", "pseudo"] and model.parameters_["pairs"].any()


def test_an_interrupt_ends_predictions(fitted, monkeypatch):
    calls = []

    def interrupted(*args, **options):
        calls.append(1)
        return replace(pf.infer(*args, **options), status=pf.Status.INTERRUPTED)

    monkeypatch.setattr("proxfield.learn.decision_tree_field.infer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted.predict(stripes(3), hole())
    assert len(calls) == 1


@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (3, 4), (1, 1)])
def test_images_smaller_than_the_largest_offset(fitted, shape):
    image, mask = np.zeros(shape, dtype=int), np.ones(shape, dtype=bool)
    model = DecisionTreeField(**{**SMALL, "offsets": None}).fit([image, 1 - image], [mask, mask])
    assert model.predict([image], [mask])[0].shape == shape
    assert model.field(image, mask).n_vars == image.size


# ---- bad input ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "magic"}, "method='magic', expected one of"),
        ({"unary_leaves": 0}, "unary_leaves=0"),
        ({"features": 500}, "expected at most 120"),
        ({"offsets": [(0, 1), (0, -1)]}, "with its opposite"),
        ({"offsets": [(0, 0)]}, r"\(0, 0\)"),
        ({"offsets": [1, 2]}, "pairs of whole numbers"),
        ({"n_labels": 1}, "n_labels=1"),
        ({"n_labels": 300}, "expected 2 to"),
        ({"l2": -1.0}, "l2=-1.0"),
        ({"max_iters": -1}, "max_iters=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"rule": "magic"}, "unknown rule"),
        ({"infer_iters": 1.5}, "infer_iters=1.5"),
    ],
)
def test_bad_settings_are_refused_before_trees_are_grown(settings, message, monkeypatch):
    monkeypatch.setattr("proxfield.learn.decision_tree_field.grow_forest", None)
    with pytest.raises(InputError, match=message):
        DecisionTreeField(**{**SMALL, **settings}).fit(stripes(2), hole())


def test_bad_images_are_refused(fitted):
    images, mask = stripes(2), hole()
    with pytest.raises(InputError, match="no masks"):
        DecisionTreeField(**SMALL).fit(images)
    with pytest.raises(InputError, match="no pixel is hidden"):
        DecisionTreeField(**SMALL).fit(images, np.zeros_like(mask))
    with pytest.raises(InputError, match="the label 7"):
        fitted.predict(np.where(mask, images, 7), mask)
    with pytest.raises(InputError, match="no images"):
        fitted.predict([], mask)
    with pytest.raises(NotFittedError, match="isn't fitted yet"):
        DecisionTreeField().predict(images, mask)
    with pytest.raises(InputError, match="masks are a bool, expected an array"):
        DecisionTreeField(**SMALL).fit(images, True)
    with pytest.raises(InputError, match="images are a int, expected an array"):
        DecisionTreeField(**SMALL).fit(5, mask)
    with pytest.raises(InputError, match="images: number 0 has rows of different lengths"):
        DecisionTreeField(**SMALL).fit([[[0, 1], [1]]], [np.ones((2, 2), bool)])
    with pytest.raises(InputError, match="images are a int, expected an array"):
        fitted.predict(5)
