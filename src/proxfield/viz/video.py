"""Pictures as an MP4 video. Needs OpenCV: ``pip install "proxfield[video]"``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.checks import is_real
from proxfield.errors import InputError, shown
from proxfield.io.files import Target, display_name
from proxfield.io.video import import_opencv


def write_video(path: Target, pictures: Iterable[NDArray[np.uint8]], rate: float = 10.0) -> int:
    """Write pictures as the frames of an MP4; never leaves a partial file.

    Args:
        path: A name ending in .mp4.
        pictures: RGB, all of one size; may be made one by one.  # (height, width, 3) each
        rate: Frames per second.

    Returns:
        The number of frames.

    Raises:
        MissingDependencyError: If OpenCV isn't installed.
        InputError: If there is no picture, sizes differ, or the file can't be written.
    """
    name = display_name(path)
    if Path(path).suffix.lower() != ".mp4":
        raise InputError("videos are written as .mp4", path=name)
    if not is_real(rate) or not 0 < rate < np.inf:
        raise InputError(f"rate={shown(rate)}, expected a number of frames per second above 0")
    cv2 = import_opencv()
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise InputError("can't write, its folder doesn't exist (try mkdir -p)", path=name)
    aside = target.parent / f".proxfield-{secrets.token_hex(8)}.mp4"
    writer, size, count = None, (0, 0), 0
    try:
        for picture in pictures:
            if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
                raise InputError(
                    f"a picture of shape {picture.shape} and {picture.dtype}, expected 8-bit RGB"
                )
            odd = [(0, side % 2) for side in picture.shape[:2]]  # encoders want even numbers
            frame = np.pad(picture, (*odd, (0, 0)), mode="edge")
            here = (frame.shape[1], frame.shape[0])
            if writer is None:
                size = here
                code = cv2.VideoWriter.fourcc(*"mp4v")
                writer = cv2.VideoWriter(str(aside), code, float(rate), size)
                if not writer.isOpened():
                    raise InputError("can't write, OpenCV has no encoder for .mp4", path=name)
            elif here != size:
                raise InputError(
                    f"picture {count} has {here[0]}×{here[1]} pixels, the first has "
                    f"{size[0]}×{size[1]}",
                    path=name,
                )
            writer.write(np.ascontiguousarray(frame[..., ::-1]))  # OpenCV has blue first
            count += 1
        if writer is None:
            raise InputError("no pictures to write, expected at least one", path=name)
        writer.release()
        if not aside.is_file() or aside.stat().st_size == 0:
            raise InputError("can't write, OpenCV wrote nothing", path=name)
        aside.replace(target)
    except OSError as error:
        raise InputError(f"can't write ({error.strerror})", path=name) from None
    finally:
        if writer is not None:
            writer.release()
        aside.unlink(missing_ok=True)
    return count
