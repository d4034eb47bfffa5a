"""Occupancy maps on a GPU: against the term in numpy, alone and as batches of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_setup import INTERPRETED, direct, indirect, run_interpreted, torch

import proxfield as pf
from proxfield.backends.terms import implementation
from proxfield.backends.triton.terms import occupancy_plan
from proxfield.backends.triton.terms.base import HostTerm, on_device
from proxfield.backends.triton.terms.occupancy import OccupancyFrames, OccupancyOnDevice
from proxfield.terms.base import Layout
from proxfield.terms.silhouettes import Boxes, Runs, Silhouettes

DEVICE = "cpu" if INTERPRETED else "cuda"
MODELS = ("exact", "ratio")
N = 30


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def boxes(height: int, width: int, seed: int, n: int = N) -> Boxes:
    """Rectangles of all sizes; many share a corner, some touch the borders, some aren't seen."""
    random = np.random.default_rng(seed)
    left, top = random.integers(0, width, n), random.integers(0, height, n)
    right = np.minimum(left + random.integers(1, width + 1, n), width)
    bottom = np.minimum(top + random.integers(1, height + 1, n), height)
    out = np.stack([left, top, right, bottom], axis=1)
    out[:12, :2] = 0, 1
    out[:12, 3] = np.maximum(out[:12, 3], 2)
    out[3] = 0, 0, width, height
    out[[5, 17]] = 0
    return Boxes(height, width, out)


def runs(height: int, width: int, seed: int, n: int = N) -> Runs:
    """Ragged shapes, one empty."""
    random = np.random.default_rng(seed)
    masks = random.random((n, height, width)) < 0.4
    masks[2], masks[4], masks[6] = False, True, False
    return Runs.from_masks(masks)


SCENES: dict[str, list[Silhouettes]] = {
    "boxes": [boxes(7, 19, 0), boxes(11, 5, 1), boxes(2, 1, 2)],
    "runs": [runs(4, 6, 3)],
    "mixed": [runs(5, 17, 4), boxes(6, 8, 5), runs(3, 3, 6)],
}


