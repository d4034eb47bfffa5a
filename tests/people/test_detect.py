"""From masks to detections: settings, priors, warm starts, and what comes out."""

from __future__ import annotations

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.people.detect import Detector, cell_area, warm_start
from proxfield.people.scene import Scene, grid_positions
from proxfield.people.silhouettes import Boxes
from proxfield.people.simulate import Simulation, simulate


@pytest.fixture(scope="module")
def square() -> Simulation:
    return simulate("square", people=4, cameras=3, size=(96, 72), spacing=1.0, seed=3)


def strip(spacing: float = 1.0) -> Scene:
    """Three locations side by side in one camera."""
    boxes = Boxes(2, 6, [[0, 0, 2, 2], [2, 0, 4, 2], [4, 0, 6, 2]])
    return Scene((boxes,), np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]) * spacing)


MASK = [[0, 0, 1, 1, 0, 0]] * 2


def test_a_person_is_found_where_the_mask_is() -> None:
    found = Detector(density=0.05).detect(strip(), [MASK], frame=7)
    assert found.q.argmax() == 1 and found.q[1] > 0.9 and found.q[0] < 0.05
    assert found.detections.location.tolist() == [1]
    assert found.detections.frames.tolist() == [7] and found.frame == 7
    assert found.detections.positions.tolist() == [[1.0, 0.0]]
    assert found.result.iterations <= 25 and "1 people" in repr(found)


def test_simulated_people_are_found(square: Simulation) -> None:
    found = Detector(radius=1.0).detect(square.scene, square.masks(0))
    people = square.truth(0)
    away = np.linalg.norm(people[:, None] - found.detections.positions[None], axis=2)
    assert len(found.detections) >= 3
    assert (away.min(axis=0) < 1.0).all()
    assert found.image.shape == square.scene.shape


def test_free_energy_never_rises(square: Simulation) -> None:
    for model in ("exact", "ratio"):
        trace = Detector(model=model).detect(square.scene, square.masks(1)).result.trace
        assert (np.diff(trace.free_energy) <= 1e-9 * np.abs(trace.free_energy[1:])).all()


def test_the_prior_follows_the_area_of_a_cell(square: Simulation) -> None:
    fine = simulate("square", people=1, cameras=1, size=(48, 36), spacing=0.5).scene
    detector = Detector(density=0.02)
    coarse_prior = detector.prepare(square.scene).prior
    fine_prior = detector.prepare(fine).prior
    assert coarse_prior == pytest.approx(0.02, rel=0.02)
    assert fine_prior == pytest.approx(0.02 / 4, rel=0.02)
    assert Detector(density=5.0).prepare(strip()).prior < 1


def test_a_given_prior_counts_more_than_the_density(square: Simulation) -> None:
    assert Detector(prior=0.3, density=0.02).prepare(square.scene).prior == 0.3
    unlikely = np.array([1e-6, 1e-12, 1e-6])
    found = Detector(prior=unlikely, strength=2.0).detect(strip(), [MASK])
    assert found.q[1] < 0.5
    assert len(Detector(prior=0.2, strength=2.0).detect(strip(), [MASK]).detections) == 1


def test_without_positions_the_prior_is_that_of_the_scene() -> None:
    scene = Scene(strip().silhouettes, prior=0.07)
    assert Detector().prepare(scene).prior == 0.07
    assert Detector(density=None).prepare(strip()).prior == strip().prior
    found = Detector().detect(scene, [MASK]).detections
    assert found.location.tolist() == [1] and np.isnan(found.x).all()


@pytest.mark.parametrize("prior", [0.0, 1.0, [0.1, 0.0, 0.1], [0.1, 0.1], float("nan")])
def test_priors_must_be_probabilities_between_0_and_1(prior: object) -> None:
    with pytest.raises(InputError, match="prior"):
        Detector(prior=prior).detect(strip(), [MASK])  # type: ignore[arg-type]


