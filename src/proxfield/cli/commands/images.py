"""Commands about images: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import CommandWithDenseRules, done_by

AXES = {"auto": "auto", "first": 0, "last": -1, "none": None}
"""How options name an axis, and what Python calls it."""


@click.command(cls=CommandWithDenseRules)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
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

    Options:
    --probs PATH  Probabilities (.npy, .npz, NIfTI, GeoTIFF; a gray picture is a mask) of one image,
        or a folder of files named like the images.
    --logits PATH  Scores of a network, before the softmax, instead.
    --labels PATH  Label maps (.png, .npy) instead, a file or a folder.
    maps
    --scribbles PATH  Strokes whose labels are certain: label maps, 255 or transparent elsewhere; a
        file, or a folder with files for some of the images.
    arrays
    -o --output PATH (required)  Folder for the results (created if needed), or a file for a single
        image.
    --output-kind (labels|probabilities) = labels  Label maps (.png; .npy for volumes) or
        probabilities (.npz); NIfTI and GeoTIFF stay what they are.
    --float16  Store probabilities in half the space of float32.
    --overlay PATH  Also write pictures of the labels over the images.
    --names A,B,…  Names of the labels, for the overlays' legend.
    --force  Repeat images whose results exist.
    --preset (gentle|krahenbuehl|deeplab|wsss) = gentle  Settings by name: for --max-iters and the
        next five, where they aren't given.
    --config FILE  Settings that proxfield tune has written, likewise.
    --spatial-sigma PX  Standard deviation of the spatial term; 3,3,1: one per axis.
    --spatial-weight W  Its weight; 0 omits the term.
    --bilateral-sigma PX  Standard deviation of the bilateral term's positions, likewise.
    --bilateral-color X (numbers)  Standard deviation of its colors, in the image's units.
    --bilateral-weight W  Its weight; 0 omits the term.
    --spacing X (numbers) = 1  Size of a pixel; 1,1,5: one per axis.
    --compatibility potts|FILE = potts  What a pair of labels costs: Potts, or a vector or a matrix
        (.npy).
    --cooccurrence FILE  Counts of classes that occur together.
    --filter (auto|exact|lattice) = auto  How Gaussian sums are computed; auto is exact for tiny
        images.
    device
    --rule NAME = fixed  Update rule; see the list below.
    set
    init: unary
    --max-iters N (whole)  Maximum number of iterations. [default: that of the preset]
    --tol X = 1e-6  Tolerance: stop when no probability changes by more, divided by the step.
    --budget SECONDS  Time budget in seconds per image.
    seed
    jobs: image|; fewer if memory is short
    part: image
    --tile N  Refine in tiles of N×N pixels. [default: tiles of 1024 where an image wouldn't fit in
        memory]
    --halo N (whole)  Pixels around a tile that are refined with it. [default: 5 standard
        deviations]
    json
    """


@click.command(cls=CommandWithDenseRules)
@click.argument("image", metavar="[IMAGE]", required=False)
@done_by(
    "images:open_studio",
    port=click.IntRange(0, 65535),
    max_upload=click.FloatRange(0, 4096, min_open=True),
)
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

    Options:
    --probs FILE  Probabilities of the image (.npy, .npz; a gray picture is a mask).
    --logits FILE  Scores of a network (.npy, .npz) instead.
    --labels FILE  A label map (.png, .npy) instead.
    --truth FILE  True labels (.png, .npy; 255: unknown), to show the mean IoU.
    --scribbles FILE  Labels of pixels that are certain: a label map, 255 or transparent elsewhere.
    maps
    arrays
    --names A,B,…  Names of the labels, for the legend.
    --preset (gentle|krahenbuehl|deeplab|wsss) = gentle  Settings by name to begin with.
    --config FILE  Settings of a file (crf.toml) to begin with.
    --rule NAME = fixed  Update rule to begin with; see the list below.
    --host ADDRESS = 127.0.0.1  Address to listen on; any but this machine's own needs
        --allow-remote.
    --allow-remote  Let other machines connect. There is no password: whoever reaches the port can
        use the studio and see the image.
    --port N (hidden) = 0  Port to listen on. [default: one that is free]
    --no-browser  Only print the address.
    --max-upload MB = 64  Maximum size of a file that the page sends.
    """


@click.command()
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@done_by("images:tune", tolerance=click.FloatRange(0, 99))
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

    Options:
    --probs DIR (required)  Folder of probabilities (.npy, .npz), named like the images.
    --truth DIR (required)  Folder of true label maps (.png, .npy), named like the images.
    --ignore LABEL (many) = 255  A true label that stands for unlabelled; repeatable.
    arrays
    confidence
    --color-range X  Full range of the images' values. [default: 255, or 1 for floats up to 1]
    -o --output FILE (output; required)  Where to write the settings.
    --report FILE (to .html, .png, .svg, .pdf)  A page (.html), or a figure (.png, .svg, .pdf), with
        the metric over each setting.
    --metric (miou|accuracy|boundary-f) = miou  What to maximize: mean IoU, pixel accuracy, or F1 of
        boundaries.
    --tolerance PX = 2.0  How far boundaries may be apart, for boundary-f.
    --trials N = 60  Maximum number of settings per search.
    --folds K (two) = 5  Number of folds of the cross-validation; at most one per image.
    --filter (auto|exact|lattice; many; name=filters) = auto  A filter to try; repeatable.
    --budget SECONDS (positive)  Time budget in seconds; then the best so far counts.
    --seed S = 0  Random seed of the folds.
    jobs: image|; fewer if memory is short
    --force  Repeat trials that are stored.
    json
    """


@click.command()
@click.argument("label_maps", metavar="LABELMAP...", nargs=-1, required=True)
@done_by("images:count")
def cooccurrence() -> None:
    """Count in how many images each class, and each pair of classes, is present.

    Each LABELMAP is a PNG (palette or gray) or a .npy file that holds a class number for
    each pixel, or a folder of such files. The counts are what `proxfield.Cooccurrence` takes.

    Options:
    stdout: the counts|Where to write the JSON
    --n-labels N  The number of classes. [default: one more than the largest label]
    --ignore LABEL (many) = 255  A label that is no class; repeatable.
    --min-pixels N = 1  Minimum number of pixels of a class that is present in an image.
    json
    """
