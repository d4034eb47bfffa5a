"""The work of ``proxfield detect``: one frame, and many frames."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from proxfield.cli.detect_inputs import MaskInput, Masks, SceneFiles, load_scene
from proxfield.cli.detect_store import Store
from proxfield.cli.pool import run_in_processes
from proxfield.cli.progress import Counter
from proxfield.common.records import Record
from proxfield.errors import InputError, ProxfieldError
from proxfield.people.detect import Detector, OccupancyMap
from proxfield.people.scene import Scene

if TYPE_CHECKING:
    from proxfield.common.arrays import Doubles


@dataclass(frozen=True, eq=False)
class Work:
    """What to do with each frame; it travels to other processes."""

    scene: SceneFiles
    masks: MaskInput
    detector: Detector
    store: Store
    images: str | None = None
    """Pattern for frames to draw on, instead of masks."""


@dataclass(frozen=True, eq=False)
class Task:
    """A frame; with its masks if they can't be read where the work is done."""

    frame: int
    masks: Masks | None = None


# ---- one frame ----


def detect_one(task: Task, work: Work, before: Doubles | None = None) -> Record:
    """Find people in one frame and write the results; a failure becomes an entry of the record."""
    return _attempt(task, work, before)[0]


def _attempt(task: Task, work: Work, before: Doubles | None) -> tuple[Record, OccupancyMap | None]:
    from proxfield.cli.signals import interrupted

    record: Record = {"frame": task.frame, "error": None}
    try:
        found = _detect(task, work, before)
        record.update(work.store.write_frame(found))
    except Exception as error:
        if interrupted():  # what a library made of Ctrl-C
            raise KeyboardInterrupt from error
        record["error"] = _explain(error, task.frame)
        return record, None
    return record, found


def _explain(error: Exception, frame: int) -> str:
    """Why a frame failed, in one line; unexpected errors are raised for debugging."""
    from proxfield.cli.main import describe

    if isinstance(error, (ProxfieldError, OSError, MemoryError)):
        return f"frame {frame}: {describe(error)}"
    # one frame in a thousand must not end the run
    if os.environ.get("PROXFIELD_DEBUG", "0") not in ("", "0"):
        raise error
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"frame {frame}: {what}; this is a bug, PROXFIELD_DEBUG=1 shows more"


def _detect(task: Task, work: Work, before: Doubles | None) -> OccupancyMap:
    scene = load_scene(work.scene).scene
    masks = work.masks.read(task.frame) if task.masks is None else task.masks
    found = work.detector.detect(scene, masks, start=before, frame=task.frame)
    if found.result.status.name == "INTERRUPTED":  # never pass for finished
        raise KeyboardInterrupt
    if work.store.pictures:
        draw(found, masks, scene, work)
    return found


def draw(found: OccupancyMap, masks: Masks, scene: Scene, work: Work) -> None:
    """Write the picture of a frame: all cameras, and the ground from above."""
    from proxfield.viz.people import contact_sheet, write_picture

    images: list[Any] = list(masks)
    if work.images is not None:
        from proxfield.io.images import read_image
        from proxfield.io.patterns import fill

        images = [read_image(fill(work.images, camera=c, frame=found.frame)) for c in scene.names]
    d = found.detections
    picture = contact_sheet(
        scene,
        images,
        found.q,
        detections=None if scene.positions is None else d.positions,
        locations=d.location,
        threshold=0.0,
        title=f"frame {found.frame}: {len(d)} people",
    )
    write_picture(work.store.picture_file(found.frame), picture)


# ---- all frames ----


def make_tasks(frames: Sequence[int], work: Work) -> Iterator[Task]:
    """Frames in order, the first of them looked at: bad input shows before anything is written."""
    if not frames:
        return iter(())
    here, first = work.masks.in_order, work.masks.read(frames[0])
    detector = work.detector
    detector.field(detector.prepare(load_scene(work.scene).scene), first)
    rest = (Task(frame, work.masks.read(frame) if here else None) for frame in frames[1:])
    return chain([Task(frames[0], first)], rest)


def resume_warm(frames: Sequence[int], store: Store) -> tuple[list[int], Doubles | None]:
    """Frames that are left where each starts from the one before, and the map to start from.

    Frames up to the last that was kept are done; the others, of which there is at most one that
    was finished, are made again.
    """
    kept = store.read_warm()
    if kept is None or kept[0] not in frames:
        return list(frames), None
    done = list(frames).index(kept[0]) + 1
    if not all(store.finished(frame) for frame in frames[:done]):
        return list(frames), None
    return list(frames[done:]), kept[1]


def run_warm(
    tasks: Iterator[Task], work: Work, before: Doubles | None, display: Counter
) -> Iterator[Record]:
    """Records of frames that start from the one before."""
    with display.announcing_compilation():
        for task in tasks:
            display.working(f"frame {task.frame}")
            record, found = _attempt(task, work, before)
            if found is not None:
                work.store.write_warm(found)
                before = np.asarray(found.q)
            yield record


def run_all(
    tasks: Iterator[Task], count: int, work: Work, jobs: int, display: Counter
) -> Iterator[Record]:
    """Records of all frames, as they are finished."""
    # the first frame compiles what is missing: once, not in every process
    alone = count if jobs == 1 else 1
    with display.announcing_compilation():
        for _, task in zip(range(alone), tasks, strict=False):
            display.working(f"frame {task.frame}")
            yield detect_one(task, work)
    if alone < count:
        display.working(f"{jobs} jobs")
        threads = work.detector.threads or 1
        yield from run_in_processes(partial(detect_one, work=work), tasks, jobs, threads)


def write_movie(path: str, frames: Sequence[int], store: Store, rate: float) -> int:
    """Write the pictures of frames as a video."""
    from proxfield.io.images import read_image
    from proxfield.viz.video import write_video

    files = [store.picture_file(frame) for frame in frames]
    there = [file for file in files if file.exists()]
    if not there:
        raise InputError("there are no pictures for a movie")
    return write_video(path, (np.asarray(read_image(file)) for file in there), rate)
