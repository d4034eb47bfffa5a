"""``proxfield inpaint``: holes in label images, filled by a decision tree field."""

from __future__ import annotations

import time
from dataclasses import dataclass

import click
import numpy as np

from proxfield.cli import signals
from proxfield.cli.options import Options, parse_settings
from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import (
    find_images,
    find_partners,
    is_file_name,
    make_folder,
    make_pairs,
)
from proxfield.cli.running import check_limits, prepare_rule
from proxfield.cli.shared import print_json, print_pairs
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.io.files import atomic_write, display_name
from proxfield.io.images import import_pillow, png_bytes, read_labels, write_labels
from proxfield.io.remote import AnyPath, make_path
from proxfield.learn.decision_tree_field import DecisionTreeField, check_images
from proxfield.learn.estimator import whole
from proxfield.viz.sheets import inpainting_sheet


@dataclass(frozen=True)
class Hole:
    """One image, its mask, and where results go."""

    image: AnyPath
    mask: AnyPath
    target: AnyPath
    sheet: AnyPath | None


def inpaint(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    truth = options.truth
    run = prepare(options)
    holes = find_holes(options)
    if options.sheet is not None:
        import_pillow()
    model = DecisionTreeField.load(options.model)
    hidden = [check_hole(hole, model, truth) for hole in holes]
    if truth and not any(hidden):
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
    report(records, options, time.perf_counter() - start)
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


def find_holes(options: Options) -> list[Hole]:
    """Which files go together; refuses what would overwrite an input or another result."""
    found = find_images(options.images)
    masks = find_masks(found, options.mask)
    pairs = make_pairs(
        found,
        masks,
        options.output,
        options.sheet,
        "labels",
        others=[make_path(options.model)],
        overlay_option="--sheet",
    )
    return [Hole(p.image, p.unary, p.targets[0], p.overlay) for p in pairs]


def find_masks(images: list[AnyPath], given: str) -> list[AnyPath]:
    """The mask of each image: one for all, or that of the same name in a folder."""
    if make_path(given).is_dir():
        return find_partners(images, given, "--mask")
    return find_partners(images[:1], given, "--mask") * len(images)


def read_holed(image: AnyPath, mask: AnyPath) -> tuple[Pixels, Pixels, list[int] | None]:
    """Labels, what is hidden, and the palette of an image."""
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
    return labels, hidden, palette


def check_hole(hole: Hole, model: DecisionTreeField, truth: bool) -> int:
    """Number of hidden pixels; refuses an image that the model can't complete."""
    labels, hidden, _ = read_holed(hole.image, hole.mask)
    check_labels(hole.image, labels, hidden, model.n_labels_, known=truth)
    return int(hidden.sum())


def check_labels(
    path: AnyPath, labels: Pixels, hidden: Pixels, n_labels: int | None, *, known: bool
) -> None:
    """As `check_images` for one image, with its file in errors."""
    try:
        check_images([labels], [hidden], n_labels, known=known)
    except InputError as error:
        text = error.message.removeprefix("image 0 ")
        raise InputError(text, path=display_name(path)) from None


def fill(hole: Hole, model: DecisionTreeField, truth: bool, run: Record) -> Record:
    """Complete one image and write it."""
    labels, hidden, palette = read_holed(hole.image, hole.mask)
    result = whole(model.infer(labels, hidden, **run))
    q = result.q.reshape(*labels.shape, model.n_labels_)
    found = np.where(hidden, q.argmax(axis=2), labels)
    picture = None
    if hole.sheet is not None:
        sheet = inpainting_sheet(labels, hidden, q, truth=truth, palette=palette)
        picture = png_bytes(import_pillow().fromarray(sheet))
    write_labels(hole.target, found, model.n_labels_, palette=palette)
    if picture is not None and hole.sheet is not None:
        atomic_write(hole.sheet, picture)
    record: Record = {
        "image": str(hole.image),
        "output": str(hole.target),
        "sheet": None if hole.sheet is None else str(hole.sheet),
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


def report(records: list[Record], options: Options, seconds: float) -> None:
    """What was done, on stdout."""
    hidden = sum(r["hidden"] for r in records)
    summary: Record = {"images": len(records), "hidden": hidden, "seconds": seconds}
    if options.truth:
        summary["accuracy"] = sum(r["correct"] for r in records) / hidden
        summary["log_likelihood"] = sum(r["log_likelihood"] for r in records) / hidden
    if options.as_json:
        print_json({**summary, "output": options.output, "files": records})
        return
    rows = [("completed", f"{len(records)} images, {hidden} pixels in {seconds:.3g} s")]
    if options.truth:
        rows.append(("right", f"{100 * summary['accuracy']:.2f} % of the hidden pixels"))
        rows.append(("log q(truth)", f"{summary['log_likelihood']:.4f} per pixel"))
    rows.append(("results", options.output))
    if options.sheet is not None:
        rows.append(("sheets", options.sheet))
    print_pairs(rows)
