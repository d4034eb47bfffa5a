"""A dense CRF as one piece of work for a device, against the loop that every other field takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from device_terms import INTERPRETED, needs_device, poisoned

import proxfield as pf
from proxfield.core.engines.triton.dense_call import KEPT
from proxfield.core.filters.triton.lattice import LatticePlan
from proxfield.core.solve import whole as module

torch = pytest.importorskip("torch", reason="needs torch")
pytestmark = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU, or Triton's interpreter"
)
__all__ = ["poisoned"]

SIZE = (4, 5) if INTERPRETED else (21, 34)
UPDATES = 2 if INTERPRETED else 6
SOFT: dict[str, Any] = {"spatial_weight": 0.5, "bilateral_weight": 0.8}
TABLE = np.array([[0, 1, 2], [1, 0, -1.5], [2, -1.5, 0.0]])
WAYS: dict[str, dict[str, Any]] = {
    "lattice": {"filter": "lattice"},
    "exact": {"filter": "exact"},
    "a table": {"filter": "lattice", "compatibility": TABLE},
    "repelling": {"filter": "exact", "spatial_weight": -8.0},
    "none": {"filter": "lattice", "normalization": "none", "bilateral_weight": 0.05},
    "before": {"filter": "exact", "normalization": "before"},
    "no self-message": {"filter": "exact", "self_message": False},
    "one term": {"filter": "lattice", "spatial_weight": 0.0},
    "wide colors": {"filter": "lattice", "bilateral_color": 200.0},
}
FEW = ("wide colors", "repelling")
"""For the interpreter, which takes long for many vertices."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No program of another test."""
    KEPT.clear()
    yield
    KEPT.clear()


def scene(seed: int = 0, size: tuple[int, int] = SIZE, labels: int = 3) -> tuple[Any, Any]:
    """An image of random colors in blocks, and probabilities.  # (*size, 3), (*size, labels)"""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 255, size=(size[0] // 3 + 1, size[1] // 3 + 1, 3))
    image = blocks.repeat(3, 0).repeat(3, 1)[: size[0], : size[1]]
    image = np.clip(image + rng.normal(0, 6, size=image.shape), 0, 255).astype(np.uint8)
    p = rng.random((*size, labels)).astype(np.float32) + 0.1
    return image, p / p.sum(-1, keepdims=True)


def by_loop(monkeypatch: pytest.MonkeyPatch, crf: pf.DenseCRF, **options: Any) -> Any:
    """The same by the loop."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "infer_whole", lambda *_: None)
        return crf.infer(device="cuda", **options)


def same(one: Any, other: Any) -> None:
    """Two results of one field."""
    np.testing.assert_allclose(one.q, other.q, atol=3e-5)
    assert one.free_energy == pytest.approx(other.free_energy, rel=1e-6, abs=1e-5)
    np.testing.assert_allclose(one.trace.free_energy, other.trace.free_energy, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(one.trace.change, other.trace.change, atol=1e-4)
    assert np.array_equal(one.trace.iteration, other.trace.iteration)
    assert (one.status, one.iterations, one.rule) == (other.status, other.iterations, other.rule)
    assert one.params == other.params
    assert one.kernels == other.kernels
    assert np.array_equal(one.labels, other.labels)
    assert np.array_equal(one.labels.ravel(), one.q.reshape(-1, one.field.n_labels).argmax(1))


@pytest.mark.parametrize("way", FEW if INTERPRETED else WAYS)
def test_the_same_as_the_loop(way: str, poisoned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    crf = pf.DenseCRF(*scene(), **{**SOFT, **WAYS[way]})
    whole = crf.infer(device="cuda", max_iters=UPDATES)
    assert whole.best is not None, "it went through the loop"
    same(whole, by_loop(monkeypatch, crf, max_iters=UPDATES))


@pytest.mark.skipif(INTERPRETED, reason="too many steps for the interpreter")
@pytest.mark.parametrize("labels", [2, 21, 40])
def test_one_program_for_images_of_one_size(labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third image replays what the second recorded, the fourth needs more vertices."""
    for seed in range(6):
        image, p = scene(seed, labels=labels)
        if seed == 3:
            image = np.random.default_rng(3).integers(0, 255, image.shape).astype(np.uint8)
        crf = pf.DenseCRF(image, p, filter="lattice", **SOFT)
        whole = crf.infer(device="cuda", max_iters=UPDATES, tol=0.0)
        assert whole.best is not None
        same(whole, by_loop(monkeypatch, crf, max_iters=UPDATES, tol=0.0))
    assert len(KEPT.programs) == 1
    if torch.cuda.is_available():
        assert next(iter(KEPT.programs.values())).graphs


@needs_device
def test_results_are_not_written_over() -> None:
    found = []
    for seed in range(5):
        crf = pf.DenseCRF(*scene(seed), filter="lattice", **SOFT)
        result = crf.infer(device="cuda", max_iters=UPDATES)
        found.append((result, result.q.copy(), result.labels.copy()))
    for result, q, labels in found:
        assert np.array_equal(result.q, q)
        assert np.array_equal(result.labels, labels)


def test_what_the_loop_has_to_do() -> None:
    """Calls in which something is decided on the way."""
    image, p = scene()
    crf = pf.DenseCRF(image, p, **SOFT)
    some: dict[str, Any] = {"device": "cuda", "max_iters": 1}
    others: list[dict[str, Any]] = [
        {"rule": "momentum"}, {"step": 0.5}, {"init": "uniform"}, {"budget": 100.0},
        {"callback": lambda _: None}, {"keep": "best"}, {"dtype": "float64"}, {"tol": 2.0},
    ]  # fmt: skip
    for other in others[:2] + others[-1:] if INTERPRETED else others:
        assert crf.infer(**{**some, **other}).best is None, other
    table = -np.log(p).reshape(*SIZE, 3)
    table[0, 0, 0] = np.inf  # an impossible label
    assert pf.DenseCRF(image, energies=table, labels_axis=-1, **SOFT).infer(**some).best is None
    seen = crf.condition({0: 1})
    assert pf.infer(seen, "fixed", init="unary", dtype="float32", **some).best is None


def test_room_for_vertices() -> None:
    """Empty vertices change nothing, and too little room is noticed."""
    rng = np.random.default_rng(0)
    cases = [(50, 1, 2.0), (1, 3, 1.0), (40, 3, 0.0), (30, 2, 1.0), (300, 2, 1.0), (200, 5, 0.7)]
    for n, d, spread in cases[:4] if INTERPRETED else cases:
        features = torch.from_numpy(spread * rng.normal(size=(n, d)))
        features = features.to("cpu" if INTERPRETED else "cuda")
        values = torch.from_numpy(rng.normal(size=(n, 4))).to(features.device)
        plain = LatticePlan(features)
        expected = plain.apply(values)
        for more in (0, 37):
            roomy = LatticePlan(features, plain.blur, plain.n_vertices + more)
            assert int(roomy.needed) == plain.n_vertices
            assert bool((roomy.apply(values) == expected).all())
        assert (
            int(LatticePlan(features, plain.blur, max(1, plain.n_vertices - 1)).needed)
            >= plain.n_vertices
        )
