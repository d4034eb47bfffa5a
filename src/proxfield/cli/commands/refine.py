"""``proxfield refine``: what it takes."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    TOL,
    CommandWithDenseRules,
    Decorator,
    device_option,
    done_by,
    init_option,
    jobs_options,
    json_option,
    seed_option,
    settings_option,
    stack,
)

PRESETS = ("gentle", "krahenbuehl", "deeplab", "wsss")
"""Those of `DenseCRF`, repeated here so that help needn't import them."""
AXES = {"auto": "auto", "first": 0, "last": -1, "none": None}
"""How options name an axis, and what Python calls it."""


def numbers(_: click.Context, __: click.Parameter, text: str | None) -> float | list[float] | None:
    """A number, or several with commas between, all above 0."""
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < x < float("inf") for x in found):
        raise click.BadParameter(f"{text!r}, expected a number above 0, or several as 3,3,1")
    return found[0] if len(found) == 1 else found


def ignored(_: click.Context, __: click.Parameter, text: str) -> int | str | None:
    """A label, none, or auto."""
    if text == "auto":
        return text
    if text == "none":
        return None
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r}, expected a label (255, say) or none")
    return int(text)


array_options = stack(
    click.option("--normalize", is_flag=True, help="Divide probabilities by their sum."),
    click.option(
        "--labels-axis",
        type=click.Choice(["auto", "first", "last"]),
        default="auto",
        show_default=True,
        help="Axis of the labels in the probabilities.",
    ),
    click.option(
        "--channel-axis",
        type=click.Choice(list(AXES)),
        default="auto",
        show_default=True,
        help="Axis of the channels in an image.",
    ),
)
"""How arrays of probabilities and images are laid out."""

confidence_option = click.option(
    "--confidence",
    metavar="P",
    type=click.FloatRange(0, 1, min_open=True),
    help="Probability that a label is right, also of probabilities that are all 0 or 1.  "
    "[default: 0.7, or as --config says]",
)

map_options = stack(
    confidence_option,
    click.option(
        "--n-labels",
        metavar="N",
        type=click.IntRange(min=1),
        help="Number of labels.  [default: one more than the largest in each map]",
    ),
    click.option("--unsure", metavar="V", type=int, help="A label that stands for unknown."),
    click.option(
        "--ignore",
        metavar="V|none",
        default="auto",
        callback=ignored,
        help="A label of pixels that keep it in the result.  [default: 255, if there are fewer "
        "labels]",
    ),
)
"""How label maps are read."""

input_options = stack(
    click.argument("images", metavar="IMAGE...", nargs=-1, required=True),
    click.option(
        "--probs",
        metavar="PATH",
        help="Probabilities (.npy, .npz, NIfTI, GeoTIFF; a gray picture is a mask) of one image, "
        "or a folder of files named like the images.",
    ),
    click.option(
        "--logits",
        metavar="PATH",
        help="Scores of a network, before the softmax, instead.",
    ),
    click.option(
        "--labels", metavar="PATH", help="Label maps (.png, .npy) instead, a file or a folder."
    ),
    map_options,
    click.option(
        "--scribbles",
        metavar="PATH",
        help="Strokes whose labels are certain: label maps, 255 or transparent elsewhere; a file, "
        "or a folder with files for some of the images.",
    ),
    array_options,
)

output_options = stack(
    click.option(
        "-o",
        "--output",
        metavar="PATH",
        required=True,
        help="Folder for the results (created if needed), or a file for a single image.",
    ),
    click.option(
        "--output-kind",
        type=click.Choice(["labels", "probabilities"]),
        default="labels",
        show_default=True,
        help="Label maps (.png; .npy for volumes) or probabilities (.npz); NIfTI and GeoTIFF "
        "stay what they are.",
    ),
    click.option(
        "--float16", is_flag=True, help="Store probabilities in half the space of float32."
    ),
    click.option(
        "--overlay", metavar="PATH", help="Also write pictures of the labels over the images."
    ),
    click.option("--names", metavar="A,B,…", help="Names of the labels, for the overlays' legend."),
    click.option("--force", is_flag=True, help="Repeat images whose results exist."),
)


def length(name: str, unit: str, default: str | None, text: str) -> Decorator:
    """An option that takes `numbers`."""
    return click.option(
        name, metavar=unit, default=default, show_default=True, help=text, callback=numbers
    )


