"""Masks from videos by background subtraction (OpenCV's MOG2). Needs the extra ``video``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError
from proxfield.io.files import display_name
from proxfield.io.masks import Size, check_source, scaled_size

FOREGROUND = 255
"""What MOG2 marks people with; it marks shadows with 127."""


def import_opencv() -> ModuleType:
    """OpenCV's module, or how to install it."""
    # its libraries print about unreadable files on their own; an error of ours says it in a line
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    module: ModuleType = import_extra("cv2", "videos need OpenCV", "video")
    return module


@contextmanager
def _quiet(cv2: ModuleType) -> Iterator[None]:
    """Without what OpenCV prints itself."""
    switch = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel
    before = switch(0)
    try:
        yield
    finally:
        switch(before)


class EndOfVideoError(InputError):
    """A video ends before a frame, whatever its header says.

    Attributes:
        frames: Number of frames that all videos have.
    """

    def __init__(self, message: str, frames: int) -> None:
        super().__init__(message)
        self.frames = frames


@dataclass
class VideoMasks:
    """Masks from videos that were taken at the same time.

    A mixture of Gaussians per pixel learns the background from the frames so far, so that masks
    are made in the order of the frames, and those of the first frames are worth little. Frames are
    scaled (by area) before; shadows count as background.

    Args:
        paths: Of each camera's video.
        cameras: Names of the cameras.
        sizes: Width and height that videos must have; by default any.
        scale: Resolution of the masks relative to the videos.
        history: Number of frames that the background is learned from.
        threshold: Squared distance, in variances, from which a pixel is foreground.

    Raises:
        InputError: If a file is missing, is no video, or has another size.
    """

    paths: tuple[str, ...]
    cameras: tuple[str, ...]
    sizes: tuple[Size, ...] | None = None
    scale: float = 1.0
    history: int = 500
    threshold: float = 16.0
    _run: Iterator[tuple[int, list[Doubles | None]]] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _next: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.cameras):
            raise InputError(f"{len(self.paths)} videos for {len(self.cameras)} cameras")
        check_source(self.scale, self.sizes, self.cameras)
        for k in range(len(self.paths)):
            self._open(k).release()

    def frames(self) -> list[int]:
        """Frames that all videos have, by what their headers say."""
        cv2 = import_opencv()
        counts = []
        for k in range(len(self.paths)):
            video = self._open(k)
            counts.append(max(0, int(video.get(cv2.CAP_PROP_FRAME_COUNT))))
            video.release()
        return list(range(min(counts)))

    def read(self, frame: int) -> list[Doubles | None]:
        """The masks of a frame. All frames before it are looked at, so ask for them in order.

        Raises:
            EndOfVideoError: If a video ends before.
        """
        if self._run is None or frame < self._next:
            self._run, self._next = iter(self), 0
        for number, masks in self._run:
            self._next = number + 1
            if number == frame:
                return masks
        self._run, there = None, self._next
        raise EndOfVideoError(f"frame {frame} is missing: the shortest video ends before it", there)

    def __iter__(self) -> Iterator[tuple[int, list[Doubles | None]]]:
        """Frames and the masks of all cameras, until the shortest video ends.

        Raises:
            InputError: If no frame of a video can be read.
        """
        cv2 = import_opencv()
        videos = [self._open(k) for k in range(len(self.paths))]
        models = [
            cv2.createBackgroundSubtractorMOG2(self.history, self.threshold, True) for _ in videos
        ]
        try:
            frame = 0
            while True:
                masks: list[Doubles | None] = []
                for k, (video, model) in enumerate(zip(videos, models, strict=True)):
                    with _quiet(cv2):
                        fine, picture = video.read()
                    if not fine:
                        if frame == 0:
                            raise self._error(k, "no frame of it can be read")
                        return
                    height, width = picture.shape[:2]
                    wanted = scaled_size((width, height), self.scale)
                    if wanted != (width, height):
                        picture = cv2.resize(picture, wanted, interpolation=cv2.INTER_AREA)
                    masks.append((model.apply(picture) == FOREGROUND).astype(np.float64))
                yield frame, masks
                frame += 1
        finally:
            for video in videos:
                video.release()

    def _open(self, k: int) -> Any:
        cv2 = import_opencv()
        path = self.paths[k]
        if not Path(path).is_file():
            raise self._error(k, "no such file, expected a video")
        with _quiet(cv2):
            video = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
        if not video.isOpened():
            raise self._error(k, "can't be read as a video")
        if self.sizes is not None:
            found = tuple(
                int(video.get(key)) for key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
            )
            wanted = tuple(self.sizes[k])
            if found != wanted:
                video.release()
                raise self._error(
                    k,
                    f"has frames of {found[0]}×{found[1]} pixels, expected {wanted[0]}×{wanted[1]}",
                )
        return video

    def _error(self, k: int, message: str) -> InputError:
        return InputError(
            f"the video of camera {self.cameras[k]}: {message}", path=display_name(self.paths[k])
        )
