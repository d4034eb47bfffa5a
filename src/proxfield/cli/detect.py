"""``proxfield detect``: where people stand, from masks of several cameras."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain as joined
from itertools import islice
from pathlib import Path

import click
import numpy as np

from proxfield.cli import signals
from proxfield.cli.detect_frames import (
    DetectInput,
    FrameTask,
    FrameWork,
    LoadedScene,
    detect_from,
    detect_one,
    forget,
    load_scene,
    name_of,
    read_images,
    read_prior,
)
from proxfield.cli.detect_store import ResultFolder
from proxfield.cli.evaluate import span
from proxfield.cli.main import report
from proxfield.cli.options import Options, parse_settings
from proxfield.cli.progress import Counter
from proxfield.cli.running import Ending, check_device, prepare_rule
from proxfield.cli.shared import print_json, print_pairs, refuse
from proxfield.core.common.arrays import Doubles
from proxfield.core.common.interrupts import raised_again
from proxfield.core.common.records import Record
from proxfield.core.jobs.processes import connected
from proxfield.core.jobs.running import (
    ClusterError,
    LostWorkerError,
    import_joblib,
    open_workers,
    share_of,
)
from proxfield.core.solve.rules.base import Rule
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.boxes import MIN_SCORE
from proxfield.io.files import display_name
from proxfield.io.images import import_pillow, read_image
from proxfield.io.masks import check_scale
from proxfield.io.video import EndOfVideoError, import_opencv
from proxfield.people.cameras import BOX_HEIGHT, BOX_RADIUS, PERSON_HEIGHT, PERSON_RADIUS
from proxfield.people.detect import DENSITY, PASSES, Detector
from proxfield.people.scene import fingerprint, scene_fingerprint
from proxfield.viz.charts import find_figure_class
from proxfield.viz.video import write_video


def detect(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    forget()
    options.jobs = options.job_count
    files = check_options(options)
    if options.rule == "original":  # the published program's default settings may come with it
        if options.model == "exact":
            raise click.UsageError("--rule original needs --model ratio")
        options.model = "ratio"
    options.model = options.model or "exact"
    rule = prepare_rule(options.rule, options.settings)
    drawn = options.pictures or options.movie is not None
    store = ResultFolder(Path(options.output), tuple(dict.fromkeys(options.maps)), drawn)
    loaded = load_scene(files)
    detector = make_detector(options, rule, loaded)
    asked = None if options.frames is None else list(span(options.frames))
    if asked is None and loaded.pom is not None:  # as the .pom file says
        asked = loaded.pom.frames or None
    frames = files.choose(asked)
    if asked is None and not options.overwrite:
        frames = frames[: store.read_end(len(frames))]
    every = len(frames)
    frames = frames if options.part is None else options.part.of(frames)
    work = FrameWork(files, detector, store, options.images)
    settings = describe(work, loaded, frames if options.warm else None)
    if not options.overwrite:
        store.check(settings)
    begun = time.perf_counter()
    chain = Chain(frames)
    if options.warm and not options.overwrite:
        chain = resume_warm(frames, store)
    elif not options.overwrite:
        chain = Chain([frame for frame in frames if not store.finished(frame)])
    todo = chain.todo
    tasks = make_tasks(todo, work, check=len(todo) == len(frames))
    records: list[Record] = []
    with Ending() as ending:  # from here on, an interrupted run says what is left of it
        if options.overwrite:
            store.clear()
        store.begin(settings)
        loaded.keep(files.cache)
        jobs = options.jobs
        jobs = None if jobs is None else min(jobs, max(1, len(todo)))
        try:
            with (
                raised_again(),
                connected(options.cluster),
                Counter(len(todo)) as display,
            ):
                if options.warm:
                    some = run_warm(tasks, work, chain, display)
                else:
                    some = run_all(tasks, len(todo), work, jobs, display)
                for record in some:
                    records.append(record)
                    display.finished(record)
        except ProxfieldError as error:
            if isinstance(error, (LostWorkerError, ClusterError)) or signals.interrupted():
                raise
            if isinstance(error, EndOfVideoError) and asked is None:
                report(f"{error}: {error.frames} frames instead of {every}", kind="note: ")
                store.write_end(every, error.frames)
                frames = [frame for frame in frames if frame < error.frames]
                todo = [frame for frame in todo if frame < error.frames]
            elif not records:
                raise
            else:  # a video that ends before a frame that was asked for; what there is is kept
                ending.text = str(error)
    wanted = set(frames)
    people = sum(frame in wanted for frame in store.write_tables().frame.tolist())
    failed = sum(r["error"] is not None for r in records)
    summary = {
        "frames": len(frames),
        "detected": len(records) - failed,
        "skipped": len(frames) - len(todo),
        "failed": failed,
        "detections": people,
        "locations": loaded.scene.n_locations,
        "cameras": len(loaded.scene.names),
        "region": loaded.region,
        "output": options.output,
        "seconds": time.perf_counter() - begun,
    }
    if options.movie is not None and not ending.text:
        there = [file for f in frames if (file := store.file(f, "png")).exists()]
        if not there:
            raise InputError("there are no pictures for a movie")
        pictures = (np.asarray(read_image(file)) for file in there)
        write_video(options.movie, pictures, options.rate)
        summary["movie"] = options.movie
    show(summary, records, options.as_json)
    return ending.exit_code("frames", len(todo) - len(records), failed)


# ---- what is asked for ----


def check_options(options: Options) -> DetectInput:
    """Where the scene comes from; refuses options that don't go together or would do nothing."""
    o, is_pom = options, options.scene is not None
    given = [f"--{name}" for name in ("masks", "video", "boxes") if getattr(o, name)]
    person = [name.replace("_", "-") for name in o.given("person_height", "person_radius")]
    by_part = o.part is not None
    problems = {
        "expected SCENE.pom or --calibration, one of them": is_pom == (o.calibration is not None),
        "--calibration needs --grid, the distance of locations in meters": not (is_pom or o.grid),
        "--grid and --region together say where locations of a .pom are": is_pom
        and (o.grid is None) != (o.region is None),
        f"{' and '.join(given[:2])}, expected one of them": len(given) > 1,
        "expected --masks, --video or --boxes with --calibration": not (is_pom or given),
        "--prior and --density, expected one of them": len(o.given("prior", "density")) > 1,
        "--density with a .pom needs --grid and --region": is_pom
        and o.density is not None
        and o.grid is None,
        f"--{''.join(person[:1])} goes with --calibration; a .pom has rectangles": is_pom
        and person,
        "--clip goes with a .pom; rectangles of a calibration are cut": o.clip and not is_pom,
        "--min-score goes with --boxes": o.min_score is not None and o.boxes is None,
        "--warm needs the frame before, so that --jobs must be 1": o.warm and o.jobs != 1,
        "--warm needs the frame before, so that --part can't be used": o.warm and by_part,
        "--overwrite would remove the frames of other parts": by_part and o.overwrite,
        "--movie needs all frames, so that --part can't be used": by_part and o.movie is not None,
        "--images goes with --pictures or --movie": o.images is not None
        and not (o.pictures or o.movie),
    }
    refuse(problems)
    check_scale(options.scale)
    check_device(options)
    if options.jobs != 1:
        import_joblib()
    if options.pictures or options.movie:  # name a package that is missing before the work begins
        import_pillow()
        find_figure_class()
    if options.movie is not None:
        if Path(options.movie).suffix.lower() != ".mp4":
            raise InputError("--movie: videos are written as .mp4", path=options.movie)
        import_opencv()
    names, height, radius = options.cameras, PERSON_HEIGHT, PERSON_RADIUS
    if options.boxes is not None:  # of detectors, which leave room around people
        height, radius = BOX_HEIGHT, BOX_RADIUS
    same = ("scene", "calibration", "grid", "region", "size", "unit", "clip", "scale", "masks")
    return DetectInput(
        **options.pick(*same, "boxes", "video", "missing"),
        min_score=MIN_SCORE if options.min_score is None else options.min_score,
        cameras=None if names is None else tuple(name.strip() for name in names.split(",")),
        person=(options.person_height or height, options.person_radius or radius),
        cache=str(Path(options.output) / "rectangles.npz"),
    )


