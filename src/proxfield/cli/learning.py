"""``proxfield fit`` and ``inpaint``: decision tree fields, learned from images, fill holes."""

from __future__ import annotations

import time

import click
import numpy as np

from proxfield.cli import signals
from proxfield.cli.options import Options, parse_settings
from proxfield.cli.progress import Counter, Display
from proxfield.cli.refine_files import (
    FilePath,
    Pair,
    find_images,
    find_partners,
    is_file_name,
    make_folder,
    make_pairs,
)
from proxfield.cli.running import check_limits, prepare_rule
from proxfield.cli.shared import check_distinct, print_json, print_pairs, show_summary
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.io.files import atomic_write, display_name
from proxfield.io.images import import_pillow, png_bytes, read_labels, write_labels
from proxfield.io.remote import make_path
from proxfield.learn.decision_tree_field import DecisionTreeField, check_images
from proxfield.learn.estimator import whole
from proxfield.learn.optimize import FitProgress
from proxfield.viz.sheets import inpainting_sheet

SAME = (
    *("method", "unary_leaves", "pair_leaves", "features", "reach", "n_labels", "l2"),
    *("max_iters", "seed"),
)
"""Options that `DecisionTreeField` takes as they are."""


def fit(options: Options) -> int | None:
    """Run ``proxfield fit``; returns its exit code."""
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
    check_distinct(
        [*(("an input", str(path)) for path in (*found, *masks.values())), ("-o", output)]
    )
    read = [read_holed(image, masks[image], n_labels, known=True) for image in found]
    return [labels for labels, _, _ in read], [hidden for _, hidden, _ in read]


# ---- holes ----


def inpaint(options: Options) -> int | None:
    """Run ``proxfield inpaint``; returns its exit code."""
    truth = options.truth
    run = prepare(options)
    found = find_images(options.images)
    inputs, sheet = [make_path(options.model)], options.sheet
    holes = make_pairs(
        found,
        find_masks(found, options.mask),
        options.output,
        sheet,
        "labels",
        others=inputs,
        overlay_option="--sheet",
    )
    if options.sheet is not None:
        import_pillow()
    model = DecisionTreeField.load(options.model)
    hidden = 0
    for hole in holes:  # refuses an image that the model can't complete
        hidden += int(read_holed(hole.image, hole.unary, model.n_labels_, known=truth)[1].sum())
    if truth and not hidden:
        raise InputError("no pixel is hidden in any image, expected holes", path="--mask")
    start = time.perf_counter()
    signals.begin_work()
    records: list[Record] = []
    for path, name in ((options.output, "-o"), (options.sheet, "--sheet")):
        if path is not None and not is_file_name(path):
            make_folder(path, name)
    try:
        with Counter(len(holes), "images") as display, display.announcing_compilation():
            for hole in holes:
                display.working(hole.image.name)
                records.append(fill(hole, model, truth, run))
                display.count()
    except KeyboardInterrupt:
        done = f"{len(records)} of {len(holes)} images are completed"
        click.echo(f"proxfield: interrupted: {done}", err=True)
        return signals.INTERRUPTED
    total = sum(r["hidden"] for r in records)
    summary: Record = {"images": len(records), "hidden": total}
    summary["seconds"] = seconds = time.perf_counter() - start
    if truth:
        summary["accuracy"] = sum(r["correct"] for r in records) / total
        summary["log_likelihood"] = sum(r["log_likelihood"] for r in records) / total
    if options.as_json:
        print_json({**summary, "output": options.output, "files": records})
        return None
    rows = [("completed", f"{len(records)} images, {total} pixels in {seconds:.3g} s")]
    if truth:
        rows.append(("right", f"{100 * summary['accuracy']:.2f} % of the hidden pixels"))
        rows.append(("log q(truth)", f"{summary['log_likelihood']:.4f} per pixel"))
    rows.append(("results", options.output))
    print_pairs([*rows, ("sheets", options.sheet or "")])
    return None


def prepare(options: Options) -> Record:
    """Options of the inference, checked."""
    if parse_settings(options.settings) and options.rule is None:
        raise click.UsageError("--set without --rule, expected the rule that it is for")
    check_limits(options)
    run = {**options.pick("budget", "threads", "seed"), **options.given("max_iters")}
    if options.rule is not None:
        run["rule"] = prepare_rule(options.rule, options.settings)
    return run


def find_masks(images: list[FilePath], given: str) -> dict[FilePath, FilePath]:
    """The mask of each image: one for all, or that of the same name in a folder."""
    if make_path(given).is_dir():
        return find_partners(images, given, "--mask")
    (mask,) = find_partners(images[:1], given, "--mask").values()
    return dict.fromkeys(images, mask)


def read_holed(
    image: FilePath, mask: FilePath, n_labels: int | None, *, known: bool
) -> tuple[Pixels, Pixels, list[int] | None]:
    """Labels, what is hidden, and the palette of an image, checked as by `check_images`."""
    labels, palette = read_labels(image)
    hidden = read_labels(mask)[0] != 0
    if labels.ndim != 2:
        raise InputError(
            f"has shape {labels.shape}, expected height and width", path=display_name(image)
        )
    if hidden.shape != labels.shape:
        raise InputError(
            f"is {hidden.shape}, the image {image.name} {labels.shape}, expected equal sizes",
            path=display_name(mask),
        )
    try:
        check_images([labels], [hidden], n_labels, known=known)
    except InputError as error:
        text = error.message.removeprefix("image 0 ")
        raise InputError(text, path=display_name(image)) from None
    return labels, hidden, palette


def fill(hole: Pair, model: DecisionTreeField, truth: bool, run: Record) -> Record:
    """Complete one image and write it."""
    count = model.n_labels_
    labels, hidden, palette = read_holed(hole.image, hole.unary, count, known=truth)
    result = whole(model.infer(labels, hidden, **run))
    q = result.q.reshape(*labels.shape, count)
    found = np.where(hidden, q.argmax(axis=2), labels)
    picture = None
    if hole.overlay is not None:
        sheet = inpainting_sheet(labels, hidden, q, truth=truth, palette=palette)
        picture = png_bytes(import_pillow().fromarray(sheet))
    write_labels(hole.targets[0], found, count, palette=palette)
    if picture is not None and hole.overlay is not None:
        atomic_write(hole.overlay, picture)
    record: Record = {
        "image": str(hole.image),
        "output": str(hole.targets[0]),
        "sheet": None if hole.overlay is None else str(hole.overlay),
        "hidden": int(hidden.sum()),
        "free_energy": result.free_energy,
        "iterations": result.iterations,
        "status": result.status.label,
    }
    if truth:
        own = q[hidden, labels[hidden]]
        record["correct"] = int((found == labels)[hidden].sum())
        record["log_likelihood"] = float(np.log(np.maximum(own, 1e-12)).sum())
    return record
