"""``proxfield inpaint``: holes in label images, filled by a decision tree field."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import (
    CommandWithRules,
    json_option,
    parse_settings,
    seed_option,
    settings_option,
    stack,
    threads_option,
)
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from proxfield.io.remote import AnyPath
    from proxfield.learn.decision_tree_field import DecisionTreeField

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


@dataclass(frozen=True)
class Hole:
    """One image, its mask, and where results go."""

    image: AnyPath
    mask: AnyPath
    target: AnyPath
    sheet: AnyPath | None


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
@click.pass_context
def command(ctx: click.Context, /, images: tuple[str, ...], as_json: bool, **options: Any) -> None:
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
    from proxfield.cli.progress import Counter
    from proxfield.cli.refine_files import is_file_name, make_folder
    from proxfield.cli.signals import INTERRUPTED, begin_work
    from proxfield.errors import InputError
    from proxfield.io.images import import_pillow
    from proxfield.learn.decision_tree_field import DecisionTreeField

    run = prepare(options)
    holes = find_holes(images, **{k: options[k] for k in ("mask", "model", "output", "sheet")})
    if options["sheet"] is not None:
        import_pillow()
    model = DecisionTreeField.load(options["model"])
    hidden = [check_hole(hole, model, options["truth"]) for hole in holes]
    if options["truth"] and not any(hidden):
        raise InputError("no pixel is hidden in any image, expected holes", path="--mask")
    start = time.perf_counter()
    begin_work()
    records: list[Record] = []
    for path, name in ((options["output"], "-o"), (options["sheet"], "--sheet")):
        if path is not None and not is_file_name(path):
            make_folder(path, name)
    try:
        with Counter(len(holes), "images") as display, display.announcing_compilation():
            for hole in holes:
                display.working(hole.image.name)
                records.append(fill(hole, model, options["truth"], run))
                display.count()
    except KeyboardInterrupt:
        done = f"{len(records)} of {len(holes)} images are completed"
        click.echo(f"proxfield: interrupted: {done}", err=True)
        ctx.exit(INTERRUPTED)
    report(records, options, time.perf_counter() - start, as_json)


def prepare(options: Record) -> Record:
    """Options of the inference, checked."""
    from proxfield.cli.running import check_limits, prepare_rule

    settings = parse_settings(options["settings"])
    if settings and options["rule"] is None:
        raise click.UsageError("--set without --rule, expected the rule that it is for")
    budget = check_limits(options["max_iters"], 1e-6, options["budget"], options["threads"])
    run: Record = {"budget": budget, "threads": options["threads"], "seed": options["seed"]}
    if options["rule"] is not None:
        run["rule"] = prepare_rule(options["rule"], settings)
    if options["max_iters"] is not None:
        run["max_iters"] = options["max_iters"]
    return run


def find_holes(
    images: tuple[str, ...], mask: str, model: str, output: str, sheet: str | None
) -> list[Hole]:
    """Which files go together; refuses what would overwrite an input or another result."""
    from proxfield.cli.refine_files import find_images, make_pairs
    from proxfield.io.remote import make_path

    found = find_images(images)
    masks = find_masks(found, mask)
    pairs = make_pairs(
        found, masks, output, sheet, "labels", others=[make_path(model)], overlay_option="--sheet"
    )
    return [Hole(p.image, p.unary, p.targets[0], p.overlay) for p in pairs]


def find_masks(images: list[AnyPath], given: str) -> list[AnyPath]:
    """The mask of each image: one for all, or that of the same name in a folder."""
    from proxfield.cli.refine_files import find_partners
    from proxfield.io.remote import make_path

    if make_path(given).is_dir():
        return find_partners(images, given, "--mask")
    return find_partners(images[:1], given, "--mask") * len(images)


def read_holed(
    image: AnyPath, mask: AnyPath
) -> tuple[NDArray[Any], NDArray[Any], list[int] | None]:
    """Labels, what is hidden, and the palette of an image."""
    from proxfield.errors import InputError
    from proxfield.io.files import display_name
    from proxfield.io.images import read_labels

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
    path: AnyPath, labels: NDArray[Any], hidden: NDArray[Any], n_labels: int | None, *, known: bool
) -> None:
    """As `check_images` for one image, with its file in errors."""
    from proxfield.errors import InputError
    from proxfield.io.files import display_name
    from proxfield.learn.holes import check_images

    try:
        check_images([labels], [hidden], n_labels, known=known)
    except InputError as error:
        text = error.message.removeprefix("image 0 ")
        raise InputError(text, path=display_name(path)) from None


def fill(hole: Hole, model: DecisionTreeField, truth: bool, run: Record) -> Record:
    """Complete one image and write it."""
    import numpy as np

    from proxfield.io.files import atomic_write
    from proxfield.io.images import import_pillow, png_bytes, write_labels
    from proxfield.learn.estimator import whole

    labels, hidden, palette = read_holed(hole.image, hole.mask)
    result = whole(model.infer(labels, hidden, **run))
    q = result.q.reshape(*labels.shape, model.n_labels_)
    found = np.where(hidden, q.argmax(axis=2), labels)
    picture = None
    if hole.sheet is not None:
        from proxfield.viz.sheets import inpainting_sheet

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


def report(records: list[Record], options: Record, seconds: float, as_json: bool) -> None:
    """What was done, on stdout."""
    from proxfield.cli.shared import print_json, print_pairs

    hidden = sum(r["hidden"] for r in records)
    summary: Record = {"images": len(records), "hidden": hidden, "seconds": seconds}
    if options["truth"]:
        summary["accuracy"] = sum(r["correct"] for r in records) / hidden
        summary["log_likelihood"] = sum(r["log_likelihood"] for r in records) / hidden
    if as_json:
        print_json({**summary, "output": options["output"], "files": records})
        return
    rows = [("completed", f"{len(records)} images, {hidden} pixels in {seconds:.3g} s")]
    if options["truth"]:
        rows.append(("right", f"{100 * summary['accuracy']:.2f} % of the hidden pixels"))
        rows.append(("log q(truth)", f"{summary['log_likelihood']:.4f} per pixel"))
    rows.append(("results", options["output"]))
    if options["sheet"] is not None:
        rows.append(("sheets", options["sheet"]))
    print_pairs(rows)
