"""``proxfield refine``: segmentations of images, made to follow the image."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from proxfield.cli.options import (
    TOL,
    CommandWithDenseRules,
    Decorator,
    device_option,
    init_option,
    jobs_on,
    jobs_options,
    json_option,
    parse_settings,
    seed_option,
    settings_option,
    stack,
)
from proxfield.cli.refine_inputs import (
    AXES,
    KINDS,
    choose_input,
    in_options,
    input_options,
    input_settings,
)
from proxfield.cli.refine_tiles import tile_options
from proxfield.core.common.records import Record
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.cli.refine_one import Work
    from proxfield.core.jobs.running import Part
    from proxfield.images.settings import DenseSettings
    from proxfield.io.remote import AnyPath

BUILD = (
    *("spatial_sigma", "spatial_weight", "bilateral_sigma", "bilateral_color"),
    *("bilateral_weight", "spacing", "filter"),
)
"""Options that go to `DenseCRF` as they are, if they are given."""
PRESETS = ("gentle", "krahenbuehl", "deeplab", "wsss")
"""Those of `DenseCRF`, repeated here so that help needn't import them."""


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
        help="Label maps (.png; .npy for volumes) or probabilities (.npz); NIfTI and GeoTIFF "
        "stay what they are.",
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
    settings_option,
    init_option("unary"),
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
    seed_option(),
    jobs_options("image", "; fewer if memory is short", parts=True),
)


