"""The work of ``proxfield detect``: one frame, and many frames."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain as joined

import numpy as np

from proxfield.cli import signals
from proxfield.cli.detect_inputs import MaskInput, Masks, SceneFiles, load_scene
from proxfield.cli.detect_store import ResultFolder
from proxfield.cli.main import describe
from proxfield.cli.progress import Counter
from proxfield.core.common.arrays import Doubles, Pixels
from proxfield.core.common.records import Record
from proxfield.core.jobs import ends_the_run, open_workers
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.files import display_name
from proxfield.io.images import read_image
from proxfield.io.masks import fill
from proxfield.people.detect import Detector, OccupancyMap
from proxfield.people.scene import Scene
from proxfield.viz.people import write_picture
from proxfield.viz.sheets import contact_sheet
from proxfield.viz.video import write_video


@dataclass(frozen=True, eq=False)
class FrameWork:
    """What to do with each frame; it travels to other processes."""

    scene: SceneFiles
    masks: MaskInput
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


def detect_one(task: FrameTask, work: FrameWork, before: Doubles | None = None) -> Record:
    """Find people in one frame and write the results; a failure becomes an entry of the record."""
    return _attempt(task, work, before)[0]


def _attempt(
    task: FrameTask, work: FrameWork, before: Doubles | None
) -> tuple[Record, OccupancyMap | None]:
    record: Record = {"frame": task.frame, "error": None}
    try:
        found = _detect(task, work, before)
        record.update(work.store.write_frame(found))
    except Exception as error:
        if signals.interrupted():  # what a library made of Ctrl-C
            raise KeyboardInterrupt from error
        if ends_the_run(error):
            raise
        record["error"] = _explain(error, task.frame)
        return record, None
    return record, found


def _explain(error: Exception, frame: int) -> str:
    """Why a frame failed, in one line; unexpected errors are raised for debugging."""
    if isinstance(error, (ProxfieldError, OSError, MemoryError)):
        return f"frame {frame}: {describe(error)}"
    # one frame in a thousand must not end the run
    if os.environ.get("PROXFIELD_DEBUG", "0") not in ("", "0"):
        raise error
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"frame {frame}: {what}; this is a bug, PROXFIELD_DEBUG=1 shows more"


def _detect(task: FrameTask, work: FrameWork, before: Doubles | None) -> OccupancyMap:
    scene = load_scene(work.scene).scene
    masks = work.masks.read(task.frame) if task.masks is None else task.masks
    found = work.detector.detect(scene, masks, start=before, frame=task.frame)
    if found.result.status.name == "INTERRUPTED":  # never pass for finished
        raise KeyboardInterrupt
    if work.store.pictures:
        draw(found, masks, scene, work)
    return found


def draw(found: OccupancyMap, masks: Masks, scene: Scene, work: FrameWork) -> None:
    """Write the picture of a frame: all cameras, and the ground from above."""
    images: list[Pixels | None] = list(masks)
    if work.images is not None:
        images = read_images(work.images, scene, found.frame)
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


def read_images(pattern: str, scene: Scene, frame: int) -> list[Pixels | None]:
    """The pictures of a frame to draw on, one per camera."""
    return [read_image(fill(pattern, camera=c, frame=frame)) for c in scene.names]


# ---- all frames ----


def make_tasks(frames: Sequence[int], work: FrameWork, *, check: bool) -> Iterator[FrameTask]:
    """Frames in order.

    Args:
        frames: Their numbers.
        work: What to do with them.
        check: Look at the first one now, so that bad input shows before anything is written. Where
            others are finished already, a broken one must not keep the rest from being done.
    """
    here = work.masks.in_order
    tasks = (FrameTask(frame, work.masks.read(frame) if here else None) for frame in frames)
    if not check or not frames:
        return tasks
    first = next(tasks)
    masks = work.masks.read(first.frame) if first.masks is None else first.masks
    detector = work.detector
    # one iteration says whether everything fits: the rule, the scene, the suppression
    scene = load_scene(work.scene).scene
    tried = replace(detector, passes=1).detect(scene, masks, frame=first.frame)
    if tried.result.status.name == "INTERRUPTED":
        raise KeyboardInterrupt
    if work.images is not None:
        read_images(work.images, scene, first.frame)
    return joined([FrameTask(first.frame, masks)], tasks)


@dataclass(eq=False)
class Chain:
    """Frames that each start from the one before, and where that is.

    Attributes:
        todo: Frames that are left.
        before: The map to start from; None for the prior.
        failed: Frames of an earlier run that couldn't be read; tried again, from the prior.
        order: All frames up to the map.
    """

    todo: list[int]
    before: Doubles | None = None
    failed: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)


def resume_warm(frames: Sequence[int], store: ResultFolder) -> Chain:
    """What is left where each frame starts from the one before.

    Frames up to the last that was kept are done; the others, of which there is at most one that
    was finished, are made again.

    Raises:
        InputError: If frames there started from others than they would now.
    """
    kept = store.read_warm()
    if kept is None:
        return Chain(list(frames))
    q, failed, order = kept
    common = min(len(order), len(frames))
    for there, now in zip(order[:common], frames[:common], strict=True):
        if there != now:
            raise InputError(
                f"-o: holds results of other settings (with --warm, frame {there} follows there, "
                f"{now} now); use another folder or --overwrite",
                path=display_name(store.folder),
            )
    done = len(order)
    again = [frame for frame in frames[:done] if not store.finished(frame)]
    if not set(again) <= set(failed):
        return Chain(list(frames))
    if done > len(frames):  # the map is that of a later frame
        return Chain(again, None, again)
    return Chain([*again, *frames[done:]], q, again, order)


def run_warm(
    tasks: Iterator[FrameTask], work: FrameWork, chain: Chain, display: Counter
) -> Iterator[Record]:
    """Records of frames that start from the one before."""
    before, failed, order = chain.before, list(chain.failed), list(chain.order)
    with display.announcing_compilation():
        for task in tasks:
            display.working(f"frame {task.frame}")
            again = task.frame in chain.failed
            order += [] if again else [task.frame]
            record, found = _attempt(task, work, None if again else before)
            if found is None and not again:
                failed.append(task.frame)
            elif found is not None and not again:
                work.store.write_warm(found, failed, order)
                before = np.asarray(found.q)
            yield record


def run_all(
    tasks: Iterator[FrameTask], count: int, work: FrameWork, jobs: int | None, display: Counter
) -> Iterator[Record]:
    """Records of all frames, as they are finished; jobs None: as many as the cluster has room."""
    # the first frame compiles what is missing: once, not in every process
    alone = count if jobs == 1 else 0 if jobs is None else 1
    with display.announcing_compilation():
        for _, task in zip(range(alone), tasks, strict=False):
            display.working(f"frame {task.frame}")
            yield detect_one(task, work)
    if alone < count:
        with open_workers(jobs, work.detector.threads or 1) as workers:
            display.working(f"{workers.jobs} jobs")
            yield from workers.run(partial(detect_one, work=work), tasks, name_of)


def name_of(task: FrameTask) -> str:
    """What to call a frame in an error."""
    return f"frame {task.frame}"


def write_movie(path: str, frames: Sequence[int], store: ResultFolder, rate: float) -> int:
    """Write the pictures of frames as a video."""
    files = [store.picture_file(frame) for frame in frames]
    there = [file for file in files if file.exists()]
    if not there:
        raise InputError("there are no pictures for a movie")
    return write_video(path, (np.asarray(read_image(file)) for file in there), rate)
