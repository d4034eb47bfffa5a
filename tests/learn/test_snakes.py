"""Snakes: pictures that are what they should be, and a CRF that reads them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from proxfield.errors import InputError
from proxfield.learn import CRF, Graph, make_snakes, snake_graph
from proxfield.learn.snakes import LENGTH, MOVES


def test_colors_lead_from_head_to_tail() -> None:
    pictures, labels = make_snakes(50, seed=3)
    for picture, truth in zip(pictures, labels, strict=True):
        assert ((picture > 0) == (truth > 0)).all()
        assert not (truth[[0, -1]].any() or truth[:, [0, -1]].any())
        at = np.argwhere(truth == LENGTH)[0]
        for position in range(LENGTH, 0, -1):  # what no neighbor but the one before decides
            assert truth[tuple(at)] == position
            at = at - MOVES[picture[tuple(at)] - 1]
        assert truth[tuple(at)] == 0  # the tail came from a black pixel


def test_features() -> None:
    picture = make_snakes(1)[0][0]
    graph = snake_graph(picture)
    rows, columns = picture.shape
    assert graph.nodes.shape == (rows * columns, 45)
    assert graph.edge_features.shape == (len(graph.edges), 180)
    assert graph.edge_features.shape[1] * 11 * 11 == 21780
    nodes, features = graph.nodes.toarray(), graph.edge_features.toarray()
    assert (nodes.sum(axis=1) == 9).all() and set(np.unique(nodes)) == {0.0, 1.0}
    assert (nodes.reshape(-1, 9, 5)[:, 4].argmax(axis=1) == picture.ravel()).all()
    for e, (i, j) in enumerate(graph.edges):
        start = 0 if j == i + 1 else 90
        assert (features[e, start : start + 45] == nodes[i]).all()
        assert (features[e, start + 45 : start + 90] == nodes[j]).all()
        assert features[e].sum() == 18


@pytest.mark.slow
def test_a_crf_learns_to_number_snakes() -> None:
    pictures, labels = make_snakes(230, seed=0)
    X, y = [snake_graph(p) for p in pictures], [truth.ravel() for truth in labels]
    model = CRF(pairwise="table", method="pseudo").fit(X[:200], y[:200])
    assert model.parameters_["pairwise"].size == 21780
    assert model.score(X[200:], y[200:]) >= 0.995
    alone = CRF(pairwise="none", method="pseudo", rule="sweep").fit(X[:200], y[:200])
    assert alone.score(X[200:], y[200:]) < 0.95
    # all of them as one field
    starts = np.cumsum([0, *(g.n_nodes for g in X[200:])])
    one = Graph(
        sparse.vstack([g.nodes for g in X[200:]]),
        np.concatenate([g.edges + s for g, s in zip(X[200:], starts[:-1], strict=True)]),
        sparse.vstack([g.edge_features for g in X[200:]]),
    )
    assert model.score([one], [np.concatenate(y[200:])]) >= 0.995


def test_bad_numbers() -> None:
    for bad in (0, 1.5, "many"):
        with pytest.raises(InputError, match="count="):
            make_snakes(bad)  # type: ignore[arg-type]
