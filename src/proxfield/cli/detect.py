"""``proxfield detect``: where people stand, from masks of several cameras."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import click

from proxfield.cli import signals
from proxfield.cli.commands.people import PASSES
from proxfield.cli.detect_inputs import (
    LoadedScene,
    MaskInput,
    SceneFiles,
    forget,
    load_scene,
    read_prior,
)
from proxfield.cli.detect_run import (
    Chain,
    FrameWork,
    make_tasks,
    resume_warm,
    run_all,
    run_warm,
    write_movie,
)
from proxfield.cli.detect_store import ResultFolder
from proxfield.cli.evaluate import span
from proxfield.cli.main import report
from proxfield.cli.options import Options, parse_settings
from proxfield.cli.progress import Counter
from proxfield.cli.running import check_device, prepare_rule
from proxfield.cli.shared import print_json, print_pairs
from proxfield.core.common.arrays import Doubles
from proxfield.core.common.interrupts import raised_again
from proxfield.core.common.records import Record
from proxfield.core.jobs import ClusterError, LostWorkerError, import_joblib
from proxfield.core.jobs.cluster import connected
from proxfield.core.jobs.running import share_of
from proxfield.core.solve.rules.base import Rule
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.boxes import MIN_SCORE
from proxfield.io.files import display_name
from proxfield.io.images import import_pillow
from proxfield.io.masks import check_scale
from proxfield.io.video import EndOfVideoError, import_opencv
from proxfield.people.cameras import BOX_HEIGHT, BOX_RADIUS, PERSON_HEIGHT, PERSON_RADIUS
from proxfield.people.detect import DENSITY, Detector
from proxfield.people.scene import fingerprint, scene_fingerprint
from proxfield.viz.plots import find_figure_class

FAILED = 1


def detect(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    forget()
    options.jobs = options.job_count
    files = check_options(options)
    rule = check_rule(options)
    drawn = options.pictures or options.movie is not None
    store = ResultFolder(Path(options.output), tuple(dict.fromkeys(options.maps)), drawn)
    loaded = load_scene(files)
    masks = choose_masks(options, loaded)
    detector = make_detector(options, rule, loaded)
    asked = choose_frames(options, loaded)
    frames = masks.choose(asked)
    if asked is None and not options.overwrite:
        frames = frames[: store.read_end(len(frames))]
    every = len(frames)
    frames = frames if options.part is None else options.part.of(frames)
    work = FrameWork(files, masks, detector, store, options.images)
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
    ending = ""
    signals.begin_work()
    try:  # from here on, an interrupted run says what is left of it
        if options.overwrite:
            store.clear()
        store.begin(settings)
        loaded.keep(store.cache)
        jobs = options.jobs
        jobs = None if jobs is None else min(jobs, max(1, len(todo)))
        with raised_again(), connected(options.cluster), Counter(len(todo)) as display:
            if options.warm:
                some = run_warm(tasks, work, chain, display)
            else:
                some = run_all(tasks, len(todo), work, jobs, display)
            for record in some:
                records.append(record)
                display.count()
                if record["error"] is not None:
                    display.note(f"proxfield: error: {record['error']}")
    except KeyboardInterrupt:
        ending = "interrupted"
    except (LostWorkerError, ClusterError) as error:
        ending = str(error)
    except Exception as error:
        if signals.interrupted():
            ending = "interrupted"  # what a library made of Ctrl-C
        elif isinstance(error, EndOfVideoError) and asked is None:
            report(f"{error}: {error.frames} frames instead of {every}", kind="note: ")
            store.write_end(every, error.frames)
            frames = [frame for frame in frames if frame < error.frames]
            todo = [frame for frame in todo if frame < error.frames]
        elif not isinstance(error, ProxfieldError) or not records:
            raise
        else:  # a video that ends before a frame that was asked for; what there is is kept
            ending = str(error)
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
    if options.movie is not None and not ending:
        write_movie(options.movie, frames, store, options.rate)
        summary["movie"] = options.movie
    show(summary, records, options.as_json)
    return finish(summary, ending)


# ---- what is asked for ----


def check_options(options: Options) -> SceneFiles:
    """Where the scene comes from; refuses options that don't go together."""
    pom, calibration = options.scene, options.calibration
    if (pom is None) == (calibration is None):
        raise click.UsageError("expected SCENE.pom or --calibration, one of them")
    if calibration is not None and options.grid is None:
        raise click.UsageError("--calibration needs --grid, the distance of locations in meters")
    if pom is not None and (options.grid is None) != (options.region is None):
        raise click.UsageError("--grid and --region together say where locations of a .pom are")
    given = [name for name, value in options.pick("masks", "video", "boxes").items() if value]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]}, expected one of them")
    if calibration is not None and not given:
        raise click.UsageError("expected --masks, --video or --boxes with --calibration")
    if options.prior is not None and options.density is not None:
        raise click.UsageError("--prior and --density, expected one of them")
    check_effects(options)
    if options.warm and options.jobs != 1:
        raise click.UsageError("--warm needs the frame before, so that --jobs must be 1")
    if options.warm and options.part is not None:
        raise click.UsageError("--warm needs the frame before, so that --part can't be used")
    if options.part is not None and options.overwrite:
        raise click.UsageError("--overwrite would remove the frames of other parts")
    if options.part is not None and options.movie is not None:
        raise click.UsageError("--movie needs all frames, so that --part can't be used")
    if options.images is not None and not (options.pictures or options.movie):
        raise click.UsageError("--images goes with --pictures or --movie")
    check_scale(options.scale)
    check_device(options)
    if options.jobs != 1:
        import_joblib()
    if options.pictures or options.movie:
        check_packages(options.movie)
    cameras = options.cameras
    return SceneFiles(
        pom,
        calibration,
        options.grid,
        options.region,
        None if cameras is None else tuple(name.strip() for name in cameras.split(",")),
        options.size,
        options.unit,
        options.clip,
        options.scale,
        person_size(options),
        str(Path(options.output) / "rectangles.npz"),
    )


