"""``proxfield fit``: a decision tree field, learned from label images."""

from __future__ import annotations

import time

import click

from proxfield.cli import signals
from proxfield.cli.inpaint import check_labels, find_masks, read_holed
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.refine_files import find_images
from proxfield.cli.shared import check_distinct, show_summary
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.learn.decision_tree_field import DecisionTreeField
from proxfield.learn.optimize import FitProgress

SAME = (
    *("method", "unary_leaves", "pair_leaves", "features", "reach", "n_labels", "l2"),
    *("max_iters", "seed"),
)
"""Options that `DecisionTreeField` takes as they are."""


def fit(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    output, mask, given = options.output, options.mask, options.n_labels
    labels, hidden = read_images(options.images, mask, output, given)
    test = None
    if options.test is not None:  # checked before the fit, which takes long
        count = given or max(2, 1 + max(int(x.max()) for x in labels))
        test = read_images((options.test,), mask, output, count)
        if not any(h.any() for h in test[1]):
            raise InputError("no pixel is hidden in any image, expected holes", path="--test")
    model = DecisionTreeField(**options.pick(*SAME))
    start = time.perf_counter()
    signals.begin_work()
    with Display() as display, display.announcing_compilation():
        display.phase("growing trees")

        def tell(progress: FitProgress) -> bool:
            display.phase(f"{progress.method}: iteration {progress.iteration}")
            return signals.interrupted()  # also between two methods, of which only one was ended

        model.fit(labels, hidden, callback=tell)
        seconds = time.perf_counter() - start
        summary: Record = {
            "images": len(labels),
            "n_labels": model.n_labels_,
            "leaves": int(model.forest_.unary.n_leaves + model.forest_.starts[-1]),
            "parameters": sum(p.size for p in model.parameters_.values()),
            "seconds": round(seconds, 2),
        }
        ended = "this is the best model so far" if signals.interrupted() else None
        model.save(output)
        if test is not None and ended is None:
            display.phase("testing")
            try:
                found = model.evaluate(*test)
                summary |= {f"test_{key}": round(v, 4) for key, v in found.items()}
            except KeyboardInterrupt:
                ended = "the model is complete, but not tested"
    show_summary({**summary, "output": output}, options.as_json)
    if ended is not None:
        click.echo(f"proxfield: interrupted: {ended}", err=True)
        return signals.INTERRUPTED
    return None


def read_images(
    images: tuple[str, ...], mask: str, output: str, n_labels: int | None
) -> tuple[list[Pixels], list[Pixels]]:
    """Images and masks of files, checked, also against the output."""
    found = find_images(images)
    masks = find_masks(found, mask)
    check_distinct([*(("an input", str(path)) for path in (*found, *masks)), ("-o", output)])
    pairs = [read_holed(*both) for both in zip(found, masks, strict=True)]
    labels, hidden = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for path, image, mask_of_it in zip(found, labels, hidden, strict=True):
        check_labels(path, image, mask_of_it, n_labels, known=True)
    return labels, hidden
