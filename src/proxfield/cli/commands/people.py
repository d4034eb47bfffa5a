"""Commands about people in cameras and about decision tree fields: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import INPUT, CommandWithRules, done_by


@click.command(cls=CommandWithRules)
@click.argument("scene", metavar="[SCENE.pom]", required=False)
@done_by("detect:detect", pool=click.FloatRange(0))
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

    Options:
    --calibration PATH  Calibration of the cameras instead: a JSON file, or a folder like
        WILDTRACK's.
    --grid METERS  Distance of neighboring locations on the ground.
    --region X0,Y0,X1,Y1  Where the locations are, in meters. [default: all ground that cameras see]
    --cameras A,B,…  Names of the cameras to use. [default: all]
    --size W H  Width and height of images, where files don't say.
    --unit (m|cm|mm)  Unit of lengths in the calibration.
    --clip  Cut rectangles that reach outside of the image.
    --person-height METERS  Height of a person. [default: 1.75; with --boxes 1.85]
    --person-radius METERS  Radius of the cylinder that stands for a person. [default: 0.2; with
        --boxes 0.4]
    --masks PATTERN  Pictures of masks, with %c for the camera and %f for the frame, or {camera} and
        {frame:05d}. [default: INPUT_VIEW_FORMAT of the scene]
    --video FILE (many)  Videos instead, one per camera (repeat the option, or write %c in the
        name).
    --boxes FILE  Boxes of a detector instead (.csv, .json; %c likewise).
    --min-score P (number)  Drop boxes of a lower score. [default: 0.5]
    --missing (error|skip) = error  Frames that a camera doesn't have: an error, or do without that
        camera.
    --frames FRAME|FIRST:LAST[:STEP]  Frames to examine, LAST included. [default: PROCESS of the
        scene, or all]
    --scale X (positive) = 1.0  Resolution of the masks; 0.25 averages 4×4 pixels.
    --model (exact|ratio)  Energy: independent pixels, or that of the original program. [default:
        exact; ratio with --rule original]
    --rule NAME = backtracking  Update rule; see the list below.
    set
    --passes N (whole)  Maximum number of iterations per frame. [default: 25; for the rule original
        MAX_NB_SOLVER_ITERATIONS of the scene, or 100]
    --prior P|FILE  Prior probability of presence: a number, or one per location (.npy, .dat).
        [default: PRIOR of the scene, or by --density]
    --density X (positive)  Expected number of people per square meter. [default: 0.003]
    --miss P (positive)  Probability that a pixel of a person is missing in masks (exact).
    --false-alarm P (positive)  Probability that a pixel is in masks for no reason (exact).
    --strength X (positive)  How many independent observations a body counts for (exact).
    --variance X (positive)  SIGMA_IMAGE_DENSITY of the original program (ratio).
    --warm  Start each frame from the one before.
    --radius METERS  Minimum distance of two detections. [default: 0.5]
    --threshold P (probability)  Minimum probability of a detection. [default: 0.5]
    --pool METERS  Distance over which probabilities of neighbors are pooled. [default: 0.35, or the
        radius if that is less]
    -o --output OUT (required)  Folder for the results (created if needed).
    --maps (dat|npy; many)  Also write the probabilities of all locations per frame: .dat as the
        original program, or .npy; repeatable.
    --pictures  Also draw each frame: the cameras, and the ground.
    --images PATTERN  Frames to draw on, instead of the masks.
    --movie FILE (output)  Also write the pictures as a video (.mp4).
    --rate X (positive) = 10.0  Frames per second of the movie.
    --overwrite  Remove results that are in OUT first.
    jobs: frame
    part: frame
    device
    json
    """


@click.command()
@click.argument("detections", type=INPUT)
@click.argument("truth", type=INPUT)
@done_by("evaluate:evaluate_files")
def evaluate() -> None:
    """Print MODA, MODP, precision and recall of DETECTIONS, given the TRUTH.

    Both are .csv files (columns frame, x, y in meters) or .json files as `proxfield detect` writes
    them, or annotations of WILDTRACK: a folder with a .json file per frame. All frames of TRUTH
    count, also those without detections; detections in other frames are ignored.

    Options:
    --radius METERS (number) = 0.5  A detection matches a person who is closer than this.
    --roi "X,Y X,Y X,Y …"|FILE  Region of interest: corners of a polygon in meters. Detections and
        people outside are dropped.
    --frames FRAME|FIRST:LAST[:STEP]  Compare these frames only, LAST included. [default: all frames
        of TRUTH]
    --min-score P (number)  Drop detections of a lower score.
    --per-frame  Print a line for each frame too.
    -o --output FILE (output)  Write a line for each frame as CSV.
    json
    """


@click.command()
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@done_by("learning:fit", l2=click.FloatRange(0))
def fit() -> None:
    """Learn to complete label images: a decision tree field for proxfield inpaint.

    IMAGE is a label map (PNG with a palette or gray, .npy) or a folder of these, complete also
    where the mask hides it. Ctrl-C ends the learning; the best model so far is written.

    \b
    Examples:
      proxfield make characters data
      proxfield fit data/train --mask data/mask.png --test data/test -o model.npz
      proxfield inpaint data/test --mask data/mask.png --model model.npz -o out --sheet sheets

    Options:
    mask
    -o --output FILE (output; required)  Where to write the model.
    --method (marginals|chains|pseudo) = marginals  What is learned: marginals that mean field
        computes, the likelihood (by persistent chains), or the pseudo-likelihood.
    --unary-leaves N = 128  Maximum number of leaves of the tree of single pixels.
    --pair-leaves N = 32  Maximum number of leaves of each offset's tree.
    --features N = 256  Number of pixels around each that trees look at.
    --reach N = 18  Maximum distance of these, along an axis.
    --n-labels N  Number of labels. [default: one more than the largest]
    --l2 X  Weight of the squared norm of the tables. [default: 1000 for marginals, else 1]
    --max-iters N  Iterations of the method. [default: 30, 200 or 60 by method]
    --test PATH (input)  Images to measure the model on, with the same mask or masks beside the
        others.
    seed json
    """


@click.command(cls=CommandWithRules)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
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

    Options:
    mask
    --model FILE (required)  A model that proxfield fit has written.
    -o --output PATH (required)  Folder for the completed images (created if needed), or a file for
        a single image.
    --sheet PATH  Also write pictures of before, after and the uncertainty beside each other (.png).
    --truth  Images have their true labels in the hole: measure and draw what is right.
    --rule NAME  Update rule; see the list below. [default: that of the model]
    set
    --max-iters N (whole)  Maximum number of iterations. [default: that of the model]
    --budget SECONDS  Time budget in seconds per image.
    seed threads json
    """
