"""`CRF`: its energy, its conventions, and what it says about bad input."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import proxfield as pf
from proxfield.errors import InputError, ProxfieldError
from proxfield.learn import CRF, METHODS, FitProgress, Graph
from proxfield.learn.estimator import NotFittedError

EDGES = np.array([[i, i + 1] for i in range(11)])


def make_data(
    count: int = 12, seed: int = 0, n_labels: int = 2, **more: Any
) -> tuple[list[Graph], list[np.ndarray]]:
    """Chains whose labels come in runs, with noisy features."""
    rng = np.random.default_rng(seed)
    truth = [np.repeat(rng.integers(0, n_labels, 3), 4) for _ in range(count)]
    X = [
        Graph(np.eye(n_labels)[y] + rng.normal(scale=0.8, size=(12, n_labels)), EDGES, **more)
        for y in truth
    ]
    return X, truth


def energy_of(model: CRF, graph: Graph, x: np.ndarray) -> float:
    """E = Σ_i x_i·U[:, y_i] + Σ_e Σ_f x_ef V_f[y_i, y_j], written out."""
    p, total = model.parameters_, 0.0
    for i, label in enumerate(x):
        if model.unary == "table":
            total += p["unary"][graph.nodes[i], label]
        else:
            total += graph.nodes[i] @ p["unary"][:, label]
        total += p["intercept"][0, label]
    for e, (i, j) in enumerate(graph.edges):
        if graph.edge_features is not None:
            features = graph.edge_features[e]
        else:
            features = np.zeros(model.n_edge_features_)
            features[0 if graph.edge_index is None else graph.edge_index[e]] = 1.0
        for f, value in enumerate(features):
            v = p["pairwise"][f]
            if model.pairwise == "potts":
                total += value * v * (x[i] != x[j])
            elif model.pairwise == "ising":
                total += value * v * (1 if x[i] == x[j] else -1)
            else:
                total += value * v[x[i], x[j]]
    return float(total)


@pytest.mark.parametrize("edges", ["plain", "features", "index"])
@pytest.mark.parametrize(
    ("unary", "pairwise"), list(product(["linear", "table"], ["potts", "ising", "table"]))
)
def test_energy(unary: str, pairwise: str, edges: str) -> None:
    rng = np.random.default_rng(0)
    more: dict[str, Any] = {}
    if edges == "features":
        more = {"edge_features": rng.random((11, 3))}
    if edges == "index":
        more = {"edge_index": rng.integers(0, 3, 11)}
    X, y = make_data(n_labels=2 if pairwise == "ising" else 3, **more)
    if unary == "table":
        X = [Graph(g.nodes.argmax(axis=1), g.edges, **more) for g in X]
    model = CRF(unary=unary, pairwise=pairwise, method="pseudo").fit(X, y)
    field = model.field(X[0])
    assert isinstance(field, pf.Field)
    for _ in range(4):
        x = rng.integers(0, model.n_labels_, 12)
        assert field.energy(x) == pytest.approx(energy_of(model, X[0], x))


@pytest.mark.parametrize("method", ["chains", "marginals"])
def test_edges_help(method: str) -> None:
    X, y = make_data(60, n_labels=3)
    Xt, yt = make_data(30, seed=1, n_labels=3)
    alone = CRF(pairwise="none", method="pseudo", rule="sweep").fit(X, y).score(Xt, yt)
    model = CRF(method=method, rule="sweep").fit(X, y)
    assert model.score(Xt, yt) > alone + 0.03
    assert float(model.parameters_["pairwise"][0]) > 0.3


def test_rules_agree_on_what_is_learned_through_marginals() -> None:
    rng = np.random.default_rng(0)
    y = [np.repeat(rng.integers(0, 2, 8), 5) for _ in range(30)]
    chain = [[i, i + 1] for i in range(39)]
    X = [Graph(labels[:, None] + rng.normal(size=(40, 1)), chain) for labels in y]
    alone = CRF(pairwise="none", method="pseudo").fit(X[:15], y[:15]).score(X[15:], y[15:])
    early = CRF(n_updates=10, rule="adam").fit(X[:15], y[:15]).score(X[15:], y[15:])
    model = CRF().fit(X[:15], y[:15])
    scores = [model.set_params(rule=r).score(X[15:], y[15:]) for r in ("auto", "sweep", "adam")]
    assert np.ptp(scores) < 0.02
    assert min(scores) > alone + 0.03
    assert min(scores) > early  # ten updates aren't what adam converges to


def test_predictions_have_the_shapes_of_instances() -> None:
    X, y = make_data(n_labels=3)
    model = CRF(method="pseudo", rule="sweep").fit(X, y)
    q = model.predict_proba(X[:2])
    assert [a.shape for a in q] == [(12, 3)] * 2
    np.testing.assert_allclose(q[0].sum(axis=1), 1.0)
    assert (model.predict(X[:2])[1] == q[1].argmax(axis=1)).all()
    assert all((a == b).all() for a, b in zip(model.marginals(X[:2]), q, strict=True))


def test_sparse_features_and_tuples() -> None:
    X, y = make_data()
    dense = CRF(method="pseudo").fit(X, y)
    as_tuples = CRF(method="pseudo").fit([(g.nodes, g.edges) for g in X], y)
    thin = [Graph(sparse.csr_matrix(g.nodes), g.edges) for g in X]
    sparsely = CRF(method="pseudo").fit(thin, y)
    for other in (as_tuples, sparsely):
        for name, value in dense.parameters_.items():
            np.testing.assert_allclose(value, other.parameters_[name], atol=1e-9)


def test_observed_labels_are_inputs_and_no_targets() -> None:
    X, y = make_data(40)
    observed = [np.where(np.arange(12) % 4 == 0, value, -1) for value in y]
    seen = [Graph(g.nodes, g.edges, observed=o) for g, o in zip(X, observed, strict=True)]
    model = CRF(method="pseudo", rule="sweep").fit(seen, y)
    labels = model.predict(seen)
    assert all((a[::4] == b[::4]).all() for a, b in zip(labels, y, strict=True))
    assert model.score(seen, y) > model.score(X, y)
    right = [(a == b)[o < 0] for a, b, o in zip(labels, y, observed, strict=True)]
    assert model.score(seen, y) == pytest.approx(np.concatenate(right).mean())


def test_unknown_labels_are_ignored() -> None:
    X, y = make_data(20)
    wrong = [np.where(np.arange(12) < 2, 1 - value, value) for value in y]
    masked = [np.where(np.arange(12) < 2, -1, value) for value in y]
    fits = [
        CRF(pairwise="none", method="pseudo").fit(X, labels).parameters_["unary"]
        for labels in (masked, [np.where(m < 0, -1, w) for m, w in zip(masked, wrong, strict=True)])
    ]
    assert (fits[0] == fits[1]).all()
    assert not (
        fits[0] == CRF(pairwise="none", method="pseudo").fit(X, wrong).parameters_["unary"]
    ).all()


def test_conventions_of_scikit_learn() -> None:
    names = [p for p in inspect.signature(CRF.__init__).parameters if p != "self"]
    model = CRF(l2=0.5, loss="dice")
    assert list(model.get_params()) == names
    assert model.get_params()["l2"] == 0.5
    assert model.set_params(l2=2.0) is model and model.l2 == 2.0
    assert repr(model) == "CRF(loss='dice', l2=2.0)"
    assert not any(name.endswith("_") for name in vars(model))
    weight = np.array([1.0, 2.0])
    assert CRF(class_weight=weight).class_weight is weight  # stored as it is
    with pytest.raises(InputError, match="no parameter 'l3'"):
        model.set_params(l3=1)
    X, y = make_data()
    before = {name: getattr(model, name) for name in names}
    assert model.set_params(method="pseudo").fit(X, y) is model
    assert {**before, "method": "pseudo"} == model.get_params()
    assert all(name in names or name.endswith("_") for name in vars(model))


def test_before_fit() -> None:
    for call in (lambda m: m.predict([]), lambda m: m.field(None), lambda m: m.save("x"), CRF.card):
        with pytest.raises(NotFittedError, match="isn't fitted yet"):
            call(CRF())


def test_scikit_learn() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn isn't installed")
    from sklearn.base import BaseEstimator, TransformerMixin, clone
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    class Scale(TransformerMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self, factor: float = 1.0) -> None:
            self.factor = factor

        def fit(self, X: Any, y: Any = None) -> Scale:
            self.fitted_ = True
            return self

        def transform(self, X: list[Graph]) -> list[Graph]:
            return [Graph(self.factor * g.nodes, g.edges) for g in X]

    X, y = make_data(24)
    model = CRF(rule="sweep", l2=0.3, max_iters=10)
    again = clone(model)
    assert again is not model and again.get_params() == model.get_params()
    scores = cross_val_score(model, X, y, cv=3)
    assert scores.shape == (3,) and scores.min() > 0.6
    search = GridSearchCV(model, {"l2": [0.1, 1000.0], "pairwise": ["potts", "none"]}, cv=3).fit(
        X, y
    )
    assert search.best_params_["pairwise"] == "potts"
    assert search.best_estimator_.score(X, y) > 0.7
    pipeline = Pipeline([("scale", Scale()), ("crf", model)]).fit(X, y)
    assert pipeline.score(X, y) == pytest.approx(clone(model).fit(X, y).score(X, y))
    nested = GridSearchCV(
        Pipeline([("scale", Scale()), ("crf", model)]), {"crf__l2": [0.1, 1.0]}, cv=2
    )
    assert nested.fit(X, y).best_score_ > 0.7
    check_is_fitted(pipeline)


def test_fits_are_reproducible() -> None:
    X, y = make_data()
    for method in METHODS:
        one, other = (CRF(method=method, max_iters=8, seed=3).fit(X, y) for _ in range(2))
        for name, value in one.parameters_.items():
            assert (value == other.parameters_[name]).all()


@pytest.mark.parametrize("method", ["chains", "marginals"])
def test_an_interrupt_ends_all_stages(method: str) -> None:
    X, y = make_data()
    told: list[FitProgress] = []

    def interrupt(progress: FitProgress) -> None:
        told.append(progress)
        if len(told) == 2:
            raise KeyboardInterrupt

    model = CRF(method=method, l2=0.1).fit(X, y, callback=interrupt)
    assert [t.method for t in told] == ["pseudo", "pseudo"]
    assert model.score(X, y) > 0.5
    again = CRF(method=method, max_iters=4).fit(X, y, callback=told.append)  # nothing is left over
    assert told[-1].method == method and again.parameters_["unary"].any()


def test_an_interrupt_between_stages_keeps_what_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    X, y = make_data()
    monkeypatch.setattr("proxfield.learn.crf.Unrolled", interrupt)
    model = CRF(max_iters=4).fit(X, y)
    assert model.parameters_["unary"].any()


def test_an_interrupt_ends_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of one instance only, with the next ones begun and a poor result among the good."""
    X, y = make_data()
    model = CRF(method="pseudo", rule="sweep").fit(X, y)
    calls = []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return replace(pf.infer(*args, **options), status=pf.Status.INTERRUPTED)

    monkeypatch.setattr("proxfield.learn.estimator.infer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.predict(X)
    assert len(calls) == 1


def test_callback_and_loss() -> None:
    X, y = make_data()
    told: list[FitProgress] = []
    CRF(loss="iou", max_iters=4).fit(X, y, callback=told.append)
    assert {t.method for t in told} == {"pseudo", "marginals"}
    with pytest.raises(InputError, match="loss='hinge', expected one of: log, dice, iou"):
        CRF(loss="hinge").fit(X, y)


NAN = np.array([[0.0, np.nan]] * 12)
ONES = np.ones((12, 2))
BAD_LABELS = [
    (lambda y: y + 7, "labels: variable 0 has .*expected 0 to 1"),
    (lambda y: y - 2, r"labels: variable \d+ has -2"),
    (lambda y: y.astype(float), "labels must be integers"),
    (lambda y: [[0, 1], [0]], "labels have rows of different lengths"),
    (lambda y: y[:5], "5 labels for 12 variables"),
]
BAD_GRAPHS = [
    (Graph(np.ones((12, 5)), EDGES), "it has 5 node features"),
    (Graph([[1.0, 2.0], [1.0]], EDGES), "nodes have rows of different lengths"),
    (Graph(ONES, [[0, 1], [2]]), "edges have rows of different lengths"),
    (Graph(NAN, EDGES), "features of block 'unary' hold NaN"),
    (Graph(np.ones((0, 2))), "has no nodes"),
    (Graph(ONES, [[0, 12]]), ".*names variable 12"),
    (Graph(ONES, [[3, 3]]), ".*a variable twice"),
    (Graph(ONES, [[0.5, 1]]), ".*must be integers"),
    (Graph(ONES, [[0, 1, 2]]), "edges have shape"),
    (Graph(None, EDGES), "nodes are a NoneType, expected an array"),
    (Graph(ONES, EDGES, np.ones((11, 1)), np.zeros(11, int)), "edges have features and an index"),
    (5, "it is a int, expected a Graph"),
]
BAD_SETS = [
    (lambda X, y: (X, y[:-1]), "3 instances but 2 labellings"),
    (lambda X, y: ([], []), "X is empty"),
    (lambda X, y: (X[0], y), "X is a Graph, expected a list"),
    (lambda X, y: (X, [value * 0 - 1 for value in y]), "no label is known"),
    (lambda X, y: ([*X[:-1], Graph(ONES, EDGES, np.ones((11, 4)))], y), "edges have no features"),
    *[
        (lambda X, y, f=f: (X, [*y[:-1], f(y[-1])]), f"instance 2: {text}")
        for f, text in BAD_LABELS
    ],
    *[(lambda X, y, g=g: ([*X[:-1], g], y), f"instance 2: {text}") for g, text in BAD_GRAPHS],
]


@pytest.mark.parametrize(("change", "message"), BAD_SETS)
def test_bad_input(change: Any, message: str) -> None:
    X, y = change(*make_data(3))
    with pytest.raises(InputError, match=message) as info:
        CRF(method="pseudo", n_labels=2).fit(X, y)
    assert "\n" not in str(info.value) and len(str(info.value)) < 200


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"unary": "deep"}, "unary='deep', expected one of: linear, table"),
        ({"pairwise": "dense"}, "pairwise='dense', expected one of"),
        ({"method": "magic"}, "method='magic', expected one of: pseudo, chains, marginals"),
        ({"rule": "magic"}, "magic"),
        ({"l2": -1.0}, "l2=-1.0, expected a number, 0 or more"),
        ({"n_labels": "two"}, "n_labels='two', expected a whole number"),
        ({"step": 1.5}, "step=1.5, expected a number above 0, at most 1"),
        ({"n_updates": 0}, "n_updates=0"),
        ({"class_weight": [1.0]}, "class_weight"),
        ({"class_weight": {0: 1.0, 1: 2.0}}, "class_weight=.*expected 2 numbers"),
        ({"class_weight": ["a", "b"]}, "class_weight=.*expected 2 numbers"),
        ({"class_weight": [0.0, 0.0, 1.0], "n_labels": 3}, "is 0 for all labels that occur"),
        ({"seed": -1}, "seed=-1, expected a whole number, 0 or more"),
        ({"loss": lambda q, _: (np.nan, 0 * q)}, "'marginals' is nan at the start"),
        ({"pairwise": "ising", "n_labels": 3}, "needs two labels"),
    ],
)
def test_bad_settings(params: dict[str, Any], message: str) -> None:
    X, y = make_data(3)
    with pytest.raises(InputError, match=message):
        CRF(**params).fit(X, y)


