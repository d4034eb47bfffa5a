"""Commands about images beside ``proxfield refine``: what they take."""

from __future__ import annotations

import click

from proxfield.cli.commands.refine import (
    PRESETS,
    array_options,
    confidence_option,
    map_options,
)
from proxfield.cli.options import (
    CommandWithDenseRules,
    done_by,
    jobs_options,
    json_option,
    seed_option,
    stack,
)

# ---- studio ----

studio_files = stack(
    click.option(
        "--probs",
        metavar="FILE",
        help="Probabilities of the image (.npy, .npz; a gray picture is a mask).",
    ),
    click.option("--logits", metavar="FILE", help="Scores of a network (.npy, .npz) instead."),
    click.option("--labels", metavar="FILE", help="A label map (.png, .npy) instead."),
    click.option(
        "--truth",
        metavar="FILE",
        help="True labels (.png, .npy; 255: unknown), to show the mean IoU.",
    ),
    click.option(
        "--scribbles",
        metavar="FILE",
        help="Labels of pixels that are certain: a label map, 255 or transparent elsewhere.",
    ),
)

server_options = stack(
    click.option(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        show_default=True,
        help="Address to listen on; any but this machine's own needs --allow-remote.",
    ),
    click.option(
        "--allow-remote",
        is_flag=True,
        help="Let other machines connect. There is no password: whoever reaches the port can "
        "use the studio and see the image.",
    ),
    click.option(
        "--port",
        metavar="N",
        type=click.IntRange(0, 65535),
        default=0,
        help="Port to listen on.  [default: one that is free]",
    ),
    click.option("--no-browser", is_flag=True, help="Only print the address."),
    click.option(
        "--max-upload",
        metavar="MB",
        type=click.FloatRange(0, 4096, min_open=True),
        default=64,
        show_default=True,
        help="Maximum size of a file that the page sends.",
    ),
)


@click.command(cls=CommandWithDenseRules)
@click.argument("image", metavar="[IMAGE]", required=False)
@studio_files
@map_options
@array_options
@click.option("--names", metavar="A,B,…", help="Names of the labels, for the legend.")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default=PRESETS[0],
    show_default=True,
    help="Settings by name to begin with.",
)
@click.option("--config", metavar="FILE", help="Settings of a file (crf.toml) to begin with.")
@click.option(
    "--rule",
    metavar="NAME",
    default="fixed",
    show_default=True,
    help="Update rule to begin with; see the list below.",
)
@server_options
@done_by("studio:open_studio")
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


tune_inputs = stack(
    click.argument("images", metavar="IMAGE...", nargs=-1, required=True),
    click.option(
        "--probs",
        metavar="DIR",
        required=True,
        help="Folder of probabilities (.npy, .npz), named like the images.",
    ),
    click.option(
        "--truth",
        metavar="DIR",
        required=True,
        help="Folder of true label maps (.png, .npy), named like the images.",
    ),
    click.option(
        "--ignore",
        metavar="LABEL",
        type=int,
        multiple=True,
        default=(255,),
        show_default=True,
        help="A true label that stands for unlabelled; repeatable.",
    ),
    array_options,
    confidence_option,
    click.option(
        "--color-range",
        metavar="X",
        type=float,
        help="Full range of the images' values.  [default: 255, or 1 for floats up to 1]",
    ),
)

search_options = stack(
    click.option(
        "--metric",
        type=click.Choice(["miou", "accuracy", "boundary-f"]),
        default="miou",
        show_default=True,
        help="What to maximize: mean IoU, pixel accuracy, or F1 of boundaries.",
    ),
    click.option(
        "--tolerance",
        metavar="PX",
        type=click.FloatRange(0, 99),
        default=2.0,
        show_default=True,
        help="How far boundaries may be apart, for boundary-f.",
    ),
    click.option(
        "--trials",
        metavar="N",
        type=click.IntRange(min=1),
        default=60,
        show_default=True,
        help="Maximum number of settings per search.",
    ),
    click.option(
        "--folds",
        metavar="K",
        type=click.IntRange(min=2),
        default=5,
        show_default=True,
        help="Number of folds of the cross-validation; at most one per image.",
    ),
    click.option(
        "--filter",
        "filters",
        type=click.Choice(["auto", "exact", "lattice"]),
        multiple=True,
        default=("auto",),
        show_default=True,
        help="A filter to try; repeatable.",
    ),
    click.option(
        "--budget",
        metavar="SECONDS",
        type=click.FloatRange(0, min_open=True),
        help="Time budget in seconds; then the best so far counts.",
    ),
    seed_option("Random seed of the folds."),
    jobs_options("image", "; fewer if memory is short"),
)


@click.command()
@tune_inputs
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the settings.")
@click.option(
    "--report",
    metavar="FILE",
    help="A page (.html), or a figure (.png, .svg, .pdf), with the metric over each setting.",
)
@search_options
@click.option("--force", is_flag=True, help="Repeat trials that are stored.")
@json_option
@done_by("tune:choose")
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
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="-",
    help="Where to write the JSON; .gz, .xz and .bz2 names are compressed. stdout by default.",
)
@click.option(
    "--n-labels",
    metavar="N",
    type=click.IntRange(min=1),
    help="The number of classes.  [default: one more than the largest label]",
)
@click.option(
    "--ignore",
    metavar="LABEL",
    type=int,
    multiple=True,
    default=(255,),
    show_default=True,
    help="A label that is no class; repeatable.",
)
@click.option(
    "--min-pixels",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Minimum number of pixels of a class that is present in an image.",
)
@json_option
@done_by("cooccurrence:count")
def cooccurrence() -> None:
    """Count in how many images each class, and each pair of classes, is present.

    Each LABELMAP is a PNG (palette or gray) or a .npy file that holds a class number for
    each pixel, or a folder of such files. The counts are what `proxfield.Cooccurrence` takes.
    """