def weight(name: str) -> Decorator:
    """An option for the weight of a term."""
    return click.option(name, metavar="W", type=float, help="Its weight; 0 omits the term.")


term_options = stack(
    click.option(
        "--preset",
        type=click.Choice(PRESETS),
        default=PRESETS[0],
        show_default=True,
        help="Settings by name: for --max-iters and the next five, where they aren't given.",
    ),
    click.option(
        "--config", metavar="FILE", help="Settings that proxfield tune has written, likewise."
    ),
    length(
        "--spatial-sigma",
        "PX",
        None,
        "Standard deviation of the spatial term; 3,3,1: one per axis.",
    ),
    weight("--spatial-weight"),
    length(
        "--bilateral-sigma",
        "PX",
        None,
        "Standard deviation of the bilateral term's positions, likewise.",
    ),
    length(
        "--bilateral-color",
        "X",
        None,
        "Standard deviation of its colors, in the image's units.",
    ),
    weight("--bilateral-weight"),
    length("--spacing", "X", "1", "Size of a pixel; 1,1,5: one per axis."),
    click.option(
        "--compatibility",
        metavar="potts|FILE",
        default="potts",
        show_default=True,
        help="What a pair of labels costs: Potts, or a vector or a matrix (.npy).",
    ),
    click.option("--cooccurrence", metavar="FILE", help="Counts of classes that occur together."),
    click.option(
        "--filter",
        type=click.Choice(["auto", "exact", "lattice"]),
        default="auto",
        show_default=True,
        help="How Gaussian sums are computed; auto is exact for tiny images.",
    ),
)

run_options = stack(
    device_option,
    click.option(
        "--rule",
        metavar="NAME",
        default="fixed",
        show_default=True,
        help="Update rule; see the list below.",
    ),
    settings_option,
    init_option("unary"),
    click.option(
        "--max-iters",
        metavar="N",
        type=click.IntRange(min=0),
        help="Maximum number of iterations.  [default: that of the preset]",
    ),
    click.option(
        "--tol",
        metavar="X",
        type=float,
        default=TOL,
        show_default=True,
        help="Tolerance: stop when no probability changes by more, divided by the step.",
    ),
    click.option(
        "--budget", metavar="SECONDS", type=float, help="Time budget in seconds per image."
    ),
    seed_option(),
    jobs_options("image", "; fewer if memory is short", parts=True),
)

tile_options = stack(
    click.option(
        "--tile",
        metavar="N",
        type=click.IntRange(min=1),
        help="Refine in tiles of N×N pixels.  [default: tiles of 1024 where an image wouldn't fit "
        "in memory]",
    ),
    click.option(
        "--halo",
        metavar="N",
        type=click.IntRange(min=0),
        help="Pixels around a tile that are refined with it.  [default: 5 standard deviations]",
    ),
)


@click.command(cls=CommandWithDenseRules)
@input_options
@output_options
@term_options
@run_options
@tile_options
@json_option
@done_by("refine:refine")
def refine() -> None:
    """Refine segmentations by a dense CRF: labels that follow the edges of the image.

    IMAGE is a picture (PNG, JPEG, TIFF), an array (.npy, .npz), a NIfTI volume (.nii, .nii.gz) or a
    folder of these; or a whole slide or a zarr array, which are refined in tiles like all images
    that don't fit in memory. For several images --probs and -o are folders, with files of the same
    names. Beside each result a small JSON file says how it was made. Results that are there, made
    with the same parameters, are not made again, so that a run that was stopped goes on where it
    was (one file that -o names is always written). A broken image is reported and passed over; the
    exit code is then 1.

    \b
    Examples:
      proxfield refine photo.jpg --probs photo.npy -o photo.png
      proxfield refine photos/ --probs probs/ -o refined/ --jobs 4 --overlay pictures/
      proxfield refine photos/ --labels maps/ --n-labels 21 -o refined/
      proxfield refine head.nii.gz --logits head.npy --bilateral-color 40 -o refined/
      proxfield refine photos/ --probs probs/ -o refined/ --config crf.toml
      proxfield refine s3://b/photos --probs s3://b/probs -o s3://b/out --cluster tcp://host:8786
      proxfield refine photos/ --probs probs/ -o refined/ --part $SLURM_ARRAY_TASK_ID/8
      proxfield refine slide.svs --probs probs.zarr -o labels.tif --jobs 2
    """
