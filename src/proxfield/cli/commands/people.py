"""Commands about people in cameras and about decision tree fields: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    INPUT,
    OUTPUT,
    POSITIVE,
    PROBABILITY,
    RULE,
    WHOLE,
    CommandWithRules,
    done_by,
    jobs_options,
    option,
    shared,
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


@click.command(cls=CommandWithRules)
@click.argument("scene", metavar="[SCENE.pom]", required=False)
@option(
    "--calibration PATH",
    "Calibration of the cameras instead: a JSON file, or a folder like WILDTRACK's.",
)
@option("--grid METERS", "Distance of neighboring locations on the ground.")
@option(
    "--region X0,Y0,X1,Y1",
    "Where the locations are, in meters.  [default: all ground that cameras see]",
    callback=read_region,
)
@option("--cameras A,B,…", "Names of the cameras to use.  [default: all]")
@option("--size W H", "Width and height of images, where files don't say.")
@option("--unit", "Unit of lengths in the calibration.", kind=("m", "cm", "mm"))
@option("--clip", "Cut rectangles that reach outside of the image.")
@option("--person-height METERS", "Height of a person.  [default: 1.75; with --boxes 1.85]")
@option(
    "--person-radius METERS",
    "Radius of the cylinder that stands for a person.  [default: 0.2; with --boxes 0.4]",
)
@option(
    "--masks PATTERN",
    "Pictures of masks, with %c for the camera and %f for the frame, or {camera} and "
    "{frame:05d}.  [default: INPUT_VIEW_FORMAT of the scene]",
)
@option(
    "--video FILE",
    "Videos instead, one per camera (repeat the option, or write %c in the name).",
    multiple=True,
)
@option("--boxes FILE", "Boxes of a detector instead (.csv, .json; %c likewise).")
@option("--min-score P", "Drop boxes of a lower score.  [default: 0.5]", kind=float)
@option(
    "--missing",
    "Frames that a camera doesn't have: an error, or do without that camera.",
    "error",
    ("error", "skip"),
)
@option(
    "--frames FRAME|FIRST:LAST[:STEP]",
    "Frames to examine, LAST included.  [default: PROCESS of the scene, or all]",
)
@option("--scale X", "Resolution of the masks; 0.25 averages 4×4 pixels.", 1.0, POSITIVE)
@option(
    "--model",
    "Energy: independent pixels, or that of the original program.  [default: exact; "
    "ratio with --rule original]",
    kind=("exact", "ratio"),
)
@option("--rule NAME", RULE, "backtracking")
@shared("set")
@option(
    "--passes N",
    f"Maximum number of iterations per frame.  [default: {PASSES}; for the rule original "
    "MAX_NB_SOLVER_ITERATIONS of the scene, or 100]",
    kind=WHOLE,
)
@option(
    "--prior P|FILE",
    "Prior probability of presence: a number, or one per location (.npy, .dat).  "
    "[default: PRIOR of the scene, or by --density]",
)
@option(
    "--density X",
    "Expected number of people per square meter.  [default: 0.003]",
    kind=POSITIVE,
)
@option(
    "--miss P",
    "Probability that a pixel of a person is missing in masks (exact).",
    kind=POSITIVE,
)
@option(
    "--false-alarm P",
    "Probability that a pixel is in masks for no reason (exact).",
    kind=POSITIVE,
)
@option(
    "--strength X",
    "How many independent observations a body counts for (exact).",
    kind=POSITIVE,
)
@option("--variance X", "SIGMA_IMAGE_DENSITY of the original program (ratio).", kind=POSITIVE)
@option("--warm", "Start each frame from the one before.")
@option("--radius METERS", "Minimum distance of two detections.  [default: 0.5]")
@option("--threshold P", "Minimum probability of a detection.  [default: 0.5]", kind=PROBABILITY)
@option(
    "--pool METERS",
    "Distance over which probabilities of neighbors are pooled.  [default: 0.35, or the "
    "radius if that is less]",
    kind=click.FloatRange(0),
)
@option("-o --output OUT", "Folder for the results (created if needed).", required=True)
@option(
    "--maps",
    "Also write the probabilities of all locations per frame: .dat as the original "
    "program, or .npy; repeatable.",
    kind=("dat", "npy"),
    multiple=True,
)
@option("--pictures", "Also draw each frame: the cameras, and the ground.")
@option("--images PATTERN", "Frames to draw on, instead of the masks.")
@option("--movie FILE", "Also write the pictures as a video (.mp4).", kind=OUTPUT)
@option("--rate X", "Frames per second of the movie.", 10.0, POSITIVE)
@option("--overwrite", "Remove results that are in OUT first.")
@jobs_options("frame", parts=True)
@shared("device")
@shared("json")
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
@click.argument("detections", type=INPUT)
@click.argument("truth", type=INPUT)
@option("--radius METERS", "A detection matches a person who is closer than this.", 0.5, float)
@option(
    '--roi "X,Y X,Y X,Y …"|FILE',
    "Region of interest: corners of a polygon in meters. Detections and people outside are "
    "dropped.",
)
@option(
    "--frames FRAME|FIRST:LAST[:STEP]",
    "Compare these frames only, LAST included.  [default: all frames of TRUTH]",
)
@option("--min-score P", "Drop detections of a lower score.", kind=float)
@option("--per-frame", "Print a line for each frame too.")
@option("-o --output FILE", "Write a line for each frame as CSV.", kind=OUTPUT)
@shared("json")
@done_by("evaluate:evaluate_files")
def evaluate() -> None:
    """Print MODA, MODP, precision and recall of DETECTIONS, given the TRUTH.

    Both are .csv files (columns frame, x, y in meters) or .json files as `proxfield detect` writes
    them, or annotations of WILDTRACK: a folder with a .json file per frame. All frames of TRUTH
    count, also those without detections; detections in other frames are ignored.
    """


METHODS = ("marginals", "chains", "pseudo")
"""Those of `DecisionTreeField`, repeated here so that help needn't import them."""

