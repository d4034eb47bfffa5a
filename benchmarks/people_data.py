"""People in real scenes, for development: PETS 2009 and WILDTRACK as scenes, masks and truth.

    python benchmarks/people_data.py --data FOLDER

prints what is in FOLDER and the score of PETS' view-1 detector alone. FOLDER holds ``pets2009``
(``calibration.json``, ``detections_View_00?.json``, ``PETS2009-S2L1_gt_view001.xml``) and
``wildtrack`` (``calibrations``, ``annotations_positions``). The data are not part of the project.
There are no images: PETS' masks are the boxes of a detector, WILDTRACK's are drawn from the
annotations with the simulator's errors. PETS' lenses need OpenCV (opencv-python-headless).
"""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxfield.people.bodies import Noise, draw_boxes
from proxfield.people.cameras import Camera, load_cameras
from proxfield.people.detections import Detections
from proxfield.people.evaluation import evaluate
from proxfield.people.scene import Scene, grid_positions

PETS_VIEWS = (1, 5, 6, 7, 8)
PETS_REGION = ((-14.0696, -14.274), (4.9813, 1.7335))
"""The tracking area that is customary for S2L1: least x and y, greatest x and y, in meters."""
PETS_SCORE = 0.5
"""Detections below this score aren't used."""
WILDTRACK_CAMERAS = ("CVLab1", "CVLab2", "CVLab3", "CVLab4", "IDIAP1", "IDIAP2", "IDIAP3")
WILDTRACK_SIZE = (1920, 1080)
WILDTRACK_REGION = ((-3.0, -9.0), (9.0, 27.0))

Region = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Recording:
    """Frames of a scene with truth.

    Attributes:
        name: Of the data.
        scene: Locations and silhouettes, at the resolution of the masks.
        cameras: At the resolution of the masks.
        frames: Their numbers.
        masks: The masks of a frame by its number, one per camera.
        truth: Where people are by the number of the frame, inside the region.  # (people, 2) each
        region: Least and greatest x and y in which people are annotated; detections outside
            don't count.
        radius: Distance in meters up to which a detection is right.
        baseline: Positions found by one camera's detector alone by the number of the frame.
    """

    name: str
    scene: Scene
    cameras: tuple[Camera, ...]
    frames: tuple[int, ...]
    masks: Callable[[int], list[np.ndarray]]
    truth: dict[int, np.ndarray]
    region: Region
    radius: float
    baseline: dict[int, np.ndarray] | None = None

    def __iter__(self) -> Iterator[tuple[int, list[np.ndarray], np.ndarray]]:
        """Number, masks and truth of each frame."""
        for frame in self.frames:
            yield frame, self.masks(frame), self.truth[frame]


def inside(points: np.ndarray, region: Region) -> np.ndarray:
    """Those points that are in a region.  # (n, 2) -> (m, 2)"""
    low, high = np.array(region)
    return points[((points >= low) & (points <= high)).all(axis=1)]


def grid_of(region: Region, spacing: float, margin: float) -> tuple[np.ndarray, tuple[int, int]]:
    """Locations in a region and a margin around it."""
    (x0, y0), (x1, y1) = region
    return grid_positions((x0 - margin, x1 + margin), (y0 - margin, y1 + margin), spacing)


# ---- PETS 2009, S2L1 ----


def pets_camera(folder: Path, view: int) -> Camera:
    """One camera, in meters and pixels of the original images."""
    size = (768 if view == 1 else 720, 576)
    path = folder / "calibration.json"
    return load_cameras(path, names=[f"View_{view:03d}"], size=size, unit="mm")[0]


def to_ground(camera: Camera, pixels: np.ndarray) -> np.ndarray:
    """Where the rays of pixels meet the ground z = 0.  # (n, 2) -> (n, 2)"""
    import cv2

    if len(pixels) == 0:
        return np.zeros((0, 2))
    given = np.asarray(pixels, dtype=float).reshape(-1, 1, 2)
    plane = cv2.undistortPoints(given, camera.matrix, camera.distortion).reshape(-1, 2)
    rays = np.c_[plane, np.ones(len(plane))] @ camera.rotation
    reach = -camera.center[2] / rays[:, 2]
    return (camera.center + reach[:, None] * rays)[:, :2]


