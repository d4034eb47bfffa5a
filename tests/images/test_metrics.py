"""Scores of label maps: worked by hand, and against slow references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.images import metrics

# 2 × 5 pixels; the last column is unlabelled. Class 1 is two pixels wide in truth, three as found.
TRUTH = np.array([[0, 0, 1, 1, -1], [0, 0, 1, 1, -1]])
FOUND = np.array([[0, 1, 1, 1, 0], [0, 1, 1, 1, 0]])


def test_regions_by_hand() -> None:
    counts = metrics.count_regions(TRUTH, FOUND, 3)
    assert counts.tolist() == [[2, 4, 0], [4, 4, 0], [2, 6, 0]]
    # class 0: 2 of 4; class 1: 4 of 6; class 2 is nowhere and doesn't count
    assert metrics.mean_iou(counts) == pytest.approx((2 / 4 + 4 / 6) / 2)
    assert metrics.accuracy(counts) == pytest.approx(6 / 8)
    # a class that is found but never true counts as 0
    wrong = metrics.count_regions(TRUTH, np.where(FOUND == 0, 2, FOUND), 3)
    assert metrics.mean_iou(wrong) == pytest.approx((0 + 4 / 6 + 0) / 3)


def test_boundaries_by_hand() -> None:
    # truth changes between columns 1 and 2, what was found between columns 0 and 1
    exact = metrics.count_boundaries(TRUTH, FOUND, 2, 0.0)
    assert exact.tolist() == [[0, 0], [2, 2], [0, 0], [2, 2]]
    assert metrics.boundary_f(exact) == 0.0
    near = metrics.count_boundaries(TRUTH, FOUND, 2, 1.0)
    assert near.tolist() == [[2, 2], [2, 2], [2, 2], [2, 2]]
    assert metrics.boundary_f(near) == 1.0
    # precision ½ and recall 1 for class 0, nothing near for class 1
    mixed = np.array([[2, 0], [4, 3], [3, 0], [3, 5]])
    assert metrics.boundary_f(mixed) == pytest.approx((2 * 0.5 / 1.5 + 0) / 2)
    same = metrics.count_boundaries(TRUTH, np.zeros_like(TRUTH), 2, 1.0)
    assert same[:, 1].tolist() == [0, 0, 0, 2]  # the class was lost


def slow_regions(truth: Any, found: Any, n: int) -> tuple[float, float]:
    """Mean IoU and accuracy from sets of pixels."""
    known = {at for at in np.ndindex(truth.shape) if truth[at] != -1}
    ious = []
    for c in range(n):
        t, g = ({at for at in known if m[at] == c} for m in (truth, found))
        if t | g:
            ious.append(len(t & g) / len(t | g))
    right = sum(truth[at] == found[at] for at in known)
    return float(np.mean(ious)), right / len(known)


def slow_boundary_f(truth: Any, found: Any, n: int, tolerance: float) -> float:
    """From the distances of all pairs of boundary pixels."""
    known = {at for at in np.ndindex(truth.shape) if truth[at] != -1}

    def boundary(labels: Any, c: int) -> list[Any]:
        out = []
        for at in known:
            near = [
                tuple(np.add(at, step))
                for step in ((0, 1), (0, -1), (1, 0), (-1, 0))
                if tuple(np.add(at, step)) in known
            ]
            if labels[at] == c and any(labels[x] != c for x in near):
                out.append(at)
        return out

    scores = []
    for c in range(n):
        t, g = boundary(truth, c), boundary(found, c)
        if not t and not g:
            continue

        def share(a: list[Any], b: list[Any]) -> float:
            hits = sum(any(np.hypot(*np.subtract(x, y)) <= tolerance for y in b) for x in a)
            return hits / max(1, len(a))

        precision, recall = share(g, t), share(t, g)
        total = precision + recall
        scores.append(2 * precision * recall / total if total else 0.0)
    return float(np.mean(scores))


@pytest.mark.parametrize("seed", range(6))
def test_against_slow_references(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, size = 4, (9, 11)
    blocks = np.kron(rng.integers(-1, n, (3, 4)), np.ones((3, 3), dtype=int))[:9, :11]
    found = np.where(rng.random(size) < 0.3, rng.integers(0, n, size), np.abs(blocks))
    regions = metrics.count_regions(blocks, found, n)
    iou, accuracy = slow_regions(blocks, found, n)
    assert metrics.mean_iou(regions) == pytest.approx(iou)
    assert metrics.accuracy(regions) == pytest.approx(accuracy)
    for tolerance in (0.0, 1.0, 1.5, 2.3, 20.0):
        counts = metrics.count_boundaries(blocks, found, n, tolerance)
        assert metrics.boundary_f(counts) == pytest.approx(
            slow_boundary_f(blocks, found, n, tolerance)
        )


def test_counts_add_up_over_images() -> None:
    rng = np.random.default_rng(0)
    truth, found = rng.integers(-1, 3, (2, 4, 6, 7))
    found = np.abs(found)
    together = metrics.count_regions(truth.reshape(24, 7), found.reshape(24, 7), 3)
    one_by_one = sum(metrics.count_regions(t, f, 3) for t, f in zip(truth, found, strict=True))
    np.testing.assert_array_equal(together, one_by_one)


def test_truth_is_checked() -> None:
    given = np.array([[0, 1, 255]], dtype=np.uint8)
    assert metrics.read_truth(given, (1, 3), 2, (255,)).tolist() == [[0, 1, -1]]
    assert metrics.read_truth(np.array([[0, -1, 1]]), (1, 3), 2, (-1,)).tolist() == [[0, -1, 1]]
    for truth, message in (
        (given, r"pixel \(0, 2\) has the true label 255, expected 0 to 1, or .* ignore \(9\)"),
        (np.array([[0, -1, 1]]), "has the true label -1"),
        (np.zeros((3, 1), dtype=int), "shape"),
        (np.zeros((1, 3)), "whole numbers"),
    ):
        with pytest.raises(pf.InputError, match=message):
            metrics.read_truth(truth, (1, 3), 2, (9,))
    with pytest.raises(pf.InputError, match="miou, accuracy, boundary-f"):
        metrics.find_metric("dice")