image_options = stack(
    click.argument("images", metavar="IMAGE...", nargs=-1, required=True),
    option(
        "--mask PATH",
        "What is hidden: a picture for all images, not 0 in the hole; or a folder with one "
        "per image.",
        kind=INPUT,
        required=True,
    ),
)


@click.command()
@image_options
@option("-o --output FILE", "Where to write the model.", kind=OUTPUT, required=True)
@option(
    "--method",
    "What is learned: marginals that mean field computes, the likelihood (by persistent "
    "chains), or the pseudo-likelihood.",
    "marginals",
    METHODS,
)
@option("--unary-leaves N", "Maximum number of leaves of the tree of single pixels.", 128)
@option("--pair-leaves N", "Maximum number of leaves of each offset's tree.", 32)
@option("--features N", "Number of pixels around each that trees look at.", 256)
@option("--reach N", "Maximum distance of these, along an axis.", 18)
@option("--n-labels N", "Number of labels.  [default: one more than the largest]")
@option(
    "--l2 X",
    "Weight of the squared norm of the tables.  [default: 1000 for marginals, else 1]",
    kind=click.FloatRange(0),
)
@option("--max-iters N", "Iterations of the method.  [default: 30, 200 or 60 by method]")
@option(
    "--test PATH",
    "Images to measure the model on, with the same mask or masks beside the others.",
    kind=INPUT,
)
@shared("seed", "json")
@done_by("learning:fit")
def fit() -> None:
    """Learn to complete label images: a decision tree field for proxfield inpaint.

    IMAGE is a label map (PNG with a palette or gray, .npy) or a folder of these, complete also
    where the mask hides it. Ctrl-C ends the learning; the best model so far is written.

    \b
    Examples:
      proxfield make characters data
      proxfield fit data/train --mask data/mask.png --test data/test -o model.npz
      proxfield inpaint data/test --mask data/mask.png --model model.npz -o out --sheet sheets
    """


@click.command(cls=CommandWithRules)
@image_options
@option("--model FILE", "A model that proxfield fit has written.", required=True)
@option(
    "-o --output PATH",
    "Folder for the completed images (created if needed), or a file for a single image.",
    required=True,
)
@option(
    "--sheet PATH",
    "Also write pictures of before, after and the uncertainty beside each other (.png).",
)
@option("--truth", "Images have their true labels in the hole: measure and draw what is right.")
@option("--rule NAME", f"{RULE}  [default: that of the model]")
@shared("set")
@option("--max-iters N", "Maximum number of iterations.  [default: that of the model]", kind=WHOLE)
@option("--budget SECONDS", "Time budget in seconds per image.")
@shared("seed", "threads", "json")
@done_by("learning:inpaint")
def inpaint() -> None:
    """Complete the hidden part of label images by a decision tree field.

    IMAGE is a label map (PNG with a palette or gray, .npy) or a folder of these; what it holds in
    the hole doesn't matter, unless --truth says that it is right.

    \b
    Examples:
      proxfield make characters data && proxfield fit data/train --mask data/mask.png -o model.npz
      proxfield inpaint data/test/0000.png --mask data/mask.png --model model.npz -o out.png \\
          --sheet sheet.png
      proxfield inpaint data/test --mask data/mask.png --model model.npz -o out --truth
    """
