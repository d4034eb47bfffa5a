"""One frame of ``proxfield detect``: the scene, where masks come from, and what is found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from proxfield.cli.detect_store import ResultFolder
from proxfield.cli.running import attempt
from proxfield.core.common.arrays import Doubles, Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.io.boxes import BoxMasks
from proxfield.io.files import display_name
from proxfield.io.images import read_array, read_image
from proxfield.io.masks import MaskFiles, fields, fill, find_frames, missing_file
from proxfield.io.pom import PomFile, read_dat, read_pom
from proxfield.io.video import VideoMasks
from proxfield.people.cameras import PERSON_HEIGHT, PERSON_RADIUS, Camera, load_cameras
from proxfield.people.detect import Detector, OccupancyMap
from proxfield.people.scene import Scene, grid_positions, read_cache, visible_region, write_cache
from proxfield.viz.people import write_picture
from proxfield.viz.sheets import contact_sheet

Masks = list[Doubles | None]
Source = MaskFiles | BoxMasks | VideoMasks


@dataclass(frozen=True)
class DetectInput:
    """What scene and masks are read from; it travels to other processes.

    Attributes are the command's options of these names, and:

    Attributes:
        cameras: Names of the cameras that are wanted; all by default.
        person: Height and radius in meters of the cylinder that stands for a person.
        cache: A file for the rectangles of a calibration.
    """

    scene: str | None
    calibration: str | None
    grid: float | None
    region: tuple[float, float, float, float] | None
    size: tuple[int, int] | None
    unit: str | None
    clip: bool
    scale: float
    masks: str | None
    boxes: str | None
    video: tuple[str, ...]
    missing: str
    min_score: float
    cameras: tuple[str, ...] | None
    person: tuple[float, float]
    cache: str

    @property
    def in_order(self) -> bool:
        """Whether frames can be read in their order only."""
        return bool(self.video)

    @property
    def pattern(self) -> str:
        """Names of the pictures of masks: as given, or as the .pom file says."""
        if self.masks is not None:
            return self.masks
        pom = load_scene(self).pom
        if pom is None or pom.input_format is None:
            raise InputError(
                "has no INPUT_VIEW_FORMAT, expected --masks, --video or --boxes",
                path=display_name(self.scene),
            )
        return pom.resolve(pom.input_format)

    @property
    def videos(self) -> tuple[str, ...]:
        """The video of each camera."""
        if len(self.video) == 1 and "camera" in fields(self.video[0]):
            names = load_scene(self).scene.names
            return tuple(fill(self.video[0], camera=camera) for camera in names)
        return self.video

    def describe(self) -> Record:
        """What results depend on, for the file of settings."""
        if self.video:
            return {"video": [os.path.realpath(path) for path in self.videos]}
        if self.boxes is not None:
            path = os.path.realpath(self.boxes)
            return {"boxes": path, "min_score": self.min_score, "missing": self.missing}
        return {"masks": os.path.realpath(self.pattern), "missing": self.missing}

    def choose(self, wanted: Sequence[int] | None) -> list[int]:
        """The frames to examine: all there are, or those wanted if they are there.

        Raises:
            InputError: If one is missing.
        """
        source = open_source(self)
        there = source.frames()
        frames = there if wanted is None else list(dict.fromkeys(wanted))
        if not frames:
            raise InputError("there are no frames, expected at least one")
        if isinstance(source, MaskFiles) and self.missing == "error":
            for camera in load_scene(self).scene.names:
                known = set(find_frames(source.pattern, camera))
                for frame in frames:
                    if frame not in known:
                        raise missing_file(source.pattern, camera, frame)
        lost = sorted(set(frames) - set(there))
        if lost:
            range_ = f"{there[0]} to {there[-1]}" if there else "none"
            raise InputError(f"frame {lost[0]} is missing: there are {range_}")
        return sorted(frames) if self.in_order else frames

    def read(self, frame: int) -> Masks:
        """The masks of a frame; of videos all frames before it are looked at too."""
        return open_source(self).read(frame)


@dataclass(frozen=True, eq=False)
class LoadedScene:
    """A scene, and what else its files say.

    Attributes:
        scene: At the resolution of the masks.
        sizes: Width and height of each camera's images at full resolution.
        pom: The ``.pom`` file.
        views: The cameras whose rectangles were computed and not read from a file.
        person: Height and radius of a person in them.
    """

    scene: Scene
    sizes: tuple[tuple[int, int], ...]
    pom: PomFile | None = None
    views: tuple[Camera, ...] = ()
    person: tuple[float, float] = (PERSON_HEIGHT, PERSON_RADIUS)

    @property
    def region(self) -> list[float] | None:
        """Smallest x and y, largest x and y of the locations."""
        places = self.scene.positions
        if places is None:
            return None
        return [*places.min(axis=0).tolist(), *places.max(axis=0).tolist()]

    def keep(self, cache: str) -> None:
        """Write rectangles that were computed to a file."""
        if self.views:
            write_cache(cache, self.views, self.scene, self.person)


@lru_cache(maxsize=1)
def load_scene(files: DetectInput) -> LoadedScene:
    """The scene, read once per process."""
    if files.scene is None:
        return _from_calibration(files)
    pom = read_pom(files.scene, size=files.size, clip=files.clip)
    name = display_name(files.scene)
    if files.cameras is not None:
        known = {str(camera): k for k, camera in enumerate(pom.cameras)}
        lost = [c for c in files.cameras if c not in known]
        if lost:
            raise InputError(
                f"has no camera {lost[0]}, expected some of: {', '.join(known)}", path=name
            )
        some = [known[c] for c in files.cameras]
        pom = replace(
            pom,
            cameras=tuple(pom.cameras[k] for k in some),
            sizes=tuple(pom.sizes[k] for k in some),
            boxes=tuple(pom.boxes[k] for k in some),
        )
    places, shape = None, None
    if files.grid is not None and files.region is not None:
        x0, y0, x1, y1 = files.region
        places, shape = grid_positions((x0, x1), (y0, y1), files.grid)
        if len(places) != pom.n_locations:
            raise InputError(
                f"has {pom.n_locations} locations, but --grid and --region make {shape[1]}×"
                f"{shape[0]} of them",
                path=name,
            )
    try:
        scene = Scene.from_pom(pom, positions=places, shape=shape)
    except InputError as error:
        raise InputError(error.message, path=name) from None
    scene = scene if files.scale == 1 else scene.scaled(files.scale)
    return LoadedScene(scene, pom.sizes, pom)


def _from_calibration(files: DetectInput) -> LoadedScene:
    assert files.calibration is not None and files.grid is not None
    full = load_cameras(files.calibration, names=files.cameras, size=files.size, unit=files.unit)
    x0, y0, x1, y1 = files.region or visible_region(full)
    places, shape = grid_positions((x0, x1), (y0, y1), files.grid)
    sizes = tuple((camera.width, camera.height) for camera in full)
    views = full if files.scale == 1 else tuple(c.scaled(files.scale) for c in full)
    kept = read_cache(files.cache, views, places, shape, files.person)
    if kept is not None:
        return LoadedScene(kept, sizes)
    height, radius = files.person
    scene = Scene.from_cameras(views, places, shape, person_height=height, person_radius=radius)
    return LoadedScene(scene, sizes, None, views, files.person)


@lru_cache(maxsize=1)
def open_source(given: DetectInput) -> Source:
    """Files are looked for once per process; a camera without masks is an error."""
    loaded, missing = load_scene(given), given.missing
    cameras = (loaded.scene.names, loaded.sizes, given.scale)
    if given.video:
        return VideoMasks(given.videos, *cameras)
    if given.boxes is not None:
        return BoxMasks(given.boxes, *cameras, given.min_score, missing=missing)
    return MaskFiles(given.pattern, *cameras, missing)


def forget() -> None:
    """Read files anew: they may have changed since an earlier call in this process."""
    load_scene.cache_clear()
    open_source.cache_clear()


def read_prior(given: str, n_locations: int) -> float | Doubles:
    """A number, or probabilities of all locations from a ``.npy`` or ``.dat`` file."""
    try:
        value = float(given)
    except ValueError:
        pass
    else:
        if not 0 < value < 1:
            raise InputError(f"--prior {given}, expected a probability above 0 and below 1")
        return value
    name = display_name(given)
    if Path(given).suffix.lower() == ".dat":
        array = read_dat(given)
    else:
        array = read_array(given, "a number, or a probability per location")
    found = np.asarray(array, dtype=np.float64).ravel()
    if found.size != n_locations:
        raise InputError(
            f"--prior: has {found.size} numbers for {n_locations} locations", path=name
        )
    wrong = np.flatnonzero(~((found > 0) & (found < 1)))
    if wrong.size:
        k = int(wrong[0])
        raise InputError(
            f"--prior: location {k} has {found[k]:g}, expected a probability above 0 and below 1",
            path=name,
        )
    return found


@dataclass(frozen=True, eq=False)
class FrameWork:
    """What to do with each frame; it travels to other processes."""

    input: DetectInput
    detector: Detector
    store: ResultFolder
    images: str | None = None
    """Pattern for frames to draw on, instead of masks."""


@dataclass(frozen=True, eq=False)
class FrameTask:
    """A frame; with its masks if they can't be read where the work is done."""

    frame: int
    masks: Masks | None = None