def pets_boxes(folder: Path, view: int, score: float) -> dict[int, np.ndarray]:
    """Boxes of the detector: left, top, right, bottom, score by the number of the frame."""
    given = json.loads((folder / f"detections_View_{view:03d}.json").read_text())
    found = {}
    for frame, boxes, scores in zip(given["idxs"], given["bboxes"], given["scores"], strict=True):
        rows = np.c_[np.reshape(boxes, (-1, 4)), np.reshape(scores, (-1, 1))]
        found[frame] = rows[rows[:, 4] >= score]
    return found


def pets_truth(folder: Path, region: Region = PETS_REGION) -> dict[int, np.ndarray]:
    """Positions by the number of the frame: the foot points of view 1's boxes on the ground."""
    camera = pets_camera(folder, 1)
    truth = {}
    for frame in ElementTree.parse(folder / "PETS2009-S2L1_gt_view001.xml").getroot().iter("frame"):
        boxes = [[float(b.get(k)) for k in ("xc", "yc", "h")] for b in frame.iter("box")]
        feet = np.array([[x, y + h / 2] for x, y, h in boxes]).reshape(-1, 2)
        truth[int(frame.get("number"))] = inside(to_ground(camera, feet), region)
    return truth


def pets_baseline(
    folder: Path, score: float = PETS_SCORE, region: Region = PETS_REGION
) -> dict[int, np.ndarray]:
    """What view 1's detector finds on its own: the foot points of its boxes on the ground."""
    camera = pets_camera(folder, 1)
    found = {}
    for frame, rows in pets_boxes(folder, 1, score).items():
        feet = np.c_[(rows[:, 0] + rows[:, 2]) / 2, rows[:, 3]]
        found[frame] = inside(to_ground(camera, feet), region)
    return found


def pets(
    folder: Path,
    *,
    spacing: float = 0.25,
    scale: float = 0.25,
    views: Sequence[int] = PETS_VIEWS,
    every: int = 5,
    first: int = 0,
    score: float = PETS_SCORE,
    soft: bool = False,
    margin: float = 0.0,
    **person: float,
) -> Recording:
    """PETS 2009 S2L1: the boxes of a detector in several views as masks.

    Args:
        folder: ``pets2009``.
        spacing: Distance of locations in meters.
        scale: Resolution of the masks.
        views: Cameras to use.
        every: Use every so many frames; 1 for all, 5 for the 80 development frames.
        first: The first frame.
        score: Least score of the boxes that are used.
        soft: Boxes count as much as their score.
        margin: Meters around the tracking area where there are locations, too.
        **person: As in `Camera.silhouettes`.
    """
    cameras = tuple(pets_camera(folder, view).scaled(scale) for view in views)
    boxes = [pets_boxes(folder, view, score) for view in views]
    positions, shape = grid_of(PETS_REGION, spacing, margin)
    scene = Scene.from_cameras(cameras, positions, shape, **person)
    truth = pets_truth(folder)

    def masks(frame: int) -> list[np.ndarray]:
        out = []
        for camera, found in zip(cameras, boxes, strict=True):
            mask = np.zeros((camera.height, camera.width))
            for *box, weight in found.get(frame, ()):
                left, top, right, bottom = np.maximum(np.rint(np.multiply(box, scale)), 0).astype(
                    int
                )
                part = mask[top:bottom, left:right]
                np.maximum(part, weight if soft else 1.0, out=part)
            out.append(mask)
        return out

    frames = tuple(sorted(truth))[first::every]
    return Recording(
        "PETS 2009 S2L1", scene, cameras, frames, masks, truth, PETS_REGION, 1.0,
        pets_baseline(folder, score),
    )  # fmt: skip


# ---- WILDTRACK ----


