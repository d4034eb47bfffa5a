"""Every peer that is installed, against exact answers on a tree, where all methods but mean field
are exact."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield.bench.peers.base import LogZKind, Peer, Question
from proxfield.bench.peers.graph import Elimination, factor_graph
from proxfield.bench.peers.measure import answer
from proxfield.bench.peers.problems import make_scene
from proxfield.bench.peers.registry import PEERS
from proxfield.generate import grid_edges

MEAN_FIELD = ("proxfield", "pyGMs NMF")
TOLERANCE = 1e-5
"""PGMax computes in float32."""


def tree() -> pf.Field:
    """Seven spins in a tree, attractive, so that every tool can do it; one is observed."""
    edges = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (5, 6)]
    h = np.array([0.33, -0.21, 0.52, 0.14, -0.47, 0.26, -0.1])  # no two best labellings
    field = pf.Field(7, n_labels=2).add(pf.Unary(np.stack([-h, h], axis=1)))
    field.add(pf.Ising(edges, [-0.5, -0.8, -0.3, -0.6, -0.2, -0.9]))
    return field.condition({6: 1})


def skip_unless_usable(peer: Peer) -> None:
    if peer.version() is None:
        pytest.skip(f"{peer.name} isn't installed: {peer.hint()}")
    if peer.module is not None:
        try:
            import_module(peer.module)
        except Warning as warning:  # warnings are errors here, and these aren't ours
            pytest.skip(f"{peer.name} warns when imported: {warning}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("peer", "task"),
    [(peer, task) for peer in PEERS for task in peer.tasks if task is not Question.DENSE],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_answers_on_a_tree(peer: Peer, task: Question) -> None:
    skip_unless_usable(peer)
    field = tree()
    exact = Elimination(factor_graph(field))
    said = answer(peer, task, field, 0.1)
    assert "answer" in said, said
    found = said["answer"]
    if task is Question.MAP:
        assert field.energy(found.labels) == pytest.approx(field.energy(exact.best_labels()))
        return
    loose = peer.name.startswith(MEAN_FIELD)
    if found.marginals is not None:
        tolerance = 0.25 if loose else TOLERANCE
        np.testing.assert_allclose(found.marginals, exact.marginals(), atol=tolerance)
    if found.log_z is not None:
        if found.kind is LogZKind.LOWER:
            assert exact.log_z - 1 <= found.log_z <= exact.log_z + 1e-9
        else:
            assert found.log_z == pytest.approx(exact.log_z, abs=TOLERANCE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "peer",
    [p for p in PEERS if p.package and Question.INFERENCE in p.tasks],
    ids=lambda peer: str(peer.name),
)
def test_tables_of_unequal_sizes(peer: Peer) -> None:
    """Axes are told apart only where sizes or values differ: three tables, none symmetric."""
    skip_unless_usable(peer)
    rng = np.random.default_rng(3)
    field = pf.Field([2, 3, 4, 2])
    field.add(pf.Factor([[2, 0, 1]], rng.normal(size=(4, 2, 3))))
    field.add(pf.Pairwise([[3, 2]], rng.normal(size=(2, 4))))
    exact = Elimination(factor_graph(field))
    said = answer(peer, Question.INFERENCE, field, 0.1)
    if said.get("status") == "unsupported":
        pytest.skip(f"{peer.name}: {said['why']}")
    assert "answer" in said, said
    if said["answer"].marginals is not None and not peer.name.startswith(MEAN_FIELD):
        np.testing.assert_allclose(said["answer"].marginals, exact.marginals(), atol=TOLERANCE)
    if said["answer"].kind in (LogZKind.EXACT, LogZKind.UPPER, LogZKind.ESTIMATE):
        assert said["answer"].log_z == pytest.approx(exact.log_z, abs=TOLERANCE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["dwave tree", "PyMaxflow", "toulbar2"])
def test_optimal_labellings_of_a_grid(name: str) -> None:
    (peer,) = (p for p in PEERS if p.name == name)
    skip_unless_usable(peer)
    rng = np.random.default_rng(5)
    edges = grid_edges(5, 5)
    field = pf.Field(25, n_labels=2).add(pf.Unary(rng.normal(size=(25, 2))))
    field.add(pf.Potts(edges, rng.random(len(edges))))
    said = answer(peer, Question.MAP, field, 1.0)
    assert said["answer"].proved
    best = field.energy(Elimination(factor_graph(field)).best_labels())
    assert field.energy(said["answer"].labels) == pytest.approx(best, abs=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "peer", [p for p in PEERS if Question.DENSE in p.tasks], ids=lambda p: p.name
)
def test_images_get_better(peer: Peer) -> None:
    skip_unless_usable(peer)
    scene = make_scene(48, 36)
    labels = answer(peer, Question.DENSE, scene, 1.0)["answer"].labels
    before = (scene.probabilities.argmax(axis=-1) == scene.truth).mean()
    assert (labels == scene.truth).mean() > before + 0.1


def test_a_tool_is_imported_when_it_is_asked() -> None:
    source = Path(import_module("proxfield.bench.peers.tools").__file__ or "").read_text()
    top = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    for peer in PEERS:
        if peer.module is not None:
            assert not any(f" {peer.module.split('.')[0]}" in line for line in top)
