"""``proxfield refine``: segmentations of images, made to follow the image."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import (
    INITS,
    TOL,
    CommandWithRules,
    Decorator,
    device_option,
    json_option,
    parse_settings,
    stack,
)
from proxfield.common.records import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from proxfield.cli.refine_run import Work

FAILED = 1
AXES = {"auto": "auto", "first": 0, "last": -1, "none": None}
BUILD = (
    *("spatial_sigma", "spatial_weight", "bilateral_sigma", "bilateral_color"),
    *("bilateral_weight", "spacing", "filter"),
)
"""Options that go to `DenseCRF` as they are, if they are given."""
PRESETS = ("gentle", "krahenbuehl", "deeplab", "wsss")
"""Those of `DenseCRF`, repeated here so that help needn't import them."""
MAPS = ("n_labels", "confidence", "unsure")
"""Options that go to `DenseCRF.from_labels` as they are."""


def numbers(_: click.Context, __: click.Parameter, text: str | None) -> float | list[float] | None:
    """A number, or several with commas between, all above 0."""
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < x < float("inf") for x in found):
        raise click.BadParameter(f"{text!r}, expected a number above 0, or several as 3,3,1")
    return found[0] if len(found) == 1 else found


input_options = stack(
    click.argument("images", metavar="IMAGE...", nargs=-1, required=True),
    click.option(
        "--probs",
        metavar="PATH",
        help="Probabilities (.npy, .npz) of one image, or a folder of files named like the images.",
    ),
    click.option(
        "--labels", metavar="PATH", help="Label maps (.png, .npy) instead, a file or a folder."
    ),
    click.option(
        "--confidence",
        metavar="P",
        type=click.FloatRange(0, 1, min_open=True),
        help="Probability that a label is right.  [default: 0.7]",
    ),
    click.option(
        "--n-labels",
        metavar="N",
        type=click.IntRange(min=1),
        help="Number of labels.  [default: one more than the largest in each map]",
    ),
    click.option("--unsure", metavar="V", type=int, help="A label that stands for unknown."),
    click.option("--normalize", is_flag=True, help="Divide probabilities by their sum."),
    click.option(
        "--labels-axis",
        type=click.Choice(["auto", "first", "last"]),
        default="auto",
        show_default=True,
        help="Axis of the labels in the probabilities.",
    ),
    click.option(
        "--channel-axis",
        type=click.Choice(list(AXES)),
        default="auto",
        show_default=True,
        help="Axis of the channels in an image.",
    ),
)

output_options = stack(
    click.option(
        "-o",
        "--output",
        metavar="PATH",
        required=True,
        help="Folder for the results (created if needed), or a file for a single image.",
    ),
    click.option(
        "--output-kind",
        type=click.Choice(["labels", "probabilities"]),
        default="labels",
        show_default=True,
        help="Label maps (.png; .npy for volumes) or probabilities (.npz).",
    ),
    click.option(
        "--float16", is_flag=True, help="Store probabilities in half the space of float32."
    ),
    click.option(
        "--overlay", metavar="PATH", help="Also write pictures of the labels over the images."
    ),
    click.option("--names", metavar="A,B,…", help="Names of the labels, for the overlays' legend."),
    click.option("--force", is_flag=True, help="Repeat images whose results exist."),
)


def length(name: str, unit: str, default: str | None, text: str) -> Decorator:
    """An option that takes `numbers`."""
    return click.option(
        name, metavar=unit, default=default, show_default=True, help=text, callback=numbers
    )


def weight(name: str) -> Decorator:
    """An option for the weight of a term."""
    return click.option(name, metavar="W", type=float, help="Its weight; 0 omits the term.")


term_options = stack(
    click.option(
        "--preset",
        type=click.Choice(PRESETS),
        default=PRESETS[0],
        show_default=True,
        help="Settings by name: for --max-iters and the next five, where they aren't given.",
    ),
    click.option(
        "--config", metavar="FILE", help="Settings that proxfield tune has written, likewise."
    ),
    length(
        "--spatial-sigma",
        "PX",
        None,
        "Standard deviation of the spatial term; 3,3,1: one per axis.",
    ),
    weight("--spatial-weight"),
    length(
        "--bilateral-sigma",
        "PX",
        None,
        "Standard deviation of the bilateral term's positions, likewise.",
    ),
    length(
        "--bilateral-color",
        "X",
        None,
        "Standard deviation of its colors, in the image's units.",
    ),
    weight("--bilateral-weight"),
    length("--spacing", "X", "1", "Size of a pixel; 1,1,5: one per axis."),
    click.option(
        "--compatibility",
        metavar="potts|FILE",
        default="potts",
        show_default=True,
        help="What a pair of labels costs: Potts, or a vector or a matrix (.npy).",
    ),
    click.option("--cooccurrence", metavar="FILE", help="Counts of classes that occur together."),
    click.option(
        "--filter",
        type=click.Choice(["auto", "exact", "lattice"]),
        default="auto",
        show_default=True,
        help="How Gaussian sums are computed; auto is exact for tiny images.",
    ),
)

