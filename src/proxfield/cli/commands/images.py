"""Commands about images: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    FILTERS,
    OUTPUT,
    POSITIVE,
    PROBABILITY,
    RULE,
    TOL,
    TWO_OR_MORE,
    WHOLE,
    CommandWithDenseRules,
    FileName,
    done_by,
    init_option,
    jobs_options,
    option,
    seed_option,
    shared,
    stack,
    stdout_option,
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
    option("--normalize", "Divide probabilities by their sum."),
    option(
        "--labels-axis",
        "Axis of the labels in the probabilities.",
        "auto",
        ("auto", "first", "last"),
    ),
    option("--channel-axis", "Axis of the channels in an image.", "auto", tuple(AXES)),
)
"""How arrays of probabilities and images are laid out."""

confidence_option = option(
    "--confidence P",
    "Probability that a label is right, also of probabilities that are all 0 or 1.  "
    "[default: 0.7, or as --config says]",
    kind=PROBABILITY,
)

map_options = stack(
    confidence_option,
    option("--n-labels N", "Number of labels.  [default: one more than the largest in each map]"),
    option("--unsure V", "A label that stands for unknown."),
    option(
        "--ignore V|none",
        "A label of pixels that keep it in the result.  [default: 255, if there are fewer labels]",
        "auto",
        shown=False,
        callback=ignored,
    ),
)
"""How label maps are read."""


@click.command(cls=CommandWithDenseRules)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@option(
    "--probs PATH",
    "Probabilities (.npy, .npz, NIfTI, GeoTIFF; a gray picture is a mask) of one image, "
    "or a folder of files named like the images.",
)
@option("--logits PATH", "Scores of a network, before the softmax, instead.")
@option("--labels PATH", "Label maps (.png, .npy) instead, a file or a folder.")
@map_options
@option(
    "--scribbles PATH",
    "Strokes whose labels are certain: label maps, 255 or transparent elsewhere; a file, "
    "or a folder with files for some of the images.",
)
@array_options
@option(
    "-o --output PATH",
    "Folder for the results (created if needed), or a file for a single image.",
    required=True,
)
@option(
    "--output-kind",
    "Label maps (.png; .npy for volumes) or probabilities (.npz); NIfTI and GeoTIFF "
    "stay what they are.",
    "labels",
    ("labels", "probabilities"),
)
@option("--float16", "Store probabilities in half the space of float32.")
@option("--overlay PATH", "Also write pictures of the labels over the images.")
@option("--names A,B,…", "Names of the labels, for the overlays' legend.")
@option("--force", "Repeat images whose results exist.")
@option(
    "--preset",
    "Settings by name: for --max-iters and the next five, where they aren't given.",
    PRESETS[0],
    PRESETS,
)
@option("--config FILE", "Settings that proxfield tune has written, likewise.")
@option(
    "--spatial-sigma PX",
    "Standard deviation of the spatial term; 3,3,1: one per axis.",
    callback=numbers,
)
@option("--spatial-weight W", "Its weight; 0 omits the term.")
@option(
    "--bilateral-sigma PX",
    "Standard deviation of the bilateral term's positions, likewise.",
    callback=numbers,
)
@option(
    "--bilateral-color X",
    "Standard deviation of its colors, in the image's units.",
    kind=str,
    callback=numbers,
)
@option("--bilateral-weight W", "Its weight; 0 omits the term.")
@option("--spacing X", "Size of a pixel; 1,1,5: one per axis.", "1", kind=str, callback=numbers)
@option(
    "--compatibility potts|FILE",
    "What a pair of labels costs: Potts, or a vector or a matrix (.npy).",
    "potts",
)
@option("--cooccurrence FILE", "Counts of classes that occur together.")
@option(
    "--filter",
    "How Gaussian sums are computed; auto is exact for tiny images.",
    "auto",
    FILTERS,
)
@shared("device")
@option("--rule NAME", RULE, "fixed")
@shared("set")
@init_option("unary")
@option("--max-iters N", "Maximum number of iterations.  [default: that of the preset]", kind=WHOLE)
@option("--tol X", "Tolerance: stop when no probability changes by more, divided by the step.", TOL)
@option("--budget SECONDS", "Time budget in seconds per image.")
@shared("seed")
@jobs_options("image", "; fewer if memory is short", parts=True)
@option(
    "--tile N",
    "Refine in tiles of N×N pixels.  [default: tiles of 1024 where an image wouldn't fit "
    "in memory]",
)
@option(
    "--halo N",
    "Pixels around a tile that are refined with it.  [default: 5 standard deviations]",
    kind=WHOLE,
)
@shared("json")
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


@click.command(cls=CommandWithDenseRules)
@click.argument("image", metavar="[IMAGE]", required=False)
@option("--probs FILE", "Probabilities of the image (.npy, .npz; a gray picture is a mask).")
@option("--logits FILE", "Scores of a network (.npy, .npz) instead.")
@option("--labels FILE", "A label map (.png, .npy) instead.")
@option("--truth FILE", "True labels (.png, .npy; 255: unknown), to show the mean IoU.")
@option(
    "--scribbles FILE",
    "Labels of pixels that are certain: a label map, 255 or transparent elsewhere.",
)
@map_options
@array_options
@option("--names A,B,…", "Names of the labels, for the legend.")
@option("--preset", "Settings by name to begin with.", PRESETS[0], PRESETS)
@option("--config FILE", "Settings of a file (crf.toml) to begin with.")
@option("--rule NAME", "Update rule to begin with; see the list below.", "fixed")
@option(
    "--host ADDRESS",
    "Address to listen on; any but this machine's own needs --allow-remote.",
    "127.0.0.1",
)
@option(
    "--allow-remote",
    "Let other machines connect. There is no password: whoever reaches the port can "
    "use the studio and see the image.",
)
@option(
    "--port N",
    "Port to listen on.  [default: one that is free]",
    0,
    click.IntRange(0, 65535),
    shown=False,
)
@option("--no-browser", "Only print the address.")
@option(
    "--max-upload MB",
    "Maximum size of a file that the page sends.",
    64,
    click.FloatRange(0, 4096, min_open=True),
)
@done_by("images:open_studio")
def studio() -> None:
    """Open a page in the browser that refines one image while you move its sliders.

    It shows the image, the classifier's labels, the result and the difference, and how the free
    energy F falls. Strokes on the image fix labels. The settings can be saved as crf.toml for
    proxfield refine --config, and copied as Python. Without IMAGE the page shows a generated scene;
    it can open other files too. Nothing leaves this machine. Ctrl-C ends it.

    \b
    Examples:
      proxfield studio
      proxfield studio photo.jpg --probs photo.npy --truth truth.png
      proxfield studio photo.jpg --labels map.png --names background,cat --port 8080 --no-browser
    """


@click.command()
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@option(
    "--probs DIR", "Folder of probabilities (.npy, .npz), named like the images.", required=True
)
@option(
    "--truth DIR",
    "Folder of true label maps (.png, .npy), named like the images.",
    required=True,
)
@option(
    "--ignore LABEL",
    "A true label that stands for unlabelled; repeatable.",
    (255,),
    multiple=True,
)
@array_options
@confidence_option
@option(
    "--color-range X",
    "Full range of the images' values.  [default: 255, or 1 for floats up to 1]",
)
@option("-o --output FILE", "Where to write the settings.", kind=OUTPUT, required=True)
@option(
    "--report FILE",
    "A page (.html), or a figure (.png, .svg, .pdf), with the metric over each setting.",
    kind=FileName(True, endings=".html, .png, .svg, .pdf"),
)
@option(
    "--metric",
    "What to maximize: mean IoU, pixel accuracy, or F1 of boundaries.",
    "miou",
    ("miou", "accuracy", "boundary-f"),
)
@option(
    "--tolerance PX",
    "How far boundaries may be apart, for boundary-f.",
    2.0,
    click.FloatRange(0, 99),
)
@option("--trials N", "Maximum number of settings per search.", 60)
@option(
    "--folds K",
    "Number of folds of the cross-validation; at most one per image.",
    5,
    TWO_OR_MORE,
)
@option(
    "--filter",
    "A filter to try; repeatable.",
    ("auto",),
    FILTERS,
    name="filters",
    multiple=True,
)
@option("--budget SECONDS", "Time budget in seconds; then the best so far counts.", kind=POSITIVE)
@seed_option("Random seed of the folds.")
@jobs_options("image", "; fewer if memory is short")
@option("--force", "Repeat trials that are stored.")
@shared("json")
@done_by("images:tune")
def tune() -> None:
    """Choose the settings of a dense CRF on images whose labels are known.

    A search over the bandwidths and weights of both terms and the number of updates. It is
    repeated without each fold of the images, and what it chooses is measured on that fold.
    If that is no better than the labels without a CRF, the settings that are written
    say "no CRF": weights of 0. Every trial is stored in FILE.trials.jsonl; the same command
    continues a run that was stopped.

    \b
    Examples:
      proxfield tune photos/ --probs probs/ --truth truth/ -o crf.toml --jobs 4
      proxfield refine more/ --probs probs/ --config crf.toml -o refined/
    """


@click.command()
@click.argument("label_maps", metavar="LABELMAP...", nargs=-1, required=True)
@stdout_option("the counts", "Where to write the JSON")
@option("--n-labels N", "The number of classes.  [default: one more than the largest label]")
@option("--ignore LABEL", "A label that is no class; repeatable.", (255,), multiple=True)
@option("--min-pixels N", "Minimum number of pixels of a class that is present in an image.", 1)
@shared("json")
@done_by("images:count")
def cooccurrence() -> None:
    """Count in how many images each class, and each pair of classes, is present.

    Each LABELMAP is a PNG (palette or gray) or a .npy file that holds a class number for
    each pixel, or a folder of such files. The counts are what `proxfield.Cooccurrence` takes.
    """
