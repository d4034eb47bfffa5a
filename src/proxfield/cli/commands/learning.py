"""Commands that learn and use decision tree fields: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    CommandWithRules,
    count_option,
    done_by,
    json_option,
    seed_option,
    settings_option,
    stack,
    threads_option,
)

METHODS = ("marginals", "chains", "pseudo")
"""Those of `DecisionTreeField`, repeated here so that help needn't import them."""

image_options = stack(
    click.argument("images", metavar="IMAGE...", nargs=-1, required=True),
    click.option(
        "--mask",
        metavar="PATH",
        required=True,
        help="What is hidden: a picture for all images, not 0 in the hole; or a folder with one "
        "per image.",
    ),
)


@click.command()
@image_options
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the model.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="marginals",
    show_default=True,
    help="What is learned: marginals that mean field computes, the likelihood (by persistent "
    "chains), or the pseudo-likelihood.",
)
@count_option("--unary-leaves", "Maximum number of leaves of the tree of single pixels.", 128)
@count_option("--pair-leaves", "Maximum number of leaves of each offset's tree.", 32)
@count_option("--features", "Number of pixels around each that trees look at.", 256)
@count_option("--reach", "Maximum distance of these, along an axis.", 18)
@count_option("--n-labels", "Number of labels.  [default: one more than the largest]")
@click.option(
    "--l2",
    metavar="X",
    type=click.FloatRange(0),
    help="Weight of the squared norm of the tables.  [default: 1000 for marginals, else 1]",
)
@count_option("--max-iters", "Iterations of the method.  [default: 30, 200 or 60 by method]")
@click.option(
    "--test",
    metavar="PATH",
    help="Images to measure the model on, with the same mask or masks beside the others.",
)
@seed_option()
@json_option
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
@click.option(
    "--model", metavar="FILE", required=True, help="A model that proxfield fit has written."
)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    required=True,
    help="Folder for the completed images (created if needed), or a file for a single image.",
)
@click.option(
    "--sheet",
    metavar="PATH",
    help="Also write pictures of before, after and the uncertainty beside each other (.png).",
)
@click.option(
    "--truth",
    is_flag=True,
    help="Images have their true labels in the hole: measure and draw what is right.",
)
@click.option(
    "--rule", metavar="NAME", help="Update rule; see the list below.  [default: that of the model]"
)
@settings_option
@click.option(
    "--max-iters",
    metavar="N",
    type=click.IntRange(min=0),
    help="Maximum number of iterations.  [default: that of the model]",
)
@click.option("--budget", metavar="SECONDS", type=float, help="Time budget in seconds per image.")
@seed_option()
@threads_option()
@json_option
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
