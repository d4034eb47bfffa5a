"""Commands about people in cameras: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    CommandWithRules,
    Decorator,
    device_option,
    done_by,
    jobs_options,
    json_option,
    stack,
)

PASSES = 25
"""The default of `Detector`, repeated here so that help needn't import it."""
Region = tuple[float, float, float, float]


def read_region(_: click.Context, __: click.Parameter, text: str | None) -> Region | None:
    """Four numbers with commas between: smallest x and y, largest x and y."""
    if text is None:
        return None
    try:
        x0, y0, x1, y1 = (float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}, expected X0,Y0,X1,Y1 in meters") from None
    if not (-1e6 < x0 <= x1 < 1e6 and -1e6 < y0 <= y1 < 1e6):
        raise click.BadParameter(f"{text!r}, expected the smallest x and y first")
    return x0, y0, x1, y1


def positive(name: str, metavar: str, text: str, default: float | None = None) -> Decorator:
    """An option that is a number above 0."""
    return click.option(
        name,
        metavar=metavar,
        type=click.FloatRange(0, min_open=True),
        default=default,
        show_default=default is not None,
        help=text,
    )


scene_options = stack(
    click.argument("scene", metavar="[SCENE.pom]", required=False),
    click.option(
        "--calibration",
        metavar="PATH",
        help="Calibration of the cameras instead: a JSON file, or a folder like WILDTRACK's.",
    ),
    positive("--grid", "METERS", "Distance of neighboring locations on the ground."),
    click.option(
        "--region",
        metavar="X0,Y0,X1,Y1",
        callback=read_region,
        help="Where the locations are, in meters.  [default: all ground that cameras see]",
    ),
    click.option("--cameras", metavar="A,B,…", help="Names of the cameras to use.  [default: all]"),
    click.option(
        "--size",
        metavar="W H",
        nargs=2,
        type=click.IntRange(min=1),
        help="Width and height of images, where files don't say.",
    ),
    click.option(
        "--unit", type=click.Choice(["m", "cm", "mm"]), help="Unit of lengths in the calibration."
    ),
    click.option("--clip", is_flag=True, help="Cut rectangles that reach outside of the image."),
    positive(
        "--person-height", "METERS", "Height of a person.  [default: 1.75; with --boxes 1.85]"
    ),
    positive(
        "--person-radius",
        "METERS",
        "Radius of the cylinder that stands for a person.  [default: 0.2; with --boxes 0.4]",
    ),
)

mask_options = stack(
    click.option(
        "--masks",
        metavar="PATTERN",
        help="Pictures of masks, with %c for the camera and %f for the frame, or {camera} and "
        "{frame:05d}.  [default: INPUT_VIEW_FORMAT of the scene]",
    ),
    click.option(
        "--video",
        metavar="FILE",
        multiple=True,
        help="Videos instead, one per camera (repeat the option, or write %c in the name).",
    ),
    click.option(
        "--boxes", metavar="FILE", help="Boxes of a detector instead (.csv, .json; %c likewise)."
    ),
    click.option(
        "--min-score",
        metavar="P",
        type=float,
        help="Drop boxes of a lower score.  [default: 0.5]",
    ),
    click.option(
        "--missing",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="Frames that a camera doesn't have: an error, or do without that camera.",
    ),
    click.option(
        "--frames",
        metavar="FRAME|FIRST:LAST[:STEP]",
        help="Frames to examine, LAST included.  [default: PROCESS of the scene, or all]",
    ),
    positive("--scale", "X", "Resolution of the masks; 0.25 averages 4×4 pixels.", 1.0),
)