def masks_of(scene: list[Silhouettes], seed: int, as_bytes: bool = False) -> list[Any]:
    random = np.random.default_rng(seed)
    shapes = [(s.height, s.width) for s in scene]
    if as_bytes:
        return [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    return [np.round(random.random(shape), 2) for shape in shapes]


def term_of(scene: list[Silhouettes], model: str, seed: int = 0, **options: Any) -> pf.Occupancy:
    given = {"exact": {"miss": 0.2, "strength": 3.0}, "ratio": {"variance": 0.3, "floor": 0.02}}
    return pf.Occupancy(scene, masks_of(scene, seed), model=model, **given[model], **options)


def marginals(seed: int, n: int = N, saturated: bool = True) -> Any:
    """Of two labels; some p_i are so small that pixels are summed one by one, two are 0."""
    random = np.random.default_rng(seed)
    p = random.random(n)
    if saturated:
        p[[1, 3, 9, n - 1]] = 1e-7, 1e-12, 0.0, 0.0
    return np.stack([p, 1 - p], axis=1).ravel()


def expected(term: Any, q: Any) -> tuple[Any, float]:
    layout = Layout(np.full(len(q) // 2, 2))
    out = np.ones(len(q))
    term.add_gradient(layout, q.astype(np.float64), out)
    return out, term.energy(layout, q.astype(np.float64))


def check(term: Any, q: Any, dtype: str, rounding: float) -> Any:
    """Both add the same to what is there, and agree about the energy."""
    q = q.astype(dtype)
    layout = Layout(np.full(len(q) // 2, 2))
    made = on_device(term, layout, dtype, DEVICE)
    there = torch.from_numpy(q).to(DEVICE)
    out = torch.ones(len(q), dtype=there.dtype, device=DEVICE)
    energy = made.add_gradient(there, out)
    assert energy.shape == () and energy.dtype == torch.float64
    g, e = expected(term, q)
    np.testing.assert_allclose(out.cpu(), g, rtol=rounding, atol=rounding * abs(g).max())
    assert float(energy) == pytest.approx(e, rel=rounding, abs=rounding)
    if not INTERPRETED:
        again = torch.ones_like(out)
        assert bool(made.add_gradient(there, again) == energy) and bool((again == out).all())
    return made


# ---- one frame ----


@direct
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scene", SCENES)
def test_as_in_numpy(scene: str, model: str) -> None:
    term = term_of(SCENES[scene], model)
    made = check(term, marginals(7), "float64", 1e-11)
    assert isinstance(made, OccupancyOnDevice) and made.capturable
    check(term, marginals(8, saturated=False), "float32", 1e-5)


@direct
@pytest.mark.parametrize("model", MODELS)
def test_groups_of_cameras_and_pieces_of_rows(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large images need: cameras one after another, rows and columns in pieces."""
    monkeypatch.setattr(occupancy_plan, "SCRATCH_BYTES", 100)
    monkeypatch.setattr(occupancy_plan, "MAX_WIDTH", 16)
    monkeypatch.setattr(occupancy_plan, "STRIP_ROWS", 4)
    scene = [boxes(7, 19, 0), runs(5, 17, 4), boxes(11, 5, 1)]  # others than those of SCENES
    made = check(term_of(scene, model), marginals(7), "float64", 1e-11)
    assert len(made.plan.groups) == 3


@direct
@pytest.mark.parametrize("model", MODELS)
def test_corners_of_many(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More corners at one pixel than lanes share at once."""
    monkeypatch.setattr(occupancy_plan, "CROWDED", 1)
    n = 100
    scene: list[Silhouettes] = [boxes(6, 8, 5, n), Boxes(3, 3, [[1, 1, 2, 2]] * n)]
    check(term_of(scene, model), marginals(3, n), "float64", 1e-11)


@direct
@pytest.mark.parametrize("model", MODELS)
def test_nothing_to_see(model: str) -> None:
    hidden: list[Silhouettes] = [Boxes(2, 3, np.zeros((4, 4), dtype=int))]
    check(term_of(hidden, model), marginals(0, 4, saturated=False), "float64", 1e-12)
    blind = pf.Occupancy(hidden, [None], model=model)
    check(blind, marginals(0, 4, saturated=False), "float64", 1e-12)


@direct
def test_masks_of_bytes_and_of_booleans() -> None:
    scene = SCENES["mixed"]
    given = masks_of(scene, 0, as_bytes=True)
    check(pf.Occupancy(scene, given), marginals(7), "float64", 1e-11)
    check(pf.Occupancy(scene, [m > 99 for m in given]), marginals(7), "float64", 1e-11)


@direct
def test_silhouettes_of_other_kinds_stay_on_the_host() -> None:
    class Shifted(Boxes):
        """Boxes with an origin of their own."""

    scene: list[Silhouettes] = [Shifted(4, 5, [[0, 0, 2, 2], [1, 1, 5, 4]])]
    term = pf.Occupancy(scene, masks_of(scene, 0))
    assert implementation(term, "cuda") is None
    assert isinstance(on_device(term, Layout(np.array([2, 2])), "float64", DEVICE), HostTerm)


@direct
def test_a_plan_is_made_once_per_scene() -> None:
    scene = tuple(SCENES["mixed"])
    plan = occupancy_plan.plan_for(scene, DEVICE)
    assert occupancy_plan.plan_for(scene, DEVICE) is plan
    assert occupancy_plan.plan_for(scene[:2], DEVICE) is not plan
    other = (scene[0], scene[1], runs(3, 3, 6))
    assert occupancy_plan.plan_for(other, DEVICE) is not plan


# ---- several frames ----


@direct
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("together", [1, 2, 8])
def test_frames(model: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame as alone, however many are worked on together; then with other masks."""
    scene = SCENES["mixed"]
    plan = occupancy_plan.plan_for(tuple(scene), DEVICE)
    monkeypatch.setattr(occupancy_plan, "SCRATCH_BYTES", together * 16 * plan.size)
    layout = Layout(np.full(N, 2))
    terms = [term_of(scene, model, seed) for seed in range(3)]
    frames = OccupancyFrames(terms, layout, "float64", DEVICE)
    assert frames.together == min(together, 3)
    q = [marginals(seed, saturated=seed != 1) for seed in range(3)]
    there = torch.from_numpy(np.concatenate(q)).to(DEVICE)
    for some in (terms, terms[::-1]):
        frames.set_masks([term.masks for term in some])
        out = torch.ones_like(there)
        energies = frames.add_gradient(there, out)
        assert energies.shape == (3,) and energies.dtype == torch.float64
        for k, term in enumerate(some):
            g, e = expected(term, q[k])
            mine = out.cpu().numpy().reshape(3, -1)[k]
            np.testing.assert_allclose(mine, g, rtol=1e-11, atol=1e-11 * abs(g).max())
            assert float(energies[k]) == pytest.approx(e, rel=1e-11)


@direct
def test_what_frames_have_in_common() -> None:
    key = OccupancyFrames.frame_key
    scene = SCENES["mixed"]
    first = key(term_of(scene, "exact"))
    assert key(term_of(scene, "exact", 1)) == first
    assert key(term_of(scene, "ratio")) != first
    assert key(term_of(scene, "exact", false_alarm=0.01)) != first
    assert key(term_of([scene[0], scene[1], runs(3, 3, 6)], "exact")) != first