run_options = stack(
    device_option,
    click.option(
        "--rule",
        metavar="NAME",
        default="fixed",
        show_default=True,
        help="Update rule; see the list below.",
    ),
    click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="A parameter of the rule; repeatable.",
    ),
    click.option(
        "--init",
        type=click.Choice(INITS),
        default="unary",
        show_default=True,
        help="Initial marginals.",
    ),
    click.option(
        "--max-iters",
        metavar="N",
        type=click.IntRange(min=0),
        help="Maximum number of iterations.  [default: that of the preset]",
    ),
    click.option(
        "--tol",
        metavar="X",
        type=float,
        default=TOL,
        show_default=True,
        help="Tolerance: stop when no probability changes by more, divided by the step.",
    ),
    click.option(
        "--budget", metavar="SECONDS", type=float, help="Time budget in seconds per image."
    ),
    click.option(
        "--seed",
        metavar="S",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Random seed.",
    ),
    click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of images to process in parallel; fewer if memory is short.",
    ),
    click.option(
        "--threads",
        metavar="N",
        type=click.IntRange(min=1),
        help="Maximum number of threads per image; by default the jobs share all cores.",
    ),
)


@click.command(cls=CommandWithRules)
@input_options
@output_options
@term_options
@run_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    images: tuple[str, ...],
    output: str,
    overlay: str | None,
    output_kind: str,
    force: bool,
    jobs: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Refine segmentations by a dense CRF: labels that follow the edges of the image.

    IMAGE is a picture (PNG, JPEG, TIFF), an array (.npy, .npz) or a folder of these. For several
    images --probs and -o are folders, with files of the same names. Results that are there
    are not made again, so that a run that was stopped goes on where it was (one file that -o
    names is always written). A broken image is reported and passed over; the exit code is then 1.

    \b
    Examples:
      proxfield refine photo.jpg --probs photo.npy -o photo.png
      proxfield refine photos/ --probs probs/ -o refined/ --jobs 4 --overlay pictures/
      proxfield refine photos/ --labels maps/ --n-labels 21 -o refined/
      proxfield refine photos/ --probs probs/ -o refined/ --config crf.toml
    """
    from proxfield.cli import refine_files as files
    from proxfield.cli.progress import Counter
    from proxfield.cli.refine_run import affordable_jobs, check_packages, run_all
    from proxfield.cli.signals import begin_work, interrupted
    from proxfield.common.interrupts import raised_again
    from proxfield.common.pool import LostWorkerError

    given, option, work = prepare(output_kind, options)
    found = files.find_images(images)
    partners = files.find_partners(found, given, option)
    pairs = files.make_pairs(found, partners, output, overlay, output_kind)
    check_packages(pairs, jobs)
    todo = [p for p in pairs if force or files.is_file_name(output) or not p.finished]
    start = time.perf_counter()
    records: list[Record] = []
    ending = ""
    begin_work()
    try:  # from here on, an interrupted run says what is left of it
        for path, name in ((output, "-o"), (overlay, "--overlay")):
            if path is not None and todo and not files.is_file_name(path):
                files.make_folder(path, name)
        jobs, why = affordable_jobs(jobs, todo, options["n_labels"])
        if jobs > 1 and work.run["threads"] is None:
            work.run["threads"] = max(1, (os.cpu_count() or 1) // jobs)
        with raised_again(), Counter(len(todo)) as display:
            if why:
                display.note(f"proxfield: note: {why}")
            for record in run_all(todo, work, jobs, display):
                records.append(record)
                display.count()
                if record["error"] is not None:
                    display.note(f"proxfield: error: {record['error']}")
    except KeyboardInterrupt:
        ending = "interrupted"
    except LostWorkerError:
        ending = "a job was ended from outside, for lack of memory perhaps; try fewer --jobs"
    except Exception:
        if not interrupted():
            raise
        ending = "interrupted"  # what a library made of Ctrl-C
    failed = [r for r in records if r["error"] is not None]
    summary = {
        "images": len(pairs),
        "refined": len(records) - len(failed),
        "skipped": len(pairs) - len(todo),
        "failed": len(failed),
        "output": output,
        "jobs": jobs,
        "seconds": time.perf_counter() - start,
    }
    report_all(summary, records, as_json)
    finish(ctx, summary, failed, ending)


def prepare(kind: str, options: Record) -> tuple[str, str, Work]:
    """What is known about pixels, the option that says so, and the work; all checked."""
    from proxfield.cli.refine_run import Work
    from proxfield.cli.running import check_device, check_limits, prepare_rule

    probs, labels = options["probs"], options["labels"]
    if (probs is None) == (labels is None):
        raise click.UsageError("expected --probs or --labels, one of them")
    if probs is not None:
        for name in MAPS:
            if options[name] is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} goes with --labels only")
    elif options["normalize"] or options["labels_axis"] != "auto":
        raise click.UsageError("--normalize and --labels-axis go with --probs only")
    rule = prepare_rule(options["rule"], parse_settings(options["settings"]))
    threads = options["threads"]
    budget = check_limits(options["max_iters"], options["tol"], options["budget"], threads)
    check_device(dict(options))
    build: Record = {name: options[name] for name in BUILD if options[name] is not None}
    build["preset"] = read_preset(options["preset"], options["config"])
    build["channel_axis"] = AXES[options["channel_axis"]]
    for name in ("spatial_weight", "bilateral_weight"):
        if not abs(build.get(name, 0)) < float("inf"):
            raise click.UsageError(f"--{name.replace('_', '-')} {build[name]}, expected a number")
    build["compatibility"] = read_compatibility(options["compatibility"])
    if options["cooccurrence"] is not None:
        from proxfield.images.cooccurrence import CooccurrenceStatistics

        build["cooccurrence"] = CooccurrenceStatistics.load(options["cooccurrence"])
    from_labels = None
    if probs is None:
        from_labels = {k: options[k] for k in MAPS if options[k] is not None}
    else:
        build["normalize"] = options["normalize"]
        build["labels_axis"] = AXES[options["labels_axis"]]
    run = {"rule": rule, "budget": budget, "threads": threads}
    run.update({name: options[name] for name in ("init", "tol", "seed", "device")})
    if options["max_iters"] is not None:
        run["max_iters"] = options["max_iters"]
    names = None if options["names"] is None else tuple(options["names"].split(","))
    dtype = "float16" if options["float16"] else "float32"
    work = Work(kind, from_labels, build, run, dtype, names)
    return (labels, "--labels", work) if probs is None else (probs, "--probs", work)


def read_preset(name: str, config: str | None) -> str | Record:
    """The name of a preset, or the settings of a file."""
    if config is None:
        return name
    from click.core import ParameterSource

    from proxfield.images.config import read_config

    if click.get_current_context().get_parameter_source("preset") != ParameterSource.DEFAULT:
        raise click.UsageError("--preset and --config contradict each other, expected one of them")
    return read_config(config)


def read_compatibility(given: str) -> str | NDArray[np.float64]:
    """Potts, or what a file holds."""
    if given == "potts":
        return given
    from proxfield.io.images import read_array

    return read_array(given, "a vector or a matrix of compatibilities")


def report_all(summary: Record, records: list[Record], as_json: bool) -> None:
    """What was done, on stdout."""
    from proxfield.cli.main import report
    from proxfield.cli.shared import print_json, print_pairs

    notes = [note for record in records for note in record["notes"]]
    if notes:
        more = f" (and {len(notes) - 1} more notes like this)" if len(notes) > 1 else ""
        report(f"{notes[0]}{more}", kind="note: ")
    if as_json:
        print_json({**summary, "files": records})
        return
    seconds = f"{summary['seconds']:.3g} s"
    rows = [("refined", f"{summary['refined']} of {summary['images']} images in {seconds}")]
    if summary["skipped"]:
        rows.append(("skipped", f"{summary['skipped']}, done before (--force redoes them)"))
    if summary["failed"]:
        rows.append(("failed", str(summary["failed"])))
    print_pairs([*rows, ("results", summary["output"])])


def finish(ctx: click.Context, summary: Record, failed: list[Record], ending: str) -> None:
    """Leave with the right code, and the list of what failed."""
    from proxfield.cli.main import report
    from proxfield.cli.refine_files import some
    from proxfield.cli.signals import INTERRUPTED

    if ending:
        left = summary["images"] - summary["refined"] - summary["skipped"] - summary["failed"]
        report(f"{ending}; {left} images are left, run the same again to go on", kind="")
    if failed:
        names = some([record["image"] for record in failed])
        report(f"{len(failed)} of {summary['images']} images failed: {names}")
    if ending == "interrupted":
        ctx.exit(INTERRUPTED)
    if failed or ending:
        ctx.exit(FAILED)
