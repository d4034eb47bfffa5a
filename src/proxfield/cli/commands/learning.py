"""Commands that learn and use decision tree fields: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    INPUT,
    OUTPUT,
    RULE,
    WHOLE,
    CommandWithRules,
    done_by,
    option,
    shared,
    stack,
)

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
@done_by("fit:fit")
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
@done_by("inpaint:inpaint")
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
