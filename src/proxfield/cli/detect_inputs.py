"""What ``proxfield detect`` reads: the scene, and where masks come from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.io.boxes import MIN_SCORE, BoxMasks
from proxfield.io.files import display_name
from proxfield.io.images import read_array
from proxfield.io.masks import MaskFiles, fields, fill, find_frames, missing_file
from proxfield.io.pom import PomFile, read_dat, read_pom
from proxfield.io.video import VideoMasks
from proxfield.people.cameras import PERSON_HEIGHT, PERSON_RADIUS, Camera, load_cameras
from proxfield.people.scene import Scene, grid_positions, read_cache, visible_region, write_cache

Masks = list[Doubles | None]
Source = MaskFiles | BoxMasks | VideoMasks


@dataclass(frozen=True)
class SceneFiles:
    """Where the scene comes from; it travels to other processes.

    Args:
        pom: A ``.pom`` file, or
        calibration: a calibration, with
        grid: the distance of locations in meters, and
        region: smallest x and y, largest x and y of the locations in meters.
        cameras: Names of the cameras that are wanted; all by default.
        size: Width and height of images, where files don't say.
        unit: Of the calibration.
        clip: Cut rectangles that reach outside of the image.
        scale: Resolution of the masks relative to the images.
        person: Height and radius in meters of the cylinder that stands for a person.
        cache: A file for the rectangles of a calibration.
    """

    pom: str | None = None
    calibration: str | None = None
    grid: float | None = None
    region: tuple[float, float, float, float] | None = None
    cameras: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    unit: str | None = None
    clip: bool = False
    scale: float = 1.0
    person: tuple[float, float] = (PERSON_HEIGHT, PERSON_RADIUS)
    cache: str | None = None


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

    def keep(self, cache: Path) -> None:
        """Write rectangles that were computed to a file."""
        if self.views:
            write_cache(cache, self.views, self.scene, self.person)


@lru_cache(maxsize=1)
def load_scene(files: SceneFiles) -> LoadedScene:
    """The scene, read once per process."""
    return _from_pom(files) if files.pom is not None else _from_calibration(files)


def _from_pom(files: SceneFiles) -> LoadedScene:
    assert files.pom is not None
    pom = read_pom(files.pom, size=files.size, clip=files.clip)
    name = display_name(files.pom)
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


def _from_calibration(files: SceneFiles) -> LoadedScene:
    assert files.calibration is not None and files.grid is not None
    full = load_cameras(files.calibration, names=files.cameras, size=files.size, unit=files.unit)
    x0, y0, x1, y1 = files.region or visible_region(full)
    places, shape = grid_positions((x0, x1), (y0, y1), files.grid)
    sizes = tuple((camera.width, camera.height) for camera in full)
    views = full if files.scale == 1 else tuple(c.scaled(files.scale) for c in full)
    kept = None
    if files.cache is not None:
        kept = read_cache(files.cache, views, places, shape, files.person)
    if kept is not None:
        return LoadedScene(kept, sizes)
    height, radius = files.person
    scene = Scene.from_cameras(views, places, shape, person_height=height, person_radius=radius)
    return LoadedScene(scene, sizes, None, views, files.person)


@dataclass(frozen=True)
class MaskInput:
    """Where masks come from, one of three; it travels to other processes.

    Args:
        masks: Pattern for the names of pictures, or
        boxes: a file or a pattern for files of detectors' boxes, or
        video: a video per camera, or a pattern for them.
        missing: What to do about a frame that a camera doesn't have, as in `MaskFiles`.
        min_score: Boxes of a lower score are dropped.
        cameras: Names of the cameras.
        sizes: Width and height of each camera's images at full resolution.
        scale: Resolution of the masks relative to that.
    """

    masks: str | None = None
    boxes: str | None = None
    video: tuple[str, ...] = ()
    missing: str = "error"
    min_score: float = MIN_SCORE
    cameras: tuple[str, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    scale: float = 1.0

    @property
    def in_order(self) -> bool:
        """Whether frames can be read in their order only."""
        return bool(self.video)

    def describe(self) -> Record:
        """What results depend on, for the file of settings."""
        if self.video:
            return {"video": [os.path.realpath(path) for path in self.videos]}
        if self.boxes is not None:
            path = os.path.realpath(self.boxes)
            return {"boxes": path, "min_score": self.min_score, "missing": self.missing}
        assert self.masks is not None
        return {"masks": os.path.realpath(self.masks), "missing": self.missing}

    @property
    def videos(self) -> tuple[str, ...]:
        """The video of each camera."""
        if len(self.video) == 1 and "camera" in fields(self.video[0]):
            return tuple(fill(self.video[0], camera=camera) for camera in self.cameras)
        return self.video

    @property
    def source(self) -> Source:
        """Opened; a camera without masks is an error."""
        return open_source(self)

    def choose(self, wanted: Sequence[int] | None) -> list[int]:
        """The frames to examine: all there are, or those wanted if they are there.

        Raises:
            InputError: If one is missing.
        """
        there = self.source.frames()
        frames = there if wanted is None else list(dict.fromkeys(wanted))
        if not frames:
            raise InputError("there are no frames, expected at least one")
        if isinstance(self.source, MaskFiles) and self.missing == "error":
            for camera in self.cameras:
                known = set(find_frames(self.source.pattern, camera))
                for frame in frames:
                    if frame not in known:
                        raise missing_file(self.source.pattern, camera, frame)
        lost = sorted(set(frames) - set(there))
        if lost:
            raise InputError(
                f"frame {lost[0]} is missing: there are {there[0]} to {there[-1]}"
                if there
                else f"frame {lost[0]} is missing: there are none"
            )
        return sorted(frames) if self.in_order else frames

    def read(self, frame: int) -> Masks:
        """The masks of a frame; of videos all frames before it are looked at too."""
        return self.source.read(frame)


@lru_cache(maxsize=1)
def open_source(given: MaskInput) -> Source:
    """Files are looked for once per process."""
    if given.video:
        return VideoMasks(given.videos, given.cameras, given.sizes, given.scale)
    if given.boxes is not None:
        return BoxMasks(
            given.boxes, given.cameras, given.sizes, given.scale, given.min_score,
            missing=given.missing,
        )  # fmt: skip
    assert given.masks is not None
    return MaskFiles(given.masks, given.cameras, given.sizes, given.scale, given.missing)


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
