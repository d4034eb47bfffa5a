"""The published program's update: its formula, its end, its results, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import proxfield as pf
from proxfield.errors import UnsupportedError

SMIDM = Path(__file__).parents[3] / "shared" / "data" / "pom" / "smidm"
"""Frames and results of the published program, where they are at hand."""
KNOWN = {160: (76, 9.612662), 170: (77, 8.534716), 180: (100, 7.975320), 189: (100, 12.126912)}
"""Iterations of the program and Σ q of some frames."""
Array = NDArray[Any]


def small(seed: int = 0, prior: float = 0.02) -> tuple[pf.Field, list[tuple[Array, Array]]]:
    """A field of 12 locations, and each camera as masks of its silhouettes and its mask."""
    rng = np.random.default_rng(seed)
    silhouettes, masks, plain = [], [], []
    for height, width in ((12, 20), (9, 15)):
        left, top = rng.integers(0, width - 4, size=12), rng.integers(0, height - 5, size=12)
        boxes = pf.Boxes(height, width, np.stack([left, top, left + 4, top + 5], axis=1))
        inside = np.zeros((12, height * width), dtype=bool)
        for i in range(12):
            inside[i, boxes.pixels(i)] = True
        mask = 0.9 * inside[[2, 7]].any(axis=0) + 0.05
        silhouettes.append(boxes)
        masks.append(mask.reshape(height, width))
        plain.append((inside, mask))
    term = pf.Occupancy(silhouettes, masks, model="ratio")
    energies = np.tile([0.0, np.log((1 - prior) / prior)], (12, 1))
    return pf.Field(12, 2, [pf.Unary(energies), term]), plain


def plain_run(
    cameras: list[tuple[Array, Array]], q: Array, prior: float, ignored: float, limit: int = 100
) -> tuple[Array, int]:
    """The program's formulas, location by location."""
    stable = count = 0
    while stable < 5 and count < limit:
        count += 1
        target = np.empty_like(q)
        for i in range(len(q)):
            change = 0.0
            for inside, mask in cameras:
                absent = np.where(1 - q <= ignored, 1 - q, 1.0)
                empty = np.where(inside, absent[:, None], 1.0).prod(axis=0)
                ground = 0.01 * len(mask)
                den = ground + (1 - empty).sum()
                num = ground + ((1 - empty) * (1 - mask) + empty * mask).sum()
                a = empty[inside[i]].sum()
                d = a - 2 * (empty * mask)[inside[i]].sum()
                part = 1 - 1 / (1 - q[i])
                there, gone = (num + d) / (den + a), (num + part * d) / (den + part * a)
                change += (there**2 - gone**2) / 0.02
            target[i] = 1 / (1 + np.exp(change - np.log(prior / (1 - prior))))
        new = 0.8 * q + 0.2 * target
        stable = stable + 1 if np.abs(new - q).max() < 1e-4 else 0
        q = new
    return q, count


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("ignored", [0.99, 0.97, 1.0])
def test_follows_the_formula(kernels: str, ignored: float) -> None:
    field, cameras = small()
    result = pf.infer(field, "original", ignored=ignored, kernels=kernels, dtype="float64")
    q, count = plain_run(cameras, np.full(12, 0.02), 0.02, ignored)
    assert result.iterations == count < 100
    np.testing.assert_allclose(result.marginals[:, 1], q, atol=1e-9)
    assert set(np.flatnonzero(q > 0.5)) == {2, 7}


def test_status_says_whether_it_is_a_fixed_point_of_f() -> None:
    field, _ = small()
    result = pf.infer(field, "original")
    assert result.status is pf.Status.SETTLED
    assert not result.converged
    assert result.log_z_bound == -np.inf
    assert result.free_energy == pytest.approx(field.free_energy(result.q))
    alone = pf.Field(12, 2, [*field.terms[:1], pf.Occupancy(*blank(), model="ratio")])
    settled = pf.infer(alone, "original")
    assert settled.status is pf.Status.CONVERGED  # the prior, from which it starts
    assert settled.iterations == 5