def wildtrack_cameras(folder: Path) -> tuple[Camera, ...]:
    """The cameras of the undistorted images, in meters and pixels."""
    return load_cameras(folder / "calibrations", names=WILDTRACK_CAMERAS, size=WILDTRACK_SIZE)


def wildtrack_annotations(folder: Path) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Positions and boxes in all views by the number of the frame; NaN where not visible.

    # (people, 2), (cameras, people, 4)
    """
    found = {}
    for path in sorted((folder / "annotations_positions").glob("*.json")):
        people = json.loads(path.read_text())
        ids = np.array([p["positionID"] for p in people], dtype=np.int64)
        where = np.stack([-3.0 + 0.025 * (ids % 480), -9.0 + 0.025 * (ids // 480)], axis=1)
        boxes = np.full((len(WILDTRACK_CAMERAS), len(people), 4), np.nan)
        for k, person in enumerate(people):
            for v in person["views"]:
                if v["xmax"] > v["xmin"]:
                    boxes[v["viewNum"], k] = [v["xmin"], v["ymin"], v["xmax"] + 1, v["ymax"] + 1]
        found[int(path.stem)] = (where, boxes)
    return found


def wildtrack(
    folder: Path,
    *,
    spacing: float = 0.2,
    scale: float = 0.25,
    every: int = 1,
    first: int = 0,
    noise: Noise | None = None,
    shape: str = "superellipse",
    seed: int = 0,
    margin: float = 0.0,
    **person: float,
) -> Recording:
    """WILDTRACK: masks drawn from the annotated boxes with the simulator's errors.

    Args:
        folder: ``wildtrack``.
        spacing: Distance of locations in meters.
        scale: Resolution of the masks.
        every: Use every so many frames.
        first: Position of the first frame among those annotated.
        noise: Errors of the masks; by default the simulator's.
        shape: Of the bodies.
        seed: Random seed of the errors.
        margin: Meters around the annotated region where there are locations, too.
        **person: As in `Camera.silhouettes`.
    """
    cameras = tuple(camera.scaled(scale) for camera in wildtrack_cameras(folder))
    annotations = wildtrack_annotations(folder)
    positions, grid = grid_of(WILDTRACK_REGION, spacing, margin)
    scene = Scene.from_cameras(cameras, positions, grid, **person)

    def masks(frame: int) -> list[np.ndarray]:
        boxes = annotations[frame][1] * scale
        return [
            draw_boxes(
                boxes[k], camera.width, camera.height, noise=noise, shape=shape,
                seed=(seed, frame, k),
            )
            for k, camera in enumerate(cameras)
        ]  # fmt: skip

    truth = {frame: inside(where, WILDTRACK_REGION) for frame, (where, _) in annotations.items()}
    frames = tuple(sorted(truth))[first::every]
    return Recording("WILDTRACK", scene, cameras, frames, masks, truth, WILDTRACK_REGION, 0.5)


# ---- what is there ----


def as_detections(points: dict[int, np.ndarray], frames: Sequence[int]) -> Detections:
    """Positions by the number of the frame, for `evaluate`."""
    numbers = np.repeat(frames, [len(points[f]) for f in frames])
    x, y = np.concatenate([points[f] for f in frames]).T
    return Detections(numbers, x, y, frames=frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    folder = parser.parse_args().data
    for recording in (pets(folder / "pets2009"), wildtrack(folder / "wildtrack")):
        people = sum(len(recording.truth[f]) for f in recording.frames)
        print(
            f"{recording.name}: {len(recording.frames)} frames, {people} people, "
            f"{recording.scene.n_locations} locations, {len(recording.cameras)} cameras"
        )
    truth = pets_truth(folder / "pets2009")
    for least in (0.5, 0.7, 0.9):
        alone = pets_baseline(folder / "pets2009", least)
        for every, which in ((5, "development frames"), (1, "all frames")):
            frames = sorted(truth)[::every]
            score = evaluate(as_detections(alone, frames), as_detections(truth, frames), 1.0)
            print(f"PETS view 1's detector alone, score at least {least}, {which}: {score}")


if __name__ == "__main__":
    main()