@click.command(cls=CommandWithDenseRules)
@input_options
@output_options
@term_options
@run_options
@tile_options
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
    jobs: int | None,
    part: Part | None,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Refine segmentations by a dense CRF: labels that follow the edges of the image.

    IMAGE is a picture (PNG, JPEG, TIFF), an array (.npy, .npz), a NIfTI volume (.nii, .nii.gz) or a
    folder of these; or a whole slide or a zarr array, which are refined in tiles like all images
    that don't fit in memory. For several images --probs and -o are folders, with files of the same
    names. Beside each result a small JSON file says how it was made. Results that are there, made
    with the same parameters, are not made again, so that a run that was stopped goes on where it
    was (one file that -o names is always written). A broken image is reported and passed over; the
    exit code is then 1.

    \b
    Examples:
      proxfield refine photo.jpg --probs photo.npy -o photo.png
      proxfield refine photos/ --probs probs/ -o refined/ --jobs 4 --overlay pictures/
      proxfield refine photos/ --labels maps/ --n-labels 21 -o refined/
      proxfield refine head.nii.gz --logits head.npy --bilateral-color 40 -o refined/
      proxfield refine photos/ --probs probs/ -o refined/ --config crf.toml
      proxfield refine s3://b/photos --probs s3://b/probs -o s3://b/out --cluster tcp://host:8786
      proxfield refine photos/ --probs probs/ -o refined/ --part $SLURM_ARRAY_TASK_ID/8
      proxfield refine slide.svs --probs probs.zarr -o labels.tif --jobs 2
    """
    from proxfield.cli import refine_files as files
    from proxfield.cli import refine_tiles as tiles
    from proxfield.cli.progress import Counter
    from proxfield.cli.refine_record import is_finished, parameters
    from proxfield.cli.refine_report import finish, report_all
    from proxfield.cli.refine_run import affordable_jobs, check_packages, run_all
    from proxfield.cli.signals import begin_work, interrupted
    from proxfield.core.common.interrupts import raised_again
    from proxfield.core.jobs import ClusterError, LostWorkerError
    from proxfield.core.jobs.cluster import connected
    from proxfield.core.jobs.running import share_of

    spacing_given = ctx.get_parameter_source("spacing") is not ParameterSource.DEFAULT
    try:
        given, option, work = prepare(output_kind, options, spacing_given)
    except InputError as error:
        raise InputError(in_options(error.message), path=error.path) from None
    found = files.find_images(images)
    partners = files.find_partners(found, given, option)
    strokes: list[AnyPath | None] = []
    if options["scribbles"] is not None:
        strokes = files.find_partners(found, options["scribbles"], "--scribbles", optional=True)
    pairs = files.make_pairs(found, partners, output, overlay, output_kind, strokes)
    jobs = jobs_on(cluster, jobs)
    shared = dict.fromkeys(tiles.tiled_pairs(pairs, options, overlay), part)
    own = [p for p in (pairs if part is None else part.of(pairs)) if p not in shared]
    large = {**shared, **dict.fromkeys(tiles.too_large(own, options, overlay))}
    check_packages([p for p in own if p not in large], jobs)
    tiles.check_kinds(large)
    wanted = parameters(work)
    always = force or files.is_file_name(output)
    todo = [p for p in own if p not in large and (always or not is_finished(p, wanted))]
    in_tiles = [tiles.for_tiles(p, work, options, which) for p, which in large.items()]
    in_tiles = [t for t in in_tiles if t.is_due(always, force)]
    start = time.perf_counter()
    records: list[Record] = []
    ending = ""
    begin_work()
    try:  # from here on, an interrupted run says what is left of it
        for path, name in ((output, "-o"), (overlay, "--overlay")):
            if path is not None and (todo or in_tiles) and not files.is_file_name(path):
                files.make_folder(path, name)
        wanted_jobs, why = jobs, ""
        if jobs is not None and todo:
            jobs, why = affordable_jobs(jobs, todo, options["n_labels"])
        if jobs != 1 and work.run["threads"] is None:
            work.run["threads"] = 1 if jobs is None else share_of(jobs)
        with raised_again(), connected(cluster):
            with Counter(len(todo), "images") as display:
                if why:
                    display.note(f"proxfield: note: {why}")
                for record in run_all(todo, work, jobs, display) if todo else ():
                    records.append(record)
                    display.count()
                    if record["error"] is not None:
                        display.note(f"proxfield: error: {record['error']}")
            # one by one: an interrupted run keeps those that are there
            records.extend(tiles.run_tiled(in_tiles, wanted_jobs, resume=not force))
    except KeyboardInterrupt:
        ending = "interrupted"
    except (LostWorkerError, ClusterError) as error:
        ending = str(error)
    except Exception:
        if not interrupted():
            raise
        ending = "interrupted"  # what a library made of Ctrl-C
    failed = [r for r in records if r["error"] is not None]
    partial = sum(r["error"] is None and r["output"] is None for r in records)
    count = len({*own, *large})
    summary = {
        "images": count,
        "refined": len(records) - len(failed) - partial,
        "skipped": count - len(todo) - len(in_tiles),
        "failed": len(failed),
        "partial": partial,
        "output": output,
        "jobs": jobs,
        "cluster": cluster,
        "seconds": time.perf_counter() - start,
    }
    report_all(summary, records, as_json)
    finish(ctx, summary, failed, ending)


def prepare(kind: str, options: Record, spacing_given: bool) -> tuple[str, str, Work]:
    """What is known about pixels, the option that says so, and the work; all checked."""
    from proxfield.cli.refine_one import Work
    from proxfield.cli.running import check_device, check_limits, prepare_rule

    given, chosen = choose_input(options)
    rule = prepare_rule(options["rule"], parse_settings(options["settings"]))
    if not rule.suits_dense_fields:
        from proxfield.core.solve.rules.registry import dense_rules

        raise click.UsageError(
            f"--rule {options['rule']} doesn't run on dense fields, expected one of: "
            f"{', '.join(dense_rules())}"
        )
    threads = options["threads"]
    budget = check_limits(options["max_iters"], options["tol"], options["budget"], threads)
    check_device(dict(options))
    build: Record = {k: options[k] for k in BUILD if options[k] not in (None, "auto")}
    build["preset"] = read_preset(options["preset"], options["config"])
    build["channel_axis"] = AXES[options["channel_axis"]]
    for name in ("spatial_weight", "bilateral_weight"):
        if not abs(build.get(name, 0)) < float("inf"):
            raise click.UsageError(f"--{name.replace('_', '-')} {build[name]}, expected a number")
    if options["compatibility"] != "potts":
        from proxfield.io.images import read_array

        what = "a vector or a matrix of compatibilities"
        build["compatibility"] = read_array(options["compatibility"], what)
    if options["cooccurrence"] is not None:
        from proxfield.images.cooccurrence import CooccurrenceStatistics

        build["cooccurrence"] = CooccurrenceStatistics.load(options["cooccurrence"])
    more, from_labels = input_settings(options, chosen, build["preset"])
    build.update(more)
    run = {"rule": rule, "budget": budget, "threads": threads}
    run.update({name: options[name] for name in ("init", "tol", "seed", "device")})
    if options["max_iters"] is not None:
        run["max_iters"] = options["max_iters"]
    names = None if options["names"] is None else tuple(options["names"].split(","))
    dtype = "float16" if options["float16"] else "float32"
    work = Work(kind, KINDS[chosen], from_labels, build, run, dtype, names, spacing_given)
    return given, f"--{chosen}", work


def read_preset(name: str, config: str | None) -> str | DenseSettings:
    """The name of a preset, or the settings of a file."""
    if config is None:
        return name
    from click.core import ParameterSource

    from proxfield.images.settings import read_config

    if click.get_current_context().get_parameter_source("preset") != ParameterSource.DEFAULT:
        raise click.UsageError("--preset and --config contradict each other, expected one of them")
    return read_config(config)