def blank() -> tuple[list[pf.Boxes], list[Array]]:
    """A camera that sees none of the locations."""
    return [pf.Boxes(3, 3, np.zeros((12, 4), dtype=np.int64))], [np.zeros((3, 3))]


def test_limits_and_starts() -> None:
    field, cameras = small()
    short = pf.infer(field, "original", max_iters=7)
    assert (short.status, short.iterations) == (pf.Status.MAX_ITERS, 7)
    assert len(short.trace) == 8
    q, _ = plain_run(cameras, np.full(12, 0.02), 0.02, 1.0, limit=7)
    np.testing.assert_allclose(short.marginals[:, 1], q, atol=1e-9)
    longer = pf.infer(field, "original", init=short)
    whole = pf.infer(field, "original")
    assert longer.iterations < whole.iterations
    np.testing.assert_allclose(longer.q, whole.q, atol=1e-4)
    few = pf.infer(field, "original", stable=1, error=0.5)
    assert few.iterations == 1
    best = pf.infer(field, "original", keep="best")
    assert best.free_energy <= min(best.trace.free_energy) + 1e-9
    assert pf.infer(field, "original", callback=lambda p: True).status is pf.Status.STOPPED


def test_observed_locations_stay() -> None:
    field, _ = small()
    result = pf.infer(field.condition({0: 1, 2: 0}), "original")
    assert result.marginals[0, 1] == 1.0
    assert result.marginals[2, 1] == 0.0
    assert np.isfinite(result.q).all()


def test_refuses_other_fields() -> None:
    field, _ = small()
    boxes, masks = blank()
    exact = pf.Field(12, 2, [pf.Occupancy(boxes, masks)])
    more = pf.Field(13, 2, list(field.terms[1:]))
    pairs = pf.Field(12, 2, [*field.terms, pf.Potts([[0, 1]], 1.0)])
    for other in (exact, more, pairs, pf.Field(2, 2).add(pf.Unary([[0, 1], [1, 0]]))):
        with pytest.raises(UnsupportedError, match="original is for occupancy maps only"):
            pf.infer(other, "original")
    assert not pf.RULES["original"]().never_rises


@pytest.mark.skipif(not SMIDM.exists(), reason="without the published program's results")
def test_published_results() -> None:
    """All 30 frames to 1e-6 (they were printed with six digits), in as many iterations."""
    pil = pytest.importorskip("PIL.Image")
    rows = [line.split() for line in (SMIDM / "test.pom").read_text().splitlines() if line]
    width, height, n_cameras, n = next([int(x) for x in r[1:5]] for r in rows if r[0] == "ROOM")
    boxes = np.zeros((n_cameras, n, 4), dtype=np.int64)
    for row in rows:
        if row[0] == "RECTANGLE" and row[3] != "notvisible":
            left, top, right, bottom = map(int, row[3:7])
            boxes[int(row[1]), int(row[2])] = left, top, right + 1, bottom + 1
    silhouettes = [pf.Boxes(height, width, b) for b in boxes]
    prior = pf.Unary(np.tile([0.0, np.log(0.99 / 0.01)], (n, 1)))
    for frame in range(160, 190):
        paths = [SMIDM / "images" / f"view-f{frame}-c{c}.png" for c in range(n_cameras)]
        masks = [np.asarray(pil.open(p).convert("RGB")).mean(axis=2) / 255 for p in paths]
        field = pf.Field(n, 2, [prior, pf.Occupancy(silhouettes, masks, model="ratio")])
        result = pf.infer(field, "original", ignored=0.99, dtype="float64")  # as in test.pom
        expected = np.loadtxt(SMIDM / "reference_marginals" / f"proba-f{frame}.dat")[:, 1]
        assert np.abs(result.marginals[:, 1] - expected).max() < 1e-6, frame
        if frame in KNOWN:
            iterations, total = KNOWN[frame]
            assert result.iterations == iterations
            assert result.marginals[:, 1].sum() == pytest.approx(total, abs=2e-6)