# ---- one frame ----


def detect_one(task: FrameTask, work: FrameWork) -> Record:
    """Find people in one frame and write the results; a failure becomes an entry of the record."""
    return detect_from(task, work, None)[0]


def detect_from(
    task: FrameTask, work: FrameWork, before: Doubles | None
) -> tuple[Record, OccupancyMap | None]:
    """The record of a frame, and what was found, from a map to start from."""
    record: Record = {"frame": task.frame, "error": None}

    def step() -> OccupancyMap:
        scene = load_scene(work.input).scene
        masks = work.input.read(task.frame) if task.masks is None else task.masks
        found = work.detector.detect(scene, masks, start=before, frame=task.frame)
        if found.result.status.name == "INTERRUPTED":  # never pass for finished
            raise KeyboardInterrupt
        if work.store.pictures:  # all cameras, and the ground from above
            images: list[Pixels | None] = list(masks)
            if work.images is not None:
                images = read_images(work.images, scene, task.frame)
            d, title = found.detections, f"frame {task.frame}: {len(found.detections)} people"
            at: Record = {"detections": None if scene.positions is None else d.positions}
            picture = contact_sheet(
                scene, images, found.q, locations=d.location, threshold=0.0, title=title, **at
            )
            write_picture(work.store.file(task.frame, "png"), picture)
        record.update(work.store.write_frame(found))
        return found

    return record, attempt(record, name_of(task), step)


def read_images(pattern: str, scene: Scene, frame: int) -> list[Pixels | None]:
    """The pictures of a frame to draw on, one per camera."""
    return [read_image(fill(pattern, camera=c, frame=frame)) for c in scene.names]


def name_of(task: FrameTask) -> str:
    """What to call a frame in an error."""
    return f"frame {task.frame}"
