"""The simulator: seeded, with bodies where people stand and errors at the rates asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.people.bodies import SHAPES, Noise, draw_boxes, smooth_noise
from proxfield.people.simulate import GROUNDS, Simulation, look_at, simulate


def small(kind: str = "square", **options: object) -> Simulation:
    given = {"people": 8, "size": (160, 120), "spacing": 1.0, "seed": 3, **options}
    return simulate(kind, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", sorted(GROUNDS))
def test_the_same_seed_gives_the_same_frames(kind: str) -> None:
    one, two, other = small(kind), small(kind), small(kind, seed=4)
    for frame in (0, 7):
        assert np.array_equal(one.truth(frame), two.truth(frame))
        for a, b in zip(one.masks(frame), two.masks(frame), strict=True):
            assert np.array_equal(a, b)
    assert not np.array_equal(one.truth(0), other.truth(0))
    assert any((a != b).any() for a, b in zip(one.masks(0), other.masks(0), strict=True))


def test_any_frame_can_be_made_alone() -> None:
    sim = small()
    masks, truth = list(sim.frames(3, first=5))[1]
    assert np.array_equal(truth, sim.truth(6))
    assert all(np.array_equal(a, b) for a, b in zip(masks, sim.masks(6), strict=True))


def test_errors_are_new_in_every_frame_and_camera_and_for_every_seed() -> None:
    first = small(people=0)  # errors alone
    seen = [*first.masks(0), *first.masks(1), *small(people=0, seed=4).masks(0)]
    assert len({mask.tobytes() for mask in seen}) == len(seen)


@pytest.mark.parametrize("kind", sorted(GROUNDS))
def test_defaults_of_each_kind(kind: str) -> None:
    sim = simulate(kind, spacing=4.0, seed=2)
    ground = GROUNDS[kind]
    assert ground.people[0] <= sim.n_people <= ground.people[1]
    assert len(sim.cameras) == ground.cameras
    assert [mask.shape for mask in sim.masks(0)] == [ground.size[::-1]] * ground.cameras
    seen = np.sum([s.visible for s in sim.scene.silhouettes], axis=0)
    assert (seen >= 1).all()
    assert (seen >= 2).mean() > 0.95


@pytest.mark.parametrize("kind", sorted(GROUNDS))
def test_people_move_smoothly_and_stay_on_the_ground_apart_from_each_other(kind: str) -> None:
    sim = simulate(kind, spacing=4.0, seed=1)
    where = np.stack([sim.truth(frame) for frame in range(0, 200)])
    assert (np.abs(where) <= np.array(GROUNDS[kind].extent) / 2).all()
    steps = np.linalg.norm(np.diff(where, axis=0), axis=2)
    assert 0.01 < steps.mean() < 0.3  # meters per frame
    assert np.quantile(steps, 0.99) < 0.3
    assert steps.max() < 0.7  # two people who meet head-on step aside
    gaps = np.linalg.norm(where[:, :, None] - where[:, None], axis=3)
    gaps[:, range(sim.n_people), range(sim.n_people)] = np.inf
    assert gaps.min() > 0.3


def test_masks_without_errors_lie_inside_the_projected_people_and_fill_much_of_them() -> None:
    sim = small(noise=Noise.none())
    heights, radii = sim._walks["height"], sim._walks["radius"]
    for camera, mask in zip(sim.cameras, sim.masks(0), strict=True):
        rectangles = camera.rectangles(sim.truth(0), heights, radii)
        boxes = np.floor(rectangles + 0.5).astype(int)
        covered = np.zeros(mask.shape, dtype=bool)
        for left, top, right, bottom in np.maximum(boxes, 0):
            covered[top:bottom, left:right] = True
            body = mask[top:bottom, left:right]
            assert body.size == 0 or (body > 0).mean() > 0.4
        assert not mask[~covered].any()
        assert set(np.unique(mask)) == {0, 255}


def test_a_person_at_a_location_covers_its_silhouette() -> None:
    sim = small(noise=Noise.none())
    at = sim.scene.n_locations // 3
    assert sim.scene.positions is not None
    here = sim.scene.positions[at : at + 1]
    for camera, s in zip(sim.cameras, sim.scene.silhouettes, strict=True):
        mask = draw_boxes(camera.rectangles(here), s.width, s.height, noise=Noise.none())
        inside = np.zeros(s.height * s.width, dtype=bool)
        inside[s.pixels(at)] = True
        inside = inside.reshape(s.height, s.width)
        assert not mask[~inside].any()
        assert (mask[inside] > 0).mean() > 0.6


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("missing", [0.15, 0.4])
def test_share_of_each_body_that_is_missing(shape: str, missing: float) -> None:
    box = [[10.0, 10.0, 50.0, 130.0]]
    whole = draw_boxes(box, 60, 140, noise=Noise.none(), shape=shape) > 0
    noise = replace(Noise.none(), missing=missing)
    seen = draw_boxes(box, 60, 140, noise=noise, shape=shape, seed=4) > 0
    assert not (seen & ~whole).any()
    assert 1 - seen.sum() / whole.sum() == pytest.approx(missing, abs=0.01)
    # in patches: most pixels that are missing have a missing neighbor to the right
    gone = whole & ~seen
    assert (gone[:, :-1] & gone[:, 1:]).sum() > 0.7 * gone.sum()


def test_share_of_speckle_and_number_of_blobs() -> None:
    empty = np.zeros((0, 4))
    spots = draw_boxes(empty, 300, 200, noise=Noise(0, 0.02, 0), seed=1) > 0
    assert spots.mean() == pytest.approx(0.02, abs=0.002)
    assert (spots[:, :-1] & spots[:, 1:]).sum() > 0.3 * spots.sum()  # smooth, not single pixels
    bodies = [[100.0, 50.0, 140.0, 150.0]]
    sizes = [
        (draw_boxes(bodies, 300, 200, noise=Noise(0, 0, n), seed=1) > 0).sum() for n in (0, 1, 6)
    ]
    assert sizes[0] < sizes[1] < sizes[2]


def test_soft_edges() -> None:
    box = [[10.0, 10.0, 40.0, 60.0]]
    hard = draw_boxes(box, 50, 70, noise=Noise.none())
    soft = draw_boxes(box, 50, 70, noise=replace(Noise.none(), soft=2))
    assert len(np.unique(soft)) > 5
    assert np.array_equal(soft >= 128, hard > 0) or ((soft >= 128) != (hard > 0)).mean() < 0.02
    assert soft.mean() == pytest.approx(hard.mean(), rel=0.02)


def test_bodies_behind_the_camera_or_outside_of_the_image_are_not_drawn() -> None:
    camera = look_at([0, -5, 2], [0, 0, 1], 80, 60, 60)
    people = [[0.0, -20.0], [500.0, 5.0], [0.0, 1.0]]
    boxes = camera.rectangles(people)
    mask = draw_boxes(boxes, 80, 60, noise=Noise.none())
    alone = draw_boxes(boxes[2:], 80, 60, noise=Noise.none())
    assert np.array_equal(mask, alone)
    assert alone.any()
    boxes = [[np.nan] * 4, [-1e300, 0, -1e299, 5], [90, 0, 95, 9], [5, 5, 5, 9]]
    assert not draw_boxes(boxes, 80, 60, noise=Noise.none()).any()


def test_smooth_noise_is_smooth_and_of_the_size_asked_for() -> None:
    texture = smooth_noise(np.random.default_rng(0), 37, 53, 3, 4)
    assert texture.shape == (37, 53)
    assert np.abs(np.diff(texture, axis=0)).max() < 0.5
    assert texture.std() > 0.3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "beach"}, "kind='beach', expected one of: pitch, square"),
        ({"shape": "cube"}, "shape='cube', expected one of"),
        ({"people": -1}, "people=-1"),
        ({"cameras": 0}, "cameras=0"),
        ({"spacing": 0.0}, "spacing=0"),
        ({"seed": -1}, "seed=-1"),
        ({"size": (0, 10)}, "width=0"),
    ],
)
def test_bad_arguments(options: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        simulate(**options)  # type: ignore[arg-type]


def test_bad_noise_and_shapes() -> None:
    with pytest.raises(InputError, match=r"missing=1\.5"):
        Noise(missing=1.5)
    with pytest.raises(InputError, match="blobs=-1"):
        Noise(blobs=-1)
    with pytest.raises(InputError, match="shape='cube'"):
        draw_boxes([[0, 0, 1, 1]], 4, 4, shape="cube")