def make_detector(options: Options, rule: Rule, loaded: LoadedScene) -> Detector:
    """The detector; a .pom file has settings of its own."""
    names = ("miss", "false_alarm", "strength", "variance", "radius", "threshold", "pool")
    given = options.given(*names)
    passes, density, pom = options.passes, options.density, loaded.pom
    original = rule.name == "original"
    if pom is not None:
        given.setdefault("variance", pom.variance)
        if original:
            own: Record = {"smoothing": pom.smoothing, "stable": pom.n_stable}
            own |= {"error": pom.tol, "ignored": pom.ignored}
            set_ = parse_settings(options.settings)
            rule = replace(rule, **{k: v for k, v in own.items() if k not in set_})
    if passes is None:
        passes = (pom.max_iters if pom is not None else 100) if original else PASSES
    prior: float | Doubles | None = None
    if options.prior is not None:
        prior = read_prior(options.prior, loaded.scene.n_locations)
    elif pom is None:
        density = density or DENSITY
    threads = options.threads
    if options.jobs != 1 and threads is None:
        threads = 1 if options.jobs is None else share_of(options.jobs)
    return Detector(
        options.model,
        rule,
        passes=passes,
        density=density,
        prior=prior,
        device=options.device,
        threads=threads,
        **given,
    )