def test_settings_are_checked_before_anything_is_learned() -> None:
    X, y = make_data(3)
    told: list[FitProgress] = []
    for params in ({"step": 1.5}, {"n_updates": 0}, {"seed": -1, "method": "chains"}):
        with pytest.raises(InputError):
            CRF(**params).fit(X, y, callback=told.append)
    assert not told


@pytest.mark.parametrize("pairwise", ["table", "potts"])
def test_a_label_far_out_of_range_is_no_lack_of_memory_halfway(pairwise: str) -> None:
    X, y = make_data(3)
    y[0][0] = 10**8
    with pytest.raises(ProxfieldError, match="a field of 100000001 labels would need about"):
        CRF(pairwise=pairwise).fit(X, y)


def test_no_known_label_without_a_number_of_labels() -> None:
    X, y = make_data(2)
    with pytest.raises(InputError, match="no label is known"):
        CRF().fit(X, [0 * value - 1 for value in y])
    with pytest.raises(InputError, match="instance 0: labels: variable 0 has -2"):
        CRF().fit(X, [0 * value - 2 for value in y])


def test_a_device_that_is_not_there() -> None:
    X, y = make_data(3)
    with pytest.raises(ProxfieldError, match=r"torch|device"):
        CRF(device="abacus", max_iters=1).fit(X, y)


def test_prediction_says_what_does_not_fit() -> None:
    X, y = make_data(3)
    model = CRF(method="pseudo").fit(X, y)
    with pytest.raises(InputError, match="it has 3 node features, expected 2"):
        model.predict([Graph(np.ones((4, 3)))])
    with pytest.raises(InputError, match="holds 3, expected at most 0"):
        model.predict([Graph(np.ones((4, 2)), EDGES[:3], edge_index=[0, 3, 0])])
    with pytest.raises(InputError, match="instance 0: 3 labels for 12 nodes"):
        model.score(X[:1], [[0, 1, 0]])


def test_arrays_as_settings_are_shown() -> None:
    assert repr(CRF(class_weight=np.ones(2))) == "CRF(class_weight=array([1., 1.]))"
    assert repr(CRF(l2=0.5)) == "CRF(l2=0.5)"


def test_the_digest_knows_observed_labels() -> None:
    found = set()
    for observed in (None, np.full(12, -1), np.array([0] + [-1] * 11)):
        X, y = make_data(3, observed=observed)
        found.add(CRF(method="pseudo", max_iters=1).fit(X, y).about_["data digest"])
    assert len(found) == 3
