"""Simulated people in several calibrated cameras: a soccer pitch, and a square with a crowd.

Everything is a function of the seed and of the number of the frame, so that any frame can be made
without those before it. People walk smoothly, which makes the frame before a good start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.checks import above_zero, one_of, whole_number
from proxfield.core.common.records import Record
from proxfield.io.folders import new_folder
from proxfield.io.images import import_pillow, png_bytes
from proxfield.io.pom import format_pom
from proxfield.people.bodies import SHAPES, Mask, Noise, draw_boxes
from proxfield.people.cameras import Camera, save_cameras
from proxfield.people.scene import PRIOR, Scene, grid_positions

NEAREST_PEOPLE = 0.5
"""People keep this distance from each other, in meters."""
MARGIN = 0.5
"""People keep this distance from the border of the ground, in meters."""
MASKS = "mask-f%f-c%c.png"
"""Names of the masks: %f is the number of the frame, %c that of the camera."""

Place = tuple[float, float, float]


@dataclass(frozen=True)
class Ground:
    """What is simulated, and what is used where nothing else is asked for.

    Args:
        extent: Sides of the rectangle in meters, x and y; its center is the origin.
        people: Smallest and largest number of people.
        cameras: Number of cameras.
        size: Width and height of the images.
        spacing: Distance of neighboring locations in meters.
        speed: Mean speed of people in meters per second.
        view: Horizontal angle of view in degrees.
        mount: Height of the cameras in meters, and how far outside of the ground they are.
    """

    extent: tuple[float, float]
    people: tuple[int, int]
    cameras: int
    size: tuple[int, int]
    spacing: float
    speed: float
    view: float
    mount: tuple[float, float]


GROUNDS = {
    "pitch": Ground((105.0, 68.0), (27, 27), 6, (640, 360), 0.5, 3.0, 60.0, (16.0, 20.0)),
    "square": Ground((20.0, 20.0), (30, 50), 4, (480, 360), 0.25, 1.2, 76.0, (5.0, 5.0)),
}


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated scene; see `simulate`.

    Attributes:
        kind: "pitch" or "square".
        seed: Random seed.
        cameras: The calibrated cameras.
        scene: Locations and what people there would cover.
        n_people: Number of people.
        noise: Errors of the masks.
        shape: Shape of the bodies.
        rate: Frames per second.

    Example:
        >>> sim = simulate("square", people=3, size=(160, 120), spacing=1.0)
        >>> sim.truth(0).shape, [mask.shape for mask in sim.masks(0)][:2]
        ((3, 2), [(120, 160), (120, 160)])
    """

    kind: str
    seed: int
    cameras: tuple[Camera, ...]
    scene: Scene
    n_people: int
    noise: Noise
    shape: str
    rate: float

    def truth(self, frame: int) -> NDArray[np.float64]:
        """Where people are, in meters.  # (people, 2)"""
        half = np.array(GROUNDS[self.kind].extent) / 2 - MARGIN
        walk = self._walks
        seconds = frame / self.rate
        sway = 0.4 * np.sin(seconds * walk["pace"] + walk["phase"])
        along = walk["start"] + walk["velocity"] * seconds
        # a triangular wave: whoever reaches the border turns around
        turn = np.mod(along + half, 4 * half)
        there = np.where(turn <= 2 * half, turn, 4 * half - turn) - half
        here = np.clip(there + sway, -half, half)
        for _ in range(4):  # push people apart who are too close; they stay on the ground
            gap = here[:, None] - here[None]  # (n, n, 2)
            away = np.sqrt((gap**2).sum(axis=2))
            np.fill_diagonal(away, np.inf)
            push = 0.5 * np.maximum(0.0, NEAREST_PEOPLE - away)
            here = here + (gap * (push / np.maximum(away, 1e-9))[..., None]).sum(axis=1)
            here = np.clip(here, -half, half)
        return np.asarray(here)

    def masks(self, frame: int) -> list[Mask]:
        """The masks of all cameras: 0 for background, 255 for foreground.  # (height, width)"""
        walk = self._walks
        steps = 2.2 * frame / self.rate + walk["phase"][:, 0]
        look: Record = {"noise": self.noise, "shape": self.shape, "strides": np.abs(np.sin(steps))}
        here = self.truth(frame)
        masks = []
        for k, c in enumerate(self.cameras):
            boxes = c.rectangles(here, walk["height"], walk["radius"])
            masks.append(draw_boxes(boxes, c.width, c.height, **look, seed=(self.seed, frame, k)))
        return masks

    def frames(
        self, count: int, first: int = 0
    ) -> Iterator[tuple[list[Mask], NDArray[np.float64]]]:
        """Masks and true positions, frame by frame.

        Args:
            count: Number of frames.
            first: Number of the first one.
        """
        for frame in range(first, first + count):
            yield self.masks(frame), self.truth(frame)

    @cached_property
    def _walks(self) -> dict[str, NDArray[np.float64]]:
        """Each person's size and way."""
        rng = np.random.default_rng(self.seed)
        n, ground = self.n_people, GROUNDS[self.kind]
        half = np.array(ground.extent) / 2 - MARGIN
        angle = rng.uniform(0, 2 * np.pi, n)
        speed = ground.speed * rng.uniform(0.2, 1.8, n)
        return {
            "start": rng.uniform(-half, half, (n, 2)),
            "velocity": speed[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1),
            "pace": rng.uniform(0.3, 1.0, (n, 2)),
            "phase": rng.uniform(0, 2 * np.pi, (n, 2)),
            "height": np.clip(rng.normal(1.75, 0.09, n), 1.5, 2.0),
            "radius": np.clip(rng.normal(0.25, 0.03, n), 0.18, 0.33),
        }