@pytest.mark.parametrize("density", [0.0, -1.0, float("inf"), "many"])
def test_bad_densities(density: object) -> None:
    with pytest.raises(InputError, match="density"):
        Detector(density=density)  # type: ignore[arg-type]


def test_cell_areas() -> None:
    places, shape = grid_positions((0, 2), (0, 3), 0.5)
    boxes = Boxes(2, 2, np.tile([0, 0, 1, 1], (len(places), 1)))
    assert cell_area(Scene((boxes,), places, shape)) == pytest.approx(0.25)
    shuffled = np.random.default_rng(0).permutation(places)
    assert cell_area(Scene((boxes,), shuffled)) == pytest.approx(0.25)
    assert cell_area(strip(0.5)) == pytest.approx(0.25)
    assert cell_area(Scene((boxes,))) is None


def test_a_warm_start_is_mixed_with_the_prior() -> None:
    start = warm_start(Scene(strip().silhouettes, prior=0.1), [0.0, 1.0, 0.5])
    assert start[:, 1] == pytest.approx([0.05, 0.55, 0.3])
    assert start.sum(axis=1) == pytest.approx(1.0)
    for wrong in ([0.1, 0.2], [0.1, 0.2, 1.5]):
        with pytest.raises(InputError, match="start"):
            warm_start(strip(), wrong)


def test_cold_frames_start_at_the_prior() -> None:
    assert Detector(prior=0.07, passes=0).detect(strip(), [MASK]).q == pytest.approx(0.07)


def test_warm_starts_need_fewer_iterations(square: Simulation) -> None:
    detector = Detector(passes=200)
    frames = [square.masks(k) for k in range(3)]
    cold = list(detector.detect_many(square.scene, frames))
    warm = list(detector.detect_many(square.scene, frames, warm=True))
    assert [m.frame for m in warm] == [0, 1, 2]
    assert np.array_equal(cold[0].q, warm[0].q)
    alone = detector.detect(square.scene, frames[1], start=warm[0])
    assert np.array_equal(alone.q, warm[1].q)
    # the first F of a warm frame is below that of the prior
    assert warm[1].result.trace.free_energy[0] < cold[1].result.trace.free_energy[0]


def test_batches_equal_single_frames(square: Simulation) -> None:
    frames = [square.masks(k) for k in range(3)]
    single = list(Detector().detect_many(square.scene, frames))
    batched = list(Detector().detect_many(square.scene, frames, batch=2))
    for a, b in zip(single, batched, strict=True):
        assert a.frame == b.frame and np.array_equal(a.q, b.q)
    with pytest.raises(InputError, match="batch"):
        list(Detector().detect_many(square.scene, frames, warm=True, batch=2))


def test_a_missing_camera_is_left_out(square: Simulation) -> None:
    masks: list[object] = [*square.masks(0)]
    masks[1] = None
    assert Detector().detect(square.scene, masks).q.shape == (441,)  # type: ignore[arg-type]


def test_masks_of_another_size_are_refused(square: Simulation) -> None:
    masks = square.masks(0)
    with pytest.raises(InputError, match=r"camera 1 has 10×9 pixels.*96×72"):
        Detector().detect(square.scene, [masks[0], np.zeros((9, 10)), masks[2]])


def test_rules_and_their_parameters() -> None:
    found = Detector(rule="fixed", params={"step": 0.2}, passes=3).detect(strip(), [MASK])
    assert found.result.rule == "fixed" and found.result.iterations == 3
    with pytest.raises(InputError, match="expected"):
        Detector(rule="nothing").detect(strip(), [MASK])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "foo"}, "model"),
        ({"radius": 0.0}, "radius"),
        ({"threshold": 7.0}, "threshold"),
        ({"pool": -1.0}, "pool"),
        ({"pool": 0.8}, "expected 0 to the radius, 0.5"),
        ({"passes": -3}, "passes"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Detector(**settings)  # type: ignore[arg-type]


def test_a_small_radius_pools_less() -> None:
    assert len(Detector(radius=0.1).detect(strip(), [MASK]).detections.frames) == 1