def check_effects(options: Options) -> None:
    """Refuse options that would do nothing."""
    if options.scene is not None:
        if options.density is not None and options.grid is None:
            raise click.UsageError("--density with a .pom needs --grid and --region")
        for name in ("person_height", "person_radius"):
            if getattr(options, name) is not None:
                option = name.replace("_", "-")
                raise click.UsageError(f"--{option} goes with --calibration; a .pom has rectangles")
    elif options.clip:
        raise click.UsageError("--clip goes with a .pom; rectangles of a calibration are cut")
    if options.min_score is not None and options.boxes is None:
        raise click.UsageError("--min-score goes with --boxes")


def person_size(options: Options) -> tuple[float, float]:
    """Height and radius of a person; boxes of detectors leave room around people."""
    boxes = options.boxes is not None
    height, radius = options.person_height, options.person_radius
    height = (BOX_HEIGHT if boxes else PERSON_HEIGHT) if height is None else height
    radius = (BOX_RADIUS if boxes else PERSON_RADIUS) if radius is None else radius
    return height, radius


def check_packages(movie: str | None) -> None:
    """Name a package that is missing before the work begins."""
    import_pillow()
    find_figure_class()
    if movie is not None:
        if Path(movie).suffix.lower() != ".mp4":
            raise InputError("--movie: videos are written as .mp4", path=movie)
        import_opencv()


def check_rule(options: Options) -> Rule:
    """The rule, which the published program's default settings may come with."""
    if options.rule == "original":
        if options.model == "exact":
            raise click.UsageError("--rule original needs --model ratio")
        options.model = "ratio"
    options.model = options.model or "exact"
    return prepare_rule(options.rule, options.settings)


def choose_masks(options: Options, loaded: LoadedScene) -> MaskInput:
    """Where masks come from: as given, or as the .pom file says."""
    pattern = options.masks
    if pattern is None and not options.video and options.boxes is None:
        pom = loaded.pom
        if pom is None or pom.input_format is None:
            raise InputError(
                "has no INPUT_VIEW_FORMAT, expected --masks, --video or --boxes",
                path=display_name(options.scene),
            )
        pattern = pom.resolve(pom.input_format)
    return MaskInput(
        pattern,
        options.boxes,
        options.video,
        options.missing,
        MIN_SCORE if options.min_score is None else options.min_score,
        loaded.scene.names,
        loaded.sizes,
        options.scale,
    )


def choose_frames(options: Options, loaded: LoadedScene) -> list[int] | None:
    """Frames as given, or as the .pom file says; None for all."""
    text = options.frames
    if text is not None:
        return list(span(text))
    return loaded.pom.frames or None if loaded.pom is not None else None


def make_detector(options: Options, rule: Rule, loaded: LoadedScene) -> Detector:
    """The detector; a .pom file has settings of its own."""
    names = ("miss", "false_alarm", "strength", "variance", "radius", "threshold", "pool")
    given = options.given(*names)
    passes, density, pom = options.passes, options.density, loaded.pom
    original = rule.name == "original"
    if pom is not None:
        given.setdefault("variance", pom.variance)
        if original:
            own = {
                "smoothing": pom.smoothing,
                "stable": pom.n_stable,
                "error": pom.tol,
                "ignored": pom.ignored,
            }
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
        **work.masks.describe(),
        "scale": work.masks.scale,
        **{name: getattr(d, name) for name in (*names, "radius", "threshold", "pool")},
        "rule": d.rule.name,
        **{f"rule {key}": value for key, value in asdict(d.rule).items()},
        "prior": prior if isinstance(prior, float) else fingerprint([prior]),
        "warm": None if in_order is None else f"from frame {in_order[0]}",
        **({"images": work.images or "masks"} if work.store.pictures else {}),
    }


# ---- what is said ----


def show(summary: Record, records: list[Record], as_json: bool) -> None:
    """What was done, on stdout."""
    if as_json:
        hidden = ("location", "x", "y", "score")  # they are in the files
        some = [{k: v for k, v in r.items() if k not in hidden} for r in records]
        print_json({**summary, "records": some})
        return
    seconds = f"{summary['seconds']:.3g} s"
    rows = [
        ("frames", f"{summary['detected']} of {summary['frames']} in {seconds}"),
        ("detections", str(summary["detections"])),
    ]
    if summary["skipped"]:
        rows.append(("skipped", f"{summary['skipped']}, done before (--overwrite redoes them)"))
    if summary["failed"]:
        rows.append(("failed", str(summary["failed"])))
    rows.append(("locations", f"{summary['locations']} in {summary['cameras']} cameras"))
    if summary["region"] is not None:
        x0, y0, x1, y1 = summary["region"]
        rows.append(("region", f"x {x0:g} to {x1:g} m, y {y0:g} to {y1:g} m"))
    if "movie" in summary:
        rows.append(("movie", summary["movie"]))
    print_pairs([*rows, ("results", summary["output"])])


def finish(summary: Record, ending: str) -> int | None:
    """The exit code, after what is left."""
    if ending:
        left = summary["frames"] - summary["detected"] - summary["skipped"] - summary["failed"]
        report(f"{ending}; {left} frames are left, run the same again to go on", kind="")
    if ending == "interrupted":
        return signals.INTERRUPTED
    return FAILED if summary["failed"] or ending else None