def simulate(
    kind: str = "pitch",
    *,
    people: int | None = None,
    cameras: int | None = None,
    size: tuple[int, int] | None = None,
    spacing: float | None = None,
    noise: Noise | None = None,
    shape: str = "person",
    rate: float = 25.0,
    prior: float = PRIOR,
    seed: int = 0,
) -> Simulation:
    """A simulated scene with calibrated cameras; everything not given is as usual for its kind.

    Args:
        kind: "pitch", a soccer pitch with 27 players and referees and 6 cameras along its sides, or
            "square", a square with a crowd of 30 to 50 people and 4 cameras at its corners.
        people: Number of people.
        cameras: Number of cameras.
        size: Width and height of their images.
        spacing: Distance of neighboring locations in meters.
        noise: Errors of the masks; `Noise` by default.
        shape: Shape of the bodies, "person" or "superellipse".
        rate: Frames per second.
        prior: As in `Scene`.
        seed: Random seed.

    Example:
        >>> simulate("pitch", spacing=2.0, seed=1).scene.shape
        (35, 53)
    """
    one_of("kind", kind, GROUNDS)
    one_of("shape", shape, SHAPES)
    ground = GROUNDS[kind]
    seed = whole_number(seed, "seed", 0)
    step = ground.spacing if spacing is None else spacing
    above_zero("spacing", step)
    above_zero("rate", rate)
    if people is None:
        low, high = ground.people
        people = int(np.random.default_rng([seed, 1]).integers(low, high + 1))
    n_people = whole_number(people, "people", 0)
    count = ground.cameras if cameras is None else whole_number(cameras, "cameras", 1)
    width, height = ground.size if size is None else size
    width, height = whole_number(width, "width", 1), whole_number(height, "height", 1)
    places = (_along_sides if kind == "pitch" else _around)(ground, count)
    views = tuple(
        look_at(eye, aim, width, height, ground.view, str(k)) for k, (eye, aim) in enumerate(places)
    )
    x, y = ground.extent
    positions, grid = grid_positions((-x / 2, x / 2), (-y / 2, y / 2), step)
    scene = Scene.from_cameras(views, positions, grid, prior=prior)
    errors = Noise() if noise is None else noise
    return Simulation(kind, seed, views, scene, n_people, errors, shape, float(rate))


def look_at(
    eye: ArrayLike, target: ArrayLike, width: int, height: int, view: float, name: str = ""
) -> Camera:
    """A camera without distortion at a place, looking at a point, with a level horizon.

    Args:
        eye: Where the camera is, in meters.  # (3,)
        target: The point in the center of its image, not straight above or below.  # (3,)
        width: Columns of its images.
        height: Rows of its images.
        view: Horizontal angle of view in degrees.
        name: The camera's name.

    Example:
        >>> camera = look_at([0, -5, 1], [0, 0, 1], 100, 80, 90)
        >>> camera.project([[0, 0, 1]])[0].tolist()
        [[50.0, 40.0]]
    """
    where = np.asarray(eye, dtype=float)
    forward = np.asarray(target, dtype=float) - where
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    focal = width / 2 / np.tan(np.radians(view) / 2)
    matrix = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])
    return Camera(width, height, matrix, rotation, -rotation @ where, name=name)