def describe(work: FrameWork, loaded: LoadedScene, in_order: list[int] | None) -> Record:
    """What results depend on."""
    d = work.detector
    prior = d.prepare(loaded.scene).prior
    assert not isinstance(d.rule, str)
    names = ("model", "passes", "tol", "miss", "false_alarm", "strength", "variance", "floor")
    return {
        "format": "proxfield detect 1",
        "scene": scene_fingerprint(loaded.scene),
        **work.input.describe(),
        "scale": work.input.scale,
        **{name: getattr(d, name) for name in (*names, "radius", "threshold", "pool")},
        "rule": d.rule.name,
        **{f"rule {key}": value for key, value in asdict(d.rule).items()},
        "prior": prior if isinstance(prior, float) else fingerprint([prior]),
        "warm": None if in_order is None else f"from frame {in_order[0]}",
        **({"images": work.images or "masks"} if work.store.pictures else {}),
    }


# ---- all frames ----


def make_tasks(frames: Sequence[int], work: FrameWork, *, check: bool) -> Iterator[FrameTask]:
    """Frames in order.

    Args:
        frames: Their numbers.
        work: What to do with them.
        check: Look at the first one now, so that bad input shows before anything is written. Where
            others are finished already, a broken one must not keep the rest from being done.
    """
    here = work.input.in_order
    tasks = (FrameTask(frame, work.input.read(frame) if here else None) for frame in frames)
    if not check or not frames:
        return tasks
    first = next(tasks)
    masks = work.input.read(first.frame) if first.masks is None else first.masks
    detector = work.detector
    # one iteration says whether everything fits: the rule, the scene, the suppression
    scene = load_scene(work.input).scene
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
            display.working(name_of(task))
            again = task.frame in chain.failed
            order += [] if again else [task.frame]
            record, found = detect_from(task, work, None if again else before)
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
        for task in islice(tasks, alone):
            display.working(name_of(task))
            yield detect_one(task, work)
    if alone < count:
        with open_workers(jobs, work.detector.threads or 1) as workers:
            display.working(f"{workers.jobs} jobs")
            yield from workers.run(partial(detect_one, work=work), tasks, name_of)


# ---- what is said ----


def show(summary: Record, records: list[Record], as_json: bool) -> None:
    """What was done, on stdout."""
    if as_json:
        hidden = ("location", "x", "y", "score")  # they are in the files
        some = [{k: v for k, v in r.items() if k not in hidden} for r in records]
        print_json({**summary, "records": some})
        return
    s = summary
    rows = [
        ("frames", f"{s['detected']} of {s['frames']} in {s['seconds']:.3g} s"),
        ("detections", str(s["detections"])),
        ("skipped", s["skipped"] and f"{s['skipped']}, done before (--overwrite redoes them)"),
        ("failed", str(s["failed"] or "")),
        ("locations", f"{s['locations']} in {s['cameras']} cameras"),
    ]
    if s["region"] is not None:
        rows.append(("region", "x {0:g} to {2:g} m, y {1:g} to {3:g} m".format(*s["region"])))
    print_pairs([*rows, ("movie", s.get("movie", "")), ("results", s["output"])])