model_options = stack(
    click.option(
        "--model",
        type=click.Choice(["exact", "ratio"]),
        help="Energy: independent pixels, or that of the original program.  [default: exact; "
        "ratio with --rule original]",
    ),
    click.option(
        "--rule",
        metavar="NAME",
        default="backtracking",
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
        "--passes",
        metavar="N",
        type=click.IntRange(min=0),
        help=f"Maximum number of iterations per frame.  [default: {PASSES}; for the rule original "
        "MAX_NB_SOLVER_ITERATIONS of the scene, or 100]",
    ),
    click.option(
        "--prior",
        metavar="P|FILE",
        help="Prior probability of presence: a number, or one per location (.npy, .dat).  "
        "[default: PRIOR of the scene, or by --density]",
    ),
    positive("--density", "X", "Expected number of people per square meter.  [default: 0.003]"),
    positive("--miss", "P", "Probability that a pixel of a person is missing in masks (exact)."),
    positive("--false-alarm", "P", "Probability that a pixel is in masks for no reason (exact)."),
    positive("--strength", "X", "How many independent observations a body counts for (exact)."),
    positive("--variance", "X", "SIGMA_IMAGE_DENSITY of the original program (ratio)."),
    click.option("--warm", is_flag=True, help="Start each frame from the one before."),
    positive("--radius", "METERS", "Minimum distance of two detections.  [default: 0.5]"),
    click.option(
        "--threshold",
        metavar="P",
        type=click.FloatRange(0, 1, min_open=True),
        help="Minimum probability of a detection.  [default: 0.5]",
    ),
    click.option(
        "--pool",
        metavar="METERS",
        type=click.FloatRange(0),
        help="Distance over which probabilities of neighbors are pooled.  [default: 0.35, or the "
        "radius if that is less]",
    ),
)

run_options = stack(
    click.option(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="Folder for the results (created if needed).",
    ),
    click.option(
        "--maps",
        type=click.Choice(["dat", "npy"]),
        multiple=True,
        help="Also write the probabilities of all locations per frame: .dat as the original "
        "program, or .npy; repeatable.",
    ),
    click.option(
        "--pictures", is_flag=True, help="Also draw each frame: the cameras, and the ground."
    ),
    click.option("--images", metavar="PATTERN", help="Frames to draw on, instead of the masks."),
    click.option("--movie", metavar="FILE", help="Also write the pictures as a video (.mp4)."),
    positive("--rate", "X", "Frames per second of the movie.", 10.0),
    click.option("--overwrite", is_flag=True, help="Remove results that are in OUT first."),
    jobs_options("frame", parts=True),
    device_option,
)


@click.command(cls=CommandWithRules)
@scene_options
@mask_options
@model_options
@run_options
@json_option
@done_by("detect:detect")
def detect() -> None:
    """Find people on the ground, from masks of the foreground in several cameras.

    The scene is a .pom file of the original occupancy-map program, or --calibration with --grid.
    OUT gets detections.csv and .json (frame, x, y, score, location), frames.csv (status and F of
    each frame) and a small file per frame, so that a run that was stopped goes on where it was. A
    frame that can't be read is reported and passed over; the exit code is then 1.

    \b
    Examples:
      proxfield detect scene.pom -o found
      proxfield detect --calibration calibration.json --grid 0.25 --region 0,0,10,10 \\
          --masks "masks/%c/{frame:05d}.png" --frames 0:99 --scale 0.5 --jobs 4 -o found
      proxfield detect scene.pom --rule original --maps dat -o found
    """


@click.command()
@click.argument("detections", metavar="DETECTIONS")
@click.argument("truth", metavar="TRUTH")
@click.option(
    "--radius",
    metavar="METERS",
    type=float,
    default=0.5,
    show_default=True,
    help="A detection matches a person who is closer than this.",
)
@click.option(
    "--roi",
    metavar='"X,Y X,Y X,Y …"|FILE',
    help="Region of interest: corners of a polygon in meters. Detections and people outside are "
    "dropped.",
)
@click.option(
    "--frames",
    metavar="FRAME|FIRST:LAST[:STEP]",
    help="Compare these frames only, LAST included.  [default: all frames of TRUTH]",
)
@click.option(
    "--min-score",
    metavar="P",
    type=float,
    help="Drop detections of a lower score.",
)
@click.option("--per-frame", is_flag=True, help="Print a line for each frame too.")
@click.option("-o", "--output", metavar="FILE", help="Write a line for each frame as CSV.")
@json_option
@done_by("evaluate:evaluate_files")
def evaluate() -> None:
    """Print MODA, MODP, precision and recall of DETECTIONS, given the TRUTH.

    Both are .csv files (columns frame, x, y in meters) or .json files as `proxfield detect` writes
    them, or annotations of WILDTRACK: a folder with a .json file per frame. All frames of TRUTH
    count, also those without detections; detections in other frames are ignored.
    """