def _along_sides(ground: Ground, count: int) -> Iterator[tuple[Place, Place]]:
    """Cameras in turn on both long sides, each looking straight across its part."""
    (length, depth), (up, out) = ground.extent, ground.mount
    for k in range(count):
        side = -1 if k % 2 == 0 else 1
        here = (count + 1 - k % 2) // 2  # cameras on this side
        x = length * ((k // 2 + 0.5) / here - 0.5)
        y = side * (depth / 2 + out)
        # halfway between the angles at which the two touchlines are seen
        down = 0.5 * (np.arctan2(up, out) + np.arctan2(up, out + depth))
        yield (x, y, up), (x, y - side * up / np.tan(down), 0.0)


def _around(ground: Ground, count: int) -> Iterator[tuple[Place, Place]]:
    """Cameras around the ground, the first four at its corners, looking at the middle."""
    up, out = ground.mount
    reach = np.hypot(*ground.extent) / 2 + out
    for k in range(count):
        angle = np.pi / 4 + 2 * np.pi * k / count
        yield (reach * np.cos(angle), reach * np.sin(angle), up), (0.0, 0.0, 0.8)


def write_simulation(
    simulation: Simulation,
    folder: str | os.PathLike[str],
    frames: int,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write frames of a simulation into a new or empty folder; all of it or nothing.

    Args:
        simulation: What to write.
        folder: Where; see the README.txt in it for its files.
        frames: Number of frames.
        progress: Called with the number of frames that are done.

    Raises:
        InputError: If the folder can't be written.
    """
    count = whole_number(frames, "frames", 1)
    pillow = import_pillow()
    with new_folder(folder) as aside:
        pom = simulation.scene.to_pom(input_format=MASKS, process=((0, count),))
        save_cameras(aside / "calibration.json", simulation.cameras)
        rows = ["frame,x,y"]
        for frame, (masks, truth) in enumerate(simulation.frames(count)):
            for k, mask in enumerate(masks):
                name = MASKS.replace("%f", str(frame)).replace("%c", str(k))
                (aside / name).write_bytes(png_bytes(pillow.fromarray(mask)))
            # a frame that nobody is in has a line too: it counts where detections are compared
            rows += [f"{frame},{x:.4f},{y:.4f}" for x, y in truth.tolist()] or [f"{frame},,"]
            if progress is not None:
                progress(frame + 1)
        assert simulation.scene.positions is not None  # a .pom file doesn't have them
        places = (f"{x:.6g},{y:.6g}" for x, y in simulation.scene.positions.tolist())
        texts = {
            "scene.pom": format_pom(pom),
            "locations.csv": "\n".join(["x,y", *places]) + "\n",
            "truth.csv": "\n".join(rows) + "\n",
            "README.txt": _describe(simulation, count),
        }
        for name, text in texts.items():
            (aside / name).write_text(text, encoding="utf-8", newline="\n")


def _describe(simulation: Simulation, frames: int) -> str:
    """The README.txt of a folder."""
    sim, scene, noise = simulation, simulation.scene, simulation.noise
    missing, speckle = noise.missing, noise.speckle
    assert scene.positions is not None and scene.shape is not None
    x, y = scene.positions[0].tolist()
    rows, columns = scene.shape
    spacing = np.ptp(scene.positions[:, 0]) / max(1, columns - 1)
    count = f"{sim.n_people} people, {len(sim.cameras)} cameras, {frames} frames"
    return f"""\
A simulated scene ({sim.kind}): {count}, {sim.rate:g} per s.
Made by proxfield make people --kind {sim.kind} --seed {sim.seed}, with the options that show below.

scene.pom         what people at each of {scene.n_locations} locations would cover in each camera
locations.csv     where these locations are: x and y in meters, one line each
calibration.json  the cameras: x = K (R X + t), in meters and pixels
{MASKS}  masks of frame %f and camera %c: 0 background, 255 foreground
truth.csv         where people are: frame, x and y in meters

Locations are those of a grid, row by row: {columns} columns from x = {x:g} m, {rows} rows from
y = {y:g} m, {spacing:g} m apart. Of each body {missing:g} is missing, {speckle:g} of each image is
speckle, and each image has {noise.blobs} blobs. Bodies have the shape "{sim.shape}".
"""
