"""``proxfield fit``: a decision tree field, learned from label images."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.inpaint import image_options
from proxfield.cli.options import Decorator, json_option, seed_option
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.learn.optimize import FitProgress

METHODS = ("marginals", "chains", "pseudo")
"""Those of `DecisionTreeField`, repeated here so that help needn't import them."""


def count(name: str, default: int | None, text: str) -> Decorator:
    """An option that counts things."""
    return click.option(
        name,
        metavar="N",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        help=text,
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
@count("--unary-leaves", 128, "Maximum number of leaves of the tree of single pixels.")
@count("--pair-leaves", 32, "Maximum number of leaves of each offset's tree.")
@count("--features", 256, "Number of pixels around each that trees look at.")
@count("--reach", 18, "Maximum distance of these, along an axis.")
@count("--n-labels", None, "Number of labels.  [default: one more than the largest]")
@click.option(
    "--l2",
    metavar="X",
    type=click.FloatRange(0),
    help="Weight of the squared norm of the tables.  [default: 1000 for marginals, else 1]",
)
@count("--max-iters", None, "Iterations of the method.  [default: 30, 200 or 60 by method]")
@click.option(
    "--test",
    metavar="PATH",
    help="Images to measure the model on, with the same mask or masks beside the others.",
)
@seed_option()
@json_option
@click.pass_context
def command(ctx: click.Context, /, images: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Learn to complete label images: a decision tree field for proxfield inpaint.

    IMAGE is a label map (PNG with a palette or gray, .npy) or a folder of these, complete also
    where the mask hides it. Ctrl-C ends the learning; the best model so far is written.

    \b
    Examples:
      proxfield make characters data
      proxfield fit data/train --mask data/mask.png --test data/test -o model.npz
      proxfield inpaint data/test --mask data/mask.png --model model.npz -o out --sheet sheets
    """
    from proxfield.cli.progress import Display
    from proxfield.cli.shared import check_distinct, check_target, show_summary
    from proxfield.cli.signals import INTERRUPTED, begin_work, interrupted
    from proxfield.errors import InputError

    output = options["output"]
    check_target(output, "-o")
    check_distinct({"--mask": options["mask"], "-o": output, "--test": options["test"]})
    given = options["n_labels"]
    labels, hidden = read_images(images, options["mask"], output, given)
    test = None
    if options["test"] is not None:  # checked before the fit, which takes long
        count = given or max(2, 1 + max(int(x.max()) for x in labels))
        test = read_images((options["test"],), options["mask"], output, count)
        if not any(h.any() for h in test[1]):
            raise InputError("no pixel is hidden in any image, expected holes", path="--test")
    from proxfield.learn.decision_tree_field import DecisionTreeField

    same = ("method", "unary_leaves", "pair_leaves", "features", "reach", "n_labels", "l2")
    model = DecisionTreeField(
        **{name: options[name] for name in (*same, "max_iters", "seed")},
    )
    start = time.perf_counter()
    begin_work()
    with Display() as display, display.announcing_compilation():
        display.phase("growing trees")

        def tell(progress: FitProgress) -> bool:
            display.phase(f"{progress.method}: iteration {progress.iteration}")
            return interrupted()  # also between two methods, of which only one was ended

        model.fit(labels, hidden, callback=tell)
        seconds = time.perf_counter() - start
        summary: Record = {
            "images": len(labels),
            "n_labels": model.n_labels_,
            "leaves": int(model.forest_.unary.n_leaves + model.forest_.starts[-1]),
            "parameters": sum(p.size for p in model.parameters_.values()),
            "seconds": round(seconds, 2),
        }
        ended = "this is the best model so far" if interrupted() else None
        model.save(output)
        if test is not None and ended is None:
            display.phase("testing")
            try:
                found = model.evaluate(*test)
                summary |= {f"test_{key}": round(v, 4) for key, v in found.items()}
            except KeyboardInterrupt:
                ended = "the model is complete, but not tested"
    show_summary({**summary, "output": output}, as_json)
    if ended is not None:
        click.echo(f"proxfield: interrupted: {ended}", err=True)
        ctx.exit(INTERRUPTED)


def read_images(
    images: tuple[str, ...], mask: str, output: str, n_labels: int | None
) -> tuple[list[Any], list[Any]]:
    """Images and masks of files, checked, also against the output."""
    from proxfield.cli.inpaint import check_labels, find_masks, read_holed
    from proxfield.cli.refine_files import find_images
    from proxfield.cli.shared import check_distinct

    found = find_images(images)
    masks = find_masks(found, mask)
    for path in (*found, *masks):
        check_distinct({"an input": str(path), "-o": output})
    pairs = [read_holed(*both) for both in zip(found, masks, strict=True)]
    labels, hidden = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for path, image, mask_of_it in zip(found, labels, hidden, strict=True):
        check_labels(path, image, mask_of_it, n_labels, known=True)
    return labels, hidden
